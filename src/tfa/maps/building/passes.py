"""Passes of a sharded build, as workers compute them.

photos        tokens of the sample, then descriptors and compact patches of every photo
rows          stored coordinates of the images, then entries of the store
sums          Σ v vᵀ of descriptors, Σ Ψ Ψᵀ of compiled vectors, over fixed groups of shards
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tfa.core.tokens import Tokens
from tfa.encoders import Encoder, count_depths, load_encoder
from tfa.errors import BadImage, NoImages
from tfa.maps.building.photo_list import ListedPhoto, Shard, SkippedPhotos, copy_photo
from tfa.maps.building.work_folder import Group, ItemReport, StoredPass, WorkFolder, WorkResult, name_result
from tfa.maps.folder import reader
from tfa.maps.store.header import collection_name
from tfa.maps.store.publish import write_entries
from tfa.maps.store.rows import SpaceRows, second_moment, write_patches
from tfa.maps.stored_head import INTEGERS, convert_rows, half_whiten_coordinates
from tfa.method.scorer import Scorer
from tfa.method.second_order import describe_second_order
from tfa.method.spectrum import PrincipalAxes, add_moments
from tfa.photos.find_positions import read_photo_position
from tfa.photos.token_cache import TokenCache
from tfa.search.quantized import QuantizedRows
from tfa.search.reduced import Moments, Reduction
from tfa.search.store import Opener, Store
from tfa.types import EncoderOptions
from tfa.verification.patches import Compaction, CompactTokens


@dataclass(frozen=True)
class Encoding:
    """How workers encode photos. `encoder` is a name, or an importable function that returns an encoder."""

    encoder: str | Callable[[], Encoder]
    options: EncoderOptions
    cache: Path | None = None  # folder of the token cache; None caches tokens of the current shard only
    depths: int | Literal["auto"] | None = None

    def load(self) -> Encoder:
        """Load the encoder, once per process."""
        return _load_once(self.encoder, self.options, self.depths)


@lru_cache(maxsize=2)
def _load_once(
    encoder: str | Callable[[], Encoder], options: EncoderOptions, depths: int | Literal["auto"] | None
) -> Encoder:
    if not isinstance(encoder, str):
        return encoder()
    return load_encoder(
        encoder, weights=options.weights, device=options.device, threads=options.threads, precision=options.precision,
        depths=depths,
    )  # fmt: skip


@dataclass(frozen=True)
class _EncodedPhotos:
    """Encoded photos of a shard; `places` are their indices in the input."""

    places: list[int]
    payload: list[dict[str, Any]]  # path, digest, session, position, fitted
    tokens: Tokens | None  # None without photos
    skipped: SkippedPhotos


@contextlib.contextmanager
def _encode_photos(photos: Sequence[ListedPhoto], encoding: Encoding) -> Iterator[_EncodedPhotos]:
    """Encode photos; their tokens may be in a temporary folder that is deleted at the end."""
    with contextlib.ExitStack() as stack:
        skipped: SkippedPhotos = []
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tfa-shard-")))
        paths = _local(photos, folder, encoding.options.skip_bad, skipped)
        cache = TokenCache(encoding.cache or folder / "tokens")
        yield _encode(photos, paths, cache, encoding, skipped)


def _local(photos: Sequence[ListedPhoto], folder: Path, skip_bad: bool, skipped: SkippedPhotos) -> dict[Path, int]:
    """Return local files with photo indices, copying remote photos to `folder`."""
    paths: dict[Path, int] = {}
    for number, photo in enumerate(photos):
        path = Path(photo.uri)
        if photo.remote:
            path = folder / f"{number}{os.path.splitext(photo.uri)[1]}"
            try:
                copy_photo(photo.uri, path)
            except BadImage as error:
                if not skip_bad:
                    raise BadImage(f"{error}; fix it, or skip it with --skip-bad (skip_bad=True)", photo.uri) from None
                skipped.append((photo.uri, str(error)))
                continue
        paths[path] = number
    return paths


def _encode(
    photos: Sequence[ListedPhoto], paths: dict[Path, int], cache: TokenCache, encoding: Encoding, skipped: SkippedPhotos
) -> _EncodedPhotos:
    options = encoding.options
    named = lambda text, path: text.replace(str(path), photos[paths[path]].uri)  # noqa: E731
    try:
        found = cache.encode(list(paths), encoding.load(), skip_bad=options.skip_bad, batch_size=options.batch_size)
    except NoImages as error:  # no photo is readable
        if not options.skip_bad and paths:
            raise
        skipped += [(photos[number].uri, named(str(error), path)) for path, number in paths.items()]
        return _EncodedPhotos([], [], None, skipped)
    except BadImage as error:
        for path in (Path(one) for one in error.paths if Path(one) in paths):
            raise BadImage(named(str(error), path), photos[paths[path]].uri) from None
        raise
    skipped += [(photos[paths[path]].uri, named(reason, path)) for path, reason in found.skipped]
    places = [paths[path] for path in found.paths]
    payload = [
        _describe_photo(photos[place], path, digest)
        for place, path, digest in zip(places, found.paths, found.digests, strict=True)
    ]
    return _EncodedPhotos(places, payload, found.tokens, skipped)


def _describe_photo(photo: ListedPhoto, path: Path, digest: str) -> dict[str, Any]:
    name = photo.uri.rpartition("/")[2]
    position = photo.position or read_photo_position(path, name)
    return {
        "path": photo.uri if photo.remote else str(path.resolve()),
        "digest": digest,
        "session": photo.session,
        "position": None if position is None else position.to_dict(),
        "fitted": True,
    }


# --- photos --------------------------------------------------------------------------------------------------------


_Part = tuple[list[int], list[dict[str, Any]], np.ndarray, np.ndarray | None]  # places, payload, descriptors, patches


@dataclass(frozen=True)
class EncodeSample(StoredPass[Shard]):
    """Encode the photos of a shard that are in the sample."""

    kind = "sample"
    encoding: Encoding

    def compute(self, shard: Shard) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        with _encode_photos([shard.photos[place] for place in shard.sample], self.encoding) as photos:
            places = [shard.sample[place] for place in photos.places]
            facts = {"places": places, "payload": photos.payload, "skipped": photos.skipped}
            return _token_tensors(photos), facts


def _token_tensors(photos: _EncodedPhotos) -> dict[str, np.ndarray]:
    """Copy the tokens, since their files may be temporary."""
    if photos.tokens is None:
        return {}
    tensors = {"patches": np.stack([np.asarray(one) for one in photos.tokens.patches])}
    return tensors if photos.tokens.cls is None else {**tensors, "cls": np.array(photos.tokens.cls)}


def join_tokens(results: Sequence[WorkResult], encoder: Encoder) -> Tokens:
    """Join the tokens of samples, mapped from their files."""
    kept = [one for one in results if one.facts["payload"]]
    patches = [patch for one in kept for patch in one["patches"]]
    cls = np.concatenate([one["cls"] for one in kept]) if kept and "cls" in kept[0].tensors else None
    names = [payload["path"] for one in kept for payload in one.facts["payload"]]
    return Tokens(patches, cls, names=names, grid=encoder.grid, depths=count_depths(encoder))


@dataclass(frozen=True)
class Describe(StoredPass[Shard]):
    """Compute second-order descriptors and compact patches of a shard, reusing tokens of the sample."""

    kind = "descriptors"
    encoding: Encoding
    directions: np.ndarray  # (m, d); (2, m, d) for two depths
    compaction: Compaction | None

    def read_done(self, number: int) -> Mapping[str, Any] | None:
        whole = self.compaction is None or self.folder.read(name_result("patches", number)) is not None
        return super().read_done(number) if whole else None

    def compute(self, shard: Shard) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        parts: list[_Part] = []
        skipped: SkippedPhotos = []
        if shard.sample:
            sample = self.folder.needed(name_result("sample", shard.number))
            skipped += sample.facts["skipped"]
            if sample.facts["payload"]:
                described = self._described(join_tokens([sample], self.encoding.load()))
                parts.append((sample.facts["places"], sample.facts["payload"], *described))
        others = [place for place in range(len(shard)) if place not in set(shard.sample)]
        if others:
            with _encode_photos([shard.photos[place] for place in others], self.encoding) as photos:
                skipped += photos.skipped
                if photos.tokens is not None:
                    places = [others[place] for place in photos.places]
                    parts.append((places, photos.payload, *self._described(photos.tokens)))
        return self._in_order(shard.number, parts, sorted((uri, reason) for uri, reason in skipped))

    def _described(self, tokens: Tokens) -> tuple[np.ndarray, np.ndarray | None]:
        [descriptors] = describe_second_order(tokens, [self.directions])
        if self.compaction is None:
            return descriptors, None
        return descriptors, CompactTokens.of(tokens, self.compaction).chunks[0]

    def _in_order(
        self, number: int, parts: list[_Part], skipped: SkippedPhotos
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Sort photos by their order in the shard. Patches are written first: descriptors mark a shard as done."""
        places = [place for part in parts for place in part[0]]
        order = np.argsort(places)
        payload = [one for part in parts for one in part[1]]
        facts = {"places": sorted(places), "payload": [payload[row] for row in order], "skipped": skipped}
        tensors = {"descriptors": np.concatenate([part[2] for part in parts])[order]} if parts else {}
        if self.compaction is not None:
            patches = [part[3] for part in parts if part[3] is not None]
            self.folder.write(
                name_result("patches", number), {"patches": np.concatenate(patches)[order]} if patches else {}
            )
        return tensors, facts


