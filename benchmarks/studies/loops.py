"""Close loops in streams: the database of a drive, then its queries, as one session and as two.

Every head decides by the same rule (`tfa.online.loops`), from its own scores of each frame against all earlier ones.
Nothing is fitted on labels. A loop is right if it is within three frames of a positive, or a positive (strict).
A drive of two laps is a dataset as well: the first lap is its database, the second lap its queries.

`--joined` also joins one part of each drive to streams without loops, in which every loop is false.
"""

from __future__ import annotations

import random
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
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
from studies.orb_words import Vocabulary, describe_bags, find_vocabulary, read_vocabulary, score_bags
from tfa.cli.console import delivered, note, print_text, say
from tfa.core.arrays import backend_for, l2_normalize
from tfa.core.progress import Progress
from tfa.core.tokens import Tokens
from tfa.encoders import Encoder
from tfa.errors import MissingExtra
from tfa.maps.loop_closer import LoopCloser
from tfa.method.residuals import HARD, describe_residuals
from tfa.method.vocabulary import fit_vocabularies, grid_patches, sample_patches
from tfa.online.loops import SHORTEST_DRIVE, LoopDetector, LoopLine
from tfa.types import HeadSpec, LoopPair, LoopsResult
from tfa_bench.datasets.load import Dataset
from tfa_bench.run import Bench, prepare

GAP = 20  # frames
NEAR = 3  # frames from a positive
FIXED = 0.55  # cosine that a loop-closing user of MegaLoc published
OURS, ORB, FIXED_HEAD = ("tfa", "length"), "orb", "fixed"
HEADS = {
    "tfa": "TFA",
    "length": "TFA, length known",
    "mean": "mean patch",
    "vlad": "AnyLoc VLAD",
    ORB: "ORB words",
    FIXED_HEAD: "cosine ≥ 0.55, single frames",
}


@dataclass(frozen=True)
class StreamStudy:
    """Loops of one stream by one head, at the threshold that the drive sets; shares of 1."""

    dataset: str
    encoder: str | None  # None: the head reads images
    head: str
    sessions: int  # 2 if the break between database and queries was given, else 1
    frames: int
    revisits: int  # frames with a positive
    loops: int  # frames with a loop when they arrive
    false_loops: int
    precision: float | None  # None: no loops
    recall: float
    strict_false_loops: int
    strict_precision: float | None
    strict_recall: float
    pairs: int  # with the chains behind the loops
    false_pairs: int
    pair_recall: float
    recall_at_100: float  # recall at 100 % precision, lines of 20 frames ordered by margin
    recall_at_99: float
    strict_recall_at_100: float
    strict_recall_at_99: float


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

    def __init__(self, encoder: Encoder, length: int | None) -> None:
        super().__init__(encoder, GAP, length=length)
        self.rows: dict[int, np.ndarray] = {}

    def _decide(self, scores: np.ndarray) -> LoopLine | None:
        self.rows[len(self) - 1] = scores
        return super()._decide(scores)


def decide_tfa(tokens: Tokens, encoder: Encoder, start: int | None, length: int | None = None) -> Decisions:
    """Pass a stream through the closer; `start` is the first frame of another session."""
    closer = _Recorder(encoder, length)
    for row in range(len(tokens)):
        closer.step(tokens.select([row]), session=row == start)
    result = LoopsResult(frames=closer.frames, keyframes=len(closer), sessions=1, loops=closer.loops)
    nodes = closer._keyframes[:, 0].astype(int)
    first = None if start is None else int(np.searchsorted(nodes, start))
    lines = [(int(nodes[t]), int(nodes[m]), g) for t, m, g in list_lines(closer.rows, nodes, first)]
    return {loop.query: loop.match for loop in closer.loops}, {one.query: one.match for one in result.pairs}, lines


def decide_vectors(vectors: np.ndarray, start: int | None) -> Decisions:
    """Pass the cosines of unit vectors (m, d) through the same rule."""
    return decide_rows({t: vectors[:t] @ vectors[t] for t in range(1, len(vectors))}, start)


