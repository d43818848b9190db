"""Nardo-Air as AnyLoc packages it: two folders and a table of the five best references of each query.

    reference_images/   query_images/   gt_matches.csv

The table has the columns query_ind and top_1_ref_ind to top_5_ref_ind. They count images from 0 in natural order
of their names.
"""

from __future__ import annotations

import re
from pathlib import Path

from tfa_bench.datasets.files import DatasetFiles, checked_indices, images_in, in_query_order
from tfa_bench.datasets.text_tables import bad_line, natural_order, read_table, whole_number


def load(
    root: Path,
    *,
    database: str = "reference_images",
    queries: str = "query_images",
    matches: str = "gt_matches.csv",
    top: int = 5,
) -> DatasetFiles:
    """Positives are the references of the columns top_1_ref_ind to top_`top`_ref_ind."""
    references = natural_order(images_in(root / database))
    query_images = natural_order(images_in(root / queries))
    table = read_table(root / matches)
    who = table.column("query_ind")
    best = [table.column(f"top_{rank}_ref_ind") for rank in range(1, top + 1)]
    rows = []
    for line, row in table.rows:
        query = whole_number(re.sub(r"\.0*$", "", row[who]))  # tables written by pandas have 3.0 for 3
        if query is None:
            raise bad_line(table.path, line, f"query_ind is {row[who]!r}; it must be the number of a query")
        listed = [table.number(line, row, column) for column in best]
        indices = checked_indices(listed, len(references), f"{table.path}, line {line}")
        rows.append((query, indices))
    positives, notes = in_query_order(rows, len(query_images), table.path)
    return DatasetFiles(references, query_images, positives, notes=notes)
