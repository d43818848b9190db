"""Python client of `tfa serve`, with the methods of `PlaceMap`. Needs no extra.

client = tfa.Client("http://localhost:8000", api_key="…")
client.query("photo.jpg")                                   # same answer as PlaceMap.query
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
    UNREADABLE,
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

_QUERY_BATCH = 16  # photos per request
UPLOAD_BYTES = 100_000_000  # bytes per request
_PAGE_IMAGES = 1000  # images per list request
POLL_SECONDS = (0.2, 2.0)  # first and longest wait between polls of a job
_STEPS = 100  # steps of a job's progress bar


class Client(ServiceConnection):
    """A map served by `tfa serve`, with the methods of `PlaceMap`.

    Threads may share a client. Connections stay open between calls.
    """

    # --- query -----------------------------------------------------------------------------------------------------

    def query(self, photo: Photo, k: int = 5, **options: Any) -> Answer:
        """Find where a photo was taken.

        Args:
            photo: A path, bytes, a PIL image, or a uint8 RGB array (h, w, 3). Raises BadImage if it cannot be read.
            k: Number of hits.
            options: Other fields of `tfa.types.QueryOptions`. `camera` names a camera, whose photos adapt its later
                answers; see also `follow`.

        Returns:
            The answer with its hits, best first.
        """
        fields = make_form(QueryOptions(k=k, **options))
        reply = self._post("/v1/query", "image", [read_photo_file(photo)], fields)
        return replace(Answer.from_dict(reply), query=name_photo(photo))

    def query_many(
        self, photos: PhotosLike, k: int = 5, progress: bool | Progress | None = None, **options: Any
    ) -> Answers:
        """Find where several photos were taken, and estimate recall on similar photos.

        Args:
            photos: Photos, or folders of photos. A photo that cannot be read gets an answer with an error.
            k: Number of hits per photo.
            progress: True for a progress bar, or an object that receives the progress.
            options: Other fields of `tfa.types.QueryOptions`.

        Returns:
            One answer per photo, in order.
        """
        from tfa.maps.confidence import collect_answers

        fields, answers = make_form(QueryOptions(k=k, **options)), list[Answer]()
        several = expand_photos(photos)
        with as_progress(progress).task("querying", len(several), "photos") as task:
            for some in batches(several):
                files = [one for one in some if not isinstance(one, TfaError)]
                replies = iter(self._post("/v1/query/batch", "images", files, fields)["answers"] if files else [])
                for one in some:
                    unread = isinstance(one, TfaError)
                    answer = Answer(error=str(one), reason=UNREADABLE) if unread else Answer.from_dict(next(replies))
                    answers.append(replace(answer, query=name_photo(several[len(answers)])))
                task.advance(len(some))
        return collect_answers(answers)

    def follow(
        self, camera: str, calibration: str | None = None, *, sequence: bool = True, **options: Any
    ) -> FollowedCamera:
        """Adapt answers to a camera, as `PlaceMap.follow` does; the service stores the camera's state.

        Args:
            camera: Name of the camera.
            calibration: Calibration to start from. [default: the active one]
            sequence: Whether photos are consecutive frames of a drive.
            options: Other fields of `tfa.types.QueryOptions`.

        Returns:
            The camera; call `step(photo)` for each photo.
        """
        chosen = QueryOptions(camera=camera, calibration=calibration, sequence=sequence, **options)
        return FollowedCamera(self, chosen)

    # --- read ------------------------------------------------------------------------------------------------------

    def info(self) -> MapInfo:
        """Describe the map. Paths are reduced to names, and photos are not listed."""
        return MapInfo.from_dict(self._call("GET", "/v1/map"))

    def maps(self) -> list[dict[str, Any]]:
        """List the maps of the service."""
        return list(self._call("GET", "/v1/maps"))

    def images(self, filter: str = "") -> list[ImageRecord]:
        """List the map images.

        Args:
            filter: Text that the file name must contain.

        Returns:
            The images; `path` is the file name.
        """
        images: list[ImageRecord] = []
        while True:
            page = self._call("GET", "/v1/images", {"offset": len(images), "limit": _PAGE_IMAGES, "filter": filter})
            images += [ImageRecord.from_dict(one) for one in page["images"]]
            if not page["images"] or len(images) >= page["total"]:
                return images

    def image(self, image_id: int, size: int = 480) -> bytes:
        """Fetch a JPEG copy of a map image.

        Args:
            image_id: Id of the image.
            size: Maximum length of the longer side, in pixels.

        Returns:
            The JPEG file.
        """
        return self._send("GET", f"/v1/images/{image_id}/file", {"size": size}).content

    def report(self) -> dict[str, Any]:
        """Fetch the result of `tfa report`: headline, advice, near duplicates, hubs."""
        return dict(self._call("GET", "/v1/report"))

    def explain(self, photo: Photo, image_id: int, calibration: str | None = None) -> dict[str, Any]:
        """Explain the match of a photo with a map image.

        Args:
            photo: The query photo.
            image_id: Id of the map image.
            calibration: Calibration to use. [default: the active one]

        Returns:
            Contributions of patches, visual words and score terms.
        """
        fields: dict[str, Any] = {"id": image_id} | ({} if calibration is None else {"calibration": calibration})
        return dict(self._post("/v1/explain", "image", [read_photo_file(photo)], fields))

    def cameras(self) -> list[dict[str, Any]]:
        """List the cameras that queries named, most recently used first."""
        return list(self._call("GET", "/v1/cameras")["cameras"])

    # --- edit ------------------------------------------------------------------------------------------------------

    def add(
        self,
        photos: PhotosLike,
        *,
        positions: Sequence[Position | Mapping[str, float] | None] | None = None,
        session: str | None = None,
    ) -> EditReport:
        """Add photos; they are on the service's disk when this returns.

        Args:
            photos: Photos, or folders of photos.
            positions: One position (or None) for each photo. [default: from file names and EXIF]
            session: Drive that the photos belong to.

        Returns:
            Ids of the added images, and the skipped photos with reasons.
        """
        fields: dict[str, Any] = {} if session is None else {"session": session}
        if positions is not None:
            plain = [one.to_dict() if isinstance(one, Position) else one for one in positions]
            fields["positions"] = json.dumps(plain)
        files = [read_photo_file(photo) for photo in expand_photos(photos)]
        return EditReport.from_dict(self._post("/v1/images", "images", files, fields))

    def remove(self, ids: Sequence[int], *, revision: int | None = None) -> EditReport:
        """Remove images from the answers, one edit each.

        Args:
            ids: Ids of the images.
            revision: Map revision of the ids, from `info()`; refused if the map changed since. [default: any]

        Returns:
            Ids of the removed images, and the revision.
        """
        report, removed = EditReport(), list[int]()
        for image_id in ids:
            expected = {} if revision is None else {"revision": revision}
            report = EditReport.from_dict(self._call("DELETE", f"/v1/images/{image_id}", expected))
            revision = None if revision is None else report.revision
            removed += report.removed
        return replace(report, removed=removed)

    def calibrate(
        self, photos: PhotosLike, name: str = "target", *, progress: bool | Progress | None = None, **options: Any
    ) -> CalibrationReport:
        """Calibrate the map for a camera, and wait until it is done.

        Args:
            photos: Unlabeled photos of the camera, or folders of photos.
            name: Name of the calibration.
            progress: True for a progress bar, or an object that receives the progress.
            options: Other fields of `tfa.types.CalibrateOptions`.

        Returns:
            The decisions of the calibration, and the skipped photos with reasons.
        """
        fields = make_form(CalibrateOptions(name=name, **options))
        files = [read_photo_file(photo) for photo in expand_photos(photos)]
        job = self._post("/v1/calibrations", "images", files, fields)["job"]
        return CalibrationReport.from_dict(self._wait(job, as_progress(progress)))

    def activate(self, name: str | None) -> str | None:
        """Choose the calibration for queries that name none.

        Args:
            name: Name of a calibration; None for no calibration.

        Returns:
            Name of the active calibration.
        """
        active = self._call("POST", "/v1/calibrations/active", name=name)["active"]
        return None if active is None else str(active)

    def drop_calibration(self, name: str) -> None:
        """Remove a calibration from the map.

        Args:
            name: Name of the calibration.
        """
        self._call("DELETE", f"/v1/calibrations/{quote(name, safe='')}")

    def reset_camera(self, name: str | None = None) -> list[str]:
        """Delete the adaptation of a camera.

        Args:
            name: Name of the camera; None for every camera.

        Returns:
            Names of the cameras that were reset.
        """
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
    """A camera created by `Client.follow`. The service stores its state, so other clients can continue it."""

    def __init__(self, client: Client, options: QueryOptions) -> None:
        self.client, self.options = client, options

    def step(self, photo: Photo) -> Answer:
        """Answer the next photo, adapted by earlier photos.

        Args:
            photo: The photo. If it cannot be read, the answer has an error.

        Returns:
            The answer.
        """
        name = name_photo(photo)
        try:
            file = read_photo_file(photo)
        except BadImage as error:
            return Answer(query=name, error=str(error), reason=UNREADABLE)
        (reply,) = self.client._post("/v1/query/batch", "images", [file], make_form(self.options))["answers"]
        return replace(Answer.from_dict(reply), query=name)

    @property
    def state(self) -> dict[str, Any]:
        """State of the camera: photos seen, photos used for adaptation, and its effect."""
        return dict(self.client._call("GET", f"/v1/cameras/{quote(str(self.options.camera), safe='')}"))

    def reset(self) -> None:
        """Delete the adaptation of this camera."""
        self.client.reset_camera(self.options.camera)


def make_form(options: Options) -> dict[str, Any]:
    """Convert options to form fields: without defaults, and one field per item of a list."""
    default = type(options)()
    changed = {name: value for name, value in vars(options).items() if value != getattr(default, name)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}


def batches(photos: Iterable[Photo]) -> Iterator[list[PhotoFile | TfaError]]:
    """Split photos into batches for one request; a photo that cannot be read is replaced by its error."""
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
