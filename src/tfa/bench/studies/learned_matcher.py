"""`tfa bench verification --matcher`: our patch matches beside a learned matcher, on the same candidates.

The 20 best images of a query by the head are brought into a new order twice: by our evidence, as a map does it with 20
candidates, and by the number of inliers that the matcher finds. Of equals the head's first is the answer.

Both work on one thread and are timed by the processor, so that what else runs on the machine does not count. What the
matcher found for a query is kept in the user's cache, by the content of the photos: an interrupted run continues with
the next query.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tfa.bench.heads.contract import HeadCard, Shared
from tfa.bench.matchers.contract import Matcher
from tfa.bench.provenance import hardware
from tfa.bench.run import Bench
from tfa.bench.studies.patch_pairs import known_grid
from tfa.bench.studies.verification import StudiedQueries
from tfa.bench.studies.verification_variants import FEW, NOTHING
from tfa.core.arrays import ONE_THREAD_PRODUCTS
from tfa.core.files import cache_folder, hash_file, hash_json, write_json
from tfa.core.progress import Progress, as_progress
from tfa.core.reading import read_json
from tfa.errors import BadSpec
from tfa.method.evidence import standardize_ranked
from tfa.photos.token_cache import mark_used
from tfa.search.gallery import top_k
from tfa.verification.patches import CompactTokens, PhotoPairs
from tfa.verification.reranking import Compared, combine_scores

OURS, OURS_ALONE, LEARNED = "patches", "patches-alone", "learned"
TITLES = {
    NOTHING: "no verification",
    OURS: "patch matches, z + 4 √M (ours)",
    OURS_ALONE: "patch matches, M alone",
    LEARNED: "{matcher}, inliers alone",
}
IMAGES_KEPT = 2048  # described photos in memory, about 0.2 MB each


@dataclass(frozen=True)
class Found:
    """What the matcher found for a query among its candidates `c`, and what both ways took in that run."""

    inliers: tuple[int, ...]
    matches: tuple[int, ...]
    keypoints: int  # of the query
    seconds: Mapping[str, float]  # of OURS and LEARNED


@dataclass(frozen=True)
class MatchedDataset:
    """R@1 and milliseconds a query on one dataset, by one head: first split, first replica."""

    dataset: str
    title: str
    head: str
    queries: int
    candidates: int
    recall: Mapping[str, float]  # by way; of NOTHING the head's own
    within: float  # queries with a right image among the candidates: no order can be better
    milliseconds: Mapping[str, float]  # of OURS and LEARNED, mean over the queries; photos of the map are described
    keypoints: float  # of a query, mean


@dataclass(frozen=True)
class MatcherStudy:
    """All datasets and heads, with one matcher and one encoder."""

    matcher: str
    title: str
    fingerprint: str
    encoder: str
    hardware: Mapping[str, str | int]
    datasets: tuple[MatchedDataset, ...]

    @classmethod
    def of(cls, matcher: Matcher, encoder: str, datasets: Iterable[MatchedDataset]) -> MatcherStudy:
        return cls(matcher.name, matcher.title, matcher.fingerprint, encoder, hardware(), tuple(datasets))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def markdown(self) -> str:
        """A table for each head: ways down, datasets across."""
        heads = dict.fromkeys(one.head for one in self.datasets)
        return "\n\n".join(self._table([one for one in self.datasets if one.head == head]) for head in heads)

    def _table(self, own: Sequence[MatchedDataset]) -> str:
        rows = [("queries", [str(one.queries) for one in own])]
        for way, title in TITLES.items():
            rows.append((f"R@1, {title.format(matcher=self.title)}", [f"{100 * one.recall[way]:.1f}" for one in own]))
        rows.append(("a right image is among the candidates", [f"{100 * one.within:.1f}" for one in own]))
        for way, title in ((OURS, "patch matches"), (LEARNED, self.title)):
            rows.append((f"ms a query, {title}", [f"{one.milliseconds[way]:,.0f}" for one in own]))
        rows.append(("keypoints of a query", [f"{one.keypoints:,.0f}" for one in own]))
        head = f"{own[0].head}, {self.encoder}, {max(one.candidates for one in own)} candidates"
        lines = [f"| {head} | {' | '.join(one.dataset for one in own)} |", f"|---|{'--:|' * len(own)}"]
        return "\n".join([*lines, *(f"| {title} | {' | '.join(cells)} |" for title, cells in rows)])


def match_dataset(
    bench: Bench,
    card: HeadCard,
    matcher: Matcher,
    *,
    most: int | None = None,
    shared: Shared | None = None,
    progress: bool | Progress | None = None,
) -> MatchedDataset:
    """The first split's queries (`most` of them at most, evenly spaced), their candidates compared in both ways."""
    bars, positives = as_progress(progress), bench.truth.positives
    comparison = _BothWays(bench, matcher)
    studied = StudiedQueries(bench, card, most, shared or Shared(spec=bench.spec, progress=bars))
    hits: list[dict[str, bool]] = []
    within, found = [], []
    with bars.task(f"{bench.truth.name}: matching", len(studied), "queries") as task, _one_thread():
        for query, scores in studied:
            ranked, _ = top_k(scores[None], FEW)
            right = set(positives[query].tolist())
            within.append(not right.isdisjoint(ranked[0].tolist()))
            ours, learned = comparison.of(query, ranked[0])
            best = best_of(scores, ranked[0], ours.evidence, np.array(learned.inliers))
            hits.append({way: image in right for way, image in best.items()})
            found.append(learned)
            task.advance()
    return MatchedDataset(
        bench.truth.name,
        bench.truth.title,
        card.name,
        len(found),
        min(FEW, len(bench.database)),
        {way: float(np.mean([one[way] for one in hits])) for way in TITLES},
        float(np.mean(within)),
        {way: 1000 * float(np.mean([one.seconds[way] for one in found])) for way in (OURS, LEARNED)},
        float(np.mean([one.keypoints for one in found])),
    )


