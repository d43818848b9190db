"""Close loops in streams: the database of a drive, then its queries, as one session and as two.

Every head decides by the same rule (`tfa.online.loops`), from its own scores of each frame against all earlier ones.
Nothing is fitted on labels. A loop is right if it is within three frames of a positive, or a positive (strict).
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
from tfa.core.arrays import backend_for, l2_normalize
from tfa.core.tokens import Tokens
from tfa.encoders import Encoder
from tfa.maps.loop_closer import LoopCloser
from tfa.method.residuals import HARD, describe_residuals
from tfa.method.vocabulary import fit_vocabularies, grid_patches, sample_patches
from tfa.online.loops import LoopDetector, LoopLine
from tfa.types import HeadSpec, LoopPair, LoopsResult
from tfa_bench.run import Bench, prepare

GAP = 20  # frames
NEAR = 3  # frames from a positive
FIXED = 0.55  # cosine that a loop-closing user of MegaLoc published
HEADS = {"tfa": "TFA", "mean": "mean patch", "vlad": "AnyLoc VLAD", "fixed": "cosine ≥ 0.55, single frames"}


@dataclass(frozen=True)
class StreamStudy:
    """Loops of one stream by one head, at the threshold that the drive sets; shares of 1."""

    dataset: str
    encoder: str
    head: str
    sessions: int  # 2 if the break between database and queries was given, else 1
    frames: int
    revisits: int  # frames with a positive
    loops: int  # frames with a loop when they arrive
    false_loops: int
    recall: float
    strict_recall: float
    pairs: int  # with the chains behind the loops
    false_pairs: int
    pair_recall: float
    recall_at_100: float | None = None  # recall at 100 % precision, lines of 20 frames ordered by margin
    recall_at_99: float | None = None


Decisions = tuple[dict[int, int], dict[int, int], list[tuple[int, int, float]]]  # loops, pairs, (frame, match, margin)


class _Lines(LoopDetector):
    """A detector that only lists the best line of 20 frames of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, int, float]] = []

    def _decide(self, length: int, margin: float, match: int, *_: Any) -> LoopLine | None:
        if length == 20:
            self.seen.append((-1, match, margin))
        return None


