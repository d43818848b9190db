"""Compare single, adapted and tracked photos on queries in driving order, and how fast a stream adapts and recovers.

For the second-order head with partial whitening, which maps adapt. Reranked patches are centered on their cell, as in
maps. Everything is causal; nothing is fitted on queries.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from studies.options import (
    format_markdown,
    load_datasets,
    make_parser,
    open_encoder,
    open_progress,
    print_table,
    read_study,
    run_script,
)
from tfa.cli.console import delivered, print_text, say
from tfa.core.progress import Progress, as_progress, track_progress
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec
from tfa.method.scorer import Scorer
from tfa.method.vocabulary import CONSTRUCTIONS
from tfa.online.adaptation import AdaptedScorer, DescribedPhoto
from tfa.online.follow import StreamFrame
from tfa.online.sequence_filter import Belief, OrderMotion, SequenceSpec
from tfa.pipeline import fit_second_order
from tfa.types import AUTO
from tfa.verification.reranking import Comparison
from tfa_bench.heads.tfa_heads import PatchPairs
from tfa_bench.run import Bench, prepare
from tfa_bench.streams import describe_photos, follow_scores

STREAMS = 6  # streams of each kind
_LEG = 30  # frames before and after the event
AWAY = 25  # frames outside the map
_SETTLED = 3  # frames outside the map after which the camera should know
_FARTHEST_GAP = 50  # frames


@dataclass(frozen=True)
class Stream:
    """Photos in order. An event happens before the frame `event`; from there the camera must be relocalized."""

    photos: np.ndarray  # (t,)
    event: int
    outside: np.ndarray  # (t,), bool: frames of another place


@dataclass(frozen=True)
class EventStudy:
    """Tracking of streams of one kind; fractions."""

    right: float  # R@1 of frames in the map
    lost: float  # fraction of them where being lost is likelier than the best place
    recovered_after: (
        float  # mean frames until two in a row are right and not lost; streams never recovered count in full
    )
    recovered_last: int  # maximum
    outside_lost: float | None  # fraction of frames outside, after the first three, known to be lost


def events(frames: int, foreign: int, seed: int = 1) -> dict[str, list[Stream]]:
    """Return streams of a drive of `frames` frames and `foreign` photos of another place, by event."""
    rng = np.random.default_rng(seed)
    leg = min(_LEG, max(frames // 4, 2))
    made: dict[str, list[Stream]] = {"gap": [], "jump": []}
    for _ in range(STREAMS):
        gap = int(rng.integers(min(20, leg), min(_FARTHEST_GAP, max(frames // 4, leg)) + 1))
        start = int(rng.integers(max(frames - 2 * leg - gap, 0) + 1))
        made["gap"].append(_joined(np.arange(start, start + leg), np.arange(start + leg + gap, start + 2 * leg + gap)))
        first, second = rng.integers(frames - leg + 1, size=2)
        made["jump"].append(_joined(np.arange(first, first + leg), np.arange(second, second + leg)))
        if foreign:
            away = frames + (int(rng.integers(foreign)) + np.arange(min(AWAY, foreign))) % foreign
            start = int(rng.integers(max(frames - 2 * leg, 0) + 1))
            back = np.arange(start + leg, start + 2 * leg)
            made.setdefault("outside", []).append(_joined(np.r_[np.arange(start, start + leg), away], back, frames))
    return {kind: [_within(stream, frames) for stream in streams] for kind, streams in made.items()}


def _joined(before: np.ndarray, after: np.ndarray, frames: int | None = None) -> Stream:
    photos = np.r_[before, after]
    return Stream(photos, len(before), photos >= frames if frames is not None else np.zeros(len(photos), bool))


def _within(stream: Stream, frames: int) -> Stream:
    """Drop frames beyond the end of a short drive."""
    kept = (stream.photos < frames) | stream.outside
    return Stream(stream.photos[kept], int(kept[: stream.event].sum()), stream.outside[kept])


def measured(
    streams: Sequence[Stream], beliefs: Sequence[Sequence[Belief]], positives: Sequence[np.ndarray]
) -> EventStudy:
    """Compare the belief after each frame of each stream with the ground truth."""
    right: list[bool] = []
    lost: list[bool] = []
    outside: list[bool] = []
    found: list[int] = []
    for stream, believed in zip(streams, beliefs, strict=True):
        gone = np.array([belief.is_lost for belief in believed])
        sure = np.zeros(len(believed), bool)
        for frame in np.flatnonzero(~stream.outside).tolist():
            own = positives[stream.photos[frame]]
            lost.append(bool(gone[frame]))
            if len(own):
                right.append(believed[frame].best in own)
                sure[frame] = right[-1] and not gone[frame]
        after = sure[stream.event :]
        twice = np.flatnonzero(after[:-1] & after[1:])
        found.append(int(twice[0]) if len(twice) else len(after))
        outside += gone[np.flatnonzero(stream.outside)[_SETTLED:]].tolist()
    away = float(np.mean(outside)) if outside else None
    return EventStudy(float(np.mean(right or [False])), float(np.mean(lost)), float(np.mean(found)), max(found), away)


Positives = Sequence[np.ndarray]
SEEN = (0, 1, 2, 4, 8, 16, 32, 64)  # number of photos used for adaptation
_ORDERS = ("driving", "random")
_BINS = ((0, 8), (8, 16), (16, 32), (32, 64))  # photos after a change of the camera
BEFORE = 64  # photos of the previous camera
STARTS = (0.0, 0.25, 0.5, 0.75)  # fraction of the drive at which the changed camera starts
_MOST_FOREIGN = 60  # photos of another place


@dataclass(frozen=True)
class DriveStudy:
    """R@1 of one drive as fractions; the mean of three constructions unless noted."""

    dataset: str
    title: str
    encoder: str
    images: int
    photos: int
    drive: dict[str, float]  # alone, online, verified, followed, lost
    curve: dict[str, list[float]]  # by order: R@1 of photos adapted by `SEEN` photos, and overall; construction 0
    events: dict[str, EventStudy]  # by event; construction 0
    # By whether another camera came before: R@1 of later photos (`BINS`); None if a drive is shorter.
    change: dict[str, list[float | None]]

    def to_dict(self) -> dict[str, Any]:
        facts = {**asdict(self), "filter": SequenceSpec().to_dict()}
        return {**facts, "seen": [*SEEN, "all"], "bins": [list(one) for one in _BINS]}


@dataclass(frozen=True)
class Pool:
    """Photos of a drive followed by photos of another place, described by a scorer."""

    scorer: Scorer
    photos: Sequence[DescribedPhoto]  # with patches, which a stream centers on its cell means
    comparison: Comparison

    def followed(self, numbers: np.ndarray) -> list[StreamFrame]:
        """Run the tracker on photos with these indices, in this order."""
        motion = OrderMotion(len(self.scorer.bias), SequenceSpec().reach)
        chosen = [self.photos[number] for number in numbers]
        return list(follow_scores(self.scorer, chosen, self.comparison, candidates=AUTO, motion=motion))


def check_drive(dataset: str, queries: int) -> None:
    """Reject queries that are not a drive, before encoding."""
    if queries < 8:
        raise BadSpec(f"{dataset} has {queries} queries; a drive needs at least 8, in driving order")


def study_drive(
    bench: Bench, foreign: Tokens | None = None, device: str = "cpu", progress: bool | Progress | None = None
) -> DriveStudy:
    """Fit the head once, then replay the queries. `foreign` are photos of another place, if any."""
    bars, truth, queries = as_progress(progress), bench.truth, bench.queries.tokens
    head = fit_second_order(bench.database.tokens, "partial", spec=bench.spec, device=device, progress=bars)
    pairs = PatchPairs(bench.database.tokens, cells=True)
    outside = None if foreign is None else foreign.select(_spread(len(foreign), _MOST_FOREIGN))
    sets = [queries] if outside is None else [queries, outside]
    drives, changes = [], []
    first: Pool | None = None
    for s in track_progress(CONSTRUCTIONS, len(CONSTRUCTIONS), f"{truth.name}: replaying", bars, "constructions"):
        scorer = head.scorer(s)
        photos = [photo for one in sets for photo in describe_photos(scorer, one, pairs.store)]
        pool = Pool(scorer, photos, pairs.in_order(queries))
        first = first or pool
        drives.append(study_whole(pool, truth.positives))
        own = list(describe_photos(scorer, bench.database.tokens.select(slice(0, BEFORE))))
        changes.append(study_change(pool, own, truth.positives))
    assert first is not None
    return DriveStudy(
        dataset=truth.name,
        title=truth.title,
        encoder=bench.encoder.id,
        images=len(bench.database),
        photos=len(queries),
        drive={name: float(np.mean([one[name] for one in drives])) for name in drives[0]},
        curve=study_curve(first, truth.positives),
        events=study_events(first, truth.positives),
        change={name: _means([one[name] for one in changes]) for name in changes[0]},
    )


def study_whole(pool: Pool, positives: Positives) -> dict[str, float]:
    """Study the whole drive: single, adapted, reranked and tracked photos, and how many of the last are lost."""
    count = len(positives)
    frames, alone = pool.followed(np.arange(count)), follow_scores(pool.scorer, pool.photos[:count], online=False)
    beliefs = believed(frames)
    tops = {
        "alone": [int(frame.scores.argmax()) for frame in alone],
        "online": [int(frame.scores.argmax()) for frame in frames],
        "verified": [int(frame.ranked.indices[0, 0]) for frame in frames],
        "followed": [belief.best for belief in beliefs],
    }
    shares = {name: share_right(answers, positives) for name, answers in tops.items()}
    return {**shares, "lost": float(np.mean([belief.is_lost for belief in beliefs]))}


def study_curve(pool: Pool, positives: Positives, seed: int = 0) -> dict[str, list[float]]:
    """Return R@1 of every photo adapted by a number of others: those before it in the drive (a loop), or any."""
    rng, count = np.random.default_rng(seed), len(positives)
    photos = [replace(photo, patches=None) for photo in pool.photos]  # nothing is reranked
    curve: dict[str, list[float]] = {}
    for order in _ORDERS:
        for seen in SEEN:
            tops = []
            for photo in range(count):
                drawn = np.arange(-seen, 0) if order == "driving" else 1 + rng.permutation(count - 1)[:seen]
                adapted = AdaptedScorer(pool.scorer)
                for before in (photo + drawn) % count:
                    adapted.step(photos[before])
                tops.append(int(adapted.step(photos[photo]).argmax()))
            curve.setdefault(order, []).append(share_right(tops, positives))
        numbers = np.arange(count) if order == "driving" else rng.permutation(count)
        frames = follow_scores(pool.scorer, [photos[number] for number in numbers])
        curve[order].append(share_right([int(f.scores.argmax()) for f in frames], [positives[n] for n in numbers]))
    return curve


def study_events(pool: Pool, positives: Positives) -> dict[str, EventStudy]:
    """Study gaps, jumps and detours outside the map."""
    made = events(len(positives), len(pool.photos) - len(positives))
    return {
        kind: measured(streams, [believed(pool.followed(stream.photos)) for stream in streams], positives)
        for kind, streams in made.items()
    }


def study_change(pool: Pool, before: Sequence[DescribedPhoto], positives: Positives) -> dict[str, list[float | None]]:
    """Return R@1 of adapted photos at the start of a stream and after map images, another camera."""
    count, found = len(positives), dict[str, list[list[float | None]]](fresh=[], changed=[])
    for start in STARTS:
        numbers = ((int(start * count) + np.arange(min(count, _BINS[-1][1]))) % count).tolist()
        for name, earlier in (("fresh", []), ("changed", list(before))):
            stream = [*earlier, *(pool.photos[number] for number in numbers)]
            frames = list(follow_scores(pool.scorer, stream))[len(earlier) :]
            tops = [int(frame.scores.argmax()) for frame in frames]
            own = [positives[number] for number in numbers]
            found[name].append(
                [share_right(tops[low:high], own[low:high]) if low < len(own) else None for low, high in _BINS]
            )
    return {name: _means(shares) for name, shares in found.items()}


def believed(frames: Sequence[StreamFrame]) -> list[Belief]:
    return [frame.belief for frame in frames if frame.belief is not None]


def share_right(tops: Sequence[int], positives: Positives) -> float:
    """Return R@1 of the queries with positives; 0 if none has."""
    right = [top in own for top, own in zip(tops, positives, strict=True) if len(own)]
    return float(np.mean(right)) if right else 0.0


def _means(rows: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Return the mean of each column without None."""
    columns = [
        [value for value in column if value is not None and np.isfinite(value)] for column in zip(*rows, strict=True)
    ]
    return [float(np.mean(column)) if column else None for column in columns]


