"""Data of an image in a store: its row in the map's spaces, and its patches.

    full = for each space   φ_½ levels (int8, r) · step (float32) · length n (float32), little endian

The features and biases of every head and carrier follow from it (`second_order_space.normalize_rows`), so top
candidates are rescored, and maps calibrated, without photos.

Compact tokens are a piece per image:

PREFIX compaction    how patches are compacted, a document of the map's store
PREFIX at            where the pieces are, if in another store (`build.patches_at`); written first, so that dropping a
                     version, or the remains of a killed build, finds them
FOLDER id            pieces of bytes (n, g); FOLDER equals PREFIX unless they are in another store
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from uuid import uuid4

import numpy as np

from tfa.core.files import pack_tensors
from tfa.core.plain import BadShape
from tfa.core.tokens import Tokens
from tfa.errors import BadMap, BadPositions, BadSpec
from tfa.maps.store.header import read_arrays, version_folder
from tfa.maps.stored_head import StoredSpaces
from tfa.method.scorer import Scorer, compute_row_bias
from tfa.method.second_order_space import normalize_rows
from tfa.search.gallery import Gallery, direct_sum
from tfa.search.quantized import QuantizedRows, round_rows
from tfa.search.reduced import Moments, Reduction, fit_reduction
from tfa.search.store import Entries, Payload, Store, open_map_store, split_map_url
from tfa.types import ImageRecord
from tfa.verification.patches import CachedPatches, CompactTokens, SourcedTokens

_NUMBERS = np.dtype("<f4")  # type of step and length


@dataclass(frozen=True)
class SpaceRows:
    """Rows of images in each space: levels `(m, r)` with steps, and lengths."""

    halves: tuple[QuantizedRows, ...]
    lengths: tuple[np.ndarray, ...]  # (m,), float32

    def __len__(self) -> int:
        return len(self.lengths[0])

    @classmethod
    def of(cls, spaces: StoredSpaces, start: int, stop: int) -> SpaceRows:
        """Return the rows of images `start` to `stop` of a map; floats are quantized."""
        halves = []
        for space in spaces.spaces:
            rows = space.halves.between(start, stop)
            assert rows is not None, "the range is not empty"
            halves.append(rows if isinstance(rows, QuantizedRows) else round_rows(np.asarray(rows)))
        return cls(tuple(halves), tuple(space.lengths[start:stop] for space in spaces.spaces))

    @classmethod
    def of_bytes(cls, full: Sequence[bytes], ranks: Sequence[int]) -> SpaceRows:
        """Read bytes of `to_bytes`; `ranks` are the dimensions of the spaces."""
        size = sum(rank + 2 * _NUMBERS.itemsize for rank in ranks)
        wrong = [len(one) for one in full if len(one) != size]
        if wrong:
            raise BadMap(f"an image in the store has a row of {wrong[0]} bytes, must be {size}; rebuild the map")
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
        """Select images."""
        return SpaceRows(tuple(one[rows] for one in self.halves), tuple(one[rows] for one in self.lengths))

    def to_bytes(self) -> list[bytes]:
        """Return `full` of each image."""
        columns = []
        for halves, lengths in zip(self.halves, self.lengths, strict=True):
            numbers = np.stack([halves.step, lengths], axis=1).astype(_NUMBERS)
            columns += [np.ascontiguousarray(halves.levels).view(np.uint8), numbers.view(np.uint8)]
        return [row.tobytes() for row in np.concatenate(columns, axis=1)]

    def scorer(self, head: Scorer) -> Scorer:
        """Return a second-order head over these images, with their biases."""
        galleries = [
            normalize_rows(
                self.halves[term.side], self.lengths[term.side], head.sides[term.side].eigenvalues, term.gamma
            )
            for term in head.terms
        ]
        terms = tuple(replace(t, gallery=Gallery.of(rows)) for t, rows in zip(head.terms, galleries, strict=True))
        return replace(head, terms=terms, bias=compute_row_bias(head, galleries), duplicates=None)

    def compiled(self, head: Scorer) -> tuple[np.ndarray, np.ndarray]:
        """Return Ψ(d) `(m, D)` as float32 and b_d `(m,)` under a head."""
        over, every = self.scorer(head), np.arange(len(self))
        vectors = direct_sum(over.rows.weights, [gallery.take(every) for gallery in over.rows.galleries])
        return vectors, over.bias

    def entries(self, head: Scorer, reduction: Reduction, ids: np.ndarray, payload: Sequence[Payload]) -> Entries:
        """Return the images as entries of a collection."""
        return Entries(np.asarray(ids, np.int64), reduction.of_images(*self.compiled(head)), payload, self.to_bytes())


def read_ranks(head: Scorer) -> list[int]:
    """Return the dimensions of the spaces of a second-order head."""
    return [len(side.eigenvalues) for side in head.sides]


def fit_store_reduction(head: Scorer, pages: Iterable[SpaceRows], dims: int) -> Reduction:
    """Fit the reduction of a head in one pass over the rows of all images."""
    return fit_reduction_to_moments(Moments.total(second_moment(head, page) for page in pages), dims)


def second_moment(head: Scorer, page: SpaceRows) -> Moments:
    """Sum 1, [Ψ, b] and [Ψ, b] [Ψ, b]ᵀ over a page of images, to fit a reduction."""
    vectors, bias = page.compiled(head)
    return Moments.of(np.concatenate([vectors.astype(np.float64), bias[:, None]], axis=1))


def fit_reduction_to_moments(total: Moments, dims: int) -> Reduction:
    """Fit a reduction from the sum of `second_moment` over all pages."""
    mean_bias = float(total.first[-1]) / max(total.count, 1)
    return fit_reduction(np.ascontiguousarray(total.second[:-1, :-1]), dims, mean_bias)


def parse_record(image_id: int, payload: Payload) -> ImageRecord:
    """Parse the payload of an image. Raises BadMap."""
    try:
        values = {name: payload.get(name) for name in ("path", "digest", "position", "session")}
        return ImageRecord.from_dict({**values, "id": image_id, "fitted": bool(payload["fitted"])})
    except (KeyError, BadShape, BadPositions) as error:
        raise BadMap(f"image {image_id} in the store is damaged ({error}); rebuild the map") from None


def make_payload(record: ImageRecord) -> dict[str, object]:
    """Make the payload of an image."""
    position = None if record.position is None else record.position.to_dict()
    return {"path": record.path, "digest": record.digest, "fitted": record.fitted, "position": position,
            "session": record.session}  # fmt: skip


_AT = "patches/at"  # end of the key that says where pieces are
_ELSEWHERE = ("lance", "lance+s3")  # stores whose URLs contain no password, since the header holds the URL


@dataclass(frozen=True)
class _StoredPatches:
    """A `PatchSource` of pieces of bytes `(n, g)`."""

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
                raise BadMap(f"the patches of image {one} are {what} in the store; rebuild the map")
        if not wanted:
            return np.empty((0, *self.shape), self.dtype)
        return np.stack([np.frombuffer(found[one], self.dtype).reshape(self.shape) for one in wanted])


def check_elsewhere(url: str) -> None:
    """Raise BadSpec for a store that cannot hold patches of another store."""
    split_map_url(url)
    if url.partition("://")[0] not in _ELSEWHERE:
        raise BadSpec(
            f"build.patches_at={url.partition('://')[0]}://… cannot hold patches of another store; use "
            "lance+s3://BUCKET/PREFIX/NAME or lance:///FOLDER/NAME"
        )


def begin_patches(
    store: Store, name: str, version: int, compact: CompactTokens | None, at: str | None = None
) -> dict[str, Any] | None:
    """Write the compaction and return the header's entry for patches; None without patches.

    Call it once per build, before the first piece. `at` is the URL of another store for the pieces.
    """
    if compact is None:
        return None
    prefix = f"{version_folder(name, version)}patches/"
    folder = prefix if at is None else f"{split_map_url(at)[1]}/{uuid4().hex}/"
    if at is not None:
        store.put(f"{prefix}at", json.dumps({"at": at, "folder": folder}).encode())
    store.put(f"{prefix}compaction", pack_tensors(compact.compaction_tensors()))
    return {"prefix": prefix, "at": at, "folder": folder, **compact.to_dict()}


def write_patches(store: Store, place: Mapping[str, Any], ids: Sequence[int] | np.ndarray, patches: np.ndarray) -> None:
    """Write compact patches `(m, n, g)` of images. Idempotent, from any process."""
    pieces = {int(one): np.ascontiguousarray(own).tobytes() for one, own in zip(ids, patches, strict=True)}
    find_holder(store, place).put_pieces(place["folder"], pieces)


def seal_patches(store: Store, place: Mapping[str, Any]) -> None:
    """Finish the pieces after the last write of a build."""
    find_holder(store, place).seal_pieces(place["folder"])


def read_patches(
    store: Store, place: Mapping[str, Any] | None, cached_bytes: int | None = None
) -> SourcedTokens | None:
    """Open the patches of a header's entry; None without one."""
    if place is None:
        return None

    def parse(arrays: dict[str, np.ndarray]) -> CompactTokens:
        return CompactTokens.from_tensors(place, arrays, ())

    known = read_arrays(store, f"{place['prefix']}compaction", parse)
    shape = (known.grid[0] * known.grid[1], known.compaction.bytes_per_patch)
    pieces = _StoredPatches(find_holder(store, place), place["folder"], shape, known.compaction.dtype)
    return SourcedTokens(known.compaction, known.grid, known.spec, CachedPatches(pieces, cached_bytes))


def write_added(
    store: Store, place: Mapping[str, Any], patches: SourcedTokens, ids: Sequence[int], tokens: Tokens
) -> None:
    """Write the patches of added photos."""
    [chunk] = patches.empty().grown(tokens).chunks
    write_patches(store, place, ids, np.asarray(chunk))


def erase_elsewhere(store: Store, key: str) -> None:
    """Erase pieces in another store that the document `key` refers to, if any."""
    content = store.read(key) if key.endswith(_AT) else None
    if content is not None:
        said = json.loads(content)
        holder = _connect_once(said["at"])
        for piece in holder.keys(said["folder"]):
            holder.erase(piece)


def find_holder(store: Store, place: Mapping[str, Any]) -> Store:
    """Return the store that holds the pieces."""
    return store if place["at"] is None else _connect_once(place["at"])


@lru_cache(maxsize=4)
def _connect_once(url: str) -> Store:
    """Connect once per process and URL."""
    return open_map_store(url)[0]
