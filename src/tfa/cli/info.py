"""Commands that describe a map: info, report, explain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tfa.cli import options
from tfa.cli.console import console, delivered, format_count, note, open_table, print_json, say, show_notes
from tfa.core.text import WITHIN_NOISE, format_command
from tfa.types import CalibrationInfo, Decision, EncoderOptions, ExpectedRecall, ExplainResult, MapInfo

SUMMARY = ("images", "size", "store", "search", "system", "reranking")  # lines that build and refit print


def show_map(info: MapInfo, lines: Sequence[str] | None = None) -> None:
    """Print what a map holds, one line each: all lines, or those named in `lines`."""
    facts = [f"{info.positions:,} with a position" if info.positions else "positions unknown"]
    facts += [f"the head was not fitted on {info.unseen_share:.0%} of them"] if info.unseen_share > 0 else []
    shown = {"images": f"{info.images:,} ({'; '.join(facts)})"}
    if info.version:
        before, store = info.previous, info.store or {}
        back = "no earlier version"
        if before is not None:
            back = f"tfa rollback restores version {before['version']}, {before['images']:,} images"
        shown["store"] = f"version {info.version} in {store['store']}, {info.dims:,} dimensions per image; {back}"
    else:
        shown["size"] = f"{format_size(info.bytes or 0)}, stored as {info.storage}"
    if info.reduction:
        small = info.reduction
        shown["search"] = (
            f"{small['dims']:,} dimensions, {small['bytes_per_image']:,} bytes per image; the best "
            f"{small['scored_again']} are rescored with all {small['full_dims']:,}"
        )
    chosen = [f"{one.choice} {one.name}" for one in info.decided if one.name in ("assignment", "carrier")]
    shown |= {"encoder": info.encoder.id, "head": info.head + (f" ({', '.join(chosen)})" if chosen else "")}
    if info.published:
        shown["system"] = info.published
    patches = f" ({_describe_patches(info.verification)})" if info.verification else " (no patches stored)"
    shown["reranking"] = ("on" if info.answers.reranked else "off") + patches
    names = [f"{one.name} (active)" if one.active else one.name for one in info.calibrations]
    shown["calibrations"] = ", ".join(names) or "none"
    for label, text in shown.items():
        if lines is None or label in lines:
            say(f"  {label}: {text}")
    if lines is None:
        recalls = [_find_recall(one) for one in info.calibrations if one.active]
        say(f"  {recalls[0]}" if any(recalls) else "  expected recall: unknown; tfa calibrate estimates it")


def _find_recall(made: CalibrationInfo) -> ExpectedRecall | None:
    found = (made.calibration or {}).get("expected_recall")
    return ExpectedRecall.from_dict(found) if found else None


def _describe_patches(facts: Mapping[str, Any]) -> str:
    """Return the size of patches, and the store that holds them."""
    size, cache = f"{facts['bytes_per_image']:,} bytes of patches per image", facts.get("cache")
    if cache is None:
        return size
    where = f" in {facts['at']}" if facts["at"] else ""
    return f"{size}{where}; up to {format_size(cache['most_bytes'])} cached in memory"


def show_decisions(rows: Sequence[Decision], *more: tuple[str, str, str]) -> None:
    """Print every decision with its reason and margin, then other rows."""
    from tfa.maps.describe import format_reason

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for name, value, reason in [*((row.name, row.choice, format_reason(row.to_dict())) for row in rows), *more]:
        table.add_row(f"  {name}", value, reason)
    console().print(table)


def show_calibration(made: CalibrationInfo, *, decisions: bool) -> None:
    """Print the data that a calibration used, its decisions if wanted, and the expected recall."""
    facts = made.calibration or {}
    data_used = "map images and calibration photos" if made.data_used == "target" else made.data_used
    say(f"  fitted on {facts['used']:,} of {format_count(facts['given'], 'photo')}; data used: {data_used}")
    if decisions:
        show_decisions(made.decided)
        say("  changes: " + ("; ".join(made.differences) or "none, the decisions are the same"))
    recall = _find_recall(made)
    if recall is not None:
        say(f"  {recall}")


def list_spreads(made: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """List the spreads of scores, which bring the terms of a head to one scale."""
    if "representation" in made:
        from tfa.method.carriers import SIGMAS

        return [(f"σ of {one.symbol}", _shown(made[name]), one.words) for name, one in SIGMAS.items() if made.get(name)]
    if "source" in made:
        return []  # the evidence has them for each branch
    return [
        ("σ of patches", _shown(made["sigma_local"]), "spread of the patch scores, one for each vocabulary"),
        ("σ of CLS", _shown(made["sigma_cls"]), "spread of the CLS scores, one for each vocabulary"),
    ]


def show_evidence(info: MapInfo) -> None:
    """Print the decisions and every measured number: a table for each group, a line for a single number."""
    show_decisions(info.decided, *list_spreads(info.decisions))
    facts = info.verification or {}
    shown = {"usual evidence": facts["usual_evidence"]} if facts.get("usual_evidence") is not None else {}
    for name, group in {**info.evidence, **shown}.items():
        if name == "reasons":
            continue  # printed with the decisions
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


def show_changes(before: MapInfo, after: MapInfo) -> None:
    """Print which decisions a refit changed."""
    changed = [
        f"{new.name}: {old.choice} → {new.choice}"
        for old, new in zip(before.decided, after.decided, strict=False)
        if old.choice != new.choice
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


def format_size(number: int) -> str:
    """Write a number of bytes with a unit."""
    size = float(number)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def info(
    map: options.MapPath,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Show the reason of each decision and every measured number.")
    ] = False,
    checksum: options.Checksum = False,
    json: options.AsJson = False,
) -> None:
    """Show what a map holds and how it answers."""
    from tfa.maps import PlaceMap

    facts = PlaceMap.load(map, checksum=checksum).info()
    if delivered(facts, json=json):
        return
    say(f"{map}", style="bold")
    show_map(facts)
    if evidence:
        data_used = "map images only" if facts.data_used == "database" else facts.data_used
        fitted = f"head fitted on {facts.fitted_images:,} images"
        say(f"evidence: format {facts.format_version}, {fitted}; data used: {data_used}", "bold")
        show_evidence(facts)
        for calibration in facts.calibrations:
            say(f"calibration {calibration.name}{' (active)' if calibration.active else ''}", style="bold")
            show_calibration(calibration, decisions=True)
        say(WITHIN_NOISE, style="dim")
    else:
        say("show the decisions and their reasons with: " + format_command("tfa", "info", str(map), "--evidence"))
    show_notes(facts.notes)


@options.with_encoder
def report(
    map: options.MapPath,
    photos: Annotated[
        list[Path] | None, options.photos_option(help="Unlabeled photos to estimate recall with; repeat for more.")
    ] = None,
    aged: Annotated[
        float, typer.Option(metavar="DAYS", min=0, help="Report images that no sure answer named for this long.")
    ] = 90,
    out: Annotated[
        Path | None, options.out_option(metavar="FILE.html", help="Write the report as one HTML page.")
    ] = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Report on the quality of a map, with advice.

    Covers expected recall, near duplicates, hubs, isolated and aged images. Without [bold]--out[/bold] a summary is
    printed.
    """
    if out is not None:
        options.check_writable(out)

    from tfa.cli.query import expand_folders
    from tfa.report.collect import MapReport, collect_report
    from tfa.report.page import write_report

    place_map, progress = options.open_map(map, encoding, quiet=quiet)
    answers = None
    if photos:  # through the token cache, as calibrate and evaluate
        paths = expand_folders(photos)
        encoded = place_map.encode_photos(paths, True, progress)
        show_notes([], [(str(path), reason) for path, reason in encoded.skipped])
        answers = place_map.query_many(encoded.as_photos(paths), k=1, progress=progress)
    facts = collect_report(place_map.sample(), answers, aged_days=aged)
    if out is not None:  # Write files before printing: the reader may close the pipe.
        write_report(out, facts)
        note(f"wrote {out}")
    if json:
        print_json(MapReport.from_dict(facts))
    else:
        say(f"{map}", style="bold")
        say(f"  {facts['headline']}")
        say("what to do", style="bold")
        for sentence in facts["advice"] or ["Nothing: no problem was found."]:
            action, _, command = sentence.partition(" Run: ")
            say(f"  - {action}")
            if command:
                say(f"      {command}")
        say("numbers", style="bold")
        repeated = sum(len(group["images"]) - 1 for group in facts["duplicates"])
        images = format_count(facts["map"]["images"], "image")
        say(f"  {images}; {repeated:,} near duplicates, {len(facts['hubs']):,} hubs, {len(facts['lonely']):,} isolated")
        for one in facts["recall"]:
            say(f"  like {one['photos_like']}: {one['text']}")
        if facts["ageing"] is not None:
            say(f"  {facts['ageing']['text']}")


