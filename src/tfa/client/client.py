"""A map behind `tfa serve`, used like one on this disk. No extra is needed.

client = tfa.Client("http://localhost:8000", api_key="…")
client.query("photo.jpg")                                   # the same hits as PlaceMap.query
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tfa.client.connection import ServiceConnection, ServiceError
from tfa.client.followed_camera import FollowedCamera
from tfa.client.forms import batches, fields_of, parse_answer, query_fields, skipped_of
from tfa.core.progress import Progress, as_progress
from tfa.errors import TfaError
from tfa.photos.images import Photo, PhotosLike, expand_photos, name_photo, read_photo_file
from tfa.types import Answer, Answers, CalibrationReport, EditReport, ExpectedRecall, ImageRecord

if TYPE_CHECKING:
    from tfa.types import Answers, CalibrationReport, EditReport, ImageRecord

_PAGE_IMAGES = 1000  # images listed at a time
POLL_SECONDS = (0.2, 2.0)  # first and longest wait between looks at a job
_STEPS = 100  # a job's progress as a bar


class Client(ServiceConnection):
    """A map behind `tfa serve`. Methods mirror those of `PlaceMap`; `map` names one of several.

    Threads may share a client. Connections are kept open between calls.
    """

    # --- query -------------------------------------------------------------------------------------------------

    def query(self, photo: Photo, k: int = 5, **options: Any) -> Answer:
        """Recognize a photo: a path, its bytes, a PIL image, or a uint8 array (H, W, 3) in RGB.

        `options` are other fields of `tfa.types.QueryOptions`; `camera` names a camera, whose photos adapt the answers
        to those after them (see also `follow`).
        """
        fields = query_fields(k=k, **options)
        reply = self._post("/v1/query", "image", [read_photo_file(photo)], fields)
        return parse_answer(name_photo(photo), reply)

    def query_many(
        self, photos: PhotosLike, k: int = 5, progress: bool | Progress | None = None, **options: Any
    ) -> Answers:
        """Recognize many photos, of a camera in this order. One that cannot be read gets an answer that says so."""
        from tfa.maps.expected_recall import collect_answers

        fields, answers = query_fields(k=k, **options), list[Answer]()
        several = expand_photos(photos)
        with as_progress(progress).task("querying", len(several), "photos") as task:
            for some in batches(several):
                files = [one for one in some if not isinstance(one, TfaError)]
                replies = iter(self._post("/v1/query/batch", "images", files, fields)["answers"] if files else [])
                for one in some:
                    reply: dict[str, Any] = {"error": str(one)} if isinstance(one, TfaError) else next(replies)
                    answers.append(parse_answer(name_photo(several[len(answers)]), reply))
                task.advance(len(some))
        return collect_answers(answers)

    def follow(
        self, camera: str, calibration: str | None = None, *, sequence: bool = True, **options: Any
    ) -> FollowedCamera:
        """Follow the camera of that name, as `PlaceMap.follow` does: `step(photo)`. The service remembers it."""
        how = query_fields(calibration=calibration, **options)
        return FollowedCamera(self, camera, {**how, "sequence": sequence})

    # --- read --------------------------------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """The map in JSON: what it holds, what was decided and why."""
        return dict(self._call("GET", "/v1/map"))

    def maps(self) -> list[dict[str, Any]]:
        """The maps of the service."""
        return list(self._call("GET", "/v1/maps"))

    def images(self, filter: str = "") -> list[ImageRecord]:
        """The images of the map; `path` is the file name alone."""
        from tfa.types import ImageRecord

        images: list[ImageRecord] = []
        while True:
            page = self._call("GET", "/v1/images", {"offset": len(images), "limit": _PAGE_IMAGES, "filter": filter})
            for one in page["images"]:
                kept = {key: one[key] for key in ("id", "digest", "fitted", "position")}
                images.append(ImageRecord.from_dict({**kept, "path": one["image"]}))
            if not page["images"] or len(images) >= page["total"]:
                return images

    def image(self, image_id: int, size: int = 480) -> bytes:
        """A JPEG copy of one of the map's photos."""
        return self._send("GET", f"/v1/images/{image_id}/file", {"size": size}).content

    def evidence(self) -> dict[str, Any]:
        """What the decisions rest on: candidates, spectrum, similarities of pairs."""
        return dict(self._call("GET", "/v1/evidence"))

    def report(self) -> dict[str, Any]:
        """What `tfa report` says of the map: a headline, what answers and why, advice, hubs, near duplicates."""
        return dict(self._call("GET", "/v1/report"))

    def explain(self, photo: Photo, image_id: int, calibration: str | None = None) -> dict[str, Any]:
        """What carried the match of a photo with an image of the map: patches, words, terms of the score."""
        fields = fields_of(id=image_id, calibration=calibration)
        return dict(self._post("/v1/explain", "image", [read_photo_file(photo)], fields))

    def cameras(self) -> list[dict[str, Any]]:
        """Cameras that queries named, the most recently used first: name, photos seen and counted, last use."""
        return list(self._call("GET", "/v1/cameras")["cameras"])

    # --- edit --------------------------------------------------------------------------------------------------

    def add(
        self,
        photos: PhotosLike,
        *,
        positions: Sequence[dict[str, float] | None] | None = None,
        session: str | None = None,
    ) -> EditReport:
        """Add photos, or a folder of them; they are on the service's disk when this returns.

        `positions` has one for each photo, or None; `session` names what they belong to, to choose by.
        """
        from tfa.types import EditReport

        fields = {} if positions is None else {"positions": json.dumps(list(positions))}
        fields |= {} if session is None else {"session": session}
        reply = self._post("/v1/images", "images", [read_photo_file(photo) for photo in expand_photos(photos)], fields)
        return EditReport(added=reply["added"], removed=[], skipped=skipped_of(reply), notes=reply["notes"])

    def remove(self, ids: Sequence[int]) -> EditReport:
        """Take images out of the answers, one edit each."""
        from tfa.types import EditReport

        removed: list[int] = []
        notes: list[str] = []
        for image_id in ids:
            reply = self._call("DELETE", f"/v1/images/{image_id}")
            removed += reply["removed"]
            notes = reply["notes"]
        return EditReport(added=[], removed=removed, skipped=[], notes=notes)

    def calibrate(
        self,
        photos: PhotosLike,
        name: str = "target",
        *,
        score: bool | None = None,
        progress: bool | Progress | None = None,
    ) -> CalibrationReport:
        """Calibrate the map for a camera, by photos of it or a folder of them; waits until it is done."""
        from tfa.types import CalibrationReport

        files = [read_photo_file(photo) for photo in expand_photos(photos)]
        job = self._post("/v1/calibrations", "images", files, fields_of(name=name, score=score))["job"]
        result = self._finished(job, as_progress(progress))
        kept = {key: result[key] for key in ("name", "used", "photos", "notes", "decisions", "reasons")}
        expected = result["expected_recall"]
        recall = None if expected is None else ExpectedRecall(**expected)
        return CalibrationReport(**kept, skipped=skipped_of(result), expected_recall=recall)

    def activate(self, name: str | None) -> str | None:
        """Choose the calibration that answers where a query names none; None for none."""
        active = self._call("POST", "/v1/calibrations/active", json={"name": name})["active"]
        return None if active is None else str(active)

    def drop_calibration(self, name: str) -> None:
        """Take a calibration out of the map for good."""
        self._call("DELETE", f"/v1/calibrations/{quote(name, safe='')}")

    def reset_camera(self, name: str | None = None) -> list[str]:
        """Forget what the photos of a camera taught, or of every one (None); the names of those there were."""
        path = "/v1/cameras" if name is None else f"/v1/cameras/{quote(name, safe='')}"
        return list(self._call("DELETE", path)["reset"])

    def _finished(self, job: str, progress: Progress) -> dict[str, Any]:
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
