"""Draw curves, grids of answers and score matrices with matplotlib.

A figure is drawn from a `Study`: the records of one dataset under one encoder, and their ground truth.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tfa.core.files import write_atomically
from tfa.errors import BadSpec, MissingExtra
from tfa.explain.draw_montage import EDGE, GAP, TILE, TITLE, MontageRow, MontageTile, compose, elide
from tfa.explain.draw_montage import INK as MONTAGE_INK
from tfa.explain.draw_montage import PAPER as MONTAGE_PAPER
from tfa.method.evidence import mean_and_spread, z_scores
from tfa_bench.records import BadRecord, Record, RecordPath, ScoreSample, Truth, find_records, truth_of
from tfa_bench.scores import KS, Scored, score

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# --- records -------------------------------------------------------------------------------------------------------


REFERENCE = "tfa"
HEADS = ("tfa", "anyloc", "tfvpr", "ria")  # compared in grids and matrices
_MOST_HEADS = 4  # heads that fit in a figure if the usual ones are missing


@dataclass(frozen=True)
class Study:
    truth: Truth
    encoder: str
    records: Mapping[str, Record]  # by head name, in order
    scored: Mapping[str, Scored]  # by the same names

    @property
    def folder(self) -> str:
        """Folder of its figures below the output folder, as in the records."""
        return f"{_folder_name(self.truth.name)}/{_folder_name(self.encoder)}"

    def heads(self, reference: str = REFERENCE, usual: Collection[str] = HEADS) -> list[str]:
        """Return the reference and the usual heads that are recorded; others only if fewer than two are."""
        chosen = [name for name in dict.fromkeys((reference, *usual)) if name in self.records]
        if len(chosen) < 2:
            chosen += [name for name in self.records if name not in chosen]
            chosen = chosen[:_MOST_HEADS]
        return chosen


@dataclass(frozen=True)
class BestAnswers:
    """Best answer of a head to each query, from the first split that evaluated it and the first replica."""

    image: np.ndarray  # (q,): database index; -1 without an answer
    evaluated: np.ndarray  # (q,)
    right: np.ndarray  # (q,)

    @classmethod
    def of(cls, record: Record, truth: Truth) -> BestAnswers:
        count = len(truth.queries)
        image, evaluated = np.full(count, -1, np.int64), np.zeros(count, bool)
        for split in range(len(record.folds)):
            new = record.evaluated(split)
            new = new[~evaluated[new]]
            top = record.rankings[new, split, 0, 0].astype(np.int64)
            image[new] = np.where(top == record.nothing, -1, top)
            evaluated[new] = True
        right = np.array([image[q] in truth.positives[q] for q in range(count)], bool)
        return cls(image, evaluated, right)


def find_studies(results: Path, datasets: Collection[str] | None = None, encoder: str | None = None) -> list[Study]:
    """Return all studies below a results folder, sorted by dataset and encoder; an unknown name is an error."""
    truths: dict[Path, Truth] = {}
    groups: dict[tuple[str, str], dict[str, tuple[Record, RecordPath]]] = {}
    for path in find_records(results):
        record, folder = Record.read(path), path.dataset_folder
        if folder not in truths:
            truths[folder] = truth_of(path)
        heads = groups.setdefault((truths[folder].name, str(record.encoder["id"])), {})
        if record.name in heads:
            raise BadRecord(f"{heads[record.name][1]} and {path} have the same head; remove one")
        heads[record.name] = (record, path)
    if not groups:
        raise BadRecord(f"{results} holds no records to draw; write them with: tfa bench run --out {results}")
    _check_names("dataset", datasets, {name for name, _ in groups}, results)
    _check_names("encoder", None if encoder is None else [encoder], {used for _, used in groups}, results)
    studies = []
    for (name, used), heads in sorted(groups.items()):
        if (not datasets or name in datasets) and encoder in (None, used):
            studies.append(_study(heads, truths))
    if not studies:
        raise BadSpec(f"{results} has no records of these datasets under encoder {encoder!r}; drop one filter")
    return studies


def _study(heads: Mapping[str, tuple[Record, RecordPath]], truths: Mapping[Path, Truth]) -> Study:
    records = {name: record for name, (record, _) in sorted(heads.items(), key=_counting)}
    first = next(iter(heads.values()))
    truth = truths[first[1].dataset_folder]
    # `score` rejects a record made with other positives than these.
    scored = {name: score(record, truth, ks=[k for k in KS if k <= record.depth]) for name, record in records.items()}
    return Study(truth, str(first[0].encoder["id"]), records, scored)


def _counting(item: tuple[str, Any]) -> list[tuple[int, str]]:
    """Sort key that puts c8 before c16."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", item[0])]


