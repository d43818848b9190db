"""What a service is started with: where it listens, who may query, and how much is taken at once."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfa.core.config import Spec, option
from tfa.errors import BadSpec

# --- API keys --------------------------------------------------------------------------------------------------------

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


# --- settings --------------------------------------------------------------------------------------------------------

PILLOW_MOST = 178_956_970  # pixels above which Pillow itself refuses to open a picture
SLACK = 65_536  # bytes of a request that are not the photo: form fields, part headers
ALL_AT_ONCE = 10  # the largest request, in uploads of the largest size

STOP_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class ServiceSettings(Spec):
    """Values are checked on construction; all defaults are ours."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8000, "port to listen on; 0 takes any that is free", low=0, high=65_535)
    read_api_key: str | None = option(
        None, "for looking and querying; None: open to whoever reaches the port", kinds=(str, type(None))
    )
    edit_api_key: str | None = option(None, "for changing maps, and for reading too", kinds=(str, type(None)))
    api_keys: tuple[ApiKey, ...] = option((), "API keys with names, of a file; with any of them reading needs one")
    rate_limit: float = option(
        100.0, "requests a second of one API key, or of one address without; 0: any number", low=0, high=1e6
    )
    audit_log: str | None = option(None, "file that gets a line for each edit asked for", kinds=(str, type(None)))
    no_auth: bool = option(False, "on purpose: no API key although other machines can reach the port")
    cors: tuple[str, ...] = option((), "origins whose pages may call from a browser")
    max_upload: int = option(20_000_000, "bytes of one photo", low=1, high=2**31)
    max_pixels: int = option(50_000_000, "width × height, read before a photo is decoded", low=1, high=PILLOW_MOST)
    max_batch: int = option(64, "photos of one request", low=1, high=1024)
    batch_wait: float = option(0.003, "seconds that a query waits for others to be encoded with", low=0, high=10)
    batch_size: int = option(16, "photos encoded and scored together at most", low=1, high=1024)
    max_waiting: int = option(256, "queries, and edits, of a map that may wait; more get 503", low=1, high=2**20)
    body_seconds: float = option(120.0, "for a request to arrive as a whole", low=0.1, high=86_400)
    stall_seconds: float = option(
        120.0, "after which a batch of queries hangs: readiness says so, queries are refused", low=0.1, high=86_400
    )
    stop_seconds: float = option(
        STOP_SECONDS, "from SIGTERM to the end, whatever hangs; two thirds for requests under way", low=1, high=3600
    )
    decode_seconds: float = option(10.0, "for a photo to be decoded, in a process of its own", low=0.1, high=3600)
    cameras: int = option(
        64, "named cameras of a map that adapt their answers, the least recently used is forgotten; 0: none",
        low=0, high=4096,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [api_key.name for api_key in self.all_api_keys]
        for kind, values in (("called", names), ("the same", [api_key.secret for api_key in self.all_api_keys])):
            twice = next((names[at] for at, value in enumerate(values) if value in values[:at]), None)
            if twice is not None:
                raise BadSpec(f"two API keys are {kind} ({twice}); every API key needs a name and a text of its own")
        for origin in self.cors:
            if origin != "*" and not origin.startswith(("http://", "https://")):
                raise BadSpec(f"{origin!r} is not an origin; write it as browsers do, such as https://example.org")
        if not is_loopback(self.host) and not self.closed and not self.no_auth:
            raise BadSpec(
                f"{self.host} can be reached from other machines, and no read API key was given: anybody there could "
                "query the map and see its photos; give --api-keys, or --read-api-key (and --edit-api-key to allow "
                "edits), or --no-auth on purpose"
            )

    @property
    def editable(self) -> bool:
        """May anybody edit? With a read API key alone nobody can be distinguished from a reader."""
        return any(api_key.edits for api_key in self.all_api_keys) or not self.closed

    @property
    def all_api_keys(self) -> tuple[ApiKey, ...]:
        """Those with names of their own, and the two that are called after what they allow."""
        plain = (("read", False, self.read_api_key), ("edit", True, self.edit_api_key))
        return (*self.api_keys, *(ApiKey(name, edits, text) for name, edits, text in plain if text is not None))

    @property
    def closed(self) -> bool:
        """Does reading need an API key?"""
        return self.read_api_key is not None or bool(self.api_keys)

    @property
    def limited_rate(self) -> float:
        """Requests a second that are taken of one; any number where only this machine and nobody else asks."""
        return 0.0 if self.checks_host and not self.all_api_keys else self.rate_limit

    @property
    def checks_host(self) -> bool:
        """An open service on this machine answers to its own names only (a web page could point its own here)."""
        return not self.closed and not self.no_auth

    @property
    def single_bytes(self) -> int:
        """Largest body of a request with one photo; base64 takes four bytes for three."""
        return self.max_upload * 4 // 3 + SLACK

    @property
    def many_bytes(self) -> int:
        """Largest body of a request with several photos."""
        return self.max_upload * min(ALL_AT_ONCE, self.max_batch) * 4 // 3 + SLACK


def is_loopback(host: str) -> bool:
    """Is the address one that only this machine reaches?"""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
