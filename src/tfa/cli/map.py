"""Commands that change a map: add, remove, refit, merge, prune, rollback, snapshot."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfa.cli import options
from tfa.cli.build import check_out
from tfa.cli.console import console, format_count, note, open_table, print_json, say, show_notes, wants_progress
from tfa.cli.info import show_changes, show_map
from tfa.core.config import EncoderOptions
from tfa.errors import BadSpec
from tfa.search.store import MapLocation

if TYPE_CHECKING:
    from tfa.report.prunable import PruneCandidate


# --- add remove refit -----------------------------------------------------------------------------


@options.with_encoder
def add(
    map: options.MapPath,
    photos: options.PhotosArgument,
    positions: options.PositionsOption = None,
    gpx: options.Gpx = None,
    gpx_offset: options.GpxOffset = None,
    gpx_gap: options.GpxGap = None,
    utm: options.Utm = None,
    session: Annotated[
        str | None, typer.Option(metavar="NAME", help="What the photos belong to: a day, a drive; to choose by.")
    ] = None,
    skip_bad: options.SkipBad = False,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Add photos to a map without fitting it again."""
    sources = options.read_position_sources(positions, gpx, gpx_offset, gpx_gap, utm)
    place_map, progress = options.open_map(map, replace(encoding, skip_bad=skip_bad), quiet=quiet, json=json)
    named: dict[str, Any] = {} if session is None else {"session": session}
    report = place_map.add(photos, positions=sources, progress=progress, **named)
    _show_edit(report, place_map, json=json)


def remove(
    map: options.MapPath,
    images: Annotated[
        list[str], typer.Argument(metavar="FILE|ID", help="Images as tfa names them in its answers, or ids.")
    ],
    json: options.AsJson = False,
) -> None:
    """Remove images from a map without fitting it again.

    They are no longer returned, but what was learnt from them stays until [bold]tfa refit[/bold].
    """
    from tfa.maps import PlaceMap

    place_map = PlaceMap.load(map)
    report = place_map.remove([int(image) if image.isdecimal() else image for image in images])
    _show_edit(report, place_map, json=json)


@options.with_encoder
def refit(
    map: options.MapPath,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Fit a map again on the images it holds now, from the token cache."""
    place_map, progress = options.open_map(map, encoding, quiet=quiet, json=json)
    before = place_map.info()
    place_map.refit(progress)
    after = place_map.info()
    show_notes(place_map.notes)
    if json:
        print_json(after)
        return
    say(f"fitted {map} again", style="bold green")
    show_map(after)
    show_changes(before, after)


def _show_edit(report: Any, place_map: Any, *, json: bool) -> None:
    skipped = show_notes(report.notes, report.skipped)
    if json:
        edits = {"added": list(report.added), "removed": list(report.removed)}
        print_json({**edits, "skipped": skipped, "notes": list(report.notes), "images": len(place_map)})
        return
    for verb, ids in (("added", report.added), ("removed", report.removed)):
        if ids:
            shown = ", ".join(map(str, ids[:8])) + (", …" if len(ids) > 8 else "")
            say(
                f"{verb} {format_count(len(ids), 'image')} ({'id' if len(ids) == 1 else 'ids'} {shown})",
                style="bold green",
            )
    if not report.added and not report.removed:
        say("nothing changed")
    say(f"the map holds {format_count(len(place_map), 'image')}")


# --- merge ----------------------------------------------------------------------------------------


@options.with_encoder
def merge(
    maps: Annotated[
        list[MapLocation],
        typer.Argument(metavar="MAP MAP…", parser=MapLocation, help="Two or more maps of one encoder."),
    ],
    out: Annotated[
        MapLocation, typer.Option("--out", "-o", metavar="MAP.tfa", parser=MapLocation, help="Map folder to write.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Overwrite a map that is there.")] = False,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Merge maps: their photos in one map, with one head fitted over all of them; the maps stay as they are.

    Says how many photos of each map show places of the maps before it. Every photo keeps its position and has a
    session to choose by: the name of its map, unless it has one. Needs the photos, or their cached tokens.
    """
    for one in maps:
        options.check_folder(one, "merge")
    folder = options.check_folder(out, "merge")
    check_out(folder, force=force)

    from tfa.maps.merge import keep_confirmed, merge_maps, note_dropped_calibrations

    opened = [options.open_map(one, encoding, quiet=quiet, json=json)[0] for one in maps]
    merged, report = merge_maps(opened, progress=not quiet)
    notes = [*report.notes, *note_dropped_calibrations(opened, folder)]
    merged.save(folder, overwrite=force)
    keep_confirmed(opened, merged)
    show_notes(notes)
    if json:
        told = {**report.to_dict(), "notes": notes}
        print_json({"path": str(out), "images": len(merged), **told})
        return
    say(f"merged {format_count(len(maps), 'map')} into {out}: {format_count(len(merged), 'image')}", style="bold green")
    for part in report.parts[1:]:
        say(f"  {part.in_words}")


# --- prune ----------------------------------------------------------------------------------------

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


# --- rollback -------------------------------------------------------------------------------------


def rollback(map: options.MapPath, json: options.AsJson = False) -> None:
    """Let the version before the last build or calibration answer again. Doing it twice brings the last one back.

    For a map in a store, which keeps one version beside the one that answers.
    """
    if not map.in_store:
        raise BadSpec(f"{map} is a folder, which keeps one version; copy it before you change it")

    from tfa.maps.store import StoreMap

    opened = StoreMap.open(map.text)
    notes = opened.rollback()
    header = opened.view.header
    if json:
        print_json({"version": header.version, "active": header.active, "images": header.count, "notes": notes})
        return
    say(f"took back the last change of {map}: {format_count(header.count, 'image')}", style="bold green")
    for sentence in notes:
        say(f"  {sentence}")


# --- snapshot -------------------------------------------------------------------------------------


def snapshot_command(
    map: options.MapPath,
    to: Annotated[
        MapLocation, typer.Option(metavar="URL", parser=MapLocation, help="Map URL of the copy, in any store.")
    ],
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Copy a map in a store, as it answers now, to another name or another store; copying back restores it.

    The map is asked as always meanwhile, and edited when the copy is done.
    """
    if not map.in_store:
        raise BadSpec(f"{map} is a folder: copy it with cp -r")
    if not to.in_store:
        raise BadSpec(f"--to {to} is not a map URL, such as lance:///backups/town")

    from tfa.maps.store import StoreMap
    from tfa.maps.store.republish import copy_map as copied

    opened = StoreMap.open(map.text)
    try:
        header = copied(opened, to.text, wants_progress(quiet))
    finally:
        opened.close()
    if json:
        print_json({"url": str(to), "version": header.version, "images": header.count})
        return
    say(f"copied {opened.called} to {to}: {format_count(header.count, 'image')}", style="bold green")
