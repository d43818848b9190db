"""Photos → tokens at a worker, which loads the encoder once in its life."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tfa.base.config import EncoderOptions
from tfa.base.tokens import Tokens
from tfa.encoders import Encoder, load_encoder
from tfa.errors import BadImage, NoImages
from tfa.maps.sharded.photo_list import ListedPhoto
from tfa.maps.sharded.remote import copy_photo
from tfa.photos.find_positions import read_photo_position
from tfa.photos.token_cache import TokenCache

Skipped = list[tuple[str, str]]


@dataclass(frozen=True)
class Encoding:
    """How workers encode. `encoder` is a name, or a function that workers can import and that gives one."""

    encoder: str | Callable[[], Encoder]
    options: EncoderOptions
    cache: Path | None = None  # of tokens; None keeps them for the time of a shard only

    def load(self) -> Encoder:
        """The encoder, loaded once in each process."""
        return _loaded(self.encoder, self.options)


@lru_cache(maxsize=2)
def _loaded(encoder: str | Callable[[], Encoder], options: EncoderOptions) -> Encoder:
    if not isinstance(encoder, str):
        return encoder()
    return load_encoder(
        encoder, weights=options.weights, device=options.device, threads=options.threads, fast=options.fast
    )


@dataclass(frozen=True)
class EncodedPhotos:
    """Photos of a shard with their tokens; `places` are their numbers among those that were given."""

    places: list[int]
    payload: list[dict[str, Any]]  # path, digest, session, position, fitted
    tokens: Tokens | None  # None if there is no photo
    skipped: Skipped


@contextlib.contextmanager
def encoded(photos: Sequence[ListedPhoto], encoding: Encoding) -> Iterator[EncodedPhotos]:
    """Tokens of photos while the block runs; they may lie in a temporary folder."""
    with contextlib.ExitStack() as stack:
        skipped: Skipped = []
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tfa-shard-")))
        paths = _local(photos, folder, encoding.options.skip_bad, skipped)
        cache = TokenCache(encoding.cache or folder / "tokens")
        yield _encoded(photos, paths, cache, encoding, skipped)


def _local(photos: Sequence[ListedPhoto], folder: Path, skip_bad: bool, skipped: Skipped) -> dict[Path, int]:
    """Files of this machine, with the number of the photo of each."""
    paths: dict[Path, int] = {}
    for number, photo in enumerate(photos):
        path = Path(photo.uri)
        if photo.remote:
            path = folder / f"{number}{os.path.splitext(photo.uri)[1]}"
            try:
                copy_photo(photo.uri, path)
            except BadImage as error:
                if not skip_bad:
                    raise BadImage(f"{error}; fix it, or use --skip-bad (skip_bad=True)", photo.uri) from None
                skipped.append((photo.uri, str(error)))
                continue
        paths[path] = number
    return paths


def _encoded(
    photos: Sequence[ListedPhoto], paths: dict[Path, int], cache: TokenCache, encoding: Encoding, skipped: Skipped
) -> EncodedPhotos:
    options = encoding.options
    named = lambda text, path: text.replace(str(path), photos[paths[path]].uri)  # noqa: E731
    try:
        found = cache.encode(list(paths), encoding.load(), skip_bad=options.skip_bad, batch_size=options.batch_size)
    except NoImages as error:  # not one of them can be read
        if not options.skip_bad and paths:
            raise
        skipped += [(photos[number].uri, named(str(error), path)) for path, number in paths.items()]
        return EncodedPhotos([], [], None, skipped)
    except BadImage as error:
        for path in (Path(one) for one in error.paths if Path(one) in paths):
            raise BadImage(named(str(error), path), photos[paths[path]].uri) from None
        raise
    skipped += [(photos[paths[path]].uri, named(reason, path)) for path, reason in found.skipped]
    places = [paths[path] for path in found.paths]
    payload = [
        _payload(photos[place], path, digest)
        for place, path, digest in zip(places, found.paths, found.digests, strict=True)
    ]
    return EncodedPhotos(places, payload, found.tokens, skipped)


def _payload(photo: ListedPhoto, path: Path, digest: str) -> dict[str, Any]:
    name = photo.uri.rpartition("/")[2]
    position = photo.position or read_photo_position(path, name)
    return {
        "path": photo.uri if photo.remote else str(path.resolve()),
        "digest": digest,
        "session": photo.session,
        "position": None if position is None else position.to_dict(),
        "fitted": True,
    }
