"""Images of a map found by path or id, their photos and tokens, and when sure answers last confirmed them.

When each image of a map was last confirmed: a query was answered with it first, verified and sure.

The service notes it in a file of the map's folder. That is no edit: the map's header does not name the file. Images are
known by their content, so that it outlives refits and holds for a merged map too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tfa.core.files import BadFile, hash_file, map_tensors, sync_folder, write_atomically, write_tensors
from tfa.core.progress import Progress
from tfa.core.tokens import Tokens
from tfa.errors import BadMap, UnknownImage
from tfa.photos.token_cache import TokenCache
from tfa.types import ImageRecord

if TYPE_CHECKING:
    from tfa.maps.map import Map


# --- confirmed ------------------------------------------------------------------------------------

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


# --- photos ---------------------------------------------------------------------------------------

UPLOADS = "photos"  # folder of uploads in a map


def write_upload(map_folder: Path, name: str, digest: str, content: bytes) -> Path:
    """Write a photo to the map's own folder, under its content and its name; it is safe on disk on return."""
    folder = map_folder / UPLOADS / digest[:16]
    path = folder / name
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        write_atomically(path, lambda temporary: temporary.write_bytes(content))
        for parent in (folder.parent, map_folder):
            sync_folder(parent)
    return path


def discard_upload(map_folder: Path, path: Path) -> None:
    """Take back what `write_upload` wrote for an edit that did not come about."""
    if path.resolve().is_relative_to((map_folder / UPLOADS).resolve()):
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the same content may be there under another name
            path.parent.rmdir()


def read_map_photo(record: ImageRecord, map_folder: Path | None) -> bytes | None:
    """Read the file that a map image was made of; None if it is gone or its content is another."""
    path = Path(record.path)
    places = [path]
    if map_folder is not None and path.parent.parent.name == UPLOADS:  # an upload moves with its map
        places.append(map_folder / UPLOADS / path.parent.name / path.name)
    for place in places:
        try:
            content = place.read_bytes() if place.is_file() else b""
        except OSError:
            continue
        if hashlib.sha256(content).hexdigest() == record.digest:
            return content
    return None


# --- lookup ---------------------------------------------------------------------------------------

_LOST_ADVICE = (
    "take them out for good with tfa remove and tfa refit "
    "(a calibration needs every photo the map was fitted on, removed ones too)"
)


def load_tokens(
    place_map: Map,
    records: Sequence[ImageRecord],
    progress: bool | Progress | None = None,
    otherwise: str = _LOST_ADVICE,
) -> Tokens:
    """Tokens of the map's photos; what the cache lost is encoded again from files that have not changed.

    `otherwise` is what to do about photos that are lost.
    """
    cache, (rows, columns) = place_map.cache or TokenCache(), place_map.state.encoder["grid"]
    digests, paths = [record.digest for record in records], [record.path for record in records]
    fingerprint, missing = _uncached(place_map, cache, digests)
    if missing:
        gone = [paths[i] for i in missing if not Path(paths[i]).is_file()]
        if gone:
            raise BadMap(
                f"{len(gone)} photos are neither in the token cache nor on disk (first: {gone[0]}); "
                f"restore them, or {otherwise}",
                gone[0],
            )
        again = cache.encode([Path(paths[i]) for i in missing], place_map.encoder, progress=progress)
        for path, digest, i in zip(again.paths, again.digests, missing, strict=True):
            if digest != digests[i]:
                raise BadMap(f"{path} is not the photo the map was built with; restore it, or {otherwise}", path)
    return cache.tokens(fingerprint, digests, paths, (rows, columns))


def find_lost_photos(place_map: Map, records: Sequence[ImageRecord]) -> list[str]:
    """Paths of all photos whose tokens cannot be had: in no cache, and not on disk as they were."""
    _, missing = _uncached(place_map, place_map.cache or TokenCache(), [record.digest for record in records])

    def is_there(record: ImageRecord) -> bool:
        path = Path(record.path)
        return path.is_file() and hash_file(path) == record.digest

    return [records[i].path for i in missing if not is_there(records[i])]


def _uncached(place_map: Map, cache: TokenCache, digests: Sequence[str]) -> tuple[str, list[int]]:
    """Whose tokens are taken, by the fingerprint of an encoder, and which of the photos are not among them."""
    fingerprint = place_map.state.encoder["fingerprint"]
    missing = cache.missing(fingerprint, digests)
    if missing:
        # Another arithmetic of the map's model has a shelf of its own: all tokens are taken from there, or none.
        fingerprint = place_map.encoder.fingerprint
        missing = cache.missing(fingerprint, digests)
    return fingerprint, missing


def find_image_records(records: Sequence[ImageRecord], photos: Sequence[str | Path | int]) -> list[ImageRecord]:
    """Each photo's image, by its id, its path, or the end of its path if that is unambiguous."""
    by_id: dict[int, ImageRecord] = {}
    by_path: dict[str, list[ImageRecord]] = {}
    by_name: dict[str, list[ImageRecord]] = {}  # the last part of a path: what every ending of it has in common
    for record in records:
        by_id[record.id] = record
        by_path.setdefault(record.path, []).append(record)
        by_name.setdefault(os.path.basename(record.path), []).append(record)

    def matching(photo: str | Path | int) -> list[ImageRecord]:
        if isinstance(photo, int):
            return [by_id[photo]] if photo in by_id else []
        whole, ending = str(Path(photo).resolve()), Path(photo).parts
        alike = by_name.get(Path(photo).name, [])
        return by_path.get(whole) or [one for one in alike if Path(one.path).parts[-len(ending) :] == ending]

    return [_only(photo, matching(photo)) for photo in photos]


def _only(photo: str | Path | int, records: Sequence[ImageRecord]) -> ImageRecord:
    if len(records) > 1:
        raise UnknownImage(f"{photo} may be any of {len(records)} photos of the map; give its whole path or its id")
    if not records:
        raise UnknownImage(f"{photo} is not in the map; tfa info --json lists the photos that are")
    return records[0]


def drop_repeated_files(paths: Sequence[Path]) -> list[Path]:
    """Each file once, under the first name it was given."""
    return list({path.resolve(): path for path in reversed(paths)}.values())[::-1]
