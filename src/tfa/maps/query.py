"""Querying a map: photos or tokens in, ranked places with their confidence out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.tokens import Tokens
from tfa.encoders import Encoder
from tfa.maps.answer import make_where, resolve_candidates
from tfa.maps.base_map import BaseMap
from tfa.maps.fused_place import measure_reach
from tfa.maps.hits import SearchableHead
from tfa.maps.shift import DomainShiftMonitor
from tfa.maps.state import MapState
from tfa.maps.state_changes import tie_duplicates
from tfa.maps.summary import summarize_map
from tfa.maps.tracker import Tracker, choose_map_motion
from tfa.online.sequence_filter import Motion, SequenceSpec
from tfa.search.reduced import ReducedSearch
from tfa.types import Answer, QueryOptions


class ReadOnlyMap(BaseMap):
    """A map that answers queries from a state in memory and cannot be edited."""

    def __init__(self, state: MapState, path: Path | None = None, encoder: Encoder | None = None) -> None:
        super().__init__(encoder)
        self._prepared = False
        self._take(state)
        self.path = path

    @property
    def called(self) -> str:
        return str(self.path or "MAP")

    def _take(self, state: MapState) -> None:
        self.state = tie_duplicates(state)
        rows = [row for row, record in enumerate(state.images) if record.id not in state.removed]
        self.rows = np.array(rows, dtype=np.int64)  # of the gallery: those of `images`, in their order
        self.images = [state.images[row] for row in rows]
        self._searchable_heads: dict[str, SearchableHead] = {}
        self._motions: dict[float, Motion] = {}
        self._reach: float | None = None
        if self._prepared:
            self.prepare()

    def prepare(self) -> None:
        """Make ready for many single queries, which takes seconds for a large map and memory for its rows.

        Rows of integers are packed; answers stay as they are. Of a map with reduced rows those alone are, and the
        others stay on the disk.
        """
        self._prepared, self._searchable_heads = True, {}
        for head in self.state.heads:
            searcher = self.searchable(head.name).searcher
            if isinstance(searcher, ReducedSearch):
                for side in head.stored.scorer.sides:
                    side.prepare()
            else:
                head.stored.scorer.prepare()
            searcher.prepare()

    def searchable(self, calibration: str | None) -> SearchableHead:
        """The head of that name (None: the active one) with what searches its images."""
        head = self.state.chosen(calibration)
        if head.name not in self._searchable_heads:
            self._searchable_heads[head.name] = SearchableHead.of(head, self.images, self.rows)
        return self._searchable_heads[head.name]

    def scores(self, tokens: Tokens, calibration: str | None = None) -> np.ndarray:
        """Scores `q m` of queries with every image, in the order of `images`: a search for all of them."""
        head = self.searchable(calibration)
        result = head.searcher.search(head.stored.scorer.query_vectors(tokens), max(len(self), 1))
        scores = np.empty_like(result.scores)
        np.put_along_axis(scores, np.searchsorted(head.ids, result.ids), result.scores, axis=1)
        return scores

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return summarize_map(
            type(self).__name__, "not saved" if self.path is None else str(self.path), len(self), self.state
        )

    def follow(
        self,
        calibration: str | None = None,
        *,
        online: bool = True,
        sequence: bool = True,
        spec: SequenceSpec | None = None,
        **options: Any,
    ) -> Tracker:
        """What follows one camera: `tracker.step(photo)` answers a photo, adapted by the photos before it.

        `online` says whether photos adapt the scores of later ones, `sequence` whether they are the frames of a drive,
        which a filter follows (`spec`); the rest is as in `query`. The map stays as it is.
        """
        chosen = QueryOptions(calibration=calibration, **options)
        return Tracker(self, chosen, online=online, sequence=sequence, spec=spec)

    def motion(self, reach: float) -> Motion:
        """How a camera moves along this map; made once for all that are followed. `reach` is that of the filter."""
        if reach not in self._motions:
            self._motions[reach] = choose_map_motion(self.images, reach)
        return self._motions[reach]

    @property
    def reach(self) -> float:
        """How far apart images of one place stand, in metres (`tfa.maps.fused_place`)."""
        if self._reach is None:
            self._reach = measure_reach(self.images)
        return self._reach

    def check(self, options: QueryOptions) -> None:
        make_where(options)
        resolve_candidates(options, self.state)

    def answer_tokens(
        self, tokens: Tokens, options: QueryOptions, shift: DomainShiftMonitor | None = None
    ) -> list[Answer]:
        candidates = resolve_candidates(options, self.state, tokens)
        head = self.searchable(options.calibration)
        return head.answer(tokens, options, candidates, self.state.compact, shift, self.reach)
