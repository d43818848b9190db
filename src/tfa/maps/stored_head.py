"""Heads as a map stores them: rows, reduced rows, the spaces of second-order heads, and the heads themselves.

Only the chosen assignment and carrier of one construction (of three for the ensemble) are stored. A `StoredHead` is
made from a fitted head or read from files.

A stored space holds the query side, and for each image its coordinates as φ_½ with their length n = ‖λ^{-1/4} z‖. Every
carrier follows from them (`second_order_space.normalize_rows`), so a head adds at most a few numbers per image, and a
calibration needs neither photos nor tokens of the map. Any φ_γ other than φ_½ also needs a scale per row,
1 / ‖λ^{1/4 − γ/2} φ_½‖, which is stored with the head: computing it would read every row of the map.

Reduced rows are a float16 reduction, int8 rows and moments. The moments of a segment are stored if they are smaller
than its rows; otherwise recomputing them takes less than a second.
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
from tfa.method.dual_vocabulary import DualHead
from tfa.method.evidence import Mask
from tfa.method.head import ENSEMBLE, Head, ReplicaName
from tfa.method.scorer import (
    GLOBAL,
    TRIMMED,
    ResidualSide,
    Scorer,
    ScoreTerm,
    SecondOrderSide,
    as_residual_side,
    compute_row_bias,
)
from tfa.method.second_order_head import FittedSpaces, SecondOrderHead
from tfa.method.second_order_space import SecondOrderSpace, normalize_rows
from tfa.method.spectrum import Geometry
from tfa.search.gallery import BaseRows, Gallery, Rows, ScaledRows
from tfa.search.quantized import ROW_TOP, SEVEN_TOP, QuantizedRows, round_rows
from tfa.search.reduced import Moments, ReducedRows, Reduction, fit_reduced
from tfa.types import HeadSpec

# --- stored rows ----------------------------------------------------------------------------------

Tensors = Mapping[str, np.ndarray]
INTEGERS = "int7"  # 7-bit descriptors and axes, 8-bit rows


def convert_rows(rows: Rows, storage: str, *, wide: bool) -> BaseRows:
    """Convert rows to a storage type. In "int7", rows as `wide` as a descriptor have 7 bits, others 8."""
    if storage != INTEGERS:
        return np.asarray(rows).astype(storage)
    return round_rows(np.asarray(rows), SEVEN_TOP if wide else ROW_TOP)


def write_rows(name: str, rows: Rows) -> dict[str, np.ndarray]:
    """Return the tensors of rows; quantized rows also have steps."""
    if not isinstance(rows, QuantizedRows):
        return {name: np.asarray(rows)}
    tensors = {name: rows.packed, f"{name}.step": rows.step}
    return tensors if rows.fine is None else {**tensors, f"{name}.fine": rows.fine}


def read_rows(name: str, tensors: Tensors, width: int | None) -> BaseRows:
    """Read the tensors of `write_rows`. `width` is the length of a descriptor, whose levels are packed."""
    rows, step, fine = tensors[name], tensors.get(f"{name}.step"), tensors.get(f"{name}.fine")
    fits = (step is None or step.shape == rows.shape[:1]) and (fine is None or fine.shape == rows.shape)
    if rows.ndim != 2 or not fits:
        raise ValueError(f"{name} has rows of shape {rows.shape}, which do not fit their steps")
    if step is None:
        return rows
    if rows.dtype == np.uint8 and width is not None:
        if rows.shape[1] != (7 * width + 7) // 8:
            raise ValueError(f"{name} has {rows.shape[1]} bytes per row, {width} values need {(7 * width + 7) // 8}")
        return QuantizedRows(rows, step, width, SEVEN_TOP)
    return QuantizedRows(rows, step, rows.shape[1], ROW_TOP, fine)


MOMENTS_FROM = 8  # rows per dimension above which moments (dims × dims float64) are smaller than the int8 rows


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
    """Read reduced rows. Raises ValueError for tensors that do not match."""
    dims, matrix, axis = layout["dims"], head["reduction.matrix"], head["reduction.bias_axis"]
    if matrix.ndim != 2 or len(matrix) != dims or matrix.dtype != np.float16 or axis.shape != (dims,):
        raise ValueError(f"a reduction of shapes {matrix.shape} and {axis.shape}, must have {dims} dimensions")
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
    """Return the scorer with the sides and all rows of `spaces`, and biases for new images."""
    sides = [replace(space.side, shift=side.shift) for space, side in zip(spaces.spaces, scorer.sides, strict=True)]
    galleries = [Gallery.of(*_chunks(spaces.spaces[term.side], term.gamma)) for term in scorer.terms]
    return _with_rows(replace(scorer, sides=tuple(sides)), galleries)


def append_newest_rows(scorer: Scorer, spaces: StoredSpaces) -> Scorer:
    """Return the scorer with the newest chunk of `spaces` appended."""
    newest = [_chunks(spaces.spaces[term.side], term.gamma, -1)[0] for term in scorer.terms]
    appended = [term.gallery.appended(rows) for term, rows in zip(scorer.terms, newest, strict=True)]
    return _with_rows(scorer, appended)


def make_partial_scorer(spaces: StoredSpaces, duplicates: np.ndarray | None) -> Scorer:
    """Make the scorer Σ S_P over the spaces, which a camera's photos adapt; its rows are the stored φ_½."""
    terms = [ScoreTerm(1.0, index, 0.5, space.halves, index) for index, space in enumerate(spaces.spaces)]
    sides = tuple(space.side for space in spaces.spaces)
    return Scorer(sides, tuple(terms), np.zeros(len(spaces)), duplicates)


