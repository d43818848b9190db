"""A map's state as it starts and changes: a new map, images added, arrays shared, duplicates tied."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.tokens import Tokens
from tfa.encoders import Encoder
from tfa.maps.fit_map import FittedMap
from tfa.maps.folder.photo_paths import find_common_folder
from tfa.maps.state import DATABASE, MapState, NamedHead
from tfa.maps.stored_head import AnyHead
from tfa.maps.stored_space import StoredSpaces
from tfa.method.decisions import JudgedDecisions
from tfa.method.head import ENSEMBLE, ReplicaName
from tfa.method.second_order_head import SecondOrderHead
from tfa.photos.token_cache import EncodedImages
from tfa.types import BuildOptions, ImageRecord, Position


def make_state(
    fitted: FittedMap, map_spec: BuildOptions, records: list[ImageRecord], encoder: dict[str, Any]
) -> MapState:
    """Make the first state of a map whose head was just fitted on the images of `records`."""
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
        head_kind=choose_head_kind(head, map_spec),
        spaces=stored,
        photo_root=find_common_folder([record.path for record in records]),
        next_id=max((record.id for record in records), default=-1) + 1,
        compact=fitted.compact,
    )


def choose_head_kind(head: AnyHead, map_spec: BuildOptions) -> str:
    """Choose which of `base.config.HEAD_KINDS` a map of this head has."""
    if isinstance(head, SecondOrderHead):
        return "second-order" if map_spec.head == "second-order" else "judged"
    return "judged" if isinstance(head.decisions, JudgedDecisions) else "paper"


def describe_encoder(encoder: Encoder, weights: str | Path | None) -> dict[str, Any]:
    """Describe the encoder for the map; `weights` is the weights file, if one was named."""
    return {
        "id": encoder.id,
        "fingerprint": encoder.model,
        "channels": encoder.channels,
        "global_channels": encoder.global_channels,
        "grid": list(encoder.grid),
        "weights": None if weights is None else str(Path(weights).resolve()),
    }


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
            id=first_id + n,
            path=str(path.resolve()),
            digest=digest,
            fitted=fitted,
            position=places.get(path),
            session=session,
        )
        for n, (path, digest) in enumerate(zip(encoded.paths, encoded.digests, strict=True))
    ]


def append_images(state: MapState, tokens: Tokens, records: list[ImageRecord]) -> MapState:
    """Append images, described by the frozen vocabulary, geometry and compaction."""
    spaces = None if state.spaces is None else state.spaces.grown(tokens)
    return state.changed(
        heads=tuple(head.grown(tokens, spaces) for head in state.heads),
        spaces=spaces,
        images=[*state.images, *records],
        next_id=state.next_id + len(records),
        compact=None if state.compact is None else state.compact.grown(tokens),
    )


def share_first_files(one: MapState, other: MapState) -> bool:
    """Tell whether both begin with the same rows of the same heads; later files may differ."""

    def first(state: MapState) -> dict[tuple[str, str | None], str]:
        found: dict[tuple[str, str | None], str] = {}
        for entry in state.files:
            found.setdefault((entry["role"], entry["head"]), entry["sha256"])
        return found

    return [head.name for head in one.heads] == [head.name for head in other.heads] and first(one) == first(other)


def reuse_prepared_arrays(new: MapState, older: MapState) -> MapState:
    """Reuse the arrays of `older` in `new`, which was read from the same folder after additions were joined.

    The arrays are equal; those of `older` may have been packed for queries, which takes seconds in a large map.
    """
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
    if spaces is not None and older.spaces is not None and _same_start(spaces, older.spaces):
        spaces = spaces.starting_with(older.spaces)
    return dataclasses.replace(new, heads=tuple(heads), spaces=spaces)


def _same_start(spaces: StoredSpaces, older: StoredSpaces) -> bool:
    return len(spaces.spaces[0].halves.chunks[0]) == len(older.spaces[0].halves.chunks[0])


def tie_duplicates(state: MapState) -> MapState:
    """Make photos with the same content tie to the last bit in every head, so that the first of them wins."""
    rows = find_duplicate_images(state.images)
    scorers = [dataclasses.replace(head.stored.scorer, duplicates=rows) for head in state.heads]
    tied = [head.with_scorer(scorer) for head, scorer in zip(state.heads, scorers, strict=True)]
    return dataclasses.replace(state, heads=tuple(tied))


def find_duplicate_images(images: Sequence[ImageRecord]) -> np.ndarray | None:
    """Find for each gallery row the first row of the same file content; None if all differ."""
    first: dict[str, int] = {}
    rows = np.array([first.setdefault(record.digest, row) for row, record in enumerate(images)], dtype=np.int64)
    return None if len(first) == len(images) else rows
