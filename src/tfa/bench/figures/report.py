"""All figures of a results folder, as PNG files and in one HTML report."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from tfa.bench.figures import sections as figures
from tfa.bench.figures.grids import ROWS
from tfa.bench.figures.page import Picture, Section, figures_page
from tfa.bench.figures.record_groups import REFERENCE, Study, find_studies
from tfa.bench.metrics.summary import row_of_scores
from tfa.core.files import write_text
from tfa.errors import BadSpec
from tfa.report.html import ReportTable

REPORT = "report.html"


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
    """Draw what the records hold. Pictures go to `out/<dataset>/<encoder>/`, the report to `out/report.html`.

    `photos` names the folder of each dataset whose photos may be shown. Returns the files written, the report last.
    """
    studies = find_studies(results, datasets, encoder)
    _check_photos(photos, {study.truth.name for study in studies})
    sections = [_section(study, out, photos, reference, rows) for study in studies]
    intro = [
        f"Drawn from {_counted(sum(len(study.records) for study in studies), 'record')} of "
        f"{_counted(len({study.truth.name for study in studies}), 'dataset')} under "
        f"{_counted(len({study.encoder for study in studies}), 'encoder')}. A record holds what a head answered to "
        "every query; all numbers here are computed from the answers.",
    ]
    page = figures_page("Place recognition: figures from records", intro, sections)
    write_text(out / REPORT, page)
    pictures = [
        one.file for s in sections for content in s.figures.values() for one in content if isinstance(one, Picture)
    ]
    return [*pictures, out / REPORT]


def _check_photos(photos: Mapping[str, Path], drawn: Collection[str]) -> None:
    for name, folder in photos.items():
        if name not in drawn:
            raise BadSpec(f"photos of {name!r} were given, but the records drawn are of {', '.join(sorted(drawn))}")
        if not folder.is_dir():
            raise BadSpec(f"{folder} is not a folder; give the folder that holds the photos of {name}")


def _section(study: Study, out: Path, photos: Mapping[str, Path], reference: str, rows: int) -> Section:
    truth, folder = study.truth, out / study.folder
    facts = [
        f"{len(truth.database):,} database images, {len(truth.queries):,} queries. Encoder: {study.encoder}. "
        f"A true place: {truth.rule}."
    ]
    unanswerable = sum(not len(right) for right in truth.positives)
    if unanswerable:
        facts.append(f"{unanswerable:,} queries have no true place in the database; they count as misses.")
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
        "Calibration": figures.calibration(study, folder),
        "Confidence": figures.confidence(study, folder, reference),
        "Evidence": figures.evidence(study, folder),
        "Scores": figures.scores(study, folder, reference),
        "Answers": figures.answers(study, folder, photos.get(truth.name), reference, rows),
    }
    anchor = study.folder.replace("/", "-")
    return Section(anchor, f"{truth.title} ({study.encoder})", facts, tables, drawn)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