def _chunks(space: StoredSpace, gamma: Gamma, first: int = 0) -> list[Rows]:
    """Return the rows of a term, from chunk `first` on."""
    chunks = list(space.chunks())[first:]
    return [normalize_rows(halves, lengths, space.side.eigenvalues, gamma) for halves, lengths in chunks]


def _with_rows(scorer: Scorer, galleries: Sequence[Gallery]) -> Scorer:
    """Return the scorer with these rows; biases of new rows are computed per chunk, as when they were added."""
    terms = tuple(replace(term, gallery=rows) for term, rows in zip(scorer.terms, galleries, strict=True))
    biases, known, start = [scorer.bias], len(scorer.bias), 0
    for chunks in zip(*(gallery.chunks for gallery in galleries), strict=True):
        if start + len(chunks[0]) > known:
            biases.append(compute_row_bias(scorer, [rows[max(known - start, 0) :] for rows in chunks]))
        start += len(chunks[0])
    return replace(scorer, terms=terms, bias=np.concatenate(biases), duplicates=None)


def collect_row_scales(scorer: Scorer, start: int, stop: int) -> dict[str, np.ndarray]:
    """Return the scales of rows `start` to `stop` for terms with φ_γ, γ ≠ ½."""
    tensors = {}
    for index, term in enumerate(scorer.terms):
        if isinstance(term.gamma, float) and term.gamma != 0.5:
            scales = [chunk.scale for chunk in term.gallery.chunks if isinstance(chunk, ScaledRows)]
            tensors[f"term{index}.scale"] = np.concatenate(scales)[start:stop]
    return tensors


