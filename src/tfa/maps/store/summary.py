"""A map in a store described in JSON."""

from __future__ import annotations

from typing import Any

from tfa.maps.store.versions import View
from tfa.maps.summary import facts_of


def describe_store_map(view: View, name: str, url: str) -> dict[str, Any]:
    """As `PlaceMap.info()`, of all images; without the list of photos, and with what the store says of itself."""
    header, patches = view.header, view.patches
    verification = None
    if patches is not None:
        size = {"spec": patches.spec.to_dict(), "grid": list(patches.grid), "bytes_per_image": patches.bytes_per_image}
        kept = {"at": (header.patches or {}).get("at"), "cache": patches.source.facts()}
        verification = {**size, **kept, **(view.state.database.verification or {})}
    before = header.before
    return {
        **facts_of(view.state, [], None),
        "name": name,
        "path": url,
        "revision": header.revision,
        "images": header.count,
        "fitted_images": header.fitted,
        "removed_images": header.removed,
        "unseen_share": 1 - header.fitted / max(header.count, 1),
        "positions": header.placed,
        "verification": verification,
        "photos": [],
        "sample": len(view.state.images),
        "dims": header.dims,
        "version": header.version,
        "created": header.created,
        "store": view.active.collection.describe(),
        "previous": None
        if before is None
        else {"version": before.version, "created": before.created, "active": before.active, "images": before.count},
    }
