"""What the judge decided, by the map's own photos and by 64 queries, as records say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tfa_bench.metrics.estimates import Scored


def judgements(scored: Sequence[Scored]) -> str:
    """A row for each dataset; nothing if no judged head was recorded."""
    by_head = {(one.dataset, one.head): one for one in scored}
    rows = []
    for dataset in dict.fromkeys(one.dataset for one in scored):
        database, target = by_head.get((dataset, "judged")), by_head.get((dataset, "judged-c64"))
        known = database or target
        if known is not None:
            rows.append(f"| {known.dataset_title} | {_by_database(database)} | {_by_target(target)} |")
    if not rows:
        return ""
    return "\n".join(
        [
            "## What the judge decided\n",
            "The head chosen by the map's own photos, with the evidence that its first answers share with them and the",
            "best of the others; and how often each head was chosen by 64 queries, over ten splits.\n",
            "| dataset | judged | evidence | next best | judged-C64 |",
            "|---|---|--:|--:|---|",
            *rows,
        ]
    )


def _by_database(one: Scored | None) -> str:
    if one is None:
        return "– | – | –"
    made = one.decisions[0][0]["decisions"]
    name, candidates = _name(made), made["candidates"]
    if name not in candidates:  # patches that could not be compared
        return f"{name} | – | –"
    others = [other["value"] for key, other in candidates.items() if key != name]
    own = candidates[name]
    return f"{name} | {own['value']:.2f} ± {own['error']:.2f} | {max(others):.2f}" if others else f"{name} | – | –"


def _by_target(one: Scored | None) -> str:
    if one is None:
        return "–"
    chosen = Counter(_name(fold["decisions"]) for folds in one.decisions for fold in folds)
    return ", ".join(f"{name} {count}" for name, count in sorted(chosen.items(), key=lambda item: (-item[1], item[0])))


def _name(made: Mapping[str, Any]) -> str:
    """As candidates are named."""
    more = "+centring" * made["centring"] + "+score" * made["score_calibrated"]
    return f"{made['representation']}/{made['carrier']}{more}"
