"""`tfa info`: what a map holds and why it answers the way it does."""

from __future__ import annotations

from tfa.cli import options
from tfa.cli.console import print_json, say, show_notes
from tfa.cli.show_map import show_calibration, show_evidence, show_map
from tfa.core.text import WITHIN_NOISE


def info(map: options.MapPath, checksum: options.Checksum = False, json: options.AsJson = False) -> None:
    """Show a map's decisions, the numbers they rest on and the reason for each; then those of its calibrations."""
    from tfa.maps import PlaceMap

    facts = PlaceMap.load(map, checksum=checksum).info().to_dict()
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
