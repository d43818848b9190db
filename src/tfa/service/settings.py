"""What a service is started with: where it listens, who may ask, and how much is taken at once."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from tfa.errors import BadSpec

PILLOW_MOST = 178_956_970  # pixels above which Pillow itself refuses to open a picture
SLACK = 65_536  # bytes of a request that are not the photo: form fields, part headers
ALL_AT_ONCE = 10  # the largest request, in uploads of the largest size


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """Values are checked on construction; all defaults are ours."""

    host: str = "127.0.0.1"
    port: int = 8000
    read_token: str | None = None  # for looking and asking; None: open to whoever reaches the port
    edit_token: str | None = None  # for changing maps, and for reading too
    open: bool = False  # asked for: no token although other machines can reach the port
    cors: tuple[str, ...] = ()  # origins whose pages may call from a browser; none by default
    max_upload: int = 20_000_000  # bytes of one photo
    max_pixels: int = 50_000_000  # width × height of one photo, read from its header before it is decoded
    max_batch: int = 64  # photos of one request
    batch_wait: float = 0.003  # seconds that a query waits for others to be encoded with
    batch_size: int = 16  # photos encoded and scored together at most
    max_waiting: int = 256  # queries, and edits, of a map that may wait; the next is told to come back
    body_seconds: float = 120.0  # for a request to arrive as a whole
    self_calibrate: bool = False

    def __post_init__(self) -> None:
        for name, low, high in (
            ("port", 0, 65_535),
            ("max_upload", 1, 2**31),
            ("max_pixels", 1, PILLOW_MOST),
            ("max_batch", 1, 1024),
            ("batch_size", 1, 1024),
            ("batch_wait", 0, 10),
            ("max_waiting", 1, 2**20),
            ("body_seconds", 0.1, 86_400),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise BadSpec(f"{name}={value} is out of range: must be between {low} and {high}")
        for name in ("read_token", "edit_token"):
            token = getattr(self, name)
            if token is not None and (not token.isascii() or not token.isprintable() or not token.strip()):
                raise BadSpec(f"the {name.replace('_', ' ')} must be printable ASCII text and not empty")
        for origin in self.cors:
            if origin != "*" and not origin.startswith(("http://", "https://")):
                raise BadSpec(f"{origin!r} is no origin; write it as browsers do, such as https://example.org")
        if not is_loopback(self.host) and self.read_token is None and not self.open:
            raise BadSpec(
                f"{self.host} can be reached from other machines, and no read token was given: anybody there could ask "
                "the map and see its photos; give --read-token (and --edit-token to allow edits), or --open on purpose"
            )

    @property
    def editable(self) -> bool:
        """May anybody edit? With a read token alone nobody can be told apart from a reader."""
        return self.edit_token is not None or self.read_token is None

    @property
    def checks_host(self) -> bool:
        """An open service on this machine answers to its own names only (a web page could point its own here)."""
        return self.read_token is None and not self.open

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
