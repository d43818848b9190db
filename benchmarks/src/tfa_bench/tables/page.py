"""Write the results page: every table of the records in a folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfa.encoders.catalogue import CATALOGUE, DEFAULT_ENCODER, parse_encoder
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
            "*Judged*: the head chosen with map images, its evidence, and the evidence of the best alternative.",
            "*Judged-C64*: how often each head was chosen with 64 queries, in ten splits.\n",
            "| dataset | judged | evidence | best alternative | judged-C64 |",
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
    names = (_name(fold["decisions"]) for folds in one.decisions for fold in folds)
    chosen = Counter(name.replace("centring", "centering") for name in names)
    return ", ".join(f"{name} {count}" for name, count in sorted(chosen.items(), key=lambda item: (-item[1], item[0])))


def _name(made: Mapping[str, Any]) -> str:
    """Return the candidate's name, as records spell it."""
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
            "## When reranking is admitted\n",
            "Maps no longer use this test; they rerank unless `--no-rerank` is set. This table shows why.\n",
            "R@1 without reranking, with reranking if the label-free test admits it (`+V`), and with reranking always.",
            "A decision is right if reranking was admitted and did not lower R@1, or was rejected and would have",
            "lowered it. **Bold**: reranking costs more than one point.\n",
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


# Heads whose differences from the peers are reported: ours under the default encoder, the paper's under the page's.
_DEFAULT_HEADS = ("second-order", "second-order-v", "second-order-online", "second-order-c64")
_PAPER_HEADS = ("tfa", "tfa-c64", "tfa-c64+", "dual-c64")
PRECISION_DEPTH = 12  # records of ten splits have this depth; deeper ones are cut to it for comparability


def results_page(results: Path, *, encoder: str, command: str) -> str:
    """Return the page as Markdown. `command` is the command that makes the records."""
    everything = read_scored(results, precision_depth=PRECISION_DEPTH)
    scored = [one for one in everything if one.encoder == encoder or one.sees == LABELS]
    if not any(one.encoder == encoder for one in scored):
        known = ", ".join(sorted({one.encoder for one in everything}))
        raise NoTable(f"{results} holds no record of encoder {encoder!r}; it has {known}")
    default = [one for one in everything if one.encoder == str(parse_encoder(DEFAULT_ENCODER))]
    default = default or scored
    tables = [*_tables(default, _DEFAULT_TABLES), *_tables(scored, _PAGE_TABLES)]
    decided = _tables(scored, ["decisions"])
    sections = [
        _introduction(encoder, command, recorded=all(one.algorithm for one in scored)),
        *tables[:1],  # first the default options
        _datasets(scored),
        *tables[1:],
        _against_peers(default, scored),
        _deep(scored),
        *decided,
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
[summary](../docs/results/summary.md) has the main tables with reading notes. This command computes the records and
writes the page:

```console
$ {command}
```

{_about_encoder(encoder)}
The first two tables show the default of `tfa build`, with the default encoder. All other tables compare heads on the
tokens of `{encoder}`.

- ᵒ marks heads that are not in the paper. `+V` reranks, `C64` is calibrated with 64 unlabeled queries, and `online`
  adapts to earlier queries. `tfa bench heads` describes every head.
- ᵈ marks the dual-vocabulary system: our reading, because the paper names its score calibration without a formula.
- *Judged* heads choose a head for each map without labels. Maps no longer do this:
  [choosing the head](../docs/explanation/choosing-the-head.md).
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


_DEFAULT_TABLES = ("product", "overview")  # of the default head, which is recorded under the default encoder
# Analyses of the paper and its tables that repeat these numbers are left out.
_PAGE_TABLES = ("heads", "primary", "aerial", "native", "spectral", "budgets", "ablation")


def _tables(scored: Sequence[Scored], names: Sequence[str]) -> Iterator[str]:
    shown = cells(scored)
    for name in names:
        try:
            yield markdown(layout(name, shown, both=name == "spectral"))
        except NoTable:
            continue  # no dataset of this group was recorded


def _against_peers(default: Sequence[Scored], scored: Sequence[Scored]) -> str:
    """Return differences in R@1 from every published method: of the default head, then of the paper's heads."""
    parts = [
        "## Differences from published methods\n",
        "Difference in R@1 in points, over the queries that both heads answered, with its 95 % bootstrap interval. "
        "**Bold**: below the published method. Tables of the second-order head, the default of `tfa build`, use the "
        "default encoder.\n",
        *_differences(default, _DEFAULT_HEADS),
        *_differences(scored, _PAPER_HEADS),
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
