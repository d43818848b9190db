"""What a map stores of its heads: rows, reduced rows, and the spaces of second-order heads.

Reduced rows of a head as a map keeps them (ours, beyond the paper): the reduction in float16, int8 rows, moments.

Moments of a segment are written where it has so many rows that they take less room than the rows themselves; of fewer
rows they are made again in less than a second.

The terms of a second-order head in a map: which of the space's coordinates they compare, on which scale.

Features v (as coordinates z), 1 and φ_½ follow from the space alone. Any other φ_γ has a scale of each row,
1 / ‖λ^{1/4 − γ/2} φ_½‖, which is kept with the head: computing it would read every row of the map.

A stored space: what a map keeps of its second-order representation (ours, beyond the paper), for all its heads.

The query side, and of every image its coordinates as φ_½ with their length n = ‖λ^{-1/4} z‖. Every carrier is made
of them (`second_order_space.rows_of`), so a head adds a few numbers an image at most, and a calibration needs neither
photos nor tokens of the map.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfa.core.arrays import Spill, l2_normalize
from tfa.core.tokens import Tokens
from tfa.method.branch import row_blocks
from tfa.method.carriers import SIGMAS, Gamma
from tfa.method.decisions import SpectralStrengths
from tfa.method.evidence import Mask
from tfa.method.head import ENSEMBLE, ReplicaName
from tfa.method.scorer import Scorer, ScoreTerm, SecondOrderSide, compute_row_bias
from tfa.method.second_order_head import FittedSpaces
from tfa.method.second_order_space import SecondOrderSpace, normalize_rows
from tfa.search.gallery import BaseRows, Gallery, Rows, ScaledRows
from tfa.search.quantized import ROW_TOP, SEVEN_TOP, QuantizedRows, round_rows
from tfa.search.reduced import Moments, ReducedRows, Reduction
from tfa.types import HeadSpec

# --- stored rows ----------------------------------------------------------------------------------

Tensors = Mapping[str, np.ndarray]
INTEGERS = "int7"  # descriptors, and axes as long as they are, in seven bits a number, the rest of a row in eight


def convert_rows(rows: Rows, storage: str, *, wide: bool) -> BaseRows:
    """Rows as they are kept. Of integers those as `wide` as a descriptor have seven bits a number, other rows eight."""
    if storage != INTEGERS:
        return np.asarray(rows).astype(storage)
    return round_rows(np.asarray(rows), SEVEN_TOP if wide else ROW_TOP)


def write_rows(name: str, rows: Rows) -> dict[str, np.ndarray]:
    """The tensors of rows; integers have their steps beside them."""
    if not isinstance(rows, QuantizedRows):
        return {name: np.asarray(rows)}
    tensors = {name: rows.packed, f"{name}.step": rows.step}
    return tensors if rows.fine is None else {**tensors, f"{name}.fine": rows.fine}


def read_rows(name: str, tensors: Tensors, width: int | None) -> BaseRows:
    """The inverse. `width` is that of descriptors, whose levels are stored in fewer bytes."""
    rows, step = tensors[name], tensors.get(f"{name}.step")
    if step is None:
        return rows
    if rows.dtype == np.uint8 and width is not None:
        if rows.shape[1] != (7 * width + 7) // 8:
            raise ValueError(f"{name} has {rows.shape[1]} bytes a row, {width} numbers need {(7 * width + 7) // 8}")
        return QuantizedRows(rows, step, width, SEVEN_TOP)
    return QuantizedRows(rows, step, rows.shape[1], ROW_TOP, tensors.get(f"{name}.fine"))


# --- stored reduction -----------------------------------------------------------------------------

MOMENTS_FROM = 8  # rows for each of the dims numbers: dims × dims float64 are then as large as the int8 rows


def describe_reduction(reduced: ReducedRows) -> dict[str, Any]:
    """What the header says of it."""
    return {"dims": reduced.reduction.dims, "mean_bias": reduced.reduction.mean_bias}


def collect_reduction_tensors(reduced: ReducedRows) -> dict[str, np.ndarray]:
    """Return the tensors of the head's file."""
    reduction = reduced.reduction
    return {"reduction.matrix": reduction.matrix, "reduction.bias_axis": reduction.bias_axis}


def collect_reduced_tensors(reduced: ReducedRows, start: int, stop: int) -> dict[str, np.ndarray]:
    """Return the tensors of the gallery file with rows `start` to `stop`."""
    rows = reduced.rows.between(start, stop)
    assert isinstance(rows, QuantizedRows), "a segment has images"
    tensors = {"reduced": rows.levels, "reduced.step": rows.step}
    if len(rows) < MOMENTS_FROM * reduced.reduction.dims:
        return tensors
    own = [moments for chunk, moments in zip(reduced.rows.chunks, reduced.moments(), strict=True) if chunk is rows]
    moments = own[0] if own else ReducedRows(reduced.reduction, Gallery.of(rows)).moments()[0]
    return {**tensors, "reduced.first": moments.first, "reduced.second": moments.second}


