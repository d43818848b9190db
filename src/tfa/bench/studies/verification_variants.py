"""The ways to verify candidates that `tfa bench verification` compares: as built, and one factor changed at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tfa.bench.studies.match_geometries import (
    Measure,
    affine,
    as_built,
    by_similarity,
    counted,
    homography,
    one_way,
    similarity,
    window_of,
    without_geometry,
)
from tfa.errors import BadSpec
from tfa.types import AUTO, Candidates, RerankSpec
from tfa.verification.reranking import combine_scores

Fuse = Callable[[np.ndarray, np.ndarray], np.ndarray]  # z-scores `c` and evidence `c` → what orders them
DEFAULT = RerankSpec()
FEW = 20  # candidates of what differs from the default in another factor
FULL = 1 << 20  # more dimensions than any encoder has: all of them are kept
NOTHING, BUILT = "none", "default"


class Kept(NamedTuple):
    """What is kept of a patch."""

    dimensions: int = DEFAULT.dimensions
    patches: str = DEFAULT.patches  # full or small


AS_BUILT = Kept()


def weighted(weight: float) -> Fuse:
    """The standardised score and so many times the root of the evidence."""
    return lambda standing, evidence: standing + weight * np.sqrt(evidence)


def alone(standing: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    """Evidence alone."""
    return evidence


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to verify. What is not said is as built, with 20 candidates."""

    factor: str
    title: str
    measure: Measure | None = as_built  # None: the head's own order
    fuse: Fuse = combine_scores
    kept: Kept = AS_BUILT
    candidates: Candidates = FEW


VARIANTS: Mapping[str, Variant] = {
    NOTHING: Variant(factor="", title="no verification", measure=None),
    BUILT: Variant(factor="", title="as built", candidates=AUTO),
    "no-geometry": Variant(factor="geometry", title="mutual matches, no geometry", measure=without_geometry),
    "window-3": Variant(factor="geometry", title="displacements in 3 × 3 cells", measure=window_of(3)),
    "window-5": Variant(factor="geometry", title="displacements in 5 × 5 cells", measure=window_of(5)),
    "window-7": Variant(factor="geometry", title="displacements in 7 × 7 cells", measure=window_of(7)),
    "window-9": Variant(factor="geometry", title="displacements in 9 × 9 cells", measure=window_of(9)),
    "similarity": Variant(factor="geometry", title="similarity, two-point samples", measure=similarity),
    "affine": Variant(factor="geometry", title="affine map, 10 candidates", measure=affine, candidates=10),
    "homography": Variant(factor="geometry", title="homography, 10 candidates", measure=homography, candidates=10),
    "one-way": Variant(factor="matches", title="one-way matches", measure=one_way),
    "by-similarity": Variant(factor="votes", title="weighted by similarity", measure=by_similarity),
    "counted": Variant(factor="votes", title="counted alike", measure=counted),
    "dimensions-64": Variant(factor="dimensions", title="64 dimensions", kept=Kept(64)),
    "dimensions-128": Variant(factor="dimensions", title="128 dimensions", kept=Kept(128)),
    "dimensions-256": Variant(factor="dimensions", title="256 dimensions", kept=Kept(256)),
    "dimensions-full": Variant(factor="dimensions", title="all dimensions", kept=Kept(FULL)),
    "patches-small": Variant(
        factor="patches", title="small patches, else as built", kept=Kept(patches="small"), candidates=AUTO
    ),
    "candidates-10": Variant(factor="candidates", title="10 candidates", candidates=10),
    "candidates-20": Variant(factor="candidates", title="20 candidates", candidates=20),
    "candidates-50": Variant(factor="candidates", title="50 candidates", candidates=50),
    "candidates-100": Variant(factor="candidates", title="100 candidates", candidates=100),
    "fusion-alone": Variant(factor="fusion", title="evidence alone", fuse=alone),
    "fusion-1": Variant(factor="fusion", title="z + √M", fuse=weighted(1)),
    "fusion-2": Variant(factor="fusion", title="z + 2 √M", fuse=weighted(2)),
    "fusion-4": Variant(factor="fusion", title="z + 4 √M", fuse=weighted(4)),
    "fusion-8": Variant(factor="fusion", title="z + 8 √M", fuse=weighted(8)),
}
FACTORS = tuple(dict.fromkeys(variant.factor for variant in VARIANTS.values() if variant.factor))


def of_factors(names: Sequence[str] | None) -> dict[str, Variant]:
    """The variants of some factors, and what all are compared with; None: of all factors."""
    for name in names or ():
        if name not in FACTORS:
            raise BadSpec(f"there is no factor {name!r}; use {', '.join(FACTORS)}")
    return {name: one for name, one in VARIANTS.items() if names is None or one.factor in ("", *names)}
