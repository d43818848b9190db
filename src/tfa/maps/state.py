"""Everything a map is, in memory: its heads, the records of its images, and which files hold them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa.core.files import hash_json
from tfa.core.tokens import Tokens
from tfa.errors import BadCalibration
from tfa.maps.stored_head import AnyHead, StoredHead
from tfa.maps.stored_space import StoredSpaces
from tfa.method.head import ENSEMBLE, ReplicaName
from tfa.method.scorer import Scorer
from tfa.types import BuildOptions, ImageRecord
from tfa.verification.patches import CompactTokens

DATABASE = "none"  # what the head without a calibration is called, wherever a calibration can be named


@dataclass(frozen=True)
class NamedHead:
    """One head of a map: the database-only one, or a calibration."""

    name: str
    stored: StoredHead
    decisions: dict[str, Any]
    evidence: dict[str, Any]
    data_used: str
    replica: ReplicaName
    calibration: dict[str, Any] | None = None  # of a calibration: the photos it used, see docs/format.md
    verification: dict[str, Any] | None = None  # is it used, and why; None if it was not judged

    @classmethod
    def of(
        cls,
        name: str,
        head: AnyHead,
        replica: ReplicaName,
        storage: str,
        calibration: dict[str, Any] | None = None,
        verification: dict[str, Any] | None = None,
        spaces: StoredSpaces | None = None,
        dims: int | None = None,
    ) -> NamedHead:
        """What a map keeps of a fitted head; `spaces` are the map's, `dims` the numbers it is searched by."""
        stored = StoredHead.of(head, replica, storage, spaces).reduce_to(dims)
        decisions, evidence = head.decisions, head.evidence
        made = decisions.to_dict(), evidence.to_dict()
        return cls(name, stored, *made, head.data_used, replica, calibration, verification)

    def to_dict(self) -> dict[str, Any]:
        """Return its entry in the header, where `data_used` is called `saw`."""
        facts = {"saw" if key == "data_used" else key: value for key, value in vars(self).items() if key != "stored"}
        return {**facts, "layout": self.stored.layout()}

    @property
    def verifies(self) -> bool:
        """Was verification admitted for this head?"""
        return self.verification is not None and bool(self.verification["admitted"])

    def grown(self, tokens: Tokens, spaces: StoredSpaces | None = None) -> NamedHead:
        """Add new images, described by the frozen vocabulary and geometry; `spaces` hold them already."""
        return dataclasses.replace(self, stored=self.stored.grown(tokens, spaces))

    def over(self, spaces: StoredSpaces) -> NamedHead:
        """A second-order head with all rows of the map's spaces."""
        return dataclasses.replace(self, stored=self.stored.over(spaces))

    def made_in(self, revision: int) -> NamedHead:
        """A calibration that says which revision of the map it came with."""
        return dataclasses.replace(self, calibration={**(self.calibration or {}), "revision": revision})

    def with_scorer(self, scorer: Scorer) -> NamedHead:
        return dataclasses.replace(self, stored=dataclasses.replace(self.stored, scorer=scorer))

    @classmethod
    def from_dict(cls, entry: dict[str, Any], stored: StoredHead) -> NamedHead:
        facts = {"data_used" if key == "saw" else key: value for key, value in entry.items() if key != "layout"}
        return cls(stored=stored, **facts)


@dataclass(frozen=True)
class MapState:
    """`images` has one record per gallery row, also of images that were removed; fitted ones come first."""

    encoder: dict[str, Any]  # id, fingerprint, channels, global_channels, grid, weights
    spec: dict[str, Any]
    heads: tuple[NamedHead, ...]  # the database-only one, then calibrations, the newest last
    images: list[ImageRecord]
    # s k d: words; of a paper's map those of all constructions, which a calibration starts from, of a judged one those
    # of the residual heads that competed, of a second-order one none
    vocabularies: np.ndarray | None = None
    head_kind: str = "paper"  # one of `base.config.HEAD_KINDS`
    spaces: StoredSpaces | None = None  # second-order coordinates of every gallery row, where heads are made of them
    active: str = DATABASE  # which head answers when none is named
    removed: frozenset[int] = frozenset()
    next_id: int = 0
    revision: int = 1
    digest: str | None = None  # of the header that this state, or the one it follows on, was read from or written to
    segments: tuple[int, ...] = ()  # gallery rows of each file, in order
    files: tuple[dict[str, Any], ...] = ()  # the header's entries, once on disk
    compact: CompactTokens | None = None  # what verification needs of the images; a row per gallery row
    photo_root: str | None = None  # the folder of the photos; None if they lie all over the place

    @property
    def database(self) -> NamedHead:
        """The head that was fitted on the map's own photos only."""
        return self.heads[0]

    @property
    def head(self) -> StoredHead:
        """The database-only head as it is stored."""
        return self.database.stored

    @property
    def calibrations(self) -> tuple[NamedHead, ...]:
        return self.heads[1:]

    def chosen(self, calibration: str | None = None) -> NamedHead:
        """The head of that name: None is the active one, "none" the database-only one."""
        wanted = self.active if calibration is None else calibration
        for head in self.heads:
            if head.name == wanted:
                return head
        names = ", ".join(head.name for head in self.calibrations) or "no calibration yet"
        raise BadCalibration(
            f"there is no calibration {wanted!r}; the map has {names}, and {DATABASE!r} uses none of them. "
            "Make one with: tfa calibrate"
        )

    @property
    def map_spec(self) -> BuildOptions:
        """What another map of this kind is made with."""
        return BuildOptions.from_dict(
            {
                "head": self.head_kind,
                "carrier": self.database.decisions["carrier"],
                "storage": self.head.storage,
                "ensemble": self.database.replica == ENSEMBLE,
                "rerank": False if self.compact is None else self.compact.spec,
                "dims": self.head.dims,
            }
        )

    def head_digest(self, name: str) -> str:
        """What a head of a saved map is known by: the content of its files, and how the header reads them.

        Edits leave it as it is. After a refit, or a calibration made again under its name, it is another.
        """
        known = {"layout": self.chosen(name).stored.layout()}
        for entry in self.files:
            if (entry["role"], entry["head"]) in (("head", name), ("space", None)):
                known |= {"sha256" if entry["role"] == "head" else "space": entry["sha256"]}
        return hash_json(known)

    def changed(self, **changes: Any) -> MapState:
        """The next revision."""
        return dataclasses.replace(self, revision=self.revision + 1, **changes)

    def with_calibration(self, head: NamedHead) -> MapState:
        """Add a calibration, or replace the one of that name; it answers from now on."""
        kept = [old for old in self.heads if old.name != head.name]
        return self.changed(heads=(*kept, head.made_in(self.revision + 1)), active=head.name)

    def with_active(self, name: str) -> MapState:
        """Make the head of that name answer when a query names none; return this state if it does already."""
        return self if self.chosen(name).name == self.active else self.changed(active=name)

    def without_calibration(self, name: str) -> MapState:
        """Remove the calibration of that name and its files."""
        if name == DATABASE:
            raise BadCalibration(f"{DATABASE!r} is the head without a calibration, which every map keeps")
        gone = self.chosen(name).name
        return self.changed(
            heads=tuple(head for head in self.heads if head.name != gone),
            files=tuple(entry for entry in self.files if entry["head"] != gone),
            active=DATABASE if self.active == gone else self.active,
        )
