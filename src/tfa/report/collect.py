"""Everything the report says about a map, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfa.maps import Answer, ImageRecord, PlaceMap
from tfa.maps.engine_map import SampleMap
from tfa.maps.expected_recall import Answers, in_words
from tfa.maps.records import ExpectedRecall
from tfa.report.advice import advice_of
from tfa.report.evidence import evidence_of
from tfa.report.neighbours import NEAR, NEIGHBOURS, answers, hubs_of, lonely_of, near_duplicates, resemblance
from tfa.version import __version__


def report_of(place_map: PlaceMap | SampleMap, asked: Answers[Answer] | None = None) -> dict[str, Any]:
    """Facts and evidence of a map, near duplicates, hubs, lonely images and advice.

    `asked` are answers to photos like those that the map will be asked about, if there are some.
    """
    info = place_map.info()
    facts = {key: value for key, value in info.items() if key not in ("photos", "evidence")}
    found = resemblance(place_map.state.chosen().stored.scorer, place_map.rows)
    images = place_map.images
    duplicates = [{"images": [_named(images[i]) for i in group]} for group in near_duplicates(found)]
    hubs = [{**_named(images[i]), "returned_by": count} for i, count in hubs_of(found)]
    lonely = [{**_named(images[i]), "cosine": cosine} for i, cosine in lonely_of(found)]
    return {
        "tfa": __version__,
        "map": facts,
        "evidence": evidence_of(place_map),
        "queries": len(found.queries),
        "answers": NEIGHBOURS,
        "returned_by": answers(found).tolist(),
        "near": NEAR,
        "duplicates": duplicates,
        "hubs": hubs,
        "lonely": lonely,
        "recall": recall_facts(info, asked),
        "advice": [*_notice(asked), *advice_of(info, duplicates, hubs, lonely)],
    }


def recall_facts(info: Mapping[str, Any], answers: Answers[Answer] | None) -> list[dict[str, Any]]:
    """How many photos will be recognised, like those of each calibration and like those that were answered."""
    made = {f"the photos of calibration {one['name']}": one["calibration"] for one in info["calibrations"]}
    known = {name: ExpectedRecall(**c["expected_recall"]) for name, c in made.items() if c.get("expected_recall")}
    asked = None if answers is None else answers.expected_recall
    if asked is not None:
        known[f"the {asked.photos:,} photos that were asked"] = asked
    return [{"photos_like": name, **one.to_dict(), "in_words": in_words(one)} for name, one in known.items()]


def _notice(answers: Answers[Answer] | None) -> list[str]:
    notice = None if answers is None else answers.notice
    return [] if notice is None else [notice[0].upper() + notice[1:]]


def _named(record: ImageRecord) -> dict[str, Any]:
    return {"id": record.id, "image": Path(record.path).name, "path": record.path}
