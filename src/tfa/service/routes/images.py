"""Routes that list, show, add and remove map images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import Header, Query, Request
from fastapi.responses import Response

from tfa.core.plain import Options, Value, opt, req
from tfa.errors import BadPositions
from tfa.maps.upkeep import format_time
from tfa.service.auth import editing_router, reading_router
from tfa.service.bodies import body_schema, file_name, parse_sent_json, read_photos, reply
from tfa.service.context import Chosen, ImageId, Running, find_record, image_url
from tfa.service.live import LARGEST, SMALLEST, LiveMap, NewPhoto
from tfa.service.problems import Refused
from tfa.types import EditReport, ImageRecord, Position

images_router, images_edits = reading_router("images"), editing_router("images")


class AddOptions(Options):
    """Options for adding photos."""

    positions: Any = opt(
        None,
        "Positions of the photos: a list in their order, or an object by file name, of "
        '{"lat", "lon"}, {"x", "y"} or null. [default: from file names and EXIF]',
    )
    session: str | None = opt(None, "Drive that the photos belong to.", min_length=1, max_length=200)


class ImageList(Value):
    """A page of map images."""

    total: int = req("Number of images that match the filter.")
    images: list[ImageRecord] = req("Images of this page, in the order they were added.")
    revision: int = req("Map revision of the ids, to remove images from no other one.")


@images_router.get("/images", response_model=ImageList)
async def list_images(
    request: Request,
    service: Running,
    live: Chosen,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=0, le=1000)] = 100,
    filter: Annotated[str, Query(description="Text that the file name must contain; case does not matter.")] = "",
) -> Response:
    """List the map images in the order they were added."""

    def show() -> Response:
        revision = live.size[1]  # first: a later one could belong to other images
        total, shown = live.images(offset, limit, filter)
        return reply(ImageList(total=total, images=[_show(live, record) for record in shown], revision=revision))

    return await service.work(request, live, show)


def _show(live: LiveMap, record: ImageRecord) -> ImageRecord:
    """Reduce the path to its name, and add the URL and the last confirmation."""
    confirmed = live.last_confirmed(record)
    return replace(
        record,
        path=Path(record.path).name,
        image_url=image_url(live, record.id),
        last_confirmed=None if confirmed is None else format_time(confirmed),
    )


@images_router.get(
    "/images/{id}/file",
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {}}, "description": "A copy of the photo."}},
)
async def image_file(
    request: Request,
    service: Running,
    live: Chosen,
    id: ImageId,
    size: Annotated[int, Query(ge=SMALLEST, le=LARGEST)] = 480,
) -> Response:
    """Return a JPEG copy of a map image, its longer side at most `size` pixels, without EXIF data."""
    record = await find_record(request, service, live, id)
    # A rebuilt map may use the same id for another photo, so browsers must revalidate their copy.
    known = {"ETag": f'"{record.digest[:16]}-{size}"', "Cache-Control": "private, no-cache"}
    if request.headers.get("If-None-Match") == known["ETag"]:
        return Response(status_code=304, headers=known)
    copy = await service.copy_image(request, live, record, size)
    return Response(copy, media_type="image/jpeg", headers=known)


@images_edits.post("/images", response_model=EditReport, openapi_extra=body_schema(AddOptions, "images"))
async def post_images(request: Request, service: Running, live: Chosen) -> Response:
    """Add photos. They are on disk and visible to the next query when the response arrives.

    The head is not refitted. Photos that cannot be read or are already in the map are skipped.
    """
    uploads, options = await read_photos(request, AddOptions, service.settings)
    places = parse_positions(options.positions, [upload.name for upload in uploads])
    photos: list[NewPhoto] = []
    skipped: list[tuple[str, str]] = []
    for upload, place in zip(uploads, places, strict=True):
        try:
            photo = await service.decode(upload, live.encoder, request)
            photos.append(NewPhoto(file_name(upload, photo.kind), upload.content, photo.image, place))
        except Refused as refusal:
            if refusal.status == 503 or len(uploads) == 1:
                raise
            skipped.append((upload.name, refusal.public))
    report, revision = await service.edit(request, live, "add", partial(live.add, photos, options.session))
    return reply(replace(report, skipped=[*skipped, *report.skipped], revision=revision))


def parse_positions(value: Any, names: Sequence[str]) -> list[Position | None]:
    """Return the position of each photo, from a list in their order or an object by file name (or JSON text)."""
    if isinstance(value, str):
        try:
            value = parse_sent_json(value)
        except ValueError:
            raise BadPositions('positions is not JSON, or too long; write [{"lat": 52.5, "lon": 13.4}, null]') from None
    if value is None:
        return [None] * len(names)
    if isinstance(value, dict):
        strange = sorted(set(value) - set(names))
        if strange:
            raise BadPositions(f"positions has {strange[0]!r}, which is not in this request: {', '.join(names)}")
        value = [value.get(name) for name in names]
    if not isinstance(value, list) or len(value) != len(names):
        raise BadPositions(f"positions must be a list of {len(names)} items, one per photo, or an object by file name")
    if not all(place is None or isinstance(place, dict) for place in value):
        raise BadPositions("each position must be an object with lat and lon, or x and y, or null")
    return [None if place is None else Position.from_dict(place) for place in value]


@images_edits.delete("/images/{id}", response_model=EditReport)
async def remove_image(
    request: Request,
    service: Running,
    live: Chosen,
    id: ImageId,
    revision: Annotated[
        int | None,
        Query(ge=0, description="Map revision of the id; 409 if it changed. Revisions of a new folder start at 1."),
    ] = None,
    if_match: Annotated[str | None, Header(description="The same, as a header.")] = None,
) -> Response:
    """Remove an image from the answers. Its descriptors stay until `tfa refit`, and its file stays."""
    await find_record(request, service, live, id)
    expected = (if_match or "*").strip('"') if revision is None else str(revision)
    checked = None if expected == "*" else expected
    report, now = await service.edit(request, live, "remove", lambda current: current.remove([id], revision=checked))
    return reply(replace(report, revision=now))
