"""The figures of a report's section: each draws its pictures, or says in a sentence why there are none."""

from __future__ import annotations

from pathlib import Path

from tfa_bench.figures.curves import calibration_curves, draw_calibration, draw_precision_recall
from tfa_bench.figures.evidence_plot import draw_evidence, evidence_of
from tfa_bench.figures.grids import choose, write_grid
from tfa_bench.figures.matrices import draw_matrices, has_sample
from tfa_bench.figures.page import Picture
from tfa_bench.figures.record_groups import HEADS, REFERENCE, Study

Content = list[Picture | str]
BY_CONFIDENCE = (*HEADS, "tfa-c64", "dual-c64")


def calibration(study: Study, folder: Path) -> Content:
    curves = calibration_curves(study)
    if not curves:
        return ["There is no record of a head calibrated on N queries (tfa-cN, dual-cN)."]
    path = folder / "calibration.png"
    draw_calibration(curves, path)
    alt = "R@1 in percent against the number of calibration queries. " + "; ".join(c.words() for c in curves) + "."
    caption = (
        "Filled: N unlabelled queries calibrate the head, the others are evaluated; bars show the deviation over "
        "splits. Open, behind the dotted line: FullQ calibrates on all queries and evaluates all of them; a cross-fit "
        "evaluates each half with a head calibrated on the other. Dashed: no calibration."
    )
    return [Picture(path, alt, caption)]


def confidence(study: Study, folder: Path, reference: str) -> Content:
    heads = study.heads(reference, BY_CONFIDENCE)
    path = folder / "precision-recall.png"
    draw_precision_recall({head: study.scored[head] for head in heads}, path)
    areas = ", ".join(f"{head} {100 * study.scored[head].acceptance.area.mean:.1f}" for head in heads)
    caption = (
        "A query's best answer is accepted if its confidence, the z-score of the best score in its row, is high "
        "enough. Curves are of the first split and replica; areas are means over all."
    )
    return [Picture(path, f"Precision against recall by confidence. Area under the curve: {areas}.", caption)]


def evidence(study: Study, folder: Path) -> Content:
    if REFERENCE not in study.records:
        return [f"There is no record of head {REFERENCE}."]
    found = evidence_of(study.records[REFERENCE])
    if found is None:
        return [f"The record of head {REFERENCE} holds no evidence."]
    path = folder / "evidence.png"
    draw_evidence(found, path)
    caption = (
        f"What head {REFERENCE} saw of its candidates before any query: how many distinct database images answer its "
        "pseudo queries, and how often two of its three vocabularies agree on the answer. Further right and higher is "
        "better."
    )
    return [Picture(path, f"Candidates of head {REFERENCE} by {found.words()}.", caption)]


def scores(study: Study, folder: Path, reference: str) -> Content:
    heads = [head for head in study.heads(reference) if has_sample(study, head)]
    if not heads:
        return ["The records hold no piece of a score matrix."]
    path = folder / "scores.png"
    draw_matrices(study, heads, path)
    caption = (
        "A piece of each head's score matrix, every row less its mean and over its deviation. A dot marks a true place."
    )
    return [Picture(path, f"Standardised scores of {', '.join(heads)} side by side, true places as dots.", caption)]


def answers(study: Study, folder: Path, photos: Path | None, reference: str, rows: int) -> Content:
    if photos is None:
        return [f"The photos are not shown: their folder was not given (--photos {study.truth.name}=FOLDER)."]
    if reference not in study.records:
        return [f"The photos are not shown: there is no record of head {reference}."]
    heads = study.heads(reference)
    if len(heads) < 2:
        return [f"The photos are not shown: there is no record of a head to set beside {reference}."]
    content: Content = []
    for successes, name in ((True, "successes"), (False, "failures")):
        mine, theirs = ("right", "wrong") if successes else ("wrong", "right")
        what = f"{reference} is {mine}, at least one other head {theirs}"
        grid = choose(study, heads, successes=successes, rows=rows)
        if not grid.queries:
            content.append(f"There is no query where {what}.")
            continue
        path = folder / f"{name}.png"
        write_grid(grid, study.truth, photos, path)
        caption = (
            f"{name.capitalize()} of {reference}: {len(grid.queries)} of {grid.eligible:,} queries where {what}, "
            "spread over the list of queries. Green frame: a true place. Red frame: another place. "
            "Answers are of the first replica."
        )
        counts = "; ".join(
            f"query {q}: " + ", ".join(f"{h} {'right' if grid.answers[h].right[q] else 'wrong'}" for h in heads)
            for q in grid.queries
        )
        content.append(Picture(path, f"Queries and the best answers of {', '.join(heads)}. {counts}.", caption, True))
    return content
