"""Everything the report says about a map, as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfa.maps import ImageRecord, PlaceMap
from tfa.report.advice import advice_of
from tfa.report.evidence import evidence_of
from tfa.report.neighbours import NEAR, NEIGHBOURS, answers, hubs_of, lonely_of, near_duplicates, resemblance
from tfa.version import __version__


def report_of(place_map: PlaceMap) -> dict[str, Any]:
    """Facts and evidence of a map, near duplicates, hubs, lonely images and advice."""
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
        "advice": advice_of(info, duplicates, hubs, lonely),
    }


def _named(record: ImageRecord) -> dict[str, Any]:
    return {"id": record.id, "image": Path(record.path).name, "path": record.path}
