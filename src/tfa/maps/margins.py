"""How far a decision was from flipping, in standard errors of the number that decides it (ours, beyond the paper).

A rule is made of conditions "this number is above 0". Each has a strength, the number over its standard error; the
weakest decides where all must hold, the strongest where one is enough, so a rule has a strength of its own, and the
decision flips when numbers move by so many standard errors. Read from what a map keeps of its evidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tfa.method.decisions import MIXTURE
from tfa.method.residuals import HARD

_INTERVAL = 2 * 1.96  # standard errors from end to end of an interval of 95 %


@dataclass(frozen=True)
class Condition:
    """Holds where `value` is above 0."""

    value: float
    error: float
    what: str  # the number, in words

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
    """Compute how far each decision of a head was from flipping, from the head's facts.

    A decision whose errors are not known is left out: strengths, and the global token by target photos.
    """
    made, evidence = head["decisions"], head["evidence"]
    found: dict[str, Condition | None] = {"verification": _verification(head.get("verification"))}
    if "representation" not in made:  # a second-order head has defaults, which no number decides
        photos = evidence.get("target_images") or evidence["pseudo_queries"]
        pairs = _Pairs(evidence["candidates"], photos)
        found |= _of_target(made, evidence, pairs) if "route" in made else _of_database(made, pairs)
    return {name: _describe(one) for name, one in found.items() if one is not None}


def _describe(condition: Condition) -> dict[str, Any]:
    far = abs(condition.strength)
    if math.isinf(far):
        words = f"nothing that was measured says otherwise ({condition.what})"
        return {"standard_errors": None, "within_noise": False, "in_words": words}
    noise = ", within noise" if far <= 1 else ""
    words = f"{far:.1f} standard errors from flipping{noise} ({condition.what})"
    return {"standard_errors": far, "within_noise": far <= 1, "in_words": words}


def _verification(facts: Mapping[str, Any] | None) -> Condition | None:
    if not facts or not facts.get("photos"):
        return None
    share, needed = facts["favours_candidates"], facts["needed"]
    # The standard error of a share of photos that chance decides, of which the rule asks for two.
    return Condition(share - needed, 0.5 / math.sqrt(facts["photos"]), f"{share:.0%} of photos, {needed:.0%} decide")


@dataclass(frozen=True)
class _Pairs:
    """Candidates of the paper's controllers against each other."""

    candidates: Mapping[str, Mapping[str, Any]]
    photos: int  # that were answered

    def has_supports(self, *names: str) -> bool:
        """Tell whether support by vocabulary is stored for these candidates; older maps lack it."""
        return all(name in self.candidates and self.candidates[name].get("supports") for name in names)

    def wider(self, one: str, other: str) -> Condition:
        """More distinct images; the error is that of the mean over the vocabularies, pair by pair."""
        pairs = zip(self.candidates[one]["supports"], self.candidates[other]["supports"], strict=True)
        gaps = [a - b for a, b in pairs]
        mean = sum(gaps) / len(gaps)
        spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / max(len(gaps) - 1, 1))
        error = spread / math.sqrt(len(gaps))
        return Condition(mean, error, f"{one} reaches {mean:+.1f} ± {error:.1f} images against {other}, 0 decides")

    def agrees(self, one: str, other: str) -> Condition:
        """The largest change of agreement over the pairs of vocabularies is not below 0."""
        ours, theirs = self.candidates[one]["agreement"], self.candidates[other]["agreement"]
        gain, a, b = max((a - b, a, b) for a, b in zip(ours, theirs, strict=True))
        error = math.sqrt((a * (1 - a) + b * (1 - b)) / max(self.photos, 1))
        return Condition(gain, error, f"agreement of {one} changes by {gain:+.3f} ± {error:.3f} to {other}, 0 decides")

    def beats(self, one: str, other: str) -> Condition:
        return require_all(self.wider(one, other), self.agrees(one, other))

    def carrier(self, chosen: str, original: str, partial: str, adaptive: str) -> Condition | None:
        """The rule of `controllers.rules.pick_carrier`."""
        if not self.has_supports(original, partial, adaptive):
            return None
        plain = require_all(~self.wider(partial, original), ~self.agrees(partial, original))
        wider = self.wider(adaptive, partial)
        half = require_any(~wider, require_all(wider, ~self.agrees(adaptive, partial)))
        if chosen == "original":
            return plain
        return require_all(~plain, half if chosen == "partial" else ~half)


def _of_database(made: Mapping[str, Any], pairs: _Pairs) -> dict[str, Condition | None]:
    own = made["assignment"]
    hard, soft, fused = "hard/adaptive", "soft/adaptive", f"{own}/adaptive+cls"
    return {
        "assignment": pairs.beats(hard, soft) if pairs.has_supports(hard, soft) else None,
        "admit_cls": pairs.beats(fused, f"{own}/adaptive") if pairs.has_supports(fused, f"{own}/adaptive") else None,
        "carrier": pairs.carrier(made["carrier"], *(f"{own}/{name}" for name in ("original", "partial", "adaptive"))),
    }


def _of_target(made: Mapping[str, Any], evidence: Mapping[str, Any], pairs: _Pairs) -> dict[str, Condition | None]:
    ends = {name: evidence[f"interval_{name}"] for name in ("A", "G", "capacity")}
    errors = {name: (high - low) / _INTERVAL for name, (low, high) in ends.items()}
    words = {"A": "soft less hard in anchor mass", "G": "soft less hard in whole descriptors", "capacity": "capacity"}
    below = {n: Condition(-ends[n][1], errors[n], f"{words[n]}: up to {ends[n][1]:+.3f}, 0 decides") for n in ends}
    lean = [
        Condition(-evidence[f"m_{n}"], errors[n], f"{words[n]}: {evidence[f'm_{n}']:+.3f}, 0 decides")
        for n in ("A", "G")
    ]
    hard = require_any(require_all(below["A"], below["G"]), require_all(below["capacity"], *lean))
    mixed = Condition(ends["A"][0], errors["A"], f"{words['A']}: from {ends['A'][0]:+.3f}, 0 decides")
    route = made["route"]
    decided = hard if route == HARD else require_all(~hard, mixed if route == MIXTURE else ~mixed)
    return {"route": decided, "carrier": pairs.carrier(made["carrier"], "original", "partial", "adaptive")}
