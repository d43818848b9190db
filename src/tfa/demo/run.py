"""Map the first drive through a town, recognize places on the second drive, and report the recall."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tfa import pipeline
from tfa.core.arrays import backend_for
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.demo.pictures import ANSWER, draw_match_pictures, write_demo_report
from tfa.demo.sample import SampleTown, copy_sample_town
from tfa.encoders import DEFAULT_ENCODER, Encoder, load_encoder
from tfa.errors import FewPhotos
from tfa.explain.draw_montage import MontageRow, draw_montage, make_tile
from tfa.maps import PlaceMap
from tfa.method.decisions import Decisions
from tfa.method.head import Head, assemble
from tfa.method.residuals import HARD
from tfa.method.second_order_head import DATABASE_CARRIER, SecondOrderHead
from tfa.method.vocabulary import CONSTRUCTIONS
from tfa.photos.find_positions import find_positions
from tfa.photos.token_cache import EncodedImages
from tfa.pipeline import encode
from tfa.report.html import TableRow
from tfa.search.gallery import top_k
from tfa.types import Answer, BuildOptions

_KS = (1, 5)
_SHOWN_REASONS = {"head": "head      ", "verification": "reranking "}  # key of a reason → its label in the text
TARGET = 16  # first photos of the second drive, used to calibrate; recall is measured on the others
# Rows of the table: a plain head, the published head, and the map that `tfa build` makes.
_HARD_VLAD, PAPER = "VLAD (hard assignment, cosine)", "TFA as published"
DEFAULT, _CALIBRATED = "second-order (default)", "second-order, calibrated"
SHOWN = (_HARD_VLAD, PAPER, DEFAULT, f"{DEFAULT}, reranked", _CALIBRATED, f"{_CALIBRATED}, reranked")
_MONTAGE_QUERIES = 12
_LEGEND = "Blue: query. Green: the same place. Red: a wrong first answer. Gray: another place, ranked lower."


@dataclass(frozen=True)
class DemoResult:
    """Results of the demo and the folder of its files."""

    out: Path
    references: int
    queries: int  # photos that recall is measured on
    target: int  # calibration photos
    recalls: Mapping[str, list[float]]  # method → recall at _KS, between 0 and 1
    reasons: Mapping[str, str]

    def __str__(self) -> str:
        width = max(len(method) for method in self.recalls)
        lines = [
            f"{self.queries} queries, {self.references} map images. Calibrated rows used {self.target} unlabeled "
            "photos of the second drive. Rows without reranking are the mean of three runs.",
            "",
            f"{'recall in percent':<{width}}" + "".join(f"{f'R@{k}':>8}" for k in _KS),
        ]
        for method, values in self.recalls.items():
            lines.append(f"{method:<{width}}" + "".join(f"{100 * value:8.1f}" for value in values))
        lines += ["", "How the map answers:"]
        lines += [f"  {_SHOWN_REASONS[name]} {reason}" for name, reason in self.reasons.items()]
        lines += ["", f"map      {self.out / 'town.tfa'}", f"answer   {self.out / ANSWER}"]
        lines += [f"montage  {self.out / 'montage.png'}", f"report   {self.out / 'report.html'}"]
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
    """Copy the sample photos, build a map, query it, and compare heads."""
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
    # A second map, so that the saved map stays uncalibrated.
    calibrated = PlaceMap.from_head(head, database, encoder, where, map_spec=BuildOptions(), progress=progress)
    tuned = head
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewPhotos)  # the demo's user expects few calibration photos
        if count:
            calibrated.calibrate(encoded.paths[:count], progress=progress)
            tuned = pipeline.calibrate(head, encoded.tokens.select(slice(0, count)))
    paper = pipeline.fit(database.tokens, progress=progress)
    recalls = {
        _HARD_VLAD: _head_recall(_plain_head(paper), later, positives),
        PAPER: _head_recall(paper, later, positives),
        DEFAULT: _head_recall(head, later, positives),
        f"{DEFAULT}, reranked": _map_recall(place_map, later, positives),
        _CALIBRATED: _head_recall(tuned, later, positives),
        f"{_CALIBRATED}, reranked": _map_recall(calibrated, later, positives),
    }
    facts = place_map.info().to_dict()
    reasons = {
        "head": facts["reasons"]["representation"],
        "verification": (facts["verification"] or {}).get("reason", "off"),
    }
    result = DemoResult(out, len(database.paths), len(later), count, recalls, reasons)
    _draw(out, town, place_map, result, encoded)
    (out / "result.json").write_text(json.dumps(result.to_dict(), indent=1) + "\n", encoding="utf-8")
    return result


def _plain_head(head: Head) -> Head:
    """Return VLAD as in AnyLoc, with this head's vocabularies: hard assignment, cosine scores, no global token."""
    assert isinstance(head.decisions, Decisions)
    decisions = replace(head.decisions, assignment=HARD, carrier="original", admit_cls=False)
    return assemble(head, decisions, head.evidence, backend_for("cpu"))


