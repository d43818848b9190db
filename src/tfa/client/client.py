"""A map behind `tfa serve`, used like one on this disk. No extra is needed.

client = tfa.Client("http://localhost:8000", token="…")
client.query("photo.jpg")                                   # the same hits as PlaceMap.query
"""

from __future__ import annotations

import json
import ssl
import time
import weakref
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import httpx2

from tfa.base.config import Candidates
from tfa.base.progress import Progress, as_progress
from tfa.client.followed_session import FollowedSession
from tfa.client.forms import File, answer_of, batches, fields_of, hits_of, listed, photo_file, skipped_of
from tfa.errors import BadSpec, TfaError
from tfa.photos.images import Photo, name_of

if TYPE_CHECKING:
    from tfa.maps import Answer, CalibrationReport, EditReport, Hit, ImageRecord
    from tfa.maps.expected_recall import Answers

PAGE = 1000  # images listed at a time
POLL_SECONDS = (0.2, 2.0)  # first and longest wait between looks at a job
STEPS = 100  # a job's progress as a bar
RETRIES = 3  # of a request that the service is too busy for, or that came too early
LONGEST_PAUSE = 30.0  # seconds before a retry, whatever the service says
# Each thread has a connection to itself while it needs one; so many are kept open while nobody does.
CONNECTIONS = httpx2.Limits(max_connections=None, max_keepalive_connections=8)


