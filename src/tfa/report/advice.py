"""What to do about a map, each sentence with its reason and the command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tfa.base.config import CalibrationSpec
from tfa.base.shell import format_command
from tfa.maps.place_map import REFIT_SHARE

REPEATED = 0.05  # share of images that repeat another from which removing them is advised
_LISTED = 12  # ids written out


class Advice(NamedTuple):
    """What to do: in a word or two, and with its reason and command; a word is empty if it depends."""

    short: str
    sentence: str


def give_advice(
    facts: Mapping[str, Any],
    duplicates: Sequence[Any],
    hubs: Sequence[Any],
    lonely: Sequence[Any],
    called: str | None = None,
) -> list[Advice]:
    """From the facts of a map (`PlaceMap.info`) and what stands out in it; none if all is well.

    `called` is how commands name the map, if not by its path.
    """
    name = shlex.quote(called or facts.get("path") or "MAP")
    advice = [*_refit(facts, name), *_duplicates(facts, duplicates, name), *_calibrate(facts, hubs, name)]
    if lonely:
        ids = _join_ids([one["id"] for one in lonely], ", ")
        count = f"{len(lonely):,} lonely photo{'' if len(lonely) == 1 else 's'}"
        sentence = f"Look at the images that nothing else resembles ({ids}): a gap in the map, or photos of no place"
        advice.append(Advice(f"look at {count}", sentence))
    if facts["verification"] is None:
        sentence = (
            "Build with --rerank: this map keeps no patches, so answers can neither be verified nor be called sure"
        )
        advice.append(Advice("build with --rerank", sentence))
    return advice


def _refit(facts: Mapping[str, Any], name: str) -> list[Advice]:
    reasons = []
    if facts["unseen_share"] > REFIT_SHARE:
        reasons.append(f"{facts['unseen_share']:.0%} of the images were not seen when the head was fitted")
    whole = facts["images"] + facts["removed_images"]
    if facts["removed_images"] > REFIT_SHARE * max(whole, 1):
        reasons.append(f"{facts['removed_images']} of {whole} images were removed, but still shape the head")
    return (
        [Advice("refit", f"Refit: {' and '.join(reasons)}. Run: {format_command('tfa', 'refit', name)}")]
        if reasons
        else []
    )


def _duplicates(facts: Mapping[str, Any], groups: Sequence[Any], name: str) -> list[Advice]:
    repeated = [image["id"] for group in groups for image in group["images"][1:]]
    if len(repeated) <= REPEATED * facts["images"]:
        return []
    ids = _join_ids(repeated, " ")
    sentence = (
        f"Remove duplicates: {len(repeated)} of {facts['images']} images nearly repeat another; they cost space and "
        f"share the first ranks among themselves. If they show nothing of their own, run: "
        f"{format_command('tfa', 'remove', name)} {ids}"
    )
    return [Advice("remove duplicates", sentence)]


def _calibrate(facts: Mapping[str, Any], hubs: Sequence[Any], name: str) -> list[Advice]:
    calibrate = format_command("tfa", "calibrate", name, "PHOTOS")
    made = facts["calibrations"]
    if hubs and not any(one["decisions"].get("score_calibrated") for one in made):
        most = hubs[0]
        sentence = (
            f"Calibrate: {len(hubs)} {'image is' if len(hubs) == 1 else 'images are'} returned far more often than is "
            f"usual (image {most['id']} by {most['returned_by']} others). Score calibration subtracts the mean score "
            f"of every image; give {CalibrationSpec.budget} photos of the camera in use: {calibrate}"
        )
        return [Advice("calibrate against hubs", sentence)]
    if not made:
        sentence = (
            "Calibrate if queries differ from the map's in camera, season or light: "
            f"{calibrate}, with {CalibrationSpec.budget} unlabelled photos of that camera"
        )
        return [Advice("", sentence)]
    few = [one for one in made if one["calibration"]["used"] < CalibrationSpec.budget]
    return [
        Advice(
            f"calibrate for {one['name']} with more photos",
            f"Calibrate again: {one['name']} is made of {one['calibration']['used']} photos, {CalibrationSpec.budget} "
            f"are better. Run: {format_command('tfa', 'calibrate', name, 'PHOTOS', '--name', one['name'])}",
        )
        for one in few
    ]


def _join_ids(ids: Sequence[int], separator: str) -> str:
    return separator.join([*map(str, ids[:_LISTED]), *(["…"] if len(ids) > _LISTED else [])])
