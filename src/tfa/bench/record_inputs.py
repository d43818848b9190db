"""What a record follows from, beside the head: a dataset under an encoder; and whether a record that exists does."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tfa.bench.datasets.load import Dataset
from tfa.bench.heads.contract import HeadCard
from tfa.bench.protocols import Plan
from tfa.bench.provenance import revisions
from tfa.bench.record_files import RecordPath, record_path
from tfa.bench.records import Record, Truth
from tfa.core.files import hash_file, hash_json
from tfa.encoders import Encoder
from tfa.errors import BadSpec
from tfa.types import HeadSpec


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
    specific = card.own_budgets and bench.dataset.card.conditions_specific
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


def _differing(known: Record, inputs: dict[str, Any]) -> list[str]:
    """Which inputs a record was not made of."""
    head, verification = known.head, known.head["settings"].get("verification")
    if verification is not None:  # records made before patches could be small do not say that they are not
        settings = {**head["settings"], "verification": {"patches": "full", **verification}}
        head = {**head, "settings": settings}
    made_of = {**known.inputs, "head": head}
    return [key for key, value in inputs.items() if value != made_of.get(key)]


def is_outdated(known: Record, inputs: dict[str, Any], path: RecordPath) -> bool:
    """Was it made of these inputs by another revision of the algorithm? Of other inputs is an error."""
    differs = _differing(known, inputs)
    outdated = "algorithm" in differs
    # A deeper ranking begins with the shallower one, and a record that is made again may have any depth.
    accepted = {"algorithm", "depth"} if outdated or known.depth >= inputs["depth"] else set()
    other = [key for key in differs if key not in accepted]
    if known.encoder["id"] != inputs["encoder"]["id"]:
        name, results = known.encoder["id"], path.dataset_folder.parent
        right = record_path(results, known.dataset["name"], name, known.name).archive.parent
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
