"""The page of results: every table of a folder of records, and in words where TFA wins and where it loses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tfa.encoders.catalogue import CATALOGUE
from tfa.evaluate.metrics import Paired
from tfa_bench.heads.catalogue import GROUPS
from tfa_bench.metrics.estimates import Scored
from tfa_bench.metrics.scored import paired
from tfa_bench.records import LABELS
from tfa_bench.tables.admissions import admissions
from tfa_bench.tables.judgements import judgements
from tfa_bench.tables.other_encoders import other_encoders
from tfa_bench.tables.paper_figures import BACKBONES
from tfa_bench.tables.render import markdown
from tfa_bench.tables.table import NoTable, cells, read_scored
from tfa_bench.tables.table_specs import LAYOUTS, layout

OWN = (
    "tfa",
    "tfa-c64",
    "tfa-c64+",
    "dual-c64",
    "judged",
    "judged-online",
    "judged-c64",
)  # heads whose differences from the peers are reported
PRECISION_DEPTH = 12  # of records of ten splits; deeper ones are cut to it, so that numbers can be compared


def results_page(results: Path, *, encoder: str, command: str) -> str:
    """Markdown. `command` is how the records are made again."""
    everything = read_scored(results, precision_depth=PRECISION_DEPTH)
    scored = [one for one in everything if one.encoder == encoder or one.sees == LABELS]
    if not any(one.encoder == encoder for one in scored):
        known = ", ".join(sorted({one.encoder for one in everything}))
        raise NoTable(f"{results} holds no record of encoder {encoder!r}; it has {known}")
    tables = list(_tables(scored))
    sections = [
        _introduction(encoder, command, recorded=all(one.algorithm for one in scored)),
        *tables[:1],  # first what a user gets
        _datasets(scored),
        *tables[1:],
        _against_peers(scored),
        _deep(scored),
        _decisions(scored),
        judgements(scored),
        admissions(scored),
        other_encoders(scored, [one for one in everything if one.encoder != encoder and one.sees != LABELS]),
    ]
    return "\n".join(section.rstrip() + "\n" for section in sections if section)


_UNRECORDED = """
The records carry no revision of the algorithm: they were made before revisions were recorded, and `tfa bench run`
makes them again.
"""


def _introduction(encoder: str, command: str, *, recorded: bool) -> str:
    return f"""# Results

Every number on this page is computed from the records in [`results/`](../results) by `tfa bench results`. The records
and the page are made by

```console
$ {command}
```

