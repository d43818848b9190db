"""A small map, built in this process, published in a store: the simplest way in."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from tfa.base.config import HeadSpec
from tfa.base.progress import Progress, as_progress
from tfa.errors import BadSpec
from tfa.maps.query import AskableMap
from tfa.maps.state import DATABASE, MapState, NamedHead
from tfa.maps.state_changes import duplicates_of
from tfa.maps.store.candidates import payload_of
from tfa.maps.store.header import StoreHeader
from tfa.maps.store.patches import begin_patches, seal_patches, write_patches
from tfa.maps.store.publish import AT_ONCE, Publisher, VersionFacts
from tfa.maps.store.rows import SpaceRows, fit_reduction_of
from tfa.maps.store.skeleton import SAMPLE, write_skeleton
from tfa.maps.verification import judge_head
from tfa.method.controllers.decisions import JudgedEvidence
from tfa.method.controllers.judged import DATABASE_CARRIERS, INCUMBENT
from tfa.method.second_order import SECOND_ORDER
from tfa.method.second_order_head import assemble_second_order
from tfa.search.reduced import Moments

DIMS = 1024  # numbers of a reduced vector, unless another is wanted


def publish(
    place_map: AskableMap,
    publisher: Publisher,
    *,
    dims: int = DIMS,
    dtype: str = "float32",
    index: str | None = None,
    progress: bool | Progress | None = None,
) -> StoreHeader:
    """Write all images that answer, and the map as their skeleton. They keep their ids."""
    state, notes = second_order_state(place_map.state)
    if len(state.images) > SAMPLE:
        all_rows = f"every reader keeps the rows of all {len(state.images):,} images in memory"
        notes = [*notes, f"{all_rows}; a map of tfa build --out URL keeps those of a sample of {SAMPLE:,}"]
    head, rows = state.chosen().stored.scorer, place_map.rows
    assert state.spaces is not None, "second-order heads have a space"
    with publisher.claim():
        blocks = [rows[start : start + AT_ONCE] for start in range(0, len(rows), AT_ONCE)]
        reduction = fit_reduction_of(head, (_rows(state, block) for block in blocks), dims)
        collection = publisher.begin(dims, dtype)
        place = begin_patches(publisher.store, publisher.name, publisher.version, state.compact)
        if place is not None:
            write_all_patches(publisher, place, state)
        parts = []
        with as_progress(progress).task("publishing", len(rows), "images") as task:
            for block in blocks:
                records = [state.images[row] for row in block]
                ids, payload = np.array([one.id for one in records]), [payload_of(one) for one in records]
                parts.append(publisher.write(collection, ids, _rows(state, block), payload, head, reduction))
                task.advance(len(block))
        collection.seal(index)
        alive = [state.images[row] for row in rows]
        with tempfile.TemporaryDirectory(prefix="tfa-publish-") as folder:
            write_skeleton(Path(folder) / "skeleton.tfa", replace(state, revision=publisher.version))
            return publisher.finish(
                Path(folder) / "skeleton.tfa",
                reduction,
                Moments.total(parts),
                VersionFacts(
                    next_id=state.next_id,
                    fitted=sum(record.fitted for record in alive),
                    placed=sum(record.position is not None for record in alive),
                    encoder=state.encoder,
                    heads=[one.name for one in state.heads],
                    active=state.active,
                    dtype=dtype,
                    index=index,
                    patches=place,
                    notes=[*place_map.notes, *notes],
                ),
            )


def _rows(state: MapState, rows: np.ndarray) -> SpaceRows:
    """Some images of a map, which need not stand one after the other."""
    assert state.spaces is not None
    start, stop = int(rows[0]), int(rows[-1]) + 1
    every = SpaceRows.of(state.spaces, start, stop)
    return every if len(rows) == stop - start else every.take(rows - start)


def write_all_patches(publisher: Publisher, place: dict[str, object], state: MapState) -> None:
    """Patches of all images of a map, removed ones too: a calibration is judged on what was fitted."""
    assert state.compact is not None
    ids = [record.id for record in state.images]
    for start in range(0, len(ids), AT_ONCE):
        own = ids[start : start + AT_ONCE]
        [chunk] = state.compact.patch_tensors(start, start + len(own)).values()
        write_patches(publisher.store, place, own, chunk)
    seal_patches(publisher.store, place)


def second_order_state(state: MapState) -> tuple[MapState, list[str]]:
    """The map with second-order heads alone, and what is to be said about it."""
    if state.spaces is None:
        raise BadSpec(
            "a map in a store has a second-order head, this one has the paper's; build it with --head judged or "
            "--head second-order"
        )
    if state.head.in_space:
        return state, []
    database, carrier = _best_second_order(state)
    heads = (database, *(head for head in state.calibrations if head.stored.in_space))
    active = state.active if state.active in [head.name for head in heads] else DATABASE
    was = state.database.decisions["representation"]
    note = f"the judge chose {was} residuals; a store holds second-order heads: the carrier {carrier} answers"
    return replace(state, heads=heads, active=active, vocabularies=None), [note]


def _best_second_order(state: MapState) -> tuple[NamedHead, str]:
    """Of the second-order heads that were judged the best, for a map whose judge chose another."""
    assert state.spaces is not None
    fitted_records = [record for record in state.images if record.fitted]
    spec, same = HeadSpec.from_dict(state.spec), duplicates_of(fitted_records)
    fitted = state.spaces.fitted(len(fitted_records), spec, same)
    known = state.database.evidence["candidates"]
    judged = [one for one in DATABASE_CARRIERS if fitted.decisions(one).name in known]
    value = {one: known[fitted.decisions(one).name]["value"] for one in judged}
    carrier = max(judged, key=lambda one: value[one]) if judged else INCUMBENT
    evidence = JudgedEvidence.from_dict(state.database.evidence)
    head = assemble_second_order(fitted, fitted.decisions(carrier), evidence)
    verification = judge_head(head, state.compact)
    named = NamedHead.of(
        DATABASE, head, state.database.replica, state.head.storage, verification=verification, spaces=state.spaces
    )
    return named, f"{SECOND_ORDER.replace('_', '-')}/{carrier}"
