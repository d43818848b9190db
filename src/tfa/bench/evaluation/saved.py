"""An evaluation as JSON: its numbers and every answer, so that a later one can be set beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfa.bench.evaluation.judgement import BadEvaluation, JudgedAnswer, JudgedHit, JudgedQuery, Judgement, Run
from tfa.bench.evaluation.numbers import change_of, numbers_of
from tfa.bench.evaluation.of_map import MapEvaluation
from tfa.bench.records import PROBABILITY, Z_SCORE
from tfa.core.files import require_format
from tfa.core.json_shape import (
    anything,
    boolean,
    fields,
    finite_number,
    integer,
    list_of,
    mapping_of,
    maybe,
    one_of,
    text,
)
from tfa.errors import BadPositions
from tfa.types import Position
from tfa.version import __version__

FORMAT, VERSION = "tfa-evaluation", 1

# What a file must hold to be set beside another evaluation; all else in it is for readers.
HIT = fields(
    {"image": text(), "right": boolean, "confidence": maybe(finite_number()), "inliers": maybe(integer()),
     "distance": maybe(finite_number(0)), "position": maybe(mapping_of(finite_number()))}
)  # fmt: skip
ANSWER = fields(
    {"confidence": maybe(finite_number()), "sure": boolean, "reranked": boolean, "hits": list_of(HIT)}, None, anything
)
QUERY = fields(
    {"query": text(), "in_map": boolean, "true_image": maybe(text()), "answers": mapping_of(maybe(ANSWER))},
    None,
    anything,
)
HEAD = fields(
    {"name": text(), "title": text(), "confidence": one_of(PROBABILITY, Z_SCORE), "k": integer(1)}, None, anything
)
EVALUATION = fields(
    {"map": text(), "ground_truth": fields({"rule": text(), "fingerprint": text()}), "heads": list_of(HEAD, 1),
     "queries": list_of(QUERY, 1)}, None, anything,
)  # fmt: skip


def to_dict(evaluation: MapEvaluation, worst: int, beside: Sequence[Run] = ()) -> dict[str, Any]:
    """All of it; `worst` mistakes of each head are listed by themselves. `beside` are runs to be compared with."""
    judgement = evaluation.judgement
    heads = [
        {
            "name": run.name,
            "title": run.title,
            "active": run.name == evaluation.active,
            "confidence": run.kind,
            "k": run.depth,
            **numbers_of(judgement, run).to_dict(worst),
        }
        for run in judgement.runs
    ]
    return {
        "format": FORMAT,
        "version": VERSION,
        "tfa": __version__,
        "map": judgement.title,
        "images": len(judgement.images),
        "ground_truth": {"rule": judgement.rule, "fingerprint": evaluation.truth.fingerprint},
        "not_in_map": judgement.not_in_map,
        "unanswerable_left_out": evaluation.skipped_unanswerable,
        "without_ground_truth": list(evaluation.without_truth),
        "unreadable": [{"file": file, "reason": reason} for file, reason in evaluation.unreadable],
        "notes": list(evaluation.notes),
        "heads": heads,
        "changes": [change_of(run, other).to_dict() for run in judgement.runs for other in beside],
        "queries": [_query_dict(judgement, at) for at in range(len(judgement.queries))],
    }


def _query_dict(judgement: Judgement, at: int) -> dict[str, Any]:
    query = judgement.queries[at]
    return {
        **vars(query),
        "position": None if query.position is None else query.position.to_dict(),
        "answers": {run.name: _answer_dict(run.answers[at], judgement.images) for run in judgement.runs},
    }


def _answer_dict(answer: JudgedAnswer | None, images: Mapping[str, Position | None]) -> dict[str, Any] | None:
    if answer is None:
        return None
    hits = []
    for hit in answer.hits:
        where = images.get(hit.image)
        plain = {key: value for key, value in vars(hit).items() if key != "lines"}
        hits.append({**plain, "position": None if where is None else where.to_dict()})
    return {
        "right": answer.right,
        "confidence": answer.confidence,
        "sure": answer.sure,
        "reranked": answer.reranked,
        "first_right": answer.first_right,
        "place": None if answer.place is None else {**vars(answer.place), "position": answer.place.position.to_dict()},
        "hits": hits,
    }


def set_beside(evaluation: MapEvaluation, file: Path) -> Judgement:
    """The judgement with the runs of a saved evaluation after its own, on the queries that both have."""
    values = require_format(file, FORMAT, VERSION, BadEvaluation, "; write it with tfa evaluate --out FILE.json")
    judgement = evaluation.judgement
    try:
        values = _upgrade(values)
        EVALUATION(values, "it")
        if values["ground_truth"]["fingerprint"] != evaluation.truth.fingerprint:
            raise BadEvaluation(
                f"{file} was judged by another ground truth ({values['ground_truth']['rule']}; here {judgement.rule}); "
                "evaluate both maps by one file and one radius",
                file,
            )
        theirs = {str(entry["query"]): entry for entry in values["queries"]}
        common = [query.query in theirs for query in judgement.queries]
        if not any(common):
            raise BadEvaluation(f"{file} has none of these queries; evaluate the same photos", file)
        images: dict[str, Position | None] = {**judgement.images}
        saved = values["map"]
        runs = [
            Run(
                f"{head['name']} of {saved}",
                f"{head['title']} of {saved} ({file.name})",
                head["confidence"],
                head["k"],
                tuple(_answer(theirs.get(query.query), head["name"], images) for query in judgement.queries),
            )
            for head in values["heads"]
        ]
        queries = tuple(_in_either(query, theirs.get(query.query)) for query in judgement.queries)
    except (KeyError, ValueError, BadPositions) as error:  # an answer of no head; a value out of shape
        raise BadEvaluation(f"{file} is damaged: {error}; write it again with tfa evaluate --out", file) from None
    files = {**judgement.files, **{name: Path(name) for name in images if name not in judgement.images}}
    return replace(judgement, images=images, queries=queries, runs=(*judgement.runs, *runs), files=files)


_OLD_KEYS = {"truth": "ground_truth", "verified": "reranked", "matches": "inliers"}


def _upgrade(values: Any, parent: str = "") -> Any:
    """Rename keys of files that were written before the keys had their present names."""
    if isinstance(values, dict):
        renamed = {} if parent == "answers" else _OLD_KEYS  # the keys of `answers` are names of heads
        return {renamed.get(key, key): _upgrade(value, key) for key, value in values.items()}
    return [_upgrade(value) for value in values] if isinstance(values, list) else values


def _in_either(query: JudgedQuery, other: Mapping[str, Any] | None) -> JudgedQuery:
    """The query; the other map may have its place where this one has not."""
    if query.in_map or other is None or not other["in_map"]:
        return query
    return replace(query, in_map=True, true_image=other["true_image"])


def _answer(entry: Mapping[str, Any] | None, head: str, images: dict[str, Position | None]) -> JudgedAnswer | None:
    """What a saved head gave for a query; images that are new here are added to `images`."""
    answer = None if entry is None else entry["answers"][head]
    if answer is None:
        return None
    hits = []
    for hit in answer["hits"]:
        where = hit["position"]
        images.setdefault(str(hit["image"]), None if where is None else Position.from_dict(where))
        kept = {key: hit[key] for key in ("image", "right", "confidence", "inliers", "distance")}
        hits.append(JudgedHit(**kept))
    return JudgedAnswer(tuple(hits), answer["confidence"], bool(answer["sure"]), bool(answer["reranked"]))
