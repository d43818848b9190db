"""A stored head: what answering needs of a fitted head, in the dtype it is kept in.

Only the chosen assignment and carrier of one replica (or of three, for the ensemble) are kept. A second-order head
shares sides and rows with the space of its map. The same object comes from a head that was just fitted and from files;
`tensors` and `from_tensors` are each other's inverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfa.core.tokens import Tokens
from tfa.maps.stored_rows import (
    INTEGERS,
    StoredSpaces,
    Tensors,
    append_newest_rows,
    collect_reduced_tensors,
    collect_reduction_tensors,
    collect_row_scales,
    convert_rows,
    describe_reduction,
    read_reduced,
    read_rows,
    read_space_terms,
    rebuild_rows,
    write_rows,
)
from tfa.method.carriers import Gamma
from tfa.method.head import Head, ReplicaName
from tfa.method.scorer import (
    GLOBAL,
    ResidualSide,
    Scorer,
    ScoreTerm,
    SecondOrderSide,
    as_residual_side,
    compute_row_bias,
)
from tfa.method.second_order_head import SecondOrderHead
from tfa.method.spectrum import Geometry
from tfa.search.gallery import Gallery, Rows
from tfa.search.quantized import QuantizedRows, round_rows
from tfa.search.reduced import ReducedRows, fit_reduced

_GEOMETRY_FIELDS = ("grand_mean", "participation")  # the numbers of a geometry and of a term that the header holds
_TERM_FIELDS = ("weight", "side", "gamma", "member")
AnyHead = Head | SecondOrderHead


@dataclass(frozen=True)
class StoredHead:
    """Query side and gallery of a map."""

    scorer: Scorer
    storage: str  # how the large arrays are kept, one of `base.config.STORAGES`
    reduced: ReducedRows | None = None  # what is searched in place of the gallery, where the map was built so

    @classmethod
    def of(cls, head: AnyHead, replica: ReplicaName, storage: str, spaces: StoredSpaces | None = None) -> StoredHead:
        """Drop from a fitted head what answering does not need. `spaces` are the map's, if it has some."""
        scorer = head.scorer(replica)
        if isinstance(head, SecondOrderHead):
            assert spaces is not None, "a second-order head lives in a space"
            return cls(rebuild_rows(replace(scorer, dtype="float32"), spaces), storage)
        sides = tuple(_stored_side(as_residual_side(side), storage) for side in scorer.sides)
        terms: list[ScoreTerm] = []
        for term, same in zip(scorer.terms, _first_alike(scorer.terms), strict=True):
            if same is not None:
                terms.append(replace(term, gallery=terms[same].gallery))
                continue
            anchors = sides[term.side].anchors if _describes(term) else None
            if anchors is not None and len(anchors) == len(term.gallery):
                rows = anchors  # every image is an anchor: one copy is enough
            else:
                rows = convert_rows(term.gallery.chunks[0], storage, wide=_describes(term))
            if scorer.duplicates is not None and term.gamma is not None:
                # Duplicates have equal tokens; the eigenvectors gave their coordinates unequal last bits.
                rows = rows[scorer.duplicates]
            terms.append(replace(term, gallery=Gallery.of(rows)))
        return cls(replace(scorer, sides=sides, terms=tuple(terms), dtype="float32"), storage)

    def reduce_to(self, dims: int | None) -> StoredHead:
        """Fit a reduction of the image vectors to `dims` dimensions; None leaves the head as it is."""
        return self if dims is None else replace(self, reduced=fit_reduced(self.scorer.rows, dims))

    @property
    def dims(self) -> int | None:
        """Numbers of an image that are searched; None if all are."""
        return None if self.reduced is None else self.reduced.reduction.dims

    @property
    def in_space(self) -> bool:
        """Is it made of the coordinates in its map's space?"""
        return isinstance(self.scorer.sides[0], SecondOrderSide)

    def over(self, spaces: StoredSpaces) -> StoredHead:
        """A second-order head with all rows of `spaces`, the images that joined the map since among them."""
        return self._with_rows(rebuild_rows(self.scorer, spaces))

    def grown(self, tokens: Tokens, spaces: StoredSpaces | None = None) -> StoredHead:
        """Add new images, described by the frozen vocabulary and geometry: one more chunk of gallery rows a term.

        `spaces` are the map's, with these images already, if it has some.
        """
        if self.in_space:
            assert spaces is not None, "a second-order head lives in a space"
            return self._with_rows(append_newest_rows(self.scorer, spaces))
        old, features, rows = self.scorer.terms, self.scorer.query_vectors(tokens).terms, list[Rows]()
        for feature, term, same in zip(features, old, _first_alike(old), strict=True):
            fresh = convert_rows(feature, self.storage, wide=_describes(term)) if same is None else rows[same]
            rows.append(fresh)
        terms = [replace(term, gallery=term.gallery.appended(own)) for term, own in zip(old, rows, strict=True)]
        bias = np.concatenate([self.scorer.bias, compute_row_bias(self.scorer, rows)])
        return self._with_rows(replace(self.scorer, terms=tuple(terms), bias=bias, duplicates=None))

    def _with_rows(self, scorer: Scorer) -> StoredHead:
        """Replace the scorer by one with more rows; the reduction stays and reduces the new rows."""
        reduced = None if self.reduced is None else self.reduced.with_rows(scorer.rows)
        return replace(self, scorer=scorer, reduced=reduced)

    # --- files ---------------------------------------------------------------------------------------------------

    def layout(self) -> dict[str, Any]:
        """What the header says of the tensors."""
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
        reduction = {} if self.reduced is None else {"reduction": describe_reduction(self.reduced)}
        return {"storage": self.storage, "sides": sides, "terms": terms, **reduction}

    def _shares_anchors(self, term: ScoreTerm) -> bool:
        return (
            not self.in_space
            and term.side != GLOBAL
            and term.gallery.chunks[0] is as_residual_side(self.scorer.sides[term.side]).anchors
        )

    def head_tensors(self) -> dict[str, np.ndarray]:
        """The query side."""
        tensors = {} if self.reduced is None else collect_reduction_tensors(self.reduced)
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
        """Gallery rows `start` to `stop`; rows that are the anchors themselves are in the head's file."""
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
        cls,
        layout: dict[str, Any],
        head: Tensors,
        galleries: Sequence[Tensors],
        spaces: StoredSpaces | None = None,
    ) -> StoredHead:
        reduced = read_reduced(layout["reduction"], head, galleries) if "reduction" in layout else None
        if "space" in layout["sides"][0]:
            if spaces is None:
                raise ValueError("a second-order head, but no space")
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
        scorer = Scorer(tuple(sides), tuple(terms), bias, calibrators=tuple(features) or None)
        return cls(scorer, layout["storage"], reduced)


def _stored_side(side: ResidualSide, storage: str) -> ResidualSide:
    centers = side.centers.astype(np.float32)
    if side.geometry is None or side.anchors is None:
        return replace(side, centers=centers)
    anchors = convert_rows(side.anchors, storage, wide=True)
    vectors = side.geometry.vectors
    # 1/√η enlarges the rounding of E in the last directions: two bytes a number, where rows have one.
    directions = round_rows(vectors.T, fine=True) if storage == INTEGERS else None
    vectors = vectors.astype(storage) if directions is None else _no_vectors(side.geometry.anchors)
    geometry = replace(side.geometry, vectors=vectors)
    return replace(side, centers=centers, geometry=geometry, anchors=anchors, directions=directions)


def _no_vectors(anchors: np.ndarray) -> np.ndarray:
    """What a geometry holds in place of E where that is kept in integers."""
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
    """Find for each term the earlier one with the same features (an ensemble's global token); None if first."""
    seen: dict[tuple[int, Gamma], int] = {}
    first = [seen.setdefault((term.side, term.gamma), index) for index, term in enumerate(terms)]
    return [None if same == index else same for index, same in enumerate(first)]
