"""The map in a store: asked, edited and calibrated as a map in a folder is. It holds no arithmetic of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfa.base.config import CalibrationSpec
from tfa.base.progress import Progress, as_progress
from tfa.base.tokens import Tokens
from tfa.errors import BadMap
from tfa.maps.calibrate import calibrated_head
from tfa.maps.expected_recall import expected_recall
from tfa.maps.lookup import find_records, unique_files
from tfa.maps.query import AskableMap
from tfa.maps.records import CalibrationReport, EditReport, ImageRecord
from tfa.maps.state import DATABASE
from tfa.maps.state_changes import records_of
from tfa.maps.store.answers import Asked, hits_of
from tfa.maps.store.askable import AskableStoreMap
from tfa.maps.store.calibrate import (
    forget,
    publish_version,
    quiet_view,
    switch,
    take_back,
    write_version,
)
from tfa.maps.store.candidates import KnownScores, record_of
from tfa.maps.store.edits import NewImages, add_images, remove_images
from tfa.maps.store.from_place_map import DIMS, publish
from tfa.maps.store.publish import AT_ONCE, Publisher
from tfa.maps.store.sample_map import SampleMap
from tfa.maps.store.versions import Version, View
from tfa.maps.verification import Question, candidates_wanted
from tfa.photos.as_files import Photos
from tfa.photos.find_positions import Positions, find_positions
from tfa.photos.images import find_images, nameable
from tfa.photos.positions import Position
from tfa.photos.token_cache import EncodedImages
from tfa.search.store import hide_password, open_map_store


class StoreMap(AskableStoreMap):
    """A map whose images live in a store; open it by its URL, such as postgres://HOST/DATABASE/NAME.

    Several processes may ask and edit it: what one edited the others see within a second.
    """

    # --- publish -------------------------------------------------------------------------------------------------

    @classmethod
    def build_from(
        cls,
        place_map: AskableMap,
        url: str,
        *,
        dims: int = DIMS,
        dtype: str = "float32",
        index: str | None = None,
        progress: bool | Progress | None = None,
    ) -> StoreMap:
        """Publish a map that was built in this process, in place of an older one of that URL if there is one."""
        store, name = open_map_store(url)
        publish(
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
        positions: Positions = None,
        session: str | None = None,
        skip_bad: bool | None = None,
        progress: bool | Progress | None = None,
    ) -> EditReport:
        """Add photos without fitting again; a photo whose content the map holds is left as it is.

        `session` names what they belong to, to filter by. If it is interrupted, some of the photos may have been
        added: doing it again adds the others.
        """
        skip_bad = self.options.skip_bad if skip_bad is None else skip_bad
        paths = unique_files(find_images(photos))
        fresh, unnamed = nameable(paths, skip_bad=skip_bad)
        places, more = find_positions(fresh, None, positions)
        encoded = self.encoded(fresh, skip_bad, progress)
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
        records = records_of(encoded, places, first_id=0, fitted=False)
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
        for start in range(0, len(records), AT_ONCE):
            part = slice(start, min(start + AT_ONCE, len(records)))
            added += add_images(self._versions, NewImages(tokens.select(part), records[part], session))
        return EditReport(added, [], [(str(path), reason) for path, reason in skipped], self._advice())

    def remove(self, photos: Sequence[str | Path | int]) -> EditReport:
        """Take photos (paths or ids) out of the answers. What the sample taught stays until the map is built again."""
        gone = remove_images(self._versions, sorted({record.id for record in self._found(photos)}))
        notes = ["removed photos no longer answer; what was learnt from them stays until tfa build"] if gone else []
        return EditReport([], gone, [], [*notes, *self._advice()])

    def _found(self, photos: Sequence[str | Path | int]) -> list[ImageRecord]:
        """By id in one read; by path all images are read, a page at a time."""
        ids = [one for one in photos if isinstance(one, int)]
        view = self._versions.now(fresh=True)
        entries = view.active.collection.fetch(ids)
        by_id = {int(i): record_of(int(i), payload) for i, payload in zip(entries.ids, entries.payload, strict=True)}
        known = {own: record for own, record in by_id.items() if own not in view.header.removing}
        names = {Path(one).name for one in photos if not isinstance(one, int)}
        if names:
            known |= {one.id: one for one in self.records() if os.path.basename(one.path) in names}
        return find_records(list(known.values()), photos)

    # --- calibrate -----------------------------------------------------------------------------------------------

    def calibrate(
        self,
        photos: Photos,
        name: str = "target",
        *,
        budget: int = CalibrationSpec.budget,
        score: bool | None = None,
        skip_bad: bool | None = None,
        progress: bool | Progress | None = None,
    ) -> CalibrationReport:
        """As `PlaceMap.calibrate`; judged on the map's sample. It appears all at once, in a collection of its own."""
        progress, publisher = as_progress(progress), self._publisher()
        with publisher.claim("calibrated"):
            view = quiet_view(self._versions, publisher)
            apart = SampleMap(view, encoder=self.encoder)
            apart.options, apart.cache = self.options, self.cache
            made = calibrated_head(apart, photos, name, budget, score, skip_bad, progress, self.held)
            state = replace(view.state, revision=publisher.next_version() - 1).with_calibration(made.head)
            version, _ = write_version(publisher, view, state, progress)
            made = made.expecting(self._recall(replace(view, state=state), version, made.photos))
            state = replace(view.state, revision=publisher.version - 1).with_calibration(made.head)
            publish_version(publisher, view, state, version)
        self._versions.now(fresh=True)
        return made.report

    def _recall(self, view: View, version: Version, photos: Tokens) -> Any:
        """What the calibrated map expects of photos like these, from its answers to them."""
        candidates = candidates_wanted(Question(), view.state, view.patches, photos)
        answers = hits_of(view, version, photos, Asked(1, candidates), KnownScores())
        best = [hits[0] for hits in answers if hits]
        return expected_recall([hit.confidence for hit in best], [hit.sure for hit in best], verified=bool(candidates))

    def activate(self, name: str | None, progress: bool | Progress | None = None) -> str | None:
        """Let the calibration of that name answer; None lets the database-only head answer.

        Its vectors are written anew unless the version before is of it: until then the other answers.
        """
        wanted = self._versions.now(fresh=True).state.chosen(DATABASE if name is None else name).name
        switch(self._publisher(), self._versions, wanted, as_progress(progress))
        return None if self._versions.now(fresh=True).header.active == DATABASE else wanted

    def drop_calibration(self, name: str) -> None:
        """Take a calibration out of the map for good; if it was the active one, the database-only head answers."""
        view = self._versions.now(fresh=True)
        view.state.without_calibration(name)  # refuses what is not there
        if view.header.active == name:
            self.activate(None)
        forget(self._publisher(), self._versions, name)
        self._versions.now(fresh=True)

    def rollback(self) -> list[str]:
        """Take back the last build, calibration or change of the head that answers; again brings it back.

        Returns what that means, in sentences.
        """
        header = self._versions.now(fresh=True).header
        if header.previous is None:
            raise BadMap(f"{self.called} has no version before this one: nothing was built or calibrated over it")
        was, now = take_back(self._publisher(), self._versions)
        self._versions.now(fresh=True)
        notes = [f"version {now.version} of {now.created} answers again, with {now.active!r}; {was.version} is kept"]
        if was.edits != now.edits:
            notes.append(
                f"it holds {now.count:,} images, the other {was.count:,}: what was added or removed since is not in it"
            )
        return notes

    def _publisher(self) -> Publisher:
        return Publisher(self.store, self.name, self.called)
