"""A map behind `tfa serve`, used like one on this disk. No extra is needed.

client = tfa.Client("http://localhost:8000", api_key="…")
client.query("photo.jpg")                                   # the same answer as PlaceMap.query
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from tfa._http import ServiceConnection, ServiceError
from tfa.core.plain import Options
from tfa.core.progress import Progress, as_progress
from tfa.errors import BadImage, TfaError
from tfa.photos.images import Photo, PhotoFile, PhotosLike, expand_photos, name_photo, read_photo_file
from tfa.types import (
    Answer,
    Answers,
    CalibrateOptions,
    CalibrationReport,
    EditReport,
    ImageRecord,
    MapInfo,
    Position,
    QueryOptions,
)

__all__ = ["Client", "FollowedCamera", "ServiceError"]

_QUERY_BATCH = 16  # photos sent at a time
UPLOAD_BYTES = 100_000_000  # and so many bytes at most
_PAGE_IMAGES = 1000  # images listed at a time
POLL_SECONDS = (0.2, 2.0)  # first and longest wait between looks at a job
_STEPS = 100  # a job's progress as a bar


class Client(ServiceConnection):
    """A map behind `tfa serve`. Methods mirror those of `PlaceMap`; `map` names one of several.

    Threads may share a client. Connections are kept open between calls.
    """

    # --- query -----------------------------------------------------------------------------------------------------

    def query(self, photo: Photo, k: int = 5, **options: Any) -> Answer:
        """Recognize a photo: a path, its bytes, a PIL image, or a uint8 array (H, W, 3) in RGB.

        Args:
            photo: The photo; one that cannot be read raises BadImage.
            k: Hits of the answer.
            options: Other fields of `tfa.types.QueryOptions`. `camera` names a camera, whose photos adapt the answers
                to those after them; see also `follow`.
        """
        fields = make_form(QueryOptions(k=k, **options))
        reply = self._post("/v1/query", "image", [read_photo_file(photo)], fields)
        return replace(Answer.from_dict(reply), query=name_photo(photo))

    def query_many(
        self, photos: PhotosLike, k: int = 5, progress: bool | Progress | None = None, **options: Any
    ) -> Answers:
        """Recognize many photos or a folder of them, and estimate recall on photos like these.

        One that cannot be read gets an answer that says so. `options` are other fields of `tfa.types.QueryOptions`;
        photos of a camera are answered in this order.
        """
        from tfa.maps.confidence import collect_answers

        fields, answers = make_form(QueryOptions(k=k, **options)), list[Answer]()
        several = expand_photos(photos)
        with as_progress(progress).task("querying", len(several), "photos") as task:
            for some in batches(several):
                files = [one for one in some if not isinstance(one, TfaError)]
                replies = iter(self._post("/v1/query/batch", "images", files, fields)["answers"] if files else [])
                for one in some:
                    answer = Answer(error=str(one)) if isinstance(one, TfaError) else Answer.from_dict(next(replies))
                    answers.append(replace(answer, query=name_photo(several[len(answers)])))
                task.advance(len(some))
        return collect_answers(answers)

    def follow(
        self, camera: str, calibration: str | None = None, *, sequence: bool = True, **options: Any
    ) -> FollowedCamera:
        """Follow the camera of that name, as `PlaceMap.follow` does: `step(photo)`. The service remembers it."""
        chosen = QueryOptions(camera=camera, calibration=calibration, sequence=sequence, **options)
        return FollowedCamera(self, chosen)

    # --- read ------------------------------------------------------------------------------------------------------

    def info(self) -> MapInfo:
        """Describe the map: what it holds, what was decided and why. Paths are names, photos are not listed."""
        return MapInfo.from_dict(self._call("GET", "/v1/map"))

    def maps(self) -> list[dict[str, Any]]:
        """List the maps of the service."""
        return list(self._call("GET", "/v1/maps"))

    def images(self, filter: str = "") -> list[ImageRecord]:
        """List the images of the map; `path` is the file name."""
        images: list[ImageRecord] = []
        while True:
            page = self._call("GET", "/v1/images", {"offset": len(images), "limit": _PAGE_IMAGES, "filter": filter})
            images += [ImageRecord.from_dict(one) for one in page["images"]]
            if not page["images"] or len(images) >= page["total"]:
                return images

    def image(self, image_id: int, size: int = 480) -> bytes:
        """Fetch a JPEG copy of one of the map's photos."""
        return self._send("GET", f"/v1/images/{image_id}/file", {"size": size}).content

    def evidence(self) -> dict[str, Any]:
        """Fetch what the decisions rest on: candidates, spectrum, similarities of pairs."""
        return dict(self._call("GET", "/v1/evidence"))

    def report(self) -> dict[str, Any]:
        """Fetch what `tfa report` says of the map: a headline, what answers and why, advice, hubs, near duplicates."""
        return dict(self._call("GET", "/v1/report"))

    def explain(self, photo: Photo, image_id: int, calibration: str | None = None) -> dict[str, Any]:
        """Explain the match of a photo with a map image: patches, words, terms of the score."""
        fields: dict[str, Any] = {"id": image_id} | ({} if calibration is None else {"calibration": calibration})
        return dict(self._post("/v1/explain", "image", [read_photo_file(photo)], fields))

    def cameras(self) -> list[dict[str, Any]]:
        """List the cameras that queries named, the most recently used first."""
        return list(self._call("GET", "/v1/cameras")["cameras"])

    # --- edit ------------------------------------------------------------------------------------------------------

    def add(
        self,
        photos: PhotosLike,
        *,
        positions: Sequence[Position | Mapping[str, float] | None] | None = None,
        session: str | None = None,
    ) -> EditReport:
        """Add photos, or a folder of them; they are on the service's disk when this returns.

        Args:
            photos: The photos.
            positions: One for each photo, or None.
            session: Drive that the photos belong to.
        """
        fields: dict[str, Any] = {} if session is None else {"session": session}
        if positions is not None:
            plain = [one.to_dict() if isinstance(one, Position) else one for one in positions]
            fields["positions"] = json.dumps(plain)
        files = [read_photo_file(photo) for photo in expand_photos(photos)]
        return EditReport.from_dict(self._post("/v1/images", "images", files, fields))

    def remove(self, ids: Sequence[int]) -> EditReport:
        """Take images out of the answers, one edit each."""
        report, removed = EditReport(), list[int]()
        for image_id in ids:
            report = EditReport.from_dict(self._call("DELETE", f"/v1/images/{image_id}"))
            removed += report.removed
        return replace(report, removed=removed)

    def calibrate(
        self, photos: PhotosLike, name: str = "target", *, progress: bool | Progress | None = None, **options: Any
    ) -> CalibrationReport:
        """Calibrate the map for a camera, by photos of it or a folder of them; waits until it is done.

        `options` are other fields of `tfa.types.CalibrateOptions`.
        """
        fields = make_form(CalibrateOptions(name=name, **options))
        files = [read_photo_file(photo) for photo in expand_photos(photos)]
        job = self._post("/v1/calibrations", "images", files, fields)["job"]
        return CalibrationReport.from_dict(self._wait(job, as_progress(progress)))

    def activate(self, name: str | None) -> str | None:
        """Choose the calibration that answers if a query names none; None for none."""
        active = self._call("POST", "/v1/calibrations/active", json={"name": name})["active"]
        return None if active is None else str(active)

    def drop_calibration(self, name: str) -> None:
        """Remove a calibration from the map."""
        self._call("DELETE", f"/v1/calibrations/{quote(name, safe='')}")

    def reset_camera(self, name: str | None = None) -> list[str]:
        """Forget what the photos of a camera taught, or of every one (None); returns the names of those there were."""
        path = "/v1/cameras" if name is None else f"/v1/cameras/{quote(name, safe='')}"
        return list(self._call("DELETE", path)["reset"])

    def _wait(self, job: str, progress: Progress) -> dict[str, Any]:
        pause, shown = POLL_SECONDS[0], 0
        with progress.task("calibrating", _STEPS) as task:
            while True:
                status = self._call("GET", f"/v1/jobs/{quote(job)}")
                if status["state"] == "failed":
                    raise ServiceError(status["error"])
                reached = int(_STEPS * status["progress"])
                task.advance(max(reached - shown, 0))
                shown = max(reached, shown)
                if status["state"] == "done":
                    return dict(status["result"])
                time.sleep(pause)
                pause = min(1.5 * pause, POLL_SECONDS[1])


