"""The results page: every table of a folder of records, and a summary of wins and losses against peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfa.encoders.catalogue import CATALOGUE
from tfa.evaluate.metrics import Paired
from tfa_bench.heads.catalogue import GROUPS
from tfa_bench.records import LABELS
from tfa_bench.scores import Scored, paired
from tfa_bench.tables.paper_figures import BACKBONES
from tfa_bench.tables.table import NoTable, cells, markdown, read_scored
from tfa_bench.tables.table_specs import LAYOUTS, layout

PEERS = ("anyloc", "tfvpr", "ria", "segvlad-superpixels")
# Pairs of heads that the page compares: our heads and peers, calibrated and not, reranked and not.
_FINDINGS = (
    *((own, peer) for own in ("tfa", "second-order", "judged") for peer in PEERS),
    ("second-order", "tfa"),
    ("judged", "tfa"),
    ("tfa-c64", "tfa"),
    ("second-order-c64", "second-order"),
    ("second-order-online", "second-order"),
    ("judged-c64", "judged"),
    ("judged-online", "judged"),
    *((head, head.removesuffix("-v")) for head in GROUPS["main"] if head.endswith("-v")),
)
HOLDS, WITHIN_CHANCE, REVERSED = "hold", "have the same sign within chance", "do not hold"

ScoresByHead = Mapping[tuple[str, str], Scored]  # dataset and head → its score under one encoder


@dataclass(frozen=True)
class PageFinding:
    """A difference beyond chance under the page's encoder, and the same difference under another."""

    dataset: str  # title
    first: str  # titles of the heads
    second: str
    here: Paired
    there: Paired

    @property
    def verdict(self) -> str:
        if self.there.mean * self.here.mean <= 0:
            return REVERSED
        return HOLDS if beyond_chance(self.there) else WITHIN_CHANCE


def beyond_chance(difference: Paired) -> bool:
    """True if the 95 % interval excludes 0."""
    return difference.low > 0 or difference.high < 0


def other_encoders(scored: Sequence[Scored], others: Sequence[Scored]) -> str:
    """Return the section on other encoders. `scored` has the page's encoder, `others` the rest; "" without others."""
    here = {(one.dataset, one.head): one for one in scored}
    parts: list[str] = []
    for encoder in sorted({one.encoder for one in others}):
        there = {(one.dataset, one.head): one for one in others if one.encoder == encoder}
        if any(key in here for key in there):
            parts += _of_encoder(encoder, here, there)
    if not parts:
        return ""
    return "\n".join(
        [
            "## Under other encoders\n",
            "R@1 in percent, in brackets R@1 of the same head under the page's encoder. Below each table: whether the",
            "page's findings hold. A finding is a difference in R@1 between two heads whose 95 % bootstrap interval",
            "excludes 0.\n",
            *parts,
        ]
    )


def _of_encoder(encoder: str, here: ScoresByHead, there: ScoresByHead) -> Iterator[str]:
    datasets = sorted({one.dataset for one in there.values()}, key=lambda name: (-_queries(there, name), name))
    titles = {one.dataset: one.dataset_title for one in there.values()}
    card = CATALOGUE.get(encoder.partition("@")[0])
    yield f"### `{encoder}`\n"
    if card is not None:
        yield f"{card.about}.\n"
    yield f"| head | {' | '.join(titles[name] for name in datasets)} |\n|---|{'--:|' * len(datasets)}"
    for head in GROUPS["main"]:
        row = [there.get((name, head)) for name in datasets]
        if any(row):
            title = next(one.title for one in row if one is not None)
            yield f"| {title} | " + " | ".join(_recalls(one, here) for one in row) + " |"
    found = list(findings(datasets, here, there))
    counts = {verdict: sum(one.verdict == verdict for one in found) for verdict in (HOLDS, WITHIN_CHANCE, REVERSED)}
    listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    yield f"\n{len(found)} findings on these datasets: {listed}." if found else "\nNo findings to compare."
    for one in found:
        if one.verdict == REVERSED:
            heads = f"{one.first} against {one.second} on {one.dataset}"
            yield f"- {heads}: {_points(one.here)} under the page's encoder, {_points(one.there)} under this one."
    yield ""