# --- rows ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Project(StoredPass[Shard]):
    """Compute coordinates of a shard's images as stored rows."""

    kind = "rows"

    def compute(self, shard: Shard) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        described, axes = self.folder.needed(name_result("descriptors", shard.number)), read_axes(self.folder)
        payload = described.facts["payload"]
        tensors: dict[str, np.ndarray] = {}
        if payload:
            halves, lengths = half_whiten_coordinates(axes.coordinates(described["descriptors"]), axes.eigenvalues)
            rows = convert_rows(halves.astype(np.float32), INTEGERS, wide=False)
            assert isinstance(rows, QuantizedRows)
            tensors = row_tensors(SpaceRows((rows,), (lengths,)))
        return tensors, {"payload": payload}


def row_tensors(rows: SpaceRows) -> dict[str, np.ndarray]:
    [halves], [lengths] = rows.halves, rows.lengths
    return {"levels": halves.levels, "step": halves.step, "lengths": lengths}


def axes_tensors(axes: PrincipalAxes) -> dict[str, np.ndarray]:
    return {"mean": axes.mean, "vectors": axes.vectors, "eigenvalues": axes.eigenvalues}


@lru_cache(maxsize=1)
def read_axes(folder: WorkFolder) -> PrincipalAxes:
    """Read the fitted axes, once per worker."""
    kept = folder.needed("axes")
    mean, vectors, eigenvalues = (np.array(kept[name]) for name in ("mean", "vectors", "eigenvalues"))
    return PrincipalAxes(mean, vectors, eigenvalues, kept.facts["participation"])