class FollowedCamera:
    """`Client.follow` makes it. Its state is the service's: another client that names the camera continues it."""

    def __init__(self, client: Client, options: QueryOptions) -> None:
        self.client, self.options = client, options

    def step(self, photo: Photo) -> Answer:
        """Answer the next photo, adapted by those before it. One that cannot be read gets an answer that says so."""
        name = name_photo(photo)
        try:
            file = read_photo_file(photo)
        except BadImage as error:
            return Answer(query=name, error=str(error))
        (reply,) = self.client._post("/v1/query/batch", "images", [file], make_form(self.options))["answers"]
        return replace(Answer.from_dict(reply), query=name)

    @property
    def state(self) -> dict[str, Any]:
        """What the service knows of it: photos seen and counted, what they taught."""
        return dict(self.client._call("GET", f"/v1/cameras/{quote(str(self.options.camera), safe='')}"))

    def reset(self) -> None:
        """Forget every photo."""
        self.client.reset_camera(self.options.camera)


def make_form(options: Options) -> dict[str, Any]:
    """Make form fields of options: defaults are left out, a list has a field for each item."""
    default = type(options)()
    changed = {name: value for name, value in vars(options).items() if value != getattr(default, name)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}


def batches(photos: Iterable[Photo]) -> Iterator[list[PhotoFile | TfaError]]:
    """Split photos into pieces that one request can carry; one that cannot be read has its error in its place."""
    piece: list[PhotoFile | TfaError] = []
    size = 0
    for photo in photos:
        file: PhotoFile | TfaError
        try:
            file = read_photo_file(photo)
            more = len(file[1])
        except TfaError as error:
            file, more = error, 0
        if piece and (len(piece) == _QUERY_BATCH or size + more > UPLOAD_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(file)
        size += more
    if piece:
        yield piece
