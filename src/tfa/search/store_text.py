"""Text form of values in stores: names in ASCII, hashes for filters."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def hash_text(text: Any) -> str:
    """Hash a session or digest, so that filters need no quoting. Empty for None."""
    if text is None:
        return ""
    return hashlib.blake2b(str(text).encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def ascii_text(value: str | None) -> str | None:
    """Convert text to ASCII as JSON does; the mapping is one-to-one."""
    return None if value is None else json.dumps(value)
