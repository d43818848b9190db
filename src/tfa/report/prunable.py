"""Find images to prune (near duplicates, never confirmed images), and estimate the loss of recall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfa.core.progress import Progress, as_progress
from tfa.maps import PlaceMap
from tfa.maps.confidence import estimate_recall
from tfa.maps.storage import MemoryStorage
from tfa.maps.upkeep import Confirmed, find_lost_photos, load_tokens
from tfa.photos.images import PhotosLike
from tfa.report.collect import DAYS, find_aged
from tfa.report.neighbors import group_near_duplicates, measure_resemblance
from tfa.types import ExpectedRecall, ImageRecord

_AT_ONCE = 64  # photos asked at a time
DUPLICATE, UNCONFIRMED = "near duplicate", "never confirmed"


@dataclass(frozen=True)
class PruneCandidate:
    """An image that can go, and why; `keep_id` is the id of the one that a near duplicate leaves."""

    image: ImageRecord
    why: str
    keep_id: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.image.id, "path": self.image.path, "why": self.why, "stays": self.keep_id}


@dataclass(frozen=True)
class Loss:
    """Expected recall of photos before images go and after; before is None for those that go themselves."""

    photos_like: str
    before: ExpectedRecall | None
    after: ExpectedRecall

    def to_dict(self) -> dict[str, Any]:
        before = None if self.before is None else self.before.to_dict()
        return {"photos_like": self.photos_like, "before": before, "after": self.after.to_dict(),
                "in_words": self.in_words}  # fmt: skip

    @property
    def in_words(self) -> str:
        now = "" if self.before is None else f", before {self.before!s}"
        return f"like {self.photos_like}: {self.after!s}{now}"


def find_prunable(place_map: PlaceMap, days: float | None = DAYS, now: float | None = None) -> list[PruneCandidate]:
    """Find images that can be removed from a map.

    One image of each group of near duplicates stays: the one confirmed last, else the first. Other images can go if
    they were never confirmed for `days`; None keeps them, and so does a map without any confirmation.
    """
    images = place_map.images
    kept = Confirmed() if place_map.path is None else Confirmed.read(place_map.path)
    found = measure_resemblance(place_map.state.chosen().stored.scorer, place_map.rows, most=max(len(images), 1))
    candidates: list[PruneCandidate] = []
    settled: set[int] = set()
    for group in group_near_duplicates(found):
        stays = max(group, key=lambda column: (kept.last_of(images[column]) or -1, -column))
        candidates += [PruneCandidate(images[one], DUPLICATE, images[stays].id) for one in group if one != stays]
        settled |= {images[one].id for one in group}
    aged = None if days is None else find_aged(place_map, days, now)
    never = set() if aged is None else {one["id"] for one in aged["never"]} - settled
    candidates += [PruneCandidate(one, UNCONFIRMED) for one in images if one.id in never]
    return sorted(candidates, key=lambda one: one.image.id)


def estimate_losses(
    place_map: PlaceMap,
    candidates: Sequence[PruneCandidate],
    photos: PhotosLike | None,
    progress: bool | Progress | None = None,
) -> tuple[list[Loss], list[str]]:
    """Estimate the expected recall without these images; also return notes on what could not be measured.

    The removed photos are queries to the remaining map; so are `photos`, before and after.
    """
    progress, records = as_progress(progress), [one.image for one in candidates]
    if not candidates:
        return [], []
    without = _leave_out(place_map, records)
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
        losses.append(Loss(f"the {len(there):,} photos that go, asked of what stays", None, after))
    if photos is not None:
        both = [one.query_many(photos, k=1, progress=progress).expected_recall for one in (place_map, without)]
        if both[1] is not None:
            losses.append(Loss(f"the {both[1].photos:,} photos that were given", both[0], both[1]))
    return losses, notes


def _leave_out(place_map: PlaceMap, gone: Sequence[ImageRecord]) -> PlaceMap:
    """Return the map without these images; nothing is written."""
    removed = place_map.state.removed.union(record.id for record in gone)
    return place_map.with_storage(MemoryStorage(place_map.state.changed(removed=removed)))


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
