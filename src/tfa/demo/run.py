"""The demo: map the first drive through a town, recognize the second, and report the recall."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tfa import pipeline
from tfa.core.arrays import backend_for
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.demo.pictures import draw_match_pictures, write_demo_report
from tfa.demo.sample import SampleTown, copy_sample_town
from tfa.encoders import DEFAULT_ENCODER, Encoder, load_encoder
from tfa.errors import FewPhotos
from tfa.evaluate.metrics import recall_at
from tfa.explain.draw_montage import MontageRow, MontageTile, draw_montage, format_matches
from tfa.maps import PlaceMap
from tfa.method.decisions import Decisions
from tfa.method.head import Head, assemble
from tfa.method.residuals import HARD
from tfa.method.second_order_head import DATABASE_CARRIER, SecondOrderHead
from tfa.method.vocabulary import CONSTRUCTIONS
from tfa.photos.find_positions import find_positions
from tfa.photos.token_cache import EncodedImages
from tfa.pipeline import encode
from tfa.report.html import ReportDecision, TableRow
from tfa.search.gallery import top_k
from tfa.types import Answer, BuildOptions

_KS = (1, 5)
TARGET = 16  # photos of the second drive, its first ones, that calibrate; recall is that of the others
# Rows of the table: a plain head, the paper's, and the map that `tfa build` makes.
_HARD_VLAD, PAPER = "hard VLAD, cosine", "TFA, the paper's head"
DEFAULT, _CALIBRATED = "second-order (default)", "second-order, calibrated"
SHOWN = (_HARD_VLAD, PAPER, DEFAULT, f"{DEFAULT}, reranked", _CALIBRATED, f"{_CALIBRATED}, reranked")
_MONTAGE_QUERIES = 12
_LEGEND = "Blue: query, not used to calibrate. Green: the same place. Gray: another place. Red: a wrong answer."


@dataclass(frozen=True)
class DemoResult:
    """What the demo measured and where it put things."""

    out: Path
    references: int
    queries: int  # that recall is of
    target: int  # photos that calibrate, before them
    recalls: Mapping[str, list[float]]  # method → recall at _KS, as shares
    reasons: Mapping[str, str]

    def __str__(self) -> str:
        width = max(len(method) for method in self.recalls)
        lines = [
            f"{self.queries} queries against {self.references} references; calibrated by {self.target} photos before "
            "them; mean of three constructions unless verified",
            "",
        ]
        lines.append(" " * width + "".join(f"{f'R@{k}':>8}" for k in _KS))
        for method, values in self.recalls.items():
            lines.append(f"{method:<{width}}" + "".join(f"{100 * value:8.1f}" for value in values))
        lines += ["", "What was decided from the references alone:"]
        lines += [f"  {name}: {reason}" for name, reason in self.reasons.items()]
        lines += ["", f"map      {self.out / 'town.tfa'}", f"answer   {self.out / 'answer.png'}"]
        lines += [f"montage  {self.out / 'montage.png'}"]
        lines += [f"report   {self.out / 'report.html'}"]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        named = {
            method: {f"R@{k}": v for k, v in zip(_KS, values, strict=True)} for method, values in self.recalls.items()
        }
        return {
            "out": str(self.out),
            "references": self.references,
            "queries": self.queries,
            "target": self.target,
            "recall": named,
            "reasons": dict(self.reasons),
        }


def run_demo(
    out: Path,
    *,
    references: int = 90,
    queries: int = 45,
    encoder: Encoder | None = None,
    progress: bool | Progress | None = None,
) -> DemoResult:
    """Copy the photos, map, query, compare.

    Writes the photos, `town.tfa`, `montage.png`, pictures of matches, `report.html` and `result.json`.
    """
    out, progress = Path(out), as_progress(progress)
    town = copy_sample_town(out / "town", references=references, queries=queries)
    encoder = encoder or load_encoder(DEFAULT_ENCODER, progress=progress)
    database = encode(town.references, encoder, progress=progress)
    encoded = encode(town.queries, encoder, progress=progress)
    count = min(TARGET, len(encoded.paths) // 2)
    later = encoded.tokens.select(slice(count, None))
    positives = [
        [town.reference_files.index(name) for name in town.positives[path.name]] for path in encoded.paths[count:]
    ]

    places, _ = find_positions(database.paths, town.references, town.positions_csv)
    where = dict(zip(database.paths, places, strict=True))
    head = pipeline.fit_second_order(database.tokens, DATABASE_CARRIER, progress=progress)
    place_map = PlaceMap.from_head(head, database, encoder, where, map_spec=BuildOptions(), progress=progress)
    place_map.save(out / "town.tfa", overwrite=True)
    # A second map, so that the saved one answers as it was built.
    calibrated = PlaceMap.from_head(head, database, encoder, where, map_spec=BuildOptions(), progress=progress)
    if count:
        with _few_photos_allowed():
            calibrated.calibrate(encoded.paths[:count], progress=progress)
    paper = pipeline.fit(database.tokens, progress=progress)
    target = encoded.tokens.select(slice(0, count))
    recalls = {
        _HARD_VLAD: _head_recall(_plain_head(paper), later, positives),
        PAPER: _head_recall(paper, later, positives),
        DEFAULT: _head_recall(head, later, positives),
        f"{DEFAULT}, reranked": _map_recall(place_map, later, positives),
        _CALIBRATED: _head_recall(_calibrate(head, target), later, positives),
        f"{_CALIBRATED}, reranked": _map_recall(calibrated, later, positives),
    }
    facts = place_map.info().to_dict()
    reasons = {
        "head": facts["reasons"]["representation"],
        "verification": (facts["verification"] or {}).get("reason", "none"),
    }
    result = DemoResult(out, len(database.paths), len(later), count, recalls, reasons)
    _draw(out, town, place_map, result, encoded)
    (out / "result.json").write_text(json.dumps(result.to_dict(), indent=1) + "\n", encoding="utf-8")
    return result


def _plain_head(head: Head) -> Head:
    """Hard assignment, cosine scores, no global token: VLAD as AnyLoc uses it, with this head's vocabularies."""
    assert isinstance(head.decisions, Decisions)
    decisions = dataclasses.replace(head.decisions, assignment=HARD, carrier="original", admit_cls=False)
    return assemble(head, decisions, head.evidence, backend_for("cpu"))


