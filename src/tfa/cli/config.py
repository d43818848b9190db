"""`tfa config`: which settings hold, and where they come from."""

from __future__ import annotations

import os
from typing import Any

from tfa.cli import options
from tfa.cli.console import console, open_table, print_json, say
from tfa.cli.settings import FILE_NAME, FILE_VARIABLE, OF_THE_CACHE, SHARED, Settings, variable


def config(json: options.AsJson = False) -> None:
    """Show the settings for all verbs and where each comes from: the environment, tfa.toml, or nowhere."""
    settings = Settings.find()
    rows = [_row(key, variable(key), settings) for key in SHARED]
    rows += [_row(key, name, settings) for key, name in OF_THE_CACHE.items()]
    if json:
        file = None if settings.file is None else str(settings.file.absolute())
        print_json({"file": file, "settings": rows, "verbs": settings.verbs})
        return
    say(f"file: {settings.file or f'none ({FILE_NAME} of this folder, that of the user, or {FILE_VARIABLE})'}")
    table = open_table("setting", "value", "from", "variable", fold=("value",))
    for row in rows:
        value = "" if row["value"] is None else str(row["value"])
        table.add_row(row["setting"], value, row["from"] or "default", row["variable"])
    console().print(table)
    for verb, own in settings.verbs.items():
        say(f"[{verb}] " + ", ".join(f"{key} = {value!r}" for key, value in own.items()))


def _row(key: str, name: str, settings: Settings) -> dict[str, Any]:
    # The file's settings of the cache were put into the environment before this verb began.
    if key in settings.shared and os.environ.get(name) in (None, str(settings.shared[key])):
        return {"setting": key, "value": settings.shared[key], "from": str(settings.file), "variable": name}
    value = os.environ.get(name)
    return {"setting": key, "value": value, "from": None if value is None else "environment", "variable": name}
