"""Judgments for the failure explorer, from one split and one replica of each recorded head."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfa.errors import BadSpec
from tfa.evaluate.judgement import EvaluatedHit, JudgedAnswer, JudgedQuery, Judgement, Run
from tfa.evaluate.positives import measure_lengths, position_kinds, to_points
from tfa.photos.find_positions import find_positions
from tfa.types import Position
from tfa_bench.datasets.load import POSITIONS
from tfa_bench.measures import matches
from tfa_bench.records import BadRecord, Record, Truth, find_records, truth_of
from tfa_bench.scores import KS, Scored, check_revisions, score

_MOST_HEADS = 8  # heads on one page


@dataclass(frozen=True)
class RecordsJudgement:
    """Judgment of one dataset's records, with their scores over all splits and replicas."""

    judgement: Judgement
    truth: Truth
    scored: tuple[Scored, ...]  # in the order of the runs
    notes: tuple[str, ...]


def judge_records(
    places: Sequence[Path], *, heads: Collection[str] = (), photos: Path | None = None, split: int = 0
) -> RecordsJudgement:
    """Read the records in files and folders, optionally only those of some heads.

    `photos` is the dataset's folder: images and positions are read from it.
    """
    found = _read(places, heads)
    truths = [truth for _, truth in found]
    others = [truth.name for truth in truths if truth.fingerprint != truths[0].fingerprint]
    if others:
        raise BadRecord(
            f"records of {truths[0].name} and of {others[0]} cannot be compared: their queries or positives "
            "differ; choose records of one dataset"
        )
    truth, records = truths[0], [record for record, _ in found]
    scored = tuple(score(record, truth, ks=[k for k in KS if k <= record.depth]) for record in records)
    check_revisions(scored)
    if photos is not None and not photos.is_dir():
        raise BadSpec(f"{photos} is not a folder; choose the folder with the images of {truth.name}")
    where = _positions(truth, photos)
    names = _names(records)
    runs = tuple(_run(*one, truth, split, where) for one in zip(names, records, strict=True))
    files = {} if photos is None else {name: photos / name for name in (*truth.database, *truth.queries)}
    queries = _queries(truth, where[len(truth.database) :])
    images = dict(zip(truth.database, where, strict=False))
    judgement = Judgement(truth.title, truth.rule, images, queries, runs, files)
    return RecordsJudgement(judgement, truth, scored, tuple(_notes(records, names, split)))


def _queries(truth: Truth, where: Sequence[Position | None]) -> tuple[JudgedQuery, ...]:
    condition = {int(number): name for name, own in truth.conditions.items() for number in own}
    queries = []
    for number, (name, right) in enumerate(zip(truth.queries, truth.positives, strict=True)):
        shown = truth.database[int(right[len(right) // 2])] if len(right) else None
        queries.append(JudgedQuery(number, name, bool(len(right)), where[number], shown, condition.get(number, "")))
    return tuple(queries)


def _read(places: Sequence[Path], heads: Collection[str]) -> list[tuple[Record, Truth]]:
    paths = list(dict.fromkeys(path for place in places for path in find_records(place)))
    if not paths:
        raise BadRecord(f"{places[0]} holds no records; write them with: tfa bench run --out {places[0]}")
    if heads:
        there = {path.head for path in paths}
        for name in heads:
            if name not in there:
                raise BadRecord(f"no record of head {name!r}; recorded: {', '.join(sorted(there))}")
        paths = [path for head in heads for path in paths if path.head == head]
    if len(paths) > _MOST_HEADS:
        raise BadSpec(
            f"{len(paths)} records do not fit on one page (at most {_MOST_HEADS}); choose some with "
            "--head NAME, or name their files"
        )
    return [(Record.read(path), truth_of(path)) for path in paths]


def _names(records: Sequence[Record]) -> list[str]:
    """Return the heads' names, with their encoders if two records have the same head."""
    plain = [record.name for record in records]
    named = [
        name if plain.count(name) == 1 else f"{name} {record.encoder['id']}"
        for name, record in zip(plain, records, strict=True)
    ]
    return [name if named.count(name) == 1 else f"{name} ({at})" for at, name in enumerate(named, 1)]


def _notes(records: Sequence[Record], names: Sequence[str], split: int) -> list[str]:
    several = [name for name, record in zip(names, records, strict=True) if record.rankings[0, :, :, 0].size > 1]
    if not several:
        return []
    return [
        f"{', '.join(several)}: queries and answers are from split {split} and the first run; "
        "the table averages all splits and runs"
    ]


def _positions(truth: Truth, photos: Path | None) -> list[Position | None]:
    """Read database and query positions from the dataset's folder. None unless all have the same kind."""
    names = (*truth.database, *truth.queries)
    if photos is None:
        return [None] * len(names)
    csv = photos / POSITIONS
    where, _ = find_positions([photos / name for name in names], photos, csv if csv.is_file() else None)
    return where if len(position_kinds(where)) == 1 else [None] * len(names)


def _run(name: str, record: Record, truth: Truth, split: int, where: Sequence[Position | None]) -> Run:
    if not 0 <= split < len(record.folds):
        raise BadSpec(f"the record of {record.name} has splits 0 to {len(record.folds) - 1}, not {split}")
    own = record.evaluated(split)
    ranked = record.rankings[own, split, 0].astype(np.int64)
    right = matches(ranked, [truth.positives[query] for query in own], record.nothing)
    points, database = to_points(where), len(truth.database)
    answers: list[JudgedAnswer | None] = [None] * len(truth.queries)
    for query, images, verdicts in zip(own.tolist(), ranked, right, strict=True):
        given = images != record.nothing
        images, verdicts = images[given], verdicts[given]
        away = measure_lengths(points[images], points[database + query][None]) if len(images) else []
        hits = [
            EvaluatedHit(truth.database[image], bool(verdict), None, None, meters, None)
            for image, verdict, meters in zip(images.tolist(), verdicts, away, strict=True)
        ]
        # Keep the decimals as written: 5.2, not the nearest float64 of its float32 value.
        confidence = float(str(record.confidence[query, split, 0]))
        answers[query] = JudgedAnswer(tuple(hits), None if np.isnan(confidence) else confidence)
    # Use probabilities only if all folds have them: a z-score among them would look like near certainty.
    kind = record.confidence_kinds[0] if len(record.confidence_kinds) == 1 else "z-score or probability"
    title = f"{record.head['title']} ({record.head['data_used']})"
    return Run(name, title, kind, record.depth, tuple(answers))
