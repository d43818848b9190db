"""Write the results page: every table of the records in a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfa.encoders.catalogue import CATALOGUE
from tfa.evaluate.metrics import Paired
from tfa_bench.heads.catalogue import GROUPS
from tfa_bench.records import LABELS
from tfa_bench.scores import Scored, paired
from tfa_bench.tables.paper_figures import BACKBONES
from tfa_bench.tables.table import NoTable, cells, markdown, read_scored
from tfa_bench.tables.table_specs import layout

PEERS = ("anyloc", "tfvpr", "ria", "segvlad-superpixels")
# Pairs of heads that the page compares: our heads and peers, calibrated and not, reranked and not.
_FINDINGS = (
    *((own, peer) for own in ("tfa", "second-order") for peer in PEERS),
    ("second-order", "tfa"),
    ("tfa-c64", "tfa"),
    ("second-order-c64", "second-order"),
    ("second-order-online", "second-order"),
    *((head, head.removesuffix("-v")) for head in GROUPS["main"] if head.endswith("-v")),
)
HOLDS, WITHIN_CHANCE, REVERSED = "hold", "have the same sign within chance", "do not hold"

ScoresByHead = Mapping[tuple[str, str], Scored]  # dataset and head → its score under one encoder


@dataclass(frozen=True)
class PageFinding:
    """A difference beyond chance under the page's encoder, and the same difference under another encoder."""

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
            "R@1 in percent, with R@1 under the page's encoder in parentheses. A finding is a difference in R@1 whose",
            "95 % bootstrap interval excludes 0. A line below each table counts the findings that hold.\n",
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
    for head in (*GROUPS["main"], *GROUPS["depth-ablations"]):
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


# Heads whose differences from the peers are reported.
_COMPARED = (
    *("second-order", "second-order-v", "second-order-online", "second-order-c64"),
    *("tfa", "tfa-c64", "tfa-c64+", "dual-c64"),
)
PRECISION_DEPTH = 12  # records of ten splits have this depth; deeper ones are cut to it for comparability


def results_page(results: Path, *, encoder: str, command: str) -> str:
    """Return the page as Markdown. `command` is the command that makes the records."""
    everything = read_scored(results, precision_depth=PRECISION_DEPTH)
    scored = [one for one in everything if one.encoder == encoder or one.sees == LABELS]
    if not any(one.encoder == encoder for one in scored):
        known = ", ".join(sorted({one.encoder for one in everything}))
        raise NoTable(f"{results} holds no record of encoder {encoder!r}; it has {known}")
    tables = [*_tables(scored, _PAGE_TABLES)]
    sections = [
        _introduction(encoder, command, recorded=all(one.algorithm for one in scored)),
        *tables[:1],  # first the default options
        _datasets(scored),
        *tables[1:],
        _against_peers(scored),
        _deep(scored),
        *_tables(scored, ["decisions"]),
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
[summary](../docs/results/summary.md) has the main tables with reading notes. This command computes the records and
writes the page:

```console
$ {command}
```

{_about_encoder(encoder)}
- ᵒ marks heads that are not in the paper. `+V` reranks, `C64` is calibrated with 64 unlabeled queries, and `online`
  adapts to earlier queries. `tfa bench heads` describes every head.
- ᵈ marks the dual-vocabulary system: our reading, because the paper names its score calibration without a formula.
- RIA is a reconstruction. SegVLAD uses superpixels or MobileSAM masks, not SAM masks.
- Heads that learn a vocabulary differ slightly between processors.
- Recall is in percent. A query without positives counts as a miss.

The [glossary](../docs/reference/glossary.md) defines the terms.
{"" if recorded else _UNRECORDED}"""


def _about_encoder(encoder: str) -> str:
    backbone = BACKBONES.get(encoder)
    if backbone is not None:
        return f"The encoder is `{encoder}`, the paper's {backbone}.\n"
    card = CATALOGUE.get(encoder.partition("@")[0])
    about = "" if card is None else f"\n({card.about})"
    if encoder.endswith("/hf"):
        about += ". It resamples position embeddings\nas the transformers library does"
    return (
        f"The encoder is `{encoder}`{about}.\n"
        "**The paper does not use this encoder, so do not expect the paper's numbers.** Rows named *paper* show them.\n"
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


# Analyses of the paper and its tables that repeat these numbers are left out.
_PAGE_TABLES = ("product", "overview", "heads", "primary", "aerial", "native", "spectral", "budgets", "ablation")


def _tables(scored: Sequence[Scored], names: Sequence[str]) -> Iterator[str]:
    shown = cells(scored)
    for name in names:
        try:
            yield markdown(layout(name, shown, both=name == "spectral"))
        except NoTable:
            continue  # no dataset of this group was recorded


def _against_peers(scored: Sequence[Scored]) -> str:
    """Return differences in R@1 from every published method."""
    parts = [
        "## Differences from published methods\n",
        "Difference in R@1 in points, over the queries that both heads answered, with its 95 % bootstrap interval. "
        "**Bold**: below the published method. The second-order head is the default of `tfa build`.\n",
        *_differences(scored, _COMPARED),
    ]
    return "\n".join(parts)


def _differences(scored: Sequence[Scored], heads: Sequence[str]) -> Iterator[str]:
    """Yield a table for each head: a row for each dataset, a column for each peer."""
    by_head = {(one.dataset, one.head): one for one in scored}
    peers = sorted(one.head for one in _first_of_each_head(scored) if _is_peer(one))
    for own in heads:
        rows = []
        for first in _first_of_each(scored):
            mine = by_head.get((first.dataset, own))
            if mine is None:
                continue
            compared = {
                peer: paired(mine, by_head[first.dataset, peer]) for peer in peers if (first.dataset, peer) in by_head
            }
            rows.append(f"| {first.dataset_title} | " + " | ".join(_difference(compared.get(p)) for p in peers) + " |")
        if not rows:
            continue
        titles = {one.head: one.title for one in scored}
        yield f"### {titles[own]}\n"
        yield f"| dataset | {' | '.join(titles[p] for p in peers)} |\n|---|{'--:|' * len(peers)}"
        yield "\n".join(rows) + "\n"


def _difference(one: Paired | None) -> str:
    if one is None:
        return "–"
    text = f"{100 * one.mean:+.1f} [{100 * one.low:+.1f}, {100 * one.high:+.1f}]"
    return f"**{text}**" if one.mean < 0 else text


def _is_peer(one: Scored) -> bool:
    name = one.head.partition("-")[0]
    return name not in ("tfa", "dual", "hard", "soft", "fullq", "second", "judged") and one.sees not in (
        "target",
        LABELS,
    )


def _deep(scored: Sequence[Scored]) -> str:
    """Return R@1/5/10/20, mAP and acceptance by confidence, for the main heads of each dataset."""
    parts = [
        "## Recall at 1 to 20, mean average precision and confidence\n",
        f"- mAP: mean average precision of the first {PRECISION_DEPTH} images.\n"
        "- PR: area under the precision–recall curve. Answers are accepted by their confidence if the head reranks,\n"
        "  and by the z-score of the best match otherwise.\n"
        "- R@99P: recall at a precision of 99 %.\n",
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