def findings(datasets: Sequence[str], here: ScoresByHead, there: ScoresByHead) -> Iterator[PageFinding]:
    """Yield every finding whose two heads were recorded under both encoders."""
    for name in datasets:
        for first, second in _FINDINGS:
            keys = (name, first), (name, second)
            if all(key in here and key in there for key in keys):
                known = paired(here[keys[0]], here[keys[1]])
                if beyond_chance(known):
                    found = paired(there[keys[0]], there[keys[1]])
                    one, other = here[keys[0]], here[keys[1]]
                    yield PageFinding(one.dataset_title, one.title, other.title, known, found)


def _queries(there: ScoresByHead, dataset: str) -> int:
    return max(one.queries for one in there.values() if one.dataset == dataset)


def _recalls(one: Scored | None, here: ScoresByHead) -> str:
    if one is None:
        return "–"
    known = here.get((one.dataset, one.head))
    beside = "" if known is None else f" ({100 * known.recalls[1].mean:.2f})"
    return f"{100 * one.recalls[1].mean:.2f}{beside}"


def _points(one: Paired) -> str:
    return f"{100 * one.mean:+.1f} [{100 * one.low:+.1f}, {100 * one.high:+.1f}]"


def judgments(scored: Sequence[Scored]) -> str:
    """Return a table with a row per dataset; "" if no judged head was recorded."""
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
            "## Decisions of the judge\n",
            "The head chosen with the map images, its evidence (shared with its top answers) and that of the best",
            "alternative; and how often each head was chosen with 64 queries, over ten splits.\n",
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
    if name not in candidates:  # patches could not be compared
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
    """Return the candidate's name."""
    more = "+centring" * made["centring"] + "+score" * made["score_calibrated"]
    return f"{made['representation']}/{made['carrier']}{more}"


_BASES = ("tfa", "tfa-c64", "tfa-c64+", "dual-c64", "judged", "judged-online", "judged-c64")