def _folder_name(text: str) -> str:
    """Return a safe folder name: names in records from elsewhere must not escape the output folder."""
    return re.sub(r"[^\w@+.-]|^\.+", "_", text)


def _check_names(what: str, names: Collection[str] | None, recorded: Collection[str], results: Path) -> None:
    unknown = [name for name in names or () if name not in recorded]
    if unknown:
        there = ", ".join(sorted(recorded)) or "none at all"
        raise BadSpec(f"{results} has no records of {what} {unknown[0]!r}; recorded: {there}")


# --- plots ---------------------------------------------------------------------------------------------------------


INK, FAINT, LINE, PAPER = "#1c2126", "#5a636c", "#dfe3e7", "#ffffff"
# Distinct for most color-blind readers; lines also differ in dashes or markers.
COLORS = ("#0f6ab4", "#d1642b", "#2e9e5b", "#8a4fbf", "#b8860b", "#c2306e", "#3b8ea5", "#6b7280")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
_LINES = ("-", "--", "-.", ":")
# Legends are below the axes: they never hide data, and a narrow figure is readable on a phone.
BELOW: dict[str, Any] = {"fontsize": 9, "frameon": False, "loc": "outside lower center", "ncols": 3}
WIDTH, HEIGHT = 5.8, 4.8  # inches
_RESOLUTION = 150  # dots per inch


def new_figure(width: float = WIDTH, height: float = HEIGHT) -> Figure:
    """Create an empty figure; sizes in inches."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("figures need matplotlib; install with: pip install 'tfa-bench'") from None
    figure = Figure(figsize=(width, height), dpi=_RESOLUTION, facecolor=PAPER, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def dress(axes: Axes, *, x: str, y: str, title: str = "", grid: bool = True) -> None:
    """Set labels, a faint grid and no box."""
    axes.set_xlabel(x, color=INK, fontsize=10)
    axes.set_ylabel(y, color=INK, fontsize=10)
    if title:
        axes.set_title(title, color=INK, fontsize=11, loc="left", parse_math=False)
    axes.tick_params(colors=FAINT, labelsize=9, length=3)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(LINE)
    if grid:
        axes.grid(True, color=LINE, linewidth=0.8)
        axes.set_axisbelow(True)


def save(figure: Figure, path: Path) -> None:
    """Save a PNG atomically, without the library's version, so that equal figures are equal files."""
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="png", metadata={"Software": None}))


_FAMILIES = ("tfa", "dual")
_ALL_OF_THEM = {"full": "FullQ", "cross-fit": "cross-fit"}  # plans without a size, drawn separately


@dataclass(frozen=True)
class Point:
    """R@1 in percent: mean and standard deviation over splits."""

    head: str
    mean: float
    spread: float

    @classmethod
    def of(cls, scored: Scored) -> Point:
        return cls(scored.head, 100 * scored.recalls[1].mean, 100 * scored.recalls[1].sd)


@dataclass(frozen=True)
class CalibrationCurve:
    family: str
    budgets: Mapping[int, Point]  # by number of calibration queries, ascending
    apart: Mapping[str, tuple[Point, ...]]  # "FullQ" and "cross-fit"
    uncalibrated: Point | None

    def words(self) -> str:
        parts = [f"{n} queries {p.mean:.1f} ± {p.spread:.1f}" for n, p in self.budgets.items()]
        parts += [f"{p.head} {p.mean:.1f}" for points in self.apart.values() for p in points]
        if self.uncalibrated is not None:
            parts.append(f"uncalibrated {self.uncalibrated.mean:.1f}")
        return f"{self.family}: {', '.join(parts)}"


