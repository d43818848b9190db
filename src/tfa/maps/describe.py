"""Describe a map in words and JSON: its decisions, how close they were, and its contents.

The command line, the report, the service and its page show the decisions of `list_decisions`.

A rule is made of conditions "this number is above 0". The strength of a condition is the number divided by its standard
error. The weakest condition decides if all must hold, the strongest if one is enough, so each rule has a strength: the
number of standard errors by which its numbers must move to change the decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfa.core.plain import from_plain
from tfa.encoders.catalogue import use_current_name
from tfa.errors import BadMap
from tfa.maps.folder.format import choose_format_version
from tfa.maps.state import MapState, NamedHead
from tfa.method.carriers import CARRIER_WORDS
from tfa.method.decisions import MIXTURE, list_close_decisions
from tfa.method.residuals import HARD
from tfa.search.reduced import AGAIN
from tfa.types import PAPER_ENCODER, AnswerSource, CalibrationInfo, Decision, EncoderInfo, ImageRecord, MapInfo, Margin

# --- margins --------------------------------------------------------------------------------------

_INTERVAL = 2 * 1.96  # width of a 95 % interval, in standard errors


@dataclass(frozen=True)
class Condition:
    """A condition that holds if `value` is above 0."""

    value: float
    error: float
    what: str  # the number in words

    @property
    def strength(self) -> float:
        if self.error > 0:
            return self.value / self.error
        return 0.0 if self.value == 0 else math.copysign(math.inf, self.value)

    def __invert__(self) -> Condition:
        return replace(self, value=-self.value)


def require_all(*conditions: Condition) -> Condition:
    """Combine conditions that must all hold: the weakest decides."""
    return min(conditions, key=lambda one: one.strength)


def require_any(*conditions: Condition) -> Condition:
    """Combine conditions of which one must hold: the strongest decides."""
    return max(conditions, key=lambda one: one.strength)


def compute_margins(head: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Compute how close each decision of a head was, without decisions whose standard errors are unknown."""
    made, evidence = head["decisions"], head["evidence"]
    if is_second_order(made) or is_dual(made):  # these have defaults only
        return {}
    pairs = _Pairs(evidence["candidates"], evidence.get("target_images") or evidence["pseudo_queries"])
    found = _target_conditions(made, evidence, pairs) if "route" in made else _database_conditions(made, pairs)
    return {name: _describe(one) for name, one in found.items() if one is not None}


def _describe(condition: Condition) -> dict[str, Any]:
    far = abs(condition.strength)
    if math.isinf(far):
        return {"standard_errors": None, "within_noise": False, "text": f"{condition.what} (no spread measured)"}
    noise = ", within noise" if far <= 1 else ""
    words = f"{condition.what} ({far:.1f} standard errors from the threshold{noise})"
    return {"standard_errors": far, "within_noise": far <= 1, "text": words}


@dataclass(frozen=True)
class _Pairs:
    """Pairwise comparisons of the paper's candidates."""

    candidates: Mapping[str, Mapping[str, Any]]
    photos: int  # number of answered photos

    def has_supports(self, *names: str) -> bool:
        """Tell whether support by vocabulary is stored for these candidates; older maps lack it."""
        return all(name in self.candidates and self.candidates[name].get("supports") for name in names)

    def wider(self, one: str, other: str) -> Condition:
        """Require more distinct images; the error is that of the mean difference over the vocabularies."""
        pairs = zip(self.candidates[one]["supports"], self.candidates[other]["supports"], strict=True)
        gaps = [a - b for a, b in pairs]
        mean = sum(gaps) / len(gaps)
        spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / max(len(gaps) - 1, 1))
        error = spread / math.sqrt(len(gaps))
        more = "more" if mean >= 0 else "fewer"
        what = f"{one} reaches {abs(mean):.1f} ± {error:.1f} {more} images than {other}, switching needs 0"
        return Condition(mean, error, what)

    def agrees(self, one: str, other: str) -> Condition:
        """Require that agreement rises for at least one pair of vocabularies."""
        ours, theirs = self.candidates[one]["agreement"], self.candidates[other]["agreement"]
        gain, a, b = max((a - b, a, b) for a, b in zip(ours, theirs, strict=True))
        error = math.sqrt((a * (1 - a) + b * (1 - b)) / max(self.photos, 1))
        more = "more" if gain >= 0 else "less"
        what = f"{one} agrees {abs(gain):.3f} ± {error:.3f} {more} than {other}, switching needs 0"
        return Condition(gain, error, what)

    def beats(self, one: str, other: str) -> Condition:
        return require_all(self.wider(one, other), self.agrees(one, other))

    def carrier(self, chosen: str, original: str, partial: str, adaptive: str) -> Condition | None:
        """Apply the paper's rule for the carrier."""
        if not self.has_supports(original, partial, adaptive):
            return None
        plain = require_all(~self.wider(partial, original), ~self.agrees(partial, original))
        wider = self.wider(adaptive, partial)
        half = require_any(~wider, require_all(wider, ~self.agrees(adaptive, partial)))
        if chosen == "original":
            return plain
        return require_all(~plain, half if chosen == "partial" else ~half)


