"""Everything the report says about a map, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfa.base.sentences import list_rules
from tfa.maps import Answer, ImageRecord, PlaceMap
from tfa.maps.expected_recall import AnswerList, format_expected_recall
from tfa.maps.records import ExpectedRecall
from tfa.maps.store import SampleMap
from tfa.report.advice import Advice, give_advice
from tfa.report.ageing import DAYS, find_aged
from tfa.report.evidence import collect_evidence
from tfa.report.headline import write_headline
from tfa.report.neighbours import (
    NEAR_COSINE,
    NEIGHBOR_COUNT,
    count_answers,
    find_hubs,
    find_least_alike,
    find_lonely,
    group_near_duplicates,
    measure_resemblance,
)
from tfa.version import __version__

_LEAST = 6  # photos shown that are recognised least, or least like any other


def collect_report(
    place_map: PlaceMap | SampleMap,
    answers: AnswerList[Answer] | None = None,
    called: str | None = None,
    aged_days: float = DAYS,
) -> dict[str, Any]:
    """A headline; facts and evidence of a map, near duplicates, hubs, the least recognised photos, what aged, advice.

    `answers` are those to photos like the expected queries, if there are some; `called` is how
    advice names the map, if not by its path; `aged_days` after how many days without a confirmation a photo is aged.
    """
    info = place_map.info()
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


def recall_facts(info: Mapping[str, Any], answers: AnswerList[Answer] | None) -> list[dict[str, Any]]:
    """How many photos will be recognised, like those of each calibration and like those that were answered."""
    known: list[tuple[str, str | None, ExpectedRecall]] = []
    for one in info["calibrations"]:
        if one["calibration"].get("expected_recall"):
            expected = ExpectedRecall(**one["calibration"]["expected_recall"])
            known.append((f"the photos of calibration {one['name']}", one["name"], expected))
    asked = None if answers is None else answers.expected_recall
    if asked is not None:
        known.append((f"the {asked.photos:,} photos that were asked", None, asked))
    return [
        {"photos_like": like, "calibration": name, **one.to_dict(), "in_words": format_expected_recall(one)}
        for like, name, one in known
    ]


def _least_recognised(answers: AnswerList[Answer] | None) -> list[dict[str, Any]]:
    """Photos that were asked and have the least confident answers, each with its best hit."""
    answered = [one for one in answers or [] if one.hits]
    return [
        {"query": one.query, "hit": {**one.hits[0].to_dict(), "path": one.hits[0].image}, "sure": one.sure}
        for one in sorted(answered, key=lambda one: one.confidence)[:_LEAST]
    ]


def _notice(answers: AnswerList[Answer] | None) -> list[Advice]:
    notice = None if answers is None else answers.notice
    return [] if notice is None else [Advice("calibrate for these photos", notice[0].upper() + notice[1:])]


def _identify(record: ImageRecord) -> dict[str, Any]:
    return {"id": record.id, "image": Path(record.path).name, "path": record.path}
