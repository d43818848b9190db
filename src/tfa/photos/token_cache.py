"""The token cache: an image is encoded once, whatever it is called and however often a run is killed.

The key of its tokens: the encoder's fingerprint (identity, preprocessing, weights) and the file's sha256.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from tfa.base.files import cache_folder, hash_file
from tfa.base.half import all_finite
from tfa.base.progress import Progress, Task, as_progress, track_progress
from tfa.base.tokens import Tokens
from tfa.encoders.protocol import Encoder
from tfa.errors import BadImage, BadTokens, NoImages
from tfa.photos.cache_room import HOUR, make_room, mark_used, read_cache_limit
from tfa.photos.images import as_rgb
from tfa.photos.token_shards import MappedTokens, Shelf, list_digests

SHARD_IMAGES = 32  # a kill costs at most the encoding of so many images
_DECODERS = 2  # threads; Pillow decodes and resizes without the interpreter's lock

_Encoded = tuple[np.ndarray, np.ndarray | None]  # patches n d, global token d_g
_Refuse = Callable[[str, Path, str], str]  # of a broken image: digest, path, reason
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
    ) -> EncodedImages:
        """Tokens of image files: from the cache where it has them, from `encoder` for the rest.

        A broken image raises BadImage, after what was encoded before it is safe in the cache; with `skip_bad`
        it is left out and listed. Memory holds three batches of images and one shard of tokens.
        """
        listener, limit = as_progress(progress), read_cache_limit()
        paths = [Path(path) for path in paths]
        shelf = self._shelf(encoder.fingerprint)
        shelf.tidy()
        bad: dict[str, str] = {}  # reasons by digest, or by path where a file cannot even be read

        def refuse(key: str, path: Path, reason: str) -> str:
            if not skip_bad:
                advice = "fix or remove it, or use --skip-bad (skip_bad=True) to leave such images out"
                raise BadImage(f"{reason}; {advice}", path)
            bad[key] = reason
            return key

        def digest_of(path: Path) -> str:
            try:
                return hash_file(path)
            except OSError as error:
                return refuse(str(path), path, f"{path} cannot be read: {error.strerror}")

        digests = [digest_of(path) for path in track_progress(paths, len(paths), "reading", listener, "images")]
        known = shelf.entries()
        work: dict[str, Path] = {}  # a picture stored twice is encoded once, under its first name
        for digest, path in zip(digests, paths, strict=True):
            if digest not in known and digest not in bad:
                work.setdefault(digest, path)
        with listener.task("encoding", len(work), "images") as task:
            _encode(work, encoder, shelf, max(batch_size, 1), refuse, task)
        skipped = [(p, bad[d]) for p, d in zip(paths, digests, strict=True) if d in bad]
        if len(skipped) == len(paths):
            first = f"all {len(paths)} images are broken; the first: {skipped[0][1]}" if skipped else ""
            raise NoImages(first or "no image was given to encode", *(path for path, _ in skipped))
        paths = [path for path, digest in zip(paths, digests, strict=True) if digest not in bad]
        digests = [digest for digest in digests if digest not in bad]
        tokens = self.tokens(encoder.fingerprint, digests, [str(path) for path in paths], encoder.grid)
        if work and limit is not None:
            make_room(self.folder, max_bytes=limit, spared=HOUR)
        return EncodedImages(paths, digests, tokens, skipped)

    def _shelf(self, fingerprint: str) -> Shelf:
        if fingerprint not in self._shelves:
            self._shelves[fingerprint] = Shelf(self.folder / fingerprint[:32], fingerprint)
        return self._shelves[fingerprint]


def _encode(
    work: dict[str, Path], encoder: Encoder, shelf: Shelf, batch_size: int, refuse: _Refuse, task: Task
) -> None:
    """Encode the images of `work` and put them on the shelf."""
    metadata = {"encoder": encoder.id, "grid": "x".join(map(str, encoder.grid))}
    ready: dict[str, _Encoded] = {}
    with closing(_decoded(work, encoder, batch_size)) as batches:
        try:
            for batch in batches:
                for digest, image in batch.items():
                    if isinstance(image, BadImage):
                        refuse(digest, work[digest], str(image))
                images = {digest: image for digest, image in batch.items() if isinstance(image, Image.Image)}
                ready |= _encode_batch(images, encoder, work)
                if len(ready) >= SHARD_IMAGES:
                    shelf.write(ready, metadata)
                    ready = {}
                task.advance(len(batch))
        finally:  # also on Ctrl-C, a broken image, or an encoder that gives up
            if ready:
                shelf.write(ready, metadata)


def _encode_batch(images: dict[str, Image.Image], encoder: Encoder, paths: dict[str, Path]) -> dict[str, _Encoded]:
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
                f"{paths[digest]}: {encoder.id} gives tokens that are not finite in float16; "
                "choose another layer, or check the weights",
                paths[digest],
            )
    return {digest: (patches[i], None if cls is None else cls[i]) for i, digest in enumerate(images)}


def _decoded(work: dict[str, Path], encoder: Encoder, batch_size: int) -> Generator[dict[str, _Picture], None, None]:
    """Batches of pictures in the order given; while the encoder works on one, threads decode the next two."""
    items = iter(work.items())
    with ThreadPoolExecutor(_DECODERS, thread_name_prefix="tfa-decode") as pool:

        def submitted(count: int) -> list[tuple[str, Future[_Picture]]]:
            return [(digest, pool.submit(_open, digest, path, encoder)) for digest, path in islice(items, count)]

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


def _open(digest: str, path: Path, encoder: Encoder) -> _Picture:
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            return BadImage(f"{path} changed while it was being read")
        image = as_rgb(content, name=str(path))
    except OSError as error:
        return BadImage(f"{path} cannot be read: {error.strerror}")
    except BadImage as error:
        return error
    # At the encoder's size at once, so that a batch of large photos does not fill the memory.
    prepare = getattr(encoder, "prepare", None)
    return image if prepare is None else prepare(image)