def read_reduced(layout: dict[str, Any], head: Tensors, galleries: Sequence[Tensors]) -> ReducedRows:
    """The inverse; raises ValueError where tensors do not fit each other."""
    dims, matrix, axis = layout["dims"], head["reduction.matrix"], head["reduction.bias_axis"]
    if matrix.ndim != 2 or len(matrix) != dims or matrix.dtype != np.float16 or axis.shape != (dims,):
        raise ValueError(f"a reduction of shape {matrix.shape} and {axis.shape}, must be to {dims} numbers")
    chunks: list[Rows] = []
    known: dict[int, Moments] = {}
    for number, tensors in enumerate(galleries):
        levels, step = tensors["reduced"], tensors["reduced.step"]
        if levels.shape != (len(tensors["bias"]), dims) or levels.dtype != np.int8 or step.shape != levels.shape[:1]:
            raise ValueError(f"reduced rows of shape {levels.shape}, must be {(len(tensors['bias']), dims)}")
        chunks.append(QuantizedRows(levels, step, dims))
        if "reduced.second" in tensors:
            first, second = tensors["reduced.first"], tensors["reduced.second"]
            if first.shape != (dims,) or second.shape != (dims, dims):
                raise ValueError(f"moments of shape {second.shape}, must be {(dims, dims)}")
            known[number] = Moments(len(levels), first, second)
    return ReducedRows(Reduction(matrix, axis, layout["mean_bias"]), Gallery(tuple(chunks), known))


# --- space terms ----------------------------------------------------------------------------------


def rebuild_rows(scorer: Scorer, spaces: StoredSpaces) -> Scorer:
    """The scorer with the sides and all rows of `spaces`; images that it has no bias of yet get one."""
    sides = [replace(space.side, shift=side.shift) for space, side in zip(spaces.spaces, scorer.sides, strict=True)]
    galleries = [Gallery.of(*_chunks(spaces.spaces[term.side], term.gamma)) for term in scorer.terms]
    return _with_rows(replace(scorer, sides=tuple(sides)), galleries)


def append_newest_rows(scorer: Scorer, spaces: StoredSpaces) -> Scorer:
    """The scorer with the newest chunk of `spaces` beside the rows it has."""
    newest = [_chunks(spaces.spaces[term.side], term.gamma, -1)[0] for term in scorer.terms]
    appended = [term.gallery.appended(rows) for term, rows in zip(scorer.terms, newest, strict=True)]
    return _with_rows(scorer, appended)


def make_partial_scorer(spaces: StoredSpaces, duplicates: np.ndarray | None) -> Scorer:
    """Σ S_P over the spaces, the head that photos of a stream adapt: its rows are φ_½ as the map keeps it."""
    terms = [ScoreTerm(1.0, index, 0.5, space.halves, index) for index, space in enumerate(spaces.spaces)]
    sides = tuple(space.side for space in spaces.spaces)
    return Scorer(sides, tuple(terms), np.zeros(len(spaces)), duplicates)


def _chunks(space: StoredSpace, gamma: Gamma, first: int = 0) -> list[Rows]:
    """The rows of a term, from the chunk `first` on."""
    chunks = list(space.chunks())[first:]
    return [normalize_rows(halves, lengths, space.side.eigenvalues, gamma) for halves, lengths in chunks]


def _with_rows(scorer: Scorer, galleries: Sequence[Gallery]) -> Scorer:
    """The scorer with these rows, and a bias of those that have none, chunk by chunk as they would join the map."""
    terms = tuple(replace(term, gallery=rows) for term, rows in zip(scorer.terms, galleries, strict=True))
    biases, known, start = [scorer.bias], len(scorer.bias), 0
    for chunks in zip(*(gallery.chunks for gallery in galleries), strict=True):
        if start + len(chunks[0]) > known:
            biases.append(compute_row_bias(scorer, [rows[max(known - start, 0) :] for rows in chunks]))
        start += len(chunks[0])
    return replace(scorer, terms=terms, bias=np.concatenate(biases), duplicates=None)


# --- files -------------------------------------------------------------------------------------------------------


