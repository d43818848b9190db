"""Which photos a map is built of, in a fixed order: of folders, of a manifest, or of a bucket."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfa.base.files import hash_json
from tfa.errors import BadImage, NoImages
from tfa.maps.sharded.manifest import is_manifest, read_manifest
from tfa.maps.sharded.remote import is_remote, list_bucket
from tfa.photos.images import find_images, split_nameable
from tfa.photos.positions import Position, match_positions

SHARD_SIZE = 1000  # photos


@dataclass(frozen=True)
class ListedPhoto:
    """A photo that was not opened yet."""

    uri: str  # an absolute path, or a URL
    position: Position | None = None  # where the list says; None: whatever the photo itself says
    session: str | None = None
    stamp: str = ""  # changes with the content: size and time, or a bucket's own mark

    @property
    def remote(self) -> bool:
        return is_remote(self.uri)


@dataclass(frozen=True)
class Shard:
    """Photos that one worker takes at a time."""

    number: int
    photos: tuple[ListedPhoto, ...]
    sample: tuple[int, ...] = ()  # which of them are in the sample that the map is fitted on

    def __len__(self) -> int:
        return len(self.photos)


@dataclass(frozen=True)
class PhotoList:
    """All photos of a build."""

    photos: tuple[ListedPhoto, ...]
    skipped: tuple[tuple[str, str], ...] = ()  # what cannot even be listed, and why
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.photos)

    @property
    def digest(self) -> str:
        """Another one if a photo, its position or its content is."""
        place = lambda one: None if one.position is None else one.position.to_dict()  # noqa: E731
        return hash_json([[one.uri, one.stamp, one.session, place(one)] for one in self.photos])

    def shards(self, size: int = SHARD_SIZE, sample: Sequence[int] = ()) -> list[Shard]:
        """Runs of `size` photos; `sample` are indices into the list, ascending."""
        wanted = [tuple[int, ...]()] * -(-len(self) // size)
        for index in sample:
            wanted[index // size] += (int(index) % size,)
        return [Shard(n, self.photos[n * size : (n + 1) * size], chosen) for n, chosen in enumerate(wanted)]


def list_photos(source: Any, *, positions: str | Path | None = None, skip_bad: bool = False) -> PhotoList:
    """The photos of a folder, a manifest (.csv, .parquet), a bucket (s3://…), or of several of them.

    Folders give them in the order of `find_images`, manifests in that of their rows. `positions` is a CSV as
    `tfa build --positions` takes it.
    """
    sources = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    if not sources:
        raise NoImages("no photos were given; give folders, a manifest (.csv or .parquet) or a bucket (s3://…)")
    photos: list[ListedPhoto] = []
    skipped: list[tuple[str, str]] = []
    for one in sources:
        for photo, missing in _listed(one):
            if missing is None:
                photos.append(photo)
            elif skip_bad:
                skipped.append((photo.uri, missing))
            else:
                raise BadImage(f"{missing}; fix or remove it, or use --skip-bad (skip_bad=True) to leave it out")
    once = list({photo.uri: photo for photo in photos}.values())
    notes = [f"listed twice and taken once: {len(photos) - len(once)} photos"] if len(once) < len(photos) else []
    photos = once
    local = [index for index, photo in enumerate(photos) if not photo.remote]
    _, unnamed = split_nameable([Path(photos[index].uri) for index in local], skip_bad=skip_bad) if local else ([], [])
    refused = {str(path) for path, _ in unnamed}
    photos = [photo for photo in photos if photo.uri not in refused]
    skipped += [(str(path), reason) for path, reason in unnamed]
    if positions is not None:
        photos, more = _placed(photos, sources, Path(positions))
        notes += more
    return PhotoList(tuple(photos), tuple(skipped), tuple(notes))


def _listed(source: Any) -> Iterator[tuple[ListedPhoto, str | None]]:
    """Photos of one source, each with why it cannot be taken."""
    if isinstance(source, str) and is_remote(source):
        for uri, stamp in list_bucket(source):
            yield ListedPhoto(uri, stamp=stamp), None
    elif is_manifest(source):
        for where, row in read_manifest(Path(source)):
            found = "" if is_remote(row.uri) else _stamp(row.uri)
            missing = f"{where}: there is no photo {row.uri}" if found is None else None
            yield ListedPhoto(row.uri, row.position, row.session, found or ""), missing
    else:
        for path in find_images(source):
            uri = str(path.absolute())
            yield ListedPhoto(uri, stamp=_stamp(uri) or ""), None


def _stamp(path: str) -> str | None:
    """Size and time of a file; None if there is none."""
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return f"{facts.st_size}-{facts.st_mtime_ns}"


def _placed(photos: Sequence[ListedPhoto], sources: Sequence[Any], csv: Path) -> tuple[list[ListedPhoto], list[str]]:
    """Photos with the positions of a CSV file, which come before those of a manifest."""
    folder = Path(sources[0]) if len(sources) == 1 and not is_remote(str(sources[0])) else None
    root = folder.absolute() if folder is not None and folder.is_dir() else None
    found, notes = match_positions([Path(photo.uri) for photo in photos], root, csv)
    return [
        ListedPhoto(photo.uri, found.get(index, photo.position), photo.session, photo.stamp)
        for index, photo in enumerate(photos)
    ], notes
