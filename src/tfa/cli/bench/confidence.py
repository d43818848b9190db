"""`tfa bench confidence`: precision of accepted answers, and out-of-map queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tfa.base.config import EncoderOptions
from tfa.cli import options
from tfa.cli.bench.run import load_all, loaded_encoder, named_folder, named_heads
from tfa.cli.console import console, delivered, open_table, say, wants_progress

if TYPE_CHECKING:
    from tfa.bench.studies.confidence import ConfidenceStudy


@options.with_encoder
def confidence(
    dataset: Annotated[
        list[str],
        typer.Option(metavar="NAME=PATH", help="A dataset and its folder, as for [bold]tfa bench run[/bold]; several."),
    ],
    out_of_map: Annotated[
        str | None,
        typer.Option(metavar="NAME=PATH", help="A dataset whose queries are used as out-of-map queries."),
    ] = None,
    heads: Annotated[
        str, typer.Option(metavar="NAME,NAME,…", help="Heads to evaluate.")
    ] = "tfa-v-always,tfa-c64-v-always",
    encoder: options.Encoder = "dinov2-s14-focus",
    out: options.JsonFile = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Of answers accepted by their confidence, how many are right? First split, all replicas."""
    from tfa.base.progress import as_progress
    from tfa.bench.datasets.load import load_dataset
    from tfa.bench.heads.catalogue import head_cards
    from tfa.bench.heads.contract import Shared
    from tfa.bench.run import prepare
    from tfa.bench.studies.confidence import study_confidence

    cards = head_cards(named_heads(heads))
    loaded = load_all(dataset, cards=cards, out=out)
    strangers = None if out_of_map is None else load_dataset(*named_folder(out_of_map))
    bars = as_progress(wants_progress(quiet=quiet, json=json))
    model = loaded_encoder(encoder, encoding)
    other = None if strangers is None else prepare(strangers, model, progress=bars)
    studies = []
    for data in loaded:
        bench = prepare(data, model, progress=bars)
        shared = Shared(spec=bench.spec, device=encoding.device, progress=bars)
        outside = None if other is None or other.truth.name == bench.truth.name else other
        studies += [study_confidence(bench, card, outside, shared=shared, progress=bars) for card in cards]
    if not delivered([study.to_dict() for study in studies], out=out, json=json):
        show(studies)


def show(studies: list[ConfidenceStudy]) -> None:
    """A row for each head on each dataset: precision / share answered (out-of-map queries accepted)."""
    from tfa.bench.studies.confidence import PRECISIONS, THRESHOLDS

    say(
        "precision / answered (out-of-map queries accepted) in percent, of answers with at least that confidence",
        style="bold",
    )
    table = open_table()
    for column in ("dataset", "head", "R@1", *(f"≥ {t}" for t in THRESHOLDS)):
        table.add_column(column, overflow="fold")
    for precision in PRECISIONS:
        table.add_column(f"answered at {precision:.0%}, with out-of-map queries", overflow="fold")
    for study in studies:
        facts = study.to_dict()
        cells = [facts["dataset"], facts["head"], f"{100 * facts['recall']:.1f}"]
        for row in facts["accepted"]:
            outside = "" if row["out_of_map"] is None else f" ({100 * row['out_of_map']:.1f})"
            cells.append(f"{_percent(row['precision'])} / {_percent(row['answered'])}{outside}")
        for precision in PRECISIONS:
            key = str(precision)
            cells.append(
                f"{_percent(facts['answered_at'][key])}, {_percent(facts['answered_at_with_out_of_map'][key])}"
            )
        table.add_row(*cells)
    console().print(table)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"
