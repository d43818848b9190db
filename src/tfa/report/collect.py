"""Collect everything the report says about a map, as JSON: headline, facts, evidence, duplicates, hubs, aged photos
and advice.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tfa.core.plain import Value, req
from tfa.core.text import format_command, list_rules
from tfa.maps import PlaceMap
from tfa.maps.map import REFIT_SHARE
from tfa.maps.upkeep import Confirmed, format_time
from tfa.report.evidence import Evidence, collect_evidence
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
from tfa.types import Answers, CalibrateOptions, ExpectedRecall, Hit, ImageRecord
from tfa.version import __version__

# --- what is printed ------------------------------------------------------------------------------


class ReportImage(Value):
    """A map image."""

    id: int = req("Id of the image.", ge=0)
    image: str = req("Name of its file.")
    path: str = req("Its file.")


class DuplicateGroup(Value):
    """Images that nearly repeat each other."""

    images: list[ReportImage] = req("The leader first.", min_length=2)


class HubImage(ReportImage):
    """An image that many others return."""

    returned_by: int = req("Images that return it.", ge=0)


class LonelyImage(ReportImage):
    """An image and how similar its nearest one is."""

    cosine: float = req("Cosine of its most similar image.")


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
    new: int = req("Images that are too new to tell.", ge=0)
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


class MapReport(Value):
    """How good a map is."""

    tfa: str = req("Release of tfa.")
    headline: str = req("The report in a line.")
    map: dict[str, Any] = req("As `tfa info --json`, without photos and evidence.")
    evidence: Evidence = req("Evidence of the head that answers.")
    queries: int = req("Images used as queries.", ge=0)
    answers: int = req("Hits of each query that count.", ge=1)
    returned_by: list[int] = req("For each image, how many others return it.")
    near: float = req("Cosine from which images are near duplicates.")
    duplicates: list[DuplicateGroup] = req("Groups of near duplicates.")
    hubs: list[HubImage] = req("Images that many others return, the largest first.")
    lonely: list[LonelyImage] = req("Images that no other one resembles.")
    least_alike: list[LonelyImage] = req("Images whose nearest one is least similar.", max_length=6)
    least_recognised: list[UnsureAnswer] = req("Least confident answers to --photos.", max_length=6)
    ageing: Ageing | None = req("Confirmations; null if no service confirmed images.")
    recall: list[ReportRecall] = req("Expected recall for each calibration and for --photos.")
    advice: list[str] = req("What to do.")
    rules: dict[str, str] = req("Meaning of the words.")


# --- ageing ---------------------------------------------------------------------------------------

DAYS = 90  # without a confirmation after which a photo counts as aged
SECONDS = 86_400


def find_aged(place_map: PlaceMap, days: float = DAYS, now: float | None = None) -> dict[str, Any] | None:
    """In JSON; None where the service has confirmed no photo of the map.

    A photo that was never confirmed is `never` only if it could have been for so many days; else it is too `new`.
    """
    path = getattr(place_map, "path", None)
    kept = Confirmed() if path is None else Confirmed.read(path)
    latest = [kept.last_of(record) for record in place_map.images]
    if all(one is None for one in latest):
        return None
    now = time.time() if now is None else now
    limit, never, old, new = now - days * SECONDS, [], [], 0
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
        "text": f"{confirmed:,} of {len(latest):,} photos were confirmed by sure answers; in {days:g} days "
        f"{len(never):,} never were, {len(old):,} not any more; {new:,} are too new to tell",
    }


def _aged(record: ImageRecord, since: int | None, last: int | None) -> dict[str, Any]:
    named = {"id": record.id, "image": Path(record.path).name, "path": record.path}
    return {**named, "since": format_time(since), "last_confirmed": format_time(last)}


# --- advice ---------------------------------------------------------------------------------------

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
            f"of every image; give {CalibrateOptions.budget} photos of the camera in use: {calibrate}"
        )
        return [Advice("calibrate against hubs", sentence)]
    if not made:
        sentence = (
            "Calibrate if queries differ from the map's in camera, season or light: "
            f"{calibrate}, with {CalibrateOptions.budget} unlabelled photos of that camera"
        )
        return [Advice("", sentence)]
    few = [one for one in made if one["calibration"]["used"] < CalibrateOptions.budget]
    return [
        Advice(
            f"calibrate for {one['name']} with more photos",
            f"Calibrate again: {one['name']} is made of {one['calibration']['used']} photos, {CalibrateOptions.budget} "
            f"are better. Run: {format_command('tfa', 'calibrate', name, 'PHOTOS', '--name', one['name'])}",
        )
        for one in few
    ]


def _join_ids(ids: Sequence[int], separator: str) -> str:
    return separator.join([*map(str, ids[:_LISTED]), *(["…"] if len(ids) > _LISTED else [])])


# --- headline -------------------------------------------------------------------------------------


def write_headline(
    facts: Mapping[str, Any], duplicates: Sequence[Any], recall: Sequence[Mapping[str, Any]], advice: Sequence[Advice]
) -> str:
    """Photos, near duplicates, how many photos will be recognised, and what to do first.

    The recall is that of photos that were asked, else of the calibration that answers.
    """
    groups = len(duplicates)
    return ", ".join(
        [
            _counted(facts["images"], "photo"),
            _counted(groups, "near-duplicate group") if groups else "no near duplicates",
            _recall(facts["answers"]["calibration"], recall),
            *dict.fromkeys(one.short for one in advice if one.short),
        ]
    )


def _recall(answering: str | None, recall: Sequence[Mapping[str, Any]]) -> str:
    asked = [one for one in recall if one["calibration"] is None]
    own = [one for one in recall if answering is not None and one["calibration"] == answering]
    for one in [*asked, *own]:
        return f"expected recall {100 * one['share']:.0f} %"
    return "expected recall not known (give photos)"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# --- collect --------------------------------------------------------------------------------------

_LEAST = 6  # photos shown that are recognised least, or least like any other


def collect_report(
    place_map: PlaceMap,
    answers: Answers | None = None,
    called: str | None = None,
    aged_days: float = DAYS,
) -> dict[str, Any]:
    """A headline; facts and evidence of a map, near duplicates, hubs, the least recognised photos, what aged, advice.

    `answers` are those to photos like the expected queries, if there are some; `called` is how
    advice names the map, if not by its path; `aged_days` after how many days without a confirmation a photo is aged.
    """
    info = place_map.info().to_dict()
    facts = {key: value for key, value in info.items() if key not in ("photos", "evidence")}
    found = measure_resemblance(place_map.state.chosen().stored.scorer, place_map.rows)
    images = place_map.images
    duplicates = [{"images": [_identify(images[i]) for i in group]} for group in group_near_duplicates(found)]
    hubs = [{**_identify(images[i]), "returned_by": count} for i, count in find_hubs(found)]
    lonely = [{**_identify(images[i]), "cosine": cosine} for i, cosine in find_lonely(found)]
    recall = recall_facts(info, answers)
    advice = [*_notice(answers), *give_advice(info, duplicates, hubs, lonely, called)]
    return {
        "tfa": __version__,
        "headline": write_headline(info, duplicates, recall, advice),
        "map": facts,
        "evidence": collect_evidence(place_map),
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


def list_heads(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The heads of a map with what each decided: the one that answers first."""
    plain = {"title": "Without a calibration", "decided": facts["decided"]}
    calibrated = {
        one["name"]: {"title": f"Calibration {one['name']}", "decided": one["decided"]} for one in facts["calibrations"]
    }
    first = calibrated.pop(facts["answers"]["calibration"], None)
    return [*([] if first is None else [first]), plain, *calibrated.values()]


