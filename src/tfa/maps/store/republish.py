"""New versions of a map that is in a store: calibrated, with another head, as it was before, or copied.

A calibration or another head is a new collection, made of the rows that the store holds. A copy is the whole map as it
answers now, under another name or in another store. Meanwhile the map answers, and is not edited: its claim is held.
The copy appears all at once, as every version does, in place of a map of that name if there is one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfa.core.progress import Progress, as_progress
from tfa.errors import BadSpec
from tfa.maps.state import MapState
from tfa.maps.store.edits import settle_edits
from tfa.maps.store.header import ABANDONED, StoreHeader, read_document, version_folder
from tfa.maps.store.publish import WRITTEN_AT_ONCE, Publisher, VersionFacts
from tfa.maps.store.rows import SpaceRows, find_holder, fit_store_reduction, read_ranks, seal_patches
from tfa.maps.store.versions import MapView, Version, Versions, holds_same_images, put_skeleton, write_skeleton
from tfa.maps.upkeep import UPLOADS
from tfa.search.reduced import Moments
from tfa.search.store import Collection, Entries, Store, hide_password, open_map_store

if TYPE_CHECKING:
    from tfa.maps.store.storage import StoreStorage


# --- calibrations and heads ----------------------------------------------------------------------------------------


def view_without_pending_edits(versions: Versions, publisher: Publisher) -> MapView:
    """The map, claimed, once edits under way are done or given up."""
    view = settle_edits(versions, building=True, patience=ABANDONED + 5)
    publisher.look()
    return view


def write_version(
    publisher: Publisher, view: MapView, state: MapState, progress: Progress
) -> tuple[Version, Collection]:
    """All images of the map under the active head of `state`, in a collection that nobody sees yet."""
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
        collection, parts = publisher.begin(header.dims, header.dtype), []
        for page, rows in pages():
            parts.append(publisher.write(collection, page.ids, rows, page.payload, scorer, reduction))
    collection.seal(header.index)
    empty = Moments(0, np.zeros(header.dims), np.zeros((header.dims, header.dims)))
    return Version(head, collection, reduction, Moments.total([empty, *parts])), collection


def publish_version(publisher: Publisher, view: MapView, state: MapState, version: Version) -> StoreHeader:
    """Make a version of the same images, and the heads of `state`, the map."""
    header = view.header
    with tempfile.TemporaryDirectory(prefix="tfa-publish-") as folder:
        write_skeleton(Path(folder) / "skeleton.tfa", replace(state, revision=publisher.version))
        return publisher.finish(
            Path(folder) / "skeleton.tfa",
            version.reduction,
            version.moments,
            VersionFacts(
                next_id=header.next_id,
                fitted=header.fitted,
                placed=header.placed,
                reach=header.reach,
                encoder=header.encoder,
                heads=[one.name for one in state.heads],
                active=state.active,
                dtype=header.dtype,
                index=header.index,
                patches=header.patches,
                notes=header.notes,
                same_images=True,
            ),
        )


def switch_head(publisher: Publisher, versions: Versions, name: str, progress: Progress) -> None:
    """Let the head of that name answer: by the version before if that is of it, else by a new one."""
    with publisher.claim("calibrated"):
        view = view_without_pending_edits(versions, publisher)
        state = view.state.with_active(name)
        if state is view.state:
            return
        before = view.header.before
        if before is not None and before.active == name and holds_same_images(before, view.header):
            taken = {key: getattr(before, key) for key in ("version", "moments", "active")}
            publisher.swap(view.header.changed(**taken))
            return
        version, _ = write_version(publisher, view, state, progress)
        publish_version(publisher, view, state, version)


def forget_head(publisher: Publisher, versions: Versions, name: str) -> None:
    """Drop a calibration that does not answer: the heads are written again, the images stay where they are."""
    with publisher.claim("calibrated"):
        view = view_without_pending_edits(versions, publisher)
        state = view.state.without_calibration(name)
        number = publisher.next_version()
        with tempfile.TemporaryDirectory(prefix="tfa-publish-") as folder:
            write_skeleton(Path(folder) / "skeleton.tfa", replace(state, revision=number))
            put_skeleton(
                publisher.store, f"{version_folder(publisher.name, number)}skeleton/", Path(folder) / "skeleton.tfa"
            )
        heads = tuple(one.name for one in state.heads)
        publisher.swap(view.header.changed(skeleton=number, heads=heads, active=state.active))


def roll_back(publisher: Publisher, versions: Versions) -> tuple[StoreHeader, StoreHeader]:
    """Put the version before in the place of the one that answers, which can then be taken back in turn.

    Returns the header that was and the one that is.
    """
    with publisher.claim("taken back"):
        view = view_without_pending_edits(versions, publisher)
        before = view.header.before
        assert before is not None, "the caller has checked"
        header = view.header
        taken = replace(before, revision=header.revision + 1, next_id=max(before.next_id, header.next_id), pending={})
        if before.version == header.version:  # other heads over the same images, which may have been edited since
            same = ("count", "moments", "fitted", "placed", "removed", "edits")
            taken = replace(taken, **{key: getattr(header, key) for key in same})
        return header, publisher.swap(taken)


# --- copies --------------------------------------------------------------------------------------------------------


def copy_map(source: StoreStorage, url: str, progress: bool | Progress | None = None) -> StoreHeader:
    """Copy a map to the URL; returns the header of the copy."""
    if hide_password(url) == source.location:
        raise BadSpec(f"{source.location} cannot be copied onto itself; give another name, or another store")
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
    index = header.index if store.scheme == source.store.scheme else None  # indexes are of a store's own kind
    collection.seal(index)
    wanted = sorted({*ids, *view.sample_ids})  # a calibration is judged on the sample, removed images among it
    patches = None if header.patches is None else _copy_patches(source.store, header.patches, copy, wanted)
    for key in source.store.keys(f"{source.name}/{UPLOADS}/"):
        store.put(f"{copy.name}/{key.removeprefix(f'{source.name}/')}", read_document(source.store, key))
    with tempfile.TemporaryDirectory(prefix="tfa-snapshot-") as folder:
        for key in source.store.keys(header.skeleton_folder):
            name = key.removeprefix(header.skeleton_folder)
            if Path(name).name == name:
                (Path(folder) / name).write_bytes(read_document(source.store, key))
        facts = VersionFacts(
            next_id=header.next_id, encoder=header.encoder, heads=header.heads, active=header.active,
            dtype=header.dtype, index=index, patches=patches, fitted=header.fitted, placed=header.placed,
            reach=header.reach,
            notes=[*header.notes, f"a copy of version {header.version} of {source.location}"],
        )  # fmt: skip
        return copy.finish(Path(folder), view.active.reduction, view.active.moments, facts)


def _copy_patches(source: Store, place: Mapping[str, Any], copy: Publisher, ids: Sequence[int]) -> dict[str, Any]:
    """All of them into the copy's own store, wherever they were."""
    prefix, holder = f"{version_folder(copy.name, copy.version)}patches/", find_holder(source, place)
    copy.store.put(f"{prefix}compaction", read_document(source, f"{place['prefix']}compaction"))
    for start in range(0, len(ids), WRITTEN_AT_ONCE):
        copy.store.put_pieces(prefix, holder.read_pieces(place["folder"], ids[start : start + WRITTEN_AT_ONCE]))
    new = {**place, "prefix": prefix, "at": None, "folder": prefix}
    seal_patches(copy.store, new)
    return new
