"""What a service is started with: where it listens, who may query, and how much is taken at once."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfa.core.plain import Options, opt
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


class ServiceSettings(Options):
    """Values are checked on construction; all defaults are ours."""

    host: str = opt("127.0.0.1", "Address to listen on.")
    port: int = opt(8000, "Port to listen on; 0 takes any that is free.", ge=0, le=65_535)
    read_api_key: str | None = opt(None, "For looking and querying; None: open to whoever reaches the port.")
    edit_api_key: str | None = opt(None, "For changing maps, and for reading too.")
    api_keys: tuple[ApiKey, ...] = opt((), "API keys with names, of a file; with any of them reading needs one.")
    rate_limit: float = opt(
        100.0, "Requests a second of one API key, or of one address without; 0: any number.", ge=0, le=1e6
    )
    audit_log: str | None = opt(None, "File that gets a line for each edit asked for.")
    no_auth: bool = opt(False, "On purpose: no API key although other machines can reach the port.")
    cors: tuple[str, ...] = opt((), "Origins whose pages may call from a browser.")
    max_upload: int = opt(20_000_000, "Bytes of one photo.", ge=1, le=2**31)
    max_pixels: int = opt(50_000_000, "Width × height, read before a photo is decoded.", ge=1, le=PILLOW_MOST)
    max_batch: int = opt(64, "Photos of one request.", ge=1, le=1024)
    batch_wait: float = opt(0.003, "Seconds that a query waits for others to be encoded with.", ge=0, le=10)
    batch_size: int = opt(16, "Photos encoded and scored together at most.", ge=1, le=1024)
    max_waiting: int = opt(256, "Queries, and edits, of a map that may wait; more get 503.", ge=1, le=2**20)
    body_seconds: float = opt(120.0, "For a request to arrive as a whole.", ge=0.1, le=86_400)
    stall_seconds: float = opt(
        120.0, "After which a batch of queries hangs: readiness says so, queries are refused.", ge=0.1, le=86_400
    )
    stop_seconds: float = opt(
        STOP_SECONDS, "From SIGTERM to the end, whatever hangs; two thirds for requests under way.", ge=1, le=3600
    )
    decode_seconds: float = opt(10.0, "For a photo to be decoded, in a process of its own.", ge=0.1, le=3600)
    cameras: int = opt(
        64, "Named cameras of a map that adapt their answers, the least recently used is forgotten; 0: none.",
        ge=0, le=4096,
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
