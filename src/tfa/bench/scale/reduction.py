"""The part `reduction`: what fewer numbers an image, and fewer bits a number, cost in recall.

All datasets as one gallery, then each alone; and how many images the directions and the covariance of the head need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tfa.bench.heads.contract import Shared
from tfa.bench.scale.datasets import UNION, Datasets, joined
from tfa.bench.scale.kept_rows import KeptRows
from tfa.bench.studies.reduction import DIMS, SHARES, fitted_on, study_gallery
from tfa.core.progress import Progress, as_progress

PART = "reduction"


def run_reduction(
    datasets: Datasets, kept: KeptRows, progress: Progress | bool | None, dims: Sequence[int] = DIMS
) -> Iterator[dict[str, Any]]:
    """A row for each gallery, and for each share of the images of the union."""
    bars = as_progress(progress)
    encoder = datasets.encoder
    for gallery in datasets.galleries:
        name = f"{encoder}, {gallery}"
        if not kept.has(PART, name):
            members = datasets.members(gallery)
            shared = Shared(spec=members[0].spec, progress=bars)
            found = study_gallery(gallery, members, joined(members), shared, dims, counted=gallery == UNION)
            yield kept.keep(PART, name, {"encoder": encoder, **found.to_dict()})
    [head] = [row["head"] for row in kept.of(PART) if row["name"] == f"{encoder}, {UNION}"]
    for share in SHARES:
        name = f"{encoder}, {UNION}, head fitted on {share:.0%}"
        if not kept.has(PART, name):
            members = datasets.members(UNION)
            shared = Shared(spec=members[0].spec, progress=bars)
            found_on = fitted_on(share, head, members, joined(members), shared)
            yield kept.keep(PART, name, {"encoder": encoder, "gallery": UNION, **found_on})
