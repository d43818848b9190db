"""The token cache: every image is encoded once, whatever its name and however often a run is interrupted.

Tokens are keyed by the encoder's fingerprint and the file's sha256, and stored in shards. Files used longest ago
are deleted when the cache exceeds its limit.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tfa.core.arrays import all_finite
from tfa.core.files import cache_folder, read_tensor_header, tidy, write_tensors
from tfa.core.progress import Progress, Task, as_progress, track_progress
from tfa.core.tokens import Tokens
from tfa.encoders import Encoder
from tfa.errors import BadImage, BadSpec, BadTokens, NoImages, TfaError
from tfa.photos.images import HashedPhoto, as_rgb
from tfa.types import DeletedFiles

# --- cache room -----------------------------------------------------------------------------------

HOUR, DAY = 3_600, 86_400  # seconds
CACHE_LIMIT_VARIABLE = "TFA_CACHE_LIMIT"  # the environment variable
DEFAULT_GIGABYTES = 20.0  # about 50,000 photos of the default encoder


def read_cache_limit() -> int | None:
    """Bytes that the cache may hold: `$TFA_CACHE_LIMIT` gigabytes, or as many as fit (`none`)."""
    given = os.environ.get(CACHE_LIMIT_VARIABLE, "").strip().lower()
    if given == "none":
        return None
    try:
        gigabytes = float(given) if given else DEFAULT_GIGABYTES
    except ValueError:
        gigabytes = math.nan
    if not 0 <= gigabytes < math.inf:
        raise BadSpec(
            f"{CACHE_LIMIT_VARIABLE}={os.environ[CACHE_LIMIT_VARIABLE]!r} is not allowed; give a number of gigabytes, "
            "or none"
        )
    return round(gigabytes * 1e9)


def list_shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def mark_used(files: Iterable[Path]) -> None:
    """Remember that these files were used now."""
    for file in files:
        with contextlib.suppress(OSError):  # a cache that may only be read keeps no times
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
    """Delete files of the folder, and besides, unused for longer; then those used longest ago until `max_bytes` are
    left, but for the last `spared` seconds' own."""
    status = {}
    for file in chain((file for shelf in folder.glob("*") for file in list_shards(shelf)), besides):
        with contextlib.suppress(OSError):  # another process makes room, too
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


# --- token shards ---------------------------------------------------------------------------------

_MAPPED = 4  # shards kept mapped at once: mapped pages count as resident memory


@dataclass(frozen=True)
class Span:
    """A float16 tensor inside a shard."""

    shard: Path
    start: int  # byte
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    patches: Span
    cls: Span | None