def _read_rows(result: WorkResult) -> SpaceRows:
    levels = result["levels"]
    return SpaceRows((QuantizedRows(levels, result["step"], levels.shape[1]),), (result["lengths"],))


@lru_cache(maxsize=1)
def _read_head(folder: WorkFolder, skeleton: str) -> Scorer:
    """Read the active head from the skeleton in the work folder."""
    return reader.read_map(folder.path / skeleton).chosen().stored.scorer


@dataclass(frozen=True)
class WriteEntries:
    """Write a shard's images and patches to the store. Idempotent, so no result is stored."""

    folder: WorkFolder
    skeleton: str
    opener: Opener
    url: str
    name: str
    version: int
    reduction: Reduction
    ids: Sequence[int]  # id of the first image of each shard, then the id after the last image
    patches: Mapping[str, Any] | None  # where patches are stored, see `store.rows`; None without reranking

    def __call__(self, shard: Shard) -> ItemReport:
        kept = self.folder.needed(name_result("rows", shard.number))
        payload = kept.facts["payload"]
        if payload:
            store, rows = _connect_once(self.opener, self.url), _read_rows(kept)
            ids = self.ids[shard.number] + np.arange(len(payload))
            if self.patches is not None:
                patches = self.folder.needed(name_result("patches", shard.number))["patches"]
                write_patches(store, self.patches, ids, patches)
            entries = rows.entries(_read_head(self.folder, self.skeleton), self.reduction, ids, payload)
            write_entries(store.open(collection_name(self.name, self.version)), entries)
        return ItemReport(shard.number, len(payload))


@lru_cache(maxsize=2)
def _connect_once(opener: Opener, url: str) -> Store:
    """Connect once per process."""
    return opener(url)


# --- sums ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AddUpDescriptors(StoredPass[Group]):
    """Sum 1, v and v vᵀ over a group's descriptors; one triangle of the symmetric sum is stored."""

    kind = "moments"
    width: int

    def compute(self, group: Group) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        total = Moments.empty(self.width)
        for number in group.shards:
            shard = self.folder.needed(name_result("descriptors", number))
            if shard.facts["payload"]:
                total = add_moments(total, shard["descriptors"])
        upper = np.concatenate([row[number:] for number, row in enumerate(total.second)])  # (D (D + 1) / 2,)
        return {"first": total.first, "upper": upper}, {"count": total.count}


def add_triangle(total: Moments, part: WorkResult) -> Moments:
    """Add a group's sums to the arrays of `total` in place; below the diagonal they are undefined."""
    start, upper, width = 0, part["upper"], len(total.first)
    for row in range(width):
        total.second[row, row:] += upper[start : start + width - row]
        start += width - row
    np.add(total.first, part["first"], out=total.first)
    return Moments(total.count + part.facts["count"], total.first, total.second)


def mirror_triangle(total: Moments) -> Moments:
    """Fill in the lower triangle in place."""
    for row in range(1, len(total.first)):
        total.second[row, :row] = total.second[:row, row]
    return total


@dataclass(frozen=True)
class AddUpVectors(StoredPass[Group]):
    """Sum 1, [Ψ, b] and [Ψ, b] [Ψ, b]ᵀ over a group's images."""

    kind = "vectors"
    skeleton: str

    def compute(self, group: Group) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        head = _read_head(self.folder, self.skeleton)
        kept = [self.folder.needed(name_result("rows", number)) for number in group.shards]
        parts = (second_moment(head, _read_rows(one)) for one in kept if one.facts["payload"])
        width = sum(term.gallery.width for term in head.terms)  # of Ψ
        total = Moments.total(chain([Moments.empty(width + 1)], parts))
        return {"first": total.first, "second": total.second}, {"count": total.count}
