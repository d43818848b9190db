"""State of a map in memory: heads, image records and files, and how edits change them.

Image records have absolute paths in memory. On disk, paths are relative to the photo folder or to the map
("map:photos/…" for uploads), so that a map can be moved together with its photos; other paths stay absolute.
"""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.files import hash_json
from tfa.core.text import format_command
from tfa.core.tokens import Tokens
from tfa.encoders import Encoder
from tfa.errors import BadCalibration, BadMap
from tfa.maps.fit_map import FittedMap
from tfa.maps.stored_head import AnyHead, StoredHead, StoredSpaces
from tfa.method.decisions import SecondOrderDecisions
from tfa.method.dual_vocabulary import DualHead, SourceWords
from tfa.method.head import ENSEMBLE, ReplicaName
from tfa.method.scorer import Scorer
from tfa.method.second_order_head import SecondOrderHead
from tfa.photos.token_cache import EncodedImages
from tfa.types import BuildOptions, HeadSpec, ImageRecord, Position
from tfa.verification.patches import CompactTokens

# --- photo paths ----------------------------------------------------------------------------------

_IN_MAP = "map:"


def find_common_folder(paths: Sequence[str]) -> str | None:
    """Return the deepest folder that holds all photos; None if that is the root of the file system."""
    try:
        folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    except ValueError:  # no photo, or photos on two drives
        return None
    return folder if os.path.dirname(folder) != folder else None


def shorten_path(path: str, root: str | None, folder: str) -> str:
    """Shorten a photo's path for the files of the map at `folder`."""
    if path.startswith(folder + os.sep):
        return _IN_MAP + Path(path).relative_to(folder).as_posix()
    if root is not None and path.startswith(root + os.sep):
        inside = path[len(root) + 1 :]
        return path if inside.startswith(_IN_MAP) else Path(inside).as_posix()
    return path


def resolve_path(path: str, root: str | None, folder: str) -> str:
    """Resolve a path of `shorten_path`."""
    if path.startswith(_IN_MAP):
        return os.path.join(folder, path[len(_IN_MAP) :])
    return path if root is None else os.path.join(root, path)


def describe_photo_folder(root: str | None, folder: str) -> dict[str, Any]:
    """Describe the photo folder for the header: its absolute path, and its path relative to the map."""
    try:
        way = None if root is None else Path(os.path.relpath(root, folder)).as_posix()
    except ValueError:  # on another drive
        way = None
    return {"root": root, "from_map": way}


def resolve_photo_root(facts: dict[str, Any], folder: str) -> str | None:
    """Find the photo folder by its absolute path, or if that is gone, relative to the map."""
    root, way = facts["root"], facts["from_map"]
    if root is None or way is None or os.path.isdir(root):
        return root
    beside = os.path.normpath(os.path.join(folder, way))
    return beside if os.path.isdir(beside) else root


DATABASE = "none"  # name of the uncalibrated head


@dataclass(frozen=True)
class NamedHead:
    """One head of a map: the uncalibrated one, or a calibration."""

    name: str
    stored: StoredHead
    decisions: dict[str, Any]
    evidence: dict[str, Any]
    data_used: str
    replica: ReplicaName
    calibration: dict[str, Any] | None = None  # photos of a calibration, see docs/reference/map-format.md
    verification: dict[str, Any] | None = None  # whether answers are reranked, and why; None if undecided

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
        """Make it from a fitted head; `spaces` are the map's, `dims` the search dimensions."""
        stored = StoredHead.of(head, replica, storage, spaces).reduce_to(dims)
        decisions, evidence = head.decisions, head.evidence
        made = decisions.to_dict(), evidence.to_dict()
        return cls(name, stored, *made, head.data_used, replica, calibration, verification)

    def to_dict(self) -> dict[str, Any]:
        """Return the header's entry, in which `data_used` is named `saw`."""
        facts = {"saw" if key == "data_used" else key: value for key, value in vars(self).items() if key != "stored"}
        return {**facts, "layout": self.stored.layout()}

    @property
    def verifies(self) -> bool:
        """Whether answers of this head are reranked by default."""
        return self.verification is not None and bool(self.verification["admitted"])

    def grown(self, tokens: Tokens, spaces: StoredSpaces | None = None) -> NamedHead:
        """Append new images, described by the fixed head; `spaces` hold them already."""
        return dataclasses.replace(self, stored=self.stored.grown(tokens, spaces))

    def over(self, spaces: StoredSpaces) -> NamedHead:
        """Return a second-order head with all rows of the map's spaces."""
        return dataclasses.replace(self, stored=self.stored.over(spaces))

    def keeping(self, rows: np.ndarray) -> NamedHead:
        """Drop all other images."""
        return dataclasses.replace(self, stored=self.stored.keeping(rows))

    def made_in(self, revision: int) -> NamedHead:
        """Set the map revision that added this calibration."""
        return dataclasses.replace(self, calibration={**(self.calibration or {}), "revision": revision})

    def with_scorer(self, scorer: Scorer) -> NamedHead:
        return dataclasses.replace(self, stored=dataclasses.replace(self.stored, scorer=scorer))

    @classmethod
    def from_dict(cls, entry: dict[str, Any], stored: StoredHead) -> NamedHead:
        facts = {"data_used" if key == "saw" else key: value for key, value in entry.items() if key != "layout"}
        return cls(stored=stored, **facts)