def _spread(count: int, most: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


# --- tables ----------------------------------------------------------------------------------------------------

_DRIVE_COLUMNS = ("dataset", "photos", "single", "online", "online, reranked", "tracker")
_CURVE_COLUMNS = ("dataset", "order", *map(str, SEEN), "all")
_EVENT_COLUMNS = ("dataset", "event", "R@1", "lost", "frames to recover", "lost outside the map")
_CHANGE_COLUMNS = ("dataset", "before", *(f"photos {low + 1}–{high}" for low, high in _BINS))
TABLES = {
    "drive": ("R@1 of drives: single photos, adapted, reranked, tracked (frames lost)", _DRIVE_COLUMNS),
    "curve": ("R@1 by number of photos used for adaptation", _CURVE_COLUMNS),
    "events": ("The tracker after events: frames until two in a row are right", _EVENT_COLUMNS),
    "change": ("R@1 of adapted photos after another camera", _CHANGE_COLUMNS),
}
_EVENT_WORDS = {"gap": "a gap", "jump": "a jump", "outside": "25 photos outside the map"}
_CHANGE_WORDS = {"fresh": "nothing", "changed": f"{BEFORE} photos of the map"}


def table_rows(studies: Sequence[Mapping[str, Any]], table: str) -> list[tuple[str, ...]]:
    """Return the rows of the "drive", "curve", "events" or "change" table of `DriveStudy.to_dict()`s, in percent."""
    rows: list[tuple[str, ...]] = []
    for one in studies:
        name, facts = one["dataset"], one[table]
        if table == "drive":
            cells = [_percent(facts[key]) for key in ("alone", "online", "verified", "followed")]
            rows.append((name, str(one["photos"]), *cells[:3], f"{cells[3]} (lost {_percent(facts['lost'])})"))
        elif table == "events":
            for kind, event in facts.items():
                found = f"{event['recovered_after']:.1f}, at most {event['recovered_last']}"
                outside = "" if event["outside_lost"] is None else _percent(event["outside_lost"])
                rows.append(
                    (name, _EVENT_WORDS[kind], _percent(event["right"]), _percent(event["lost"]), found, outside)
                )
        else:
            words = _CHANGE_WORDS if table == "change" else {order: order for order in _ORDERS}
            rows += [(name, words[key], *map(_percent, shares)) for key, shares in facts.items()]
    return rows


def format_tables(studies: Sequence[Mapping[str, Any]]) -> str:
    """Format every table of `DriveStudy.to_dict()`s as Markdown."""
    parts = []
    for table, (title, columns) in TABLES.items():
        parts.append(f"{title}\n\n{format_markdown(columns, table_rows(studies, table), _left(columns))}")
    return "\n".join(parts)


def _left(columns: Sequence[str]) -> int:
    """Return how many columns are aligned to the left."""
    return 1 if columns[1] == "photos" else 2


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Replay drives: R@1 of single photos, adapted online, reranked and tracked; how fast a stream adapts.

    For the second-order head with partial whitening, without fitting on queries. Photos outside a map come from the
    next dataset.
    """
    remark = "Database and queries must be in driving order by name."
    return run_script(make_parser(main.__doc__ or "", remark, stored=True), _study, argv)


def _study(arguments: Namespace) -> None:
    if arguments.show is not None:
        print_text(format_tables(read_study(arguments.show)))
        return
    loaded = load_datasets(arguments)
    for data in loaded:
        check_drive(data.card.name, len(data.queries))
    bars, model = open_progress(arguments), open_encoder(arguments)
    prepared = [prepare(data, model, progress=bars) for data in loaded]
    studies = []
    for number, one in enumerate(prepared):
        foreign = prepared[(number + 1) % len(prepared)].queries.tokens if len(prepared) > 1 else None
        studies.append(study_drive(one, foreign, arguments.device, bars).to_dict())
    if not delivered(studies, out=arguments.out, json=arguments.json):
        for table, (title, columns) in TABLES.items():
            say(f"{title}; {studies[0]['encoder']}, percent", style="bold")
            print_table(columns, table_rows(studies, table), _left(columns))
            say()


if __name__ == "__main__":
    sys.exit(main())