def _head_recall(head: Head | SecondOrderHead, queries: Tokens, positives: Sequence[Sequence[int]]) -> list[float]:
    """Return the mean recall over the three constructions."""
    ranked = [top_k(head.scores(queries, construction), max(_KS))[0] for construction in CONSTRUCTIONS]
    return np.mean([_recall(rows, positives) for rows in ranked], axis=0).tolist()


def _map_recall(place_map: PlaceMap, queries: Tokens, positives: Sequence[Sequence[int]]) -> list[float]:
    """Return the recall of a map's answers, reranked if the map stores patches."""
    answers = place_map.query_tokens(queries, max(_KS))
    ranked = np.array([[hit.id for hit in hits] for hits in answers])  # ids of a new map are rows
    return _recall(ranked, positives)


def _recall(ranked: np.ndarray, positives: Sequence[Sequence[int]]) -> list[float]:
    """Return the share of queries with a positive among their first k images (q, n), for each k."""
    right = np.array([np.isin(row, own) for row, own in zip(ranked, positives, strict=True)])
    return [float(right[:, :k].any(axis=1).mean()) for k in _KS]


def _draw(out: Path, town: SampleTown, place_map: PlaceMap, result: DemoResult, encoded: EncodedImages) -> None:
    answered = zip(encoded.paths, place_map.query_tokens(encoded.tokens, k=4), strict=True)
    # Skip the photos that calibrated other heads: recall is measured on the rest.
    answers = [replace(answer, query=str(path)) for path, answer in answered][result.target :]
    step = max(len(answers) // _MONTAGE_QUERIES, 1)
    rows = [_montage_row(answer, town) for answer in answers[::step][:_MONTAGE_QUERIES]]
    draw_montage(rows, out / "montage.png", _LEGEND)
    plain, reranked = (100 * result.recalls[name][0] for name in (DEFAULT, f"{DEFAULT}, reranked"))

    write_demo_report(
        out / "report.html",
        title="TFA demo: one town, two drives",
        headline=f"R@1 {reranked:.1f} % with reranking, {plain:.1f} % without.",
        intro=[
            f"The map has {result.references} images of a rendered town on a clear day. The {result.queries} queries "
            "are photos of a second drive at dusk in the rain. Nothing was trained."
        ],
        recalls=[
            TableRow(
                method,
                {f"R@{k}": (100 * v, None) for k, v in zip(_KS, values, strict=True)},
                {"fitted on": f"map + {result.target}\N{NO-BREAK SPACE}photos" if "calibrated" in method else "map"},
            )
            for method, values in result.recalls.items()
        ],
        montage=out / "montage.png",
        matches=draw_match_pictures(out, town, place_map, answers),
    )


def _montage_row(answer: Answer, town: SampleTown) -> MontageRow:
    right = set(town.positives[Path(answer.query).name])
    tiles = [
        # Only the first hit is the answer, so a later hit of another place is not marked wrong.
        make_tile(hit, "good" if Path(hit.image).name in right else "none" if rank else "bad")
        for rank, hit in enumerate(answer.hits)
    ]
    title = f"{Path(answer.query).name}: {answer.verdict}, confidence {answer.confidence:.2f}"
    return MontageRow(Path(answer.query), title, tiles)