def decide_rows(rows: Mapping[int, np.ndarray], start: int | None) -> Decisions:
    """Pass the scores (t,) of each frame t against the earlier ones through the same rule."""
    nodes, detector = np.arange(len(rows) + 1), LoopDetector()
    loops: dict[int, int] = {}
    pairs: list[LoopPair] = []
    for t, scores in rows.items():
        if t == start:
            detector.restart()
        candidates, gap = find_candidates(t, nodes, start)
        line = detector.step(scores, candidates, max(t + 1, SHORTEST_DRIVE), 0.1, gap)
        if line is not None:
            loops[t] = line.match
            detector.links.add([(t - back, column) for back, column in line.chain])
            pairs += [LoopPair(query=t - back, match=column) for back, column in line.chain]
    return loops, {one.query: one.match for one in reversed(pairs)} | loops, list_lines(rows, nodes, start)


def decide_fixed(vectors: np.ndarray, start: int | None) -> Decisions:
    """Accept the best earlier frame if its cosine reaches a fixed threshold, as single-frame loop closers do."""
    best: list[tuple[int, int, float]] = []
    for t in range(1, len(vectors)):
        candidates, _ = find_candidates(t, np.arange(len(vectors)), start)
        if candidates.any():
            scores = np.where(candidates, vectors[:t] @ vectors[t], -np.inf)
            best.append((t, int(scores.argmax()), float(scores.max())))
    loops = {t: match for t, match, score in best if score >= FIXED}
    return loops, loops, best


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

    def recall_at(limit: float, near: int) -> float:
        ordered = np.cumsum([is_right(t, m, near) for t, m, _ in sorted(lines, key=lambda one: -one[2])])
        enough = np.flatnonzero(ordered / np.arange(1, len(ordered) + 1) >= limit)
        return float(ordered[enough[-1]]) / revisits if len(enough) else 0.0

    revisits = max(len(positives), 1)  # a stream without revisits has recall 0
    return StreamStudy(
        **facts,
        revisits=len(positives),
        loops=len(loops),
        false_loops=len(loops) - right,
        precision=right / len(loops) if loops else None,
        recall=right / revisits,
        strict_false_loops=len(loops) - strict,
        strict_precision=strict / len(loops) if loops else None,
        strict_recall=strict / revisits,
        pairs=len(pairs),
        false_pairs=len(pairs) - pair_right,
        pair_recall=pair_right / revisits,
        recall_at_100=recall_at(1.0, NEAR),
        recall_at_99=recall_at(0.99, NEAR),
        strict_recall_at_100=recall_at(1.0, 0),
        strict_recall_at_99=recall_at(0.99, 0),
    )


def study_stream(
    data: Dataset, heads: Sequence[str], bench: Bench | None, vocabulary: Vocabulary | None, progress: Progress
) -> list[StreamStudy]:
    """Study one drive as a stream, by every head, as one session and as two.

    Args:
        data: The drive.
        heads: Heads of `HEADS`.
        bench: The drive's tokens; None if all heads read images.
        vocabulary: ORB words; None without the head that needs them.
        progress: Progress bars.
    """
    photos, count = [*data.database, *data.queries], len(data.database)
    tokens = None if bench is None else join_tokens([bench.database.tokens, bench.queries.tokens])
    positives = {count + row: own for row, own in enumerate(data.positives) if len(own)}
    found = []
    for head in heads:
        facts: dict[str, Any] = {"dataset": data.card.name, "head": head, "frames": len(photos)}
        if head == ORB:
            assert vocabulary is not None
            rows = dict(enumerate(score_bags(describe_bags(photos, vocabulary, progress)), 1))
            decided = {start: decide_rows(rows, start) for start in (None, count)}
            encoder = None
        else:
            assert bench is not None
            assert tokens is not None
            decided = decide_by_tokens(head, tokens, bench.encoder, count)
            encoder = bench.encoder.id
        for start, decisions in decided.items():
            found.append(measure(decisions, positives, **facts, encoder=encoder, sessions=1 if start is None else 2))
    return found