class ServiceError(TfaError):
    """The service refused a request or cannot be reached; `status` is its HTTP status, None if there was no answer."""

    def __init__(self, sentence: str, status: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status


@cache
def _certificates() -> ssl.SSLContext:
    """Read once for all clients: it takes longer than a query."""
    return httpx2.create_ssl_context()


class Client:
    """A map behind `tfa serve`. Methods mirror those of `PlaceMap`; `map` names one of several.

    Threads may share a client. Connections are kept open between calls.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        map: str | None = None,
        timeout: float = 120.0,
        retries: int = RETRIES,
    ) -> None:
        """`retries` says how often a request is sent again that the service was too busy for."""
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise BadSpec(f"{url!r} is not the address of a service; give one such as http://localhost:8000")
        if retries < 0:
            raise BadSpec(f"retries={retries} is out of range: must be at least 0")
        self.url, self.map, self.timeout, self.retries = url.rstrip("/"), map, timeout, retries
        self._headers = {"Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._open()

    def _open(self) -> None:
        self._http = httpx2.Client(base_url=self.url, headers=self._headers, limits=CONNECTIONS, verify=_certificates())
        self._close = weakref.finalize(self, self._http.close)

    def close(self) -> None:
        """Close the connections; a later call opens a new one."""
        self._close()
        self._open()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:  # without the token
        return f"Client({self.url!r}, map={self.map!r})"

    # --- query -------------------------------------------------------------------------------------------------

    def query(
        self,
        photo: Photo,
        k: int = 5,
        min_confidence: float = 0.0,
        calibration: str | None = None,
        *,
        verify: bool | None = None,
        candidates: Candidates | None = None,
        session: str | None = None,
        sessions: Sequence[str] = (),
        region: Sequence[float] | None = None,
    ) -> list[Hit]:
        """The k most likely places of a photo: a path, its bytes, or a PIL image.

        `session` names a camera, whose photos adapt the answers to those after them; `follow` tells more of it. Only
        images of the `sessions` and within the `region` may answer, as in `PlaceMap.query`.
        """
        fields = fields_of(
            k=k, min_confidence=min_confidence, calibration=calibration, verify=verify, candidates=candidates,
            session=session, sessions=listed(sessions), region=listed(region),
        )  # fmt: skip
        return hits_of(self._post("/v1/query", "image", [photo_file(photo)], fields))

    def query_many(
        self,
        photos: Sequence[Photo],
        k: int = 5,
        min_confidence: float = 0.0,
        progress: bool | Progress | None = None,
        calibration: str | None = None,
        *,
        verify: bool | None = None,
        candidates: Candidates | None = None,
        session: str | None = None,
        sessions: Sequence[str] = (),
        region: Sequence[float] | None = None,
    ) -> Answers[Answer]:
        """Answers for many photos, of a session in this order. One that cannot be read gets an answer that says so."""
        from tfa.maps.expected_recall import Answers

        fields = fields_of(
            k=k, min_confidence=min_confidence, calibration=calibration, verify=verify, candidates=candidates,
            session=session, sessions=listed(sessions), region=listed(region),
        )  # fmt: skip
        answers: Answers[Answer] = Answers()
        with as_progress(progress).task("querying", len(photos), "photos") as task:
            for some in batches(photos):
                files = [one for one in some if not isinstance(one, TfaError)]
                replies = iter(self._post("/v1/query/batch", "images", files, fields)["answers"] if files else [])
                for one in some:
                    reply: dict[str, Any] = {"error": str(one)} if isinstance(one, TfaError) else next(replies)
                    answers.append(answer_of(name_of(photos[len(answers)]), reply))
                task.advance(len(some))
        return answers

    def follow(
        self,
        session: str,
        calibration: str | None = None,
        *,
        k: int = 5,
        verify: bool | None = None,
        candidates: Candidates | None = None,
        sequence: bool = True,
    ) -> FollowedSession:
        """What follows the camera of that name, as `PlaceMap.follow` does: `step(photo)`. The service remembers it."""
        how = fields_of(k=k, calibration=calibration, verify=verify, candidates=candidates)
        return FollowedSession(self, session, {**how, "sequence": sequence})

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
            page = self._call("GET", "/v1/images", {"offset": len(images), "limit": PAGE, "filter": filter})
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

    def why(self, photo: Photo, image_id: int, calibration: str | None = None) -> dict[str, Any]:
        """What carried the match of a photo with an image of the map: patches, words, terms of the score."""
        fields = fields_of(id=image_id, calibration=calibration)
        return dict(self._post("/v1/why", "image", [photo_file(photo)], fields))

    def sessions(self) -> list[dict[str, Any]]:
        """Cameras that queries named, the most recently used first: name, photos seen and counted, last use."""
        return list(self._call("GET", "/v1/sessions")["sessions"])

    # --- edit --------------------------------------------------------------------------------------------------

    def add(self, photos: Sequence[Photo], *, positions: Sequence[dict[str, float] | None] | None = None) -> EditReport:
        """Add photos; they are on the service's disk when this returns. `positions` has one for each photo, or None."""
        from tfa.maps import EditReport

        fields = {} if positions is None else {"positions": json.dumps(list(positions))}
        reply = self._post("/v1/images", "images", [photo_file(photo) for photo in photos], fields)
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
        photos: Sequence[Photo],
        name: str = "target",
        *,
        score: bool | None = None,
        progress: bool | Progress | None = None,
    ) -> CalibrationReport:
        """Calibrate the map for a camera; waits until it is done."""
        from tfa.maps import CalibrationReport
        from tfa.maps.records import ExpectedRecall

        files = [photo_file(photo) for photo in photos]
        job = self._post("/v1/calibrations", "images", files, fields_of(name=name, score=score))["job"]
        result = self._finished(job, as_progress(progress))
        kept = {key: result[key] for key in ("name", "used", "given", "notes", "decisions", "reasons")}
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

    def reset_session(self, name: str | None = None) -> list[str]:
        """Forget what the photos of a session taught, or of every one (None); the names of those there were."""
        path = "/v1/sessions" if name is None else f"/v1/sessions/{quote(name, safe='')}"
        return list(self._call("DELETE", path)["reset"])

    def _finished(self, job: str, progress: Progress) -> dict[str, Any]:
        pause, shown = POLL_SECONDS[0], 0
        with progress.task("calibrating", STEPS) as task:
            while True:
                status = self._call("GET", f"/v1/jobs/{quote(job)}")
                if status["state"] == "failed":
                    raise ServiceError(status["error"])
                reached = int(STEPS * status["progress"])
                task.advance(max(reached - shown, 0))
                shown = max(reached, shown)
                if status["state"] == "done":
                    return dict(status["result"])
                time.sleep(pause)
                pause = min(1.5 * pause, POLL_SECONDS[1])

    # --- HTTP --------------------------------------------------------------------------------------------------

    def _post(self, path: str, key: str, files: Sequence[File], fields: dict[str, Any]) -> Any:
        return self._call("POST", path, data=fields, files=[(key, file) for file in files])

    def _call(self, method: str, path: str, parameters: dict[str, Any] | None = None, **body: Any) -> Any:
        return self._send(method, path, parameters, **body).json()

    def _send(self, method: str, path: str, parameters: dict[str, Any] | None = None, **body: Any) -> httpx2.Response:
        parameters = {**(parameters or {}), **fields_of(map=self.map)}
        for retries_left in range(self.retries, -1, -1):
            try:
                reply = self._http.request(method, path, params=parameters, timeout=self.timeout, **body)
            except httpx2.HTTPError as error:
                raise ServiceError(f"{self.url} does not answer ({error}); is tfa serve running there?") from None
            if reply.is_success:
                return reply
            # The service did nothing: it names the time after which the same request may be sent again.
            pause = reply.headers.get("Retry-After", "").strip()
            if reply.status_code not in (429, 503) or not pause.isdecimal() or not retries_left:
                break
            time.sleep(min(float(pause), LONGEST_PAUSE))
        try:
            sentence = str(reply.json()["error"])
        except (ValueError, KeyError, TypeError):  # a proxy in between, perhaps
            sentence = f"the service answered {reply.status_code} {reply.reason_phrase}"
        raise ServiceError(sentence, reply.status_code)
