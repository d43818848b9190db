"""Records: what a head answered to every query of a dataset, kept so that anyone can score it again.

    results/sped/dataset.json                         names, positives, conditions
    results/sped/dinov2-s14-focus@322/tfa-c64.json    rankings of one head under one encoder

A record holds rankings, not recalls: the first loop writes it, the second scores it without a model. It is
written once and never changed. All of it but `timings` follows from its inputs, whose digest it carries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from tfa.base.files import sha256_of_json, write_json
from tfa.bench.array_json import BadRecord, array_digest, pack, unpack

FORMAT, VERSION = "tfa-record", 1
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
        values = _read(path, TRUTH_FORMAT)
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
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadRecord(f"{path} is damaged: {error}") from None
        if truth.fingerprint != values.get("fingerprint"):
            raise BadRecord(f"{path} was edited: its content does not match its fingerprint; restore it or run again")
        return truth


@dataclass(frozen=True)
class Record:
    """One head on one dataset under one encoder."""

    dataset: Mapping[str, Any]  # name, title, database, queries (counts), fingerprint of its Truth
    encoder: Mapping[str, Any]  # id, fingerprint, grid
    head: Mapping[str, Any]  # name, title, sees, note, settings
    plan: Mapping[str, Any]  # Plan.to_dict()
    versions: Mapping[str, str]
    hardware: Mapping[str, Any]
    replicas: tuple[str, ...]
    seeds: tuple[int | None, ...]  # of each split
    folds: tuple[tuple[Mapping[str, Any], ...], ...]  # of each split: calibration, evaluated, condition, decisions
    rankings: np.ndarray  # queries splits replicas depth: database indices, `nothing` where there is none
    confidence: np.ndarray  # queries splits replicas: z-score of the best answer in its row; nan where not asked
    sample: Mapping[str, Any]  # queries, database (indices), scores (array): a small piece of the score matrix
    timings: Mapping[str, float]  # seconds

    @property
    def nothing(self) -> int:
        """The index that stands for no image: not asked in this split, or a row of nothing but equal scores."""
        return int(np.iinfo(self.rankings.dtype).max)

    @property
    def depth(self) -> int:
        return int(self.rankings.shape[3])

    @property
    def inputs(self) -> dict[str, Any]:
        """All that its content follows from, on one machine."""
        told = {"dataset": self.dataset, "encoder": self.encoder, "head": self.head, "plan": self.plan}
        return {**{key: dict(value) for key, value in told.items()}, "depth": self.depth}

    def evaluated(self, split: int) -> np.ndarray:
        """Queries asked in a split, in the order of their numbers."""
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

    def _content(self, written: Callable[[np.ndarray], Any]) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "dataset": dict(self.dataset),
            "encoder": dict(self.encoder),
            "head": dict(self.head),
            "plan": dict(self.plan),
            "versions": dict(self.versions),
            "hardware": dict(self.hardware),
            "replicas": list(self.replicas),
            "seeds": list(self.seeds),
            "folds": [[packed_fold(fold, written) for fold in folds] for folds in self.folds],
            "rankings": written(self.rankings),
            "confidence": written(self.confidence),
            "sample": {
                "queries": list(self.sample["queries"]),
                "database": list(self.sample["database"]),
                "scores": written(np.asarray(self.sample["scores"], np.float16)),
            },
        }

    def write(self, path: Path) -> None:
        if path.exists():
            raise BadRecord(f"{path} exists; records are never overwritten: remove it, or write to another folder")
        write_json(path, {**self._content(pack), "identity": self.identity, "timings": dict(self.timings)})

    @classmethod
    def read(cls, path: Path) -> Self:
        values = _read(path, FORMAT)
        try:
            sample = values["sample"]
            record = cls(
                dataset=values["dataset"],
                encoder=values["encoder"],
                head=values["head"],
                plan=values["plan"],
                versions=values["versions"],
                hardware=values["hardware"],
                replicas=tuple(values["replicas"]),
                seeds=tuple(values["seeds"]),
                folds=tuple(tuple(unpacked_fold(fold) for fold in folds) for folds in values["folds"]),
                rankings=unpack(values["rankings"]),
                confidence=unpack(values["confidence"]),
                sample={**sample, "scores": unpack(sample["scores"])},
                timings=values["timings"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadRecord(f"{path} is damaged: {type(error).__name__} {error}") from None
        except BadRecord as error:
            raise BadRecord(f"{path}: {error}") from None
        if record.identity != values.get("identity"):
            raise BadRecord(f"{path} was edited: its content does not match its identity; restore it or run again")
        return record


def record_path(results: Path, dataset: str, encoder: str, head: str) -> Path:
    return results / dataset / encoder.replace("/", "_") / f"{head}.json"


def find_records(results: Path) -> list[Path]:
    """Record files below a results folder (or one record, or one dataset's folder), in order."""
    if results.is_file():
        return [results]
    if not results.is_dir():
        raise BadRecord(f"{results} does not exist; write records with tfa bench run --out {results}")
    # Names that start with a dot are unfinished: splits of a head that is not complete, files being written.
    found = (path for path in results.rglob("*.json") if path.name != TRUTH_FILE)
    return sorted(path for path in found if not any(p.startswith(".") for p in path.relative_to(results).parts))


def truth_of(record_file: Path) -> Truth:
    """The Truth a record file belongs to: `dataset.json` one folder up."""
    return Truth.read(record_file.parent.parent)


def _read(path: Path, form: str) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BadRecord(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise BadRecord(f"{path} cannot be read: {error}") from None
    if not isinstance(values, dict) or values.get("format") != form:
        raise BadRecord(f"{path} is not a {form} file")
    if values.get("version") != VERSION:
        raise BadRecord(f"{path} is of version {values.get('version')}; this release reads version {VERSION}")
    return values


def packed_fold(fold: Mapping[str, Any], written: Callable[[np.ndarray], Any] = pack) -> dict[str, Any]:
    lists = {key: written(np.asarray(fold[key], np.uint32)) for key in ("calibration", "evaluated")}
    return {**lists, "condition": fold.get("condition"), "decisions": dict(fold["decisions"])}


def unpacked_fold(fold: Mapping[str, Any]) -> dict[str, Any]:
    return {**fold, **{key: unpack(fold[key]).astype(np.int64) for key in ("calibration", "evaluated")}}


def _numbers(text: str) -> np.ndarray:
    return np.array(text.split(), np.int64)