@dataclass(frozen=True)
class MapState:
    """State of a map. `images` has a record per gallery row, including removed images; fitted ones come first."""

    encoder: dict[str, Any]  # id, fingerprint, channels, global_channels, grid, weights
    spec: dict[str, Any]
    heads: tuple[NamedHead, ...]  # the uncalibrated one, then calibrations, the newest last
    images: list[ImageRecord]
    # (s, k, d): vocabularies of the paper's head, for calibrations; also in old second-order maps that a judge chose.
    # (1, k, d): supplied source words of a dual head, for refits.
    vocabularies: np.ndarray | None = None
    head_kind: str = "paper"  # one of `types.HEAD_KINDS`
    spaces: StoredSpaces | None = None  # second-order coordinates of every gallery row, for second-order heads
    active: str = DATABASE  # head that answers if a query names none
    removed: frozenset[int] = frozenset()
    next_id: int = 0
    revision: int = 1
    digest: str | None = None  # digest of the header that this state was last read from or written to
    segments: tuple[int, ...] = ()  # gallery rows of each file, in order
    files: tuple[dict[str, Any], ...] = ()  # file entries of the header, if saved
    compact: CompactTokens | None = None  # patches for reranking; a row per gallery row
    photo_root: str | None = None  # common folder of the photos, if there is one
    unchecked: dict[str, np.memmap] = dataclasses.field(default_factory=dict)  # files to compare with their checksums

    @property
    def database(self) -> NamedHead:
        """The uncalibrated head."""
        return self.heads[0]

    @property
    def head(self) -> StoredHead:
        """The uncalibrated head as stored."""
        return self.database.stored

    @property
    def calibrations(self) -> tuple[NamedHead, ...]:
        return self.heads[1:]

    def chosen(self, calibration: str | None = None) -> NamedHead:
        """Return the head of that name: None is the active one, "none" the uncalibrated one."""
        wanted = self.active if calibration is None else calibration
        for head in self.heads:
            if head.name == wanted:
                return head
        names = ", ".join(head.name for head in self.calibrations)
        there = f"Available: {names}, or {DATABASE!r} for the uncalibrated head" if names else "This map has none"
        create = format_command("tfa", "calibrate", "MAP", "PHOTOS", "--name", wanted)
        raise BadCalibration(f"calibration {wanted!r} not found. {there}. Create it with: {create}")

    def checked(self, calibration: str | None = None) -> NamedHead:
        """Return the head as `chosen` does, and compare its files with their checksums, once. Raises BadMap."""
        head = self.chosen(calibration)
        for entry in self.files:
            content = self.unchecked.get(entry["name"]) if entry["head"] in (None, head.name) else None
            if content is not None and zlib.crc32(content.data) != entry["crc32"]:
                text = "was damaged after the map was written (checksum differs); rebuild the map"
                raise BadMap(f"{content.filename} {text}", str(content.filename))
            if content is not None:
                self.unchecked.pop(entry["name"], None)
        return head

    @property
    def map_spec(self) -> BuildOptions:
        """Options to build another map of this kind."""
        # A carrier that evidence decided (paper's head, judge of older maps) is not a setting.
        decided = self.head_kind != "second-order" or bool(self.database.evidence.get("candidates"))
        return BuildOptions.from_dict(
            {
                "head": self.head_kind,
                "carrier": BuildOptions.carrier if decided else self.database.decisions["carrier"],
                "storage": self.head.storage,
                "ensemble": self.database.replica == ENSEMBLE,
                "rerank": False if self.compact is None else self.compact.spec,
                "dims": self.head.dims,
            }
        )

    @property
    def source(self) -> SourceWords | None:
        """Source words of a dual head that were supplied."""
        if self.head_kind != "paper-dual" or self.vocabularies is None:
            return None
        return SourceWords(self.vocabularies[0], self.database.decisions.get("vocabulary"))

    @property
    def is_published(self) -> bool:
        """Whether the map is TFA as published, apart from its encoder."""
        return self.map_spec == BuildOptions.paper() and self.spec == HeadSpec.paper().to_dict()

    def head_digest(self, name: str) -> str:
        """Return a digest of a saved head: its files and layout. Additions and removals do not change it."""
        known = {"layout": self.chosen(name).stored.layout()}
        for entry in self.files:
            if (entry["role"], entry["head"]) in (("head", name), ("space", None)):
                known |= {"sha256" if entry["role"] == "head" else "space": entry["sha256"]}
        return hash_json(known)

    def changed(self, **changes: Any) -> MapState:
        """Return the next revision."""
        return dataclasses.replace(self, revision=self.revision + 1, **changes)

    def without_removed(self, start: int) -> MapState:
        """Drop the removed images from gallery row `start` on that no head was fitted on."""
        gone = [row >= start and one.id in self.removed and not one.fitted for row, one in enumerate(self.images)]
        if not any(gone):
            return self
        rows = np.flatnonzero(~np.array(gone))
        images = [self.images[row] for row in rows]
        return dataclasses.replace(
            self, images=images, removed=self.removed & {one.id for one in images},
            heads=tuple(head.keeping(rows) for head in self.heads),
            spaces=None if self.spaces is None else self.spaces.keeping(rows),
            compact=None if self.compact is None else self.compact.keeping(rows),
        )  # fmt: skip

    def with_calibration(self, head: NamedHead) -> MapState:
        """Add or replace a calibration, and activate it."""
        kept = [old for old in self.heads if old.name != head.name]
        return self.changed(heads=(*kept, head.made_in(self.revision + 1)), active=head.name)

    def with_active(self, name: str) -> MapState:
        """Activate the head of that name; return this state if it is active already."""
        return self if self.chosen(name).name == self.active else self.changed(active=name)

    def without_calibration(self, name: str) -> MapState:
        """Remove the calibration of that name and its files."""
        if name == DATABASE:
            raise BadCalibration(f"{DATABASE!r} is the uncalibrated head, which cannot be dropped")
        gone = self.chosen(name).name
        return self.changed(
            heads=tuple(head for head in self.heads if head.name != gone),
            files=tuple(entry for entry in self.files if entry["head"] != gone),
            active=DATABASE if self.active == gone else self.active,
        )