@options.with_encoder
def explain_command(
    map: options.MapPath,
    photo: Annotated[Path, typer.Argument(metavar="PHOTO", help="Query photo.")],
    out: Annotated[
        Path | None,
        options.out_option(
            metavar="FILE.png",
            callback=options.check_picture,
            help="Draw matching patches and what each patch adds to the score.",
        ),
    ] = None,
    rank: Annotated[int, typer.Option(min=1, help="Rank of the hit to explain; 1 is the best.")] = 1,
    calibration: options.CalibrationOption = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Show which patches of a photo match the answer.

    The map must store patches: [bold]tfa build --rerank[/bold].
    """
    from tfa.explain.why import explain_match as explained

    options.check_folder(map, "explain")
    place_map, _ = options.open_map(map, encoding, quiet=quiet)
    explanation = explained(place_map, photo, rank=rank, calibration=calibration)
    if not delivered(explanation.result, json=json):
        _show(explanation.result)
    if out is not None:
        draw(place_map, explanation, calibration, out)


def _show(explanation: ExplainResult) -> None:
    hit = explanation.answer
    from tfa.cli.query import make_relative

    say(make_relative(explanation.query), style="bold")
    where = "" if hit.position is None else f" at {hit.position}"
    say(f"  answer {explanation.rank}: {make_relative(hit.image)}, id {hit.id}{where}")
    say(f"  confidence {hit.confidence:.2f}{', recognized' if hit.sure else ''}")
    say(f"  {explanation.consistent} inliers of {explanation.mutual} mutual matches")
    say(f"  {explanation.view}")
    say(f"  reranking is {explanation.verification.reason}")


def draw(place_map: Any, explanation: Any, calibration: str | None, out: Path) -> None:
    """Draw the matches, and each patch's contribution to the score unless the answer's photo is missing."""
    import numpy as np

    from tfa.errors import BadMap
    from tfa.explain.draw_matches import draw_matches
    from tfa.explain.why import explain_score

    found, heats, linearised = explanation.result, None, False
    try:
        contributions = explain_score(place_map, explanation.tokens, found.answer.id, calibration)
        linearised = contributions["linearised"]
        heats = [np.array(contributions[heat]) for heat in ("query_heat", "image_heat")]
    except BadMap as error:
        note(f"drawn without contributions: {error}")
    answer, grid = Path(found.answer.image), found.grid
    draw_matches(Path(found.query), answer, explanation.matches, grid, grid, out, heats, linearised)
    note(f"wrote {out}" + ("" if answer.is_file() else f" (without {answer.name}, whose file is missing)"))