def admissions(scored: Sequence[Scored]) -> str:
    """Return a table with a row per head and dataset; "" if no reranking head was recorded."""
    by_head = {(one.dataset, one.head): one for one in scored}
    rows = []
    for dataset in dict.fromkeys(one.dataset for one in scored):
        for base in _BASES:
            three = [by_head.get((dataset, name)) for name in (base, f"{base}-v", f"{base}-v-always")]
            if None not in three:
                rows.append(_row(*(one for one in three if one is not None)))
    if not rows:
        return ""
    return "\n".join(
        [
            "## Reranking: when is it admitted, and is that right?\n",
            "R@1 without reranking, as the admission test decides, and always with it. *Right*: splits where it was",
            "admitted and did not lower R@1, or was rejected and would have. **Bold**: more than a point below this",
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


OURS_HEADS = (
    "tfa",
    "tfa-c64",
    "tfa-c64+",
    "dual-c64",
    "second-order",
    "second-order-online",
    "second-order-c64",
    "judged",
    "judged-online",
    "judged-c64",
)  # heads whose differences from the peers are reported
PRECISION_DEPTH = 12  # records of ten splits have this depth; deeper ones are cut to it for comparability


def results_page(results: Path, *, encoder: str, command: str) -> str:
    """Return the page as Markdown. `command` is the command that makes the records."""
    everything = read_scored(results, precision_depth=PRECISION_DEPTH)
    scored = [one for one in everything if one.encoder == encoder or one.sees == LABELS]
    if not any(one.encoder == encoder for one in scored):
        known = ", ".join(sorted({one.encoder for one in everything}))
        raise NoTable(f"{results} holds no record of encoder {encoder!r}; it has {known}")
    tables = list(_tables(scored))
    sections = [
        _introduction(encoder, command, recorded=all(one.algorithm for one in scored)),
        *tables[:1],  # first the default options
        _datasets(scored),
        *tables[1:],
        _against_peers(scored),
        _deep(scored),
        _decisions(scored),
        judgments(scored),
        admissions(scored),
        other_encoders(scored, [one for one in everything if one.encoder != encoder and one.sees != LABELS]),
    ]
    return "\n".join(section.rstrip() + "\n" for section in sections if section)


_UNRECORDED = """
The records have no revision of the algorithm: they were made before revisions were recorded. `tfa bench run`
makes them again.
"""


def _introduction(encoder: str, command: str, *, recorded: bool) -> str:
    return f"""# Results

`tfa bench results` computes every number on this page from the records in this folder. A
[summary](../docs/results/summary.md) has the main tables with reading notes. This command makes records and page:

```console
$ {command}
```

{_about_encoder(encoder)}The page compares heads on the same tokens. Rows marked ᵒ are ours, beyond the paper.
RIA is a reconstruction. SegVLAD uses superpixels or MobileSAM masks, not SAM masks. `tfa bench heads` describes every
head. Heads that learn a vocabulary differ slightly between processors. Recall is in percent; a query without positives
counts as missed. Terms: [glossary](../docs/reference/glossary.md).
{"" if recorded else _UNRECORDED}"""


def _about_encoder(encoder: str) -> str:
    backbone = BACKBONES.get(encoder)
    if backbone is not None:
        return f"The encoder is `{encoder}`, the paper's {backbone}.\n\n"
    card = CATALOGUE.get(encoder.partition("@")[0])
    about = "" if card is None else f"\n({card.about})"
    if encoder.endswith("/hf"):
        about += ",\nposition embeddings resampled as in transformers"
    return (
        f"**The encoder is `{encoder}`{about},\n"
        "which the paper does not use: these are not the paper's figures, and its figures next to them are for\n"
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
            continue  # no dataset of this group was recorded


def _against_peers(scored: Sequence[Scored]) -> str:
    """Return differences in R@1 from every peer, and the datasets with losses."""
    by_head = {(one.dataset, one.head): one for one in scored}
    peers = sorted(one.head for one in _first_of_each_head(scored) if _is_peer(one))
    parts = ["## Against the peers\n"]
    parts.append(
        "Difference in R@1, in points, over the queries that both heads answered, with its 95 % bootstrap interval "
        "over queries. **Bold**: below the peer.\n"
    )
    for own in OURS_HEADS:
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
            f"{titles[own]} is below {peers_above}.\n" if peers_above else f"{titles[own]} is not below any peer.\n"
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
    """Return R@1/5/10/20, mAP and acceptance by confidence, for the main heads of each dataset."""
    parts = [
        "## Deeper: recall at 1 to 20, mean average precision, confidence\n",
        f"mAP over the first {PRECISION_DEPTH} places. PR: area under precision against recall if answers are\n"
        "accepted by the z-score of the best match, or by the confidence of reranking. R@99P: share of all queries\n"
        "answered correctly while 99 % of the accepted answers are correct.\n",
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
    """Return the decisions made without labels, from the database and from 64 queries."""
    parts = [
        "## Decisions of TFA\n",
        "TFA with the database only; C64 over its ten splits (number of splits for each choice).\n",
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
    """Return one record per dataset, largest dataset first."""
    by_dataset: dict[str, Scored] = {}
    for one in scored:
        by_dataset.setdefault(one.dataset, one)
    return sorted(by_dataset.values(), key=lambda one: (-one.queries, one.dataset))


def _first_of_each_head(scored: Sequence[Scored]) -> list[Scored]:
    by_head: dict[str, Scored] = {}
    for one in scored:
        by_head.setdefault(one.head, one)
    return list(by_head.values())
