"""Merge maps of several sessions into one, with a head fitted on all photos.

Each map is first queried with the photos of later maps: a sure, reranked answer is a place that both maps show. The
input maps do not change.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.errors import BadMap, BadSpec, NoImages
from tfa.maps.calibrate import note_dropped
from tfa.maps.fit_map import fit_map
from tfa.maps.map import Map
from tfa.maps.state import make_state
from tfa.maps.storage import MemoryStorage
from tfa.maps.upkeep import Confirmed, find_lost_photos, load_tokens
from tfa.types import HeadSpec, ImageRecord, MergedPart, MergeResult, SharedPlace

_PHOTOS_PER_QUERY = 64  # photos queried in another map at a time


def merge_maps(maps: Sequence[Map], progress: bool | Progress | None = None) -> tuple[Map, MergeResult]:
    """Merge maps into a new map in memory.

    Args:
        maps: Two or more maps of one encoder. Their photos, or cached tokens, must be available.
        progress: True draws progress bars.

    Returns:
        The merged map with a head of the first map's kind, and how the maps overlap. Photos get new ids, and the
        name of their map as session if they have none.

    Raises:
        BadMap: Encoders differ, or photos are missing.
    """
    first, progress = _checked(maps), as_progress(progress)
    names = _names(maps)
    fresh, repeated = _records(maps, names)
    records = [record for part in fresh for record in part]
    if len(records) < 2:
        raise NoImages(f"a map needs at least 2 photos, these maps have {len(records)}")
    tokens = load_tokens(first, records, progress)
    parts: list[MergedPart] = []
    for number, (one, own) in enumerate(zip(maps, fresh, strict=True)):
        before = [other for other in maps[:number] if other.state.compact is not None]
        start = sum(part.photos for part in parts)
        shared = _shared(own, tokens.select(slice(start, start + len(own))), before, progress) if before else []
        part = MergedPart(
            name=names[number], path=None if one.path is None else str(one.path),
            sessions=list(dict.fromkeys(record.session or "" for record in own)), photos=len(own),
            repeated=repeated[number], compared=len(own) if before or not number else None, shared=shared,
        )  # fmt: skip
        parts.append(part)
    state, spec = first.state, first.state.map_spec
    fitted = fit_map(tokens, spec, HeadSpec.from_dict(state.spec), first.options.device, progress, state.source)
    merged = first.with_storage(MemoryStorage(make_state(fitted, spec, records, state.encoder)))
    notes = [*fitted.notes, *_notes(maps, fresh, sum(repeated))]
    return merged, MergeResult(path=None, images=len(merged), maps=parts, notes=notes)


def _checked(maps: Sequence[Map]) -> Map:
    """Return the first map if all can be merged."""
    if len(maps) < 2:
        raise BadSpec(f"cannot merge {len(maps)} map; pass two or more")
    first = maps[0]
    for other in maps[1:]:
        own, strange = first.state.encoder, other.state.encoder
        if own["fingerprint"] != strange["fingerprint"]:
            apart = f"{strange['id']}" if own["id"] != strange["id"] else "other weights of it"
            raise BadMap(
                f"{first.called} uses {own['id']}, {other.called} uses {apart}; merged maps must share an encoder, so "
                "rebuild one of them with the encoder of the other",
                first.called,
                other.called,
            )
    lost = find_lost_photos(first, [record for one in maps for record in one.images])
    if lost:
        raise BadMap(
            f"{len(lost):,} photos are not in the token cache, and missing or changed on disk; restore them, or "
            "remove them from their maps with tfa remove:",
            *lost,
            more=[f"  {path}" for path in lost],
        )
    return first


def _names(maps: Sequence[Map]) -> list[str]:
    """Return a unique name per map: its folder's name, with a number if needed."""
    names: list[str] = []
    for number, one in enumerate(maps, 1):
        plain = f"map-{number}" if one.path is None else one.path.stem
        names.append(plain if plain not in names else f"{plain}-{number}")
    return names


def _records(maps: Sequence[Map], names: Sequence[str]) -> tuple[list[list[ImageRecord]], list[int]]:
    """Return each map's new images with new ids, and each map's number of duplicates.

    The first of several identical photos is used; if it has no position, it gets that of a duplicate.
    """
    kept: dict[str, ImageRecord] = {}
    digests: list[list[str]] = [[] for _ in maps]
    repeated = [0] * len(maps)
    for part, (one, name) in enumerate(zip(maps, names, strict=True)):
        for record in one.images:
            known = kept.get(record.digest)
            if known is None:
                kept[record.digest] = replace(record, id=len(kept), fitted=True, session=record.session or name)
                digests[part].append(record.digest)
                continue
            repeated[part] += 1
            kept[record.digest] = replace(known, position=known.position or record.position)
    return [[kept[digest] for digest in own] for own in digests], repeated


def _shared(
    records: Sequence[ImageRecord], tokens: Tokens, before: Sequence[Map], progress: Progress
) -> list[SharedPlace]:
    """Return the photos that an earlier map recognizes with a sure answer, each with its best hit."""
    found = []
    with progress.task("looking for shared places", len(records), "photos") as task:
        for start in range(0, len(records), _PHOTOS_PER_QUERY):
            block = slice(start, start + _PHOTOS_PER_QUERY)
            some, photos = records[block], tokens.select(block)
            answers = zip(*(other.query_tokens(photos, 1, rerank=True) for other in before), strict=True)
            for record, hits in zip(some, answers, strict=True):
                sure = [hit for of_one in hits for hit in of_one if hit.sure]
                if sure:
                    best = max(sure, key=lambda hit: hit.inliers or 0)
                    found.append(SharedPlace(image=record.path, shows=best.image, inliers=best.inliers or 0))
            task.advance(len(some))
    return found


def _notes(maps: Sequence[Map], fresh: Sequence[Sequence[ImageRecord]], repeated: int) -> list[str]:
    first, notes = maps[0], []
    if repeated:
        notes.append(f"identical photos in several maps, merged: {repeated:,}")
    for other, own in zip(maps, fresh, strict=True):
        if other is not first and other.state.map_spec != first.state.map_spec:
            notes.append(f"{other.called} was built with other settings; the merged map uses those of {first.called}")
        inside = [record for record in own if other.path is not None and Path(record.path).is_relative_to(other.path)]
        if inside:
            notes.append(f"{len(inside):,} photos are stored in {other.called}; keep that folder")
    kinds = {record.position.is_global for own in fresh for record in own if record.position is not None}
    if len(kinds) > 1:
        notes.append("some positions are in degrees, others in meters: distances between them are unknown")
    return notes


def keep_confirmed(maps: Sequence[Map], merged: Map) -> None:
    """Copy the confirmation times of the maps' photos to the saved merged map."""
    known = [Confirmed.read(one.path) for one in maps if one.path is not None]
    if merged.path is None or not any(one.last for one in known):
        return
    kept = Confirmed().watched(merged.images, int(time.time()))
    for one in known:
        kept = kept.with_later(one)
    kept.write(merged.path)


def note_dropped_calibrations(maps: Sequence[Map], out: Path) -> list[str]:
    """Return notes about calibrations that the merged map at `out` does not have."""
    return [note for one in maps for note in note_dropped(one.state, out)]
