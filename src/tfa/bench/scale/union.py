"""The part `union`: R@1 of every dataset alone, and with all datasets as one gallery, under heads of the benchmark.

What fewer numbers an image cost on the same gallery is measured by `tfa bench reduction`. A head that calibrates
does so for each dataset by 64 of its queries, drawn as in the first split of `tfa bench run`, alone and in the union
alike.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfa.base.progress import Progress, as_progress
from tfa.bench.heads.catalogue import head_card
from tfa.bench.heads.contract import Fitted, HeadCard, Photos, Shared
from tfa.bench.metrics.measures import recall_at
from tfa.bench.rank import answers_of_split
from tfa.bench.run import Bench, calibrated
from tfa.bench.scale.kept_rows import KeptRows
from tfa.bench.studies.joined_tokens import joined_tokens

PART = "union"
UNION = "all as one"
HEADS = ("anyloc", "tfa", "judged", "judged-c64", "judged-v", "judged-c64-v")


def run_union(
    benches: Sequence[Bench], heads: Sequence[str], kept: KeptRows, progress: Progress | bool | None
) -> Iterator[dict[str, Any]]:
    """A row for each gallery and head, heads of one gallery after each other: they share what is fitted."""
    bars = as_progress(progress)
    galleries: list[tuple[str, Sequence[Bench]]] = [(UNION, benches)]
    galleries += [(bench.truth.name, [bench]) for bench in benches]
    for gallery, members in galleries:
        missing = [name for name in heads if not kept.has(PART, f"{gallery}, {name}")]
        if not missing:
            continue
        database = _joined(members)
        shared = Shared(spec=members[0].spec, device=members[0].encoder.device, progress=bars)
        for name in missing:
            card = head_card(name)
            fitted = card.fit(database, shared)
            facts = {
                "gallery": gallery,
                "head": name,
                "title": card.title,
                "images": len(database),
                "recall": recalls(card, fitted, members, len(database), bars),
                "decisions": _in_words(fitted),
            }
            yield kept.keep(PART, f"{gallery}, {name}", facts)
        del shared
        gc.collect()


def _joined(members: Sequence[Bench]) -> Photos:
    if len(members) == 1:
        return members[0].database
    paths = [path for bench in members for path in bench.database.paths or ()]
    return Photos(joined_tokens([bench.database.tokens for bench in members]), tuple(paths))


def recalls(
    card: HeadCard, fitted: Fitted, members: Sequence[Bench], images: int, progress: Progress
) -> dict[str, float]:
    """R@1 of the queries of each dataset, the mean over constructions."""
    found, start = {}, 0
    for bench in members:
        split = card.plan.splits(len(bench.queries), bench.truth.conditions)[0]
        heads = [calibrated(fitted, bench.queries, fold.calibration) for fold in split.folds]
        answers = answers_of_split(split, heads, bench.queries, images, 1, progress)
        rows = split.evaluated
        positives = [np.asarray(bench.truth.positives[row]) + start for row in rows]
        own = [recall_at(answers.rankings[rows, column], positives, (1,))[0] for column in range(len(answers.replicas))]
        found[bench.truth.name] = float(np.mean(own))
        start += len(bench.database)
    return found


def _in_words(fitted: Fitted) -> str:
    """The head that was decided on, and whether answers are verified, where that was to be decided."""
    decisions = getattr(fitted, "decisions", {})
    kind = [str(decisions[key]) for key in ("representation", "carrier") if key in decisions]
    verified = decisions.get("verification", {}).get("used")
    return ", ".join([*kind, *([] if verified is None else ["verified" if verified else "not verified"])])
