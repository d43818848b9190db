"""Storage of a map in a store: rank, read, edit, calibrate and roll back. No numeric code lives here.

Several processes may query and edit a map; each sees the edits of others within a second.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.errors import BadMap, BadSpec
from tfa.maps.answer import Ranking, answer_tokens, resolve_candidates
from tfa.maps.calibrate import calibrate_head
from tfa.maps.confidence import REACH, estimate_recall
from tfa.maps.describe import describe_map
from tfa.maps.state import DATABASE, MapState
from tfa.maps.storage import MemoryStorage, Snapshot, Storage
from tfa.maps.store.answers import ScoreCache, rank_in_store
from tfa.maps.store.edits import NewImages, add_images, remove_images
from tfa.maps.store.publish import WRITTEN_AT_ONCE, Publisher, publish_map
from tfa.maps.store.republish import (
    forget_head,
    publish_version,
    roll_back,
    switch_head,
    view_without_pending_edits,
    write_version,
)
from tfa.maps.store.rows import parse_record
from tfa.maps.store.versions import MapView, Version, Versions
from tfa.maps.upkeep import UPLOADS, find_image_records, read_map_photo
from tfa.photos.token_cache import EncodedImages
from tfa.search.store import Store, Where, hide_password, open_map_store
from tfa.types import CalibrationReport, ExpectedRecall, ImageRecord, MapInfo, QueryOptions
from tfa.verification.patches import SourcedTokens

if TYPE_CHECKING:
    from tfa.maps.map import Map


class StoreSnapshot(Snapshot):
    """A map in a store at one header; `caches` hold scores by collection and edit."""

    def __init__(self, view: MapView, caches: dict[tuple[str, int], ScoreCache]) -> None:
        self.view, self.state, self._caches = view, view.state, caches

    @property
    def patches(self) -> SourcedTokens | None:
        return self.view.patches

    @property
    def reach(self) -> float:
        return REACH if self.view.header.reach is None else self.view.header.reach

    def __len__(self) -> int:
        return self.view.header.count

    def check_head(self, calibration: str | None) -> None:
        self.view.chosen(calibration)

    def rank(self, calibration: str | None, tokens: Tokens, width: int, where: Where | None) -> Iterator[Ranking]:
        version = self.view.chosen(calibration)
        cache = self._caches.setdefault((version.collection.name, self.view.header.edits), ScoreCache())
        return rank_in_store(self.view, version, tokens, width, where, cache)


class StoreStorage(Storage):
    """Storage in a store, opened by a URL such as postgres://HOST/DATABASE/NAME."""

    has_all_rows = False
    removal_note = "removed photos no longer answer; the fitted head still depends on them until tfa build"
    refit_advice = "rebuild the map"

    def __init__(self, store: Store, name: str, url: str, patch_cache: int | None = None) -> None:
        """Open a map. `patch_cache` is the size of the patch cache in bytes. [default: 256 MB]"""
        if patch_cache is not None and patch_cache < 0:
            raise BadSpec(f"patch_cache={patch_cache} is out of range: must be at least 0 bytes")
        self.store, self._name, self.url, self.patch_cache = store, name, url, patch_cache
        self.versions = Versions(store, name, hide_password(url), patch_cache)
        self._caches: dict[tuple[str, int], ScoreCache] = {}

    @classmethod
    def open(cls, url: str, patch_cache: int | None = None) -> Self:
        """Open the map of a URL. Raises BadMap with a list of existing maps if there is none."""
        store, name = open_map_store(url)
        opened = cls(store, name, url, patch_cache)
        opened.versions.now()  # raises now rather than at the first query
        return opened

    @classmethod
    def publish(cls, place_map: Map, url: str, *, progress: bool | Progress | None = None, **how: Any) -> Self:
        """Write a map in memory to a store, replacing a map of that URL."""
        store, name = open_map_store(url)
        header = publish_map(place_map, Publisher(store, name, hide_password(url)), progress=progress, **how)
        published = cls(store, name, url)
        published.versions.keep_skeleton(header, place_map.state)
        return published

    @property
    def view(self) -> MapView:
        """The current map, at most half a second old."""
        return self.versions.now()

    @property
    def name(self) -> str:
        return self._name

    @property
    def location(self) -> str:
        return hide_password(self.url)

    def snapshot(self, *, fresh: bool = False) -> StoreSnapshot:
        view = self.versions.now(fresh=fresh)
        self._caches = {key: kept for key, kept in self._caches.items() if key[1] == view.header.edits}
        return StoreSnapshot(view, self._caches)

    @property
    def last_seen(self) -> tuple[int, MapState]:
        last = self.versions.last
        return last.header.count, last.state

    @property
    def version(self) -> str:
        return self.versions.last.content.hex()

    def prepare(self) -> None:
        self.versions.now(fresh=True)

    # --- images --------------------------------------------------------------------------------------------------

    def records(self) -> Iterator[ImageRecord]:
        view = self.versions.now(fresh=True)
        uncounted = view.header.uncounted
        for page in view.active.collection.pages(WRITTEN_AT_ONCE):
            for image_id, payload in zip(page.ids.tolist(), page.payload, strict=True):
                if image_id not in uncounted:
                    yield parse_record(image_id, payload)

    def record(self, image_id: int) -> ImageRecord | None:
        view = self.view
        entries = view.active.collection.fetch([image_id])
        if not len(entries) or image_id in view.header.uncounted:
            return None
        return parse_record(image_id, entries.payload[0])

    def find_digests(self, digests: Sequence[str]) -> dict[str, int]:
        view = self.versions.now(fresh=True)
        ids, removing = view.active.collection.find(list(digests)), view.header.removing
        return {digest: image_id for digest, image_id in ids.items() if image_id not in removing}

    def find_records(self, photos: Sequence[str | Path | int]) -> list[ImageRecord]:
        """Find images by id in one read, or by path in a scan of all images."""
        ids = [int(one) for one in photos if isinstance(one, int | np.integer)]
        view = self.versions.now(fresh=True)
        entries, uncounted = view.active.collection.fetch(ids), view.header.uncounted
        by_id = {int(i): parse_record(int(i), payload) for i, payload in zip(entries.ids, entries.payload, strict=True)}
        there = {image_id: record for image_id, record in by_id.items() if image_id not in uncounted}
        if names := {Path(one).name for one in photos if isinstance(one, str | os.PathLike)}:
            there |= {one.id: one for one in self.records() if os.path.basename(one.path) in names}
        return find_image_records(list(there.values()), photos)

    def compute_unseen_share(self) -> float:
        header = self.view.header
        return 1 - header.fitted / max(header.count, 1)

    # --- photos --------------------------------------------------------------------------------------------------

    def put_photo(self, name: str, digest: str, content: bytes) -> str:
        self.store.put(f"{self.name}/{UPLOADS}/{digest}", content)
        return f"{UPLOADS}/{digest[:16]}/{name}"

    def read_photo(self, record: ImageRecord) -> bytes | None:
        content = self.store.read(f"{self.name}/{UPLOADS}/{record.digest}")
        return content if content is not None else read_map_photo(record, None)

    # --- edits ---------------------------------------------------------------------------------------------------

    def select_new_photos(self, encoded: EncodedImages) -> EncodedImages:
        there = self.find_digests(encoded.digests)
        new = [i for i, digest in enumerate(encoded.digests) if digest not in there]
        return EncodedImages(
            [encoded.paths[i] for i in new], [encoded.digests[i] for i in new], encoded.tokens.select(new),
            encoded.skipped,
        )  # fmt: skip

    def add(self, tokens: Tokens, records: Sequence[ImageRecord]) -> list[int]:
        added: list[int] = []
        for start in range(0, len(records), WRITTEN_AT_ONCE):
            part = slice(start, min(start + WRITTEN_AT_ONCE, len(records)))
            added += add_images(self.versions, NewImages(tokens.select(part), records[part]))
        return added

    def remove(self, records: Sequence[ImageRecord]) -> list[int]:
        return remove_images(self.versions, records)

    def relocate(self, move: Callable[[str], str], progress: Progress) -> None:
        publisher = self._publisher()
        with publisher.claim("relocated"):
            view = view_without_pending_edits(self.versions, publisher)
            state = view.state.changed(images=[replace(one, path=move(one.path)) for one in view.state.images])
            publish_version(publisher, view, state, *write_version(publisher, view, state, progress, move))
        self.versions.now(fresh=True)

    def calibrate(
        self, place_map: Map, photos: Any, options: Mapping[str, Any], skip_bad: bool | None, progress: Progress
    ) -> CalibrationReport:
        """Calibrate on the map's sample, and publish the calibration atomically as a new collection."""
        publisher = self._publisher()
        place_map.encoder  # noqa: B018  # raises before the map is claimed
        with publisher.claim("calibrated"):
            view = view_without_pending_edits(self.versions, publisher)
            sample = place_map.with_storage(self._make_sample(view, None))
            made = calibrate_head(sample, photos, options, skip_bad, progress, self.find_digests)
            state = replace(view.state, revision=publisher.next_version() - 1).with_calibration(made.head)
            version, placed = write_version(publisher, view, state, progress)
            made = made.add_expected_recall(_estimate_recall(view, state, version, made.photos))
            state = replace(view.state, revision=publisher.version - 1).with_calibration(made.head)
            publish_version(publisher, view, state, version, placed)
        self.versions.now(fresh=True)
        return made.report

    def adopt_calibration(self, place_map: Map, other: MapState, name: str) -> None:
        self.versions.now(fresh=True).state.chosen(name)  # `calibrate` has written it

    def activate(self, name: str, progress: Progress) -> str:
        chosen = self.versions.now(fresh=True).state.chosen(name).name
        switch_head(self._publisher(), self.versions, chosen, progress)
        return self.versions.now(fresh=True).header.active

    def drop_calibration(self, name: str) -> None:
        view = self.versions.now(fresh=True)
        view.state.without_calibration(name)  # raises if there is none
        if view.header.active == name:
            self.activate(DATABASE, as_progress(None))
        forget_head(self._publisher(), self.versions, name)
        self.versions.now(fresh=True)

    def rollback(self) -> list[str]:
        """Undo the last build, calibration or activation, and return notes. A second rollback redoes it."""
        header = self.versions.now(fresh=True).header
        if header.previous is None:
            raise BadMap(f"{self.location} has no previous version to roll back to")
        was, now = roll_back(self._publisher(), self.versions)
        self.versions.now(fresh=True)
        notes = [f"rolled back to version {now.version} of {now.created} ({now.active!r}); {was.version} is kept"]
        if was.edits != now.edits:
            notes.append(
                f"it has {now.count:,} images instead of {was.count:,}: later additions and removals are undone"
            )
        return notes

    def _publisher(self) -> Publisher:
        return Publisher(self.store, self.name, self.location)

    # --- describe ------------------------------------------------------------------------------------------------

    def describe(self, notes: Sequence[str]) -> MapInfo:
        """Describe the map and its store, without the list of photos."""
        view = self.versions.now(fresh=True)
        header, patches = view.header, view.patches
        verification = None
        if patches is not None:
            verification = {
                "spec": patches.spec.to_dict(), "grid": list(patches.grid),
                "bytes_per_image": patches.bytes_per_image, "at": (header.patches or {}).get("at"),
                "cache": patches.source.facts(), **(view.state.database.verification or {}),
            }  # fmt: skip
        before, previous = header.before, None
        if before is not None:
            previous = {"version": before.version, "created": before.created, "active": before.active}
            previous["images"] = before.count
        return describe_map(
            view.state, [], None, name=self.name, path=self.location, revision=header.revision, images=header.count,
            fitted_images=header.fitted, removed_images=header.removed,
            unseen_share=1 - header.fitted / max(header.count, 1), positions=header.placed, verification=verification,
            sample=len(view.state.images), dims=header.dims, version=header.version, created=header.created,
            store=view.active.collection.describe(), previous=previous, notes=[*header.notes, *notes],
            published=None,  # a store searches reduced vectors
        )  # fmt: skip

    def make_sample(self) -> MemoryStorage:
        return self._make_sample(self.versions.now(fresh=True), self.describe([]))

    def _make_sample(self, view: MapView, facts: MapInfo | None) -> MemoryStorage:
        """Return the searchable images of the sample, with their patches."""
        there = set(view.active.collection.fetch(view.sample_ids).ids.tolist()) - view.header.removing
        gone = frozenset(view.sample_ids) - there
        compact = None if view.patches is None else view.patches.of(view.sample_ids)
        return MemoryStorage(replace(view.state, compact=compact, removed=gone), facts=facts)

    def close(self) -> None:
        self.store.close()


def _estimate_recall(view: MapView, state: MapState, version: Version, photos: Tokens) -> ExpectedRecall | None:
    """Estimate recall on similar photos from the calibrated map's answers to these."""
    snapshot = StoreSnapshot(replace(view, state=state, versions={version.head.name: version}), {})
    options = QueryOptions(k=1)
    answers = [answer for answer in answer_tokens(snapshot, photos, options) if answer]
    reranked = bool(resolve_candidates(options, state, photos, view.patches))
    return estimate_recall([one.confidence for one in answers], [one.sure for one in answers], verified=reranked)
