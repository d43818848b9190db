"""A map behind `tfa serve`, used like one on this disk. No extra is needed.

client = tfa.Client("http://localhost:8000", api_key="…")
client.query("photo.jpg")                                   # the same answer as PlaceMap.query
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tfa._http import ServiceConnection, ServiceError
from tfa.core.config import ONLY_SURE, Candidates, MinConfidence
from tfa.core.progress import Progress, as_progress
from tfa.errors import BadImage, TfaError
from tfa.photos.images import Photo, PhotoFile, PhotosLike, expand_photos, name_photo, read_photo_file

if TYPE_CHECKING:
    from tfa.maps import Answer, CalibrationReport, EditReport, ImageRecord
    from tfa.maps.expected_recall import AnswerList
    from tfa.maps.records import FrameAnswer, Hits
    from tfa.search.store import Where


# --- forms -----------------------------------------------------------------------------------------------------------

_QUERY_BATCH = 16  # photos sent at a time
UPLOAD_BYTES = 100_000_000  # and so many bytes at most


def batches(photos: Iterable[Photo]) -> Iterator[list[PhotoFile | TfaError]]:
    """Photos in pieces that one request can carry; one that cannot be read has its error in its place."""
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


def fields_of(**values: Any) -> dict[str, Any]:
    """Form fields of these values; None is left out, so that the service's defaults hold."""
    return {key: value for key, value in values.items() if value is not None}


def least_fields(min_confidence: MinConfidence) -> dict[str, Any]:
    """Form fields of how doubtful an answer may be."""
    return {"sure": True} if min_confidence == ONLY_SURE else {"min_confidence": min_confidence}


def where_fields(where: Where | None) -> dict[str, str]:
    """Form fields of which images may answer."""
    if where is None:
        return {}
    fields = {"sessions": ",".join(where.sessions)} if where.sessions else {}
    box = where.region
    return fields if box is None else {**fields, "region": f"{box.west},{box.south},{box.east},{box.north}"}


def skipped_of(reply: dict[str, Any]) -> list[tuple[str, str]]:
    """Photos that were left out, and why."""
    return [(one["image"], one["reason"]) for one in reply["skipped"]]


def parse_hits(answer: dict[str, Any]) -> Hits:
    """The hits of one answer, and its place."""
    from tfa.maps.records import Fused, Hit, Hits, Place
    from tfa.photos.positions import Position

    keys = ("id", "image", "score", "confidence", "inliers", "sure")
    hits = [
        Hit(**{key: one[key] for key in keys}, position=one["position"] and Position.from_dict(one["position"]))
        for one in answer["hits"]
    ]
    place = answer.get("place")  # services of earlier versions fuse none
    return Hits(hits, Fused(None if place is None else Place.from_dict(place), answer.get("place_missing")))


def parse_answer(name: str, reply: dict[str, Any]) -> FrameAnswer:
    """The answer to the photo of that name, or why there is none."""
    from tfa.maps.records import FrameAnswer

    if "error" in reply:
        return FrameAnswer(name, [], 0.0, reply["error"])
    hits, told = parse_hits(reply), {key: reply[key] for key in ("sure", "reranked")}
    told |= {"place": hits.place, "place_missing": hits.place_missing}
    return FrameAnswer(name, hits, reply["confidence"], None, reply["lost"], reply["adaptation_photos"], **told)


# --- client ----------------------------------------------------------------------------------------------------------

_PAGE_IMAGES = 1000  # images listed at a time
POLL_SECONDS = (0.2, 2.0)  # first and longest wait between looks at a job
_STEPS = 100  # a job's progress as a bar


