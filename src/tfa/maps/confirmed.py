"""When each image of a map was last confirmed: a query was answered with it first, verified and sure.

The service notes it in a file of the map's folder. That is no edit: the map's header does not name the file. Images are
known by their content, so that it outlives refits and holds for a merged map too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from tfa.core.files import BadFile, map_tensors, write_tensors
from tfa.types import ImageRecord

CONFIRMED_FILE = "confirmed.safetensors"
_FORMAT = "tfa-confirmed"
_KEY_BYTES = 16  # bytes that an image is known by here
_NEVER = -1


@dataclass
class Confirmed:
    """Times in whole seconds since 1970, by the key of an image."""

    since: dict[bytes, int] = field(default_factory=dict)  # from when on queries could have confirmed it
    last: dict[bytes, int] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Confirmed:
        """Read the times of the map at `folder`; nothing is confirmed if there is no such file."""
        path = folder / CONFIRMED_FILE
        if not path.is_file():
            return cls()
        tensors, about = map_tensors(path)
        try:
            keys, since, last = (tensors[name] for name in ("images", "since", "last"))
            sound = (
                about.get("format") == _FORMAT and keys.shape == (len(since), _KEY_BYTES) and since.shape == last.shape
            )
            if not sound or keys.dtype != np.uint8 or {since.dtype, last.dtype} != {np.dtype(np.int64)}:
                raise ValueError("its arrays do not fit each other")
        except (KeyError, TypeError, ValueError) as error:
            raise BadFile(f"{path} is damaged ({error}); delete it: what was confirmed is counted anew", path) from None
        known = [bytes(key) for key in keys]
        times = zip(known, last.tolist(), strict=True)
        return cls(dict(zip(known, since.tolist(), strict=True)), {key: time for key, time in times if time != _NEVER})

    def write(self, folder: Path) -> None:
        """Replace the file of the map at `folder` atomically."""
        keys = sorted(self.since)
        tensors: dict[str, np.ndarray] = {
            "images": np.frombuffer(b"".join(keys), np.uint8).reshape(-1, _KEY_BYTES),
            "since": np.array([self.since[key] for key in keys], np.int64),
            "last": np.array([self.last.get(key, _NEVER) for key in keys], np.int64),
        }
        write_tensors(folder / CONFIRMED_FILE, tensors, {"format": _FORMAT})

    def watched(self, images: Iterable[ImageRecord], now: int) -> Confirmed:
        """Restrict to these images; those that are new can be confirmed from `now` on."""
        keys = {make_image_key(one) for one in images}
        since = {key: self.since.get(key, now) for key in keys}
        return Confirmed(since, {key: time for key, time in self.last.items() if key in keys})

    def with_later(self, other: Confirmed) -> Confirmed:
        """What either knows of the images of this one: since the earlier time, last at the later."""
        since = {key: min(time, other.since.get(key, time)) for key, time in self.since.items()}
        last = {key: max(self.last.get(key, _NEVER), other.last.get(key, _NEVER)) for key in since}
        return Confirmed(since, {key: time for key, time in last.items() if time != _NEVER})

    def last_of(self, image: ImageRecord) -> int | None:
        return self.last.get(make_image_key(image))

    def since_of(self, image: ImageRecord) -> int | None:
        return self.since.get(make_image_key(image))


def format_time(seconds: float | None) -> str | None:
    """Format a time for JSON."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def make_image_key(image: ImageRecord) -> bytes:
    """Make the key of an image from its content."""
    return hashlib.sha256(image.digest.encode()).digest()[:_KEY_BYTES]
