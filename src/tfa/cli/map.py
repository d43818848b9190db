"""Commands that change a map: add, remove, refit, relocate, merge, prune, rollback, snapshot."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tfa.cli import options
from tfa.cli.build import check_out
from tfa.cli.console import console, delivered, format_count, note, open_table, print_json, say, show_notes
from tfa.cli.info import SUMMARY, show_changes, show_map
from tfa.cli.options import ENCODING, Part, PositionOptions, takes
from tfa.errors import BadSpec
from tfa.search.store import MapLocation
from tfa.types import EditResult, EncoderOptions, PrunedImage, PruneResult, RollbackResult, SnapshotResult


@takes(positions=PositionOptions, encoding=Part(EncoderOptions, (*ENCODING, "skip_bad")))
def add(
    map: options.MapPath,
    photos: options.PhotosArgument,
    *,
    positions: PositionOptions,
    session: Annotated[
        str | None, typer.Option(metavar="NAME", help="Session of the photos, such as a day or a drive.")
    ] = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    encoding: EncoderOptions,
) -> None:
    """Add photos to a map without refitting it."""
    sources = positions.read()
    place_map, progress = options.open_map(map, encoding, quiet=quiet)
    named: dict[str, Any] = {} if session is None else {"session": session}
    report = place_map.add(photos, positions=sources, progress=progress, **named)
    _show_edit(report, place_map, json=json)


def remove(
    map: options.MapPath,
    images: Annotated[list[str], typer.Argument(metavar="FILE|ID", help="Images as answers name them, or their ids.")],
    json: options.AsJson = False,
) -> None:
    """Remove images from a map without refitting it.

    Queries no longer return them; the head stays fitted on them until [bold]tfa refit[/bold].
    """
    from tfa.maps import PlaceMap

    place_map = PlaceMap.load(map)
    report = place_map.remove([int(image) if image.isdecimal() else image for image in images])
    _show_edit(report, place_map, json=json)


@options.with_encoder
def refit(
    map: options.MapPath, json: options.AsJson = False, quiet: options.Quiet = False, *, encoding: EncoderOptions
) -> None:
    """Refit a map on the images it holds now, from the token cache."""
    place_map, progress = options.open_map(map, encoding, quiet=quiet)
    before = place_map.info()
    place_map.refit(progress)
    after = place_map.info()
    show_notes(place_map.notes)
    if delivered(after, json=json):
        return
    say(f"refitted {map}", style="bold green")
    show_map(after, SUMMARY)
    show_changes(before, after)


def relocate(
    map: options.MapPath,
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Folder where the photos were.")],
    new: Annotated[
        Path, typer.Argument(metavar="NEW", exists=True, file_okay=False, help="Folder where they are now.")
    ],
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Tell a map that its photos were moved to another folder."""
    from tfa.maps import PlaceMap
    from tfa.maps.upkeep import relocate_photos

    report = relocate_photos(PlaceMap.load(map), old, new, progress=not quiet)
    if delivered(report, json=json):
        return
    say(f"relocated {format_count(report.moved, 'image')} to {new}", style="bold green")
    if report.missing:
        note(f"{format_count(len(report.missing), 'photo')} not found there, such as {report.missing[0]}")


def _show_edit(report: Any, place_map: Any, *, json: bool) -> None:
    skipped = show_notes(report.notes, report.skipped)
    edits = {"added": list(report.added), "removed": list(report.removed), "notes": list(report.notes)}
    if delivered(EditResult(**edits, skipped=skipped, images=len(place_map)), json=json):
        return
    for verb, ids in (("added", report.added), ("removed", report.removed)):
        if ids:
            shown = ", ".join(map(str, ids[:8])) + (", …" if len(ids) > 8 else "")
            word = "id" if len(ids) == 1 else "ids"
            say(f"{verb} {format_count(len(ids), 'image')} ({word} {shown})", style="bold green")
    if not report.added and not report.removed:
        say("nothing changed")
    say(f"the map holds {format_count(len(place_map), 'image')}")


