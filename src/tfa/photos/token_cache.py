"""The token cache: every image is encoded once, also if it is renamed or a run is interrupted.

Tokens are keyed by the encoder's fingerprint and the file's sha256, and stored in shards. Least recently used files are
deleted when the cache exceeds its limit.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import shutil
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from tfa.core.arrays import all_finite, start_threads
from tfa.core.files import cache_folder, read_tensor_header, tidy, write_tensors
from tfa.core.progress import Progress, Task, as_progress, track_progress
from tfa.core.tokens import Tokens
from tfa.encoders import Encoder, count_depths
from tfa.encoders.catalogue import use_current_name
from tfa.errors import BadImage, BadSpec, BadTokens, NoImages, TfaError
from tfa.photos.images import HashedPhoto, as_rgb
from tfa.types import CachedResults, CachedTokens, DeletedFiles, UnfinishedBuilds

HOUR, DAY = 3_600, 86_400  # seconds
CACHE_LIMIT_VARIABLE = "TFA_CACHE_LIMIT"  # environment variable
DEFAULT_GIGABYTES = 20.0  # about 50,000 photos with the default encoder


def read_cache_limit() -> int | None:
    """Return the cache limit in bytes from `$TFA_CACHE_LIMIT` (gigabytes); None if unlimited (`none`)."""
    given = os.environ.get(CACHE_LIMIT_VARIABLE, "").strip().lower()
    if given == "none":
        return None
    try:
        gigabytes = float(given) if given else DEFAULT_GIGABYTES
    except ValueError:
        gigabytes = math.nan
    if not 0 <= gigabytes < math.inf:
        raise BadSpec(
            f"{CACHE_LIMIT_VARIABLE}={os.environ[CACHE_LIMIT_VARIABLE]!r} is not allowed; set a number of gigabytes, "
            "or none for no limit"
        )
    return round(gigabytes * 1e9)


def list_shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def mark_used(files: Iterable[Path]) -> None:
    """Set the modification time of files to now, as the time of last use."""
    for file in files:
        with contextlib.suppress(OSError):  # a read-only cache stores no times
            if time.time() - file.stat().st_mtime > HOUR:
                os.utime(file)


def make_room(
    folder: Path,
    *,
    unused_seconds: float | None = None,
    max_bytes: int | None = None,
    spared: float = 0.0,
    besides: Iterable[Path] = (),
) -> DeletedFiles:
    """Delete files in `folder` and `besides` that are unused for `unused_seconds`, then least recently used ones until
    `max_bytes` are left. Files used in the last `spared` seconds stay.
    """
    status = {}
    for file in chain((file for shelf in folder.glob("*") for file in list_shards(shelf)), besides):
        with contextlib.suppress(OSError):  # another process deleted it
            status[file] = file.stat()
    left, now = sum(one.st_size for one in status.values()), time.time()
    files = size = 0
    for file, one in sorted(status.items(), key=lambda item: item[1].st_mtime):
        unused = now - one.st_mtime
        old = unused_seconds is not None and unused > unused_seconds
        if old or (max_bytes is not None and left > max_bytes and unused >= spared):
            file.unlink(missing_ok=True)
            left, size, files = left - one.st_size, size + one.st_size, files + 1
    return DeletedFiles(files, size)


_MAPPED = 4  # maximum number of mapped shards: mapped pages count as resident memory


@dataclass(frozen=True)
class Span:
    """A float16 tensor inside a shard."""

    shard: Path
    start: int  # offset in bytes
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    patches: Span
    cls: Span | None


class Shelf:
    """Shards of one encoder."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder, self.fingerprint = folder, fingerprint
        self._read: dict[tuple[str, int, int], dict[str, Entry]] = {}  # by file name, size and modification time

    def entries(self) -> dict[str, Entry]:
        """Return entries by image digest. Lists the folder on each call, but reads each file once."""
        read = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            with contextlib.suppress(FileNotFoundError):  # another process may delete it
                status = path.stat()
                key = (path.name, status.st_size, status.st_mtime_ns)
                read[key] = self._read[key] if key in self._read else _read_shard(path, self.fingerprint)
        self._read = read
        return {digest: entry for shard in read.values() for digest, entry in shard.items()}

    def write(self, tokens: Mapping[str, tuple[np.ndarray, np.ndarray | None]], metadata: Mapping[str, str]) -> None:
        """Add one shard with patches and global token of each digest."""
        tensors = {}
        for digest, (patches, cls) in tokens.items():
            tensors[f"{digest}.patches"] = patches
            if cls is not None:
                tensors[f"{digest}.cls"] = cls
        # Named by content, so that a damaged shard is replaced when its images are encoded again.
        name = hashlib.sha256("\n".join(tokens).encode()).hexdigest()[:32]
        path = self.folder / f"{name}.safetensors"
        write_tensors(path, tensors, {**metadata, "fingerprint": self.fingerprint})

    def tidy(self) -> None:
        """Remove incomplete files of killed processes."""
        tidy(self.folder, ".*.tmp")


