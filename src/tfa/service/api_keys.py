"""API keys with names: who they are for, what they allow, and the file they are kept in."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfa.errors import BadSpec

_NAME = re.compile("[A-Za-z0-9._-]{1,64}")
_ROLES = ("read", "edit")
_SHORTEST = 16  # characters of an API key in a file
_LINE = "write a line for each API key: a name, read or edit, and the key, such as: robot1 read 6f1c…"


@dataclass(frozen=True)
class ApiKey:
    """A name that logs and cameras know, and a secret that they do not."""

    name: str
    edits: bool  # reads too
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadSpec(
                f"{self.name[:80]!r} is no name of an API key; letters, digits, - _ and . are allowed, at most 64"
            )
        if not self.secret.isascii() or not self.secret.isprintable() or not self.secret.strip():
            raise BadSpec(f"the {self.name} API key must be printable ASCII text and not empty")


def _is_secret(text: str, secret: str | None) -> bool:
    """Compare two secrets in constant time, whatever a wrong one has in common with the right one."""
    if secret is None:
        return False
    # Digests have one length: the length of the API key is not shown by the time either.
    ours, theirs = (hashlib.sha256(one.encode("utf-8", "replace")).digest() for one in (secret, text))
    return hmac.compare_digest(ours, theirs)


def find_api_key(text: str | None, api_keys: Sequence[ApiKey]) -> ApiKey | None:
    """Find the API key with this text as its secret; the text is compared with every one, whichever fits."""
    if text is None:
        return None
    found = [api_key for api_key in api_keys if _is_secret(text, api_key.secret)]
    return max(found, key=lambda api_key: api_key.edits, default=None)


def read_api_keys(path: Path) -> tuple[ApiKey, ...]:
    """The API keys of a file: a line each, `name role key`; lines that are empty or begin with # are left out."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise BadSpec(f"the API key file {path} cannot be read: {reason}; {_LINE}", path) from None
    api_keys: list[ApiKey] = []
    for number, line in enumerate(lines, 1):
        parts = line.split()
        if not parts or parts[0].startswith("#"):
            continue
        if len(parts) != 3 or parts[1] not in _ROLES:  # the line itself is not shown: it holds a secret
            raise BadSpec(f"line {number} of {path} is not understood; {_LINE}", path)
        if len(parts[2]) < _SHORTEST:
            raise BadSpec(
                f"the API key in line {number} of {path} has {len(parts[2])} characters and needs {_SHORTEST}; "
                "make one with: python -c 'import secrets; print(secrets.token_urlsafe())'",
                path,
            )
        api_keys.append(ApiKey(parts[0], parts[1] == "edit", parts[2]))
    if not api_keys:
        raise BadSpec(f"the API key file {path} holds no API key; {_LINE}", path)
    return tuple(api_keys)
