"""VPAIR: aerial queries, rendered references and, if wanted, 10 000 distractors.

    reference_views/   queries/   distractors/   vpair_gt.npy

`vpair_gt.npy` lists the positives of each query as numbers of references, in natural order of names. Distractors
follow the references, so these numbers hold with and without them.
"""

from __future__ import annotations

from pathlib import Path

from tfa_bench.datasets.files import DatasetFiles, images_in
from tfa_bench.datasets.layouts.gt_npy import read_positives
from tfa_bench.datasets.text_tables import natural_order


def load(root: Path, *, distractors: bool = False) -> DatasetFiles:
    """References, then distractors if wanted; positives are references only."""
    references = natural_order(images_in(root / "reference_views"))
    queries = natural_order(images_in(root / "queries"))
    positives, notes = read_positives(root / "vpair_gt.npy", len(references), len(queries))
    if distractors:
        others = natural_order(images_in(root / "distractors"))
        return DatasetFiles(
            references + others, queries, positives, notes=(*notes, f"{len(others)} distractors appended")
        )
    return DatasetFiles(references, queries, positives, notes=notes)
