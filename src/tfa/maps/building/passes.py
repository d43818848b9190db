"""The passes of a sharded build, as workers compute them.

    photos        tokens of the sample, then descriptors and compact patches of every photo
    rows          coordinates of described images, as a map stores them; then entries of the store
    sums          Σ v vᵀ of descriptors, Σ Ψ Ψᵀ of compiled vectors, over fixed groups of shards

A worker loads the encoder once.
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
from typing import Any

import numpy as np

from tfa.core.tokens import Tokens
from tfa.encoders import Encoder, load_encoder
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

# --- encoding ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoding:
    """How workers encode. `encoder` is a name, or a function that workers can import and that gives one."""

    encoder: str | Callable[[], Encoder]
    options: EncoderOptions
    cache: Path | None = None  # of tokens; None keeps them for the time of a shard only

    def load(self) -> Encoder:
        """The encoder, loaded once in each process."""
        return _load_once(self.encoder, self.options)


@lru_cache(maxsize=2)
def _load_once(encoder: str | Callable[[], Encoder], options: EncoderOptions) -> Encoder:
    if not isinstance(encoder, str):
        return encoder()
    return load_encoder(
        encoder, weights=options.weights, device=options.device, threads=options.threads, fast=options.fast
    )


@dataclass(frozen=True)
class _EncodedPhotos:
    """Photos of a shard with their tokens; `places` are their numbers among those that were given."""

    places: list[int]
    payload: list[dict[str, Any]]  # path, digest, session, position, fitted
    tokens: Tokens | None  # None if there is no photo
    skipped: SkippedPhotos


@contextlib.contextmanager
def _encode_photos(photos: Sequence[ListedPhoto], encoding: Encoding) -> Iterator[_EncodedPhotos]:
    """Tokens of photos while the block runs; they may lie in a temporary folder."""
    with contextlib.ExitStack() as stack:
        skipped: SkippedPhotos = []
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tfa-shard-")))
        paths = _local(photos, folder, encoding.options.skip_bad, skipped)
        cache = TokenCache(encoding.cache or folder / "tokens")
        yield _encode(photos, paths, cache, encoding, skipped)


def _local(photos: Sequence[ListedPhoto], folder: Path, skip_bad: bool, skipped: SkippedPhotos) -> dict[Path, int]:
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


def _encode(
    photos: Sequence[ListedPhoto], paths: dict[Path, int], cache: TokenCache, encoding: Encoding, skipped: SkippedPhotos
) -> _EncodedPhotos:
    options = encoding.options
    named = lambda text, path: text.replace(str(path), photos[paths[path]].uri)  # noqa: E731
    try:
        found = cache.encode(list(paths), encoding.load(), skip_bad=options.skip_bad, batch_size=options.batch_size)
    except NoImages as error:  # not one of them can be read
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
    """Tokens of those photos of a shard that the map is fitted on."""

    kind = "sample"
    encoding: Encoding

    def compute(self, shard: Shard) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        with _encode_photos([shard.photos[place] for place in shard.sample], self.encoding) as photos:
            places = [shard.sample[place] for place in photos.places]
            facts = {"places": places, "payload": photos.payload, "skipped": photos.skipped}
            return _token_tensors(photos), facts


def _token_tensors(photos: _EncodedPhotos) -> dict[str, np.ndarray]:
    """Copies: the photos' own may lie in a folder that goes."""
    if photos.tokens is None:
        return {}
    tensors = {"patches": np.stack([np.asarray(one) for one in photos.tokens.patches])}
    return tensors if photos.tokens.cls is None else {**tensors, "cls": np.array(photos.tokens.cls)}


def join_tokens(results: Sequence[WorkResult], grid: tuple[int, int]) -> Tokens:
    """The tokens of whole samples, mapped from their files, and their photos' names."""
    kept = [one for one in results if one.facts["payload"]]
    patches = [patch for one in kept for patch in one["patches"]]
    cls = np.concatenate([one["cls"] for one in kept]) if kept and "cls" in kept[0].tensors else None
    names = [payload["path"] for one in kept for payload in one.facts["payload"]]
    return Tokens(patches, cls, names=names, grid=grid)


