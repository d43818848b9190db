"""`tfa rollback`: take back the last build or calibration of a map in a store."""

from __future__ import annotations

from tfa.cli import options
from tfa.cli.console import format_count, print_json, say
from tfa.errors import BadSpec


def rollback(map: options.MapPath, json: options.AsJson = False) -> None:
    """Let the version before the last build or calibration answer again. Doing it twice brings the last one back.

    For a map in a store, which keeps one version beside the one that answers.
    """
    if not map.in_store:
        raise BadSpec(f"{map} is a folder, which keeps one version; copy it before you change it")

    from tfa.maps.store import StoreStorage

    opened = StoreStorage.open(map.text)
    notes = opened.rollback()
    header = opened.view.header
    if json:
        print_json({"version": header.version, "active": header.active, "images": header.count, "notes": notes})
        return
    say(f"took back the last change of {map}: {format_count(header.count, 'image')}", style="bold green")
    for note in notes:
        say(f"  {note}")
