"""A map that is served elsewhere, asked like one on this disk. Standard library only: no extra is needed.

client = tfa.Client("http://localhost:8000", token="…")
client.query("photo.jpg")                                   # the same hits as PlaceMap.query
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import Request, urlopen

from tfa.base.progress import Progress, as_progress
from tfa.client.multipart import batches, fields_of, form_of, hits_of, photo_file, sentence_of
from tfa.errors import BadSpec, TfaError
from tfa.photos.images import Photo, name_of

if TYPE_CHECKING:
    from tfa.maps import Answer, CalibrationReport, EditReport, Hit, ImageRecord

PAGE = 1000  # images listed at a time
POLL_SECONDS = (0.2, 2.0)  # first and longest wait between looks at a job
STEPS = 100  # a job's progress as a bar


class ServiceError(TfaError):
    """The service refused a request or cannot be reached; `status` is its HTTP status, None if there was no answer."""

    def __init__(self, sentence: str, status: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status


class Client:
    """A map behind `tfa serve`. Methods mirror those of `PlaceMap`; `map` names one of several that are served."""

    def __init__(self, url: str, token: str | None = None, *, map: str | None = None, timeout: float = 120.0) -> None:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise BadSpec(f"{url!r} is no address of a service; give one such as http://localhost:8000")
        self.url, self.map, self.timeout = url.rstrip("/"), map, timeout
        self._token = token

    def __repr__(self) -> str:  # without the token
        return f"Client({self.url!r}, map={self.map!r})"

    # --- ask ---------------------------------------------------------------------------------------------------

    def query(
        self,
        photo: Photo,
        k: int = 5,
        min_confidence: float = 0.0,
        calibration: str | None = None,
        *,
        verify: bool | None = None,
    ) -> list[Hit]:
        """The k most likely places of a photo: a path, its bytes, or a PIL image."""
        fields = fields_of(k=k, min_confidence=min_confidence, calibration=calibration, verify=verify)
        return hits_of(self._post("/v1/query", [photo_file(photo)], "image", fields))

    def query_many(
        self,
        photos: Sequence[Photo],
        k: int = 5,
        min_confidence: float = 0.0,
        progress: bool | Progress | None = None,
        calibration: str | None = None,
        *,
        verify: bool | None = None,
    ) -> list[Answer]:
        """Answers for many photos. One that cannot be read gets an answer that says so."""
        from tfa.maps import Answer

        fields = fields_of(k=k, min_confidence=min_confidence, calibration=calibration, verify=verify)
        found: list[Answer] = []
        with as_progress(progress).task("asking", len(photos), "photos") as task:
            for some in batches(photos):
                files, errors = [], dict[int, str]()
                for place, photo in enumerate(some):
                    try:
                        files.append(photo_file(photo))
                    except TfaError as error:
                        errors[place] = str(error)
                told = iter(self._post("/v1/query/batch", files, "images", fields)["answers"] if files else [])
                for place, photo in enumerate(some):
                    name = name_of(photo)
                    one: dict[str, Any] = {"error": errors[place]} if place in errors else next(told)
                    if "error" in one:
                        found.append(Answer(name, [], 0.0, one["error"]))
                    else:
                        found.append(Answer(name, hits_of(one), one["confidence"]))
                task.advance(len(some))
        return found

    # --- look --------------------------------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """The map in JSON: what it holds, what was decided and why."""
        return dict(self._call("GET", "/v1/map"))

    def maps(self) -> list[dict[str, Any]]:
        """The maps of the service."""
        return list(self._call("GET", "/v1/maps"))

    def images(self, filter: str = "") -> list[ImageRecord]:
        """The images of the map; `path` is the file name alone."""
        from tfa.maps import ImageRecord

        found: list[ImageRecord] = []
        while True:
            asked = {"offset": len(found), "limit": PAGE, "filter": filter}
            page = self._call("GET", "/v1/images", asked)
            found += [ImageRecord.from_dict({**one, "path": one["image"]}) for one in page["images"]]
            if not page["images"] or len(found) >= page["total"]:
                return found

    def image(self, image_id: int, size: int = 480) -> bytes:
        """A JPEG copy of one of the map's photos."""
        return self._send("GET", f"/v1/images/{image_id}/file", {"size": size})

    def evidence(self) -> dict[str, Any]:
        """What the decisions rest on: candidates, spectrum, similarities of pairs."""
        return dict(self._call("GET", "/v1/evidence"))

    def why(self, photo: Photo, image_id: int, calibration: str | None = None) -> dict[str, Any]:
        """What carried the match of a photo with an image of the map: patches, words, terms of the score."""
        fields = fields_of(id=image_id, calibration=calibration)
        return dict(self._post("/v1/why", [photo_file(photo)], "image", fields))

    def self_calibration(self) -> dict[str, Any]:
        """What the map has learnt from its queries, if the service was started to."""
        return dict(self._call("GET", "/v1/self-calibration"))

    # --- edit --------------------------------------------------------------------------------------------------

    def add(self, photos: Sequence[Photo], *, positions: Sequence[dict[str, float] | None] | None = None) -> EditReport:
        """Add photos; they are on the service's disk when this returns. `positions` has one for each photo, or None."""
        from tfa.maps import EditReport

        fields = {} if positions is None else {"positions": json.dumps(list(positions))}
        told = self._post("/v1/images", [photo_file(photo) for photo in photos], "images", fields)
        skipped = [(one["image"], one["reason"]) for one in told["skipped"]]
        return EditReport(told["added"], [], skipped, told["notes"])

    def remove(self, ids: Sequence[int]) -> EditReport:
        """Take images out of the answers, one edit each."""
        from tfa.maps import EditReport

        removed: list[int] = []
        notes: list[str] = []
        for image_id in ids:
            told = self._call("DELETE", f"/v1/images/{image_id}")
            removed += told["removed"]
            notes = told["notes"]
        return EditReport([], removed, [], notes)

    def calibrate(
        self,
        photos: Sequence[Photo],
        name: str = "target",
        *,
        score: bool | None = None,
        progress: bool | Progress | None = False,
    ) -> CalibrationReport:
        """Calibrate the map for a camera; waits until it is done."""
        from tfa.maps import CalibrationReport

        files = [photo_file(photo) for photo in photos]
        job = self._post("/v1/calibrations", files, "images", fields_of(name=name, score=score))["job"]
        told = self._finished(job, as_progress(progress))
        skipped = [(one["image"], one["reason"]) for one in told["skipped"]]
        kept = {key: told[key] for key in ("name", "used", "given", "notes", "decisions", "reasons")}
        return CalibrationReport(**kept, skipped=skipped)

    def activate(self, name: str | None) -> str | None:
        """Choose the calibration that answers when none is asked for; None for none."""
        active = self._call("POST", "/v1/calibrations/active", body=json.dumps({"name": name}).encode())["active"]
        return None if active is None else str(active)

    def drop_calibration(self, name: str) -> None:
        """Take a calibration out of the map for good."""
        self._call("DELETE", f"/v1/calibrations/{quote(name, safe='')}")

    def reset_self_calibration(self) -> dict[str, Any]:
        """Let the map forget what it has learnt from its queries."""
        return dict(self._call("POST", "/v1/self-calibration/reset"))

    def _finished(self, job: str, progress: Progress) -> dict[str, Any]:
        pause, shown = POLL_SECONDS[0], 0
        with progress.task("calibrating", STEPS) as task:
            while True:
                told = self._call("GET", f"/v1/jobs/{quote(job)}")
                if told["state"] == "failed":
                    raise ServiceError(told["error"])
                reached = int(STEPS * told["progress"])
                task.advance(max(reached - shown, 0))
                shown = max(reached, shown)
                if told["state"] == "done":
                    return dict(told["result"])
                time.sleep(pause)
                pause = min(1.5 * pause, POLL_SECONDS[1])

    # --- HTTP --------------------------------------------------------------------------------------------------

    def _post(self, path: str, files: Sequence[tuple[str, bytes]], key: str, fields: dict[str, str]) -> Any:
        kind, body = form_of(key, files, fields)
        return self._call("POST", path, body=body, kind=kind)

    def _call(
        self,
        method: str,
        path: str,
        asked: dict[str, Any] | None = None,
        *,
        body: bytes | None = None,
        kind: str = "application/json",
    ) -> Any:
        return json.loads(self._send(method, path, asked, body, kind))

    def _send(
        self,
        method: str,
        path: str,
        asked: dict[str, Any] | None = None,
        body: bytes | None = None,
        kind: str = "application/json",
    ) -> bytes:
        asked = {**(asked or {}), **({} if self.map is None else {"map": self.map})}
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = kind
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        address = f"{self.url}{path}{'?' if asked else ''}{urlencode(asked)}"
        try:
            with urlopen(Request(address, body, headers, method=method), timeout=self.timeout) as answer:
                return bytes(answer.read())
        except HTTPError as error:
            with error:
                raise ServiceError(sentence_of(error), error.code) from None
        except (URLError, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise ServiceError(f"{self.url} does not answer ({reason}); is tfa serve running there?") from None
