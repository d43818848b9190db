"""Find images to prune (near duplicates, never confirmed images), and estimate the loss of recall."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tfa.core.progress import Progress, as_progress
from tfa.maps import PlaceMap
from tfa.maps.confidence import estimate_recall
from tfa.maps.storage import MemoryStorage
from tfa.maps.upkeep import Confirmed, find_lost_photos, load_tokens
from tfa.report.collect import DAYS, find_aged
from tfa.report.neighbors import group_near_duplicates, measure_resemblance
from tfa.types import ExpectedRecall, ImageRecord, PrunedImage, RecallLoss

_AT_ONCE = 64  # photos per batch
DUPLICATE: Literal["near duplicate"] = "near duplicate"
UNCONFIRMED: Literal["never confirmed"] = "never confirmed"


def find_prunable(place_map: PlaceMap, days: float | None = DAYS) -> list[PrunedImage]:
    """Find images that can be removed from a map.

    One image of each group of near duplicates stays: the one confirmed last, else the first. Other images can go if
    they were never confirmed for `days`; None keeps them, and so does a map without any confirmation.
    """
    images = place_map.images
    kept = Confirmed() if place_map.path is None else Confirmed.read(place_map.path)
    found = measure_resemblance(place_map.state.checked().stored.scorer, place_map.rows, most=max(len(images), 1))
    candidates: dict[int, PrunedImage] = {}
    settled: set[int] = set()
    for group in group_near_duplicates(found):
        stays = max(group, key=lambda column: (kept.last_of(images[column]) or -1, -column))
        for one in (images[column] for column in group if column != stays):
            candidates[one.id] = PrunedImage(id=one.id, path=one.path, why=DUPLICATE, duplicate_of=images[stays].id)
        settled |= {images[column].id for column in group}
    aged = None if days is None else find_aged(place_map, days)
    never = set() if aged is None else {one["id"] for one in aged["never"]} - settled
    for one in images:
        if one.id in never:
            candidates[one.id] = PrunedImage(id=one.id, path=one.path, why=UNCONFIRMED, duplicate_of=None)
    return [candidates[number] for number in sorted(candidates)]


def estimate_losses(
    place_map: PlaceMap,
    candidates: Sequence[PrunedImage],
    photos: Sequence[Path] | None,
    progress: bool | Progress | None = None,
) -> tuple[list[RecallLoss], list[str]]:
    """Estimate the expected recall without these images; also return notes on what could not be measured.

    The removed photos are queries to the remaining map; so are `photos`, before and after.
    """
    ids = {one.id for one in candidates}
    progress, records = as_progress(progress), [image for image in place_map.images if image.id in ids]
    if not candidates:
        return [], []
    without = place_map.with_storage(MemoryStorage(place_map.state.changed(removed=place_map.state.removed | ids)))
    lost = set(find_lost_photos(place_map, records))
    there = [record for record in records if record.path not in lost]
    losses, notes = [], []
    if lost:
        notes.append(
            f"{len(lost):,} of the images to remove are neither in the token cache nor on disk, so the remaining map "
            "was not queried with them"
        )
    after = _estimate_recall(without, there, progress)
    if after is not None:
        losses.append(_lose(f"the {len(there):,} removed photos, as queries to the remaining map", None, after))
    if photos is not None:
        encoded = place_map.encode_photos(photos, True, progress).as_photos(photos)
        both = [one.query_many(encoded, k=1, progress=progress).expected_recall for one in (place_map, without)]
        if both[1] is not None:
            losses.append(_lose(f"the {both[1].photos:,} photos of --photos", both[0], both[1]))
    return losses, notes


def _lose(photos_like: str, before: ExpectedRecall | None, after: ExpectedRecall) -> RecallLoss:
    text = f"like {photos_like}: {after!s}{'' if before is None else f', before {before!s}'}"
    return RecallLoss(photos_like=photos_like, before=before, after=after, text=text)


def _estimate_recall(place_map: PlaceMap, records: Sequence[ImageRecord], progress: Progress) -> ExpectedRecall | None:
    confidence, sure = [], []
    with progress.task("querying the remaining map", len(records), "photos") as task:
        for start in range(0, len(records), _AT_ONCE):
            some = records[start : start + _AT_ONCE]
            for hits in place_map.query_tokens(load_tokens(place_map, some), 1):
                confidence.append(hits[0].confidence if hits else 0.0)
                sure.append(bool(hits) and hits[0].sure)
            task.advance(len(some))
    return estimate_recall(confidence, sure, verified=place_map.state.chosen().verifies)
