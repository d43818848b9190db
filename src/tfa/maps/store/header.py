"""The header of a map in a store: which version answers, and what all who read or edit the map must agree on.

It is a small document and is only ever replaced by `swap`: of several editors one is first, the others look again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any

from tfa.base.reading import parse_json
from tfa.errors import BadMap
from tfa.maps.store.documents import collection_of, folder_of, header_key
from tfa.search.store import Store

FORMAT = "tfa-engine-map"
VERSION = 2  # 1 had patches in blocks of images
ATTEMPTS = 20  # swaps tried while others edit the map


@dataclass(frozen=True)
class Pending:
    """An edit under way. What becomes of it if its editor is killed follows from it alone (`edits.settled`)."""

    kind: str  # "add" or "remove"
    ids: tuple[int, ...]  # of an addition the first and the one after the last
    since: float  # time.time()
    who: str

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Pending:
        return cls(**{**values, "ids": tuple(values["ids"])})


@dataclass(frozen=True)
class StoreHeader:
    """What a reader starts from."""

    name: str
    revision: int  # grows with every swap
    version: int  # of the collection, its reduction and its moments
    skeleton: int  # the version that the skeleton was written with
    moments: str  # the document
    count: int
    next_id: int
    dims: int
    dtype: str
    encoder: Mapping[str, Any]  # as in a map's folder
    heads: tuple[str, ...]
    active: str
    created: str
    index: str | None = None  # of the collection; None searches exactly
    patches: Mapping[str, Any] | None = None  # where compact tokens are, see `patches`; None: nothing is verified
    fitted: int = 0  # of the images that answer: those that the spaces were fitted on
    placed: int = 0  # those with a position
    removed: int = 0  # images that were taken out
    editor: str = ""  # who made this revision
    edits: int = 0  # additions and removals so far: collections of equal number hold the same images
    pending: Mapping[str, Pending] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    previous: Mapping[str, Any] | None = None  # the header before the last publication, without its own `previous`

    @property
    def collection(self) -> str:
        return collection_of(self.name, self.version)

    @property
    def reduction(self) -> str:
        return f"{folder_of(self.name, self.version)}reduction"

    @property
    def skeleton_folder(self) -> str:
        return f"{folder_of(self.name, self.skeleton)}skeleton/"

    @property
    def removing(self) -> frozenset[int]:
        """Images that no longer answer, though they may still be in the collection."""
        return frozenset(one for edit in self.pending.values() if edit.kind == "remove" for one in edit.ids)

    @property
    def before(self) -> StoreHeader | None:
        return None if self.previous is None else StoreHeader.from_dict(self.previous)

    @property
    def collections(self) -> set[str]:
        """Those that this header, or the one it can be taken back to, reads."""
        return {one.collection for one in (self, self.before) if one is not None}

    @property
    def documents(self) -> tuple[str, ...]:
        """What the names of all documents begin with that are still needed, edits' moments under way among them."""
        both = [one for one in (self, self.before) if one is not None]
        kept = [(one.skeleton_folder, one.reduction, f"{folder_of(self.name, one.version)}moments") for one in both]
        return (*(key for keys in kept for key in keys), *(one.patches["prefix"] for one in both if one.patches))

    def changed(self, **changes: Any) -> StoreHeader:
        """The next revision."""
        return replace(self, revision=self.revision + 1, **changes)

    def to_dict(self) -> dict[str, Any]:
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**values, "pending": {token: vars(edit) for token, edit in self.pending.items()}}

    def to_bytes(self) -> bytes:
        return json.dumps({"format": FORMAT, "format_version": VERSION, **self.to_dict()}, sort_keys=True).encode()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StoreHeader:
        known = {one.name for one in fields(cls)}
        given = {name: value for name, value in values.items() if name in known}
        pending = {token: Pending.from_dict(edit) for token, edit in given["pending"].items()}
        return cls(**{**given, "heads": tuple(given["heads"]), "notes": tuple(given["notes"]), "pending": pending})


def parsed_header(content: bytes, url: str) -> StoreHeader:
    """`url` is what the map is called in errors."""
    try:
        values = parse_json(content)
        kind, version = values["format"], values["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadMap(f"{url} has no readable header ({error}); build the map again") from None
    if kind != FORMAT or version != VERSION:
        newer = kind == FORMAT and isinstance(version, int) and version > VERSION
        remedy = "use a newer tfa-vpr" if newer else "build it again"
        raise BadMap(f"{url} has format {kind} {version}, this release reads {FORMAT} {VERSION}; {remedy}")
    try:
        return StoreHeader.from_dict(values)
    except (KeyError, TypeError, ValueError) as error:
        raise BadMap(f"{url} has a header that makes no sense ({error!r}); build the map again") from None


def read_header(store: Store, name: str, url: str) -> tuple[StoreHeader, bytes]:
    """The header and its bytes; if there is none, an error with the maps that are there."""
    content = store.read(header_key(name))
    if content is None:
        there = maps_in(store)
        near = get_close_matches(name, there, 1)
        hint = f"; did you mean {near[0]}?" if near else "."
        which = f"there are {', '.join(there[:10])}" if there else "there is none yet"
        raise BadMap(f"there is no map {name!r} at {url} ({which}){hint} Build one with: tfa build PHOTOS --out URL")
    return parsed_header(content, url), content


def maps_in(store: Store) -> list[str]:
    """Names of the maps of a store."""
    every = store.keys("")
    return [key.removesuffix("/header") for key in every if key.count("/") == 1 and key.endswith("/header")]
