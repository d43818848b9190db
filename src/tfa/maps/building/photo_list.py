"""List the photos of a build in a fixed order, from folders, manifests and buckets.

s3:// is read by Arrow's file system (extra `bucket`), other buckets by the package that fsspec names. Credentials and
endpoint come from each worker's environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL).

A manifest is a CSV or Parquet list of photos with the columns uri, and optionally lat and lon (or x and y) and session.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from tfa.core.files import hash_json, read_text
from tfa.errors import BadImage, BadManifest, BadPositions, MissingExtra, NoImages
from tfa.photos.find_positions import PositionsLike, PositionSources, as_sources, find_positions
from tfa.photos.images import find_images, image_extensions, split_nameable
from tfa.photos.positions import match_positions, to_degrees
from tfa.types import Position

_MARKS = ("ETag", "etag", "md5", "crc32c", "LastModified", "mtime", "created")


def _is_remote(uri: str) -> bool:
    return "://" in uri


def _list_bucket(url: str) -> Iterator[tuple[str, str]]:
    """Yield URL and stamp of every photo below `url`, sorted by URL, without hidden names."""
    system, root = _system(url)
    try:
        system.ls(root)  # `find` returns nothing for a folder that cannot be listed
        found = system.find(root, detail=True)
    except Exception as error:  # each kind of bucket raises different errors
        raise NoImages(f"cannot list {url}: {_say(error)}; check the address and the credentials") from None
    names = [name for name in sorted(found) if _is_photo(name.removeprefix(root))]
    if not names:
        raise NoImages(f"no images found in {url} (searched for .jpg, .png, .webp and other Pillow formats)")
    for name in names:
        facts = found[name]
        mark = next((str(facts[key]) for key in _MARKS if facts.get(key)), "")
        yield system.unstrip_protocol(name), f"{facts.get('size')}-{mark}"


def copy_photo(uri: str, target: Path) -> None:
    """Copy a remote photo to a local file."""
    system, name = _system(uri)
    try:
        system.get_file(name, str(target))
    except FileNotFoundError:
        raise BadImage(f"{uri} does not exist", uri) from None
    except Exception as error:
        if isinstance(error, OSError) and error.filename == str(target):
            raise  # a local error, such as a full disk
        raise BadImage(f"{uri} cannot be read: {_say(error)}", uri) from None


def _is_photo(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix.lower() in image_extensions() and not any(part.startswith(".") for part in path.parts)


def _system(url: str) -> tuple[Any, str]:
    scheme = url.partition("://")[0]
    try:
        if scheme == "s3":
            name = url.partition("://")[2]  # not parsed: object names may contain %, ? and #
            return _s3(name.partition("/")[0]), name.rstrip("/")
        from fsspec.core import url_to_fs

        return url_to_fs(url)
    except ImportError as error:
        raise MissingExtra(
            f"reading {scheme}:// needs a package that is not installed ({error}); for s3:// install it with: "
            "pip install 'tfa-vpr[bucket]'"
        ) from None
    except ValueError as error:
        raise NoImages(f"{url} is not a photo address: {error}; use a folder, a manifest or s3://BUCKET/…") from None


@lru_cache(maxsize=8)
def _s3(bucket: str) -> Any:
    """Return a client per bucket, which detects the region."""
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import FileSystem

    return ArrowFSWrapper(FileSystem.from_uri(f"s3://{bucket}")[0])


def _say(error: Exception) -> str:
    return str(error) or type(error).__name__


_COLUMNS = ("uri", "lat", "lon", "x", "y", "session")
_HEADER = "uri, and optionally lat,lon or x,y, and session"
_MOST_BYTES = 4_000_000_000
_ROWS_AT_ONCE = 65_536


def _read_manifest(path: Path) -> Iterator[tuple[str, ListedPhoto]]:
    """Yield photos with their row for messages. A relative uri is relative to the manifest."""
    rows = _parquet_rows(path) if path.suffix.lower() == ".parquet" else _csv_rows(path)
    seen: dict[str, str] = {}
    for where, cells in rows:
        try:
            photo = _read_row(cells, path.absolute().parent)
        except BadPositions as error:
            raise BadManifest(f"{where}: {error}; correct it, or leave both cells empty", path) from None
        except ValueError as error:
            raise BadManifest(f"{where}: {error}", path) from None
        if photo.uri in seen:
            raise BadManifest(f"{where}: {photo.uri} is already listed in {seen[photo.uri]}; keep one of them", path)
        seen[photo.uri] = where.removeprefix(f"{path}, ")
        yield where, photo
    if not seen:
        raise BadManifest(f"{path} lists no photo; write one row per photo, with the columns {_HEADER}", path)


def _read_row(cells: Mapping[str, Any], folder: Path) -> ListedPhoto:
    uri = str(cells.get("uri") or "").strip()
    if not uri:
        raise ValueError("the uri is empty; write the path or the URL of a photo")
    if "\0" in uri:
        raise ValueError(f"the uri {uri[:80]!r} has a null character; remove it")
    given = {name: cells[name] for name in _COLUMNS[1:5] if not _blank(cells.get(name))}
    position = None if not given else Position(**{name: _number(name, value) for name, value in given.items()})
    session = None if _blank(cells.get("session")) else str(cells["session"]).strip()
    return ListedPhoto(uri if _is_remote(uri) else str(folder / uri), position, session)


def _blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip()) or value != value  # NaN


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise BadPositions(f"{name} is {str(value)[:80]!r}, must be a number")
    return number


def _check_columns(names: list[str], where: str, path: Path) -> None:
    if "uri" not in names:
        shown = ",".join(names)[:200]
        raise BadManifest(f"{where}: the columns are {shown or 'nothing'!r}, must be {_HEADER}", path)
    for one, other in (("lat", "lon"), ("lon", "lat"), ("x", "y"), ("y", "x")):
        if one in names and other not in names:
            raise BadManifest(f"{where}: column {one} is present without {other}; add both, or neither", path)


def _csv_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        reader = csv.reader(io.StringIO(read_text(path, _MOST_BYTES), newline=""), skipinitialspace=True)
        names: list[str] | None = None
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if not any(cell.strip() for cell in row):
                continue
            if names is None:
                names = [cell.strip().lower() for cell in row]
                _check_columns(names, where, path)
            elif len(row) > len(names):
                raise BadManifest(
                    f"{where}: {len(row)} cells, the header has {len(names)}; quote cells that contain a comma", path
                )
            else:
                yield where, dict(zip(names, row, strict=False))
    except csv.Error as error:
        raise BadManifest(f"{path}, line {reader.line_num}: {error}; save it as CSV in UTF-8", path) from None
    except OSError as error:
        raise BadManifest(f"cannot read the manifest {path}: {error.strerror or error}", path) from None
    except ValueError as error:
        raise BadManifest(f"cannot read the manifest {path}: {error}; save it as CSV in UTF-8", path) from None


def _parquet_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise MissingExtra(
            f"reading {path} needs pyarrow; install it with: pip install 'tfa-vpr[parquet]', or use a CSV file"
        ) from None
    try:
        with ParquetFile(path) as file:
            names = [name.lower() for name in file.schema_arrow.names]
            _check_columns(names, str(path), path)
            wanted = [name for name in file.schema_arrow.names if name.lower() in _COLUMNS]
            number = 0
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=wanted):
                for cells in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", {name.lower(): value for name, value in cells.items()}
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadManifest(f"cannot read the manifest {path}: {error}; write it as Parquet again", path) from None


SHARD_SIZE = 1000  # photos per shard
SkippedPhotos = list[tuple[str, str]]  # skipped photos with reasons


@dataclass(frozen=True)
class ListedPhoto:
    """A photo that is not opened yet."""

    uri: str  # absolute path, or URL
    position: Position | None = None  # position from a list; None reads the photo's metadata
    session: str | None = None
    stamp: str = ""  # changes with the content: size and time, or the bucket's checksum

    @property
    def remote(self) -> bool:
        return _is_remote(self.uri)


@dataclass(frozen=True)
class Shard:
    """Photos that one worker computes at a time."""

    number: int
    photos: tuple[ListedPhoto, ...]
    sample: tuple[int, ...] = ()  # indices of photos in the sample that the map is fitted on

    def __len__(self) -> int:
        return len(self.photos)


@dataclass(frozen=True)
class PhotoList:
    """All photos of a build."""

    photos: tuple[ListedPhoto, ...]
    skipped: tuple[tuple[str, str], ...] = ()  # photos that cannot be listed, with reasons
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.photos)

    @property
    def digest(self) -> str:
        """Digest of photos, stamps, sessions and positions."""
        place = lambda one: None if one.position is None else one.position.to_dict()  # noqa: E731
        return hash_json([[one.uri, one.stamp, one.session, place(one)] for one in self.photos])

    def shards(self, size: int = SHARD_SIZE, sample: Sequence[int] = ()) -> list[Shard]:
        """Split the list into shards of `size` photos; `sample` holds ascending indices into the list."""
        wanted = [tuple[int, ...]()] * -(-len(self) // size)
        for index in sample:
            wanted[index // size] += (int(index) % size,)
        return [Shard(n, self.photos[n * size : (n + 1) * size], chosen) for n, chosen in enumerate(wanted)]


def list_photos(source: Any, *, positions: PositionsLike = None, skip_bad: bool = False) -> PhotoList:
    """List photos in a fixed order."""
    sources = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    if not sources:
        raise NoImages("no photos: pass folders, a manifest (.csv or .parquet) or a bucket (s3://…)")
    photos: list[ListedPhoto] = []
    skipped: list[tuple[str, str]] = []
    for one in sources:
        for photo, missing in _list(one):
            if missing is None:
                photos.append(photo)
            elif skip_bad:
                skipped.append((photo.uri, missing))
            else:
                raise BadImage(f"{missing}; fix or remove it, or skip it with --skip-bad (skip_bad=True)")
    once = list({photo.uri: photo for photo in photos}.values())
    notes = [f"photos listed twice, used once: {len(photos) - len(once)}"] if len(once) < len(photos) else []
    local = [Path(photo.uri) for photo in once if not photo.remote]
    _, unnamed = split_nameable(local, skip_bad=skip_bad) if local else ([], [])
    refused = {str(path) for path, _ in unnamed}
    photos = [photo for photo in once if photo.uri not in refused]
    skipped += [(str(path), reason) for path, reason in unnamed]
    if positions is not None:
        photos, more = _place(photos, sources, as_sources(positions))
        notes += more
    return PhotoList(tuple(photos), tuple(skipped), tuple(notes))


def _list(source: Any) -> Iterator[tuple[ListedPhoto, str | None]]:
    """Yield the photos of one source, each with an error or None."""
    path = Path(str(source))
    if isinstance(source, str) and _is_remote(source):
        for uri, stamp in _list_bucket(source):
            yield ListedPhoto(uri, stamp=stamp), None
    elif path.suffix.lower() in (".csv", ".parquet") and path.is_file():
        for where, photo in _read_manifest(path):
            found = "" if photo.remote else _stamp(photo.uri)
            missing = f"{where}: {photo.uri} does not exist" if found is None else None
            yield replace(photo, stamp=found or ""), missing
    else:
        for path in find_images(source):
            uri = str(path.absolute())
            yield ListedPhoto(uri, stamp=_stamp(uri) or ""), None


def _stamp(path: str) -> str | None:
    """Return size and time of a file; None if it does not exist."""
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return f"{facts.st_size}-{facts.st_mtime_ns}"


def _place(
    photos: Sequence[ListedPhoto], sources: Sequence[Any], positions: PositionSources
) -> tuple[list[ListedPhoto], list[str]]:
    """Set positions: a CSV file before the manifest, then a track or UTM zone.

    Without a track or zone, workers read the metadata of photos when they encode them.
    """
    folder = Path(sources[0]) if len(sources) == 1 and not _is_remote(str(sources[0])) else None
    root = folder.absolute() if folder is not None and folder.is_dir() else None
    paths = [Path(photo.uri) for photo in photos]
    listed, notes = ({}, []) if positions.csv is None else match_positions(paths, root, Path(positions.csv))
    places = [listed.get(index, photo.position) for index, photo in enumerate(photos)]
    if positions.gpx is not None or positions.utm is not None:
        remote = next((photo.uri for photo in photos if photo.remote), None)
        if remote is not None:
            raise BadPositions(
                f"--gpx and --utm need local photos, but {remote} is remote; list lat and lon in a manifest"
            )
        found, notes = find_positions(paths, root, positions)
        manifest = to_degrees(places, positions.utm) if positions.utm is not None else places
        places = [one if place is None else place for place, one in zip(manifest, found, strict=True)]
    return [replace(photo, position=place) for photo, place in zip(photos, places, strict=True)], notes
