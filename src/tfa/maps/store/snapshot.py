"""A snapshot: the whole map of one store, as it answers now, under another name or in another store.

Meanwhile the map is asked as always, and not edited: its claim is held. The copy appears all at once, as every version
does, in place of a map of that name if there is one, which can be taken back.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfa.base.progress import Progress, as_progress
from tfa.errors import BadSpec
from tfa.maps.store.calibrate import quiet_view
from tfa.maps.store.documents import folder_of, needed
from tfa.maps.store.header import StoreHeader
from tfa.maps.store.patches import holder_of, seal_patches
from tfa.maps.store.publish import AT_ONCE, Publisher, VersionFacts
from tfa.maps.store.store_map import StoreMap
from tfa.maps.store.versions import View
from tfa.search.store import Store, hide_password, open_map_store

UPLOADS = "photos/"  # documents of photos that came over HTTP


def snapshot(source: StoreMap, url: str, progress: bool | Progress | None = None) -> StoreHeader:
    """Copy a map to the URL; returns the header of the copy."""
    if hide_password(url) == source.called:
        raise BadSpec(f"{source.called} cannot be copied onto itself; give another name, or another store")
    store, name = open_map_store(url)
    ours, theirs = Publisher(source.store, source.name, source.called), Publisher(store, name, hide_password(url))
    try:
        with ours.claim("copied"), theirs.claim("copied"):
            view = quiet_view(source._versions, ours)
            return _copied(source, view, theirs, as_progress(progress))
    finally:
        store.close()


def _copied(source: StoreMap, view: View, copy: Publisher, progress: Progress) -> StoreHeader:
    header, store = view.header, copy.store
    collection, ids = copy.begin(header.dims, header.dtype), list[int]()
    with progress.task("copying", header.count, "images") as task:
        for page in view.active.collection.pages(AT_ONCE):
            collection.write(page)
            ids += page.ids.tolist()
            task.advance(len(page))
    index = header.index if store.scheme == source.store.scheme else None  # indexes are of a store's own kind
    collection.seal(index)
    wanted = sorted({*ids, *view.sample_ids})  # a calibration is judged on the sample, removed images among it
    patches = None if header.patches is None else _copied_patches(source.store, header.patches, copy, wanted)
    for key in source.store.keys(f"{source.name}/{UPLOADS}"):
        store.put(f"{copy.name}/{key.removeprefix(f'{source.name}/')}", needed(source.store, key))
    with tempfile.TemporaryDirectory(prefix="tfa-snapshot-") as folder:
        for key in source.store.keys(header.skeleton_folder):
            name = key.removeprefix(header.skeleton_folder)
            if Path(name).name == name:
                (Path(folder) / name).write_bytes(needed(source.store, key))
        facts = VersionFacts(
            next_id=header.next_id, encoder=header.encoder, heads=header.heads, active=header.active,
            dtype=header.dtype, index=index, patches=patches, fitted=header.fitted, placed=header.placed,
            notes=[*header.notes, f"a copy of version {header.version} of {source.called}"],
        )  # fmt: skip
        return copy.finish(Path(folder), view.active.reduction, view.active.moments, facts)


def _copied_patches(source: Store, place: Mapping[str, Any], copy: Publisher, ids: Sequence[int]) -> dict[str, Any]:
    """All of them into the copy's own store, wherever they were."""
    prefix, holder = f"{folder_of(copy.name, copy.version)}patches/", holder_of(source, place)
    copy.store.put(f"{prefix}compaction", needed(source, f"{place['prefix']}compaction"))
    for start in range(0, len(ids), AT_ONCE):
        copy.store.put_pieces(prefix, holder.read_pieces(place["folder"], ids[start : start + AT_ONCE]))
    new = {**place, "prefix": prefix, "at": None, "folder": prefix}
    seal_patches(copy.store, new)
    return new