def calibration_curves(study: Study) -> list[CalibrationCurve]:
    """Return one curve per family that has a budget `tfa-c16`, `tfa-c64`, …; other heads have none."""
    points = {head: Point.of(numbers) for head, numbers in study.scored.items()}
    curves = []
    for family in _FAMILIES:
        budgets = {int(n[1]): points[h] for h in study.records if (n := re.fullmatch(rf"{family}-c([1-9]\d*)", h))}
        if not budgets:
            continue
        apart: dict[str, tuple[Point, ...]] = {}
        for head, record in study.records.items():
            kind = _ALL_OF_THEM.get(record.plan["kind"])
            # Ablations and our heads that use all queries too are not points of this curve.
            if kind is not None and re.fullmatch(rf"{family}-(fullq|crossfit(-contiguous)?)", head):
                apart[kind] = (*apart.get(kind, ()), points[head])
        plain = points.get(family)
        curves.append(CalibrationCurve(family, dict(sorted(budgets.items())), apart, plain))
    return curves


def draw_calibration(curves: Sequence[CalibrationCurve], path: Path) -> None:
    figure = new_figure()
    axes = figure.add_subplot()
    sizes = sorted({n for curve in curves for n in curve.budgets})
    at = {n: float(np.log2(n)) for n in sizes}  # budgets double, so steps are equal
    names = [name for name in _ALL_OF_THEM.values() if any(name in curve.apart for curve in curves)]
    beside = {name: at[sizes[-1]] + 1.0 + 0.9 * k for k, name in enumerate(names)}
    drawn = [artist for number, curve in enumerate(curves) for artist in _draw_family(axes, curve, number, at, beside)]
    if names:
        axes.axvline(at[sizes[-1]] + 0.5, color=FAINT, linewidth=0.8, linestyle=":")
    dress(axes, x="calibration queries N", y="R@1, percent")
    axes.set_xticks([*at.values(), *beside.values()], [*map(str, sizes), *names])
    axes.set_xlim(at[sizes[0]] - 0.5, max([*at.values(), *beside.values()]) + 0.5)
    figure.legend(handles=drawn, **{**BELOW, "ncols": 2})  # by family; matplotlib would sort by kind
    save(figure, path)


def _draw_family(
    axes: Axes, curve: CalibrationCurve, number: int, at: Mapping[int, float], beside: Mapping[str, float]
) -> list[Any]:
    """Draw one family and return its artists for the legend."""
    color, mark = COLORS[number], MARKS[number]
    shift = 0.06 * number  # offset families, so that error bars do not overlap
    points = list(curve.budgets.values())
    bars = axes.errorbar(
        [at[n] + shift for n in curve.budgets], [p.mean for p in points], yerr=[p.spread for p in points],
        color=color, marker=mark, markersize=6, linewidth=1.6, capsize=3, label=f"{curve.family}, mean ± SD",
    )  # fmt: skip
    drawn: list[Any] = [bars]
    for name, several in curve.apart.items():
        for k, point in enumerate(several):
            x = beside[name] + shift + 0.16 * k
            drawn += axes.plot(
                [x], [point.mean], color=color, marker=mark, markersize=8, markerfacecolor="white", linestyle="none",
                label=point.head,
            )  # fmt: skip
    if curve.uncalibrated is not None:
        label = f"{curve.family}, uncalibrated"
        level = axes.axhline(curve.uncalibrated.mean, color=color, linestyle="--", linewidth=1.2, label=label)
        drawn.append(level)
    return drawn


def draw_precision_recall(scored: Mapping[str, Scored], path: Path) -> None:
    """Draw precision against recall over the confidence threshold, for each head's first split and replica."""
    figure = new_figure()
    axes = figure.add_subplot()
    for number, (head, numbers) in enumerate(scored.items()):
        curve = numbers.acceptance.curve
        axes.plot(
            [100 * recall for recall in curve["recall"]], [100 * precision for precision in curve["precision"]],
            linewidth=1.6, color=COLORS[number % len(COLORS)], linestyle=_LINES[number % len(_LINES)],
            label=f"{head} ({100 * numbers.acceptance.area.mean:.1f})",
        )  # fmt: skip
    dress(axes, x="recall, percent of all queries", y="precision, percent of accepted answers")
    axes.set_xlim(0, 102)
    axes.set_ylim(0, 102)
    figure.legend(title="head (area)", title_fontsize=9, **BELOW)
    save(figure, path)


ROWS = 6
PARTS = 3  # rows come from each third of the queries
HEADER = 38  # pixels above the grid for the names of the columns


@dataclass(frozen=True)
class Grid:
    """Content of one grid, before drawing."""

    queries: tuple[int, ...]
    eligible: int  # number of queries it was chosen from
    heads: tuple[str, ...]
    answers: Mapping[str, BestAnswers]


