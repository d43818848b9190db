"""A map described in JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfa.core.plain import from_plain
from tfa.encoders.catalogue import use_current_name
from tfa.maps.decided import is_judged, list_decisions, name_representation
from tfa.maps.folder.header import choose_format_version
from tfa.maps.state import DATABASE, MapState, NamedHead
from tfa.search.reduced import AGAIN
from tfa.types import AnswerSource, CalibrationInfo, EncoderInfo, ImageRecord, MapInfo


def compute_unseen_share(images: Sequence[ImageRecord]) -> float:
    """Share of the images that the head was not fitted on."""
    return sum(not record.fitted for record in images) / max(len(images), 1)


def summarize_map(kind: str, where: str, images: int, state: MapState) -> str:
    """A map in one line: photos, encoder, head, calibrations and whether answers are verified."""
    made, head = state.database.decisions, state.chosen()
    chosen = (
        f"{name_representation(made)}, {made['carrier']}"
        if is_judged(made)
        else f"{made['assignment']}, {made['carrier']}"
    )
    names = [f"{one.name} (answers)" if one.name == state.active else one.name for one in state.calibrations]
    facts = [
        f"{images:,} photo{'' if images == 1 else 's'}",
        f"encoder {state.encoder['id']}",
        f"{state.head_kind} head ({chosen})",
        f"calibrations {', '.join(names)}" if names else "no calibration",
        "answers verified" if head.verifies else "answers not verified",
    ]
    return f"<{kind} {where}: {'; '.join(facts)}>"


def describe_map(state: MapState, answering: Sequence[ImageRecord], folder: Path | None, **more: Any) -> MapInfo:
    """Describe a map; `answering` are the images that still answer, `more` replaces fields of `MapInfo`."""
    values = {
        "name": None if folder is None else folder.stem,
        "path": None if folder is None else str(folder),
        "format_version": choose_format_version(state),
        "revision": state.revision,
        "photo_root": state.photo_root,
        "encoder": from_plain(EncoderInfo, use_current_name(state.encoder), "encoder"),
        "images": len(answering),
        "fitted_images": sum(record.fitted for record in state.images),
        "removed_images": len(state.removed),
        "unseen_share": compute_unseen_share(answering),
        "positions": sum(record.position is not None for record in answering),
        "spec": state.spec,
        "head": state.head_kind,
        "answers": _answers(state),
        "decided": list_decisions(vars(state.database)),
        "decisions": state.database.decisions,
        "reasons": state.database.evidence["reasons"],
        "evidence": _numbers(state.database),
        "data_used": state.database.data_used,
        "replica": state.database.replica,
        "storage": state.head.storage,
        "reduction": _reduction(state),
        "verification": _verification(state),
        "bytes": None if folder is None else sum(entry["bytes"] for entry in state.files),
        "calibrations": [_calibration(state, head) for head in state.calibrations],
        "photos": list(answering),
    }
    return MapInfo(**{**values, **more})


def _answers(state: MapState) -> AnswerSource:
    """What answers where a query names no calibration."""
    head = state.chosen()
    name = None if head.name == DATABASE else head.name
    source = "the head fitted on the map's own photos, not calibrated"
    if head.calibration is not None:
        source = f"the calibration {name}, made with {head.calibration['used']:,} photos"
    verified = "verified by their patches" if head.verifies else "not verified"
    words = f"answers come from {source}; they are {verified}"
    return AnswerSource(calibration=name, reranked=head.verifies, in_words=words)


def _calibration(state: MapState, head: NamedHead) -> CalibrationInfo:
    return CalibrationInfo(
        name=head.name,
        active=head.name == state.active,
        calibration=head.calibration,
        decided=list_decisions(vars(head)),
        decisions=head.decisions,
        reasons=head.evidence["reasons"],
        evidence=_numbers(head),
        data_used=head.data_used,
        verification=head.verification,
        differences=list_differences(state.database.decisions, head.decisions),
    )


def _reduction(state: MapState) -> dict[str, Any] | None:
    """Describe the search dimensions and their size; None if all dimensions are searched."""
    if state.head.reduced is None:
        return None
    dims, full = state.head.reduced.reduction.dims, state.head.reduced.reduction.width
    return {"dims": dims, "full_dims": full, "bytes_per_image": dims + 4, "scored_again": AGAIN}


def _verification(state: MapState) -> dict[str, Any] | None:
    """How answers can be verified and whether the database-only head is; None where nothing is kept for it."""
    if state.compact is None:
        return None
    size = {"bytes_per_image": state.compact.bytes_per_image}
    return {**state.compact.to_dict(), **size, **(state.database.verification or {})}


def _numbers(head: NamedHead) -> dict[str, Any]:
    return {key: value for key, value in head.evidence.items() if key != "reasons"}


def list_judged_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """`list_differences` of a calibration that is not the paper's."""
    sentences = []
    for name, (was, now) in {
        "the representation is": (name_representation(before), name_representation(after)),
        "the carrier is": (before["carrier"], after["carrier"]),
    }.items():
        if was != now:
            sentences.append(f"{name} {now} instead of {was}")
    if after["centring"]:
        sentences.append("queries are centred on the photos")
    if after["score_calibrated"]:
        sentences.append("scores are calibrated")
    return sentences


def list_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """How the decisions of a calibration differ from those of the database-only head, a sentence each."""
    if is_judged(after):
        return list_judged_differences(before, after)
    sentences = []
    route, old = after["route"], before["assignment"]
    if route == "mixture":
        sentences.append(
            f"hard and soft assignment are mixed, soft with weight {after['soft_weight']:.2f}, instead of {old} alone"
        )
    elif route != old:
        sentences.append(f"assignment is {route} instead of {old}")
    if after["carrier"] != before["carrier"]:
        sentences.append(f"the carrier is {after['carrier']} instead of {before['carrier']}")
    was = f"c {before['c']:.3f} and β {before['beta']:.3f}"
    for branch, strength in after["strengths"].items():
        now = f"c {strength['c']:.3f} and β {strength['beta']:.3f}"
        if now != was:
            unused = "" if after["carrier"] == "adaptive" else f" (the {after['carrier']} carrier does not use them)"
            sentences.append(f"the strengths of {branch} are {now} instead of {was}{unused}")
    share = 1 - after["local_weight"]
    if after["admit_cls"] and not before["admit_cls"]:
        sentences.append(f"the global token is admitted with weight {share:.2f} instead of left out")
    elif before["admit_cls"] and not after["admit_cls"]:
        sentences.append("the global token is left out instead of admitted")
    elif after["admit_cls"] and f"{share:.2f}" != "0.50":  # without a calibration it always weighs a half
        sentences.append(f"the global token weighs {share:.2f} instead of 0.50")
    if after["score_calibrated"]:
        sentences.append("scores are calibrated: each image has a bias learnt from the calibration photos")
    return sentences