def study_joined(benches: Sequence[Bench], heads: Sequence[str], number: int) -> list[StreamStudy]:
    """Study a stream without loops: the database or the queries of each drive, drawn and ordered by a seed."""
    rng, drives = random.Random(number), list(benches)
    rng.shuffle(drives)
    tokens = join_tokens([(one.database if rng.random() < 0.5 else one.queries).tokens for one in drives])
    found = []
    for head in (head for head in heads if head in OURS):
        decisions = decide_tfa(tokens, benches[0].encoder, None, len(tokens) if head == "length" else None)
        facts: dict[str, Any] = {"dataset": f"joined-{number}", "head": head, "encoder": benches[0].encoder.id}
        found.append(measure(decisions, {}, **facts, sessions=1, frames=len(tokens)))
    return found


def join_tokens(parts: Sequence[Tokens]) -> Tokens:
    """Return the tokens of several drives as one stream."""
    return Tokens([patches for part in parts for patches in part.patches], grid=parts[0].grid)


def decide_by_tokens(head: str, tokens: Tokens, encoder: Encoder, count: int) -> dict[int | None, Decisions]:
    """Return the decisions of a head without a break and with one before frame `count`."""
    starts = (None, count)
    if head in OURS:
        length = len(tokens) if head == "length" else None
        return {start: decide_tfa(tokens, encoder, start, length) for start in starts}
    describe = {"mean": pool_mean, "vlad": describe_vlad, FIXED_HEAD: describe_fixed}[head]
    decide, vectors = decide_fixed if head == FIXED_HEAD else decide_vectors, describe(tokens)
    return {start: decide(vectors, start) for start in starts}


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

_STREAM = ("drive", "sessions")
_DRIVES = ("revisits", "loops", "false", "precision", "recall", "strict", "pairs", "false pairs", "recall of pairs")
# Without a threshold, the length of the drive does not matter.
_ORDERED = {head: title for head, title in HEADS.items() if head != "length"} | {FIXED_HEAD: "cosine, single frames"}

TABLES = {
    "drives": ("Loops of TFA at the threshold that the drive sets, percent", (*_STREAM, *_DRIVES)),
    "heads": (
        "Recall of pairs at the threshold that the drive sets (false pairs), percent",
        (*_STREAM, *HEADS.values()),
    ),
    "precision": (
        "Recall at 100 % precision (at 99 %), frames ordered by the margin of lines of 20 frames, percent",
        (*_STREAM, *_ORDERED.values()),
    ),
    "strict": (
        "The same with strict labels: recall at 100 % precision (at 99 %), percent",
        (*_STREAM, *_ORDERED.values()),
    ),
    "loops": (
        "Precision / recall of loops, without their chains, at the threshold that the drive sets, percent",
        (*_STREAM, *HEADS.values()),
    ),
    "joined": (
        "False loops (false pairs) in streams without loops",
        ("stream", "frames", *(HEADS[head] for head in OURS)),
    ),
    "strict loops": ("The same with strict labels: precision / recall of loops, percent", (*_STREAM, *HEADS.values())),
}


def table_rows(studies: Sequence[Mapping[str, Any]], table: str) -> list[tuple[str, ...]]:
    """Return the rows of a table of `TABLES`: one per stream; a head that did not run has no numbers."""
    streams: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = {}
    for one in studies:
        streams.setdefault((one["dataset"], one["sessions"]), {})[one["head"]] = one
    rows: list[tuple[str, ...]] = []
    for (dataset, sessions), heads in streams.items():
        about, any_head = (dataset, str(sessions)), next(iter(heads.values()))
        if (table == "joined") == (any_head["revisits"] > 0):
            continue
        if table == "joined":
            about = (dataset, str(any_head["frames"]))
            cells = [f"{heads[head]['loops']} ({heads[head]['pairs']})" if head in heads else "–" for head in OURS]
        elif table == "drives":
            cells = _drive_cells(heads["tfa"]) if "tfa" in heads else ["–"] * len(_DRIVES)
        else:
            shown = _ORDERED if table in ("precision", "strict") else HEADS
            cells = [_head_cell(heads[head], table) if head in heads else "–" for head in shown]
        rows.append((*about, *cells))
    return rows


