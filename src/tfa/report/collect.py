"""Collect the report on a map as JSON: headline, advice, facts, duplicates, hubs and aged images."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tfa.core.plain import Value, req
from tfa.core.text import format_command, format_count, list_rules
from tfa.maps import PlaceMap
from tfa.maps.map import REFIT_SHARE
from tfa.maps.upkeep import Confirmed, format_time
from tfa.report.neighbors import (
    NEAR_COSINE,
    NEIGHBOR_COUNT,
    count_answers,
    find_hubs,
    find_least_alike,
    find_lonely,
    group_near_duplicates,
    measure_resemblance,
)
from tfa.types import Answers, CalibrateOptions, ExpectedRecall, Hit, ImageRecord, Verdict
from tfa.version import __version__

# --- JSON types -----------------------------------------------------------------------------------


class ReportImage(Value):
    """A map image."""

    id: int = req("Id of the image.", ge=0)
    image: str = req("Name of its file.")
    path: str = req("Its file.")


class DuplicateGroup(Value):
    """Images that nearly repeat each other."""

    images: list[ReportImage] = req("The leader first.", min_length=2)


class HubImage(ReportImage):
    """An image that many queries return."""

    returned_by: int = req("Queries that return it.", ge=0)


class LonelyImage(ReportImage):
    """An image with its largest similarity."""

    cosine: float = req("Cosine with the most similar image.")


class AgedImage(ReportImage):
    """An image that no sure answer named for a long time."""

    since: str | None = req("Time since which it could be confirmed.")
    last_confirmed: str | None = req("Time at which a sure answer last named it; null if never.")


class Ageing(Value):
    """Images by their last confirmation."""

    days: float = req("Days without a confirmation that count as old.", ge=0)
    since: str | None = req("Time of the first confirmation.")
    confirmed: int = req("Images that were confirmed.", ge=0)
    never: list[AgedImage] = req("Images that were never confirmed.")
    old: list[AgedImage] = req("Images whose last confirmation is old.")
    new: int = req("Images too new to judge.", ge=0)
    text: str = req("The same in a sentence.")


class ReportRecall(ExpectedRecall):
    """Expected recall on photos of one kind."""

    photos_like: str = req("Kind of photos.")
    calibration: str | None = req("Calibration whose photos they are; null for --photos.")
    text: str = req("The same in a sentence.")


class ReportHit(Hit):
    """A hit with its file."""

    path: str = req("File of the map image.")


class UnsureAnswer(Value):
    """A photo with an answer of low confidence."""

    query: str = req("The photo.")
    hit: ReportHit = req("Its best hit.")
    sure: bool = req("Whether the hit can be relied on.")
    verdict: Verdict = req("recognized (reliable), probable or not recognized.")
    reason: str = req("Reason of the verdict.")


class MapReport(Value):
    """Report on the quality of a map."""

    tfa: str = req("Release of tfa.")
    headline: str = req("The report in a line.")
    map: dict[str, Any] = req("As `tfa info --json`, without photos and evidence.")
    queries: int = req("Images used as queries.", ge=0)
    answers: int = req("Hits of each query that count.", ge=1)
    returned_by: list[int] = req("For each image, how many queries return it.")
    near: float = req("Cosine from which images are near duplicates.")
    duplicates: list[DuplicateGroup] = req("Groups of near duplicates.")
    hubs: list[HubImage] = req("Images that many queries return, largest first.")
    lonely: list[LonelyImage] = req("Isolated images, which no other image resembles.")
    least_alike: list[LonelyImage] = req("Images with the lowest similarity to their nearest image.", max_length=6)
    least_recognised: list[UnsureAnswer] = req("Least confident answers to --photos.", max_length=6)
    ageing: Ageing | None = req("Confirmations; null if no service confirmed images.")
    recall: list[ReportRecall] = req("Expected recall for each calibration and for --photos.")
    advice: list[str] = req('What to do, most urgent first; a command follows "Run: ".')
    rules: dict[str, str] = req("Definitions of terms.")


DAYS = 90  # days without a confirmation after which an image counts as aged
SECONDS = 86_400  # per day


def find_aged(place_map: PlaceMap, days: float = DAYS) -> dict[str, Any] | None:
    """Find images that were not confirmed for `days`, as JSON; None if the service confirmed no image.

    An image that was never confirmed is in `never` only if it is older than `days`; else it is counted as `new`.
    """
    path = getattr(place_map, "path", None)
    kept = Confirmed() if path is None else Confirmed.read(path)
    latest = [kept.last_of(record) for record in place_map.images]
    if all(one is None for one in latest):
        return None
    limit, never, old, new = time.time() - days * SECONDS, [], [], 0
    for record, last in zip(place_map.images, latest, strict=True):
        since = kept.since_of(record)
        if last is not None:
            old += [_aged(record, since, last)] if last < limit else []
        elif since is not None and since <= limit:
            never.append(_aged(record, since, None))
        else:
            new += 1
    confirmed = sum(one is not None for one in latest)
    return {
        "days": days,
        "since": format_time(min(kept.since.values())),
        "confirmed": confirmed,
        "never": never,
        "old": old,
        "new": new,
        "text": f"{confirmed:,} of {len(latest):,} images were confirmed by sure answers, {len(old):,} of them more "
        f"than {days:g} days ago; {len(never):,} were never confirmed, and {new:,} are too new to judge",
    }


def _aged(record: ImageRecord, since: int | None, last: int | None) -> dict[str, Any]:
    return {**_identify(record), "since": format_time(since), "last_confirmed": format_time(last)}


# --- advice ---------------------------------------------------------------------------------------

REPEATED = 0.05  # fraction of near duplicates above which removing them is advised
_LISTED = 12  # ids to list


class Advice(NamedTuple):
    """An action in short form for the headline (empty if optional), and as a sentence with its command."""

    short: str
    sentence: str


def _advise(short: str, sentence: str, *command: str) -> Advice:
    """Create advice that ends with the command to run; pages format the command as code."""
    return Advice(short, f"{sentence} Run: {' '.join(command)}")


def give_advice(
    facts: Mapping[str, Any],
    duplicates: Sequence[Any],
    hubs: Sequence[Any],
    lonely: Sequence[Any],
    called: str | None = None,
) -> list[Advice]:
    """List what to do, from the facts of a map (`PlaceMap.info`) and its outliers; the most urgent first.

    `called` is the map's name in commands [default: its path].
    """
    name = called or facts.get("path") or "MAP"
    advice, reasons = list[Advice](), []
    if facts["unseen_share"] > REFIT_SHARE:
        reasons.append(f"{facts['unseen_share']:.0%} of the images were added after the head was fitted")
    whole = facts["images"] + facts["removed_images"]
    if facts["removed_images"] > REFIT_SHARE * max(whole, 1):
        reasons.append(f"{facts['removed_images']} of {whole} images were removed, but still shape the head")
    if reasons:
        sentence = f"Refit the map: {' and '.join(reasons)}."
        advice.append(_advise("refit", sentence, format_command("tfa", "refit", name)))
    repeated = [image["id"] for group in duplicates for image in group["images"][1:]]
    if len(repeated) > REPEATED * facts["images"]:
        sentence = (
            f"Remove near duplicates: {len(repeated)} of {facts['images']} images take space and add no place. Look at "
            "them below first."
        )
        remove = (format_command("tfa", "remove", name), _join_ids(repeated, " "))
        advice.append(_advise("remove duplicates", sentence, *remove))
    advice += _calibrate(facts, hubs, name)
    if lonely:
        ids = _join_ids([one["id"] for one in lonely], ", ")
        count = format_count(len(lonely), "isolated image")
        sentence = f"Check the images that nothing else resembles ({ids}): add photos around them, or remove them."
        advice.append(Advice(f"check {count}", sentence))
    if facts["verification"] is None:
        sentence = "Rebuild with reranking: this map stores no patches, so no answer can be sure."
        build = format_command("tfa", "build", "PHOTOS", "--rerank", "--out", name, "--force")
        advice.append(_advise("rebuild with --rerank", sentence, build))
    return advice


def _calibrate(facts: Mapping[str, Any], hubs: Sequence[Any], name: str) -> list[Advice]:
    calibrate, budget = format_command("tfa", "calibrate", name, "PHOTOS"), CalibrateOptions.budget
    made = facts["calibrations"]
    if hubs and not any(one["calibration"]["score"] for one in made):
        most = hubs[0]
        sentence = (
            f"Calibrate with {budget} photos of your camera: {len(hubs)} "
            f"{'image is a hub' if len(hubs) == 1 else 'images are hubs'}, returned for far too many queries (image "
            f"{most['id']} by {most['returned_by']} others). Calibration lowers their scores."
        )
        return [_advise("calibrate against hubs", sentence, calibrate)]
    if not made:
        sentence = (
            f"Calibrate with {budget} unlabeled photos of your camera if they differ from the map images in camera, "
            "season or light."
        )
        return [_advise("", sentence, calibrate)]
    return [
        _advise(
            f"calibrate for {one['name']} with more photos",
            f"Calibrate {one['name']} again with {budget} photos: it used only {one['calibration']['used']}.",
            format_command("tfa", "calibrate", name, "PHOTOS", "--name", one["name"]),
        )
        for one in made
        if one["calibration"]["used"] < budget
    ]


def _join_ids(ids: Sequence[int], separator: str) -> str:
    return separator.join([*map(str, ids[:_LISTED]), *(["…"] if len(ids) > _LISTED else [])])


def write_headline(
    facts: Mapping[str, Any], duplicates: Sequence[Any], recall: Sequence[Mapping[str, Any]], advice: Sequence[Advice]
) -> str:
    """Summarize a map in a line: images, near duplicates, expected recall and the short advice.

    The recall is that of the queried photos, else of the active calibration.
    """
    groups, active = len(duplicates), facts["answers"]["calibration"]
    shares = [one["share"] for name in (None, active) for one in recall if one["calibration"] == name]
    parts = [
        format_count(facts["images"], "photo"),
        format_count(groups, "near-duplicate group") if groups else "no near duplicates",
        f"expected recall {100 * shares[0]:.0f} %" if shares else "expected recall unknown",
        *dict.fromkeys(one.short for one in advice if one.short),
    ]
    return ", ".join(parts)


_LEAST = 6  # least confident answers, and least similar images, to list


def collect_report(
    place_map: PlaceMap, answers: Answers | None = None, called: str | None = None, aged_days: float = DAYS
) -> dict[str, Any]:
    """Collect everything the report says about a map."""
    info = place_map.info().to_dict()
    facts = {key: value for key, value in info.items() if key not in ("photos", "evidence")}
    found = measure_resemblance(place_map.state.checked().stored.scorer, place_map.rows)
    images = place_map.images
    duplicates = [{"images": [_identify(images[i]) for i in group]} for group in group_near_duplicates(found)]
    hubs = [{**_identify(images[i]), "returned_by": count} for i, count in find_hubs(found)]
    lonely = [{**_identify(images[i]), "cosine": cosine} for i, cosine in find_lonely(found)]
    recall = recall_facts(info, answers)
    name = called or info["path"] or "MAP"
    shift: list[Advice] = []
    if answers is not None and answers.notice is not None:
        sentence = (
            "Calibrate with photos of this camera: they look different from the photos the map was made for, or they "
            "do not show this place."
        )
        command = format_command("tfa", "calibrate", name, "PHOTOS")
        shift = [_advise("calibrate for these photos", sentence, command)]
    # The general advice to calibrate has no short form; a measured shift replaces it.
    others = give_advice(info, duplicates, hubs, lonely, called)
    advice = [*shift, *(one for one in others if one.short or not shift)]
    if not recall:
        sentence = "Estimate recall with a folder of photos like your queries; they need no labels."
        advice.append(_advise("", sentence, format_command("tfa", "report", name, "--photos", "PHOTOS")))
    return {
        "tfa": __version__,
        "headline": write_headline(info, duplicates, recall, advice),
        "map": facts,
        "queries": len(found.queries),
        "answers": NEIGHBOR_COUNT,
        "returned_by": count_answers(found).tolist(),
        "near": NEAR_COSINE,
        "duplicates": duplicates,
        "hubs": hubs,
        "lonely": lonely,
        "least_alike": [{**_identify(images[i]), "cosine": cosine} for i, cosine in find_least_alike(found, _LEAST)],
        "least_recognised": _least_recognised(answers),
        "ageing": find_aged(place_map, aged_days),
        "recall": recall,
        "advice": [one.sentence for one in advice],
        "rules": list_rules(),
    }


def recall_facts(info: Mapping[str, Any], answers: Answers | None) -> list[dict[str, Any]]:
    """List the expected recall on photos like those of each calibration, and like the queried ones."""
    known: list[tuple[str, str | None, ExpectedRecall]] = []
    for one in info["calibrations"]:
        if one["calibration"].get("expected_recall"):
            expected = ExpectedRecall(**one["calibration"]["expected_recall"])
            known.append((f"the photos of calibration {one['name']}", one["name"], expected))
    queried = None if answers is None else answers.expected_recall
    if queried is not None:
        known.append((f"the {queried.photos:,} photos of --photos", None, queried))
    return [{"photos_like": like, "calibration": name, **one.to_dict(), "text": str(one)} for like, name, one in known]


def _least_recognised(answers: Answers | None) -> list[dict[str, Any]]:
    """List the queried photos with the least confident answers, each with its best hit."""
    answered = [one for one in answers or [] if one.hits]
    return [
        {"query": one.query, "hit": {**one.hits[0].to_dict(), "path": one.hits[0].image}}
        | {name: getattr(one, name) for name in ("sure", "verdict", "reason")}
        for one in sorted(answered, key=lambda one: one.confidence)[:_LEAST]
    ]


def _identify(record: ImageRecord) -> dict[str, Any]:
    return {"id": record.id, "image": Path(record.path).name, "path": record.path}