@dataclass(frozen=True)
class Describe(StoredPass[Shard]):
    """Second-order descriptors of every photo of a shard, and its compact patches; the sample is not encoded again."""

    kind = "descriptors"
    encoding: Encoding
    directions: np.ndarray  # m d
    compaction: Compaction | None

    def read_done(self, number: int) -> Mapping[str, Any] | None:
        whole = self.compaction is None or self.folder.read(name_result("patches", number)) is not None
        return super().read_done(number) if whole else None

    def compute(self, shard: Shard) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        parts: list[_Part] = []
        skipped: SkippedPhotos = []
        grid = self.encoding.load().grid
        if shard.sample:
            sample = self.folder.needed(name_result("sample", shard.number))
            skipped += sample.facts["skipped"]
            if sample.facts["payload"]:
                described = self._described(join_tokens([sample], grid))
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
        """Photos in the order of the shard. Patches are written first: the descriptors are the proof."""
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
    """Coordinates of a shard's images, as rows that a map keeps."""

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
    """The axes that the driver fitted, read once by each worker."""
    kept = folder.needed("axes")
    mean, vectors, eigenvalues = (np.array(kept[name]) for name in ("mean", "vectors", "eigenvalues"))
    return PrincipalAxes(mean, vectors, eigenvalues, kept.facts["participation"])


def _read_rows(result: WorkResult) -> SpaceRows:
    levels = result["levels"]
    return SpaceRows((QuantizedRows(levels, result["step"], levels.shape[1]),), (result["lengths"],))


@lru_cache(maxsize=1)
def _read_head(folder: WorkFolder, skeleton: str) -> Scorer:
    """The head that answers, from the skeleton in the work folder."""
    return reader.read_map(folder.path / skeleton).chosen().stored.scorer


@dataclass(frozen=True)
class WriteEntries:
    """A shard's images, and their patches, into the store. Idempotent, so no result is stored."""

    folder: WorkFolder
    skeleton: str
    opener: Opener
    url: str
    name: str
    version: int
    reduction: Reduction
    ids: Sequence[int]  # of the first image of each shard, and of the first that comes after all
    patches: Mapping[str, Any] | None  # where patches are, see `store.patches`; None: nothing is verified

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
    """One connection in each process."""
    return opener(url)


# --- sums ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AddUpDescriptors(StoredPass[Group]):
    """Σ 1, Σ v and Σ v vᵀ of a group's descriptors; of the symmetric sum one triangle is kept."""

    kind = "moments"
    width: int

    def compute(self, group: Group) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        total = Moments.empty(self.width)
        for number in group.shards:
            shard = self.folder.needed(name_result("descriptors", number))
            if shard.facts["payload"]:
                total = add_moments(total, shard["descriptors"])
        return {"first": total.first, "upper": _upper_triangle(total.second)}, {"count": total.count}


def _upper_triangle(matrix: np.ndarray) -> np.ndarray:
    """Row after row of a symmetric matrix `D D` from its diagonal on, `D(D+1)/2`."""
    return np.concatenate([matrix[row, row:] for row in range(len(matrix))])


def add_triangle(total: Moments, part: WorkResult) -> Moments:
    """`total` with a group's sums, added to its own arrays; below the diagonal of the second it says nothing."""
    start, upper, width = 0, part["upper"], len(total.first)
    for row in range(width):
        total.second[row, row:] += upper[start : start + width - row]
        start += width - row
    np.add(total.first, part["first"], out=total.first)
    return Moments(total.count + part.facts["count"], total.first, total.second)


def mirror_triangle(total: Moments) -> Moments:
    """With the triangle below the diagonal filled in."""
    for row in range(1, len(total.first)):
        total.second[row, :row] = total.second[:row, row]
    return total


def _count_dimensions(head: Scorer) -> int:
    """Numbers of Ψ."""
    return sum(term.gallery.width for term in head.terms)


@dataclass(frozen=True)
class AddUpVectors(StoredPass[Group]):
    """Σ 1, Σ [Ψ, b] and Σ [Ψ, b] [Ψ, b]ᵀ of a group's images."""

    kind = "vectors"
    skeleton: str

    def compute(self, group: Group) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        head = _read_head(self.folder, self.skeleton)
        kept = [self.folder.needed(name_result("rows", number)) for number in group.shards]
        parts = (second_moment(head, _read_rows(one)) for one in kept if one.facts["payload"])
        total = Moments.total(chain([Moments.empty(_count_dimensions(head) + 1)], parts))
        return {"first": total.first, "second": total.second}, {"count": total.count}
