"""HTTP requests to a service: persistent connections, retries after Retry-After, refusals as errors."""

from __future__ import annotations

import json
import secrets
import select
import ssl
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

from tfa.errors import BadSpec, TfaError
from tfa.photos.images import PhotoFile

RETRIES = 3  # retries if the service is busy
LONGEST_PAUSE = 30.0  # maximum seconds before a retry
_IDLE, _IDLE_SECONDS = 8, 4.0  # maximum of idle connections, and of their age: a service closes them after 5 s


class ServiceError(TfaError):
    """The service refused a request or cannot be reached; `status` is the HTTP status, None without a response."""

    def __init__(self, sentence: str, status: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status


@cache
def _certificates() -> ssl.SSLContext:
    """Load the certificates once for all clients, since it takes longer than a query."""
    return ssl.create_default_context()


@dataclass(frozen=True)
class Reply:
    """Response of a service."""

    status: int
    reason: str
    headers: Any  # a mapping that ignores case
    content: bytes


class Connections:
    """Connections to one address. A request uses one of its own; up to 8 idle ones stay open for later requests."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._secure, self._netloc, self._root = parts.scheme == "https", parts.netloc, parts.path
        self._idle: deque[tuple[HTTPConnection, float]] = deque(maxlen=_IDLE)  # each with the time of its last use

    def request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], timeout: float) -> Reply:
        """Send a request; raise OSError or HTTPException without a response."""
        connection = self._take(timeout)
        try:
            connection.request(method, self._root + path, body, dict(headers))
            response = connection.getresponse()
            reply = Reply(response.status, response.reason, response.headers, response.read())
        except BaseException:
            connection.close()
            raise
        if response.will_close or len(self._idle) == _IDLE:
            connection.close()
        else:
            self._idle.append((connection, time.monotonic()))
        return reply

    def _take(self, timeout: float) -> HTTPConnection:
        """Return an idle connection that the service has not closed, or a new one."""
        while self._idle:
            try:
                connection, used = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            is_closed = bool(select.select([connection.sock], [], [], 0)[0])  # readable without a request
            if not is_closed and time.monotonic() - used < _IDLE_SECONDS:
                connection.sock.settimeout(timeout)
                return connection
            connection.close()
        if self._secure:
            return HTTPSConnection(self._netloc, timeout=timeout, context=_certificates())
        return HTTPConnection(self._netloc, timeout=timeout)

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[0].close()


def encode_form(fields: Mapping[str, Any], files: Iterable[tuple[str, PhotoFile]]) -> tuple[bytes, str]:
    """Return fields and files as a multipart body, and its content type. A list becomes one field per item."""
    boundary, body = secrets.token_hex(16), bytearray()

    def add(name: str, content: bytes, more: str = "") -> None:
        body.extend(f'--{boundary}\r\nContent-Disposition: form-data; name="{_quoted(name)}"{more}\r\n\r\n'.encode())
        body.extend(content + b"\r\n")

    for name, value in fields.items():
        for item in value if isinstance(value, list) else [value]:
            add(name, _as_text(item).encode())
    for name, (filename, content) in files:
        add(name, content, f'; filename="{_quoted(filename)}"\r\nContent-Type: application/octet-stream')
    return bytes(body + f"--{boundary}--\r\n".encode()), f"multipart/form-data; boundary={boundary}"


def _quoted(name: str) -> str:
    """Escape a name as browsers do."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class ServiceConnection:
    """A connection to one map of a service."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        map: str | None = None,
        timeout: float = 120.0,
        retries: int = RETRIES,
    ) -> None:
        """Connect lazily: the first request opens a connection.

        Args:
            url: Address of `tfa serve`.
            api_key: Read or edit API key.
            map: Name of the map. [default: the first map of the service]
            timeout: Seconds to wait for a response.
            retries: How often to retry a request if the service is busy.
        """
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise BadSpec(f"{url!r} is not a service URL; use the form http://localhost:8000")
        if retries < 0:
            raise BadSpec(f"retries={retries} is out of range: must be at least 0")
        self.url, self.map, self.timeout, self.retries = url.rstrip("/"), map, timeout, retries
        self._headers = {"Accept": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._open()

    def _open(self) -> None:
        self._http = Connections(self.url)
        self._close = weakref.finalize(self, self._http.close)

    def close(self) -> None:
        """Close the connections; a later request opens a new one."""
        self._close()
        self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:  # without the API key
        api_key = "" if "Authorization" in self._headers else ", no API key"
        return f"<{type(self).__name__} of {'the first map' if self.map is None else self.map} at {self.url}{api_key}>"

    def _post(self, path: str, key: str, files: Sequence[PhotoFile], fields: dict[str, Any]) -> Any:
        body, kind = encode_form(fields, [(key, file) for file in files])
        return json.loads(self._send("POST", path, body=body, kind=kind).content)

    def _call(self, method: str, path: str, parameters: dict[str, Any] | None = None, **body: Any) -> Any:
        """Send a request, with `body` as JSON if there is one, and return the JSON of its response."""
        content = json.dumps(body).encode() if body else None
        return json.loads(self._send(method, path, parameters, content).content)

    def _send(
        self,
        method: str,
        path: str,
        parameters: dict[str, Any] | None = None,
        body: bytes | None = None,
        kind: str = "application/json",
    ) -> Reply:
        given = {**(parameters or {}), "map": self.map}
        query = urlencode({name: _as_text(value) for name, value in given.items() if value is not None})
        target = f"{path}?{query}" if query else path
        headers = self._headers | ({} if body is None else {"Content-Type": kind})
        for retries_left in range(self.retries, -1, -1):
            try:
                reply = self._http.request(method, target, body, headers, self.timeout)
            except (OSError, HTTPException) as error:
                reason = str(error) or type(error).__name__
                raise ServiceError(f"{self.url} does not answer ({reason}); is tfa serve running there?") from None
            if reply.status < 300:
                return reply
            # 429 and 503 with Retry-After mean that the service did nothing, so a retry is safe.
            pause = reply.headers.get("Retry-After", "").strip()
            if reply.status not in (429, 503) or not pause.isdecimal() or not retries_left:
                break
            time.sleep(min(float(pause), LONGEST_PAUSE))
        try:
            sentence = str(json.loads(reply.content)["error"])
        except (ValueError, KeyError, TypeError):  # such as the error page of a proxy
            sentence = f"the service returned {reply.status} {reply.reason}"
        raise ServiceError(sentence, reply.status)
