"""What a store holds of an image: its rows under the spaces of a head, and its patches.

Images by their rows in the spaces of a map, as bytes in a store and as what a head compares.

    full = for each space   φ_½ levels (int8, r) · step (float32) · length n (float32), little endian

The features of every head and carrier follow from them (`second_order_space.normalize_rows`), and so do biases: the
best answers are scored again, and a map is calibrated, without any photo.

Compact tokens of a map in a store: a piece an image, read a batch at a time.

PREFIX compaction    what turns patches into compact ones, a document of the map's store
PREFIX at            where the pieces are, if that is another store (`build.patches_at`): written before them, so that
                     dropping a version, or what a killed builder left, finds them
FOLDER id            pieces: bytes `n g` of each image; FOLDER is PREFIX but in another store
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from uuid import uuid4

import numpy as np

from tfa.core.tokens import Tokens
from tfa.errors import BadMap, BadPositions, BadSpec
from tfa.maps.store.header import pack_arrays, read_arrays, version_folder
from tfa.maps.stored_head import StoredSpaces
from tfa.method.scorer import Scorer, compute_row_bias
from tfa.method.second_order_space import normalize_rows
from tfa.search.gallery import Gallery, direct_sum
from tfa.search.quantized import QuantizedRows, round_rows
from tfa.search.reduced import Moments, Reduction, fit_reduction
from tfa.search.store import Entries, Payload, Store, open_map_store, split_map_url
from tfa.types import ImageRecord, Position, RerankSpec
from tfa.verification.patches import CachedPatches, Compaction, CompactTokens, SourcedTokens

# --- rows -----------------------------------------------------------------------------------------

_NUMBERS = np.dtype("<f4")  # step and length


@dataclass(frozen=True)
class SpaceRows:
    """Rows of images in every space: `m r` levels with a step, and a length each."""

    halves: tuple[QuantizedRows, ...]
    lengths: tuple[np.ndarray, ...]  # m, float32

    def __len__(self) -> int:
        return len(self.lengths[0])

    @classmethod
    def of(cls, spaces: StoredSpaces, start: int, stop: int) -> SpaceRows:
        """Images `start` to `stop` of a map; floats are rounded as a map of integers rounds them."""
        halves = []
        for space in spaces.spaces:
            rows = space.halves.between(start, stop)
            assert rows is not None, "there are images"
            halves.append(rows if isinstance(rows, QuantizedRows) else round_rows(np.asarray(rows)))
        return cls(tuple(halves), tuple(space.lengths[start:stop] for space in spaces.spaces))

    @classmethod
    def of_bytes(cls, full: Sequence[bytes], ranks: Sequence[int]) -> SpaceRows:
        """The inverse of `to_bytes`, of spaces of so many directions."""
        size = sum(rank + 2 * _NUMBERS.itemsize for rank in ranks)
        wrong = [len(one) for one in full if len(one) != size]
        if wrong:
            raise BadMap(f"an image of the store has a row of {wrong[0]} bytes, must be {size}; build the map again")
        table = np.frombuffer(b"".join(full), np.uint8).reshape(len(full), size)
        halves, lengths, start = [], [], 0
        for rank in ranks:
            numbers = table[:, start + rank : start + rank + 2 * _NUMBERS.itemsize]
            step, length = np.ascontiguousarray(numbers).view(_NUMBERS).astype(np.float32).T.copy()
            levels = np.ascontiguousarray(table[:, start : start + rank]).view(np.int8)
            halves.append(QuantizedRows(levels, step, rank))
            lengths.append(length)
            start += rank + 2 * _NUMBERS.itemsize
        return cls(tuple(halves), tuple(lengths))

    def take(self, rows: np.ndarray) -> SpaceRows:
        """Some of the images."""
        return SpaceRows(tuple(one[rows] for one in self.halves), tuple(one[rows] for one in self.lengths))

    def to_bytes(self) -> list[bytes]:
        """`full` of each image."""
        columns = []
        for halves, lengths in zip(self.halves, self.lengths, strict=True):
            numbers = np.stack([halves.step, lengths], axis=1).astype(_NUMBERS)
            columns += [np.ascontiguousarray(halves.levels).view(np.uint8), numbers.view(np.uint8)]
        return [row.tobytes() for row in np.concatenate(columns, axis=1)]

    def scorer(self, head: Scorer) -> Scorer:
        """A second-order head over these images instead of its own, with their biases."""
        galleries = [
            normalize_rows(
                self.halves[term.side], self.lengths[term.side], head.sides[term.side].eigenvalues, term.gamma
            )
            for term in head.terms
        ]
        terms = tuple(replace(t, gallery=Gallery.of(rows)) for t, rows in zip(head.terms, galleries, strict=True))
        return replace(head, terms=terms, bias=compute_row_bias(head, galleries), duplicates=None)

    def compiled(self, head: Scorer) -> tuple[np.ndarray, np.ndarray]:
        """Ψ(d) `m D`, float32, and b_d `m` of these images under a head."""
        over = self.scorer(head)
        every = np.arange(len(self))
        vectors = direct_sum(over.rows.weights, [gallery.take(every) for gallery in over.rows.galleries])
        return vectors, over.bias

    def entries(self, head: Scorer, reduction: Reduction, ids: np.ndarray, payload: Sequence[Payload]) -> Entries:
        """The images as a collection holds them."""
        return Entries(np.asarray(ids, np.int64), reduction.of_images(*self.compiled(head)), payload, self.to_bytes())


def read_ranks(head: Scorer) -> list[int]:
    """Directions of each space of a second-order head."""
    return [len(side.eigenvalues) for side in head.sides]


def fit_store_reduction(head: Scorer, pages: Iterable[SpaceRows], dims: int) -> Reduction:
    """The reduction of a head from all images, in one pass over their rows.

    A sum over pages: it does not depend on which process computed which (`second_moment`), but for rounding.
    """
    total = Moments.total(second_moment(head, page) for page in pages)
    return fit_reduction_to_moments(total, dims)


def second_moment(head: Scorer, page: SpaceRows) -> Moments:
    """Σ 1, Σ [Ψ, b] and Σ [Ψ, b] [Ψ, b]ᵀ of a page of images: what a reduction is fitted from."""
    vectors, bias = page.compiled(head)
    return Moments.of(np.concatenate([vectors.astype(np.float64), bias[:, None]], axis=1))


def fit_reduction_to_moments(total: Moments, dims: int) -> Reduction:
    """From the sum of `second_moment` over all pages."""
    mean_bias = float(total.first[-1]) / max(total.count, 1)
    return fit_reduction(np.ascontiguousarray(total.second[:-1, :-1]), dims, mean_bias)


# --- what is stored beside a row ---------------------------------------------------------------------------------


def parse_record(image_id: int, payload: Payload) -> ImageRecord:
    """An image by its payload."""
    try:
        position = payload.get("position")
        place = None if position is None else Position.from_dict(position)
        fitted, session = bool(payload["fitted"]), payload.get("session")
        return ImageRecord(
            id=image_id, path=payload["path"], digest=payload["digest"], fitted=fitted, position=place, session=session
        )
    except (KeyError, TypeError, BadPositions) as error:
        raise BadMap(f"image {image_id} of the store is damaged ({error!r}); build the map again") from None


def make_payload(record: ImageRecord) -> dict[str, object]:
    """Make what is stored beside an image."""
    position = None if record.position is None else record.position.to_dict()
    return {"path": record.path, "digest": record.digest, "fitted": record.fitted, "position": position,
            "session": record.session}  # fmt: skip


# --- patches --------------------------------------------------------------------------------------

_AT = "patches/at"  # how the document ends that says where pieces are
_ELSEWHERE = ("lance", "lance+s3")  # their URLs hold no password: one is kept in the header


@dataclass(frozen=True)
class _StoredPatches:
    """A `PatchSource` of pieces of `n g` bytes."""

    store: Store
    folder: str
    shape: tuple[int, int]
    dtype: type[np.int8 | np.uint8]

    def rows(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        wanted = [int(one) for one in ids]
        found = self.store.read_pieces(self.folder, sorted(set(wanted)))
        for one in wanted:
            if len(found.get(one, b"")) != self.shape[0] * self.shape[1]:
                what = "damaged" if one in found else "missing"
                raise BadMap(f"the patches of image {one} are {what} in the store; build the map again")
        if not wanted:
            return np.empty((0, *self.shape), self.dtype)
        return np.stack([np.frombuffer(found[one], self.dtype).reshape(self.shape) for one in wanted])


def check_elsewhere(url: str) -> None:
    """Refuse what cannot keep patches for another store."""
    split_map_url(url)
    if url.partition("://")[0] not in _ELSEWHERE:
        raise BadSpec(
            f"build.patches_at={url.partition('://')[0]}://… keeps no patches for another store; give "
            "lance+s3://BUCKET/PREFIX/NAME or lance:///FOLDER/NAME"
        )


def begin_patches(
    store: Store, name: str, version: int, compact: CompactTokens | None, at: str | None = None
) -> dict[str, Any] | None:
    """Once a build, before the first piece: write what describes photos. Returns what the header says of the patches.

    `at` is the URL of another store for the pieces. None if there are no patches.
    """
    if compact is None:
        return None
    prefix = f"{version_folder(name, version)}patches/"
    folder = prefix if at is None else f"{split_map_url(at)[1]}/{uuid4().hex}/"
    if at is not None:
        store.put(f"{prefix}at", json.dumps({"at": at, "folder": folder}).encode())
    store.put(f"{prefix}compaction", pack_arrays(compact.compaction_tensors()))
    return {"prefix": prefix, "at": at, "folder": folder, **compact.to_dict()}


def write_patches(store: Store, place: Mapping[str, Any], ids: Sequence[int] | np.ndarray, patches: np.ndarray) -> None:
    """Compact patches `m n g` of images; from any process, idempotent."""
    pieces = {int(one): np.ascontiguousarray(own).tobytes() for one, own in zip(ids, patches, strict=True)}
    find_holder(store, place).put_pieces(place["folder"], pieces)


def seal_patches(store: Store, place: Mapping[str, Any]) -> None:
    """After the last write of a build."""
    find_holder(store, place).seal_pieces(place["folder"])


def read_patches(
    store: Store, place: Mapping[str, Any] | None, cached_bytes: int | None = None
) -> SourcedTokens | None:
    """The patches that a header tells of; None if it tells of none."""
    if place is None:
        return None
    arrays = read_arrays(store, f"{place['prefix']}compaction")
    compaction = Compaction(arrays["mean"], arrays["projection"], arrays.get("deviations"))
    grid = (int(place["grid"][0]), int(place["grid"][1]))
    shape = (grid[0] * grid[1], compaction.bytes_per_patch)
    pieces = _StoredPatches(find_holder(store, place), place["folder"], shape, compaction.dtype)
    return SourcedTokens(compaction, grid, RerankSpec.from_dict(place["spec"]), CachedPatches(pieces, cached_bytes))


def write_added(
    store: Store, place: Mapping[str, Any], patches: SourcedTokens, ids: Sequence[int], tokens: Tokens
) -> None:
    """Patches of photos that are added."""
    [chunk] = patches.empty().grown(tokens).chunks
    write_patches(store, place, ids, np.asarray(chunk))


def erase_elsewhere(store: Store, key: str) -> None:
    """Before a document of a dropped version is erased: the pieces in another store that it tells of."""
    content = store.read(key) if key.endswith(_AT) else None
    if content is not None:
        said = json.loads(content)
        holder = _connect_once(said["at"])
        for piece in holder.keys(said["folder"]):
            holder.erase(piece)


def find_holder(store: Store, place: Mapping[str, Any]) -> Store:
    """The store that has the pieces."""
    return store if place["at"] is None else _connect_once(place["at"])


@lru_cache(maxsize=4)
def _connect_once(url: str) -> Store:
    """One connection to each in every process."""
    return open_map_store(url)[0]