def recall_facts(info: Mapping[str, Any], answers: Answers | None) -> list[dict[str, Any]]:
    """How many photos will be recognised, like those of each calibration and like those that were answered."""
    known: list[tuple[str, str | None, ExpectedRecall]] = []
    for one in info["calibrations"]:
        if one["calibration"].get("expected_recall"):
            expected = ExpectedRecall(**one["calibration"]["expected_recall"])
            known.append((f"the photos of calibration {one['name']}", one["name"], expected))
    asked = None if answers is None else answers.expected_recall
    if asked is not None:
        known.append((f"the {asked.photos:,} photos that were asked", None, asked))
    return [{"photos_like": like, "calibration": name, **one.to_dict(), "text": str(one)} for like, name, one in known]


def _least_recognised(answers: Answers | None) -> list[dict[str, Any]]:
    """Photos that were asked and have the least confident answers, each with its best hit."""
    answered = [one for one in answers or [] if one.hits]
    return [
        {"query": one.query, "hit": {**one.hits[0].to_dict(), "path": one.hits[0].image}, "sure": one.sure}
        for one in sorted(answered, key=lambda one: one.confidence)[:_LEAST]
    ]


def _notice(answers: Answers | None) -> list[Advice]:
    notice = None if answers is None else answers.notice
    return [] if notice is None else [Advice("calibrate for these photos", notice[0].upper() + notice[1:])]


def _identify(record: ImageRecord) -> dict[str, Any]:
    return {"id": record.id, "image": Path(record.path).name, "path": record.path}