class Shelf:
    """The shards of one encoder."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder, self.fingerprint = folder, fingerprint
        self._read: dict[tuple[str, int, int], dict[str, Entry]] = {}  # by name, size and time of the file

    def entries(self) -> dict[str, Entry]:
        """What is on the shelf by image digest. Looks at the folder each time, at each file once."""
        read = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            with contextlib.suppress(FileNotFoundError):  # another process may tidy up
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
        # Named by what it holds, so that a damaged shard is replaced when its images are encoded again.
        name = hashlib.sha256("\n".join(tokens).encode()).hexdigest()[:32]
        path = self.folder / f"{name}.safetensors"
        write_tensors(path, tensors, {**metadata, "fingerprint": self.fingerprint})

    def tidy(self) -> None:
        """Remove what killed processes left half written."""
        tidy(self.folder, ".*.tmp")


def list_digests(folder: Path) -> set[str]:
    """List the digests of all images on a shelf, whatever their encoder."""
    found: set[str] = set()
    for path in folder.glob("*.safetensors"):
        with contextlib.suppress(TfaError, OSError, ValueError, AttributeError):  # a damaged file has none
            tensors, _, _ = read_tensor_header(path)
            found.update(name.removesuffix(".patches") for name in tensors if name.endswith(".patches"))
    return found


def _read_shard(path: Path, fingerprint: str) -> dict[str, Entry]:
    """Entries of a shard; none if it is truncated, of another encoder, or not a shard."""
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
    """Patches `n d` of one image after the other, read from memory-mapped shards when used."""

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
        """`b d_g`, copied; None for an encoder without global tokens."""
        spans = [entry.cls for entry in self._entries if entry.cls is not None]
        if not spans:
            return None
        if len(spans) != len(self._entries):
            raise BadTokens(f"the token cache has global tokens for {len(spans)} of {len(self)} images of one encoder")
        return np.stack([self._view(span) for span in spans])

    def _view(self, span: Span) -> np.ndarray:
        content = self._map(span.shard)[span.start : span.start + 2 * math.prod(span.shape)]
        return content.view(np.float16).reshape(span.shape)


def _map_shard(path: Path) -> np.ndarray:
    try:
        return np.memmap(path, np.uint8, "r")
    except OSError as error:
        raise BadTokens(f"the token cache lost {path} ({error.strerror}); encode the images again", path) from None


# --- token cache ----------------------------------------------------------------------------------

SHARD_IMAGES = 32  # a kill costs at most the encoding of so many images
_DECODERS = 2  # threads; Pillow decodes and resizes without the interpreter's lock

_Encoded = tuple[np.ndarray, np.ndarray | None]  # patches n d, global token d_g
_Refuse = Callable[[str, Path, str], None]  # of a broken image: digest, path, reason
_Picture = Image.Image | BadImage  # a thread hands over its errors; the caller decides


@dataclass(frozen=True)
class EncodedImages:
    """Images with their tokens, in the order given, without those that were skipped."""

    paths: list[Path]
    digests: list[str]
    tokens: Tokens
    skipped: list[tuple[Path, str]]


class TokenCache:
    """Tokens on disk under `folder`, by default in the user's cache folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = cache_folder() / "tokens" if folder is None else Path(folder)
        self._shelves: dict[str, Shelf] = {}

    def missing(self, encoder_fingerprint: str, digests: Sequence[str]) -> list[int]:
        """Positions of the images that are not in the cache."""
        entries = self._shelf(encoder_fingerprint).entries()
        return [index for index, digest in enumerate(digests) if digest not in entries]

    def encoded_before(self) -> set[str]:
        """Digests of all photos that are in the cache, by whatever encoder."""
        return set().union(*(list_digests(shelf) for shelf in self.folder.glob("*")))

    def tokens(
        self,
        encoder_fingerprint: str,
        digests: Sequence[str],
        names: Sequence[str] | None = None,
        grid: tuple[int, int] | None = None,
    ) -> Tokens:
        """Tokens of images that are in the cache; patches stay on disk until they are touched."""
        entries = self._shelf(encoder_fingerprint).entries()
        absent = [index for index, digest in enumerate(digests) if digest not in entries]
        if absent:
            first = digests[absent[0]] if names is None else names[absent[0]]
            raise BadTokens(
                f"{len(absent)} of {len(digests)} images are not in the token cache {self.folder}, "
                f"the first is {first}; encode them again",
                self.folder,
                first,
            )
        mark_used({entries[digest].patches.shard for digest in digests})
        patches = MappedTokens([entries[digest] for digest in digests])
        return Tokens(patches, patches.global_tokens(), names=names, grid=grid)

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
        """Tokens of image files: from the cache where it has them, from `encoder` for the rest.

        `hashed` holds files that were hashed before.

        A broken image raises BadImage, after what was encoded before it is safe in the cache; with `skip_bad`
        it is left out and listed. Memory holds three batches of images and one shard of tokens.
        """
        listener, limit = as_progress(progress), read_cache_limit()
        paths = [Path(path) for path in paths]
        shelf = self._shelf(encoder.fingerprint)
        shelf.tidy()
        bad: dict[str, str] = {}  # reasons by digest, or by path where a file cannot even be read

        def refuse(key: str, path: Path, reason: str) -> None:
            if not skip_bad:
                advice = "fix or remove it, or use --skip-bad (skip_bad=True) to leave such images out"
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
        work: dict[str, HashedPhoto] = {}  # a picture stored twice is encoded once, under its first name
        for digest, path in zip(keys, paths, strict=True):
            if digest not in known and digest not in bad:
                work.setdefault(digest, files[path])
        with listener.task("encoding", len(work), "images") as task:
            _encode(work, encoder, shelf, max(batch_size, 1), refuse, task)
        skipped = [(p, bad[d]) for p, d in zip(paths, keys, strict=True) if d in bad]
        if len(skipped) == len(paths):
            first = f"all {len(paths)} images are broken; the first: {skipped[0][1]}" if skipped else ""
            raise NoImages(first or "no image was given to encode", *(path for path, _ in skipped))
        paths = [path for path, digest in zip(paths, keys, strict=True) if digest not in bad]
        keys = [digest for digest in keys if digest not in bad]
        tokens = self.tokens(encoder.fingerprint, keys, [str(path) for path in paths], encoder.grid)
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
    """Encode the images of `work` and put them on the shelf."""
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
        finally:  # also on Ctrl-C, a broken image, or an encoder that gives up
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
        raise BadTokens(f"{encoder.id} gave patches of shape {patches.shape}, its attributes promise {shape}")
    for index, digest in enumerate(images):
        if not (all_finite(patches[index]) and (cls is None or all_finite(cls[index]))):
            raise BadTokens(
                f"{work[digest].path}: {encoder.id} gives tokens that are not finite in float16; "
                "choose another layer, or check the weights",
                work[digest].path,
            )
    return {digest: (patches[i], None if cls is None else cls[i]) for i, digest in enumerate(images)}


def _decoded(
    work: dict[str, HashedPhoto], encoder: Encoder, batch_size: int
) -> Generator[dict[str, _Picture], None, None]:
    """Batches of pictures in the order given; while the encoder works on one, threads decode the next two."""
    items = iter(work.items())
    with ThreadPoolExecutor(_DECODERS, thread_name_prefix="tfa-decode") as pool:

        def submitted(count: int) -> list[tuple[str, Future[_Picture]]]:
            return [(digest, pool.submit(_open, photo, encoder)) for digest, photo in islice(items, count)]

        ahead = deque(submitted(2 * batch_size))  # two, because one does not last while a shard is synced
        try:
            while ahead:
                batch: dict[str, _Picture] = {}
                for _ in range(min(batch_size, len(ahead))):
                    digest, picture = ahead.popleft()
                    batch[digest] = picture.result()
                    ahead += submitted(1)  # no thread waits for the rest of a batch
                yield batch
                batch.clear()  # the caller is done with it: its pictures need not wait for the next batch
        finally:
            for _, picture in ahead:  # nobody wants them after an error
                picture.cancel()


def _open(photo: HashedPhoto, encoder: Encoder) -> _Picture:
    try:
        image = as_rgb(photo.read_again(), name=str(photo.path))
    except OSError as error:
        return BadImage(f"{photo.path} cannot be read: {error.strerror}")
    except BadImage as error:
        return error
    # At the encoder's size at once, so that a batch of large photos does not fill the memory.
    prepare = getattr(encoder, "prepare", None)
    return image if prepare is None else prepare(image)
