"""Requests to `tfa serve` with the standard library alone: a photo in, the service's JSON out."""

from __future__ import annotations

import http.client
import json
import secrets
import ssl
from contextlib import closing
from typing import Any
from urllib.parse import urlencode, urlsplit

LONGEST_PAUSE = 30.0  # seconds, whatever the service says
LARGEST_REPLY = 64_000_000  # bytes; more is not an answer of the service


class ServiceProblem(Exception):
    """A question that was not answered; the text says why and what to do."""


class ServiceAway(ServiceProblem):
    """Nobody answers at the address, or not in time."""


class ServiceBusy(ServiceProblem):
    """The service is loading, or asked too often: the same question may be asked again after `pause` seconds."""

    def __init__(self, sentence: str, pause: float = 1.0) -> None:
        super().__init__(sentence)
        self.pause = pause


class ServiceRefusal(ServiceProblem):
    """The service answers, and says no; asking the same again helps nothing."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status

    @property
    def is_of_the_photo(self) -> bool:
        """Is it the photo (or what was asked of it) that is wrong? If not, no photo will be answered."""
        return self.status in (400, 408, 413, 415, 422)


class ServiceClient:
    """A client of one map of a service. Threads may share it: each request has a connection of its own.

    Opening one takes no time beside encoding a photo, and nobody waits for another's answer.
    """

    def __init__(self, url: str, api_key: str = "", map_name: str = "", timeout: float = 10.0) -> None:
        """An empty API key sends none, an empty name of a map means the first."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not the address of a service; give one such as http://localhost:8000")
        self.url, self.map_name, self.timeout = url.rstrip("/"), map_name, timeout
        self._address = (parts.hostname, parts.port)
        self._path = parts.path.rstrip("/")
        self._certificates = ssl.create_default_context() if parts.scheme == "https" else None
        self._headers = {"Accept": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def check_ready(self, timeout: float = 2.0) -> None:
        """Raises unless the service says that it answers queries."""
        self._send("GET", "/readyz", timeout=timeout)

    def maps(self) -> list[str]:
        """Names of the maps; the first answers where none is named."""
        return [str(one["name"]) for one in self._send("GET", "/v1/maps")]

    def query(self, name: str, content: bytes, fields: dict[str, str]) -> dict[str, Any]:
        """The places of a photo, as POST /v1/query gives them."""
        return dict(self._post("/v1/query", "image", name, content, fields))

    def add(self, name: str, content: bytes, position: dict[str, float] | None) -> dict[str, Any]:
        """Adds a photo: `added`, `skipped`, `notes` and `revision`. Needs an API key that may edit."""
        fields = {} if position is None else {"positions": json.dumps([position])}
        return dict(self._post("/v1/images", "images", name, content, fields))

    def _post(self, path: str, key: str, name: str, content: bytes, fields: dict[str, str]) -> Any:
        boundary = secrets.token_hex(16)
        body = form_of(boundary, key, name, content, fields)
        return self._send("POST", path, body, {"Content-Type": f"multipart/form-data; boundary={boundary}"})

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> Any:
        named = {"map": self.map_name} if self.map_name and path.startswith("/v1/") and path != "/v1/maps" else {}
        target = self._path + path + (f"?{urlencode(named)}" if named else "")
        try:
            with closing(self._connection(self.timeout if timeout is None else timeout)) as connection:
                connection.request(method, target, body, {**self._headers, **(headers or {})})
                with connection.getresponse() as reply:
                    content = reply.read(LARGEST_REPLY)
                    if reply.length or len(content) == LARGEST_REPLY:  # a read of so many does not miss what never came
                        raise http.client.IncompleteRead(content, reply.length)
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise ServiceAway(f"{self.url} does not answer ({reason}); is tfa serve running there?") from None
        return _answer_of(reply.status, reply.reason, reply.getheader("Retry-After", ""), content)

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self._certificates is None:
            return http.client.HTTPConnection(*self._address, timeout=timeout)
        return http.client.HTTPSConnection(*self._address, timeout=timeout, context=self._certificates)


def form_of(boundary: str, key: str, name: str, content: bytes, fields: dict[str, str]) -> bytes:
    """A multipart form with one file, as RFC 7578 has it."""
    pieces = []
    for field, value in fields.items():
        pieces.append(f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'.encode())
    # What would end the quoted name is written as browsers write it.
    quoted = name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
    disposition = f'Content-Disposition: form-data; name="{key}"; filename="{quoted}"'
    pieces.append(f"--{boundary}\r\n{disposition}\r\nContent-Type: application/octet-stream\r\n\r\n".encode())
    return b"".join([*pieces, content, f"\r\n--{boundary}--\r\n".encode()])


def _answer_of(status: int, reason: str, pause: str, content: bytes) -> Any:
    try:
        answer = json.loads(content)
    except ValueError:  # a proxy in between, or another server altogether
        answer = None
    if 200 <= status < 300 and answer is not None:
        return answer
    told = answer if isinstance(answer, dict) else {}
    sentence = told.get("error") or (f"the service is {told['status']}" if "status" in told else "")
    sentence = str(sentence or f"the service answered {status} {reason}, which is no answer of tfa serve")
    if status in (429, 503):
        seconds = float(pause) if pause.strip().isdecimal() else 1.0
        raise ServiceBusy(sentence, min(max(seconds, 0.1), LONGEST_PAUSE))
    raise ServiceRefusal(sentence, status)
