"""Find images of a map by path or id, load their photos and tokens, and record when answers confirmed them.

An image is confirmed when it is the best hit of a sure answer. The service writes the times to a file in the map's
folder that the header does not list, so that it is not an edit. Keys are content hashes, which survive refits.
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
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.errors import BadMap, UnknownImage
from tfa.photos.token_cache import TokenCache
from tfa.types import ImageRecord, RelocateResult

if TYPE_CHECKING:
    from tfa.maps.map import Map


# --- confirmation times ---------------------------------------------------------------------------

CONFIRMED_FILE = "confirmed.safetensors"
_FORMAT = "tfa-confirmed"
_KEY_BYTES = 16  # bytes of an image's key
_NEVER = -1
LATEST = 253_402_300_799  # end of the year 9999, the last time that can be formatted


@dataclass
class Confirmed:
    """Confirmation times in whole seconds since 1970, by image key."""

    since: dict[bytes, int] = field(default_factory=dict)  # start of observation
    last: dict[bytes, int] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Confirmed:
        """Read the times of the map at `folder`; empty if there is no file."""
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
                raise ValueError("array shapes do not match")
            if not all(_NEVER <= time <= LATEST for times in (since, last) for time in times.tolist()):
                raise ValueError("a time is out of range")
        except (KeyError, TypeError, ValueError) as error:
            raise BadFile(f"{path} is damaged ({error}); delete it to restart counting", path) from None
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
        """Restrict to these images; observation of new ones starts `now`."""
        keys = {make_image_key(one) for one in images}
        since = {key: self.since.get(key, now) for key in keys}
        return Confirmed(since, {key: time for key, time in self.last.items() if key in keys})

    def with_later(self, other: Confirmed) -> Confirmed:
        """Merge with `other`, keeping the earliest `since` and the latest `last` per image."""
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
    """Write a photo to the map's folder, by digest and name. Durable on return."""
    folder = map_folder / UPLOADS / digest[:16]
    path = folder / name
    if not folder.resolve().is_relative_to(map_folder.resolve()):
        raise BadMap(f"{map_folder / UPLOADS} links to a folder outside of the map; replace it by a folder", map_folder)
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        write_atomically(path, lambda temporary: temporary.write_bytes(content))
        for parent in (folder.parent, map_folder):
            sync_folder(parent)
    return path


def discard_upload(map_folder: Path, path: Path) -> None:
    """Delete a photo of `write_upload` after a failed edit."""
    if path.resolve().is_relative_to((map_folder / UPLOADS).resolve()):
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the content may also exist under another name
            path.parent.rmdir()


def read_map_photo(record: ImageRecord, map_folder: Path | None) -> bytes | None:
    """Read the photo of a map image; None if it is missing or changed."""
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


def relocate_photos(place_map: Map, old: Path, new: Path, progress: bool | Progress | None = None) -> RelocateResult:
    """Change the paths of map images after their photos were moved from one folder to another, in one step.

    Raises UnknownImage if no map image is in `old`, or none of their files is in `new`.
    """
    before, after = os.path.realpath(old), os.path.realpath(new)

    def move(path: str) -> str:
        return after + path[len(before) :] if (path + os.sep).startswith(before + os.sep) else path

    paths = [record.path for record in place_map.records()]
    moved = [move(path) for path in paths if move(path) != path]
    missing = [path for path in moved if not os.path.exists(path)]
    if not moved:
        raise UnknownImage(f"no map image is in {before}; the first is {next(iter(paths), 'missing')}")
    if len(missing) == len(moved):
        raise UnknownImage(f"none of the {len(moved):,} photos is in {after}; the first would be {missing[0]}")
    place_map.storage.relocate(move, as_progress(progress))
    return RelocateResult(moved=len(moved), missing=missing)


# --- lookup ---------------------------------------------------------------------------------------

_LOST_ADVICE = (
    "delete them with tfa remove and tfa refit "
    "(a calibration needs every photo the map was fitted on, including removed ones)"
)


