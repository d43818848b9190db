"""The demo: render a town, map its first traverse, recognise the second, and say how well that went."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfa.bench.heads.catalogue import head_card
from tfa.bench.heads.contract import Calibratable, Fitted, Photos, Shared
from tfa.bench.heads.own_heads import RetrieverHead
from tfa.bench.rank import mean_recall
from tfa.core.progress import Progress, as_progress
from tfa.demo.match_pictures import draw_match_pictures
from tfa.demo.report import write_demo_report
from tfa.demo.town import Town, render_town
from tfa.encoders import DEFAULT_ENCODER, Encoder, load_encoder
from tfa.explain.draw_montage import MontageRow, MontageTile, draw_montage, format_matches
from tfa.maps import PlaceMap
from tfa.method.head import Head
from tfa.method.second_order_head import SecondOrderHead
from tfa.photos.find_positions import find_positions
from tfa.photos.token_cache import EncodedImages
from tfa.pipeline import encode
from tfa.report.html import Decision, TableRow
from tfa.types import Answer, BuildOptions

_KS = (1, 5)
TARGET = 16  # photos of the second drive, its first ones, that calibrate; recall is that of the others
# What is compared: head of the benchmark, and what it has seen beside the references.
SHOWN_QUERIES = {
    "AnyLoc's head (hard VLAD, cosine)": "anyloc",
    "TFA, the paper's head": "tfa",
    "judged map": "judged",
    "judged map, verified": "judged-v",
    "judged map, calibrated": f"judged-c{TARGET}",
    "judged map, calibrated, verified": f"judged-c{TARGET}-v",
}
MONTAGE_QUERIES = 12


@dataclass(frozen=True)
class DemoResult:
    """What the demo measured and where it put things."""

    out: Path
    references: int
    queries: int  # that recall is of
    target: int  # photos that calibrate, before them
    recalls: Mapping[str, list[float]]  # method → recall at KS, as shares
    reasons: Mapping[str, str]

    def __str__(self) -> str:
        width = max(len(method) for method in self.recalls)
        lines = [
            f"{self.queries} queries against {self.references} references, mean of three constructions; calibrated by "
            f"{self.target} photos before them",
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
    size: tuple[int, int] = (480, 360),
    encoder: Encoder | None = None,
    progress: bool | Progress | None = None,
) -> DemoResult:
    """Render, map, query, compare.

    Writes the photos, `town.tfa`, `montage.png`, pictures of matches, `report.html` and `result.json`.
    """
    out, progress = Path(out), as_progress(progress)
    town = render_town(out / "town", references=references, queries=queries, size=size, progress=progress)
    encoder = encoder or load_encoder(DEFAULT_ENCODER, progress=progress)
    database = encode(town.references, encoder, progress=progress)
    encoded = encode(town.queries, encoder, progress=progress)
    rows = [[town.reference_files.index(name) for name in town.positives[path.name]] for path in encoded.paths]
    count = min(TARGET, len(rows) // 2)
    photos, shared = Photos(encoded.tokens), Shared(progress=progress)
    target, asked = photos.select(slice(0, count)), photos.select(slice(count, None))
    heads = {name: _fitted(card, Photos(database.tokens), target, shared) for name, card in SHOWN_QUERIES.items()}
    recalls = {name: mean_recall(made, asked, rows[count:], _KS) for name, made in heads.items()}

    places, _ = find_positions(database.paths, town.references, town.positions_csv)
    where = dict(zip(database.paths, places, strict=True))
    judged = heads["judged map"]
    assert isinstance(judged, RetrieverHead)
    head = judged.retriever
    assert isinstance(head, (Head, SecondOrderHead))
    place_map = PlaceMap.from_head(head, database, encoder, where, map_spec=BuildOptions(), progress=progress)
    place_map.save(out / "town.tfa", overwrite=True)
    facts = place_map.info().to_dict()
    reasons = {"head": facts["reasons"]["judge"], "verification": (facts["verification"] or {}).get("reason", "none")}
    result = DemoResult(out, references, len(asked), count, recalls, reasons)
    _draw(out, town, place_map, result, encoded)
    (out / "result.json").write_text(json.dumps(result.to_dict(), indent=1) + "\n", encoding="utf-8")
    return result


def _fitted(name: str, database: Photos, target: Photos, shared: Shared) -> Fitted:
    """A head of the benchmark on the references, calibrated by the target photos if it calibrates."""
    card = head_card(name)
    fitted = card.fit(database, shared)
    if not card.plan.calibrates:
        return fitted
    assert isinstance(fitted, Calibratable)
    return fitted.calibrate(target)


def _draw(out: Path, town: Town, place_map: PlaceMap, result: DemoResult, encoded: EncodedImages) -> None:
    answered = zip(encoded.paths, place_map.query_tokens(encoded.tokens, k=4), strict=True)
    # Of the photos that recall is of: the first of the drive calibrated other heads.
    answers = [replace(answer, query=str(path)) for path, answer in answered][result.target :]
    step = max(len(answers) // MONTAGE_QUERIES, 1)
    draw_montage([_montage_row(answer, town) for answer in answers[::step][:MONTAGE_QUERIES]], out / "montage.png")
    facts = place_map.info().to_dict()
    decided, verification = facts["decisions"], facts["verification"]
    decisions = [Decision("The head", decided["carrier"], result.reasons["head"])]
    if verification is not None:
        used = "yes" if verification["admitted"] else "no"
        decisions.append(Decision("Answers are verified", used, result.reasons["verification"]))
    write_demo_report(
        out / "report.html",
        title="TFA demo: a town seen twice",
        intro=[
            f"{result.references} reference photos of a rendered town on a clear day, {result.queries} queries from a "
            "second drive in other light and weather. Recall is the mean over three constructions.",
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


def _montage_row(answer: Answer, town: Town) -> MontageRow:
    right = set(town.positives[Path(answer.query).name])
    tiles = [
        MontageTile(
            Path(hit.image),
            [
                Path(hit.image).name,
                f"score {hit.score:.3f}, confidence {hit.confidence:.2f}",
                *format_matches(hit.inliers),
                str(hit.position or ""),
            ],
            "good" if Path(hit.image).name in right else "bad",
        )
        for hit in answer.hits
    ]
    return MontageRow(Path(answer.query), f"{Path(answer.query).name} · confidence {answer.confidence:.2f}", tiles)