def read_space_terms(
    layout: dict[str, Any], head: Tensors, galleries: Sequence[Tensors], spaces: StoredSpaces
) -> Scorer:
    """Read the scorer of a second-order head from its tensors and the map's spaces."""
    numbers = [entry["space"] for entry in layout["sides"]]
    sides = [replace(spaces.spaces[number].side, shift=head.get(f"side{number}.shift")) for number in numbers]
    terms, features = [], []
    for index, entry in enumerate(layout["terms"]):
        space, scales = spaces.spaces[entry["side"]], [one.get(f"term{index}.scale") for one in galleries]
        eigenvalues, pairs = space.side.eigenvalues, list(zip(space.chunks(), scales, strict=True))
        if any(scale is not None and scale.shape != n.shape for (_, n), scale in pairs):
            raise ValueError(f"term{index} has scales that do not fit its rows")
        rows = [normalize_rows(halves, n, eigenvalues, entry["gamma"], scale) for (halves, n), scale in pairs]
        terms.append(ScoreTerm(entry["weight"], entry["side"], entry["gamma"], Gallery.of(*rows), entry["member"]))
        if f"calibrators{index}" in head:
            features.append(head[f"calibrators{index}"])
    bias = np.concatenate([one["bias"] for one in galleries])
    return Scorer(tuple(sides), tuple(terms), bias, calibrators=tuple(features) or None)


# --- stored space ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredSpace:
    """The second-order space of one construction."""

    side: SecondOrderSide
    halves: Gallery  # (m, r): φ_½
    lengths: np.ndarray  # (m,): n, float32
    pseudo: np.ndarray  # (p,): fitted images that are pseudo queries
    hidden: Mask  # images hidden from pseudo queries

    @classmethod
    def of(cls, space: SecondOrderSpace, storage: str) -> StoredSpace:
        """Make it from a fitted space."""
        side = space.side
        axes = convert_rows(side.axes, storage, wide=True)
        directions, mean = side.patch_directions.astype(np.float32), side.mean.astype(np.float32)
        stored = replace(side, patch_directions=directions, mean=mean, axes=axes, shift=None)
        halves = Spill().empty(space.coordinates.shape, np.float32)  # a large map spills to a file until it is saved
        lengths = np.empty(len(space), np.float32)
        for start, stop in row_blocks(*halves.shape):
            halves[start:stop], lengths[start:stop] = half_whiten_coordinates(
                space.coordinates[start:stop], side.eigenvalues
            )
        # Duplicates have equal tokens, but their computed coordinates differ in the last bits.
        first = slice(None) if space.duplicates is None else space.duplicates
        rows = convert_rows(halves[first], storage, wide=False)
        return cls(stored, Gallery.of(rows), lengths[first], space.pseudo, space.mask)

    def __len__(self) -> int:
        return len(self.lengths)

    def chunks(self) -> Iterator[tuple[BaseRows, np.ndarray]]:
        """Iterate over chunks of φ_½ and lengths."""
        start = 0
        for rows in self.halves.chunks:
            assert not isinstance(rows, ScaledRows)
            yield rows, self.lengths[start : start + len(rows)]
            start += len(rows)

    def grown(self, tokens: Tokens, storage: str) -> StoredSpace:
        """Append new images as a chunk, described by the fixed side."""
        view = self.side.describe(tokens, True, "float32")
        assert view.coordinates is not None
        halves, lengths = half_whiten_coordinates(view.coordinates, self.side.eigenvalues)
        rows = self.halves.appended(convert_rows(halves.astype(np.float32), storage, wide=False))
        return replace(self, halves=rows, lengths=np.concatenate([self.lengths, lengths]))

    def fitted(self, count: int) -> SecondOrderSpace:
        """Return the space of the first `count` images, which it was fitted on."""
        rows = self.halves.between(0, count)
        assert rows is not None, "a map is fitted on at least two images"
        assert not isinstance(rows, ScaledRows)
        coordinates = ScaledRows(rows, self.lengths[:count], self.side.eigenvalues**0.25)
        return SecondOrderSpace(self.side, coordinates, self.pseudo, self.hidden, None)


