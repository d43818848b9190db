"""What a service is started with: where it listens, who may query, and how much is taken at once."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from tfa.core.plain import Options, opt
from tfa.errors import BadSpec
from tfa.service.api_keys import ApiKey

PILLOW_MOST = 178_956_970  # pixels above which Pillow itself refuses to open a picture
SLACK = 65_536  # bytes of a request that are not the photo: form fields, part headers
ALL_AT_ONCE = 10  # the largest request, in uploads of the largest size

STOP_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class ServiceSettings(Options):
    """Values are checked on construction; all defaults are ours."""

    host: str = opt("127.0.0.1", "address to listen on")
    port: int = opt(8000, "port to listen on; 0 takes any that is free", ge=0, le=65_535)
    read_api_key: str | None = opt(None, "for looking and querying; None: open to whoever reaches the port")
    edit_api_key: str | None = opt(None, "for changing maps, and for reading too")
    api_keys: tuple[ApiKey, ...] = opt((), "API keys with names, of a file; with any of them reading needs one")
    rate_limit: float = opt(
        100.0, "requests a second of one API key, or of one address without; 0: any number", ge=0, le=1e6
    )
    audit_log: str | None = opt(None, "file that gets a line for each edit asked for")
    no_auth: bool = opt(False, "on purpose: no API key although other machines can reach the port")
    cors: tuple[str, ...] = opt((), "origins whose pages may call from a browser")
    max_upload: int = opt(20_000_000, "bytes of one photo", ge=1, le=2**31)
    max_pixels: int = opt(50_000_000, "width × height, read before a photo is decoded", ge=1, le=PILLOW_MOST)
    max_batch: int = opt(64, "photos of one request", ge=1, le=1024)
    batch_wait: float = opt(0.003, "seconds that a query waits for others to be encoded with", ge=0, le=10)
    batch_size: int = opt(16, "photos encoded and scored together at most", ge=1, le=1024)
    max_waiting: int = opt(256, "queries, and edits, of a map that may wait; more get 503", ge=1, le=2**20)
    body_seconds: float = opt(120.0, "for a request to arrive as a whole", ge=0.1, le=86_400)
    stall_seconds: float = opt(
        120.0, "after which a batch of queries hangs: readiness says so, queries are refused", ge=0.1, le=86_400
    )
    stop_seconds: float = opt(
        STOP_SECONDS, "from SIGTERM to the end, whatever hangs; two thirds for requests under way", ge=1, le=3600
    )
    decode_seconds: float = opt(10.0, "for a photo to be decoded, in a process of its own", ge=0.1, le=3600)
    cameras: int = opt(
        64, "named cameras of a map that adapt their answers, the least recently used is forgotten; 0: none",
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
