"""The tables of `tfa bench reduction`, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from tfa.bench.studies.reduction import KINDS, ReducedGallery
from tfa.search.reduced import AGAIN


def page(galleries: Sequence[ReducedGallery]) -> str:
    """A table for each gallery; of the first also how many images are needed, where that was studied."""
    return "\n\n".join([*map(_table, galleries), *(_needed(one) for one in galleries if one.fitted_on)])


def _table(gallery: ReducedGallery) -> str:
    """Dims down, kinds of rows across, coarse → scored again; the mean over datasets in percent."""
    found = {(one.dims, one.rows, one.again): one.mean for one in gallery.variants if one.share == 1}
    spread = {one.dims: one.ratio for one in gallery.spreads}
    full = 100 * sum(gallery.recall.values()) / len(gallery.recall)
    lines = [
        f"### {gallery.gallery}\n",
        f"{gallery.images:,} images, {gallery.head}, {gallery.width:,} numbers an image: R@1 {full:.2f}.\n",
        "| dims | " + " | ".join(KINDS) + " | spread of a row, reduced ÷ full |",
        "|--:|" + "--:|" * (len(KINDS) + 1),
    ]
    for dims in dict.fromkeys(one.dims for one in gallery.variants):
        cells = [f"{100 * found[dims, kind, 0]:.2f} → {100 * found[dims, kind, AGAIN]:.2f}" for kind in KINDS]
        lines.append(f"| {dims:,} | " + " | ".join(cells) + f" | {spread[dims]:.3f} |")
    return "\n".join(lines)


def _needed(gallery: ReducedGallery) -> str:
    lines = ["### How many images are needed\n", "| what | share of the images | R@1 |", "|---|--:|--:|"]
    for one in gallery.variants:
        if (
            one.rows == "int8"
            and not one.again
            and any(one.dims == own.dims and own.share < 1 for own in gallery.variants)
        ):
            lines.append(f"| reduction to {one.dims:,}, int8 | {one.share:.0%} | {100 * one.mean:.2f} |")
    for fit in gallery.fitted_on:
        lines.append(f"| directions and covariance of the head | {fit['share']:.0%} | {100 * fit['mean']:.2f} |")
    return "\n".join(lines)
