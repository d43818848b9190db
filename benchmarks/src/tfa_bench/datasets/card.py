"""Cards: descriptions of datasets, one JSON file each in `catalogue/`."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from tfa.core.files import parse_json
from tfa.errors import BadSpec, TfaError
from tfa.types import HeadSpec

DATASET_GROUPS = ("Urban / ground", "Condition shift", "Driving", "Indoor", "Aerial / cross-view", "Other")
_REQUIRED = ("name", "title", "layout", "positives", "group", "citation", "licence", "get")
_TYPES: dict[str, type] = {
    "name": str, "title": str, "layout": str, "options": dict, "positives": str, "counts": dict, "group": str,
    "paper_row": str, "citation": str, "licence": str, "get": str, "note": str, "public": bool, "spec": dict,
    "conditions_specific": bool, "ordered": bool,
}  # fmt: skip


class BadCard(TfaError):
    """A card has an unknown field, lacks one, or holds a value of the wrong type."""


class UnknownDataset(TfaError):
    """No card has this name."""


@dataclass(frozen=True)
class Counts:
    """Image counts that a protocol declares; None and {} if unknown."""

    database: int | None = None
    queries: int | None = None
    conditions: Mapping[str, int] = field(default_factory=dict)  # queries of each condition

    def to_dict(self) -> dict[str, Any]:
        declared: dict[str, Any] = {
            "database": self.database,
            "queries": self.queries,
            "conditions": dict(self.conditions),
        }
        return {key: value for key, value in declared.items() if value not in (None, {})}


@dataclass(frozen=True, kw_only=True)
class DatasetCard:
    """A dataset under one protocol. Two protocols of the same images are two cards."""

    name: str
    title: str
    layout: str  # a key of loading.LAYOUTS
    positives: str  # rule in words
    group: str  # the paper's heading
    citation: str
    licence: str
    get: str  # for humans: who owns it and how to obtain it
    options: Mapping[str, Any] = field(default_factory=dict)  # passed to the layout
    counts: Counts = Counts()
    paper_row: str = ""  # its row in the paper's tables
    note: str = ""
    public: bool = True  # False: the protocol is not public; the user's positives.json or our rule replaces it
    spec: Mapping[str, Any] = field(default_factory=dict)  # HeadSpec fields that this protocol sets
    conditions_specific: bool = False  # the paper calibrates each condition on that condition's queries
    ordered: bool = False  # database and queries are each in driving order when sorted by name

    def to_dict(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {**values, "options": dict(self.options), "counts": self.counts.to_dict(), "spec": dict(self.spec)}


def _parse_fields(text: str, source: str) -> dict[str, Any]:
    try:
        values = parse_json(text)
    except ValueError as error:
        raise BadCard(f"{source} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise BadCard(f"{source} holds {type(values).__name__}, must hold a JSON object")
    return values


def override_card(card: DatasetCard, text: str, source: str) -> DatasetCard:
    """Replace fields of a card by those of a JSON text; entries of options and spec are replaced one by one."""
    changes = _parse_fields(text, source)
    for key in ("options", "spec"):
        if isinstance(changes.get(key), dict):
            changes[key] = {**getattr(card, key), **changes[key]}
    return read_card(json.dumps({**card.to_dict(), **changes}), source)


def read_card(text: str, source: str) -> DatasetCard:
    """Parse a card from JSON; errors name the file `source`."""
    values = _parse_fields(text, source)
    for key, value in values.items():
        if key not in _TYPES:
            near = difflib.get_close_matches(key, _TYPES, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise BadCard(f"{source}: unknown field {key!r}{hint} (fields: {', '.join(_TYPES)})")
        if type(value) is not _TYPES[key]:
            raise BadCard(f"{source}: {key} is {type(value).__name__}, must be {_TYPES[key].__name__}")
    absent = [key for key in _REQUIRED if not values.get(key)]
    if absent:
        raise BadCard(f"{source}: {', '.join(absent)} missing (write 'unknown' if it is not known)")
    if values["group"] not in DATASET_GROUPS:
        raise BadCard(f"{source}: group is {values['group']!r}, must be one of {', '.join(DATASET_GROUPS)}")
    try:
        HeadSpec.from_dict(values.get("spec", {}))
    except BadSpec as error:
        raise BadCard(f"{source}: spec: {error}") from None
    return DatasetCard(**{**values, "counts": _counts(values.get("counts", {}), source)})


def _counts(values: dict[str, Any], source: str) -> Counts:
    conditions = values.get("conditions", {})
    unknown = set(values) - {"database", "queries", "conditions"}
    if unknown:
        raise BadCard(f"{source}: counts has {sorted(unknown)[0]!r}, may have database, queries and conditions")
    if not isinstance(conditions, dict):
        raise BadCard(f"{source}: counts.conditions must map condition names to numbers of queries")
    for key, value in {**values, **conditions}.items():
        if key != "conditions" and (type(value) is not int or value < 1):
            raise BadCard(f"{source}: counts: {key} is {value!r}, must be a positive integer")
    total = sum(conditions.values())
    if conditions and values.get("queries", total) != total:
        raise BadCard(f"{source}: counts: {values['queries']} queries, but its conditions have {total} in total")
    return Counts(values.get("database"), values.get("queries", total or None), conditions)


@cache
def _packaged() -> dict[str, DatasetCard]:
    folder = resources.files("tfa_bench.datasets").joinpath("catalogue")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    return collect({file.name: file.read_text("utf-8") for file in files})


def collect(texts: Mapping[str, str]) -> dict[str, DatasetCard]:
    """Return cards by name from the text of each file."""
    known: dict[str, DatasetCard] = {}
    sources: dict[str, str] = {}
    for source, text in texts.items():
        card = read_card(text, source)
        if card.name in known:
            raise BadCard(f"{source} and {sources[card.name]} both name the dataset {card.name!r}; rename one")
        known[card.name], sources[card.name] = card, source
    return known


def cards() -> dict[str, DatasetCard]:
    """Return every packaged card by name."""
    return dict(_packaged())  # a copy, so that callers cannot change the cached one


def nearest_card(name: str) -> str | None:
    near = difflib.get_close_matches(name, _packaged(), n=1, cutoff=0.7)
    return near[0] if near else None


def find_card(name: str) -> DatasetCard:
    card = _packaged().get(name)
    if card is None:
        near = nearest_card(name)
        hint = f"did you mean {near!r}? " if near else ""
        raise UnknownDataset(f"unknown dataset {name!r}; {hint}list them with: tfa bench datasets")
    return card
