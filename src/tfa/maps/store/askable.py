"""The part of a map in a store that answers and tells of itself; it changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

from tfa.base.tokens import Tokens
from tfa.encoders import Encoder
from tfa.errors import BadSpec, StoreConflict
from tfa.maps.asking import Asking
from tfa.maps.likeness import Likeness
from tfa.maps.records import Hits, ImageRecord
from tfa.maps.state import MapState
from tfa.maps.store.answers import Asked, hits_of
from tfa.maps.store.candidates import KnownScores, record_of
from tfa.maps.store.header import StoreHeader
from tfa.maps.store.publish import AT_ONCE
from tfa.maps.store.sample_map import SampleMap
from tfa.maps.store.summary import describe_store_map
from tfa.maps.store.versions import Version, Versions, View
from tfa.maps.summary import in_short
from tfa.maps.verification import Question, candidates_wanted
from tfa.search.store import Store, hide_password, open_map_store

UNSEEN_LIMIT = 0.2  # share of images not seen at fitting from which building again is advised


class AskableStoreMap(Asking):
    """A map whose images live in a store, as it is now: the header is looked at twice a second at most."""

    def __init__(
        self, store: Store, name: str, url: str, encoder: Encoder | None = None, patch_cache: int | None = None
    ) -> None:
        """`patch_cache` is how many bytes of patches are kept in memory, those used last; None: 256 MB."""
        super().__init__(encoder)
        if patch_cache is not None and patch_cache < 0:
            raise BadSpec(f"patch_cache={patch_cache} is out of range: bytes of memory, 0 keeps nothing")
        self.store, self.name, self.url, self.patch_cache = store, name, url, patch_cache
        self._versions = Versions(store, name, hide_password(url), patch_cache)
        self._known: dict[tuple[str, int], KnownScores] = {}

    # --- open ----------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, url: str, encoder: Encoder | None = None, patch_cache: int | None = None) -> Self:
        """The map of a URL; an error says which maps are there if it is not."""
        store, name = open_map_store(url)
        opened = cls(store, name, url, encoder, patch_cache)
        opened.view  # noqa: B018  # what is wrong with it is said now
        return opened

    @property
    def view(self) -> View:
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
        return in_short(type(self).__name__, self.called, last.header.count, last.state)

    def prepare(self) -> None:
        """There is nothing to pack: reads what is needed to answer."""
        self._versions.now(fresh=True)

    # --- ask -----------------------------------------------------------------------------------------------------

    def check(self, question: Question) -> None:
        view = self.view
        view.chosen(question.calibration)
        candidates_wanted(question, view.state, view.patches)

    def hits(self, tokens: Tokens, question: Question, likeness: Likeness | None = None) -> list[Hits]:
        try:
            return self._hits(self.view, tokens, question, likeness)
        except StoreConflict:  # the version was dropped while it was asked: twice replaced within half a second
            return self._hits(self._versions.now(fresh=True), tokens, question, likeness)

    def _hits(self, view: View, tokens: Tokens, question: Question, likeness: Likeness | None) -> list[Hits]:
        version = view.chosen(question.calibration)
        candidates = candidates_wanted(question, view.state, view.patches, tokens)
        asked = Asked(question.k, candidates, question.where)
        return hits_of(view, version, tokens, asked, self._scores_of(view, version), likeness)

    def _scores_of(self, view: View, version: Version) -> KnownScores:
        """What is remembered of a collection as it is."""
        key = (version.collection.name, view.header.edits)
        self._known = {one: kept for one, kept in self._known.items() if one[1] == view.header.edits}
        return self._known.setdefault(key, KnownScores())

    # --- images --------------------------------------------------------------------------------------------------

    def records(self) -> Iterator[ImageRecord]:
        """All images that answer, in the order they came in, read page by page."""
        view = self._versions.now(fresh=True)
        for page in view.active.collection.pages(AT_ONCE):
            for own, payload in zip(page.ids.tolist(), page.payload, strict=True):
                if own not in view.header.removing:
                    yield record_of(own, payload)

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
        return record_of(image_id, found.payload[0])

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

    # --- describe ------------------------------------------------------------------------------------------------

    @property
    def unseen_share(self) -> float:
        """Share of the photos in the map that the head was not fitted on."""
        header = self.view.header
        return 1 - header.fitted / max(header.count, 1)

    def _advice(self) -> list[str]:
        if self.unseen_share <= UNSEEN_LIMIT:
            return []
        return [f"{self.unseen_share:.0%} of the photos were not seen when the head was fitted; build the map again"]

    def sample(self) -> SampleMap:
        """The sample of the images that decisions were judged on, as a map of its own."""
        apart = SampleMap(self._versions.now(fresh=True), self.info(), self._encoder)
        apart.options, apart.cache = self.options, self.cache
        return apart

    def info(self) -> dict[str, Any]:
        """The map in JSON: what it holds, what was decided and why. Its photos are not listed: see `records`."""
        view = self._versions.now(fresh=True)
        return {**describe_store_map(view, self.name, self.called), "notes": [*view.header.notes, *self._advice()]}

    def close(self) -> None:
        """Let go of connections."""
        self.store.close()