def choose(
    study: Study,
    heads: Sequence[str],
    *,
    successes: bool,
    rows: int = ROWS,
    by_all: bool = False,
    without: Collection[int] = (),
) -> Grid:
    """Choose queries that the first head answers correctly and another does not, or the reverse.

    With `by_all`, all others differ from the first head. `without` are queries to leave out.
    """
    if rows < 1:
        raise BadSpec(f"rows={rows} is out of range: a grid has at least 1 row")
    answers = {head: BestAnswers.of(study.records[head], study.truth) for head in heads}
    reference, *others = answers.values()
    evaluated = np.logical_and.reduce([answer.evaluated for answer in answers.values()])
    differing = (np.all if by_all else np.any)([other.right != reference.right for other in others], axis=0)
    chosen = evaluated & differing & (reference.right == successes)
    chosen[list(without)] = False
    eligible = np.flatnonzero(chosen)
    return Grid(tuple(spread_out(eligible, len(evaluated), rows)), len(eligible), tuple(heads), answers)


def spread_out(eligible: np.ndarray, queries: int, rows: int) -> list[int]:
    """Choose at most `rows` eligible queries, equally many from each third of all queries if possible.

    The choice is deterministic: a third that provides k rows provides the middles of k equal runs.
    """
    edges = [queries * part // PARTS for part in range(PARTS + 1)]
    thirds = [eligible[(eligible >= low) & (eligible < high)] for low, high in pairwise(edges)]
    counts = [0] * PARTS
    while sum(counts) < min(rows, len(eligible)):
        # Take the next row from the third with the fewest rows so far; the others make up for one that runs out.
        open_parts = [part for part in range(PARTS) if counts[part] < len(thirds[part])]
        counts[min(open_parts, key=lambda part: counts[part])] += 1
    return [
        int(third[(2 * i + 1) * len(third) // (2 * count)])
        for third, count in zip(thirds, counts, strict=True)
        for i in range(count)
    ]


def montage_rows(grid: Grid, truth: Truth, photos: Path, dataset: str = "") -> list[MontageRow]:
    """Return the rows of a grid, named after their dataset if it is given."""
    return [
        MontageRow(
            photos / truth.queries[query],
            f"{dataset}{', ' if dataset else ''}query {query}: {truth.queries[query]}",
            [_tile(grid.answers[head], query, truth, photos) for head in grid.heads],
        )
        for query in grid.queries
    ]


def draw_sheet(rows: Sequence[MontageRow], heads: Sequence[str]) -> Image.Image:
    """Draw rows below the names of the heads; a photo that is missing is an empty box with its name."""
    body = compose(rows)
    sheet = Image.new("RGB", (body.width, body.height + HEADER), MONTAGE_PAPER)
    sheet.paste(body, (0, HEADER))
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=TITLE + 3)
    pen.text((EDGE, EDGE), "query", font=font, fill=MONTAGE_INK)
    for column, head in enumerate(heads):
        pen.text((_left(column), EDGE), elide(head, TILE[0], TITLE + 3), font=font, fill=MONTAGE_INK)
    return sheet


def write_sheet(rows: Sequence[MontageRow], heads: Sequence[str], path: Path) -> None:
    sheet = draw_sheet(rows, heads)
    write_atomically(path, lambda temporary: sheet.save(temporary, format="PNG"))


def _left(column: int) -> int:
    """Return the left edge of a column of answers; the montage has a double gap after the query."""
    return EDGE + TILE[0] + 2 * GAP + column * (TILE[0] + GAP)


def _tile(answers: BestAnswers, query: int, truth: Truth, photos: Path) -> MontageTile:
    image = int(answers.image[query])
    if image < 0:
        return MontageTile(None, ["no answer", "wrong"], "bad")
    right = bool(answers.right[query])
    # The word next to the color is for readers who cannot distinguish green from red.
    words = [truth.database[image], "right" if right else "wrong"]
    return MontageTile(photos / truth.database[image], words, "good" if right else "bad")


LIMIT = 3.0  # color range in standard deviations
_ACROSS = 2  # matrices per row, for reading on a phone


def standardize_rows(scores: np.ndarray) -> np.ndarray:
    """Standardize each row; nan if a score is not finite, 0 if all are equal."""
    rows = scores.astype(np.float64)
    hidden = ~np.isfinite(rows)
    row, column = np.nonzero(hidden)
    mean, spread = mean_and_spread(rows, (row, column))
    return np.where(hidden, np.nan, z_scores(rows, mean[:, None], spread[:, None]))


def positives_in(sample: ScoreSample, truth: Truth) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of the sample where the image is a positive of the query."""
    database = np.asarray(sample.database, np.int64)
    right = [np.isin(database, truth.positives[int(query)]) for query in sample.queries]
    rows, columns = np.nonzero(np.array(right, bool).reshape(len(right), len(database)))
    return rows, columns


def has_sample(study: Study, head: str) -> bool:
    return bool(study.records[head].sample.steps.size)


def draw_matrices(study: Study, heads: Sequence[str], path: Path) -> None:
    across = min(len(heads), _ACROSS)
    down = -(-len(heads) // across)
    figure = new_figure(2.6 * across + 0.9, 2.9 * down)
    image = None
    panels = []
    for number, head in enumerate(heads):
        sample = study.records[head].sample
        axes = figure.add_subplot(down, across, number + 1)
        image = axes.imshow(
            standardize_rows(sample.scores), cmap="viridis", vmin=-LIMIT, vmax=LIMIT,
            aspect="auto", interpolation="nearest",
        )  # fmt: skip
        rows, columns = positives_in(sample, study.truth)
        axes.scatter(columns, rows, s=5, color="#ff4d3d", linewidths=0)
        # Ticks would count within the sample, not within the dataset, so leave them out.
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


# --- support and agreement -----------------------------------------------------------------------------------------


_CARRIER_MARKS = {"original": "o", "partial": "s", "adaptive": "^", "adaptive+cls": "D"}
_ASSIGNMENT_COLORS = {"hard": COLORS[0], "soft": COLORS[1]}
_OTHER_MARK, _OTHER_COLOR = "X", COLORS[7]


@dataclass(frozen=True)
class Evidence:
    """One point per candidate: (support, mean agreement over pairs of constructions)."""

    points: Mapping[str, tuple[float, float]]
    chosen: str  # "hard/adaptive"
    with_global: str | None  # the candidate with the global token, if admitted

    def words(self) -> str:
        listed = ", ".join(f"{name} ({u:.1f}, {a:.3f})" for name, (u, a) in self.points.items())
        return f"support and agreement: {listed}; chosen {self.chosen}"


def evidence_of(record: Record) -> Evidence | None:
    """Return the evidence of the first fold of the first split; None if not recorded."""
    decisions = record.folds[0][0]["decisions"]
    candidates = decisions.get("candidates")
    if not candidates:
        return None
    try:
        points = {
            name: (float(evidence["support"]), _mean(evidence["agreement"])) for name, evidence in candidates.items()
        }
        chosen = f"{decisions['assignment']}/{decisions['carrier']}"
        joined = f"{decisions['assignment']}/adaptive+cls"
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__} {error}"
        raise BadRecord(f"the evidence of head {record.name!r} is damaged: {what}; rerun the head") from None
    return Evidence(points, chosen, joined if decisions.get("admit_cls") and joined in points else None)


def _mean(agreement: Any) -> float:
    """Return the mean of pairs by name, or of a list."""
    return float(np.mean(list(agreement.values() if isinstance(agreement, Mapping) else agreement)))


def draw_evidence(evidence: Evidence, path: Path) -> None:
    figure = new_figure()
    axes = figure.add_subplot()
    for name, (support, agreement) in evidence.points.items():
        assignment, _, carrier = name.partition("/")
        axes.scatter(
            [support], [agreement], s=70, marker=_CARRIER_MARKS.get(carrier, _OTHER_MARK), alpha=0.85,
            color=_ASSIGNMENT_COLORS.get(assignment, _OTHER_COLOR), label=name, linewidths=0, zorder=3,
        )  # fmt: skip
    rings = [(evidence.chosen, "-", "chosen"), (evidence.with_global, "--", "global token admitted")]
    for ringed, line, label in rings:
        if ringed is not None and ringed in evidence.points:
            support, agreement = evidence.points[ringed]
            axes.scatter(
                [support], [agreement], s=260, marker="o", facecolors="none", edgecolors=INK, linestyles=line,
                linewidths=1.4, label=label, zorder=4,
            )  # fmt: skip
    dress(axes, x="distinct images answered (support)", y="mean agreement of constructions")
    axes.margins(0.12)  # keep rings inside the axes
    figure.legend(labelspacing=0.9, **BELOW)
    save(figure, path)