{_about_encoder(encoder)}What the page compares is heads on the same tokens. Rows marked ᵒ are ours, beyond the paper.
RIA is a reconstruction; SegVLAD runs on superpixels or on MobileSAM's masks, not on SAM's. What each head is:
[benchmark.md](benchmark.md). Heads that learn a vocabulary come out otherwise [on another
processor](benchmark.md#on-another-processor).
Recall in percent; a query without positives counts as missed. Words: [glossary](glossary.md).
{"" if recorded else _UNRECORDED}"""


def _about_encoder(encoder: str) -> str:
    backbone = BACKBONES.get(encoder)
    if backbone is not None:
        return f"The encoder is `{encoder}`, the paper's {backbone}.\n\n"
    card = CATALOGUE.get(encoder.partition("@")[0])
    about = "" if card is None else f"\n({card.about})"
    if encoder.endswith("/hf"):
        about += ",\nits positions resampled as transformers does"
    return (
        f"**The encoder is `{encoder}`{about},\n"
        "not one of the paper's: these figures are not the paper's figures, and its figures beside them are for\n"
        "orientation only.**\n\n"
    )


def _datasets(scored: Sequence[Scored]) -> str:
    rows = [
        f"| {one.dataset_title} | `{one.dataset}` | {one.database} | {one.queries} | {_positives(one)} |"
        for one in _first_of_each(scored)
    ]
    head = "## Datasets\n\n| dataset | name | database | queries | a positive is |\n|---|---|--:|--:|---|\n"
    return head + "\n".join(rows)


def _positives(one: Scored) -> str:
    from tfa_bench.datasets.card import cards as dataset_cards

    card = dataset_cards().get(one.dataset)
    return "" if card is None else card.positives


def _tables(scored: Sequence[Scored]) -> Iterator[str]:
    shown = cells(scored)
    first = ("product", "overview", "heads")
    for name in (*first, *(name for name in LAYOUTS if name not in first)):
        try:
            yield markdown(layout(name, shown, both=name == "spectral"))
        except NoTable:
            continue  # no dataset of that kind was recorded


def _against_peers(scored: Sequence[Scored]) -> str:
    """Differences in R@1 from every peer, and the datasets where they are losses."""
    by_head = {(one.dataset, one.head): one for one in scored}
    peers = sorted(one.head for one in _first_of_each_head(scored) if _is_peer(one))
    parts = ["## Against the peers\n"]
    parts.append(
        "Difference in R@1, in points, over the queries that both heads answered, with its 95 % bootstrap interval "
        "over queries. **Bold**: below the peer.\n"
    )
    for own in OWN:
        rows, lost = [], []
        for first in _first_of_each(scored):
            mine = by_head.get((first.dataset, own))
            if mine is None:
                continue
            compared = {
                peer: paired(mine, by_head[first.dataset, peer]) for peer in peers if (first.dataset, peer) in by_head
            }
            rows.append(f"| {first.dataset_title} | " + " | ".join(_difference(compared.get(p)) for p in peers) + " |")
            lost += [(first.dataset_title, peer) for peer, one in compared.items() if one.mean < 0]
        if not rows:
            continue
        titles = {one.head: one.title for one in scored}
        parts.append(f"### {titles[own]}\n")
        parts.append(f"| dataset | {' | '.join(titles[p] for p in peers)} |\n|---|{'--:|' * len(peers)}")
        parts.append("\n".join(rows) + "\n")
        peers_above = "; ".join(
            f"{titles[peer]} on {', '.join(name for name, other in lost if other == peer)}"
            for peer in peers
            if any(other == peer for _, other in lost)
        )
        parts.append(
            f"{titles[own]} is below {peers_above}.\n" if peers_above else f"{titles[own]} is below no peer.\n"
        )
    return "\n".join(parts)


def _difference(one: Paired | None) -> str:
    if one is None:
        return "–"
    text = f"{100 * one.mean:+.1f} [{100 * one.low:+.1f}, {100 * one.high:+.1f}]"
    return f"**{text}**" if one.mean < 0 else text


def _is_peer(one: Scored) -> bool:
    name = one.head.partition("-")[0]
    return name not in ("tfa", "dual", "hard", "soft", "second", "judged") and one.sees not in ("target", LABELS)


def _deep(scored: Sequence[Scored]) -> str:
    """R@1/5/10/20, mAP and what confidence is worth, for the main heads of each dataset."""
    parts = [
        "## Deeper: recall at 1 to 20, mean average precision, confidence\n",
        f"mAP over the first {PRECISION_DEPTH} places. PR: area under precision against recall when answers are\n"
        "accepted by the z-score of the best match, or by the confidence of verification. R@99P: share of all queries\n"
        "answered rightly while 99 % of the accepted answers are right.\n",
    ]
    for first in _first_of_each(scored):
        own = {one.head: one for one in scored if one.dataset == first.dataset}
        parts.append(f"### {first.dataset_title}\n")
        parts.append("| head | R@1 [95 %] | R@5 | R@10 | R@20 | mAP | PR | R@99P |\n|---|--:|--:|--:|--:|--:|--:|--:|")
        parts.append("\n".join(_deep_row(own[head]) for head in GROUPS["main"] if head in own) + "\n")
    return "\n".join(parts)


def _deep_row(one: Scored) -> str:
    deviation = f" ± {100 * one.recalls[1].sd:.2f}" if len(one.seeds) > 1 else ""
    first = f"{100 * one.recalls[1].mean:.2f}{deviation} [{100 * one.interval.low:.1f}, {100 * one.interval.high:.1f}]"
    recalls = [f"{100 * one.recalls[k].mean:.2f}" if k in one.recalls else "–" for k in (5, 10, 20)]
    precision = one.mean_average_precision
    accepted = [f"{100 * value.mean:.1f}" for value in (one.acceptance.area, one.acceptance.recall_at_99)]
    average = "–" if precision is None else f"{100 * precision.mean:.2f}"
    return f"| {one.title} | {first} | " + " | ".join([*recalls, average, *accepted]) + " |"


def _decisions(scored: Sequence[Scored]) -> str:
    """What was decided without labels, by the database and by 64 queries."""
    parts = [
        "## What was decided\n",
        "TFA from the database alone; C64 over its ten splits (how many splits chose what).\n",
        "| dataset | TFA | c | C64: assignment | C64: carrier | C64: global token | C64: median c |",
        "|---|---|--:|---|---|---|--:|",
    ]
    for first in _first_of_each(scored):
        own = {one.head: one for one in scored if one.dataset == first.dataset}
        if "tfa" in own:
            parts.append(f"| {first.dataset_title} | {_database_decision(own['tfa'])} | {_c64(own.get('tfa-c64'))} |")
    return "\n".join(parts) + "\n"


def _database_decision(one: Scored) -> str:
    made = one.decisions[0][0]["decisions"]
    token = "with CLS" if made["admit_cls"] else "no CLS"
    return f"{made['assignment']}, {made['carrier']}, {token} | {made['c']:.3f}"


def _c64(one: Scored | None) -> str:
    if one is None:
        return "– | – | – | –"
    made = [fold["decisions"] for folds in one.decisions for fold in folds]
    counts = [Counter(str(decisions[key]) for decisions in made) for key in ("route", "carrier", "admit_cls")]
    counts[2] = Counter({{"True": "used", "False": "left out"}[name]: n for name, n in counts[2].items()})
    strengths = sorted(next(iter(decisions["strengths"].values()))["c"] for decisions in made)
    counted = [", ".join(f"{name} {n}" for name, n in sorted(count.items())) for count in counts]
    return " | ".join([*counted, f"{strengths[len(strengths) // 2]:.3f}"])


def _first_of_each(scored: Sequence[Scored]) -> list[Scored]:
    """One record of each dataset, largest dataset first."""
    by_dataset: dict[str, Scored] = {}
    for one in scored:
        by_dataset.setdefault(one.dataset, one)
    return sorted(by_dataset.values(), key=lambda one: (-one.queries, one.dataset))


def _first_of_each_head(scored: Sequence[Scored]) -> list[Scored]:
    by_head: dict[str, Scored] = {}
    for one in scored:
        by_head.setdefault(one.head, one)
    return list(by_head.values())
