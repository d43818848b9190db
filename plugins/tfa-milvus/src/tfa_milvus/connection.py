"""Connection to a Milvus server: address, requests and errors."""

from __future__ import annotations

import logging
import os
import threading
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tfa.errors import BadSpec, StoreConflict, StoreUnavailable, TfaError

ASK_SECONDS, WRITE_SECONDS, BUILD_SECONDS = 20, 120, 3600
# A query with a limit returns the smallest keys only with these options; otherwise it returns any rows.
SMALLEST_FIRST: dict[str, Any] = {"iterator": "True", "reduce_stop_for_best": "True"}
_NOT_FOUND, _NOT_LOADED = 100, 101  # Milvus error codes
_REFUSED = ("auth", "permission", "credential", "password", "token")


def pymilvus() -> Any:
    """Return the client library with its logging turned off; problems become exceptions of tfa."""
    library = import_module("pymilvus")
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL + 1)
    return library


class Connection:
    """A connection to `milvus://[USER:PASSWORD@]HOST:PORT[/DATABASE][?tls=true]`.

    A token goes into the URL as `:TOKEN@`, or into MILVUS_TOKEN. After a lost connection the next request reconnects.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        try:
            host, port = parts.hostname or "", parts.port or 19530
        except ValueError:
            host, port = "", 0
        if not host:
            raise BadSpec(f"{parts.netloc.rpartition('@')[2]!r} is not a Milvus host; use milvus://HOST:19530/NAME")
        self.address = f"{host}:{port}"
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        login = f"{user}:{password}" if user else password
        secure = parse_qs(parts.query).get("tls", ["false"])[0].lower() in ("1", "true", "yes")
        self._settings = {
            "uri": f"{'https' if secure else 'http'}://{self.address}",
            "token": login or os.environ.get("MILVUS_TOKEN", ""),
            "db_name": parts.path.strip("/"),
            "dedicated": True,  # closing one connection must not close others
            "grpc_options": {"grpc.keepalive_time_ms": 60_000},  # servers drop clients that ping more often
        }
        self._library = pymilvus()
        self._rpc_error: type[Exception] = import_module("grpc").RpcError
        self._client: Any = None
        self._lock = threading.Lock()

    def client(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._library.MilvusClient(**self._settings, timeout=ASK_SECONDS)
            return self._client

    def call(self, method: str, *arguments: Any, timeout: float = ASK_SECONDS, **options: Any) -> Any:
        """Call a method of the client library."""
        try:
            return getattr(self.client(), method)(*arguments, timeout=timeout, **options)
        except (self._library.MilvusException, self._rpc_error) as error:  # the library passes some gRPC errors on
            raise self._meaning(error) from error

    def request(self, collection: str, method: str, **options: Any) -> Any:
        """Search or query; load the collection if the server does not have it in memory, as after a restart."""
        try:
            return self.call(method, collection, **options)
        except StoreUnavailable as error:
            cause = error.__cause__
            if getattr(cause, "code", None) != _NOT_LOADED and "not loaded" not in str(cause):
                raise
        self.call("load_collection", collection, timeout=BUILD_SECONDS)
        return self.call(method, collection, **options)

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _meaning(self, error: Any) -> TfaError:
        message, code = getattr(error, "message", None), getattr(error, "code", None)
        if isinstance(error, self._rpc_error) and callable(code):
            raised: Any = error
            message, code = raised.details(), code()
        said = (str(message or error).strip().splitlines() or ["no reason given"])[0][:300]
        if code == _NOT_FOUND or "not exist" in said or "not found" in said:
            return StoreConflict(f"not found in Milvus at {self.address}: {said}")
        name = getattr(code, "name", str(code))
        if name in ("UNAUTHENTICATED", "PERMISSION_DENIED", "1400") or any(one in said.lower() for one in _REFUSED):
            return StoreUnavailable(
                f"Milvus at {self.address} refuses this user or token ({said}); use milvus://USER:PASSWORD@… or set "
                "MILVUS_TOKEN"
            )
        if name in ("2", "UNAVAILABLE", "DEADLINE_EXCEEDED"):
            self.close()  # the next request reconnects
            return StoreUnavailable(
                f"Milvus at {self.address} does not answer ({said}); start it, or check the address, and try again"
            )
        return StoreUnavailable(f"request to Milvus at {self.address} failed: {said}")
