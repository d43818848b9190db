"""Records: what a head answered to every query of a dataset, kept so that anyone can score it again.

    results/sped/dataset.json                            names, positives, conditions
    results/sped/dinov2-s14-focus@322/tfa-c64.json.xz    rankings of one head under one encoder

A record holds rankings, not recalls: the first loop writes it, the second scores it without a model. It is
written once and never changed; only a new revision of the algorithm replaces it. All of it but `timings` follows
from its inputs, whose digest it carries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from tfa.base.files import sha256_of_json, write_json
from tfa.encoders.fingerprint import under_todays_name
from tfa_bench.array_json import BadRecord, array_digest, pack, read_form, unpack, write_packed
from tfa_bench.ranking_codes import pack_rankings, smallest, unpack_rankings

FORMAT, VERSION = "tfa-record", 1
SUFFIX = ".json.xz"
LABELS = "labels"  # what a trained system saw, elsewhere
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
        return sha256_of_json(self._content())

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
        values = read_form(path, TRUTH_FORMAT, VERSION, BadRecord)
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

    def to_dict(self, written: Callable[[np.ndarray], Any]) -> dict[str, Any]:
        lists = {"queries": list(self.queries), "database": list(self.database)}
        return {**lists, "low": self.low, "high": self.high, "steps": written(self.steps)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        queries, database = tuple(values["queries"]), tuple(values["database"])
        return cls(queries, database, values["low"], values["high"], unpack(values["steps"]))


@dataclass(frozen=True)
class Record:
    """One head on one dataset under one encoder."""

    dataset: Mapping[str, Any]  # name, title, database, queries (counts), fingerprint of its Truth
    encoder: Mapping[str, Any]  # id (the name it has today), fingerprint, grid
    head: Mapping[str, Any]  # name, title, sees, note, settings
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
        # Of the arrays themselves: how they are compressed may differ from one machine to the next.
        content = self._content(array_digest)
        return sha256_of_json({k: v for k, v in content.items() if k not in ("versions", "hardware")})

    def _content(
        self, written: Callable[[np.ndarray], Any], rankings: Callable[[np.ndarray], Any] = array_digest
    ) -> dict[str, Any]:
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
            "folds": [[packed_fold(fold, written) for fold in folds] for folds in self.folds],
            "rankings": rankings(self.rankings),
            "confidence": written(self.confidence),
            "sample": self.sample.to_dict(written),
        }

    def write(self, path: Path, *, replace: bool = False) -> None:
        if path.exists() and not replace:
            raise BadRecord(f"{path} exists; records are never overwritten: remove it, or write to another folder")
        content = self._content(pack, pack_rankings)
        write_packed(path, {**content, "identity": self.identity, "timings": dict(self.timings)})

    @classmethod
    def read(cls, path: Path) -> Self:
        values = read_form(path, FORMAT, VERSION, BadRecord, packed=True)
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
                folds=tuple(tuple(unpacked_fold(fold) for fold in folds) for folds in values["folds"]),
                rankings=unpack_rankings(values["rankings"]),
                confidence=unpack(values["confidence"]),
                sample=ScoreSample.from_dict(values["sample"]),
                timings=values["timings"],
            )
            whole = record.identity == values.get("identity")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise BadRecord(f"{path} is damaged: {type(error).__name__} {error}; restore it or run again") from None
        except BadRecord as error:
            raise BadRecord(f"{path}: {error}; restore it or run again") from None
        if not whole:
            raise BadRecord(f"{path} was edited: its content does not match its identity; restore it or run again")
        return replace(record, encoder=under_todays_name(record.encoder))


def record_path(results: Path, dataset: str, encoder: str, head: str) -> Path:
    return results / dataset / encoder.replace("/", "_") / f"{head}{SUFFIX}"


def find_records(results: Path) -> list[Path]:
    """Record files below a results folder (or one record, or one dataset's folder), in order."""
    if results.is_file():
        return [results]
    if not results.is_dir():
        raise BadRecord(f"{results} does not exist; write records with tfa bench run --out {results}")
    # Names that start with a dot are unfinished: splits of a head that is not complete, files being written.
    files = results.rglob(f"*{SUFFIX}")
    return sorted(path for path in files if not any(p.startswith(".") for p in path.relative_to(results).parts))


def truth_of(record_file: Path) -> Truth:
    """The Truth a record file belongs to: `dataset.json` one folder up."""
    return Truth.read(record_file.parent.parent)


def packed_fold(fold: Mapping[str, Any], written: Callable[[np.ndarray], Any] = pack) -> dict[str, Any]:
    lists = {key: np.asarray(fold[key], np.uint32) for key in ("calibration", "evaluated")}
    packed = {key: written(own.astype(smallest(own))) for key, own in lists.items()}
    plain = {key: fold[key] for key in ("condition", "confidence")}
    return {**packed, **plain, "decisions": dict(fold["decisions"])}


def unpacked_fold(fold: Mapping[str, Any]) -> dict[str, Any]:
    lists = {key: unpack(fold[key]).astype(np.int64) for key in ("calibration", "evaluated")}
    return {**lists, **{key: fold[key] for key in ("condition", "confidence", "decisions")}}


def _numbers(text: str) -> np.ndarray:
    return np.array(text.split(), np.int64)
