"""What aged in a map: photos that no sure answer of the service has confirmed, or none for long."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tfa.maps import ImageRecord, PlaceMap
from tfa.maps.confirmed import Confirmed, format_time
from tfa.maps.store import SampleMap

DAYS = 90  # without a confirmation after which a photo counts as aged
SECONDS = 86_400


def find_aged(place_map: PlaceMap | SampleMap, days: float = DAYS, now: float | None = None) -> dict[str, Any] | None:
    """In JSON; None where the service has confirmed no photo of the map.

    A photo that was never confirmed is `never` only if it could have been for so many days; else it is too `new`.
    """
    path = getattr(place_map, "path", None)
    kept = Confirmed() if path is None else Confirmed.read(path)
    latest = [kept.last_of(record) for record in place_map.images]
    if all(one is None for one in latest):
        return None
    now = time.time() if now is None else now
    limit, never, old, new = now - days * SECONDS, [], [], 0
    for record, last in zip(place_map.images, latest, strict=True):
        since = kept.since_of(record)
        if last is not None:
            old += [_aged(record, since, last)] if last < limit else []
        elif since is not None and since <= limit:
            never.append(_aged(record, since, None))
        else:
            new += 1
    confirmed = sum(one is not None for one in latest)
    return {
        "days": days,
        "since": format_time(min(kept.since.values())),
        "confirmed": confirmed,
        "never": never,
        "old": old,
        "new": new,
        "in_words": f"{confirmed:,} of {len(latest):,} photos were confirmed by sure answers; in {days:g} days "
        f"{len(never):,} never were, {len(old):,} not any more; {new:,} are too new to tell",
    }


def _aged(record: ImageRecord, since: int | None, last: int | None) -> dict[str, Any]:
    named = {"id": record.id, "image": Path(record.path).name, "path": record.path}
    return {**named, "since": format_time(since), "last_confirmed": format_time(last)}
