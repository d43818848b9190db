"""A map's state as it starts and changes: a new map, images added, arrays shared, duplicates tied."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfa.base.config import MapSpec
from tfa.base.tokens import Tokens
from tfa.encoders import Encoder
from tfa.maps.fit_map import FittedMap
from tfa.maps.folder.photo_paths import common_folder
from tfa.maps.records import ImageRecord
from tfa.maps.state import DATABASE, MapState, NamedHead
from tfa.maps.stored_head import AnyHead
from tfa.maps.stored_space import StoredSpaces
from tfa.method.controllers.decisions import JudgedDecisions
from tfa.method.head import ENSEMBLE, ReplicaName
from tfa.method.second_order_head import SecondOrderHead
from tfa.photos.positions import Position
from tfa.photos.token_cache import EncodedImages


def new_state(fitted: FittedMap, map_spec: MapSpec, records: list[ImageRecord], encoder: dict[str, Any]) -> MapState:
    """The first state of a map whose head was just fitted on the images of `records`."""
    replica: ReplicaName = ENSEMBLE if map_spec.ensemble else 0
    head, verification = fitted.head, fitted.verification
    spaces = head.fitted if isinstance(head, SecondOrderHead) else fitted.spaces
    stored = None if spaces is None else StoredSpaces.of(spaces, replica, map_spec.storage)
    centers = [vocabulary.centers for vocabulary in head.vocabularies]
    named = NamedHead.of(
        DATABASE, head, replica, map_spec.storage, verification=verification, spaces=stored, dims=map_spec.dims
    )
    return MapState(
        encoder=encoder,
        spec=head.spec.to_dict(),
        heads=(named,),
        images=records,
        vocabularies=np.stack(centers) if centers else None,
        head_kind=kind_of(head, map_spec),
        spaces=stored,
        photo_root=common_folder([record.path for record in records]),
        next_id=max((record.id for record in records), default=-1) + 1,
        compact=fitted.compact,
    )


def kind_of(head: AnyHead, map_spec: MapSpec) -> str:
    """Which of `base.config.HEAD_KINDS` a map of this head has."""
    if isinstance(head, SecondOrderHead):
        return "second-order" if map_spec.head == "second-order" else "judged"
    return "judged" if isinstance(head.decisions, JudgedDecisions) else "paper"


def encoder_facts(encoder: Encoder, weights: str | Path | None) -> dict[str, Any]:
    """What a map remembers of its encoder; `weights` is where it found them, if a file was named."""
    return {
        "id": encoder.id,
        "fingerprint": encoder.model,
        "channels": encoder.channels,
        "global_channels": encoder.global_channels,
        "grid": list(encoder.grid),
        "weights": None if weights is None else str(Path(weights).resolve()),
    }


def records_of(
    encoded: EncodedImages,
    places: Mapping[Path, Position | None],
    *,
    first_id: int,
    fitted: bool,
    session: str | None = None,
) -> list[ImageRecord]:
    return [
        ImageRecord(first_id + n, str(path.resolve()), digest, fitted, places.get(path), session)
        for n, (path, digest) in enumerate(zip(encoded.paths, encoded.digests, strict=True))
    ]


def with_images(state: MapState, tokens: Tokens, records: list[ImageRecord]) -> MapState:
    """The state with more images, described by the frozen vocabulary, geometry and compaction."""
    spaces = None if state.spaces is None else state.spaces.grown(tokens)
    return state.changed(
        heads=tuple(head.grown(tokens, spaces) for head in state.heads),
        spaces=spaces,
        images=[*state.images, *records],
        next_id=state.next_id + len(records),
        compact=None if state.compact is None else state.compact.grown(tokens),
    )


def same_files_first(one: MapState, other: MapState) -> bool:
    """Do both begin with the same rows of the same heads? Later files may differ, as after an addition."""

    def first(state: MapState) -> dict[tuple[str, str | None], str]:
        found: dict[tuple[str, str | None], str] = {}
        for entry in state.files:
            found.setdefault((entry["role"], entry["head"]), entry["sha256"])
        return found

    return [head.name for head in one.heads] == [head.name for head in other.heads] and first(one) == first(other)


def with_arrays_of(fresh: MapState, older: MapState) -> MapState:
    """`fresh`, read from the folder of `older` after its additions were joined: what was not is taken from `older`.

    The arrays are equal; those of `older` may have been packed for queries, which takes seconds in a large map.
    """
    heads = []
    for head, known in zip(fresh.heads, older.heads, strict=True):
        scorer, old = head.stored.scorer, known.stored.scorer
        pairs = list(zip(scorer.terms, old.terms, strict=True))
        if all(len(term.gallery.chunks[0]) == len(same.gallery.chunks[0]) for term, same in pairs):
            terms = [
                dataclasses.replace(term, gallery=term.gallery.starting_with(same.gallery)) for term, same in pairs
            ]
            scorer = dataclasses.replace(scorer, sides=old.sides, terms=tuple(terms))
            head = head.with_scorer(scorer)
        reduced, same = head.stored.reduced, known.stored.reduced
        if reduced is not None and same is not None and len(reduced.rows.chunks[0]) == len(same.rows.chunks[0]):
            stored = dataclasses.replace(head.stored, reduced=reduced.starting_with(same))
            head = dataclasses.replace(head, stored=stored)
        heads.append(head)
    spaces = fresh.spaces
    if spaces is not None and older.spaces is not None and _same_start(spaces, older.spaces):
        spaces = spaces.starting_with(older.spaces)
    return dataclasses.replace(fresh, heads=tuple(heads), spaces=spaces)


def _same_start(spaces: StoredSpaces, older: StoredSpaces) -> bool:
    return len(spaces.spaces[0].halves.chunks[0]) == len(older.spaces[0].halves.chunks[0])


def with_duplicates(state: MapState) -> MapState:
    """Photos with the same content tie to the last bit in every head, so that the first of them wins."""
    rows = duplicates_of(state.images)
    scorers = [dataclasses.replace(head.stored.scorer, duplicates=rows) for head in state.heads]
    tied = [head.with_scorer(scorer) for head, scorer in zip(state.heads, scorers, strict=True)]
    return dataclasses.replace(state, heads=tuple(tied))


def duplicates_of(images: Sequence[ImageRecord]) -> np.ndarray | None:
    """For each gallery row the first row of the same file content; None if all differ."""
    first: dict[str, int] = {}
    rows = np.array([first.setdefault(record.digest, row) for row, record in enumerate(images)], dtype=np.int64)
    return None if len(first) == len(images) else rows
