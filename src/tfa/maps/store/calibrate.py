"""Calibrating a map in a store, and letting another head answer: a new collection, from the images' own rows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from tfa.base.progress import Progress
from tfa.maps.state import MapState
from tfa.maps.store.claim import ABANDONED
from tfa.maps.store.documents import folder_of
from tfa.maps.store.edits import settle
from tfa.maps.store.header import StoreHeader
from tfa.maps.store.publish import AT_ONCE, Publisher, VersionFacts
from tfa.maps.store.rows import SpaceRows, fit_reduction_of, ranks_of
from tfa.maps.store.skeleton import put_skeleton, write_skeleton
from tfa.maps.store.versions import Version, Versions, View, holds_the_same
from tfa.search.reduced import Moments
from tfa.search.store import Collection, Entries


def quiet_view(versions: Versions, publisher: Publisher) -> View:
    """The map, claimed, once edits under way are done or given up."""
    view = settle(versions, building=True, patience=ABANDONED + 5)
    publisher.look()
    return view


def write_version(publisher: Publisher, view: View, state: MapState, progress: Progress) -> tuple[Version, Collection]:
    """All images of the map under the active head of `state`, in a collection that nobody sees yet."""
    head, header = state.chosen(), view.header
    scorer, source = head.stored.scorer, view.active.collection
    ranks = ranks_of(scorer)
    with progress.task("vectors", 2 * header.count, "images") as task:

        def pages() -> Iterator[tuple[Entries, SpaceRows]]:
            for page in source.pages(AT_ONCE):
                if len(page):
                    yield page, SpaceRows.of_bytes(page.full, ranks)
                    task.advance(len(page))

        reduction = fit_reduction_of(scorer, (rows for _, rows in pages()), header.dims)
        collection, parts = publisher.begin(header.dims, header.dtype), []
        for page, rows in pages():
            parts.append(publisher.write(collection, page.ids, rows, page.payload, scorer, reduction))
    collection.seal(header.index)
    empty = Moments(0, np.zeros(header.dims), np.zeros((header.dims, header.dims)))
    return Version(head, collection, reduction, Moments.total([empty, *parts])), collection


def publish_version(publisher: Publisher, view: View, state: MapState, version: Version) -> StoreHeader:
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


def switch(publisher: Publisher, versions: Versions, name: str, progress: Progress) -> None:
    """Let the head of that name answer: by the version before if that is of it, else by a new one."""
    with publisher.claim("calibrated"):
        view = quiet_view(versions, publisher)
        state = view.state.with_active(name)
        if state is view.state:
            return
        before = view.header.before
        if before is not None and before.active == name and holds_the_same(before, view.header):
            taken = {key: getattr(before, key) for key in ("version", "moments", "active")}
            publisher.swap(view.header.changed(**taken))
            return
        version, _ = write_version(publisher, view, state, progress)
        publish_version(publisher, view, state, version)


def forget(publisher: Publisher, versions: Versions, name: str) -> None:
    """Drop a calibration that does not answer: the heads are written again, the images stay where they are."""
    with publisher.claim("calibrated"):
        view = quiet_view(versions, publisher)
        state = view.state.without_calibration(name)
        number = publisher.next_version()
        with tempfile.TemporaryDirectory(prefix="tfa-publish-") as folder:
            write_skeleton(Path(folder) / "skeleton.tfa", replace(state, revision=number))
            put_skeleton(
                publisher.store, f"{folder_of(publisher.name, number)}skeleton/", Path(folder) / "skeleton.tfa"
            )
        heads = tuple(one.name for one in state.heads)
        publisher.swap(view.header.changed(skeleton=number, heads=heads, active=state.active))


def take_back(publisher: Publisher, versions: Versions) -> tuple[StoreHeader, StoreHeader]:
    """Put the version before in the place of the one that answers, which can then be taken back in turn.

    Returns the header that was and the one that is.
    """
    with publisher.claim("taken back"):
        view = quiet_view(versions, publisher)
        before = view.header.before
        assert before is not None, "whoever calls has looked"
        header = view.header
        taken = replace(before, revision=header.revision + 1, next_id=max(before.next_id, header.next_id), pending={})
        if before.version == header.version:  # other heads over the same images, which may have been edited since
            same = ("count", "moments", "fitted", "placed", "removed", "edits")
            taken = replace(taken, **{key: getattr(header, key) for key in same})
        return header, publisher.swap(taken)
