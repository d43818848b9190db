"""Records: what a head answered to every query of a dataset, stored so that anyone can score it again.

    results/sped/dataset.json                         names, positives, conditions
    results/sped/dinov2-s14-focus@322/records.zip     rankings of all heads under one encoder, see `record_files`

A record holds rankings, not recalls: the first loop writes it, the second scores it without a model. It is
written once and never changed; only a new revision of the algorithm replaces it. All of it but `timings` follows
from its inputs, whose digest it carries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from tfa.bench.record_files import BadRecord, RecordPath, decode_npz, encode_npz
from tfa.core.files import check_format, hash_json, require_format, write_json
from tfa.encoders.catalogue import use_current_name

FORMAT, VERSION = "tfa-record", 1
Z_SCORE, PROBABILITY = "z-score", "probability"  # kinds of confidence
LABELS = "labels"  # data used by a trained system, elsewhere
TRUTH_FORMAT = "tfa-dataset"
TRUTH_FILE = "dataset.json"


@dataclass(frozen=True)
class Truth:
    """What answers are judged by: one file for each dataset, shared by its records."""

    name: str
    title: str
    database: tuple[str, ...]  # paths below the dataset's folder
    queries: tuple[str, ...]
    positives: tuple[np.ndarray, ...]  # of each query, indices into database
    conditions: Mapping[str, np.ndarray]  # name → indices of its queries; {} where there are none
    rule: str  # what makes a positive, in words

    @property
    def fingerprint(self) -> str:
        return hash_json(self._content())

    def _content(self) -> dict[str, Any]:
        return {
            "format": TRUTH_FORMAT,
            "version": VERSION,
            "name": self.name,
            "title": self.title,
            "rule": self.rule,
            "database": list(self.database),
            "queries": list(self.queries),
            "positives": [" ".join(map(str, right)) for right in self.positives],
            "conditions": {name: " ".join(map(str, own)) for name, own in self.conditions.items()},
        }

    def write(self, folder: Path) -> None:
        write_json(folder / TRUTH_FILE, {**self._content(), "fingerprint": self.fingerprint})

    @classmethod
    def read(cls, folder: Path) -> Self:
        path = folder / TRUTH_FILE
        values = require_format(path, TRUTH_FORMAT, VERSION, BadRecord)
        try:
            truth = cls(
                values["name"],
                values["title"],
                tuple(values["database"]),
                tuple(values["queries"]),
                tuple(_numbers(right) for right in values["positives"]),
                {name: _numbers(own) for name, own in values["conditions"].items()},
                values["rule"],
            )
            whole = truth.fingerprint == values.get("fingerprint")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise BadRecord(f"{path} is damaged: {type(error).__name__} {error}; restore it or run again") from None
        if not whole:
            raise BadRecord(f"{path} was edited: its content does not match its fingerprint; restore it or run again")
        return truth


@dataclass(frozen=True, eq=False)
class ScoreSample:
    """A small piece of the score matrix, for a picture: 256 steps from its lowest to its highest score."""

    queries: tuple[int, ...]
    database: tuple[int, ...]
    low: float
    high: float
    steps: np.ndarray  # queries database: uint8

    @classmethod
    def of(cls, queries: np.ndarray, database: np.ndarray, scores: np.ndarray) -> Self:
        scores = np.asarray(scores, np.float64)
        finite = scores[np.isfinite(scores)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        high = high if high > low else low + 1  # nothing to tell apart
        scores = np.nan_to_num(scores, nan=low, neginf=low, posinf=high)
        steps = np.round((scores - low) / (high - low) * 255).astype(np.uint8)
        return cls(tuple(queries.tolist()), tuple(database.tolist()), low, high, steps)

    @property
    def scores(self) -> np.ndarray:
        return self.low + (self.high - self.low) / 255 * self.steps.astype(np.float64)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the steps."""
        return {"queries": list(self.queries), "database": list(self.database), "low": self.low, "high": self.high}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], steps: np.ndarray) -> Self:
        return cls(tuple(values["queries"]), tuple(values["database"]), values["low"], values["high"], steps)