def best_of(scores: np.ndarray, candidates: np.ndarray, evidence: np.ndarray, inliers: np.ndarray) -> dict[str, int]:
    """The answer to a query by each way: of its scores `m`, its candidates `c` in the head's order.

    A row of nothing but equal scores has no answer, -1.
    """
    if scores.max() == scores.min():
        return dict.fromkeys(TITLES, -1)
    z = standardize_ranked(scores[None], candidates[None])[0]
    orders = {NOTHING: z, OURS: combine_scores(z, evidence), OURS_ALONE: evidence, LEARNED: inliers}
    return {way: int(candidates[order.argmax()]) for way, order in orders.items()}  # of equals the head's first


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ONE_THREAD_PRODUCTS:
            yield
    finally:
        torch.set_num_threads(before)


class _BothWays:
    """The queries of a dataset beside their candidates, by our patches and by the matcher."""

    def __init__(self, bench: Bench, matcher: Matcher) -> None:
        if bench.database.paths is None or bench.queries.paths is None:
            raise BadSpec(f"the matcher {matcher.name} reads photos, and {bench.truth.name} has tokens alone")
        self.matcher, self.paths = matcher, (bench.queries.paths, bench.database.paths)
        tokens = bench.queries.tokens
        store = CompactTokens.fit(bench.database.tokens)
        self.pairs = PhotoPairs(store, tokens, known_grid(tokens), np.arange(len(store)))
        self.digest = lru_cache(maxsize=None)(hash_file)
        self._described: dict[str, Any] = {}  # by content

    def of(self, query: int, candidates: np.ndarray) -> tuple[Compared, Found]:
        started = time.process_time()
        [ours] = self.pairs.with_queries([query], [candidates])
        seconds = time.process_time() - started
        photo, images = self.paths[0][query], [self.paths[1][image] for image in candidates.tolist()]
        file = _kept_in(self.matcher, self.digest(photo), [self.digest(image) for image in images])
        found = _read(file, len(images))
        if found is None:
            found = self._compared(photo, images, seconds)
            write_json(file, asdict(found))
        else:
            mark_used([file])
        return ours, found

    def _compared(self, photo: Path, images: Sequence[Path], ours: float) -> Found:
        described = [self._describe(image) for image in images]  # a map would keep them, as it keeps our patches
        started = time.process_time()
        query = self.matcher.describe(photo)
        found = [self.matcher.compare(query, candidate) for candidate in described]
        seconds = {OURS: ours, LEARNED: time.process_time() - started}
        return Found(tuple(one.inliers for one in found), tuple(one.matches for one in found), len(query), seconds)

    def _describe(self, image: Path) -> Any:
        key = self.digest(image)
        if key not in self._described:
            if len(self._described) >= IMAGES_KEPT:
                del self._described[next(iter(self._described))]  # the oldest
            self._described[key] = self.matcher.describe(image)
        return self._described[key]


def _kept_in(matcher: Matcher, query: str, images: Iterable[str]) -> Path:
    key = hash_json([matcher.fingerprint, query, list(images)])
    return cache_folder() / "matches" / matcher.name / f"{key}.json"


def _read(file: Path, candidates: int) -> Found | None:
    """None where the query was not compared yet, or its file is damaged: it is then compared again."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        content = read_json(file)
        inliers, matches = (tuple(int(one) for one in content[name]) for name in ("inliers", "matches"))
        seconds = {way: float(content["seconds"][way]) for way in (OURS, LEARNED)}
        if len(inliers) == len(matches) == candidates:
            return Found(inliers, matches, int(content["keypoints"]), seconds)
    return None