def _database_conditions(made: Mapping[str, Any], pairs: _Pairs) -> dict[str, Condition | None]:
    own = made["assignment"]
    hard, soft, fused = "hard/adaptive", "soft/adaptive", f"{own}/adaptive+cls"
    return {
        "assignment": pairs.beats(hard, soft) if pairs.has_supports(hard, soft) else None,
        "admit_cls": pairs.beats(fused, f"{own}/adaptive") if pairs.has_supports(fused, f"{own}/adaptive") else None,
        "carrier": pairs.carrier(made["carrier"], *(f"{own}/{name}" for name in ("original", "partial", "adaptive"))),
    }


def _target_conditions(
    made: Mapping[str, Any], evidence: Mapping[str, Any], pairs: _Pairs
) -> dict[str, Condition | None]:
    ends = {name: evidence[f"interval_{name}"] for name in ("A", "G", "capacity")}
    errors = {name: (high - low) / _INTERVAL for name, (low, high) in ends.items()}
    words = {
        "A": "the gain of soft over hard in anchor mass",
        "G": "the gain of soft over hard in whole descriptors",
        "capacity": "the capacity margin",
    }

    def make(name: str, value: float, sign: float, bound: str) -> Condition:
        return Condition(sign * value, errors[name], f"{words[name]} is {bound}{value:+.3f}, switching needs 0")

    below = {name: make(name, ends[name][1], -1, "at most ") for name in ends}
    lean = [make(name, evidence[f"m_{name}"], -1, "") for name in ("A", "G")]
    hard = require_any(require_all(below["A"], below["G"]), require_all(below["capacity"], *lean))
    mixed = make("A", ends["A"][0], 1, "at least ")
    route = made["route"]
    decided = hard if route == HARD else require_all(~hard, mixed if route == MIXTURE else ~mixed)
    return {"route": decided, "carrier": pairs.carrier(made["carrier"], "original", "partial", "adaptive")}


# --- decisions ------------------------------------------------------------------------------------


def list_decisions(head: Mapping[str, Any]) -> list[Decision]:
    """List the decisions of a head with reasons; the margin is None for defaults and unknown standard errors."""
    try:
        return _list_rows(head)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise BadMap("the decisions in the map header are damaged; rebuild the map") from None


def _list_rows(head: Mapping[str, Any]) -> list[Decision]:
    made, reasons = head["decisions"], head["evidence"]["reasons"]
    margins = {key: Margin(**one) for key, one in compute_margins(head).items()}
    if is_second_order(made):
        rows = _second_order(made, reasons)
    elif is_dual(made):
        rows = _dual(made, reasons)
    else:
        rows = _calibrated(made, reasons) if "route" in made else _list_database_decisions(made, reasons)
    facts = head.get("verification")
    if facts:
        rows.append(("verification", "reranking", "on" if facts["admitted"] else "off", facts["reason"]))
    return [
        Decision(name=name, choice=choice, reason=reason.removeprefix(f"{choice}: "), margin=margins.get(key))
        for key, name, choice, reason in rows
    ]


_CLOSE = {"assignment": "assignment", "carrier": "carrier", "admit_cls": "global token"}


def note_close_decisions(head: NamedHead) -> list[str]:
    """Return a sentence for each decision of the paper's head that rests on less than one photo."""
    try:
        return [
            f"the {_CLOSE[name]} rests on less than one photo: it would be {flip['choice']} if support or agreement "
            f"changed by {flip['change']:.2f} photos"
            for name, flip in list_close_decisions(head.evidence.get("margins", {}))
        ]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise BadMap("the margins in map.json are damaged; rebuild the map") from None


