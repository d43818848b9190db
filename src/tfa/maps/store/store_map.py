"""The map in a store: queried, edited and calibrated as a map in a folder is. It holds no arithmetic of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Self

from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.encoders import Encoder
from tfa.errors import BadMap, BadSpec, StoreConflict
from tfa.maps.answer import make_where, resolve_candidates
from tfa.maps.base_map import BaseMap
from tfa.maps.calibrate import calibrate_head
from tfa.maps.expected_recall import estimate_recall
from tfa.maps.lookup import drop_repeated_files, find_image_records
from tfa.maps.query import ReadOnlyMap
from tfa.maps.shift import DomainShiftMonitor
from tfa.maps.state import DATABASE, MapState
from tfa.maps.state_changes import make_records
from tfa.maps.store.answers import ScoreCache, answer_from_store
from tfa.maps.store.edits import NewImages, add_images, remove_images
from tfa.maps.store.header import StoreHeader
from tfa.maps.store.publish import STORE_DIMS, WRITTEN_AT_ONCE, Publisher, publish_map
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
from tfa.maps.summary import describe_map, summarize_map
from tfa.photos.find_positions import PositionsLike, find_positions
from tfa.photos.images import PhotosLike, find_images, split_nameable
from tfa.photos.token_cache import EncodedImages
from tfa.search.store import Store, hide_password, open_map_store
from tfa.types import (
    Answer,
    CalibrateOptions,
    CalibrationReport,
    EditReport,
    ExpectedRecall,
    ImageRecord,
    MapInfo,
    Position,
    QueryOptions,
)


def _describe(view: MapView, name: str, url: str, notes: list[str]) -> MapInfo:
    """As `PlaceMap.info()`, of all images; without the list of photos, and with what the store says of itself."""
    header, patches = view.header, view.patches
    verification = None
    if patches is not None:
        size = {"spec": patches.spec.to_dict(), "grid": list(patches.grid), "bytes_per_image": patches.bytes_per_image}
        kept = {"at": (header.patches or {}).get("at"), "cache": patches.source.facts()}
        verification = {**size, **kept, **(view.state.database.verification or {})}
    before = header.before
    previous = None
    if before is not None:
        previous = {"version": before.version, "created": before.created, "active": before.active}
        previous["images"] = before.count
    return describe_map(
        view.state,
        [],
        None,
        name=name,
        path=url,
        revision=header.revision,
        images=header.count,
        fitted_images=header.fitted,
        removed_images=header.removed,
        unseen_share=1 - header.fitted / max(header.count, 1),
        positions=header.placed,
        verification=verification,
        sample=len(view.state.images),
        dims=header.dims,
        version=header.version,
        created=header.created,
        store=view.active.collection.describe(),
        previous=previous,
        notes=notes,
    )


class SampleMap(ReadOnlyMap):
    """The sampled images that still answer, with their patches; what is said of the map is said of all images."""

    def __init__(self, view: MapView, facts: MapInfo | None = None, encoder: Encoder | None = None) -> None:
        there = set(view.active.collection.fetch(view.sample_ids).ids.tolist()) - view.header.removing
        gone = frozenset(view.sample_ids) - there
        compact = None if view.patches is None else view.patches.of(view.sample_ids)
        super().__init__(replace(view.state, compact=compact, removed=gone), encoder=encoder)
        self._facts = facts

    def info(self) -> MapInfo:
        """That of the whole map."""
        facts, count = self._facts, len(self)
        assert facts is not None, "a sample that is described is made with facts"
        if count >= facts.images:
            return facts
        note = f"near duplicates, hubs and lonely images are those of a sample of {count:,}"
        return replace(facts, notes=[*facts.notes, note])


_UNSEEN_LIMIT = 0.2  # share of images not seen at fitting from which building again is advised


class StoreMap(BaseMap):
    """A map whose images live in a store; open it by its URL, such as postgres://HOST/DATABASE/NAME.

    Several processes may query and edit it: what one edited the others see within a second. The header is read at most
    every 0.5 s.
    """

    def __init__(
        self, store: Store, name: str, url: str, encoder: Encoder | None = None, patch_cache: int | None = None
    ) -> None:
        """`patch_cache` is how many bytes of patches are kept in memory, those used last; None: 256 MB."""
        super().__init__(encoder)
        if patch_cache is not None and patch_cache < 0:
            raise BadSpec(f"patch_cache={patch_cache} is out of range: bytes of memory, 0 keeps nothing")
        self.store, self.name, self.url, self.patch_cache = store, name, url, patch_cache
        self._versions = Versions(store, name, hide_password(url), patch_cache)
        self._caches: dict[tuple[str, int], ScoreCache] = {}

    # --- open ----------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, url: str, encoder: Encoder | None = None, patch_cache: int | None = None) -> Self:
        """The map of a URL; an error says which maps are there if it is not."""
        store, name = open_map_store(url)
        opened = cls(store, name, url, encoder, patch_cache)
        opened.view  # noqa: B018  # what is wrong with it is said now
        return opened

    @property
    def view(self) -> MapView:
        """The map as it is now, or was half a second ago."""
        return self._versions.now()

    @property
    def last_seen(self) -> StoreHeader:
        """The header as it was last looked at, without asking the store."""
        return self._versions.last.header

    @property
    def state(self) -> MapState:  # type: ignore[override]
        """Heads and encoder, with a sample of the images."""
        return self.view.state

    @property
    def path(self) -> Path:
        """Its name, where a map's folder would stand."""
        return Path(self.name)

    @property
    def called(self) -> str:
        return hide_password(self.url)

    def __len__(self) -> int:
        return self.view.header.count

    def __repr__(self) -> str:
        """As it was last looked at: a debugger that shows it does not ask the store."""
        last = self._versions.last
        return summarize_map(type(self).__name__, self.called, last.header.count, last.state)

    def prepare(self) -> None:
        """There is nothing to pack: reads what is needed to answer."""
        self._versions.now(fresh=True)

    # --- ask -----------------------------------------------------------------------------------------------------

    def check(self, options: QueryOptions) -> None:
        view = self.view
        make_where(options)
        view.chosen(options.calibration)
        resolve_candidates(options, view.state, compact=view.patches)

    def answer_tokens(
        self, tokens: Tokens, options: QueryOptions, shift: DomainShiftMonitor | None = None
    ) -> list[Answer]:
        try:
            return self._answer_tokens(self.view, tokens, options, shift)
        except StoreConflict:  # the version was dropped while it was searched: replaced twice within half a second
            return self._answer_tokens(self._versions.now(fresh=True), tokens, options, shift)

    def _answer_tokens(
        self, view: MapView, tokens: Tokens, options: QueryOptions, shift: DomainShiftMonitor | None
    ) -> list[Answer]:
        version = view.chosen(options.calibration)
        candidates = resolve_candidates(options, view.state, tokens, view.patches)
        return answer_from_store(view, version, tokens, options, candidates, self._scores_of(view, version), shift)

    def _scores_of(self, view: MapView, version: Version) -> ScoreCache:
        """What is remembered of a collection as it is."""
        key = (version.collection.name, view.header.edits)
        self._caches = {one: kept for one, kept in self._caches.items() if one[1] == view.header.edits}
        return self._caches.setdefault(key, ScoreCache())

    # --- images --------------------------------------------------------------------------------------------------

    def records(self) -> Iterator[ImageRecord]:
        """All images that answer, in the order they came in, read page by page."""
        view = self._versions.now(fresh=True)
        for page in view.active.collection.pages(WRITTEN_AT_ONCE):
            for own, payload in zip(page.ids.tolist(), page.payload, strict=True):
                if own not in view.header.removing:
                    yield parse_record(own, payload)

    @property
    def images(self) -> list[ImageRecord]:
        """All of them at once: for maps that are not large."""
        return list(self.records())

    def record(self, image_id: int) -> ImageRecord | None:
        """An image that answers, by its id."""
        view = self.view
        found = view.active.collection.fetch([image_id])
        if not len(found) or image_id in view.header.removing:
            return None
        return parse_record(image_id, found.payload[0])

    def held(self, digests: Sequence[str]) -> dict[str, int]:
        """The images of these contents, by digest."""
        view = self._versions.now(fresh=True)
        known = view.active.collection.find(list(digests))
        return {digest: own for digest, own in known.items() if own not in view.header.removing}

    # --- what needs every row ------------------------------------------------------------------------------------

    def follow(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: a filter and self-calibration need the scores of all images."""
        raise BadSpec(
            "photos in a row are not followed in a store: that needs the scores of all images, and a store gives "
            "the best; ask each photo by itself (--no-online), or use a map in a folder"
        )

    def refit(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: the photos are not here."""
        raise BadSpec("a map in a store is not fitted again in place; build it again with: tfa build PHOTOS --out URL")

    # --- publish -------------------------------------------------------------------------------------------------

    @classmethod
    def build_from(
        cls,
        place_map: ReadOnlyMap,
        url: str,
        *,
        dims: int = STORE_DIMS,
        dtype: str = "float32",
        index: str | None = None,
        progress: bool | Progress | None = None,
    ) -> StoreMap:
        """Publish a map that was built in this process, in place of an older one of that URL if there is one."""
        store, name = open_map_store(url)
        publish_map(
            place_map,
            Publisher(store, name, hide_password(url)),
            dims=dims,
            dtype=dtype,
            index=index,
            progress=progress,
        )
        built = cls(store, name, url)
        built._encoder, built.cache, built.options = place_map._encoder, place_map.cache, place_map.options
        built.skipped = list(place_map.skipped)
        return built

    # --- edit ----------------------------------------------------------------------------------------------------

    def add(
        self,
        photos: Any,
        *,
        positions: PositionsLike = None,
        session: str | None = None,
        skip_bad: bool | None = None,
        progress: bool | Progress | None = None,
    ) -> EditReport:
        """Add photos without fitting again; a photo whose content the map holds is left as it is.

        `session` names what they belong to, to filter by. If it is interrupted, some of the photos may have been
        added: doing it again adds the others.
        """
        skip_bad = self.options.skip_bad if skip_bad is None else skip_bad
        paths = drop_repeated_files(find_images(photos))
        fresh, unnamed = split_nameable(paths, skip_bad=skip_bad)
        places, more = find_positions(fresh, None, positions)
        encoded = self.encode_photos(fresh, skip_bad, progress)
        encoded = replace(encoded, skipped=[*unnamed, *encoded.skipped])
        where = dict(zip(fresh, places, strict=True))
        known = self.held(encoded.digests)
        kept = [i for i, digest in enumerate(encoded.digests) if digest not in known]
        notes = [f"already in the map and left as they are: {len(encoded.paths) - len(kept)}"]
        notes = notes if len(kept) < len(encoded.paths) else []
        chosen = EncodedImages(
            [encoded.paths[i] for i in kept], [encoded.digests[i] for i in kept], encoded.tokens.select(kept),
            encoded.skipped,
        )  # fmt: skip
        report = self.add_encoded(chosen, where, session)
        return replace(report, notes=[*notes, *more, *report.notes])

    def add_encoded(
        self, encoded: EncodedImages, places: Mapping[Path, Position | None], session: str | None = None
    ) -> EditReport:
        """Add photos that were encoded elsewhere, by the map's encoder, and that the map does not hold."""
        records = make_records(encoded, places, first_id=0, fitted=False)
        return self.add_records(encoded.tokens, records, session, encoded.skipped)

    def add_records(
        self,
        tokens: Tokens,
        records: Sequence[ImageRecord],
        session: str | None = None,
        skipped: Sequence[tuple[Path, str]] = (),
    ) -> EditReport:
        """The same by records, whose ids do not count: they get new ones."""
        added: list[int] = []
        for start in range(0, len(records), WRITTEN_AT_ONCE):
            part = slice(start, min(start + WRITTEN_AT_ONCE, len(records)))
            added += add_images(self._versions, NewImages(tokens.select(part), records[part], session))
        return EditReport(
            added=added, removed=[], skipped=[(str(path), reason) for path, reason in skipped], notes=self._advice()
        )

    def remove(self, photos: Sequence[str | Path | int]) -> EditReport:
        """Take photos (paths or ids) out of the answers. What the sample taught stays until the map is built again."""
        gone = remove_images(self._versions, sorted({record.id for record in self._find_records(photos)}))
        notes = ["removed photos no longer answer; what was learnt from them stays until tfa build"] if gone else []
        return EditReport(added=[], removed=gone, skipped=[], notes=[*notes, *self._advice()])

    def _find_records(self, photos: Sequence[str | Path | int]) -> list[ImageRecord]:
        """By id in one read; by path all images are read, a page at a time."""
        ids = [one for one in photos if isinstance(one, int)]
        view = self._versions.now(fresh=True)
        entries = view.active.collection.fetch(ids)
        by_id = {int(i): parse_record(int(i), payload) for i, payload in zip(entries.ids, entries.payload, strict=True)}
        known = {own: record for own, record in by_id.items() if own not in view.header.removing}
        names = {Path(one).name for one in photos if not isinstance(one, int)}
        if names:
            known |= {one.id: one for one in self.records() if os.path.basename(one.path) in names}
        return find_image_records(list(known.values()), photos)

    # --- calibrate -----------------------------------------------------------------------------------------------

    def calibrate(
        self,
        photos: PhotosLike,
        name: str = "target",
        *,
        budget: int = CalibrateOptions.budget,
        score: bool | None = None,
        skip_bad: bool | None = None,
        progress: bool | Progress | None = None,
    ) -> CalibrationReport:
        """As `PlaceMap.calibrate`; judged on the map's sample. It appears all at once, in a collection of its own."""
        progress, publisher = as_progress(progress), self._publisher()
        with publisher.claim("calibrated"):
            view = view_without_pending_edits(self._versions, publisher)
            apart = SampleMap(view, encoder=self.encoder)
            apart.options, apart.cache = self.options, self.cache
            made = calibrate_head(apart, photos, name, budget, score, skip_bad, progress, self.held)
            state = replace(view.state, revision=publisher.next_version() - 1).with_calibration(made.head)
            version, _ = write_version(publisher, view, state, progress)
            made = made.add_expected_recall(self._recall(replace(view, state=state), version, made.photos))
            state = replace(view.state, revision=publisher.version - 1).with_calibration(made.head)
            publish_version(publisher, view, state, version)
        self._versions.now(fresh=True)
        return made.report

    def _recall(self, view: MapView, version: Version, photos: Tokens) -> ExpectedRecall | None:
        """What the calibrated map expects of photos like these, from its answers to them."""
        options = QueryOptions(k=1)
        candidates = resolve_candidates(options, view.state, photos, view.patches)
        answers = [
            answer for answer in answer_from_store(view, version, photos, options, candidates, ScoreCache()) if answer
        ]
        confidence, sure = [answer.confidence for answer in answers], [answer.sure for answer in answers]
        return estimate_recall(confidence, sure, verified=bool(candidates))

    def activate(self, name: str | None, progress: bool | Progress | None = None) -> str | None:
        """Let the calibration of that name answer; None lets the database-only head answer.

        Its vectors are written unless the version before holds them; until then the other head answers.
        """
        wanted = self._versions.now(fresh=True).state.chosen(DATABASE if name is None else name).name
        switch_head(self._publisher(), self._versions, wanted, as_progress(progress))
        return None if self._versions.now(fresh=True).header.active == DATABASE else wanted

    def drop_calibration(self, name: str) -> None:
        """Take a calibration out of the map for good; if it was the active one, the database-only head answers."""
        view = self._versions.now(fresh=True)
        view.state.without_calibration(name)  # refuses what is not there
        if view.header.active == name:
            self.activate(None)
        forget_head(self._publisher(), self._versions, name)
        self._versions.now(fresh=True)

    def rollback(self) -> list[str]:
        """Take back the last build, calibration or change of the head that answers; again brings it back.

        Returns what that means, in sentences.
        """
        header = self._versions.now(fresh=True).header
        if header.previous is None:
            raise BadMap(f"{self.called} has no version before this one: nothing was built or calibrated over it")
        was, now = roll_back(self._publisher(), self._versions)
        self._versions.now(fresh=True)
        notes = [f"version {now.version} of {now.created} answers again, with {now.active!r}; {was.version} is kept"]
        if was.edits != now.edits:
            notes.append(
                f"it holds {now.count:,} images, the other {was.count:,}: what was added or removed since is not in it"
            )
        return notes

    def _publisher(self) -> Publisher:
        return Publisher(self.store, self.name, self.called)

    # --- describe ------------------------------------------------------------------------------------------------

    @property
    def unseen_share(self) -> float:
        """Share of the photos in the map that the head was not fitted on."""
        header = self.view.header
        return 1 - header.fitted / max(header.count, 1)

    def _advice(self) -> list[str]:
        if self.unseen_share <= _UNSEEN_LIMIT:
            return []
        return [f"{self.unseen_share:.0%} of the photos were not seen when the head was fitted; build the map again"]

    def sample(self) -> SampleMap:
        """The sample of the images that decisions were judged on, as a map of its own."""
        apart = SampleMap(self._versions.now(fresh=True), self.info(), self._encoder)
        apart.options, apart.cache = self.options, self.cache
        return apart

    def info(self) -> MapInfo:
        """Describe the map: what it holds, what was decided and why. Its photos are not listed: see `records`."""
        view = self._versions.now(fresh=True)
        return _describe(view, self.name, self.called, [*view.header.notes, *self._advice()])

    def close(self) -> None:
        """Let go of connections."""
        self.store.close()
