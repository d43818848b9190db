"""Draw all figures of a results folder as PNG files and one HTML report.

If photos of several scene families are available, three sheets compare them: one query of each family that the
reference answers correctly and all other heads miss (the paper's main figure), then successes and failures of every
dataset without the queries of the first sheet (its supplement).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfa.core.files import write_text
from tfa.errors import BadSpec
from tfa.report.html import ReportTable, render_template
from tfa_bench.datasets.card import DATASET_GROUPS, cards
from tfa_bench.figures.plots import (
    HEADS,
    REFERENCE,
    ROWS,
    Grid,
    Study,
    calibration_curves,
    choose,
    draw_calibration,
    draw_evidence,
    draw_matrices,
    draw_precision_recall,
    evidence_of,
    find_studies,
    has_sample,
    montage_rows,
    write_sheet,
)
from tfa_bench.scores import row_of_scores

TEMPLATE = Path(__file__).parent / "templates" / "figures.html"


@dataclass(frozen=True)
class Picture:
    file: Path
    alt: str
    caption: str
    photos: bool = False  # a wide sheet of photos, embedded as JPEG at a tenth of the PNG's size


@dataclass(frozen=True)
class Section:
    """One dataset under one encoder. A figure is a list of pictures, or a sentence that says why it is missing."""

    anchor: str
    title: str
    facts: Sequence[str]
    tables: Mapping[str, ReportTable]
    figures: Mapping[str, Sequence[Picture | str]]


def figures_page(title: str, intro: Sequence[str], sections: Sequence[Section]) -> str:
    return render_template(TEMPLATE, title=title, intro=intro, sections=sections)


Content = list[Picture | str]
_BY_CONFIDENCE = (*HEADS, "tfa-c64", "dual-c64")


def calibration(study: Study, folder: Path) -> Content:
    curves = calibration_curves(study)
    if not curves:
        return ["No head calibrated on N queries is recorded (tfa-cN, dual-cN)."]
    path = folder / "calibration.png"
    draw_calibration(curves, path)
    alt = "R@1 in percent against the number of calibration queries. " + "; ".join(c.words() for c in curves) + "."
    caption = (
        "Filled: N unlabeled queries calibrate the head, the others are evaluated; bars show the deviation over "
        "splits. Open, right of the dotted line: FullQ calibrates on all queries and evaluates all; a cross-fit "
        "evaluates each half with a head calibrated on the other. Dashed: no calibration."
    )
    return [Picture(path, alt, caption)]


def confidence(study: Study, folder: Path, reference: str) -> Content:
    heads = study.heads(reference, _BY_CONFIDENCE)
    path = folder / "precision-recall.png"
    draw_precision_recall({head: study.scored[head] for head in heads}, path)
    areas = ", ".join(f"{head} {100 * study.scored[head].acceptance.area.mean:.1f}" for head in heads)
    caption = (
        "A query's best answer is accepted if its confidence, the z-score of the best score in its row, is high "
        "enough. Curves show the first split and replica; areas are means over all."
    )
    return [Picture(path, f"Precision against recall by confidence. Area under the curve: {areas}.", caption)]


def evidence(study: Study, folder: Path) -> Content:
    if REFERENCE not in study.records:
        return [f"Head {REFERENCE} is not recorded."]
    found = evidence_of(study.records[REFERENCE])
    if found is None:
        return [f"The record of head {REFERENCE} has no evidence."]
    path = folder / "evidence.png"
    draw_evidence(found, path)
    caption = (
        f"Evidence of head {REFERENCE} for its candidates before any query: how many distinct database images answer "
        "its pseudo queries, and how often two of its vocabularies agree on the answer. Further right and higher is "
        "better."
    )
    return [Picture(path, f"Candidates of head {REFERENCE} by {found.words()}.", caption)]


def scores(study: Study, folder: Path, reference: str) -> Content:
    heads = [head for head in study.heads(reference) if has_sample(study, head)]
    if not heads:
        return ["The records have no score matrix sample."]
    path = folder / "scores.png"
    draw_matrices(study, heads, path)
    caption = "A sample of each head's score matrix with standardized rows. A dot marks a positive."
    return [Picture(path, f"Standardized scores of {', '.join(heads)} side by side, positives as dots.", caption)]


def answers(
    study: Study, folder: Path, photos: Path | None, reference: str, rows: int, without: Collection[int]
) -> Content:
    if photos is None:
        return [f"The photos are not shown: pass their folder with --photos {study.truth.name}=FOLDER."]
    if reference not in study.records:
        return [f"The photos are not shown: head {reference} is not recorded."]
    heads = study.heads(reference)
    if len(heads) < 2:
        return [f"The photos are not shown: no head to compare with {reference} is recorded."]
    content: Content = []
    for successes, name in _KINDS.items():
        mine, theirs = ("right", "wrong") if successes else ("wrong", "right")
        what = f"{reference} is {mine}, at least one other head {theirs}"
        grid = choose(study, heads, successes=successes, rows=rows, without=without)
        if not grid.queries:
            content.append(f"There are no queries where {what}.")
            continue
        path = folder / f"{name}.png"
        write_sheet(montage_rows(grid, study.truth, photos), heads, path)
        caption = (
            f"{name.capitalize()} of {reference}: {len(grid.queries)} of {grid.eligible:,} queries where {what}, "
            f"spread over the list of queries. {_FRAMES}"
        )
        alt = f"Queries and the best answers of {', '.join(heads)}. {_judge_queries(grid)}."
        content.append(Picture(path, alt, caption, True))
    return content


_KINDS = {True: "successes", False: "failures"}
_FRAMES = "Green frame: a positive. Red frame: another place. Answers are from the first replica."


def _judge_queries(grid: Grid) -> str:
    return "; ".join(
        f"query {q}: " + ", ".join(f"{h} {'right' if grid.answers[h].right[q] else 'wrong'}" for h in grid.heads)
        for q in grid.queries
    )


# --- sheets of several scene families ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Families:
    """Studies with photos under one encoder, of at least two scene families, and the query that represents each."""

    encoder: str
    heads: tuple[str, ...]  # recorded in all of them, the reference first
    studies: tuple[Study, ...]
    chosen: Mapping[str, Grid]  # dataset → its query in the main figure


def find_families(studies: Sequence[Study], photos: Mapping[str, Path], reference: str) -> list[Families]:
    """Choose a query of each scene family that the reference answers correctly and all other heads miss."""
    known = cards()
    found = []
    for encoder in dict.fromkeys(study.encoder for study in studies):
        own = [s for s in studies if s.encoder == encoder and s.truth.name in photos and reference in s.records]
        heads = tuple(h for h in (own[0].heads(reference) if own else ()) if all(h in s.records for s in own))
        groups = {s.truth.name: known[s.truth.name].group if s.truth.name in known else "Other" for s in own}
        families = {name: [s for s in own if groups[s.truth.name] == name] for name in DATASET_GROUPS}
        if sum(map(bool, families.values())) < 2 or len(heads) < 2:
            continue
        chosen: dict[str, Grid] = {}
        for members in families.values():
            grids = ((s, choose(s, heads, successes=True, rows=1, by_all=True)) for s in members)
            chosen |= dict(next(([(s.truth.name, grid)] for s, grid in grids if grid.queries), []))
        found.append(Families(encoder, heads, tuple(own), chosen))
    return found


def draw_families(families: Families, out: Path, photos: Mapping[str, Path], rows: int) -> Section:
    """Draw the main figure and the successes and failures of all datasets, a sheet each."""
    reference, *others = families.heads
    sheets: dict[str, tuple[Mapping[str, Grid], str]] = {
        "main": (
            families.chosen,
            f"One query of each scene family: {reference} is right, all of {', '.join(others)} wrong.",
        )
    }
    for successes, name in _KINDS.items():
        chosen = {
            s.truth.name: choose(
                s, families.heads, successes=successes, rows=rows, without=_main_queries([families], s)
            )
            for s in families.studies
        }
        mine, theirs = ("right", "wrong") if successes else ("wrong", "right")
        what = f"{reference} is {mine}, at least one other head {theirs}; queries of the main figure are left out."
        sheets[name] = (chosen, f"{name.capitalize()} of every dataset: {what}")
    truths = {study.truth.name: study.truth for study in families.studies}
    figures: dict[str, Content] = {}
    for name, (grids, caption) in sheets.items():
        montage = [
            row
            for dataset, grid in grids.items()
            for row in montage_rows(grid, truths[dataset], photos[dataset], truths[dataset].title)
        ]
        path = out / families.studies[0].folder.rpartition("/")[2] / f"{name}.png"
        alt = "; ".join(f"{truths[d].title}: {_judge_queries(grid)}" for d, grid in grids.items() if grid.queries)
        if montage:
            write_sheet(montage, families.heads, path)
        picture = Picture(path, f"Queries and best answers. {alt}.", f"{caption} {_FRAMES}", True)
        figures[name.capitalize()] = [picture if montage else f"There are no such queries. {caption}"]
    facts = [f"{len(families.studies)} datasets with photos. Encoder: {families.encoder}."]
    return Section(
        f"families-{families.studies[0].folder.rpartition('/')[2]}",
        f"Scene families ({families.encoder})",
        facts,
        {},
        figures,
    )


def _main_queries(families: Sequence[Families], study: Study) -> tuple[int, ...]:
    """Return the queries of a study that are in the main figure of its encoder."""
    grids = [one.chosen.get(study.truth.name) for one in families if one.encoder == study.encoder]
    return tuple(query for grid in grids if grid is not None for query in grid.queries)


_REPORT = "report.html"


def write_figures(
    results: Path,
    out: Path,
    *,
    photos: Mapping[str, Path],
    datasets: Collection[str] | None = None,
    encoder: str | None = None,
    reference: str = REFERENCE,
    rows: int = ROWS,
) -> list[Path]:
    """Draw the figures. They go to `out/<dataset>/<encoder>/` and `out/<encoder>/`, the report to `out/report.html`.

    `photos` maps datasets to their image folders. Returns the files written, the report last.
    """
    studies = find_studies(results, datasets, encoder)
    _check_photos(photos, {study.truth.name for study in studies})
    found = find_families(studies, photos, reference)
    sections = [
        *(draw_families(one, out, photos, rows) for one in found),
        *(_section(study, out, photos, reference, rows, _main_queries(found, study)) for study in studies),
    ]
    intro = [
        f"Drawn from {_counted(sum(len(study.records) for study in studies), 'record')} of "
        f"{_counted(len({study.truth.name for study in studies}), 'dataset')} under "
        f"{_counted(len({study.encoder for study in studies}), 'encoder')}. A record holds a head's answers to "
        "every query; all numbers are computed from them."
    ]
    page = figures_page("Place recognition: figures from records", intro, sections)
    write_text(out / _REPORT, page)
    pictures = [
        one.file for s in sections for content in s.figures.values() for one in content if isinstance(one, Picture)
    ]
    return [*pictures, out / _REPORT]


def _check_photos(photos: Mapping[str, Path], drawn: Collection[str]) -> None:
    for name, folder in photos.items():
        if name not in drawn:
            raise BadSpec(f"--photos names {name!r}, but the drawn records are of {', '.join(sorted(drawn))}")
        if not folder.is_dir():
            raise BadSpec(f"{folder} is not a folder; choose the folder with the images of {name}")


def _section(
    study: Study, out: Path, photos: Mapping[str, Path], reference: str, rows: int, without: Collection[int]
) -> Section:
    truth, folder = study.truth, out / study.folder
    facts = [
        f"{len(truth.database):,} database images, {len(truth.queries):,} queries. Encoder: {study.encoder}. "
        f"A positive: {truth.rule}."
    ]
    unanswerable = sum(not len(right) for right in truth.positives)
    if unanswerable:
        facts.append(f"{unanswerable:,} queries have no positives in the database; they count as misses.")
    tables = {
        "Recall": ReportTable(
            [row_of_scores(s, {f"R@{k}": v for k, v in s.recalls.items()}) for s in study.scored.values()]
        )
    }
    if truth.conditions:
        facts.append(f"Recall is averaged over the queries of each condition, then over {', '.join(truth.conditions)}.")
        by_condition = [
            row_of_scores(s, {name: v[1] for name, v in s.conditions.items()}) for s in study.scored.values()
        ]
        tables["R@1 by condition"] = ReportTable(by_condition)
    drawn = {
        "Calibration": calibration(study, folder),
        "Confidence": confidence(study, folder, reference),
        "Evidence": evidence(study, folder),
        "Scores": scores(study, folder, reference),
        "Answers": answers(study, folder, photos.get(truth.name), reference, rows, without),
    }
    anchor = study.folder.replace("/", "-")
    return Section(anchor, f"{truth.title} ({study.encoder})", facts, tables, drawn)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
