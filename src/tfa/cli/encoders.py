"""`tfa encoders` and `tfa weights get`: which encoders there are, and how to get their weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfa.cli import options
from tfa.cli.console import console, examples, open_table, print_json, say, wants_progress

if TYPE_CHECKING:
    from tfa.encoders.catalogue import Card

weights = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Get the weights of encoders.")


def encoders(json: options.AsJson = False) -> None:
    """List the encoders and whether their weights are on this machine."""
    from tfa.encoders import list_plugin_encoders
    from tfa.encoders.catalogue import CATALOGUE, DEFAULT_ENCODER

    brought = [{"name": name, "distribution": source} for name, source in list_plugin_encoders().items()]
    rows = [facts(card) for card in CATALOGUE.values()]
    if json:
        print_json([*rows, *brought])
        return
    table = open_table("encoder", "parameters", "patch", "size", "licence", "weights here", fold=("licence",))
    for row in rows:
        here = "yes" if row["weights"] else "no"
        style = "bold" if row["name"] == DEFAULT_ENCODER else None
        millions = f"{row['parameters'] / 1e6:.1f} M"
        table.add_row(row["name"], millions, str(row["patch"]), str(row["size"]), row["licence"], here, style=style)
    for row in brought:
        table.add_row(row["name"], "", "", "", f"from {row['distribution']}", "")
    console().print(table)
    say()
    say(f"default: {DEFAULT_ENCODER}; choose with --encoder name, name@size or name@size/layer-facet")
    say("weights: tfa weights get NAME, or your own with --weights FILE")


def facts(card: Card) -> dict[str, Any]:
    from tfa.encoders.packaged_weights import expected_shapes

    return {
        "name": card.name,
        "about": card.about,
        "parameters": sum(math.prod(shape) for shape in expected_shapes(card).values()),
        "patch": card.patch,
        "size": card.size,
        "channels": card.width,
        "blocks": card.depth,
        "licence": card.licence,
        "hub": card.hub,
        "weights": weights_here(card),
    }


def weights_here(card: Card) -> str | None:
    """The file that holds the weights of `card` on this machine; the network is not used."""
    if card.package is not None:
        from tfa.encoders.packaged_weights import is_whole, packaged_path

        path = packaged_path(card)
        return str(path) if is_whole(path, card.package) else None
    if card.hub is None:
        return None

    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(card.hub, "model.safetensors")
    return cached if isinstance(cached, str) else None


@weights.callback()
def weights_of_encoders() -> None:
    """Get the weights of encoders."""  # a group of one verb is a group only if it has a callback


@weights.command(
    epilog=examples("tfa weights get dinov2-s14-focus", "tfa weights get dinov2-b14", "tfa weights get mobilesam")
)
def get(
    name: Annotated[
        str,
        typer.Argument(help="An encoder of [bold]tfa encoders[/bold], or mobilesam, for the head segvlad-mobilesam."),
    ],
    quiet: options.Quiet = False,
) -> None:
    """Fetch the weights of an encoder once, so that later work needs no network."""
    from tfa.bench.heads.peers import mobile_sam

    if name == mobile_sam.NAME:
        say(f"weights of {name}: {mobile_sam.get_mobile_sam(wants_progress(quiet))}")
        return

    from tfa.encoders.catalogue import parse_encoder

    card = parse_encoder(name).card  # a size or layer after the name does no harm: the weights are the same

    from tfa.encoders.weights import resolve_weights

    resolve_weights(card, progress=wants_progress(quiet))
    say(f"weights of {card.name}: {weights_here(card)}")
