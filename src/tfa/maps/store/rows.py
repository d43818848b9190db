"""Images by their rows in the spaces of a map, as bytes in a store and as what a head compares.

    full = for each space   φ_½ levels (int8, r) · step (float32) · length n (float32), little endian

The features of every head and carrier follow from them (`second_order_space.rows_of`), and so do the images' biases:
the best answers are scored again, and a map is calibrated, without any photo.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfa.errors import BadMap, BadPositions
from tfa.maps.stored_space import StoredSpaces
from tfa.method.scorer import Scorer, compute_row_bias
from tfa.method.second_order_space import normalize_rows
from tfa.search.exact import direct_sum
from tfa.search.gallery import Gallery
from tfa.search.quantized import QuantizedRows, round_rows
from tfa.search.reduced import Moments, Reduction, fit_reduction
from tfa.search.store import Entries, Payload
from tfa.types import ImageRecord, Position

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
