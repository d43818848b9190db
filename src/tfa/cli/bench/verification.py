"""`tfa bench verification`: verification as built against other ways to do it, on datasets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tfa.cli import options
from tfa.cli.bench.run import load_all, loaded_encoder, named_folder, named_heads
from tfa.cli.console import console, delivered, open_table, print_text, say, wants_progress
from tfa.errors import BadSpec
from tfa.types import EncoderOptions

if TYPE_CHECKING:
    from tfa.bench.heads.contract import HeadCard, Shared
    from tfa.bench.run import Bench
    from tfa.bench.studies.verification import Studied, Study

BASE_HEAD = "tfa-c64+"


@options.with_encoder
def verification(
    dataset: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=PATH",
            help="A dataset and its folder, as for [bold]tfa bench run[/bold]. May be given several times: the first, "
            "third, … are for tuning, the second, fourth, … confirm.",
        ),
    ],
    heads: Annotated[
        str, typer.Option(metavar="NAME,NAME,…", help="Heads whose candidates are verified, each in a table.")
    ] = BASE_HEAD,
    factors: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME,…", help="Compare variants of these factors only, such as candidates,fusion."),
    ] = None,
    queries: Annotated[
        int | None, typer.Option(min=1, help="Use at most so many queries of each dataset, evenly spaced.")
    ] = None,
    matcher: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Compare verification with a learned matcher instead, on the same 20 candidates: aliked-lightglue.",
        ),
    ] = None,
    encoder: options.EncoderOption = "dinov2-s14-focus",
    out: options.JsonFile = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Compare ways to verify candidates, one factor changed at a time: R@1 of the first split and replica."""
    from tfa.bench.heads.catalogue import head_cards
    from tfa.bench.heads.contract import Shared
    from tfa.bench.matchers.contract import open_matcher
    from tfa.bench.run import prepare
    from tfa.bench.studies.learned_matcher import MatcherStudy, match_dataset
    from tfa.bench.studies.verification import check_halves, half_of, joined, study_dataset
    from tfa.bench.studies.verification_variants import of_factors
    from tfa.core.progress import as_progress

    if matcher is not None and factors is not None:
        raise BadSpec("--matcher and --factors are two studies; give one of them")
    check_halves([named_folder(text)[0] for text in dataset])
    variants = of_factors(None if factors is None else factors.split(","))
    cards = head_cards(named_heads(heads))
    loaded = load_all(dataset, cards=cards, out=out)
    bars = as_progress(wants_progress(quiet))
    learned = None if matcher is None else open_matcher(matcher, bars)
    model = loaded_encoder(encoder, encoding)

    def studied() -> Iterator[tuple[int, Bench, HeadCard, Shared]]:
        for position, data in enumerate(loaded):
            bench = prepare(data, model, progress=bars)
            shared = Shared(spec=bench.spec, device=encoding.device, progress=bars)
            yield from ((position, bench, card, shared) for card in cards)

    if learned is not None:
        beside = MatcherStudy.of(
            learned,
            model.id,
            [
                match_dataset(bench, card, learned, most=queries, shared=shared, progress=bars)
                for _, bench, card, shared in studied()
            ],
        )
        if not delivered(beside.to_dict(), out=out, json=json):
            print_text(beside.markdown() + "\n")
        return
    studies = joined(
        (
            study_dataset(bench, card, half_of(position), most=queries, variants=variants, shared=shared, progress=bars)
            for position, bench, card, shared in studied()
        ),
        model.id,
    )
    if delivered([study.to_dict() for study in studies], out=out, json=json):
        return
    for study in studies:
        show(study)


def show(study: Study) -> None:
    """Variants down, datasets across, the mean of each half at the end."""
    from tfa.bench.studies.verification import HALVES
    from tfa.bench.studies.verification_variants import BUILT, VARIANTS

    halves = {half: [one for one in study.datasets if one.half == half] for half in HALVES}
    shown = [(half, own) for half, own in halves.items() if own]
    say(f"Verification of {study.head}, {study.encoder}: R@1 in percent, first split and replica", style="bold")
    members = "; ".join(f"{half}: {', '.join(one.dataset for one in own)}" for half, own in shown)
    say(f"{members} (by their position on the command line: odd ones are for tuning, even ones confirm); * as built")
    table = open_table()
    for column in ("factor", "variant"):
        table.add_column(column, overflow="fold")
    for half, own in shown:
        for one in own:
            table.add_column(one.dataset, justify="right", overflow="fold")
        table.add_column(f"mean, {half}", justify="right")
    factor = None
    for name in study.datasets[0].recall:
        variant, cells = VARIANTS[name], []
        for half, own in shown:
            cells += [f"{100 * one.recall[name]:.1f}" for one in own]
            cells.append(f"{100 * (study.mean(name, half) or 0.0):.1f}")
        title = f"{variant.title} *" if name == BUILT else variant.title
        table.add_row(variant.factor if variant.factor != factor else "", title, *cells)
        factor = variant.factor
        if name == BUILT:
            table.add_row("", "  candidates it takes, mean", *_candidates(shown))
        if name == BUILT or variant.kept.patches == "small":
            table.add_row("", "  bytes an image in a map", *_bytes(shown, name))
    console().print(table)
    say()


def _candidates(shown: Sequence[tuple[str, Sequence[Studied]]]) -> list[str]:
    cells = []
    for _, own in shown:
        taken = [one.candidates for one in own]
        cells += [f"{number:.1f}" for number in (*taken, sum(taken) / len(taken))]
    return cells


def _bytes(shown: Sequence[tuple[str, Sequence[Studied]]], name: str) -> list[str]:
    cells = []
    for _, own in shown:
        sizes = [one.bytes_per_image[name] for one in own]
        cells += [f"{number:,.0f}" for number in (*sizes, sum(sizes) / len(sizes))]
    return cells
