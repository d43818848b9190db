"""The driver's part of the mathematics: a map fitted on the sample, then moved into the space of all images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfa.base.backend import backend_for
from tfa.base.config import HeadSpec, MapSpec
from tfa.base.progress import Progress
from tfa.base.spill import Spill
from tfa.base.tokens import Tokens
from tfa.errors import BadSpec
from tfa.maps.fit_map import fit_map
from tfa.maps.folder.photo_paths import common_folder
from tfa.maps.records import ImageRecord
from tfa.maps.state import MapState
from tfa.maps.state_changes import new_state
from tfa.maps.store.from_place_map import second_order_state
from tfa.maps.stored_head import StoredHead
from tfa.maps.stored_space import SIGMAS, StoredSpaces
from tfa.method.branch import DatabaseSplit
from tfa.method.controllers.decisions import SpectralStrengths
from tfa.method.principal_axes import PrincipalAxes
from tfa.method.second_order_head import FittedSpaces, assemble_second_order, measured
from tfa.method.second_order_space import sample_space
from tfa.photos.positions import Position
from tfa.verification.judged_head import not_judged, pseudo_limited

FACTS = ("rho", "participation", "displacement")


def check_kept(map_spec: MapSpec) -> None:
    """Refuse what a map in a store cannot be."""
    if map_spec.head == "paper":
        raise BadSpec("--head paper is for a map in a folder (--out); one in a store has second-order heads: judged "
                      "or second-order")  # fmt: skip
    if map_spec.ensemble:
        raise BadSpec("--ensemble is for a map in a folder (--out); one in a store keeps one row an image")
    if map_spec.storage != "int7":
        raise BadSpec(f"--storage {map_spec.storage} is for a map in a folder (--out); rows in a store are int7")


def records_from(payload: Sequence[dict[str, Any]], ids: Sequence[int]) -> list[ImageRecord]:
    """Image records of a skeleton."""
    place = lambda one: None if one["position"] is None else Position.from_dict(one["position"])  # noqa: E731
    return [
        ImageRecord(int(own), one["path"], one["digest"], True, place(one))
        for own, one in zip(ids, payload, strict=True)
    ]


def fit_sample(
    tokens: Tokens,
    records: list[ImageRecord],
    encoder: dict[str, Any],
    map_spec: MapSpec,
    spec: HeadSpec,
    device: str,
    progress: Progress,
) -> tuple[MapState, list[str]]:
    """The map of the sample, always with a second-order head, and notes for the user."""
    fitted = fit_map(tokens, map_spec, spec, device, progress)
    state, more = second_order_state(new_state(fitted, map_spec, records, encoder))
    return state, [*fitted.notes, *more]


def in_space_of_all(
    state: MapState, axes: PrincipalAxes, descriptors: np.ndarray, records: list[ImageRecord], next_id: int, device: str
) -> MapState:
    """The sample's map with the PCA of all images; `descriptors` `m D` are those of the sample.

    Decisions stay. What they are scaled by (strengths, spreads) is measured again, of the construction that the map
    keeps.
    """
    assert state.spaces is not None
    spec, [old] = HeadSpec.from_dict(state.spec), state.spaces.spaces
    split = DatabaseSplit.of(len(descriptors), pseudo_limited(spec))
    space = sample_space(axes, descriptors, old.side.patch_directions, split, backend_for(device), Spill())
    fitted = _with_others(measured(spec, (space,), "float32"), state.spaces)
    decisions = fitted.decisions(state.database.decisions["carrier"])
    head = assemble_second_order(fitted, decisions, not_judged(fitted, decisions))
    spaces = StoredSpaces.of(fitted, 0, state.head.storage)
    stored = StoredHead.of(head, 0, state.head.storage, spaces)
    named = replace(state.database, stored=stored, decisions=decisions.to_dict())
    root = common_folder([record.path for record in records])
    return replace(state, heads=(named,), spaces=spaces, images=records, next_id=next_id, photo_root=root, compact=None)


def _with_others(fitted: FittedSpaces, sample: StoredSpaces) -> FittedSpaces:
    """What was measured in one construction, with what the sample said of the two that a map does not keep."""
    facts = [[getattr(fitted.strengths, name)[0], *getattr(sample.strengths, name)[1:]] for name in FACTS]
    sigmas: dict[str, Any] = {name: (getattr(fitted, name)[0], *sample.sigmas[name][1:]) for name in SIGMAS}
    return replace(fitted, strengths=SpectralStrengths.of(*facts), **sigmas)
