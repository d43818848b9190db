"""A map told in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfa.maps.format import VERSION, MapState
from tfa.maps.records import ImageRecord


def unseen_share(images: Sequence[ImageRecord]) -> float:
    """Share of the images that the head was not fitted on."""
    return sum(not record.fitted for record in images) / max(len(images), 1)


def facts_of(state: MapState, images: Sequence[ImageRecord], path: Path | None) -> dict[str, Any]:
    """What a map holds, what was decided and why; `images` are those that still answer."""
    return {
        "name": None if path is None else path.stem,
        "path": None if path is None else str(path),
        "format_version": VERSION,
        "revision": state.revision,
        "encoder": state.encoder,
        "images": len(images),
        "fitted_images": sum(record.fitted for record in state.images),
        "removed_images": len(state.removed),
        "unseen_share": unseen_share(images),
        "positions": sum(record.position is not None for record in images),
        "spec": state.spec,
        "decisions": state.decisions,
        "reasons": state.evidence["reasons"],
        "evidence": {key: value for key, value in state.evidence.items() if key != "reasons"},
        "saw": state.saw,
        "replica": state.replica,
        "storage": state.head.storage,
        "bytes": None if path is None else sum(entry["bytes"] for entry in state.files),
        "photos": [record.to_dict() for record in images],
    }
