"""The terms of a second-order head in a map: which of the space's coordinates they compare, on which scale.

Features v (as coordinates z), 1 and φ_½ follow from the space alone. Any other φ_γ has a scale of each row,
1 / ‖λ^{1/4 − γ/2} φ_½‖, which is kept with the head: computing it would read every row of the map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfa.maps.stored_rows import Tensors
from tfa.maps.stored_space import StoredSpace, StoredSpaces
from tfa.method.carriers import Gamma
from tfa.method.scorer import Scorer, ScoreTerm, compute_row_bias
from tfa.method.second_order_space import normalize_rows
from tfa.search.gallery import Gallery, Rows, ScaledRows


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
