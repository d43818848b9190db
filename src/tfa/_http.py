"""HTTP requests to a service: persistent connections, retries after Retry-After, refusals as errors."""

from __future__ import annotations

import ssl
import time
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2

from tfa.errors import BadSpec, TfaError
from tfa.photos.images import PhotoFile

RETRIES = 3  # retries if the service is busy
LONGEST_PAUSE = 30.0  # maximum seconds before a retry
# Each thread uses its own connection during a request; up to 8 idle connections stay open.
_CONNECTIONS = httpx2.Limits(max_connections=None, max_keepalive_connections=8)


class ServiceError(TfaError):
    """The service refused a request or cannot be reached; `status` is the HTTP status, None without a response."""

    def __init__(self, sentence: str, status: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status


@cache
def _certificates() -> ssl.SSLContext:
    """Load the certificates once for all clients, since it takes longer than a query."""
    return httpx2.create_ssl_context()


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
        self._http = httpx2.Client(
            base_url=self.url, headers=self._headers, limits=_CONNECTIONS, verify=_certificates()
        )
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
        return self._call("POST", path, data=fields, files=[(key, file) for file in files])

    def _call(self, method: str, path: str, parameters: dict[str, Any] | None = None, **body: Any) -> Any:
        return self._send(method, path, parameters, **body).json()

    def _send(self, method: str, path: str, parameters: dict[str, Any] | None = None, **body: Any) -> httpx2.Response:
        parameters = {**(parameters or {}), **({} if self.map is None else {"map": self.map})}
        for retries_left in range(self.retries, -1, -1):
            try:
                reply = self._http.request(method, path, params=parameters, timeout=self.timeout, **body)
            except httpx2.HTTPError as error:
                raise ServiceError(f"{self.url} does not answer ({error}); is tfa serve running there?") from None
            if reply.is_success:
                return reply
            # 429 and 503 with Retry-After mean that the service did nothing, so a retry is safe.
            pause = reply.headers.get("Retry-After", "").strip()
            if reply.status_code not in (429, 503) or not pause.isdecimal() or not retries_left:
                break
            time.sleep(min(float(pause), LONGEST_PAUSE))
        try:
            sentence = str(reply.json()["error"])
        except (ValueError, KeyError, TypeError):  # such as the error page of a proxy
            sentence = f"the service returned {reply.status_code} {reply.reason_phrase}"
        raise ServiceError(sentence, reply.status_code)
