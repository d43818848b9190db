"""Text form of values in stores: payloads in JSON, bytes in base64, names in ASCII, hashes for filters."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from tfa.search.store import Payload


def hash_text(text: Any) -> str:
    """Hash a session or digest, so that filters need no quoting. Empty for None."""
    if text is None:
        return ""
    return hashlib.blake2b(str(text).encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def payload_to_text(payload: Payload) -> str:
    """Convert a payload to ASCII JSON, which preserves file names that are not UTF-8."""
    return json.dumps(dict(payload))


def payload_from_text(text: str) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(text)
    return kept


def bytes_to_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def bytes_from_text(text: str) -> bytes:
    return base64.b64decode(text)


def ascii_text(value: str | None) -> str | None:
    """Convert text to ASCII as JSON does; the mapping is one-to-one."""
    return None if value is None else json.dumps(value)
