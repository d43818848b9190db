"""Records in memory for tests, built from given top answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tfa.evaluate.judgement import Z_SCORE
from tfa_bench.protocols import NO_CALIBRATION, Plan
from tfa_bench.records import Record, ScoreSample, Truth, record_path

ENCODER = "fake-s8@32"
QUERIES, IMAGES, DEPTH = 12, 14, 5
EVIDENCE = {
    "assignment": "soft",
    "carrier": "partial",
    "admit_cls": True,
    "candidates": {
        "hard/adaptive": {"support": 7.0, "agreement": [0.5, 0.6, 0.7]},
        "soft/partial": {"support": 9.0, "agreement": [0.75, 0.75, 0.75]},
        "soft/adaptive+cls": {"support": 9.5, "agreement": {"0-1": 0.8, "0-2": 0.7, "1-2": 0.9}},
    },
}


def synthetic_truth(name: str = "town") -> Truth:
    """Query i was taken at image i."""
    return Truth(
        name,
        f"The {name} <&>",
        tuple(f"map/{i}.png" for i in range(IMAGES)),
        tuple(f"queries/{i}.png" for i in range(QUERIES)),
        tuple(np.array([i]) for i in range(QUERIES)),
        {},
        "the same frame",
    )


def write_record(
    results: Path,
    truth: Truth,
    head: str,
    wrong: tuple[int, ...] = (),
    *,
    plan: Plan = NO_CALIBRATION,
    decisions: dict[str, Any] | None = None,
    encoder: str = ENCODER,
    nothing: tuple[int, ...] = (),
) -> Record:
    """A head that answers every query rightly but the `wrong` ones (with image 13) and those it cannot (`nothing`)."""
    splits = plan.splits(QUERIES)
    rankings = np.full((QUERIES, len(splits), 1, DEPTH), 255, np.uint8)
    confidence = np.full((QUERIES, len(splits), 1), np.nan, np.float32)
    for number, split in enumerate(splits):
        for query in split.evaluated:
            first = IMAGES - 1 if query in wrong else query
            others = [image for image in range(IMAGES) if image not in (first, query)]
            if query not in nothing:
                rankings[query, number, 0] = [first, *others][:DEPTH]
            confidence[query, number, 0] = 3.0 - 0.1 * query
    record = Record(
        dataset={"name": truth.name, "title": truth.title, "database": IMAGES, "queries": QUERIES,
                 "fingerprint": truth.fingerprint},
        encoder={"id": encoder, "fingerprint": "f", "grid": [4, 4]},
        head={"name": head, "title": f"Head <{head}>", "data_used": "database", "note": "", "settings": {}},
        plan=plan.to_dict(),
        algorithm={},
        versions={},
        hardware={},
        replicas=("only",),
        seeds=tuple(split.seed for split in splits),
        folds=tuple(
            tuple(
                {"calibration": fold.calibration, "evaluated": fold.evaluated, "condition": None,
                 "confidence": Z_SCORE, "decisions": decisions or {}}
                for fold in split.folds
            )
            for split in splits
        ),
        rankings=rankings,
        confidence=confidence,
        sample=ScoreSample.of(np.array([0, 3]), np.array([0, 3, 7]), np.array([[3, 1, 2], [1, 1, 1]])),
        timings={},
    )  # fmt: skip
    record.write(record_path(results, truth.name, encoder, head))
    return record


def write_photos(folder: Path, truth: Truth, missing: tuple[str, ...] = ()) -> Path:
    """A tiny grey photo for each name."""
    for name in (*truth.database, *truth.queries):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name not in missing:
            Image.new("RGB", (8, 6), (120, 120, 120)).save(path)
    return folder


def write_town(root: Path, name: str = "town") -> tuple[Path, Truth]:
    """tfa errs on 1, 6 and 10; anyloc on 0, 4, 5, 6 and 9."""
    truth = synthetic_truth(name)
    truth.write(root / name)
    write_record(root, truth, "tfa", (1, 6, 10), decisions=EVIDENCE)
    write_record(root, truth, "anyloc", (0, 4, 5, 6, 9))
    return root, truth
