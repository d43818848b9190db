"""Protocols: which queries calibrate a head, which are asked, and what the recalls say together.

    budget           C-N: N queries calibrate, the others are asked; ten splits
    full_query       FullQ: all queries calibrate and all are asked
    cross_fit        each half is asked of a head calibrated on the other
    conditions       several query sets (day, night, …): a budget shared by all of them, or one for each
    no_calibration   the head as it is

A head is calibrated on tokens alone; positives are read when its rankings are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from tfa.bench.protocol_results import ProtocolResult, Split, macro_average
from tfa.bench.protocol_runs import (
    FitTarget,
    HeadLike,
    Positives,
    Queries,
    Run,
    check_budget,
    drawn,
    fold_of,
    gathered,
    seeds,
)
from tfa.errors import BadSpec
from tfa.progress import Progress, as_progress, tracked
from tfa.tokens import Tokens

KS = (1, 5, 10)
SPLITS = 10  # split seeds 0 to 9


def no_calibration(
    head: HeadLike, queries: Tokens, positives: Positives, *, ks: Sequence[int] = KS, ensemble: bool = False
) -> ProtocolResult:
    """All queries asked of the head as it is: the row calibrated heads are compared with."""
    run = Run.of(head, lambda nobody: head, ks, ensemble=ensemble)
    split = run.split(None, Queries.of(queries, positives), [(np.arange(0), np.arange(len(queries)))])
    return run.result("no calibration", [split], saw=getattr(head, "saw", "database"))


def budget(
    head: Any,
    queries: Tokens,
    positives: Positives,
    n: int,
    *,
    splits: int = SPLITS,
    ks: Sequence[int] = KS,
    score: bool = False,
    ensemble: bool = False,
    fit_target: FitTarget | None = None,
    progress: bool | Progress | None = None,
) -> ProtocolResult:
    """C-N: in split `seed`, `default_rng(seed).permutation(queries)[:n]` calibrate and the others are asked.

    `score` adds robust score calibration (of a dual head: takes its robust form). `fit_target` replaces the
    head's own calibration; `head` may then be None. `ensemble` asks the sum of the replicas, not each of them.
    """
    run = Run.of(head, fit_target, ks, score=score, ensemble=ensemble)
    asked = Queries.of(queries, positives)
    check_budget(n, len(queries), "queries")
    done = [
        run.split(seed, asked, [drawn(seed, len(queries), n)])
        for seed in tracked(seeds(splits), splits, f"C{n}", as_progress(progress), "splits")
    ]
    return run.result(f"C{n}", done)


def full_query(
    head: Any,
    queries: Tokens,
    positives: Positives,
    *,
    ks: Sequence[int] = KS,
    score: bool = False,
    ensemble: bool = False,
    fit_target: FitTarget | None = None,
) -> ProtocolResult:
    """FullQ: every query, unlabelled, calibrates; every query is asked."""
    run = Run.of(head, fit_target, ks, score=score, ensemble=ensemble)
    everyone = np.arange(len(queries))
    return run.result("FullQ", [run.split(None, Queries.of(queries, positives), [(everyone, everyone)])])


def cross_fit(
    head: Any,
    queries: Tokens,
    positives: Positives,
    *,
    halves: Literal["even-odd", "contiguous"] = "even-odd",
    ks: Sequence[int] = KS,
    score: bool = False,
    ensemble: bool = False,
    fit_target: FitTarget | None = None,
) -> ProtocolResult:
    """Each half of the queries is asked of a head calibrated on the other; recall over all queries together."""
    run = Run.of(head, fit_target, ks, score=score, ensemble=ensemble)
    everyone = np.arange(len(queries))
    if len(queries) < 2:
        raise BadSpec(f"{len(queries)} queries have no two halves to cross-fit; give at least 2, better 32")
    if halves == "even-odd":
        one, other = everyone[0::2], everyone[1::2]
    elif halves == "contiguous":
        one, other = np.array_split(everyone, 2)
    else:
        raise BadSpec(f"halves={halves!r} is unknown; use 'even-odd' or 'contiguous'")
    split = run.split(None, Queries.of(queries, positives), [(other, one), (one, other)])
    return run.result(f"cross-fit {halves}", [split])


def conditions(
    head: Any,
    sets: Mapping[str, tuple[Tokens, Positives]],
    n: int,
    *,
    shared: bool = True,
    splits: int = SPLITS,
    ks: Sequence[int] = KS,
    score: bool = False,
    ensemble: bool = False,
    fit_target: FitTarget | None = None,
    progress: bool | Progress | None = None,
) -> ProtocolResult:
    """C-N over named query sets of one map; the recall of a split is the plain mean over the conditions.

    `shared`: one budget of n drawn over all queries, numbered through in the order of `sets`, and one head.
    Otherwise each condition draws its own n and has a head of its own; its queries are numbered from 0.
    """
    run = Run.of(head, fit_target, ks, score=score, ensemble=ensemble)
    named = {name: Queries.of(*given) for name, given in sets.items()}
    if not named:
        raise BadSpec("no condition was given; give {name: (tokens, positives)}")
    one_split = _shared_split if shared else _specific_split
    label = f"C{n} {'shared by' if shared else 'for each of'} {len(named)} conditions"
    done = [
        one_split(run, seed, named, n)
        for seed in tracked(seeds(splits), splits, label, as_progress(progress), "splits")
    ]
    return run.result(label, done)


def _shared_split(run: Run, seed: int, named: Mapping[str, Queries], n: int) -> Split:
    sizes = [len(asked.tokens) for asked in named.values()]
    check_budget(n, sum(sizes), "queries of all conditions")
    chosen, rest = drawn(seed, sum(sizes), n)
    fitted = run.fit_target(gathered([asked.tokens for asked in named.values()], chosen))
    recalls = {}
    for (name, asked), end, size in zip(named.items(), np.cumsum(sizes), sizes, strict=True):
        own = rest[(rest >= end - size) & (rest < end)] - (end - size)
        if not len(own):
            raise BadSpec(f"a budget of {n} takes all {size} queries of {name!r} in split {seed}; use a smaller one")
        recalls[name] = run.recalls(asked, [(own, fitted)])
    return Split(seed, (fold_of(chosen, rest, fitted),), macro_average(list(recalls.values())), recalls)


def _specific_split(run: Run, seed: int, named: Mapping[str, Queries], n: int) -> Split:
    alone = {}
    for name, asked in named.items():
        check_budget(n, len(asked.tokens), f"queries of {name!r}")
        alone[name] = run.split(seed, asked, [drawn(seed, len(asked.tokens), n)], name)
    recalls = {name: split.recalls for name, split in alone.items()}
    folds = tuple(fold for split in alone.values() for fold in split.folds)
    return Split(seed, folds, macro_average(list(recalls.values())), recalls)
