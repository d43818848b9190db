"""Publish new versions of a map in a store: calibrations, another active head, rollbacks and copies.

A calibration or another head is a new collection, computed from the stored rows. A copy is the current map under
another name or in another store. Meanwhile the map is claimed: it answers queries but rejects edits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfa.core.progress import Progress, as_progress
from tfa.errors import BadSpec, StoreConflict
from tfa.maps.state import MapState
from tfa.maps.store.edits import settle_edits
from tfa.maps.store.header import ABANDONED, StoreHeader, read_document, version_folder
from tfa.maps.store.publish import WRITTEN_AT_ONCE, Publisher, VersionFacts, write_entries
from tfa.maps.store.rows import SpaceRows, find_holder, fit_store_reduction, read_ranks, seal_patches
from tfa.maps.store.versions import MapView, Version, Versions, put_skeleton, write_skeleton
from tfa.maps.upkeep import UPLOADS
from tfa.search.reduced import Moments
from tfa.search.store import Entries, Store, hide_password, open_map_store

if TYPE_CHECKING:
    from tfa.maps.store.storage import StoreStorage


# --- calibrations and heads ----------------------------------------------------------------------------------------


def view_without_pending_edits(versions: Versions, publisher: Publisher) -> MapView:
    """Return the claimed map after pending edits are finished."""
    while True:
        view = settle_edits(versions, building=True, patience=ABANDONED + 5)
        if publisher.look() == view.content:  # else an editor that looked before the claim was faster
            return view


def write_version(
    publisher: Publisher, view: MapView, state: MapState, progress: Progress, move: Callable[[str], str] = str
) -> tuple[Version, int]:
    """Write all images under the active head of `state` to a new, unpublished collection; `move` changes paths.

    Returns the version and the number of images with a position: an unfinished addition may have written some.
    """
    head, header = state.chosen(), view.header
    scorer, source = head.stored.scorer, view.active.collection
    ranks = read_ranks(scorer)
    with progress.task("vectors", 2 * header.count, "images") as task:

        def pages() -> Iterator[tuple[Entries, SpaceRows]]:
            for page in source.pages(WRITTEN_AT_ONCE):
                if len(page):
                    yield page, SpaceRows.of_bytes(page.full, ranks)
                    task.advance(len(page))

        reduction = fit_store_reduction(scorer, (rows for _, rows in pages()), header.dims)
        collection, parts, placed = publisher.begin(header.dims, header.dtype), [], 0
        for page, rows in pages():
            placed += sum(one.get("position") is not None for one in page.payload)
            payload = [{**one, "path": move(one["path"])} for one in page.payload]
            parts.append(write_entries(collection, rows.entries(scorer, reduction, page.ids, payload)))
    collection.seal(header.index)
    return Version(head, collection, reduction, Moments.total([Moments.empty(header.dims), *parts])), placed


def publish_version(publisher: Publisher, view: MapView, state: MapState, version: Version, placed: int) -> StoreHeader:
    """Publish a version of the same images with the heads of `state`."""
    heads = [one.name for one in state.heads]
    facts = VersionFacts.of(view.header, heads=heads, active=state.active, same_images=True, placed=placed)
    return publisher.finish_state(state, version.reduction, version.moments, facts)


def switch_head(publisher: Publisher, versions: Versions, name: str, progress: Progress) -> None:
    """Activate the head of that name, reusing the previous version if it has that head."""
    with publisher.claim("calibrated"):
        view = view_without_pending_edits(versions, publisher)
        state = view.state.with_active(name)
        if state is view.state:
            return
        before = view.header.before
        if before is not None and name in view.versions:
            taken = {key: getattr(before, key) for key in ("version", "moments", "active", "active_digest")}
            publisher.swap(view.header.changed(**taken))
            return
        publish_version(publisher, view, state, *write_version(publisher, view, state, progress))


def forget_head(publisher: Publisher, versions: Versions, name: str) -> None:
    """Delete an inactive calibration: rewrite the heads, keep the collection."""
    with publisher.claim("calibrated"):
        view = view_without_pending_edits(versions, publisher)
        state = view.state.without_calibration(name)
        if view.header.active == name:  # the caller has activated another head
            raise StoreConflict(f"calibration {name!r} was activated meanwhile; try again")
        number = publisher.next_version()
        with tempfile.TemporaryDirectory(prefix="tfa-publish-") as folder:
            write_skeleton(Path(folder) / "skeleton.tfa", state)
            put_skeleton(
                publisher.store, f"{version_folder(publisher.name, number)}skeleton/", Path(folder) / "skeleton.tfa"
            )
        heads = tuple(one.name for one in state.heads)
        publisher.swap(view.header.changed(skeleton=number, heads=heads, active=state.active))


def roll_back(publisher: Publisher, versions: Versions) -> tuple[StoreHeader, StoreHeader]:
    """Swap the current and the previous version; return the old and the new header."""
    with publisher.claim("rolled back"):
        view = view_without_pending_edits(versions, publisher)
        before = view.header.before
        assert before is not None, "the caller has checked"
        header = view.header
        taken = replace(before, revision=header.revision + 1, next_id=max(before.next_id, header.next_id))
        if before.version == header.version:  # the same collection, which may have been edited since
            same = ("count", "moments", "fitted", "placed", "removed", "edits", "pending")
            taken = replace(taken, **{key: getattr(header, key) for key in same})
        return header, publisher.swap(taken)


# --- copies --------------------------------------------------------------------------------------------------------


def copy_map(source: StoreStorage, url: str, progress: bool | Progress | None = None) -> StoreHeader:
    """Copy a map to the URL; returns the header of the copy."""
    if hide_password(url) == source.location:
        raise BadSpec(f"cannot copy {source.location} onto itself; choose another name or store")
    store, name = open_map_store(url)
    ours, theirs = Publisher(source.store, source.name, source.location), Publisher(store, name, hide_password(url))
    try:
        with ours.claim("copied"), theirs.claim("copied"):
            view = view_without_pending_edits(source.versions, ours)
            return _copy(source, view, theirs, as_progress(progress))
    finally:
        store.close()


def _copy(source: StoreStorage, view: MapView, copy: Publisher, progress: Progress) -> StoreHeader:
    header, store = view.header, copy.store
    collection, ids = copy.begin(header.dims, header.dtype), list[int]()
    with progress.task("copying", header.count, "images") as task:
        for page in view.active.collection.pages(WRITTEN_AT_ONCE):
            collection.write(page)
            ids += page.ids.tolist()
            task.advance(len(page))
    index = header.index if store.scheme == source.store.scheme else None  # index names differ between stores
    collection.seal(index)
    wanted = sorted({*ids, *view.sample_ids})  # calibrations use the sample, including removed images
    patches = None if header.patches is None else _copy_patches(source.store, header.patches, copy, wanted)
    for key in source.store.keys(f"{source.name}/{UPLOADS}/"):
        store.put(f"{copy.name}/{key.removeprefix(f'{source.name}/')}", read_document(source.store, key))
    with tempfile.TemporaryDirectory(prefix="tfa-snapshot-") as folder:
        for key in source.store.keys(header.skeleton_folder):
            name = key.removeprefix(header.skeleton_folder)
            if Path(name).name == name:
                (Path(folder) / name).write_bytes(read_document(source.store, key))
        notes = [*header.notes, f"copy of version {header.version} of {source.location}"]
        facts = VersionFacts.of(header, index=index, patches=patches, notes=notes)
        return copy.finish(Path(folder), view.active.reduction, view.active.moments, facts)


def _copy_patches(source: Store, place: Mapping[str, Any], copy: Publisher, ids: Sequence[int]) -> dict[str, Any]:
    """Copy patches to the copy's store."""
    prefix, holder = f"{version_folder(copy.name, copy.version)}patches/", find_holder(source, place)
    copy.store.put(f"{prefix}compaction", read_document(source, f"{place['prefix']}compaction"))
    for start in range(0, len(ids), WRITTEN_AT_ONCE):
        copy.store.put_pieces(prefix, holder.read_pieces(place["folder"], ids[start : start + WRITTEN_AT_ONCE]))
    new = {**place, "prefix": prefix, "at": None, "folder": prefix}
    seal_patches(copy.store, new)
    return new