# --- state changes --------------------------------------------------------------------------------


def make_state(
    fitted: FittedMap, map_spec: BuildOptions, records: list[ImageRecord], encoder: dict[str, Any]
) -> MapState:
    """Make the first state of a map from a head fitted on the images of `records`."""
    replica: ReplicaName = ENSEMBLE if map_spec.ensemble else 0
    head, verification = fitted.head, fitted.verification
    stored, vocabularies, kind = None, None, "second-order"
    if isinstance(head, SecondOrderHead):
        stored = StoredSpaces.of(head.fitted, replica, map_spec.storage)
    elif isinstance(head, DualHead):
        kind, vocabularies = "paper-dual", None if head.source is None else head.source.words[None]
    else:
        # A head that the benchmark's judge chose may be residual, too.
        kind = "second-order" if isinstance(head.decisions, SecondOrderDecisions) else "paper"
        vocabularies = np.stack([vocabulary.centers for vocabulary in head.vocabularies])
    named = NamedHead.of(
        DATABASE, head, replica, map_spec.storage, verification=verification, spaces=stored, dims=map_spec.dims
    )
    return MapState(
        encoder=encoder, spec=head.spec.to_dict(), heads=(named,), images=records, vocabularies=vocabularies,
        head_kind=kind, spaces=stored,
        photo_root=find_common_folder([record.path for record in records]),
        next_id=max((record.id for record in records), default=-1) + 1, compact=fitted.compact,
    )  # fmt: skip