def load_tokens(
    place_map: Map,
    records: Sequence[ImageRecord],
    progress: bool | Progress | None = None,
    otherwise: str = _LOST_ADVICE,
) -> Tokens:
    """Load tokens of map images from the cache, or encode unchanged files again.

    `otherwise` is the advice about missing photos.
    """
    cache, (rows, columns) = place_map.cache or TokenCache(), place_map.state.encoder["grid"]
    digests, paths = [record.digest for record in records], [record.path for record in records]
    fingerprint, missing = _uncached(place_map, cache, digests)
    if missing:
        gone = [paths[i] for i in missing if not Path(paths[i]).is_file()]
        if gone:
            raise BadMap(
                f"{len(gone)} photos are neither in the token cache nor on disk (first: {gone[0]}); "
                f"restore them, or {otherwise}; if they were moved: tfa relocate",
                gone[0],
            )
        again = cache.encode([Path(paths[i]) for i in missing], place_map.encoder, progress=progress)
        for path, digest, i in zip(again.paths, again.digests, missing, strict=True):
            if digest != digests[i]:
                raise BadMap(f"{path} is not the photo the map was built with; restore it, or {otherwise}", path)
    spaces = place_map.state.spaces
    return cache.tokens(fingerprint, digests, paths, (rows, columns), 1 if spaces is None else spaces.depths)


def find_lost_photos(place_map: Map, records: Sequence[ImageRecord]) -> list[str]:
    """Return paths of photos that are not in the token cache, and missing or changed on disk."""
    _, missing = _uncached(place_map, place_map.cache or TokenCache(), [record.digest for record in records])

    def is_there(record: ImageRecord) -> bool:
        path = Path(record.path)
        return path.is_file() and hash_file(path) == record.digest

    return [records[i].path for i in missing if not is_there(records[i])]


def _uncached(place_map: Map, cache: TokenCache, digests: Sequence[str]) -> tuple[str, list[int]]:
    """Return the encoder fingerprint whose tokens are used, and the photos that lack them."""
    fingerprint = place_map.state.encoder["fingerprint"]
    missing = cache.missing(fingerprint, digests)
    if missing:
        # The model in another arithmetic has a different fingerprint; never mix tokens of two.
        fingerprint = place_map.encoder.fingerprint
        missing = cache.missing(fingerprint, digests)
    return fingerprint, missing


def find_image_records(records: Sequence[ImageRecord], photos: Sequence[str | Path | int]) -> list[ImageRecord]:
    """Find the image of each photo by id, path, or unambiguous end of a path. Raises UnknownImage."""
    by_id: dict[int, ImageRecord] = {}
    by_path: dict[str, list[ImageRecord]] = {}
    by_name: dict[str, list[ImageRecord]] = {}  # last part of the path, which every ending shares
    for record in records:
        by_id[record.id] = record
        by_path.setdefault(record.path, []).append(record)
        by_name.setdefault(os.path.basename(record.path), []).append(record)

    def matching(photo: str | Path | int) -> list[ImageRecord]:
        if not isinstance(photo, str | os.PathLike):
            is_id = isinstance(photo, int | np.integer) and not isinstance(photo, bool)
            return [by_id[photo]] if is_id and photo in by_id else []
        whole, ending = str(Path(photo).resolve()), Path(photo).parts
        alike = by_name.get(Path(photo).name, [])
        return by_path.get(whole) or [one for one in alike if Path(one.path).parts[-len(ending) :] == ending]

    return [_only(photo, matching(photo)) for photo in photos]


def _only(photo: str | Path | int, records: Sequence[ImageRecord]) -> ImageRecord:
    if len(records) > 1:
        raise UnknownImage(f"{photo} matches {len(records)} photos of the map; pass its full path or its id")
    if not records:
        raise UnknownImage(f"{photo} is not in the map; list its images with: tfa info MAP --json")
    return records[0]


def drop_repeated_files(paths: Sequence[Path]) -> list[Path]:
    """Drop repeated files, keeping the first name of each."""
    return list({path.resolve(): path for path in reversed(paths)}.values())[::-1]