def collect_row_scales(scorer: Scorer, start: int, stop: int) -> dict[str, np.ndarray]:
    """Scales of rows `start` to `stop`, of the terms that have their own."""
    tensors = {}
    for index, term in enumerate(scorer.terms):
        if isinstance(term.gamma, float) and term.gamma != 0.5:
            scales = [chunk.scale for chunk in term.gallery.chunks if isinstance(chunk, ScaledRows)]
            tensors[f"term{index}.scale"] = np.concatenate(scales)[start:stop]
    return tensors


def read_space_terms(
    layout: dict[str, Any], head: Tensors, galleries: Sequence[Tensors], spaces: StoredSpaces
) -> Scorer:
    """The scorer of a second-order head, from its tensors and the space of its map."""
    numbers = [entry["space"] for entry in layout["sides"]]
    sides = [replace(spaces.spaces[number].side, shift=head.get(f"side{number}.shift")) for number in numbers]
    terms, features = [], []
    for index, entry in enumerate(layout["terms"]):
        space, scales = spaces.spaces[entry["side"]], [one.get(f"term{index}.scale") for one in galleries]
        eigenvalues, pairs = space.side.eigenvalues, zip(space.chunks(), scales, strict=True)
        rows = [normalize_rows(halves, n, eigenvalues, entry["gamma"], scale) for (halves, n), scale in pairs]
        terms.append(ScoreTerm(entry["weight"], entry["side"], entry["gamma"], Gallery.of(*rows), entry["member"]))
        if f"calibrators{index}" in head:
            features.append(head[f"calibrators{index}"])
    bias = np.concatenate([one["bias"] for one in galleries])
    return Scorer(tuple(sides), tuple(terms), bias, calibrators=tuple(features) or None)


# --- stored space ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredSpace:
    """One construction."""

    side: SecondOrderSide
    halves: Gallery  # m r: φ_½
    lengths: np.ndarray  # m: n, float32
    pseudo: np.ndarray  # p: fitted images that are pseudo queries
    hidden: Mask  # what they may not answer

    @classmethod
    def of(cls, space: SecondOrderSpace, storage: str) -> StoredSpace:
        """What a map keeps of a space that was just fitted."""
        side = space.side
        axes = convert_rows(side.axes, storage, wide=True)
        stored = SecondOrderSide(
            side.patch_directions.astype(np.float32), side.mean.astype(np.float32), axes, side.eigenvalues
        )
        halves = Spill().empty(space.coordinates.shape, np.float32)  # a large map lies in a file until it is saved
        lengths = np.empty(len(space), np.float32)
        for start, stop in row_blocks(*halves.shape):
            halves[start:stop], lengths[start:stop] = half_whiten_coordinates(
                space.coordinates[start:stop], side.eigenvalues
            )
        # Duplicates have equal tokens; the eigenvectors gave their coordinates unequal last bits.
        first = slice(None) if space.duplicates is None else space.duplicates
        rows = convert_rows(halves[first], storage, wide=False)
        return cls(stored, Gallery.of(rows), lengths[first], space.pseudo, space.mask)

    def __len__(self) -> int:
        return len(self.lengths)

    def chunks(self) -> Iterator[tuple[BaseRows, np.ndarray]]:
        """φ_½ and lengths, chunk by chunk."""
        start = 0
        for rows in self.halves.chunks:
            assert not isinstance(rows, ScaledRows)
            yield rows, self.lengths[start : start + len(rows)]
            start += len(rows)

    def grown(self, tokens: Tokens, storage: str) -> StoredSpace:
        """Add new images, described by the frozen side: one more chunk."""
        view = self.side.describe(tokens, True, "float32")
        assert view.coordinates is not None
        halves, lengths = half_whiten_coordinates(view.coordinates, self.side.eigenvalues)
        rows = self.halves.appended(convert_rows(halves.astype(np.float32), storage, wide=False))
        return replace(self, halves=rows, lengths=np.concatenate([self.lengths, lengths]))

    def fitted(self, count: int) -> SecondOrderSpace:
        """The space of the first `count` images, those it was fitted on, as a calibration needs it."""
        rows = self.halves.between(0, count)
        assert rows is not None, "a map is fitted on two images at least"
        assert not isinstance(rows, ScaledRows)
        coordinates = ScaledRows(rows, self.lengths[:count], self.side.eigenvalues**0.25)
        return SecondOrderSpace(self.side, coordinates, self.pseudo, self.hidden, None)


