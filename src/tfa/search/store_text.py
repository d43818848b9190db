"""Values that stores hold as text: payloads in JSON, bytes in base64, names in ASCII, fingerprints to filter by."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from tfa.search.store import Payload


def hash_text(text: Any) -> str:
    """Hash a session or a digest: the result needs no quoting in any filter language. Empty for None."""
    if text is None:
        return ""
    return hashlib.blake2b(str(text).encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def payload_to_text(payload: Payload) -> str:
    """In ASCII: a file name that is not UTF-8 comes back as it was."""
    return json.dumps(dict(payload))


def payload_from_text(text: str) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(text)
    return kept


def bytes_to_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def bytes_from_text(text: str) -> bytes:
    return base64.b64decode(text)


def ascii_text(value: str | None) -> str | None:
    """As JSON writes it: equal texts stay equal, different ones different."""
    return None if value is None else json.dumps(value)
