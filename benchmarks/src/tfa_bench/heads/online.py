"""Heads that adapt to answered queries (ours, beyond the paper), under the protocol `online`.

    second-order-online   a map adapted by its camera: partial whitening, adapted by all earlier queries
    second-order-1-…      the same; reranked as maps were before patches were centered on their cell
    judged-online         second-order partial whitening, adapted by all earlier queries
    tfa-online            the paper's database-only head, adapted in the same way
    …-shuffled            queries in random order instead of file order
    …-v  …-v-always       top candidates of the adapted scores reranked, as the map admits it
    …-follow              the tracker: adapted, reranked if admitted, and filtered along the drive
    …-follow-lag5         the same, answered 5 frames late (any number)

A query never adapts its own answer. Each replica adapts separately and starts without adaptation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from tfa.maps.confidence import DatabaseScores
from tfa.method.head import Head
from tfa.method.second_order_head import TARGET_CARRIER, SecondOrderHead
from tfa.method.vocabulary import CONSTRUCTIONS
from tfa.online.adaptation import AdaptedScorer
from tfa.online.sequence_filter import OrderMotion, SequenceSpec
from tfa_bench.heads.contract import HeadCard, Photos, Shared
from tfa_bench.heads.second_order import (
    MAP_TITLES,
    SECOND_STAGES,
    UNPOOLED,
    fitted_map_head,
    fitted_second_order,
    uses_cells,
)
from tfa_bench.heads.tfa_heads import BEYOND_PAPER, PatchPairs, RetrieverHead, fitted_tfa
from tfa_bench.heads.verified import VerifiedHead, verified, verified_card
from tfa_bench.protocols import ONLINE, ONLINE_SHUFFLED
from tfa_bench.provenance import METHOD
from tfa_bench.streams import describe_photos, follow_scores

AT_ONCE = 64  # queries reranked per batch
Answered = tuple[np.ndarray, np.ndarray | None]  # scores `(q, m)` and confidence `(q,)`


@dataclass(frozen=True)
class OnlineHead:
    """A fitted head of the package whose scores each query adapts for later ones."""

    head: Head | SecondOrderHead
    pairs: PatchPairs | None = None  # set if the top candidates are reranked
    verification: Mapping[str, Any] = field(default_factory=dict)  # decision about reranking
    follows: bool = False  # whether the camera is tracked along the database, which is in driving order
    neighbors: bool = False  # rank an image together with its direct neighbors, as maps do now
    lag: int = 0  # later queries that an answer uses
    constructions: tuple[int, ...] = CONSTRUCTIONS
    data_used: ClassVar[str] = "target"

    @property
    def replicas(self) -> tuple[str, ...]:
        return tuple(map(str, self.constructions))

    @property
    def decisions(self) -> dict[str, Any]:
        more = {"verification": dict(self.verification)} if self.verification else {}
        return {**RetrieverHead(self.head).decisions, **more}

    def scores(self, queries: Photos, replica: str) -> np.ndarray:
        """Return `(q, m)` of queries in order, the first without adaptation."""
        blocks = [scores for scores, _ in self.in_order(queries, replica)]
        return np.concatenate(blocks) if blocks else np.empty((0, len(self.head)), np.float32)

    def in_order(self, queries: Photos, replica: str) -> Iterator[Answered]:
        return self._followed(queries, replica) if self.follows else self._adapted(queries, replica)

    def _adapted(self, queries: Photos, replica: str) -> Iterator[Answered]:
        scorer, pairs = self.head.scorer(int(replica)), self.pairs
        own, adapted, store = DatabaseScores(scorer), AdaptedScorer(scorer), None if pairs is None else pairs.store
        for start in range(0, len(queries), AT_ONCE):
            some, rows, patches = queries.select(slice(start, start + AT_ONCE)), list[np.ndarray](), {}
            for row, photo in enumerate(describe_photos(scorer, some.tokens, store)):
                if (centered := adapted.center_patches(photo)) is not None:
                    patches[row] = centered
                rows.append(adapted.step(photo))
            if pairs is None:
                yield np.stack(rows), None
            else:
                yield verified(np.stack(rows), pairs.in_order(some.tokens, patches), pairs.spec.candidates, own)

    def _followed(self, queries: Photos, replica: str) -> Iterator[Answered]:
        """Rank images by the probability that the camera is there."""
        scorer, pairs, tokens = self.head.scorer(int(replica)), self.pairs, queries.tokens
        frames = follow_scores(
            scorer,
            describe_photos(scorer, tokens, None if pairs is None else pairs.store),
            None if pairs is None else pairs.in_order(tokens),
            candidates=0 if pairs is None else pairs.spec.candidates,
            motion=OrderMotion(len(self.head), SequenceSpec().reach),
            lag=self.lag,
        )
        for frame in frames:
            assert frame.belief is not None
            places = frame.belief.rank if self.neighbors else frame.belief.places
            yield places[None], np.array([frame.belief.confidence])


def _fitted(system: str, database: Photos, shared: Shared) -> Head | SecondOrderHead:
    if system == "tfa":
        return fitted_tfa(database, shared)
    if system in MAP_TITLES:
        return fitted_map_head(database, shared, pooled=system != UNPOOLED).adapting
    return fitted_second_order(database, shared, TARGET_CARRIER)


_TITLES = {"judged": "Judged", "tfa": "TFA", **MAP_TITLES}
_SECOND_STAGES = (*SECOND_STAGES, "score_calibration", "online")
_STAGES = {**dict.fromkeys(_TITLES, _SECOND_STAGES), "tfa": (*METHOD, "online")}
_NAME = re.compile(rf"({'|'.join(_TITLES)})-(?:(follow)(?:-lag(\d+))?|online(-shuffled)?(-v(?:-always)?)?)")


def online_card(name: str) -> HeadCard | None:
    """Return the card of a name of the family above; None for other names."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    system, follows, lag, shuffled = match[1], bool(match[2]), int(match[3] or 0), bool(match[4])
    verification = "-v" if follows else match[5]
    alone = verified_card(f"{system}{verification}") if verification else None  # decides whether reranking is used

    def fit(database: Photos, shared: Shared) -> OnlineHead:
        head = _fitted(system, database, shared)
        constructions = (0,) if system in MAP_TITLES else CONSTRUCTIONS
        if alone is None:
            return OnlineHead(head, constructions=constructions)
        decided = alone.fit(database, shared)
        assert isinstance(decided, VerifiedHead)
        used = decided.decisions["verification"]
        pairs = decided.pairs if decided.used else None
        return OnlineHead(head, pairs, used, follows, uses_cells(system), lag, constructions)

    words = {"online": ", adapted online", "follow": ", followed along the drive"} if system in MAP_TITLES else {}
    kind = "follow" if follows else "online"
    title = _TITLES[system] + words.get(kind, f" {kind}") + ", shuffled" * shuffled + f", {lag} frames late" * bool(lag)
    verified_too = "" if alone is None or follows else alone.title.removeprefix(_TITLES[system])
    return HeadCard(
        name=name,
        title=title + verified_too,
        sees="target",
        fit=fit,
        plan=ONLINE_SHUFFLED if shuffled else ONLINE,
        settings={
            "system": system,
            "filter": SequenceSpec().to_dict() if follows else None,
            "verification": None if alone is None else alone.settings["verification"],
            **({"lag": lag} if lag else {}),
        },
        stages=tuple(dict.fromkeys((*_STAGES[system], *(() if alone is None else alone.stages)))),
        note=BEYOND_PAPER,
        needs_order=follows,
        needs_depths=system == UNPOOLED,
    )