def format_reason(row: Mapping[str, Any]) -> str:
    """Format the reason of a decision with its margin."""
    margin = row["margin"]
    return "; ".join(filter(None, [row["reason"], None if margin is None else margin["text"]]))


def is_second_order(decisions: Mapping[str, Any]) -> bool:
    """Return True for decisions of a second-order head, False for the paper's heads."""
    return "representation" in decisions


def is_dual(decisions: Mapping[str, Any]) -> bool:
    """Return True for decisions of a dual head."""
    return "source" in decisions


def name_representation(made: Mapping[str, Any]) -> str:
    """Name the representation of a head."""
    name = made["representation"].replace("_", "-")
    return name if name == "second-order" else f"{name} residuals"


def _second_order(made: Mapping[str, Any], reasons: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    # Older maps have a single reason, given by the judge that chose the head.
    return [
        ("", "representation", name_representation(made), reasons.get("representation", reasons.get("judge", ""))),
        ("", "carrier", made["carrier"], reasons.get("carrier", CARRIER_WORDS[made["carrier"]])),
        ("", "centering", "on the photos" if made["centring"] else "on the map", reasons.get("centring", "")),
        ("", "scores", "calibrated" if made["score_calibrated"] else "not calibrated", reasons.get("score", "")),
    ]


def _dual(made: Mapping[str, Any], reasons: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    source = f"{made['source_words']} from " + (made.get("vocabulary") or ("map", "caller")[made["source"] == "given"])
    return [
        ("", "assignment", made["assignment"], reasons["assignment"]),
        ("", "carrier", made["carrier"], reasons["carrier"]),
        ("", "source words", source, reasons["source"]),
        ("", "map words", str(made["words"]), "fitted on the map"),
        ("", "scores", "as they are" if made["calibration"] == "none" else "calibrated", reasons["score"]),
    ]


def _list_database_decisions(made: Mapping[str, Any], reasons: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    token = "used" if made["admit_cls"] else "left out"
    return [
        ("assignment", "assignment", made["assignment"], reasons.get("assignment", "")),
        ("carrier", "carrier", made["carrier"], reasons.get("carrier", "")),
        ("admit_cls", "global token", token, reasons.get("admit_cls", "")),
        ("strengths", "strengths", f"c {made['c']:.3f}, β {made['beta']:.3f}", reasons.get("strengths", "")),
    ]


def _calibrated(made: Mapping[str, Any], reasons: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    mixed = f", soft {made['soft_weight']:.2f}" if made["route"] == "mixture" else ""
    strengths = "; ".join(f"{name} c {s['c']:.3f}, β {s['beta']:.3f}" for name, s in made["strengths"].items())
    token = f"used, weight {1 - made['local_weight']:.2f}" if made["admit_cls"] else "left out"
    scores = "calibrated" if made["score_calibrated"] else "not calibrated"
    return [
        ("route", "assignment", made["route"] + mixed, reasons.get("route", "")),
        ("carrier", "carrier", made["carrier"], reasons.get("carrier", "")),
        ("admit_cls", "global token", token, reasons.get("admit_cls", "")),
        ("strengths", "strengths", strengths, reasons.get("strengths", "")),
        ("", "scores", scores, reasons.get("score", "")),
    ]


# --- summary --------------------------------------------------------------------------------------


def compute_unseen_share(images: Sequence[ImageRecord]) -> float:
    """Return the share of images that the head was not fitted on."""
    return sum(not record.fitted for record in images) / max(len(images), 1)


def summarize_map(kind: str, where: str, images: int, state: MapState) -> str:
    """Summarize a map in one line: photos, encoder, head, calibrations and reranking."""
    made, head = state.database.decisions, state.chosen()
    representation = name_representation(made) if is_second_order(made) else made["assignment"]
    names = [f"{one.name} (active)" if one.name == state.active else one.name for one in state.calibrations]
    facts = [
        f"{images:,} photo{'' if images == 1 else 's'}",
        f"encoder {state.encoder['id']}",
        f"{state.head_kind} head ({representation}, {made['carrier']})",
        f"calibrations {', '.join(names)}" if names else "no calibration",
        "reranked" if head.verifies else "not reranked",
    ]
    return f"<{kind} {where}: {'; '.join(facts)}>"


def describe_map(state: MapState, answering: Sequence[ImageRecord], folder: Path | None, **more: Any) -> MapInfo:
    """Describe a map with its searchable images `answering`; `more` replaces fields of `MapInfo`."""
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
        "reduction": _describe_reduction(state),
        "verification": _describe_verification(state),
        "bytes": None if folder is None else sum(entry["bytes"] for entry in state.files),
        "calibrations": [_calibration(state, head) for head in state.calibrations],
        "photos": list(answering),
        "published": _name_published(state),
    }
    return MapInfo(**{**values, **more})


def _answers(state: MapState) -> AnswerSource:
    head, name, source = state.chosen(), None, "the uncalibrated head"
    if head.calibration is not None:
        name, source = head.name, f"calibration {head.name} ({head.calibration['used']:,} photos)"
    words = f"answers come from {source} and are {'reranked' if head.verifies else 'not reranked'}"
    return AnswerSource(calibration=name, reranked=head.verifies, text=words)


def _name_published(state: MapState) -> str | None:
    """Name the paper's system that answers: TFA, or TFA-C64 after a calibration with 64 photos."""
    head, encoder = state.chosen(), use_current_name(state.encoder)["id"]
    if not state.is_published or head.decisions.get("score_calibrated"):
        return None
    system = "TFA" if head.calibration is None else f"TFA-C{head.calibration['used']}"
    other = "" if encoder == PAPER_ENCODER else f", with {encoder} instead of {PAPER_ENCODER}"
    return f"{system} as published{other}"


def _calibration(state: MapState, head: NamedHead) -> CalibrationInfo:
    return CalibrationInfo(
        name=head.name, active=head.name == state.active, calibration=head.calibration,
        decided=list_decisions(vars(head)), decisions=head.decisions, reasons=head.evidence["reasons"],
        evidence=_numbers(head), data_used=head.data_used, verification=head.verification,
        differences=list_differences(state.database.decisions, head.decisions),
    )  # fmt: skip


def _describe_reduction(state: MapState) -> dict[str, Any] | None:
    """Describe the reduced search vectors; None if all dimensions are searched."""
    if state.head.reduced is None:
        return None
    dims, full = state.head.reduced.reduction.dims, state.head.reduced.reduction.width
    return {"dims": dims, "full_dims": full, "bytes_per_image": dims + 4, "scored_again": AGAIN}


def _describe_verification(state: MapState) -> dict[str, Any] | None:
    """Describe stored patches and the decision of the uncalibrated head; None without patches."""
    if state.compact is None:
        return None
    size = {"bytes_per_image": state.compact.bytes_per_image}
    return {**state.compact.to_dict(), **size, **(state.database.verification or {})}


def _numbers(head: NamedHead) -> dict[str, Any]:
    if is_second_order(head.decisions):  # older maps also hold the evidence of a judge
        return {"strengths": head.evidence["strengths"]}
    return {key: value for key, value in head.evidence.items() if key != "reasons"}


def _list_second_order_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    pairs = {
        "representation": (name_representation(before), name_representation(after)),
        "carrier": (before["carrier"], after["carrier"]),
    }
    sentences = [f"the {name} is {now} instead of {was}" for name, (was, now) in pairs.items() if was != now]
    if after["centring"]:
        sentences.append("queries are centered on the photos")
    if after["score_calibrated"]:
        sentences.append("scores are calibrated")
    return sentences


def list_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """List how a calibration differs from the uncalibrated head, a sentence per decision."""
    if is_second_order(after):
        return _list_second_order_differences(before, after)
    calibrated = "scores are calibrated: each image's mean score on the calibration photos is subtracted"
    if is_dual(after):
        return [calibrated]
    sentences = []
    route, old = after["route"], before["assignment"]
    if route == "mixture":
        sentences.append(
            f"hard and soft assignment are mixed, soft with weight {after['soft_weight']:.2f}, instead of {old} only"
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
        sentences.append(f"the global token is used with weight {share:.2f} instead of left out")
    elif before["admit_cls"] and not after["admit_cls"]:
        sentences.append("the global token is left out instead of used")
    elif after["admit_cls"] and f"{share:.2f}" != "0.50":  # the uncalibrated weight is always a half
        sentences.append(f"the global token has weight {share:.2f} instead of 0.50")
    if after["score_calibrated"]:
        sentences.append(calibrated)
    return sentences
