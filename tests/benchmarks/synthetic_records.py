"""Records made in memory for tests: small enough that their recalls can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfa.evaluate.judgement import Z_SCORE
from tfa_bench.protocols import NO_CALIBRATION, budget
from tfa_bench.records import Record, RecordPath, ScoreSample, Truth, record_path

NOTHING = 65535  # of rankings held as uint16
OTHERS = 5  # images from here on fill rankings; positives come before them


def ranking(first: Sequence[int], depth: int = 4) -> list[int]:
    """Images `first`, then others."""
    return [*first, *range(OTHERS, OTHERS + depth)][:depth]


def synthetic_truth(
    positives: Sequence[Sequence[int]],
    *,
    name: str = "town",
    conditions: Mapping[str, Sequence[int]] | None = None,
    database: int = 30,
) -> Truth:
    return Truth(
        name,
        name.capitalize(),
        tuple(f"database/{i}.png" for i in range(database)),
        tuple(f"queries/{i}.png" for i in range(len(positives))),
        tuple(np.array(right, np.int64) for right in positives),
        {condition: np.array(own, np.int64) for condition, own in (conditions or {}).items()},
        "the same place",
    )


def named(name: str, data_used: str = "database") -> dict[str, Any]:
    return {"name": name, "title": name.upper(), "data_used": data_used, "note": "hard words", "settings": {"words": 4}}


def synthetic_record(
    truth: Truth,
    rankings: Any,
    *,
    evaluated: Sequence[Sequence[int]] | None = None,
    confidence: Any = None,
    head: Mapping[str, Any] | None = None,
    encoder: Mapping[str, Any] | None = None,
    **given: Any,
) -> Record:
    """A record of `rankings` `q splits replicas depth`; the queries not evaluated in a split calibrate it."""
    ranked = np.array(rankings, np.uint16)
    queries, splits, replicas, _ = ranked.shape
    by_split = [list(range(queries))] * splits if evaluated is None else evaluated
    if confidence is None:
        confidence = np.full(ranked.shape[:3], np.nan)
        for split, own in enumerate(by_split):
            confidence[own, split] = 1.0
    folds = tuple(
        (
            {
                "calibration": np.setdiff1d(np.arange(queries), own),
                "evaluated": np.array(own, np.int64),
                "condition": None,
                "confidence": Z_SCORE,
                "decisions": {"c": 0.5},
            },
        )
        for own in by_split
    )
    counts = {"database": len(truth.database), "queries": queries}
    values: dict[str, Any] = {
        "dataset": {"name": truth.name, "title": truth.title, **counts, "fingerprint": truth.fingerprint},
        "encoder": dict(encoder or {"id": "tiny@28", "fingerprint": "", "grid": [2, 2]}),
        "head": dict(head or named("vlad")),
        "plan": (NO_CALIBRATION if splits == 1 else budget(1, splits=splits)).to_dict(),
        "algorithm": {"kmeans": 1},
        "versions": {"tfa": "1"},
        "hardware": {"machine": "small"},
        "replicas": tuple(map(str, range(replicas))),
        "seeds": (None,) if splits == 1 else tuple(range(splits)),
        "folds": folds,
        "rankings": ranked,
        "confidence": np.array(confidence, np.float32),
        "sample": ScoreSample.of(np.arange(1), np.arange(2), np.array([[0.5, 0.25]])),
        "timings": {"fit": 1.5},
    }
    return Record(**{**values, **given})


def written(results: Path, truth: Truth, *records: Record) -> list[RecordPath]:
    """Write a dataset and records of it; the places of the records."""
    truth.write(results / truth.name)
    paths = [record_path(results, truth.name, record.encoder["id"], record.name) for record in records]
    for record, path in zip(records, paths, strict=True):
        record.write(path)
    return paths
