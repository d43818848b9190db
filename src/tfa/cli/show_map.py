"""A map in words: what was decided, with the numbers and the reason for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from tfa.cli.console import console, format_count, open_table, say


def show_map(info: Mapping[str, Any], *, scales: bool = False) -> None:
    """The lines that `tfa build`, `tfa info` and `tfa refit` share; `scales` adds the scores' spreads."""
    say(f"  {counted_images(info)}")
    size = f", {human_bytes(info['bytes'])}" if info.get("bytes") else ""
    say(f"  encoder {info['encoder']['id']}; stored as {info['storage']}{size}")
    if info.get("version"):
        say(f"  {store_line(info)}")
    if info.get("reduction"):
        small = info["reduction"]
        say(
            f"  searched by {small['dims']:,} numbers per image, {small['bytes_per_image']:,} bytes; the best "
            f"{small['scored_again']} are scored again with all {small['full_dims']:,}"
        )
    if info.get("verification"):
        say(f"  patches to verify answers with: {_patches(info['verification'])}")
    say(f"  {info['answers']['in_words']}")
    for calibration in info["calibrations"]:
        if calibration["active"]:  # what answers stands first
            show_calibration(calibration)
            say("without a calibration", style="bold")
    show_decisions(info["decided"], *(spreads(info["decisions"]) if scales else []))


def store_line(info: Mapping[str, Any]) -> str:
    """Where the images of a map in a store are, and what it can be taken back to."""
    before = info.get("previous")
    back = "no version before it"
    if before is not None:
        back = f"tfa rollback brings back version {before['version']}, {before['images']:,} images"
    return f"version {info['version']} in {info['store']['store']}, {info['dims']:,} numbers per image; {back}"


def _patches(facts: Mapping[str, Any]) -> str:
    """What patches take, and where those of a map in a store are."""
    size, cache = f"{facts['bytes_per_image']:,} bytes per image", facts.get("cache")
    if cache is None:
        return size
    where = f" in {facts['at']}" if facts["at"] else ""
    return f"{size}{where}; up to {human_bytes(cache['most_bytes'])} of them are kept in memory"


def show_decisions(rows: Sequence[Mapping[str, Any]], *more: tuple[str, str, str]) -> None:
    """Every decision with its reason and how far it was from flipping; then rows of another kind."""
    from tfa.maps.decided import format_reason

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for name, value, reason in [*((row["name"], row["choice"], format_reason(row)) for row in rows), *more]:
        table.add_row(f"  {name}", value, reason)
    console().print(table)


def show_calibration(entry: Mapping[str, Any]) -> None:
    """An entry of `calibrations` under its name: the data it used, what it decided, and what that changes."""
    active = ", answers unless another is named" if entry["active"] else ""
    say(f"calibration {entry['name']}{active}", style="bold")
    facts = entry["calibration"]
    data_used = "the map's photos and the calibration's" if entry["data_used"] == "target" else entry["data_used"]
    say(f"  made of {facts['used']:,} of {format_count(facts['given'], 'photo')}; data used: {data_used}")
    show_decisions(entry["decided"])
    say("  changes: " + ("; ".join(entry["differences"]) or "nothing, the decisions are the same"))
    if facts.get("expected_recall"):
        from tfa.types import ExpectedRecall

        say(f"  {ExpectedRecall(**facts['expected_recall'])!s}")


def counted_images(info: Mapping[str, Any]) -> str:
    text = format_count(info["images"], "image")
    text += f", {info['positions']:,} with a position" if info["positions"] else ", positions unknown"
    if info["unseen_share"] > 0:
        text += f"; {info['unseen_share']:.0%} of them not seen when the map was fitted"
    return text


def spreads(made: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The scores' spreads, which bring the terms of a head to one scale."""
    if "representation" in made:
        return [
            ("σ of S_0", _shown(made["sigma_original"]), "spread of the plain scores, one for each construction"),
            ("σ of S_P", _shown(made["sigma_partial"]), "spread of the partly whitened scores"),
            ("σ of S_⅝", _shown(made["sigma_tempered"]), "spread of scores whitened a little more"),
        ]
    return [
        ("σ of patches", _shown(made["sigma_local"]), "spread of the patch scores, one for each vocabulary"),
        ("σ of CLS", _shown(made["sigma_cls"]), "spread of the CLS scores, one for each vocabulary"),
    ]


def show_evidence(info: Mapping[str, Any]) -> None:
    """Every number that was measured: a table for each group of things compared, a line for a lone number."""
    judged = info.get("verification")
    measured = ("photos", "favours_candidates", "needed")
    shown = {"verification": {"sign test": {name: judged[name] for name in measured}}} if judged else {}
    for name, group in {**info["evidence"], **shown}.items():
        if name == "reasons":
            continue  # printed beside the decisions
        title = name.replace("_", " ")
        members = group.items() if isinstance(group, Mapping) else ()
        rows = {key: row for key, row in members if isinstance(row, Mapping)}
        if not rows:
            say(f"  {title}  {_shown(group)}")
            continue
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        table = open_table()
        table.add_column(f"  {title}", no_wrap=True)
        for column in columns:
            table.add_column(column.replace("_", " "))
        for key, row in rows.items():
            table.add_row(f"  {key}", *(_shown(row.get(column)) for column in columns))
        console().print(table)


def show_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Which decisions came out differently after a second fit."""
    changed = [
        f"{new['name']}: {old['choice']} → {new['choice']}"
        for old, new in zip(before["decided"], after["decided"], strict=False)
        if old["choice"] != new["choice"]
    ]
    say("changed: " + "; ".join(changed) if changed else "no decision changed")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return " ".join(_shown(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(item)}" for key, item in value.items())
    return "–" if value is None else str(value)


def human_bytes(number: int) -> str:
    size = float(number)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
