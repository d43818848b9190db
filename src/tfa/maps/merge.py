"""Maps merged: the photos of several sessions in one map, with one head fitted over all of them.

Before that each map is queried with the photos of the others: a photo that another map recognises, verified and sure,
shows a place that both have. The maps themselves stay as they are.
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
    """One map of the photos of several, which is not saved yet, and how they overlap.

    The head is of the first map's kind. Photos get new ids, and the session of the map they come from unless they
    have one. It needs every photo, or its cached tokens.
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
        parts.append(
            MergedPart(
                name=names[number],
                path=None if one.path is None else str(one.path),
                sessions=list(dict.fromkeys(record.session or "" for record in own)),
                photos=len(own),
                repeated=repeated[number],
                compared=len(own) if before or not number else None,
                shared=shared,
            )
        )
    spec = first.state.map_spec
    fitted = fit_map(tokens, spec, HeadSpec.from_dict(first.state.spec), first.options.device, progress)
    merged = first.with_storage(MemoryStorage(make_state(fitted, spec, records, first.state.encoder)))
    notes = [*fitted.notes, *_notes(maps, fresh, sum(repeated))]
    return merged, MergeResult(path=None, images=len(merged), maps=parts, notes=notes)


def _checked(maps: Sequence[Map]) -> Map:
    """The first of the maps, if they can be merged."""
    if len(maps) < 2:
        raise BadSpec(f"{len(maps)} map was given; merging takes two or more")
    first = maps[0]
    for other in maps[1:]:
        own, strange = first.state.encoder, other.state.encoder
        if own["fingerprint"] != strange["fingerprint"]:
            raise BadMap(
                f"{first.called} was built with {own['id']} (fingerprint {own['fingerprint'][:12]}…), {other.called} "
                f"with {strange['id']} ({strange['fingerprint'][:12]}…); only maps of one encoder can be merged: build "
                "one of them again with the encoder and weights of the other",
                first.called,
                other.called,
            )
    lost = find_lost_photos(first, [record for one in maps for record in one.images])
    if lost:
        raise BadMap(
            f"{len(lost):,} photos are neither in the token cache nor on disk as they were; restore them, or take them "
            "out of their maps with tfa remove:",
            *lost,
            more=[f"  {path}" for path in lost],
        )
    return first


def _names(maps: Sequence[Map]) -> list[str]:
    """A name for each map that no other has: that of its folder, with a number where two have the same."""
    names: list[str] = []
    for number, one in enumerate(maps, 1):
        plain = f"map-{number}" if one.path is None else one.path.stem
        names.append(plain if plain not in names else f"{plain}-{number}")
    return names


def _records(maps: Sequence[Map], names: Sequence[str]) -> tuple[list[list[ImageRecord]], list[int]]:
    """The images that each map brings, with their new ids, and how many of each were there already.

    Of photos with the same content the first stays; where it has no position it gets that of the others.
    """
    kept: dict[str, ImageRecord] = {}
    numbers: list[list[str]] = []
    repeated = [0] * len(maps)
    for part, (one, name) in enumerate(zip(maps, names, strict=True)):
        numbers.append([])
        for record in one.images:
            known = kept.get(record.digest)
            if known is None:
                kept[record.digest] = replace(record, id=len(kept), fitted=True, session=record.session or name)
                numbers[part].append(record.digest)
                continue
            repeated[part] += 1
            kept[record.digest] = replace(known, position=known.position or record.position)
    return [[kept[digest] for digest in own] for own in numbers], repeated


def _shared(
    records: Sequence[ImageRecord], tokens: Tokens, before: Sequence[Map], progress: Progress
) -> list[SharedPlace]:
    """The photos of a map that one of the maps before it recognises for sure, with the best such answer."""
    found = []
    with progress.task("looking for places that both maps have", len(records), "photos") as task:
        for start in range(0, len(records), _PHOTOS_PER_QUERY):
            some, photos = (
                records[start : start + _PHOTOS_PER_QUERY],
                tokens.select(slice(start, start + _PHOTOS_PER_QUERY)),
            )
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
        notes.append(f"photos that several maps have, byte for byte, and that are kept once: {repeated:,}")
    for other, own in zip(maps, fresh, strict=True):
        if other is not first and other.state.map_spec != first.state.map_spec:
            notes.append(f"{other.called} was made with other settings; the merged map is made as {first.called} is")
        inside = [record for record in own if other.path is not None and Path(record.path).is_relative_to(other.path)]
        if inside:
            notes.append(f"{len(inside):,} photos lie in the folder of {other.called}; keep it beside the merged map")
    kinds = {record.position.is_global for own in fresh for record in own if record.position is not None}
    if len(kinds) > 1:
        notes.append("some positions are in degrees, others in metres: distances between them are not known")
    return notes


def keep_confirmed(maps: Sequence[Map], merged: Map) -> None:
    """Let the merged map, which is saved, know what the service has confirmed of the photos of the others."""
    known = [Confirmed.read(one.path) for one in maps if one.path is not None]
    if merged.path is None or not any(one.last for one in known):
        return
    kept = Confirmed().watched(merged.images, int(time.time()))
    for one in known:
        kept = kept.with_later(one)
    kept.write(merged.path)


def note_dropped_calibrations(maps: Sequence[Map], out: Path) -> list[str]:
    """Which calibrations the merged map at `out` does not have, and how to make them again."""
    return [note for one in maps for note in note_dropped(one.state, out)]