def half_whiten_coordinates(coordinates: Any, eigenvalues: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """φ_½ `m r` and their lengths `m` of coordinates."""
    scaled = np.asarray(coordinates, np.float64) * eigenvalues**-0.25
    return l2_normalize(scaled), np.linalg.norm(scaled, axis=1).astype(np.float32)


@dataclass(frozen=True)
class StoredSpaces:
    """The spaces of the constructions a map keeps, and what was measured in all three."""

    spaces: tuple[StoredSpace, ...]
    strengths: SpectralStrengths
    sigmas: Mapping[str, tuple[float, ...]]  # by the names of `carriers.SIGMAS`
    storage: str

    @classmethod
    def of(cls, fitted: FittedSpaces, replica: ReplicaName, storage: str) -> StoredSpaces:
        kept = fitted.spaces if replica == ENSEMBLE else fitted.spaces[replica : replica + 1]
        spaces = tuple(StoredSpace.of(space, storage) for space in kept)
        return cls(spaces, fitted.strengths, fitted.sigmas, storage)

    def __len__(self) -> int:
        """Images."""
        return len(self.spaces[0])

    def grown(self, tokens: Tokens) -> StoredSpaces:
        return replace(self, spaces=tuple(space.grown(tokens, self.storage) for space in self.spaces))

    def starting_with(self, older: StoredSpaces) -> StoredSpaces:
        """The same, the first chunk of each space and its side being those of `older`, which are equal."""
        pairs = zip(self.spaces, older.spaces, strict=True)
        spaces = [replace(own, side=old.side, halves=own.halves.starting_with(old.halves)) for own, old in pairs]
        return replace(self, spaces=tuple(spaces))

    def fitted(self, count: int, spec: HeadSpec, duplicates: np.ndarray | None) -> FittedSpaces:
        """What is fitted to the first `count` images, as a calibration needs it; `duplicates` `m` are equal photos."""
        spaces = [replace(space.fitted(count), duplicates=duplicates) for space in self.spaces]
        return FittedSpaces(spec, tuple(spaces), self.strengths, self.sigmas, "float32")

    # --- files ---------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """What the header says of it."""
        numbers = {name: list(values) for name, values in self.sigmas.items()}
        return {"storage": self.storage, "count": len(self.spaces), "strengths": self.strengths.to_dict(), **numbers}

    def space_tensors(self) -> dict[str, np.ndarray]:
        tensors: dict[str, np.ndarray] = {}
        for index, space in enumerate(self.spaces):
            name, side = f"space{index}", space.side
            tensors |= {f"{name}.patch_directions": side.patch_directions, f"{name}.mean": side.mean}
            tensors |= {f"{name}.eigenvalues": side.eigenvalues, **write_rows(f"{name}.axes", side.axes)}
            hidden = np.stack([space.hidden.rows, space.hidden.columns])
            tensors |= {f"{name}.pseudo": space.pseudo.astype(np.int32), f"{name}.hidden": hidden.astype(np.int32)}
        return tensors

    def coordinate_tensors(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return the tensors of images `start` to `stop`."""
        tensors: dict[str, np.ndarray] = {}
        for index, space in enumerate(self.spaces):
            rows = space.halves.between(start, stop)
            assert rows is not None, "a segment has images"
            tensors |= {**write_rows(f"space{index}", rows), f"space{index}.lengths": space.lengths[start:stop]}
        return tensors

    @classmethod
    def from_tensors(cls, entry: dict[str, Any], space: Tensors, coordinates: Sequence[Tensors]) -> StoredSpaces:
        spaces = [_read_space(f"space{index}", space, coordinates) for index in range(entry["count"])]
        strengths = SpectralStrengths.from_dict(entry["strengths"])
        sigmas = {name: tuple(entry[name]) for name in SIGMAS if name in entry}  # a map may be older than a carrier
        return cls(tuple(spaces), strengths, sigmas, entry["storage"])


def _read_space(name: str, tensors: Tensors, coordinates: Sequence[Tensors]) -> StoredSpace:
    mean, eigenvalues = tensors[f"{name}.mean"], np.array(tensors[f"{name}.eigenvalues"])
    axes = read_rows(f"{name}.axes", tensors, len(mean))
    if axes.shape != (len(eigenvalues), len(mean)):
        raise ValueError(f"{name} has axes of shape {axes.shape}, must be {(len(eigenvalues), len(mean))}")
    side = SecondOrderSide(tensors[f"{name}.patch_directions"], mean, axes, eigenvalues)
    chunks = [read_rows(name, one, None) for one in coordinates]
    lengths = np.concatenate([one[f"{name}.lengths"] for one in coordinates])
    if any(chunk.shape[1] != len(eigenvalues) for chunk in chunks) or len(lengths) != sum(map(len, chunks)):
        raise ValueError(f"{name} has coordinates that do not fit its {len(eigenvalues)} axes")
    pseudo, hidden = (np.array(tensors[f"{name}.{key}"], np.int64) for key in ("pseudo", "hidden"))
    return StoredSpace(side, Gallery.of(*chunks), lengths, pseudo, Mask(*hidden))