def list_digests(folder: Path) -> set[str]:
    """List the digests of all images on a shelf, for any encoder."""
    found: set[str] = set()
    for path in folder.glob("*.safetensors"):
        with contextlib.suppress(TfaError, OSError, ValueError, AttributeError):  # a damaged file has none
            tensors, _, _ = read_tensor_header(path)
            found.update(name.removesuffix(".patches") for name in tensors if name.endswith(".patches"))
    return found


def _read_shard(path: Path, fingerprint: str) -> dict[str, Entry]:
    """Read the entries of a shard; empty if it is damaged or from another encoder."""
    try:
        tensors, metadata, start = read_tensor_header(path)
        if metadata.get("fingerprint") != fingerprint:
            return {}
        spans = {name: _span(path, start, tensor) for name, tensor in tensors.items()}
    except (TfaError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {
        name.removesuffix(".patches"): Entry(span, spans.get(name.removesuffix(".patches") + ".cls"))
        for name, span in spans.items()
        if name.endswith(".patches") and len(span.shape) == 2
    }


def _span(path: Path, start: int, tensor: dict[str, Any]) -> Span:
    shape, (first, last) = tuple(int(side) for side in tensor["shape"]), tensor["data_offsets"]
    if tensor["dtype"] != "F16" or last - first != 2 * math.prod(shape):
        raise ValueError(f"{path} has a tensor of dtype {tensor['dtype']} and shape {shape}")
    return Span(path, start + first, shape)


class MappedTokens(Sequence):
    """Sequence of patches `(n, d)` per image, read from memory-mapped shards on access."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self.shapes = np.array([entry.patches.shape for entry in entries], dtype=np.int64).reshape(-1, 2)
        self._map = lru_cache(_MAPPED)(_map_shard)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._view(self._entries[index].patches)

    def global_tokens(self) -> np.ndarray | None:
        """Copy the global tokens `(b, d_g)`; None for an encoder without them."""
        spans = [entry.cls for entry in self._entries if entry.cls is not None]
        if not spans:
            return None
        if len(spans) != len(self._entries):
            raise BadTokens(
                f"the token cache has global tokens for only {len(spans)} of {len(self)} images of one encoder; delete "
                "it with: tfa cache --clear"
            )
        return np.stack([self._view(span) for span in spans])

    def _view(self, span: Span) -> np.ndarray:
        content = self._map(span.shard)[span.start : span.start + 2 * math.prod(span.shape)]
        return content.view(np.float16).reshape(span.shape)


def _map_shard(path: Path) -> np.ndarray:
    try:
        return np.memmap(path, np.uint8, "r")
    except OSError as error:
        raise BadTokens(
            f"cannot read {path} in the token cache ({error.strerror}); rerun to encode again", path
        ) from None


SHARD_IMAGES = 32  # images per shard; a killed process loses at most one shard
_DECODERS = 2  # threads; Pillow decodes and resizes without the GIL

_Encoded = tuple[np.ndarray, np.ndarray | None]  # patches (n, d), global token (d_g,)
_Refuse = Callable[[str, Path, str], None]  # called for a broken image with digest, path, reason
_Picture = Image.Image | BadImage  # threads return errors, which the caller handles


@dataclass(frozen=True)
class EncodedImages:
    """Images and tokens in input order, without skipped images."""

    paths: list[Path]
    digests: list[str]
    tokens: Tokens
    skipped: list[tuple[Path, str]]

    def as_photos(self, paths: Sequence[Path]) -> list[Any]:
        """Return the input photos in a form that queries accept."""
        errors, rows = dict(self.skipped), iter(range(len(self.paths)))
        found = [None if path in errors else next(rows) for path in paths]
        return [EncodedPhoto(path, self.tokens, row, errors.get(path)) for path, row in zip(paths, found, strict=True)]


class EncodedPhoto(NamedTuple):
    """A photo and its row in the tokens of several, or the reason why it cannot be read."""

    path: Path
    tokens: Tokens
    row: int | None
    error: str | None


class TokenCache:
    """Tokens on disk in `folder`, by default in the user's cache folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = cache_folder() / "tokens" if folder is None else Path(folder)
        self._shelves: dict[str, Shelf] = {}

    def missing(self, encoder_fingerprint: str, digests: Sequence[str]) -> list[int]:
        """Return the indices of images that are not in the cache."""
        entries = self._shelf(encoder_fingerprint).entries()
        return [index for index, digest in enumerate(digests) if digest not in entries]

    def encoded_before(self) -> set[str]:
        """Return the digests of all cached photos, for any encoder."""
        return set().union(*(list_digests(shelf) for shelf in self.folder.glob("*")))

    def tokens(
        self,
        encoder_fingerprint: str,
        digests: Sequence[str],
        names: Sequence[str] | None = None,
        grid: tuple[int, int] | None = None,
        depths: int = 1,
    ) -> Tokens:
        """Return the tokens of cached images; patches are read from disk on access."""
        entries = self._shelf(encoder_fingerprint).entries()
        absent = [index for index, digest in enumerate(digests) if digest not in entries]
        if absent:
            first = digests[absent[0]] if names is None else names[absent[0]]
            raise BadTokens(
                f"{len(absent)} of {len(digests)} images are not in the token cache {self.folder}, "
                f"the first is {first}; rerun to encode them again",
                self.folder,
                first,
            )
        mark_used({entries[digest].patches.shard for digest in digests})
        patches = MappedTokens([entries[digest] for digest in digests])
        return Tokens(patches, patches.global_tokens(), names=names, grid=grid, depths=depths)

    def encode(
        self,
        paths: Sequence[Path],
        encoder: Encoder,
        *,
        skip_bad: bool = False,
        batch_size: int = 8,
        progress: bool | Progress | None = None,
        hashed: Mapping[Path, HashedPhoto] | None = None,
    ) -> EncodedImages:
        """Return tokens of image files from the cache, encoding those that are missing.

        A broken image raises BadImage after the images before it are cached; with `skip_bad` it is skipped and listed.
        Memory holds three batches of images and one shard of tokens. `hashed` are files hashed earlier.
        """
        listener, limit = as_progress(progress), read_cache_limit()
        paths = [Path(path) for path in paths]
        shelf = self._shelf(encoder.fingerprint)
        shelf.tidy()
        bad: dict[str, str] = {}  # reasons by digest, or by path for unreadable files

        def refuse(key: str, path: Path, reason: str) -> None:
            if not skip_bad:
                advice = "fix or remove it, or skip such images with --skip-bad (skip_bad=True)"
                raise BadImage(f"{reason}; {advice}", path)
            bad[key] = reason

        files = dict(hashed or {})
        for path in track_progress(paths, len(paths), "reading", listener, "images"):
            try:
                if path not in files:
                    files[path], _ = HashedPhoto.read(path)
            except OSError as error:
                refuse(str(path), path, f"{path} cannot be read: {error.strerror}")
        keys = [files[path].digest if path in files else str(path) for path in paths]
        known = shelf.entries()
        work: dict[str, HashedPhoto] = {}  # duplicate files are encoded once, under the first name
        for digest, path in zip(keys, paths, strict=True):
            if digest not in known and digest not in bad:
                work.setdefault(digest, files[path])
        with listener.task("encoding", len(work), "images") as task:
            _encode(work, encoder, shelf, max(batch_size, 1), refuse, task)
        skipped = [(p, bad[d]) for p, d in zip(paths, keys, strict=True) if d in bad]
        if len(skipped) == len(paths):
            first = f"all {len(paths)} images are broken; the first: {skipped[0][1]}" if skipped else ""
            raise NoImages(first or "no images given to encode", *(path for path, _ in skipped))
        paths = [path for path, digest in zip(paths, keys, strict=True) if digest not in bad]
        keys = [digest for digest in keys if digest not in bad]
        names, depths = [str(path) for path in paths], count_depths(encoder)
        tokens = self.tokens(encoder.fingerprint, keys, names, encoder.grid, depths)
        if work and limit is not None:
            make_room(self.folder, max_bytes=limit, spared=HOUR)
        return EncodedImages(paths, keys, tokens, skipped)

    def _shelf(self, fingerprint: str) -> Shelf:
        if fingerprint not in self._shelves:
            self._shelves[fingerprint] = Shelf(self.folder / fingerprint[:32], fingerprint)
        return self._shelves[fingerprint]


def _encode(
    work: dict[str, HashedPhoto], encoder: Encoder, shelf: Shelf, batch_size: int, refuse: _Refuse, task: Task
) -> None:
    """Encode the images of `work` and write them to the shelf."""
    metadata = {"encoder": encoder.id, "grid": "x".join(map(str, encoder.grid))}
    ready: dict[str, _Encoded] = {}
    with closing(_decoded(work, encoder, batch_size)) as batches:
        try:
            for batch in batches:
                for digest, image in batch.items():
                    if isinstance(image, BadImage):
                        refuse(digest, work[digest].path, str(image))
                images = {digest: image for digest, image in batch.items() if isinstance(image, Image.Image)}
                ready |= _encode_batch(images, encoder, work)
                if len(ready) >= SHARD_IMAGES:
                    shelf.write(ready, metadata)
                    ready = {}
                task.advance(len(batch))
        finally:  # also on Ctrl-C, a broken image or an encoder error
            if ready:
                shelf.write(ready, metadata)


def _encode_batch(
    images: dict[str, Image.Image], encoder: Encoder, work: dict[str, HashedPhoto]
) -> dict[str, _Encoded]:
    if not images:
        return {}
    patches, cls = encoder.encode(list(images.values()))
    patches = np.asarray(patches, np.float16)
    cls = None if cls is None else np.asarray(cls, np.float16)
    shape = (len(images), encoder.grid[0] * encoder.grid[1], encoder.channels)
    if patches.shape != shape:
        raise BadTokens(f"{encoder.id} returned patches of shape {patches.shape}, expected {shape} from its attributes")
    for index, digest in enumerate(images):
        if not (all_finite(patches[index]) and (cls is None or all_finite(cls[index]))):
            raise BadTokens(
                f"{work[digest].path}: {encoder.id} returned tokens that are not finite in float16; "
                "choose another layer, or check the weights",
                work[digest].path,
            )
    return {digest: (patches[i], None if cls is None else cls[i]) for i, digest in enumerate(images)}


def _decoded(
    work: dict[str, HashedPhoto], encoder: Encoder, batch_size: int
) -> Generator[dict[str, _Picture], None, None]:
    """Yield batches of images in input order; threads decode the next two while the encoder works."""
    items = iter(work.items())
    with start_threads(_DECODERS, "tfa-decode") as pool:

        def submitted(count: int) -> list[tuple[str, Future[_Picture]]]:
            return [(digest, pool.submit(_open, photo, encoder)) for digest, photo in islice(items, count)]

        ahead = deque(submitted(2 * batch_size))  # one batch would run out while a shard is synced
        try:
            while ahead:
                batch: dict[str, _Picture] = {}
                for _ in range(min(batch_size, len(ahead))):
                    digest, picture = ahead.popleft()
                    batch[digest] = picture.result()
                    ahead += submitted(1)  # no thread waits for the rest of a batch
                yield batch
                batch.clear()  # frees the images before the next batch
        finally:
            for _, picture in ahead:  # unused after an error
                picture.cancel()


def _open(photo: HashedPhoto, encoder: Encoder) -> _Picture:
    try:
        image = as_rgb(photo.read_again(), name=str(photo.path))
    except OSError as error:
        return BadImage(f"{photo.path} cannot be read: {error.strerror}")
    except BadImage as error:
        return error
    # Resize immediately, so that a batch of large photos does not fill the memory.
    prepare = getattr(encoder, "prepare", None)
    return image if prepare is None else prepare(image)


# The benchmark caches SAM masks, results of learned matchers and synthetic vectors. Sharded builds keep finished shards
# until the map is published. Only files with names of these kinds are counted and deleted, since the user may store
# other files in the folder.
# Kind → folder and file name pattern.
_BENCHMARK = {
    "masks": ("masks", re.compile(r"[0-9a-f]{32}/[0-9a-f]{64}\.safetensors")),
    "matches": ("matches", re.compile(r"[^/]+/[0-9a-f]{64}\.json")),
    "vectors": ("bench-scale", re.compile(r"places-\d+-\d+\.f32")),
}
_BUILD = re.compile(r"[0-9a-f]{32}")  # folder of a build, in builds/


def measure_benchmark() -> list[CachedResults]:
    """Measure the benchmark files in the user's cache, by kind; kinds without files are left out."""
    sizes = {kind: _sizes(_files(*where)) for kind, where in _BENCHMARK.items()}
    return [CachedResults(kind, len(found), sum(found)) for kind, found in sizes.items() if found]


def measure_unfinished_builds() -> UnfinishedBuilds:
    """Measure the unfinished builds in the user's cache."""
    builds = _builds()
    sizes = [size for build in builds for size in _sizes(_inside(build))]
    return UnfinishedBuilds(len(builds), len(sizes), sum(sizes))


def _builds() -> list[Path]:
    found = (cache_folder() / "builds").glob("*")
    return sorted(folder for folder in found if _BUILD.fullmatch(folder.name) and folder.is_dir())


def _inside(build: Path) -> list[Path]:
    return [file for file in build.rglob("*") if file.is_file()]


def _remove_builds(unused_seconds: float = 0.0) -> DeletedFiles:
    """Remove builds without a file written in the last `unused_seconds`; whole folders, as parts are useless."""
    files = size = 0
    for build in _builds():
        inside = _inside(build)
        with contextlib.suppress(OSError):  # it was just published
            if all(time.time() - file.stat().st_mtime >= unused_seconds for file in inside):
                sizes = _sizes(inside)
                shutil.rmtree(build, ignore_errors=True)
                files, size = files + len(sizes), size + sum(sizes)
    return DeletedFiles(files, size)


def _files(folder: str, names: re.Pattern[str]) -> list[Path]:
    below = cache_folder() / folder
    found = (file for pattern in ("*", "*/*") for file in below.glob(pattern))
    return sorted(file for file in found if names.fullmatch(file.relative_to(below).as_posix()))


def _sizes(files: Iterable[Path]) -> list[int]:
    sizes = []
    for file in files:
        with contextlib.suppress(OSError):  # another process deleted it
            sizes.append(file.stat().st_size)
    return sizes


def _list_benchmark_files() -> list[Path]:
    return [file for where in _BENCHMARK.values() for file in _files(*where)]


def list_shelves(cache: TokenCache | None = None) -> list[CachedTokens]:
    """Measure the cached tokens of each encoder, largest first."""
    folder = (cache or TokenCache()).folder
    found = [_facts(shelf) for shelf in sorted(folder.glob("*")) if shelf.is_dir()] if folder.is_dir() else []
    return sorted((facts for facts in found if facts.files), key=lambda facts: -facts.bytes)


def _facts(shelf: Path) -> CachedTokens:
    encoder, images, sizes = "unknown", 0, []
    for file in list_shards(shelf):
        sizes.append(file.stat().st_size)
        with contextlib.suppress(TfaError, OSError, ValueError, AttributeError):  # a damaged file has only a size
            tensors, metadata, _ = read_tensor_header(file)
            made = {"id": metadata.get("encoder", encoder), "fingerprint": metadata.get("fingerprint")}
            encoder = use_current_name(made)["id"]
            images += sum(name.endswith(".patches") for name in tensors)
    return CachedTokens(encoder, shelf.name, len(sizes), images, sum(sizes))


def prune_cache(older_than: float | None = None, max_bytes: int | None = None) -> DeletedFiles:
    """Delete entries unused for `older_than` days, then least recently used ones until `max_bytes` are left.

    Entries are tokens, benchmark files and unfinished builds of the user's cache. They are recomputed when needed.
    """
    if (older_than is None and max_bytes is None) or min(older_than or 0, max_bytes or 0) < 0:
        raise BadSpec(f"older_than={older_than}, max_bytes={max_bytes}: set at least one of them to 0 or more")
    seconds = None if older_than is None else older_than * DAY
    builds = DeletedFiles(0, 0) if seconds is None else _remove_builds(seconds)
    besides = _list_benchmark_files()
    made = make_room(TokenCache().folder, unused_seconds=seconds, max_bytes=max_bytes, besides=besides)
    return DeletedFiles(made.files + builds.files, made.bytes + builds.bytes)


def clear_cache() -> DeletedFiles:
    """Delete all tokens, benchmark files and unfinished builds of the user's cache."""
    folder = TokenCache().folder
    found = [DeletedFiles(facts.files, facts.bytes) for facts in list_shelves()]
    found += [make_room(folder / "no tokens", max_bytes=0, besides=_list_benchmark_files()), _remove_builds()]
    shutil.rmtree(folder, ignore_errors=True)
    return DeletedFiles(sum(one.files for one in found), sum(one.bytes for one in found))
