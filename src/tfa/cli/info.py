"""Commands that describe a map: info, report, explain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tfa.cli import options
from tfa.cli.console import console, format_count, note, open_table, print_json, say, show_notes
from tfa.core.config import EncoderOptions
from tfa.core.text import WITHIN_NOISE

# --- show map -------------------------------------------------------------------------------------


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
    before = info["previous"]
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
        from tfa.maps.expected_recall import format_expected_recall
        from tfa.maps.records import ExpectedRecall

        say(f"  {format_expected_recall(ExpectedRecall(**facts['expected_recall']))}")


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


# --- info -----------------------------------------------------------------------------------------


def info(map: options.MapPath, checksum: options.Checksum = False, json: options.AsJson = False) -> None:
    """Show a map's decisions, the numbers they rest on and the reason for each; then those of its calibrations."""
    from tfa.maps import PlaceMap

    facts = PlaceMap.load(map, checksum=checksum).info()
    if json:
        print_json(facts)
        return
    say(f"{map}", style="bold")
    show_map(facts, scales=True)
    data_used = "its own photos only" if facts["data_used"] == "database" else facts["data_used"]
    say(f"  format {facts['format_version']}; fitted on {facts['fitted_images']:,} images; data used: {data_used}")
    if facts["evidence"]:
        say("evidence", style="bold")
        show_evidence(facts)
    for calibration in facts["calibrations"]:
        if not calibration["active"]:
            show_calibration(calibration)
    say(WITHIN_NOISE, style="dim")
    show_notes(facts["notes"])


# --- report ---------------------------------------------------------------------------------------


@options.with_encoder
def report(
    map: options.MapPath,
    photos: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PHOTO|FOLDER",
            exists=True,
            help="Photos like those the map will be asked about, without labels: says how many will be recognised, and "
            "whether they are unlike those the map is made for. May be given several times.",
        ),
    ] = None,
    aged: Annotated[
        float,
        typer.Option(metavar="DAYS", min=0, help="Photos that no sure answer of the service named in so many days."),
    ] = 90,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE.html", dir_okay=False, help="Where to write the page."),
    ] = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Report on a map: decisions and their evidence, near duplicates, hubs, images that nothing resembles, what
    aged, advice.

    The page is one file that needs no other. Without [bold]--out[/bold] a summary is printed.
    """
    if out is not None:
        options.check_writable(out)

    from tfa.cli.query import expanded
    from tfa.maps.store import StoreMap
    from tfa.report.collect import collect_report
    from tfa.report.page import write_report

    place_map, progress = options.open_map(map, encoding, quiet=quiet, json=json)
    answers = place_map.query_many(expanded(photos), k=1, progress=progress) if photos else None
    sample = place_map.sample() if isinstance(place_map, StoreMap) else place_map
    facts = collect_report(sample, answers, aged_days=aged)
    if out is not None:  # before anything is printed: whoever reads that may leave
        write_report(out, facts)
        note(f"report: {out}")
    if json:
        print_json(facts)
    else:
        say(f"{map}", style="bold")
        say(f"  {facts['headline']}")
        say(f"  {facts['map']['answers']['in_words']}")
        show_decisions(facts["evidence"]["decided"])
        repeated = sum(len(group["images"]) - 1 for group in facts["duplicates"])
        images = format_count(facts["map"]["images"], "image")
        say(f"  {images}; {repeated:,} near duplicates, {len(facts['hubs']):,} hubs, "
            f"{len(facts['lonely']):,} that nothing else resembles")  # fmt: skip
        for one in facts["recall"]:
            say(f"  like {one['photos_like']}: {one['in_words']}")
        if facts["ageing"] is not None:
            say(f"  {facts['ageing']['in_words']}")
        for sentence in facts["advice"]:
            say(f"  {sentence}")


# --- explain --------------------------------------------------------------------------------------


@options.with_encoder
def explain_command(
    map: options.MapPath,
    photo: Annotated[Path, typer.Argument(metavar="PHOTO", help="The query.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE.png",
            dir_okay=False,
            callback=options.picture,
            help="Draw the patches found in both photos, joined by lines, and what each patch adds to the score.",
        ),
    ] = None,
    rank: Annotated[int, typer.Option(min=1, help="Which hit to explain; 1 is the best.")] = 1,
    calibration: options.Calibration = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Show which patches of a photo match those of the map's answer, and whether they are arranged alike.

    The map must hold compact tokens: [bold]tfa build --rerank[/bold].
    """
    from tfa.explain.why import explain_match as explained

    options.check_folder(map, "explain")
    place_map, _ = options.open_map(map, encoding, quiet=quiet, json=json)
    explanation = explained(place_map, photo, rank=rank, calibration=calibration)
    if json:
        print_json(explanation.to_dict())
    else:
        _show(explanation)
    if out is not None:
        draw(place_map, explanation, calibration, out)


def _show(explanation: Any) -> None:
    from tfa.explain.why import describe_view

    hit = explanation.hit
    say(explanation.query, style="bold")
    where = "" if hit.position is None else f" at {hit.position}"
    say(f"  answer {explanation.rank}: {hit.image}, id {hit.id}{where}")
    say(f"  score {hit.score:.4f}, confidence {hit.confidence:.2f}{', sure' if hit.sure else ''}")
    say(f"  {explanation.consistent} of {explanation.mutual} mutual matches move alike")
    say(f"  {describe_view(explanation.displacement)}")
    say(f"  verification is {explanation.reason}")


def draw(place_map: Any, explanation: Any, calibration: str | None, out: Path) -> None:
    """The matches, and what each patch of the query and of the answer contributes unless the answer's photo is lost."""
    import numpy as np

    from tfa.errors import BadMap
    from tfa.explain.draw_matches import draw_matches
    from tfa.explain.why import explain_score

    heats, linearised = None, False
    try:
        contributions = explain_score(place_map, explanation.tokens, explanation.hit.id, calibration)
        linearised = contributions["linearised"]
        heats = [np.array(contributions[heat]) for heat in ("query_heat", "image_heat")]
    except BadMap as error:
        note(f"drawn without contributions: {error}")
    answer, grid = Path(explanation.hit.image), explanation.grid
    draw_matches(Path(explanation.query), answer, explanation.matches, grid, grid, out, heats, linearised)
    note(f"picture: {out}" + ("" if answer.is_file() else f" (without {answer.name}, whose file is gone)"))
