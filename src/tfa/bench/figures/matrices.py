"""Score matrices: a piece of each head's scores side by side, each row standardised, positives marked by dots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfa.bench.figures.plotting import FAINT, dress, new_figure, save
from tfa.bench.figures.record_groups import Study
from tfa.bench.records import ScoreSample, Truth
from tfa.method.evidence import mean_and_spread, z_scores

LIMIT = 3.0  # colours end at three standard deviations
ACROSS = 2  # matrices in a row: readable on a phone


def standardised(scores: np.ndarray) -> np.ndarray:
    """Each row less its mean, over its standard deviation; nan where a score is not finite, 0 where all are equal."""
    rows = scores.astype(np.float64)
    hidden = ~np.isfinite(rows)
    row, column = np.nonzero(hidden)
    mean, spread = mean_and_spread(rows, (row, column))
    return np.where(hidden, np.nan, z_scores(rows, mean[:, None], spread[:, None]))


def positives_in(sample: ScoreSample, truth: Truth) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the piece where the image is a positive of the query."""
    database = np.asarray(sample.database, np.int64)
    right = [np.isin(database, truth.positives[int(query)]) for query in sample.queries]
    rows, columns = np.nonzero(np.array(right, bool).reshape(len(right), len(database)))
    return rows, columns


def has_sample(study: Study, head: str) -> bool:
    return bool(study.records[head].sample.steps.size)


def draw_matrices(study: Study, heads: Sequence[str], path: Path) -> None:
    across = min(len(heads), ACROSS)
    down = -(-len(heads) // across)
    figure = new_figure(2.6 * across + 0.9, 2.9 * down)
    image = None
    panels = []
    for number, head in enumerate(heads):
        sample = study.records[head].sample
        axes = figure.add_subplot(down, across, number + 1)
        image = axes.imshow(
            standardised(sample.scores), cmap="viridis", vmin=-LIMIT, vmax=LIMIT,
            aspect="auto", interpolation="nearest",
        )  # fmt: skip
        rows, columns = positives_in(sample, study.truth)
        axes.scatter(columns, rows, s=5, color="#ff4d3d", linewidths=0)
        # The ticks would count within the piece, not within the dataset: they tell nothing.
        axes.set_xticks([])
        axes.set_yticks([])
        first = number % across == 0
        dress(axes, x="database images", y="queries" if first else "", title=head, grid=False)
        panels.append(axes)
    if image is not None:
        bar = figure.colorbar(image, ax=panels, shrink=0.8, pad=0.02)
        bar.set_label("standard deviations from the row's mean", fontsize=8, color=FAINT)
        bar.ax.tick_params(labelsize=8, colors=FAINT)
        bar.outline.set_visible(False)
    save(figure, path)