class Client(ServiceConnection):
    """A map behind `tfa serve`. Methods mirror those of `PlaceMap`; `map` names one of several.

    Threads may share a client. Connections are kept open between calls.
    """

    # --- query -------------------------------------------------------------------------------------------------

    def query(
        self,
        photo: Photo,
        k: int = 5,
        min_confidence: MinConfidence = 0.0,
        calibration: str | None = None,
        *,
        rerank: bool | None = None,
        candidates: Candidates | None = None,
        camera: str | None = None,
        where: Where | None = None,
    ) -> Hits:
        """The k most likely places of a photo: a path, its bytes, a PIL image, or a uint8 array (H, W, 3) in RGB.

        `camera` names a camera, whose photos adapt the answers to those after them; see also `follow`. `where`
        says which images may answer, as in `PlaceMap.query`.
        """
        fields = fields_of(
            k=k, calibration=calibration, rerank=rerank, candidates=candidates, camera=camera,
            **least_fields(min_confidence), **where_fields(where),
        )  # fmt: skip
        return parse_hits(self._post("/v1/query", "image", [read_photo_file(photo)], fields))

    def query_many(
        self,
        photos: PhotosLike,
        k: int = 5,
        min_confidence: MinConfidence = 0.0,
        progress: bool | Progress | None = None,
        calibration: str | None = None,
        *,
        rerank: bool | None = None,
        candidates: Candidates | None = None,
        camera: str | None = None,
    ) -> AnswerList[Answer]:
        """Answers for many photos, of a camera in this order. One that cannot be read gets an answer that says so."""
        from tfa.maps.expected_recall import AnswerList

        fields = fields_of(
            k=k, calibration=calibration, rerank=rerank, candidates=candidates, camera=camera,
            **least_fields(min_confidence),
        )  # fmt: skip
        answers: AnswerList[Answer] = AnswerList()
        several = expand_photos(photos)
        with as_progress(progress).task("querying", len(several), "photos") as task:
            for some in batches(several):
                files = [one for one in some if not isinstance(one, TfaError)]
                replies = iter(self._post("/v1/query/batch", "images", files, fields)["answers"] if files else [])
                for one in some:
                    reply: dict[str, Any] = {"error": str(one)} if isinstance(one, TfaError) else next(replies)
                    answers.append(parse_answer(name_photo(several[len(answers)]), reply))
                task.advance(len(some))
        return answers

    def follow(
        self,
        camera: str,
        calibration: str | None = None,
        *,
        k: int = 5,
        rerank: bool | None = None,
        candidates: Candidates | None = None,
        sequence: bool = True,
    ) -> FollowedCamera:
        """Follow the camera of that name, as `PlaceMap.follow` does: `step(photo)`. The service remembers it."""
        how = fields_of(k=k, calibration=calibration, rerank=rerank, candidates=candidates)
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
        from tfa.maps import ImageRecord

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
        from tfa.maps import EditReport

        fields = {} if positions is None else {"positions": json.dumps(list(positions))}
        fields |= {} if session is None else {"session": session}
        reply = self._post("/v1/images", "images", [read_photo_file(photo) for photo in expand_photos(photos)], fields)
        return EditReport(reply["added"], [], skipped_of(reply), reply["notes"])

    def remove(self, ids: Sequence[int]) -> EditReport:
        """Take images out of the answers, one edit each."""
        from tfa.maps import EditReport

        removed: list[int] = []
        notes: list[str] = []
        for image_id in ids:
            reply = self._call("DELETE", f"/v1/images/{image_id}")
            removed += reply["removed"]
            notes = reply["notes"]
        return EditReport([], removed, [], notes)

    def calibrate(
        self,
        photos: PhotosLike,
        name: str = "target",
        *,
        score: bool | None = None,
        progress: bool | Progress | None = None,
    ) -> CalibrationReport:
        """Calibrate the map for a camera, by photos of it or a folder of them; waits until it is done."""
        from tfa.maps import CalibrationReport
        from tfa.maps.records import ExpectedRecall

        files = [read_photo_file(photo) for photo in expand_photos(photos)]
        job = self._post("/v1/calibrations", "images", files, fields_of(name=name, score=score))["job"]
        result = self._finished(job, as_progress(progress))
        kept = {key: result[key] for key in ("name", "used", "offered", "notes", "decisions", "reasons")}
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


# --- followed camera -------------------------------------------------------------------------------------------------


class FollowedCamera:
    """`Client.follow` makes it. Its state is the service's: another client that names the camera continues it."""

    def __init__(self, client: Client, camera: str, how: dict[str, Any]) -> None:
        self.client, self.camera, self._how = client, camera, how

    def step(self, photo: Photo) -> FrameAnswer:
        """The answer to the next photo, adapted by those before it. One that cannot be read gets one that says so."""
        try:
            file = read_photo_file(photo)
        except BadImage as error:
            return parse_answer(name_photo(photo), {"error": str(error)})
        fields = {**self._how, "camera": self.camera}
        (reply,) = self.client._post("/v1/query/batch", "images", [file], fields)["answers"]
        return parse_answer(name_photo(photo), reply)

    @property
    def state(self) -> dict[str, Any]:
        """What the service knows of it: photos seen and counted, what they taught."""
        return dict(self.client._call("GET", f"/v1/cameras/{quote(self.camera, safe='')}"))

    def reset(self) -> None:
        """Forget every photo."""
        self.client.reset_camera(self.camera)
