"""The section of the results page on encoders other than the page's: which of its findings hold there as well.

A finding is a difference in R@1 between two heads on one dataset that is beyond chance under the page's encoder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfa.encoders.catalogue import CATALOGUE
from tfa.evaluate.metrics import Paired
from tfa_bench.heads.catalogue import GROUPS
from tfa_bench.metrics.estimates import Scored
from tfa_bench.metrics.scored import paired

PEERS = ("anyloc", "tfvpr", "ria", "segvlad-superpixels")
# What the page's other sections say: our heads against the peers, calibrated against not, verified against not.
FINDINGS = (
    *((own, peer) for own in ("tfa", "judged") for peer in PEERS),
    ("judged", "tfa"),
    ("tfa-c64", "tfa"),
    ("judged-c64", "judged"),
    ("judged-online", "judged"),
    *((head, head.removesuffix("-v")) for head in GROUPS["main"] if head.endswith("-v")),
)
HOLDS, WITHIN_CHANCE, REVERSED = "hold", "have the same sign within chance", "do not hold"

ByHead = Mapping[tuple[str, str], Scored]  # dataset and head → its score under one encoder


@dataclass(frozen=True)
class Finding:
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
    """Whether the 95 % interval leaves out 0."""
    return difference.low > 0 or difference.high < 0


def other_encoders(scored: Sequence[Scored], others: Sequence[Scored]) -> str:
    """`scored` is of the page's encoder, `others` of all the rest; "" where there are none."""
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
            "R@1 in percent, in brackets that of the same head under the page's encoder. Below each table: what became",
            "of the page's findings, differences in R@1 between two heads on a dataset whose 95 % bootstrap interval",
            "leaves out 0.\n",
            *parts,
        ]
    )


def _of_encoder(encoder: str, here: ByHead, there: ByHead) -> Iterator[str]:
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
    yield f"\nOf {len(found)} findings on these datasets: {listed}." if found else "\nNo finding to compare."
    for one in found:
        if one.verdict == REVERSED:
            heads = f"{one.first} against {one.second} on {one.dataset}"
            yield f"- {heads}: {_points(one.here)} under the page's encoder, {_points(one.there)} under this one."
    yield ""


def findings(datasets: Sequence[str], here: ByHead, there: ByHead) -> Iterator[Finding]:
    """Every finding whose two heads were recorded under both encoders."""
    for name in datasets:
        for first, second in FINDINGS:
            keys = (name, first), (name, second)
            if all(key in here and key in there for key in keys):
                known = paired(here[keys[0]], here[keys[1]])
                if beyond_chance(known):
                    found = paired(there[keys[0]], there[keys[1]])
                    one, other = here[keys[0]], here[keys[1]]
                    yield Finding(one.dataset_title, one.title, other.title, known, found)


def _queries(there: ByHead, dataset: str) -> int:
    return max(one.queries for one in there.values() if one.dataset == dataset)


def _recalls(one: Scored | None, here: ByHead) -> str:
    if one is None:
        return "–"
    known = here.get((one.dataset, one.head))
    beside = "" if known is None else f" ({100 * known.recalls[1].mean:.2f})"
    return f"{100 * one.recalls[1].mean:.2f}{beside}"


def _points(one: Paired) -> str:
    return f"{100 * one.mean:+.1f} [{100 * one.low:+.1f}, {100 * one.high:+.1f}]"