class _Recorder(LoopCloser):
    """A closer that keeps its scores."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder, GAP)
        self.rows: dict[int, np.ndarray] = {}

    def _decide(self, scores: np.ndarray) -> LoopLine | None:
        self.rows[len(self) - 1] = scores
        return super()._decide(scores)


def decide_tfa(tokens: Tokens, encoder: Encoder, start: int | None) -> Decisions:
    """Pass a stream through the closer; `start` is the first frame of another session."""
    closer = _Recorder(encoder)
    for row in range(len(tokens)):
        closer.step(tokens.select([row]), session=row == start)
    result = LoopsResult(frames=closer.frames, keyframes=len(closer), sessions=1, loops=closer.loops)
    nodes = closer._keyframes[:, 0].astype(int)
    first = None if start is None else int(np.searchsorted(nodes, start))
    lines = [(int(nodes[t]), int(nodes[m]), g) for t, m, g in list_lines(closer.rows, nodes, first)]
    return {loop.query: loop.match for loop in closer.loops}, {one.query: one.match for one in result.pairs}, lines


def decide_vectors(vectors: np.ndarray, start: int | None) -> Decisions:
    """Pass unit vectors (m, d) through the same rule."""
    nodes, detector = np.arange(len(vectors)), LoopDetector()
    rows = {t: vectors[:t] @ vectors[t] for t in range(1, len(vectors))}
    loops: dict[int, int] = {}
    pairs: list[LoopPair] = []
    for t, scores in rows.items():
        if t == start:
            detector.restart()
        candidates, gap = find_candidates(t, nodes, start)
        line = detector.step(scores, candidates, t + 1, 0.1, gap)
        if line is not None:
            loops[t] = line.match
            detector.links.add([(t - back, column) for back, column in line.chain])
            pairs += [LoopPair(query=t - back, match=column) for back, column in line.chain]
    return loops, {one.query: one.match for one in reversed(pairs)} | loops, list_lines(rows, nodes, start)


def decide_fixed(vectors: np.ndarray, start: int | None) -> Decisions:
    """Accept the best earlier frame if its cosine reaches a fixed threshold, as single-frame loop closers do."""
    loops: dict[int, int] = {}
    for t in range(1, len(vectors)):
        candidates, _ = find_candidates(t, np.arange(len(vectors)), start)
        scores = np.where(candidates, vectors[:t] @ vectors[t], -np.inf)
        if scores.max() >= FIXED:
            loops[t] = int(scores.argmax())
    return loops, loops, []


def find_candidates(t: int, nodes: np.ndarray, start: int | None) -> tuple[np.ndarray, int]:
    """Return the candidates of a frame, (t,), and how many of the latest frames the gap excludes."""
    if start is not None and t >= start:
        return np.arange(t) < start, 0
    candidates = nodes[t] - nodes[:t] >= GAP
    return candidates, int((~candidates).sum())


def list_lines(rows: Mapping[int, np.ndarray], nodes: np.ndarray, start: int | None) -> list[tuple[int, int, float]]:
    """Return frame, match and margin of the best line of 20 frames of every row."""
    detector, found = _Lines(), []
    for t, scores in rows.items():
        if t == start:
            detector.restart()
        detector.seen.clear()
        candidates, gap = find_candidates(t, nodes, start)
        detector.step(scores, candidates, t + 1, 0.0, gap)
        found += [(t, match, margin) for _, match, margin in detector.seen]
    return found


def measure(decisions: Decisions, positives: Mapping[int, np.ndarray], **facts: Any) -> StreamStudy:
    """Compare decisions with the positives of each frame that has some."""
    loops, pairs, lines = decisions

    def is_right(frame: int, match: int, near: int) -> bool:
        return frame in positives and int(np.abs(positives[frame] - match).min()) <= near

    right, strict, pair_right = (
        sum(is_right(t, m, near) for t, m in found.items())
        for found, near in ((loops, NEAR), (loops, 0), (pairs, NEAR))
    )
    ordered = np.cumsum([is_right(t, m, NEAR) for t, m, _ in sorted(lines, key=lambda one: -one[2])])
    precision = ordered / np.arange(1, len(ordered) + 1)

    def recall_at(limit: float) -> float | None:
        if not lines:
            return None
        enough = np.flatnonzero(precision >= limit)
        return float(ordered[enough[-1]]) / len(positives) if len(enough) else 0.0

    return StreamStudy(
        **facts,
        revisits=len(positives),
        loops=len(loops),
        false_loops=len(loops) - right,
        recall=right / len(positives),
        strict_recall=strict / len(positives),
        pairs=len(pairs),
        false_pairs=len(pairs) - pair_right,
        pair_recall=pair_right / len(positives),
        recall_at_100=recall_at(1.0),
        recall_at_99=recall_at(0.99),
    )


def study_stream(bench: Bench) -> list[StreamStudy]:
    """Study one drive as a stream, by every head, as one session and as two."""
    parts = (bench.database.tokens, bench.queries.tokens)
    count = len(parts[0])
    tokens = Tokens([patches for part in parts for patches in part.patches], grid=parts[0].grid)
    positives = {count + row: own for row, own in enumerate(bench.truth.positives) if len(own)}
    vectors = {"mean": pool_mean, "vlad": describe_vlad, "fixed": describe_fixed}
    described = {head: describe(tokens) for head, describe in vectors.items()}
    found = []
    for head in HEADS:
        for start in (None, count):
            if head == "tfa":
                decisions = decide_tfa(tokens, bench.encoder, start)
            else:
                decide = decide_fixed if head == "fixed" else decide_vectors
                decisions = decide(described[head], start)
            facts = {"dataset": bench.truth.name, "encoder": bench.encoder.id, "frames": len(tokens)}
            found.append(measure(decisions, positives, **facts, head=head, sessions=1 if start is None else 2))
    return found


def pool_mean(tokens: Tokens) -> np.ndarray:
    """Return the mean unit patch of every frame, centered on the stream, as unit vectors."""
    means = np.stack([l2_normalize(np.asarray(one, np.float32)).mean(axis=0) for one in tokens.patches])
    return l2_normalize(means - means.mean(axis=0))


def describe_vlad(tokens: Tokens) -> np.ndarray:
    """Return hard VLAD descriptors with 64 words of the whole stream, as AnyLoc's map-specific vocabulary."""
    spec, backend = HeadSpec(), backend_for("cpu")
    patches = sample_patches(tokens, 50_000, "float32", grid_patches)
    words = fit_vocabularies(patches, spec.words, backend)[0].centers
    described = describe_residuals(tokens, [words], [HARD], spec.temperature, backend)
    return l2_normalize(np.asarray(described[HARD, 0].descriptors, np.float32))


