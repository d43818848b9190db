"""What a figure is drawn from: the records of one dataset under one encoder, and their truth."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfa.errors import BadSpec
from tfa_bench.record_files import BadRecord, RecordPath, find_records
from tfa_bench.records import Record, Truth, truth_of
from tfa_bench.scores import KS, Scored, score

REFERENCE = "tfa"
HEADS = ("tfa", "anyloc", "tfvpr", "ria")  # side by side in grids and matrices
_MOST_HEADS = 4  # as many as a picture has room for, where the usual ones are not there


@dataclass(frozen=True)
class Study:
    truth: Truth
    encoder: str
    records: Mapping[str, Record]  # by the head's name, in order
    scored: Mapping[str, Scored]  # the same heads

    @property
    def folder(self) -> str:
        """Where its pictures go, below the output folder: laid out as the records are."""
        return f"{_folder_name(self.truth.name)}/{_folder_name(self.encoder)}"

    def heads(self, reference: str = REFERENCE, usual: Collection[str] = HEADS) -> list[str]:
        """The reference, then the usual heads, as far as there are records; others only where fewer than two are."""
        chosen = [name for name in dict.fromkeys((reference, *usual)) if name in self.records]
        if len(chosen) < 2:
            chosen += [name for name in self.records if name not in chosen]
            chosen = chosen[:_MOST_HEADS]
        return chosen


@dataclass(frozen=True)
class BestAnswers:
    """The best answer of a head to each query: from the first split that evaluated it, by the first replica."""

    image: np.ndarray  # q: database index; -1 where there is no answer
    evaluated: np.ndarray  # q
    right: np.ndarray  # q

    @classmethod
    def of(cls, record: Record, truth: Truth) -> BestAnswers:
        count = len(truth.queries)
        image, evaluated = np.full(count, -1, np.int64), np.zeros(count, bool)
        for split in range(len(record.folds)):
            new = record.evaluated(split)
            new = new[~evaluated[new]]
            top = record.rankings[new, split, 0, 0].astype(np.int64)
            image[new] = np.where(top == record.nothing, -1, top)
            evaluated[new] = True
        right = np.array([image[q] in truth.positives[q] for q in range(count)], bool)
        return cls(image, evaluated, right)


def find_studies(results: Path, datasets: Collection[str] | None = None, encoder: str | None = None) -> list[Study]:
    """All studies below a results folder, in order of dataset and encoder; names that are not there are errors."""
    truths: dict[Path, Truth] = {}
    groups: dict[tuple[str, str], dict[str, tuple[Record, RecordPath]]] = {}
    for path in find_records(results):
        record, folder = Record.read(path), path.dataset_folder
        if folder not in truths:
            truths[folder] = truth_of(path)
        heads = groups.setdefault((truths[folder].name, str(record.encoder["id"])), {})
        if record.name in heads:
            raise BadRecord(f"{heads[record.name][1]} and {path} are of one head; remove one, or give its folder alone")
        heads[record.name] = (record, path)
    if not groups:
        raise BadRecord(f"{results} holds no records to draw; write some with tfa bench run --out {results}")
    _check_names("dataset", datasets, {name for name, _ in groups}, results)
    _check_names("encoder", None if encoder is None else [encoder], {used for _, used in groups}, results)
    studies = []
    for (name, used), heads in sorted(groups.items()):
        if (not datasets or name in datasets) and encoder in (None, used):
            studies.append(_study(heads, truths))
    if not studies:
        raise BadSpec(f"{results} has no records of these datasets under encoder {encoder!r}; leave one of the two out")
    return studies


def _study(heads: Mapping[str, tuple[Record, RecordPath]], truths: Mapping[Path, Truth]) -> Study:
    records = {name: record for name, (record, _) in sorted(heads.items(), key=_counting)}
    first = next(iter(heads.values()))
    truth = truths[first[1].dataset_folder]
    # score refuses a record that was judged by other positives than these.
    scored = {name: score(record, truth, ks=[k for k in KS if k <= record.depth]) for name, record in records.items()}
    return Study(truth, str(first[0].encoder["id"]), records, scored)


def _counting(item: tuple[str, Any]) -> list[tuple[int, str]]:
    """A key that sorts c8 before c16."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", item[0])]


def _folder_name(text: str) -> str:
    """A record may come from elsewhere: its names must not lead out of the output folder."""
    return re.sub(r"[^\w@+.-]|^\.+", "_", text)


def _check_names(what: str, names: Collection[str] | None, recorded: Collection[str], results: Path) -> None:
    unknown = [name for name in names or () if name not in recorded]
    if unknown:
        there = ", ".join(sorted(recorded)) or "none at all"
        raise BadSpec(f"{results} has no records of {what} {unknown[0]!r}; there are: {there}")
