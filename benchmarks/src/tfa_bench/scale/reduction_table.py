"""The tables of `tfa bench scale reduction`, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfa.search.reduced import AGAIN
from tfa_bench.scale.markdown import table
from tfa_bench.studies.reduction import KINDS

Row = Mapping[str, Any]


def reduction_table(rows: Sequence[Row]) -> str:
    """A table for each gallery, and how many images are needed, where that was studied."""
    galleries = [row for row in rows if "variants" in row]
    needed = [line for row in rows for line in _needed(row)]
    parts = [_of_gallery(row) for row in galleries]
    if needed:
        head = ("R@1 of all as one", "share of the images", "mean over datasets")
        parts.append(f"**How many images are needed**\n\n{table(head, needed)}")
    return "\n\n".join(parts)


def _of_gallery(row: Row) -> str:
    """Dims down, kinds of rows across, coarse → scored again; the mean over datasets in percent."""
    found = {(one["dims"], one["rows"], one["again"]): one["mean"] for one in row["variants"] if one["share"] == 1}
    spread = {one["dims"]: one["ratio"] for one in row["spreads"]}
    body = []
    for dims in dict.fromkeys(one["dims"] for one in row["variants"]):
        cells = [f"{100 * found[dims, kind, 0]:.2f} → {100 * found[dims, kind, AGAIN]:.2f}" for kind in KINDS]
        size = f"{dims:,}" if dims <= row["width"] else f"all {row['width']:,} and the bias"
        body.append([size, *cells, f"{spread[dims]:.3f}"])
    about = f"{row['images']:,} images, {row['head']}, {row['width']:,} numbers an image: R@1 {100 * row['mean']:.2f}."
    shown = table(("dims", *KINDS, "spread of a row, reduced ÷ full"), body)
    return f"**{row['gallery']}**: {about}\n\n{shown}"


def _needed(row: Row) -> Iterator[list[str]]:
    tried = {one["dims"] for one in row.get("variants", ()) if one["share"] < 1}
    for one in row.get("variants", ()):
        if one["dims"] in tried and (one["rows"], one["again"]) == ("int8", 0):
            yield [f"reduction to {one['dims']:,}, int8", f"{one['share']:.0%}", f"{100 * one['mean']:.2f}"]
    if "fitted_on" in row:
        yield ["directions and covariance of the head", f"{row['fitted_on']:.0%}", f"{100 * row['mean']:.2f}"]