def describe_fixed(tokens: Tokens) -> np.ndarray:
    """Return TFA's second-order descriptors, without a fitted geometry, as unit vectors."""
    from tfa.method.second_order import describe_second_order, fit_directions

    directions = fit_directions(tokens.select(slice(0, 64)), HeadSpec.max_patches, constructions=1)
    [descriptors] = describe_second_order(tokens, directions)
    return l2_normalize(descriptors - descriptors.mean(axis=0))


# --- tables ----------------------------------------------------------------------------------------------------

TABLES = {
    "drives": (
        "Loops of TFA at the threshold that the drive sets, percent",
        (
            "drive",
            "sessions",
            "revisits",
            "loops",
            "false",
            "recall",
            "strict",
            "pairs",
            "false pairs",
            "recall of pairs",
        ),
    ),
    "heads": (
        "Recall of pairs at the threshold that the drive sets (false pairs), percent",
        ("drive", "sessions", *HEADS.values()),
    ),
    "precision": (
        "Recall at 100 % precision, frames ordered by the margin of lines of 20 frames, percent",
        ("drive", "sessions", *(title for head, title in HEADS.items() if head != "fixed")),
    ),
}


def table_rows(studies: Sequence[Mapping[str, Any]], table: str) -> list[tuple[str, ...]]:
    """Return the rows of a table of `TABLES`: one per stream."""
    streams: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = {}
    for one in studies:
        streams.setdefault((one["dataset"], one["sessions"]), {})[one["head"]] = one
    rows: list[tuple[str, ...]] = []
    for (dataset, sessions), heads in streams.items():
        about = (dataset, str(sessions))
        if table == "drives":
            one = heads["tfa"]
            found = (
                str(one["loops"]),
                str(one["false_loops"]),
                _percent(one["recall"]),
                _percent(one["strict_recall"]),
            )
            pairs = (str(one["pairs"]), str(one["false_pairs"]), _percent(one["pair_recall"]))
            rows.append((*about, str(one["revisits"]), *found, *pairs))
        elif table == "heads":
            cells = [heads[name] for name in HEADS if name in heads]
            rows.append((*about, *(f"{_percent(one['pair_recall'])} ({one['false_pairs']})" for one in cells)))
        else:
            lines = [heads[name] for name in HEADS if name in heads and name != "fixed"]
            rows.append((*about, *(_percent(one["recall_at_100"]) for one in lines)))
    return rows


def format_tables(studies: Sequence[Mapping[str, Any]]) -> str:
    """Format every table as Markdown."""
    return "\n".join(
        f"{title}\n\n{format_markdown(columns, table_rows(studies, table), 2)}"
        for table, (title, columns) in TABLES.items()
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Close loops in streams of database then queries, and compare heads under one sequence rule."""
    parser = make_parser(main.__doc__ or "", "Database and queries must be in driving order by name.", stored=True)
    return run_script(parser, _study, argv)


def _study(arguments: Namespace) -> None:
    if arguments.show is not None:
        print_text(format_tables(read_study(arguments.show)))
        return
    loaded, bars, model = load_datasets(arguments), open_progress(arguments), open_encoder(arguments)
    studies = [asdict(one) for data in loaded for one in study_stream(prepare(data, model, progress=bars))]
    if not delivered(studies, out=arguments.out, json=arguments.json):
        for table, (title, columns) in TABLES.items():
            say(f"{title}; {studies[0]['encoder']}", style="bold")
            print_table(columns, table_rows(studies, table), 2)
            say()


if __name__ == "__main__":
    sys.exit(main())
