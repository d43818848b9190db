"""Service settings: address, API keys and limits."""

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

_NAME = re.compile("[A-Za-z0-9._-]{1,64}")
_SHORTEST = 16  # minimum length of an API key in a file
_LINE = "each line needs a name, read or edit, and the key, such as: robot1 read 6f1c…"


@dataclass(frozen=True)
class ApiKey:
    """An API key: a name for logs and cameras, a role and a secret."""

    name: str
    edits: bool  # may edit and read
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadSpec(f"{self.name[:80]!r} is not a valid API key name; use up to 64 letters, digits, -, _ and .")
        if not self.secret.isascii() or not self.secret.isprintable() or not self.secret.strip():
            raise BadSpec(f"API key {self.name} must be printable ASCII text and not empty")


def find_api_key(text: str | None, api_keys: Sequence[ApiKey]) -> ApiKey | None:
    """Find the API key with this secret. Compares every key, so that timing does not depend on the match."""
    if text is None:
        return None
    # Digests have a fixed length, so that timing does not reveal the length of the key.
    secrets = (text, *(api_key.secret for api_key in api_keys))
    sent, *ours = (hashlib.sha256(secret.encode("utf-8", "replace")).digest() for secret in secrets)
    found = [api_key for api_key, own in zip(api_keys, ours, strict=True) if hmac.compare_digest(own, sent)]
    return max(found, key=lambda api_key: api_key.edits, default=None)


def read_api_keys(path: Path) -> tuple[ApiKey, ...]:
    """Read API keys from a file with lines `name role key`; empty lines and lines with # are skipped."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise BadSpec(f"cannot read the API key file {path}: {reason}; {_LINE}", path) from None
    api_keys: list[ApiKey] = []
    for number, line in enumerate(lines, 1):
        parts = line.split()
        if not parts or parts[0].startswith("#"):
            continue
        if len(parts) != 3 or parts[1] not in ("read", "edit"):  # the line is not shown because it contains a secret
            raise BadSpec(f"line {number} of {path} is not valid; {_LINE}", path)
        if len(parts[2]) < _SHORTEST:
            raise BadSpec(
                f"the API key in line {number} of {path} has {len(parts[2])} characters, at least {_SHORTEST} are "
                "needed; create one with: python -c 'import secrets; print(secrets.token_urlsafe())'",
                path,
            )
        api_keys.append(ApiKey(parts[0], parts[1] == "edit", parts[2]))
    if not api_keys:
        raise BadSpec(f"the API key file {path} contains no API key; {_LINE}", path)
    return tuple(api_keys)


PILLOW_MOST = 178_956_970  # pixels above which Pillow refuses to open an image
SLACK = 65_536  # bytes of a request besides the photo: form fields, part headers
ALL_AT_ONCE = 10  # size of the largest request, in photos of the largest size
STOP_SECONDS = 30.0


class ServiceSettings(Options):
    """Settings of a service, checked on construction."""

    host: str = opt("127.0.0.1", "Address to listen on.")
    port: int = opt(8000, "Port to listen on; 0 for any free port.", ge=0, le=65_535)
    read_api_key: str | None = opt(None, "API key for reading and queries; None allows everyone.")
    edit_api_key: str | None = opt(None, "API key for edits, and for reading.")
    api_keys: tuple[ApiKey, ...] = opt((), "Named API keys, from a file; with any of them reading needs a key.")
    rate_limit: float = opt(100.0, "Requests per second and API key, or address; 0 for no limit.", ge=0, le=1e6)
    audit_log: str | None = opt(None, "File that gets a line for each edit request.")
    no_auth: bool = opt(False, "Allow unauthenticated access from other machines.")
    cors: tuple[str, ...] = opt((), "Origins whose pages may send requests.")
    proxies: tuple[str, ...] = opt((), "Addresses of proxies whose X-Forwarded-For names the client.")
    max_upload: int = opt(20_000_000, "Bytes of one photo.", ge=1, le=2**31)
    max_pixels: int = opt(50_000_000, "Width × height, checked before a photo is decoded.", ge=1, le=PILLOW_MOST)
    max_batch: int = opt(64, "Photos of one request.", ge=1, le=1024)
    batch_wait: float = opt(0.003, "Seconds that a query waits for others to share a batch.", ge=0, le=10)
    batch_size: int = opt(16, "Photos of one batch.", ge=1, le=1024)
    max_waiting: int = opt(
        256, "Waiting requests of one kind (photos, queries, edits, reads); more get 503.", ge=1, le=2**20
    )
    body_seconds: float = opt(120.0, "Time limit for a request to arrive.", ge=0.1, le=86_400)
    stall_seconds: float = opt(120.0, "Time after which a query batch counts as stalled.", ge=0.1, le=86_400)
    stop_seconds: float = opt(
        STOP_SECONDS, "Time limit for shutdown; two thirds are for running requests.", ge=1, le=3600
    )
    decode_seconds: float = opt(5.0, "Time limit for decoding a photo.", ge=0.1, le=3600)
    cameras: int = opt(64, "Cameras of a map; a new one replaces the least recently used. 0: off.", ge=0, le=4096)

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [api_key.name for api_key in self.all_api_keys]
        for kind, values in (("name", names), ("secret", [api_key.secret for api_key in self.all_api_keys])):
            twice = next((names[at] for at, value in enumerate(values) if value in values[:at]), None)
            if twice is not None:
                raise BadSpec(f"two API keys have the same {kind} ({twice}); names and secrets must be unique")
        for origin in self.cors:
            if origin != "*" and not origin.startswith(("http://", "https://")):
                raise BadSpec(f"{origin!r} is not an origin; use the form https://example.org")
        for proxy in self.proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError:
                raise BadSpec(f"{proxy!r} is not a proxy address; use the form 127.0.0.1 or 10.0.0.0/8") from None
        if not is_loopback(self.host) and not self.closed and not self.no_auth:
            raise BadSpec(
                f"other machines can reach {self.host}, and without a read API key anyone there can query the map and "
                "see its photos; pass --api-keys, or --read-api-key (and --edit-api-key to allow edits), or --no-auth"
            )

    @property
    def editable(self) -> bool:
        """Whether edits are possible: with an edit API key, or without any API key."""
        return any(api_key.edits for api_key in self.all_api_keys) or not self.closed

    @property
    def all_api_keys(self) -> tuple[ApiKey, ...]:
        """Named API keys, and the two named after their role."""
        plain = (("read", False, self.read_api_key), ("edit", True, self.edit_api_key))
        return (*self.api_keys, *(ApiKey(name, edits, text) for name, edits, text in plain if text is not None))

    @property
    def closed(self) -> bool:
        """Whether reading needs an API key."""
        return self.read_api_key is not None or bool(self.api_keys)

    @property
    def limited_rate(self) -> float:
        """Requests per second; no limit (0) if only this machine has access and there are no API keys."""
        return 0.0 if self.checks_host and not self.all_api_keys else self.rate_limit

    @property
    def checks_host(self) -> bool:
        """Whether only local host names are accepted, which prevents DNS rebinding without API keys."""
        return not self.closed and not self.no_auth

    @property
    def single_bytes(self) -> int:
        """Largest body of a request with one photo; base64 uses four bytes for three."""
        return self.max_upload * 4 // 3 + SLACK

    @property
    def many_bytes(self) -> int:
        """Largest body of a request with several photos."""
        return self.max_upload * min(ALL_AT_ONCE, self.max_batch) * 4 // 3 + SLACK


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
