"""HTTP client of `tfa serve` that uses only the standard library."""

from __future__ import annotations

import http.client
import json
import secrets
import ssl
from contextlib import closing
from typing import Any
from urllib.parse import urlencode, urlsplit

LONGEST_PAUSE = 30.0  # maximum seconds before a retry
LARGEST_REPLY = 64_000_000  # bytes; a larger response is an error


class ServiceProblem(Exception):
    """A request failed; the text says why and what to do."""


class ServiceAway(ServiceProblem):
    """The service cannot be reached, or does not respond in time."""


class ServiceBusy(ServiceProblem):
    """The service is loading or busy; retry after `pause` seconds."""

    def __init__(self, sentence: str, pause: float = 1.0) -> None:
        super().__init__(sentence)
        self.pause = pause


class ServiceRefusal(ServiceProblem):
    """The service refused the request; a retry would fail too."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status

    @property
    def is_of_the_photo(self) -> bool:
        """Whether the photo or its options are the cause; otherwise every photo will be refused."""
        return self.status in (400, 408, 413, 415, 422)


class ServiceClient:
    """A client of one map of a service. Thread-safe: each request opens a connection.

    Opening a connection is much faster than encoding a photo.
    """

    def __init__(self, url: str, api_key: str = "", map_name: str = "", timeout: float = 10.0) -> None:
        """Connect to a service; an empty API key sends none, an empty map name selects the first map."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not a service URL; use the form http://localhost:8000")
        self.url, self.map_name, self.timeout = url.rstrip("/"), map_name, timeout
        self._address = (parts.hostname, parts.port)
        self._path = parts.path.rstrip("/")
        self._certificates = ssl.create_default_context() if parts.scheme == "https" else None
        self._headers = {"Accept": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def check_ready(self, timeout: float = 2.0) -> None:
        """Raise an exception unless the service is ready."""
        self._send("GET", "/readyz", timeout=timeout)

    def maps(self) -> list[str]:
        """Return the names of the maps; the first is the default."""
        return [str(one["name"]) for one in self._send("GET", "/v1/maps")]

    def query(self, name: str, content: bytes, fields: dict[str, str]) -> dict[str, Any]:
        """Query a photo and return the reply of POST /v1/query."""
        return dict(self._post("/v1/query", "image", name, content, fields))

    def add(self, name: str, content: bytes, position: dict[str, float] | None) -> dict[str, Any]:
        """Add a photo and return `added`, `skipped`, `notes` and `revision`. Needs an edit API key."""
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
                    if reply.length or len(content) == LARGEST_REPLY:  # read() with a size accepts a short body
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
    """Build a multipart form with one file (RFC 7578)."""
    pieces = []
    for field, value in fields.items():
        pieces.append(f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'.encode())
    # Escape quotes and line breaks in the name as browsers do.
    quoted = name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
    disposition = f'Content-Disposition: form-data; name="{key}"; filename="{quoted}"'
    pieces.append(f"--{boundary}\r\n{disposition}\r\nContent-Type: application/octet-stream\r\n\r\n".encode())
    return b"".join([*pieces, content, f"\r\n--{boundary}--\r\n".encode()])


def _answer_of(status: int, reason: str, pause: str, content: bytes) -> Any:
    try:
        answer = json.loads(content)
    except ValueError:  # such as the error page of a proxy
        answer = None
    if 200 <= status < 300 and answer is not None:
        return answer
    fields = answer if isinstance(answer, dict) else {}
    sentence = fields.get("error") or (f"the service is {fields['status']}" if "status" in fields else "")
    sentence = str(sentence or f"the service returned {status} {reason}, which is not a response of tfa serve")
    if status in (429, 503):
        seconds = float(pause) if pause.strip().isdecimal() else 1.0
        raise ServiceBusy(sentence, min(max(seconds, 0.1), LONGEST_PAUSE))
    raise ServiceRefusal(sentence, status)