def _calibrate(head: SecondOrderHead, target: Tokens) -> SecondOrderHead:
    """The head for the second drive; a drive too short to calibrate leaves it as it is."""
    if not len(target):
        return head
    with _few_photos_allowed():
        return pipeline.calibrate(head, target)


@contextmanager
def _few_photos_allowed() -> Iterator[None]:
    """A short demo calibrates with few photos, which is no news to its user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewPhotos)
        yield


def _head_recall(head: Head | SecondOrderHead, queries: Tokens, positives: Sequence[Sequence[int]]) -> list[float]:
    """Mean over the three constructions."""
    ranked = [top_k(head.scores(queries, construction), max(_KS))[0] for construction in CONSTRUCTIONS]
    return np.mean([recall_at(rows, positives, _KS) for rows in ranked], axis=0).tolist()


def _map_recall(place_map: PlaceMap, queries: Tokens, positives: Sequence[Sequence[int]]) -> list[float]:
    """Recall of a map's answers, verified if the map decided so."""
    answers = place_map.query_tokens(queries, max(_KS))
    ranked = np.array([[hit.id for hit in hits] for hits in answers])  # ids of a new map are rows
    return recall_at(ranked, positives, _KS)


def _draw(out: Path, town: SampleTown, place_map: PlaceMap, result: DemoResult, encoded: EncodedImages) -> None:
    answered = zip(encoded.paths, place_map.query_tokens(encoded.tokens, k=4), strict=True)
    # Of the photos that recall is of: the first of the drive calibrated other heads.
    answers = [replace(answer, query=str(path)) for path, answer in answered][result.target :]
    step = max(len(answers) // _MONTAGE_QUERIES, 1)
    rows = [_montage_row(answer, town) for answer in answers[::step][:_MONTAGE_QUERIES]]
    draw_montage(rows, out / "montage.png", _LEGEND)
    facts = place_map.info().to_dict()
    decided, verification = facts["decisions"], facts["verification"]
    decisions = [ReportDecision("The head", decided["carrier"], result.reasons["head"])]
    if verification is not None:
        used = "yes" if verification["admitted"] else "no"
        decisions.append(ReportDecision("Answers are verified", used, result.reasons["verification"]))
    write_demo_report(
        out / "report.html",
        title="TFA demo: a town seen twice",
        intro=[
            f"{result.references} reference photos of a rendered town on a clear day, {result.queries} queries from a "
            "second drive in other light and weather. Recall is the mean over three constructions unless answers are "
            "verified.",
            f"The references alone made every decision, but in the calibrated rows: there {result.target} photos of "
            "the second drive, its first ones, without labels, decided too. Nothing was trained.",
        ],
        recalls=[
            TableRow(
                method,
                {f"R@{k}": (100 * v, None) for k, v in zip(_KS, values, strict=True)},
                {"data used": "references and target photos" if "calibrated" in method else "references"},
            )
            for method, values in result.recalls.items()
        ],
        decisions=decisions,
        montage=out / "montage.png",
        matches=draw_match_pictures(out, town, place_map, answers),
    )


def _montage_row(answer: Answer, town: SampleTown) -> MontageRow:
    right = set(town.positives[Path(answer.query).name])
    tiles = [
        MontageTile(
            Path(hit.image),
            [
                Path(hit.image).name,
                f"confidence {hit.confidence:.2f}",
                *format_matches(hit.inliers),
                str(hit.position or ""),
            ],
            # Only the first hit is the answer: a later hit of another place is not a mistake.
            "good" if Path(hit.image).name in right else "none" if rank else "bad",
        )
        for rank, hit in enumerate(answer.hits)
    ]
    trust = "sure" if answer.sure else "not sure"
    title = f"{Path(answer.query).name}: confidence {answer.confidence:.2f}, {trust}"
    return MontageRow(Path(answer.query), title, tiles)
