"""Where verification was admitted without labels, and where labels say that was right."""

from __future__ import annotations

from collections.abc import Sequence

from tfa_bench.metrics.estimates import Scored

BASES = ("tfa", "tfa-c64", "tfa-c64+", "dual-c64", "judged", "judged-online", "judged-c64")


def admissions(scored: Sequence[Scored]) -> str:
    """A row for each head on each dataset; nothing if no verified head was recorded."""
    by_head = {(one.dataset, one.head): one for one in scored}
    rows = []
    for dataset in dict.fromkeys(one.dataset for one in scored):
        for base in BASES:
            three = [by_head.get((dataset, name)) for name in (base, f"{base}-v", f"{base}-v-always")]
            if None not in three:
                rows.append(_row(*(one for one in three if one is not None)))
    if not rows:
        return ""
    return "\n".join(
        [
            "## Verification: admitted where, and was it right?\n",
            "R@1 without verification, as the admission decides, and always with it. *Right*: splits where it was",
            "admitted and did not lower R@1, or was refused and would have. **Bold**: more than a point below the same",
            "head without.\n",
            "| dataset | head | without | +V | always | admitted | right |",
            "|---|---|--:|--:|--:|--:|--:|",
            *rows,
        ]
    )


def _row(without: Scored, decided: Scored, always: Scored) -> str:
    used = [bool(folds[0]["decisions"]["verification"]["used"]) for folds in decided.decisions]
    splits = zip(used, without.splits, always.splits, strict=True)
    right = sum(admitted == (verified[0] >= plain[0]) for admitted, plain, verified in splits)
    means = [100 * one.recalls[1].mean for one in (without, decided, always)]
    shown = [f"{mean:.2f}" for mean in means]
    if means[1] < means[0] - 1:
        shown[1] = f"**{shown[1]}**"
    cells = [without.dataset_title, without.title, *shown, f"{sum(used)} of {len(used)}", f"{right} of {len(used)}"]
    return f"| {' | '.join(cells)} |"