def _drive_cells(one: Mapping[str, Any]) -> list[str]:
    shares = [_percent(one[key]) for key in ("precision", "recall", "strict_recall")]
    pairs = [str(one["pairs"]), str(one["false_pairs"]), _percent(one["pair_recall"])]
    return [str(one["revisits"]), str(one["loops"]), str(one["false_loops"]), *shares, *pairs]


def _head_cell(one: Mapping[str, Any], table: str) -> str:
    if table == "heads":
        return f"{_percent(one['pair_recall'])} ({one['false_pairs']})"
    kind = "strict_" if table.startswith("strict") else ""
    if table.endswith("loops"):
        return f"{_percent(one[f'{kind}precision'])} / {_percent(one[f'{kind}recall'])}"
    return f"{_percent(one[f'{kind}recall_at_100'])} ({_percent(one[f'{kind}recall_at_99'])})"


def format_tables(studies: Sequence[Mapping[str, Any]]) -> str:
    """Format every table as Markdown."""
    return "\n".join(
        f"{title}\n\n{format_markdown(columns, table_rows(studies, table), 2)}"
        for table, (title, columns) in TABLES.items()
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def join_studies(studies: Sequence[Mapping[str, Any]], earlier: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the studies of this run and the earlier ones that it did not repeat, ordered by drive and head."""
    joined = {(one["dataset"], one["head"], one["sessions"]): one for one in (*earlier, *studies)}
    drives = list(dict.fromkeys(dataset for dataset, _, _ in joined))
    heads = list(HEADS)
    return [joined[key] for key in sorted(joined, key=lambda key: (drives.index(key[0]), heads.index(key[1]), key[2]))]


def main(argv: Sequence[str] | None = None) -> int:
    """Close loops in streams of database then queries, and compare heads under one sequence rule."""
    parser = make_parser(main.__doc__ or "", "Database and queries must be in driving order by name.", stored=True)
    parser.add_argument(
        "--heads", type=_name_heads, metavar="NAMES", help=f"heads, separated by commas [default: {','.join(HEADS)}]"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FILE.json", help="also keep the numbers of a stored result that do not rerun"
    )
    parser.add_argument("--joined", type=int, default=0, metavar="N", help="also study N streams without loops")
    return run_script(parser, _study, argv)


def _name_heads(text: str) -> list[str]:
    if wrong := set(text.split(",")) - set(HEADS):
        raise ArgumentTypeError(f"unknown head {sorted(wrong)[0]!r}; available: {', '.join(HEADS)}")
    return [head for head in HEADS if head in text.split(",")]


def _study(arguments: Namespace) -> None:
    if arguments.show is not None:
        print_text(format_tables(read_study(arguments.show)))
        return
    earlier = [] if arguments.keep is None else read_study(arguments.keep)
    heads = arguments.heads or list(HEADS)
    loaded, bars = load_datasets(arguments), open_progress(arguments)
    vocabulary = None
    if ORB in heads:
        try:
            vocabulary = read_vocabulary(find_vocabulary())
        except MissingExtra as error:
            if arguments.heads:
                raise
            heads.remove(ORB)
            note(f"{HEADS[ORB]} are left out: {error}")
    model = open_encoder(arguments) if set(heads) - {ORB} else None
    studies: list[Mapping[str, Any]] = []
    benches = []
    for data in loaded:
        bench = None if model is None else prepare(data, model, progress=bars)
        studies += [asdict(one) for one in study_stream(data, heads, bench, vocabulary, bars)]
        benches += [] if bench is None else [bench]
    for number in range(arguments.joined if benches else 0):
        studies += [asdict(one) for one in study_joined(benches, heads, number)]
    studies = join_studies(studies, earlier)
    if not delivered(studies, out=arguments.out, json=arguments.json):
        for table, (title, columns) in TABLES.items():
            say(title if model is None else f"{title}; {model.id}", style="bold")
            print_table(columns, table_rows(studies, table), 2)
            say()


if __name__ == "__main__":
    sys.exit(main())