@dataclass(frozen=True)
class Record:
    """One head on one dataset under one encoder."""

    dataset: Mapping[str, Any]  # name, title, database, queries (counts), fingerprint of its Truth
    encoder: Mapping[str, Any]  # id (the name it has today), fingerprint, grid
    head: Mapping[str, Any]  # name, title, data_used, note, settings
    plan: Mapping[str, Any]  # Plan.to_dict()
    algorithm: Mapping[str, int]  # stage → revision; {} of records made before revisions were recorded
    versions: Mapping[str, str]
    hardware: Mapping[str, Any]
    replicas: tuple[str, ...]
    seeds: tuple[int | None, ...]  # of each split
    # Of each split: calibration, evaluated, condition, decisions, and of which kind the confidences are.
    folds: tuple[tuple[Mapping[str, Any], ...], ...]
    rankings: np.ndarray  # queries splits replicas depth: database indices, `nothing` where there is none
    confidence: np.ndarray  # queries splits replicas, of the best answer; nan where not evaluated
    sample: ScoreSample
    timings: Mapping[str, float]  # seconds

    @property
    def nothing(self) -> int:
        """The index that stands for no image: not evaluated in this split, or a row of nothing but equal scores."""
        return int(np.iinfo(self.rankings.dtype).max)

    @property
    def depth(self) -> int:
        return int(self.rankings.shape[3])

    @property
    def inputs(self) -> dict[str, Any]:
        """All that its content follows from, on one machine."""
        named = ("dataset", "encoder", "head", "plan", "algorithm")
        return {**{name: dict(getattr(self, name)) for name in named}, "depth": self.depth}

    @property
    def confidence_kinds(self) -> tuple[str, ...]:
        """What its confidences are: z-scores of the best answer in its row, or the probability that it is right.

        A head that verifies where that is admitted may have both; each fold says which it has.
        """
        return tuple(dict.fromkeys(fold["confidence"] for folds in self.folds for fold in folds))

    def evaluated(self, split: int) -> np.ndarray:
        """Queries evaluated in a split, in the order of their numbers."""
        return np.sort(np.concatenate([np.asarray(fold["evaluated"], np.int64) for fold in self.folds[split]]))

    @property
    def name(self) -> str:
        return str(self.head["name"])

    @property
    def identity(self) -> str:
        """Digest of everything but timings, versions and hardware: two runs of the same inputs share it."""
        facts = {key: value for key, value in self._facts().items() if key not in ("versions", "hardware")}
        # Digests of the arrays themselves: how they are compressed may differ from one machine to the next.
        return hash_json({**facts, "arrays": {name: _digest(array) for name, array in self._arrays().items()}})

    def _facts(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "dataset": dict(self.dataset),
            "encoder": dict(self.encoder),
            "head": dict(self.head),
            "plan": dict(self.plan),
            "algorithm": dict(self.algorithm),
            "versions": dict(self.versions),
            "hardware": dict(self.hardware),
            "replicas": list(self.replicas),
            "seeds": list(self.seeds),
            "folds": [[fold_to_dict(fold) for fold in folds] for folds in self.folds],
            "sample": self.sample.to_dict(),
        }

    def _arrays(self) -> dict[str, np.ndarray]:
        return {"rankings": self.rankings, "confidence": self.confidence, "sample": self.sample.steps}

    def write(self, path: RecordPath, *, replace: bool = False) -> None:
        facts = {**self._facts(), "identity": self.identity, "timings": dict(self.timings)}
        path.write_bytes(encode_npz(facts, self._arrays()), replace=replace)

    @classmethod
    def read(cls, path: RecordPath) -> Self:
        try:
            values, arrays = decode_npz(path.read_bytes())
        except ValueError as error:
            raise BadRecord(f"{path} cannot be read: {error}") from None
        check_format(values, path, FORMAT, VERSION, BadRecord)
        try:
            record = cls(
                dataset=values["dataset"],
                encoder=values["encoder"],
                head=values["head"],
                plan=values["plan"],
                algorithm=values["algorithm"],
                versions=values["versions"],
                hardware=values["hardware"],
                replicas=tuple(values["replicas"]),
                seeds=tuple(values["seeds"]),
                folds=tuple(tuple(fold_from_dict(fold) for fold in folds) for folds in values["folds"]),
                rankings=check_array(arrays["rankings"], "u", 4),
                confidence=check_array(arrays["confidence"], "f", 3),
                sample=ScoreSample.from_dict(values["sample"], check_array(arrays["sample"], "u", 2)),
                timings=values["timings"],
            )
            whole = record.identity == values.get("identity")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise BadRecord(f"{path} is damaged: {type(error).__name__} {error}; restore it or run again") from None
        if not whole:
            raise BadRecord(f"{path} was edited: its content does not match its identity; restore it or run again")
        return replace(record, encoder=use_current_name(record.encoder))


def truth_of(path: RecordPath) -> Truth:
    """Read the Truth a record belongs to: `dataset.json` of its dataset's folder."""
    return Truth.read(path.dataset_folder)


def fold_to_dict(fold: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fold of a record as JSON values."""
    lists = {key: np.asarray(fold[key]).tolist() for key in ("calibration", "evaluated")}
    plain = {key: fold[key] for key in ("condition", "confidence")}
    return {**lists, **plain, "decisions": dict(fold["decisions"])}


def fold_from_dict(values: Mapping[str, Any]) -> dict[str, Any]:
    lists = {key: _indices(values[key]) for key in ("calibration", "evaluated")}
    return {**lists, **{key: values[key] for key in ("condition", "confidence", "decisions")}}


def check_array(array: np.ndarray, kind: str, dimensions: int) -> np.ndarray:
    """Return an array that a file holds if it is of the kind (`u`: unsigned integers) and dimensions it must have."""
    if array.dtype.kind != kind or array.ndim != dimensions:
        raise ValueError(f"an array is of type {array.dtype} and has {array.ndim} dimensions, not {dimensions}")
    return array


def _indices(numbers: Sequence[int]) -> np.ndarray:
    if not isinstance(numbers, list) or not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("queries of a fold must be a list of their numbers")
    return np.array(numbers, np.int64)


def _digest(array: np.ndarray) -> list[Any]:
    """Return what an identity includes of an array: its type, shape and content."""
    array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    return [array.dtype.str, list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]


def _numbers(text: str) -> np.ndarray:
    return np.array(text.split(), np.int64)
