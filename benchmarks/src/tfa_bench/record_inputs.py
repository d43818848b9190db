"""What a record follows from, beside the head: a dataset under an encoder; and whether a record that exists does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tfa.core.files import hash_file, hash_json
from tfa.encoders import Encoder
from tfa.errors import BadSpec
from tfa.types import HeadSpec
from tfa_bench.datasets.load import Dataset
from tfa_bench.heads.contract import HeadCard
from tfa_bench.protocols import Plan
from tfa_bench.provenance import revisions
from tfa_bench.record_files import RecordPath, record_path
from tfa_bench.records import Record, Truth

WORDS = ("title", "note")  # of a head: they shape no answer, and a release may reword them


class Identified(Protocol):
    """What records of a dataset under an encoder follow from, beside the head; a Bench, or one that is not encoded."""

    @property
    def dataset(self) -> Dataset: ...
    @property
    def truth(self) -> Truth: ...
    @property
    def encoder(self) -> Encoder: ...
    @property
    def images(self) -> str: ...
    @property
    def spec(self) -> HeadSpec: ...


@dataclass(frozen=True)
class Unencoded:
    """A dataset under an encoder, of which no image was encoded."""

    dataset: Dataset
    truth: Truth
    encoder: Encoder
    images: str
    spec: HeadSpec


def identify(dataset: Dataset, encoder: Encoder) -> Unencoded:
    """Read the files of a dataset, for their digests."""
    digests = [[hash_file(path) for path in paths] for paths in (dataset.database, dataset.queries)]
    return Unencoded(dataset, dataset.truth(), encoder, hash_json(digests), spec_of(dataset))


def spec_of(dataset: Dataset) -> HeadSpec:
    return dataclasses.replace(HeadSpec(), **dataset.card.spec)


def current_record(bench: Identified, card: HeadCard, results: Path) -> Record | None:
    """The record of a head on this dataset, if there is one and it is what the head would answer now."""
    path = record_path(results, bench.truth.name, bench.encoder.id, card.name)
    if not path.exists():
        return None
    known, inputs = Record.read(path), inputs_of(bench, card, plan_of(bench, card), 1)
    return None if set(_differing(known, inputs)) - {"depth"} else known


def plan_of(bench: Identified, card: HeadCard) -> Plan:
    specific = card.budget_per_condition and bench.dataset.card.conditions_specific
    return dataclasses.replace(card.plan, specific=True) if specific else card.plan


def inputs_of(bench: Identified, card: HeadCard, plan: Plan, depth: int) -> dict[str, Any]:
    """Everything a record follows from."""
    truth = bench.truth
    return {
        "dataset": {
            "name": truth.name,
            "title": truth.title,
            "database": len(truth.database),
            "queries": len(truth.queries),
            "fingerprint": truth.fingerprint,
            "images": bench.images,
        },
        "encoder": {
            "id": bench.encoder.id,
            "fingerprint": bench.encoder.fingerprint,
            "grid": list(bench.encoder.grid),
        },
        "head": {
            "name": card.name,
            "title": card.title,
            "data_used": card.sees,
            "note": card.note,
            "settings": dict(card.settings),
            "spec": bench.spec.to_dict(),
        },
        "plan": plan.to_dict(),
        "algorithm": revisions(card.stages),
        "depth": min(depth, len(truth.database)),
    }


def _differing(record: Record, inputs: dict[str, Any]) -> list[str]:
    """Which inputs a record was not made of."""
    head, verification = record.head, record.head["settings"].get("verification")
    if verification is not None:  # records made before patches could be small do not say that they are not
        settings = {**head["settings"], "verification": {"patches": "full", **verification}}
        head = {**head, "settings": settings}
    made_of = {**record.inputs, "head": _without_words(head)}
    return [
        key for key, value in inputs.items() if (_without_words(value) if key == "head" else value) != made_of.get(key)
    ]


def _without_words(head: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in head.items() if key not in WORDS}


def is_outdated(record: Record, inputs: dict[str, Any], path: RecordPath) -> bool:
    """Was it made of these inputs by another revision of the algorithm? Of other inputs is an error."""
    differs = _differing(record, inputs)
    outdated = "algorithm" in differs
    # A deeper ranking begins with the shallower one, and a record that is made again may have any depth.
    accepted = {"algorithm", "depth"} if outdated or record.depth >= inputs["depth"] else set()
    other = [key for key in differs if key not in accepted]
    if record.encoder["id"] != inputs["encoder"]["id"]:
        name, results = record.encoder["id"], path.dataset_folder.parent
        right = record_path(results, record.dataset["name"], name, record.name).archive.parent
        raise BadSpec(
            f"{path} is of the encoder {name}, not of {inputs['encoder']['id']}: positions are "
            f"resampled by another rule since; move {path.archive.parent} to {right}, or give --encoder {name}"
        )
    if other:
        raise BadSpec(
            f"{path} was made of other inputs ({', '.join(other)}); records are never overwritten: "
            "remove it, or write to another folder with --out"
        )
    return outdated