def half_whiten_coordinates(coordinates: Any, eigenvalues: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return φ_½ `(m, r)` and lengths `(m,)` of coordinates."""
    scaled = np.asarray(coordinates, np.float64) * eigenvalues**-0.25
    return l2_normalize(scaled), np.linalg.norm(scaled, axis=1).astype(np.float32)


@dataclass(frozen=True)
class StoredSpaces:
    """The spaces of the stored constructions, with statistics of all three."""

    spaces: tuple[StoredSpace, ...]
    strengths: SpectralStrengths
    sigmas: Mapping[str, tuple[float, ...]]  # row spreads, by the names of `carriers.SIGMAS`
    storage: str

    @classmethod
    def of(cls, fitted: FittedSpaces, replica: ReplicaName, storage: str) -> StoredSpaces:
        kept = fitted.spaces if replica == ENSEMBLE else fitted.spaces[replica : replica + 1]
        spaces = tuple(StoredSpace.of(space, storage) for space in kept)
        return cls(spaces, fitted.strengths, fitted.sigmas, storage)

    def __len__(self) -> int:
        return len(self.spaces[0])

    @property
    def depths(self) -> int:
        """Number of encoder blocks that the descriptors use."""
        return self.spaces[0].side.depths

    def grown(self, tokens: Tokens) -> StoredSpaces:
        return replace(self, spaces=tuple(space.grown(tokens, self.storage) for space in self.spaces))

    def keeping(self, rows: np.ndarray) -> StoredSpaces:
        """Drop all other images."""
        spaces = [replace(one, halves=one.halves.select(rows), lengths=one.lengths[rows]) for one in self.spaces]
        return replace(self, spaces=tuple(spaces))

    def starting_with(self, older: StoredSpaces) -> StoredSpaces:
        """Reuse the sides and first chunks of `older`, which are equal."""
        pairs = zip(self.spaces, older.spaces, strict=True)
        spaces = [replace(own, side=old.side, halves=own.halves.starting_with(old.halves)) for own, old in pairs]
        return replace(self, spaces=tuple(spaces))

    def fitted(self, count: int, spec: HeadSpec, duplicates: np.ndarray | None) -> FittedSpaces:
        """Return the spaces of the first `count` images for a calibration; `duplicates` `(m,)` mark equal photos."""
        spaces = [replace(space.fitted(count), duplicates=duplicates) for space in self.spaces]
        return FittedSpaces(spec, tuple(spaces), self.strengths, self.sigmas, "float32")

    # --- files ---------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the header's entry."""
        numbers = {name: list(values) for name, values in self.sigmas.items()}
        return {"storage": self.storage, "count": len(self.spaces), "strengths": self.strengths.to_dict(), **numbers}

    def space_tensors(self) -> dict[str, np.ndarray]:
        tensors: dict[str, np.ndarray] = {}
        for index, space in enumerate(self.spaces):
            name, side = f"space{index}", space.side
            tensors |= {f"{name}.patch_directions": side.patch_directions, f"{name}.mean": side.mean}
            tensors |= {f"{name}.eigenvalues": side.eigenvalues, **write_rows(f"{name}.axes", side.axes)}
            tensors |= {} if side.grid is None else {f"{name}.grid": np.array(side.grid, np.int32)}
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
    directions = tensors[f"{name}.patch_directions"]
    rows, columns = tensors[f"{name}.grid"].tolist() if directions.ndim == 3 else (0, 0)
    side = SecondOrderSide(directions, mean, axes, eigenvalues, grid=(rows, columns) if rows else None)
    chunks = [read_rows(name, one, None) for one in coordinates]
    lengths = np.concatenate([one[f"{name}.lengths"] for one in coordinates])
    if any(chunk.shape[1] != len(eigenvalues) for chunk in chunks) or lengths.shape != (sum(map(len, chunks)),):
        raise ValueError(f"{name} has coordinates that do not fit its {len(eigenvalues)} axes")
    pseudo, hidden = (np.array(tensors[f"{name}.{key}"], np.int64) for key in ("pseudo", "hidden"))
    return StoredSpace(side, Gallery.of(*chunks), lengths, pseudo, Mask(*hidden))


# --- stored head ----------------------------------------------------------------------------------

_GEOMETRY_FIELDS, _TERM_FIELDS = ("grand_mean", "participation"), ("weight", "side", "gamma", "member")  # in the header
AnyHead = Head | SecondOrderHead | DualHead


@dataclass(frozen=True)
class StoredHead:
    """Query side and gallery of a head."""

    scorer: Scorer
    storage: str  # storage type of the large arrays
    reduced: ReducedRows | None = None  # rows that are searched instead of the gallery, if the map has `dims`

    @classmethod
    def of(cls, head: AnyHead, replica: ReplicaName, storage: str, spaces: StoredSpaces | None = None) -> StoredHead:
        """Make it from a fitted head, without data that queries do not need. `spaces` are the map's."""
        scorer = head.scorer(replica)
        if isinstance(head, SecondOrderHead):
            assert spaces is not None, "a second-order head has spaces"
            return cls(rebuild_rows(replace(scorer, dtype="float32"), spaces), storage)
        sides = tuple(_stored_side(as_residual_side(side), storage) for side in scorer.sides)
        terms: list[ScoreTerm] = []
        for term, same in zip(scorer.terms, _first_alike(scorer.terms), strict=True):
            if same is not None:
                terms.append(replace(term, gallery=terms[same].gallery))
                continue
            anchors = sides[term.side].anchors if _describes(term) else None
            if anchors is not None and len(anchors) == len(term.gallery):
                rows = anchors  # every image is an anchor: share the array
            else:
                rows = convert_rows(term.gallery.chunks[0], storage, wide=_describes(term))
            if scorer.duplicates is not None and term.gamma is not None:
                # Duplicates have equal tokens, but their computed coordinates differ in the last bits.
                rows = rows[scorer.duplicates]
            terms.append(replace(term, gallery=Gallery.of(rows)))
        return cls(replace(scorer, sides=sides, terms=tuple(terms), dtype="float32"), storage)

    def reduce_to(self, dims: int | None) -> StoredHead:
        """Fit a reduction of the image vectors to `dims` dimensions; None returns the head unchanged."""
        return self if dims is None else replace(self, reduced=fit_reduced(self.scorer.rows, dims))

    @property
    def dims(self) -> int | None:
        """Search dimensions; None for all."""
        return None if self.reduced is None else self.reduced.reduction.dims

    @property
    def in_space(self) -> bool:
        """Whether it is a second-order head, made of the coordinates in the map's space."""
        return isinstance(self.scorer.sides[0], SecondOrderSide)

    def over(self, spaces: StoredSpaces) -> StoredHead:
        """Return a second-order head with all rows of `spaces`, including images added later."""
        return self._with_rows(rebuild_rows(self.scorer, spaces))

    def grown(self, tokens: Tokens, spaces: StoredSpaces | None = None) -> StoredHead:
        """Append new images as a chunk, described by the fixed head. `spaces` hold these images already."""
        if self.in_space:
            assert spaces is not None, "a second-order head has spaces"
            return self._with_rows(append_newest_rows(self.scorer, spaces))
        old, features, rows = self.scorer.terms, self.scorer.query_vectors(tokens).terms, list[Rows]()
        for feature, term, same in zip(features, old, _first_alike(old), strict=True):
            fresh = convert_rows(feature, self.storage, wide=_describes(term)) if same is None else rows[same]
            rows.append(fresh)
        terms = [replace(term, gallery=term.gallery.appended(own)) for term, own in zip(old, rows, strict=True)]
        bias = np.concatenate([self.scorer.bias, compute_row_bias(self.scorer, rows)])
        return self._with_rows(replace(self.scorer, terms=tuple(terms), bias=bias, duplicates=None))

    def keeping(self, rows: np.ndarray) -> StoredHead:
        """Drop all other images; terms with equal rows still share them."""
        galleries = {id(term.gallery): term.gallery for term in self.scorer.terms}
        kept = {key: gallery.select(rows) for key, gallery in galleries.items()}
        terms = tuple(replace(term, gallery=kept[id(term.gallery)]) for term in self.scorer.terms)
        reduced = None if self.reduced is None else replace(self.reduced, rows=self.reduced.rows.select(rows))
        scorer = replace(self.scorer, terms=terms, bias=self.scorer.bias[rows], duplicates=None)
        return replace(self, scorer=scorer, reduced=reduced)

    def _with_rows(self, scorer: Scorer) -> StoredHead:
        """Replace the scorer by one with more rows, which the same reduction reduces."""
        reduced = None if self.reduced is None else self.reduced.with_rows(scorer.rows)
        return replace(self, scorer=scorer, reduced=reduced)

    # --- files ---------------------------------------------------------------------------------------------------

    def layout(self) -> dict[str, Any]:
        """Return the header's description of the tensors."""
        sides, terms = [], []
        for index, side in enumerate(self.scorer.sides):
            if isinstance(side, SecondOrderSide):
                sides.append({"assignment": side.assignment, "space": index})
                continue
            numbers = None if side.geometry is None else {key: getattr(side.geometry, key) for key in _GEOMETRY_FIELDS}
            sides.append({"assignment": side.assignment, "temperature": side.temperature, "geometry": numbers})
        for term, same in zip(self.scorer.terms, _first_alike(self.scorer.terms), strict=True):
            numbers = {key: getattr(term, key) for key in _TERM_FIELDS}
            terms.append({**numbers, "shares_anchors": self._shares_anchors(term), "same_as": same})
        layout: dict[str, Any] = {"storage": self.storage, "sides": sides, "terms": terms}
        if self.scorer.trimmed != TRIMMED:
            layout["trimmed"] = self.scorer.trimmed
        if self.reduced is not None:
            reduction = self.reduced.reduction
            layout["reduction"] = {"dims": reduction.dims, "mean_bias": reduction.mean_bias}
        return layout

    def _shares_anchors(self, term: ScoreTerm) -> bool:
        return (
            not self.in_space
            and term.side != GLOBAL
            and term.gallery.chunks[0] is as_residual_side(self.scorer.sides[term.side]).anchors
        )

    def head_tensors(self) -> dict[str, np.ndarray]:
        """Return the tensors of the query side."""
        tensors: dict[str, np.ndarray] = {}
        if self.reduced is not None:
            reduction = self.reduced.reduction
            tensors = {"reduction.matrix": reduction.matrix, "reduction.bias_axis": reduction.bias_axis}
        first = _first_alike(self.scorer.terms)
        for index, features in enumerate(self.scorer.calibrators or ()):
            if first[index] is None:
                tensors[f"calibrators{index}"] = features
        for index, side in enumerate(self.scorer.sides):
            if isinstance(side, SecondOrderSide):
                tensors |= {} if side.shift is None else {f"side{index}.shift": side.shift}
                continue
            tensors[f"side{index}.centers"] = side.centers
            if side.geometry is not None and side.anchors is not None:
                tensors |= write_rows(f"side{index}.anchors", side.anchors)
                tensors[f"side{index}.anchor_index"] = side.geometry.anchors
                tensors |= write_rows(f"side{index}.vectors", side.directions or side.geometry.vectors)
                tensors[f"side{index}.eta"] = side.geometry.eta
                tensors[f"side{index}.anchor_means"] = side.geometry.anchor_means
        return tensors

    def gallery_tensors(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return gallery rows `start` to `stop`, without rows that are anchors in the head's file."""
        tensors = {"bias": self.scorer.bias[start:stop]}
        if self.reduced is not None:
            tensors |= collect_reduced_tensors(self.reduced, start, stop)
        if self.in_space:
            return tensors | collect_row_scales(self.scorer, start, stop)
        for index, (term, same) in enumerate(zip(self.scorer.terms, _first_alike(self.scorer.terms), strict=True)):
            shared = len(term.gallery.chunks[0]) if self._shares_anchors(term) else 0
            rows = term.gallery.between(max(start, shared), stop)
            if rows is not None and same is None:
                tensors |= write_rows(f"term{index}", rows)
        return tensors

    @classmethod
    def from_tensors(
        cls, layout: dict[str, Any], head: Tensors, galleries: Sequence[Tensors], spaces: StoredSpaces | None = None
    ) -> StoredHead:
        reduced = read_reduced(layout["reduction"], head, galleries) if "reduction" in layout else None
        if "space" in layout["sides"][0]:
            if spaces is None:
                raise ValueError("a second-order head without spaces")
            return cls(read_space_terms(layout, head, galleries, spaces), layout["storage"], reduced)
        sides = [_read_side(f"side{index}.", entry, head) for index, entry in enumerate(layout["sides"])]
        terms: list[ScoreTerm] = []
        features: list[np.ndarray] = []
        for index, entry in enumerate(layout["terms"]):
            source = index if entry["same_as"] is None else entry["same_as"]
            width = sides[entry["side"]].centers.size if entry["side"] != GLOBAL and entry["gamma"] is None else None
            chunks = [read_rows(f"term{index}", one, width) for one in galleries if f"term{index}" in one]
            if entry["shares_anchors"]:
                chunks.insert(0, sides[entry["side"]].anchors)
            gallery = Gallery.of(*chunks) if source == index else terms[source].gallery
            terms.append(ScoreTerm(gallery=gallery, **{key: entry[key] for key in _TERM_FIELDS}))
            if f"calibrators{source}" in head:
                features.append(head[f"calibrators{source}"])
        bias = np.concatenate([gallery["bias"] for gallery in galleries])
        known, trimmed = tuple(features) or None, layout.get("trimmed", TRIMMED)
        scorer = Scorer(tuple(sides), tuple(terms), bias, calibrators=known, trimmed=trimmed)
        return cls(scorer, layout["storage"], reduced)


def _stored_side(side: ResidualSide, storage: str) -> ResidualSide:
    centers = side.centers.astype(np.float32)
    if side.geometry is None or side.anchors is None:
        return replace(side, centers=centers)
    anchors = convert_rows(side.anchors, storage, wide=True)
    vectors = side.geometry.vectors
    # 1/√η amplifies the rounding error of E in the last directions, so E has two bytes per value.
    directions = round_rows(vectors.T, fine=True) if storage == INTEGERS else None
    vectors = vectors.astype(storage) if directions is None else _no_vectors(side.geometry.anchors)
    geometry = replace(side.geometry, vectors=vectors)
    return replace(side, centers=centers, geometry=geometry, anchors=anchors, directions=directions)


def _no_vectors(anchors: np.ndarray) -> np.ndarray:
    """Return an empty E, for a geometry whose E is quantized."""
    return np.empty((len(anchors), 0), np.float32)


def _describes(term: ScoreTerm) -> bool:
    return term.gamma is None and term.side != GLOBAL


def _read_side(name: str, entry: dict[str, Any], head: Tensors) -> ResidualSide:
    side = ResidualSide(entry["assignment"], head[name + "centers"], entry["temperature"])
    if entry["geometry"] is None:
        return side
    vectors, index = read_rows(name + "vectors", head, None), head[name + "anchor_index"]
    directions = vectors if isinstance(vectors, QuantizedRows) else None
    geometry = Geometry(
        anchors=index,
        vectors=vectors if isinstance(vectors, np.ndarray) else _no_vectors(index),
        eta=head[name + "eta"],
        anchor_means=head[name + "anchor_means"],
        **entry["geometry"],
    )
    anchors = read_rows(name + "anchors", head, side.centers.size)
    return replace(side, geometry=geometry, anchors=anchors, directions=directions)


def _first_alike(terms: Sequence[ScoreTerm]) -> list[int | None]:
    """Return for each term the earlier term with the same features (an ensemble's global token), or None."""
    seen: dict[tuple[int, Gamma], int] = {}
    first = [seen.setdefault((term.side, term.gamma), index) for index, term in enumerate(terms)]
    return [None if same == index else same for index, same in enumerate(first)]