@options.with_encoder
def merge(
    maps: Annotated[
        list[MapLocation],
        typer.Argument(metavar="MAP MAP…", parser=MapLocation, help="Two or more maps with the same encoder."),
    ],
    out: Annotated[
        MapLocation, typer.Option("--out", "-o", metavar="MAP.tfa", parser=MapLocation, help="Map folder to write.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing map.")] = False,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Merge maps into a new one, with one head fitted on all images.

    Reports how many photos of each map show places of earlier maps. Photos without a session get their map's name as
    session. Needs the photos or their cached tokens.
    """
    for one in maps:
        options.check_folder(one, "merge")
    folder = options.check_folder(out, "merge")
    check_out(folder, force=force)

    from tfa.maps.merge import keep_confirmed, merge_maps, note_dropped_calibrations

    opened = [options.open_map(one, encoding, quiet=quiet)[0] for one in maps]
    merged, report = merge_maps(opened, progress=not quiet)
    notes = [*report.notes, *note_dropped_calibrations(opened, folder)]
    merged.save(folder, overwrite=force)
    keep_confirmed(opened, merged)
    show_notes(notes)
    if delivered(replace(report, path=str(out), notes=notes), json=json):
        return
    say(f"merged {format_count(len(maps), 'map')} into {out}: {format_count(len(merged), 'image')}", style="bold green")
    for part in report.maps[1:]:
        say(f"  {part}")


_SHOWN = 20  # images listed; JSON has all


@options.with_encoder
def prune_command(
    map: options.MapPath,
    unconfirmed: Annotated[
        float, typer.Option(metavar="DAYS", min=0, help="Remove images that no sure answer named for this long.")
    ] = 90,
    duplicates_only: Annotated[bool, typer.Option("--duplicates-only", help="Remove only near duplicates.")] = False,
    photos: Annotated[
        list[Path] | None,
        options.photos_option(help="Unlabeled photos to estimate the loss of recall with; repeat for more."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without confirmation.")] = False,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Remove near duplicates and images that were never confirmed.

    One image of each group of near duplicates stays. Shows the images and the loss of expected recall, then waits for
    confirmation. Check the list first: it may contain images of rarely visited places.
    """
    options.check_folder(map, "prune")
    if dry_run and yes:
        raise BadSpec("--dry-run and --yes exclude each other; remove one")

    from tfa.cli.query import expand_folders
    from tfa.report.prunable import estimate_losses, find_prunable

    place_map, progress = options.open_map(map, encoding, quiet=quiet)
    candidates = find_prunable(place_map, None if duplicates_only else unconfirmed)
    losses, notes = estimate_losses(place_map, candidates, expand_folders(photos) if photos else None, progress)
    reasons: Counter[str] = Counter(one.why for one in candidates)
    if not json:
        _show(candidates, reasons, [one.text for one in losses], len(place_map))
    count, can_ask = format_count(len(candidates), "image"), not json and sys.stdin.isatty()
    removed = bool(candidates) and not dry_run and (yes or (can_ask and typer.confirm(f"Remove {count}?")))
    if removed:
        notes += place_map.remove([one.id for one in candidates]).notes
    elif candidates and not dry_run:
        notes.append("nothing was removed; pass --yes to remove without confirmation")
    show_notes(notes)
    if json:
        found: dict[str, Any] = {"candidates": candidates, "reasons": dict(reasons), "expected_recall": losses}
        print_json(PruneResult(removed=removed, **found, images=len(place_map), notes=notes))
    elif removed:
        say(f"removed {count}; the map holds {format_count(len(place_map), 'image')}", style="bold green")


def _show(candidates: list[PrunedImage], reasons: Counter[str], losses: list[str], images: int) -> None:
    if not candidates:
        say("nothing to remove: no near duplicates and no unconfirmed images")
        return
    parts = ", ".join(f"{count:,} {why}" for why, count in reasons.items())
    say(f"{format_count(len(candidates), 'image')} of {images:,} can be removed: {parts}", style="bold")
    table = open_table("id", "image", "why", "duplicate of", fold=("image",))
    for one in candidates[:_SHOWN]:
        table.add_row(str(one.id), one.path, one.why, "" if one.duplicate_of is None else str(one.duplicate_of))
    console().print(table)
    if len(candidates) > _SHOWN:
        note(f"the first {_SHOWN} are shown; --json lists all")
    for sentence in losses:
        say(sentence)


def rollback(map: options.MapPath, json: options.AsJson = False) -> None:
    """Restore the version before the last build or calibration.

    For maps in a store, which keeps one earlier version. A second rollback undoes the first.
    """
    if not map.in_store:
        raise BadSpec(f"{map} is a folder, which has no earlier version; copy it before you change it")

    from tfa.maps.store import StoreStorage

    opened = StoreStorage.open(map.text)
    notes = opened.rollback()
    header = opened.view.header
    if json:
        print_json(RollbackResult(version=header.version, active=header.active, images=header.count, notes=notes))
        return
    say(f"rolled back the last change of {map}: {format_count(header.count, 'image')}", style="bold green")
    for sentence in notes:
        say(f"  {sentence}")


def snapshot_command(
    map: options.MapPath,
    to: Annotated[
        MapLocation, typer.Option(metavar="URL", parser=MapLocation, help="Map URL of the copy, in any store.")
    ],
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Copy a map in a store to another name or another store.

    Queries work during the copy; edits wait until it is done. Copy it back to restore the map.
    """
    if not map.in_store:
        raise BadSpec(f"{map} is a folder: copy it with cp -r")
    if not to.in_store:
        raise BadSpec(f"--to {to} is not a map URL, such as lance:///backups/town")

    from tfa.maps.store import StoreStorage
    from tfa.maps.store.republish import copy_map as copied

    with closing(StoreStorage.open(map.text)) as opened:
        header = copied(opened, to.text, not quiet)
    if delivered(SnapshotResult(url=str(to), version=header.version, images=header.count), json=json):
        return
    say(f"copied {opened.location} to {to}: {format_count(header.count, 'image')}", style="bold green")