def describe_encoder(encoder: Encoder, weights: str | Path | None) -> dict[str, Any]:
    """Describe the encoder for the header; `weights` is the weights file, if any."""
    return {
        "id": encoder.id, "fingerprint": encoder.model, "channels": encoder.channels,
        "global_channels": encoder.global_channels, "grid": list(encoder.grid),
        "weights": None if weights is None else str(Path(weights).resolve()),
    }  # fmt: skip


def make_records(
    encoded: EncodedImages,
    places: Mapping[Path, Position | None],
    *,
    first_id: int,
    fitted: bool,
    session: str | None = None,
) -> list[ImageRecord]:
    return [
        ImageRecord(
            id=n, path=str(path.resolve()), digest=digest, fitted=fitted, position=places.get(path), session=session
        )
        for n, (path, digest) in enumerate(zip(encoded.paths, encoded.digests, strict=True), first_id)
    ]


def append_images(state: MapState, tokens: Tokens, records: list[ImageRecord]) -> MapState:
    """Append images, described by the fixed heads and compaction."""
    spaces = None if state.spaces is None else state.spaces.grown(tokens)
    return state.changed(
        heads=tuple(head.grown(tokens, spaces) for head in state.heads),
        spaces=spaces,
        images=[*state.images, *records],
        next_id=state.next_id + len(records),
        compact=None if state.compact is None else state.compact.grown(tokens),
    )


def share_first_files(one: MapState, other: MapState) -> bool:
    """Return True if both begin with the same files of the same heads; later files may differ."""

    def first(state: MapState) -> dict[tuple[str, str | None], str]:
        found: dict[tuple[str, str | None], str] = {}
        for entry in state.files:
            found.setdefault((entry["role"], entry["head"]), entry["sha256"])
        return found

    return [head.name for head in one.heads] == [head.name for head in other.heads] and first(one) == first(other)


def reuse_prepared_arrays(new: MapState, older: MapState) -> MapState:
    """Reuse equal arrays of `older` in `new`: they may be packed for queries, which takes seconds in a large map."""
    heads = []
    for head, prepared in zip(new.heads, older.heads, strict=True):
        scorer, old = head.stored.scorer, prepared.stored.scorer
        pairs = list(zip(scorer.terms, old.terms, strict=True))
        if all(len(term.gallery.chunks[0]) == len(same.gallery.chunks[0]) for term, same in pairs):
            terms = [
                dataclasses.replace(term, gallery=term.gallery.starting_with(same.gallery)) for term, same in pairs
            ]
            scorer = dataclasses.replace(scorer, sides=old.sides, terms=tuple(terms))
            head = head.with_scorer(scorer)
        reduced, same = head.stored.reduced, prepared.stored.reduced
        if reduced is not None and same is not None and len(reduced.rows.chunks[0]) == len(same.rows.chunks[0]):
            stored = dataclasses.replace(head.stored, reduced=reduced.starting_with(same))
            head = dataclasses.replace(head, stored=stored)
        heads.append(head)
    spaces = new.spaces
    if spaces is not None and older.spaces is not None:
        first, prepared_first = (one.spaces[0].halves.chunks[0] for one in (spaces, older.spaces))
        spaces = spaces.starting_with(older.spaces) if len(first) == len(prepared_first) else spaces
    return dataclasses.replace(new, heads=tuple(heads), spaces=spaces)


def tie_duplicates(state: MapState) -> MapState:
    """Give identical photos bit-equal scores in every head, so that the first one wins."""
    rows = find_duplicate_images(state.images)
    scorers = [dataclasses.replace(head.stored.scorer, duplicates=rows) for head in state.heads]
    tied = [head.with_scorer(scorer) for head, scorer in zip(state.heads, scorers, strict=True)]
    return dataclasses.replace(state, heads=tuple(tied))


def find_duplicate_images(images: Sequence[ImageRecord]) -> np.ndarray | None:
    """Return for each gallery row the first row with the same content; None if all differ."""
    first: dict[str, int] = {}
    rows = np.array([first.setdefault(record.digest, row) for row, record in enumerate(images)], dtype=np.int64)
    return None if len(first) == len(images) else rows
