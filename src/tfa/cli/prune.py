"""`tfa prune`: take out of a map what it can do without."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tfa.cli import options
from tfa.cli.console import console, format_count, note, open_table, print_json, say, show_notes
from tfa.errors import BadSpec
from tfa.types import EncoderOptions

if TYPE_CHECKING:
    from tfa.report.prunable import PruneCandidate

_SHOWN = 20  # images listed; JSON has all


@options.with_encoder
def prune_command(
    map: options.MapPath,
    unconfirmed: Annotated[
        float,
        typer.Option(
            metavar="DAYS",
            min=0,
            help="Images count as never confirmed if no sure answer of the service named them in so many days.",
        ),
    ] = 90,
    duplicates_only: Annotated[
        bool, typer.Option("--duplicates-only", help="Keep images that were never confirmed.")
    ] = False,
    photos: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PHOTO|FOLDER",
            exists=True,
            help="Photos like those the map will be asked about, without labels: says what expected recall of them "
            "loses. May be given several times.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would go, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Remove near duplicates, and images that no sure answer of the service ever confirmed.

    Of each group of near duplicates one stays. First shows what would go and what expected recall loses; then asks.
    Images that nobody visited are not worth less: look before you prune. What goes is as after [bold]tfa remove[/bold].
    """
    options.check_folder(map, "prune")
    if dry_run and yes:
        raise BadSpec("--dry-run changes nothing and --yes does not ask; give one of them")

    from tfa.cli.query import expanded
    from tfa.report.prunable import estimate_losses, find_prunable

    place_map, progress = options.open_map(map, encoding, quiet=quiet, json=json)
    going = find_prunable(place_map, None if duplicates_only else unconfirmed)
    losses, notes = estimate_losses(place_map, going, expanded(photos) if photos else None, progress)
    reasons = Counter(one.why for one in going)
    if not json:
        _show(going, reasons, [one.in_words for one in losses], len(place_map))
    removed = bool(going) and not dry_run and (yes or _agreed(len(going), json=json))
    if removed:
        notes += place_map.remove([one.image.id for one in going]).notes
    elif going and not dry_run:
        notes.append("nothing was removed; give --yes to remove without being asked")
    show_notes(notes)
    if json:
        print_json(
            {
                "removed": removed,
                "going": [one.to_dict() for one in going],
                "reasons": dict(reasons),
                "expected_recall": [one.to_dict() for one in losses],
                "images": len(place_map),
                "notes": notes,
            }
        )
    elif removed:
        say(
            f"removed {format_count(len(going), 'image')}; the map holds {format_count(len(place_map), 'image')}",
            "bold green",
        )


def _agreed(count: int, *, json: bool) -> bool:
    """Asks, where somebody can answer."""
    return not json and sys.stdin.isatty() and typer.confirm(f"Remove {format_count(count, 'image')}?")


def _show(candidates: list[PruneCandidate], reasons: Counter[str], losses: list[str], images: int) -> None:
    if not candidates:
        say("nothing to remove: no near duplicates, and no image that counts as never confirmed")
        return
    parts = ", ".join(f"{count:,} {why}" for why, count in reasons.items())
    say(f"{format_count(len(candidates), 'image')} of {images:,} can go: {parts}", style="bold")
    table = open_table("id", "image", "why", "stays", fold=("image",))
    for one in candidates[:_SHOWN]:
        table.add_row(str(one.image.id), one.image.path, one.why, "" if one.keep_id is None else str(one.keep_id))
    console().print(table)
    if len(candidates) > _SHOWN:
        note(f"the first {_SHOWN} are shown; --json lists all")
    for sentence in losses:
        say(sentence)
