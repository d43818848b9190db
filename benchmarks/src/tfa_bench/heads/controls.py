"""Spectral controls and ablations of the controllers.

Controls: each assignment under a fixed transformation of its descriptors, without global token.

    original   S_0          full       S_w(1)   the adaptive kernel at c = 1, β = 0
    centered   S_c          adaptive   S_A      at the strengths from the database, before selection
    partial    S_w(1/2)

Ablations replace one rule and keep all evidence. Each uses database evidence (`tfa-…`) and, calibrated on all queries,
target evidence (`tfa-fullq-…`, as in the paper's ablations). The paper names most of them without a formula; the
formulas are our choice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from tfa import pipeline
from tfa.core.arrays import backend_for
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec
from tfa.method.database import METHOD_RULES, Rules, decide_from_database
from tfa.method.decisions import DatabaseEvidence, Decisions
from tfa.method.evidence import Candidate
from tfa.method.head import BaseHead, Head, assemble
from tfa.method.residuals import ASSIGNMENT_KINDS, HARD, SOFT, describe_residuals
from tfa.method.target import decide_from_target
from tfa_bench.heads.contract import Fit, HeadCard, Photos, Shared
from tfa_bench.heads.tfa_heads import RetrieverHead, fitted_tfa
from tfa_bench.protocols import FULL_QUERY, NO_CALIBRATION

# --- spectral controls ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Control:
    """A carrier with its strengths; None keeps the strengths from the database."""

    title: str
    carrier: str
    c: float | None = None
    beta: float | None = None


CONTROLS: Mapping[str, Control] = {
    "original": Control("cosine", "original"),
    "centred": Control("centered", "adaptive", 0.0, 1.0),  # ℓ(c) = 0, ℓ(β) = 1: only S_c
    "partial": Control("partial whitening", "partial"),
    "full": Control("full whitening", "adaptive", 1.0, 0.0),
    "adaptive": Control("adaptive spectrum", "adaptive"),
}


def under_control(head: Head, assignment: str, control: Control) -> Head:
    """Return `head` with replaced decisions and without global token."""
    if not isinstance(head.decisions, Decisions) or not isinstance(head.evidence, DatabaseEvidence):
        raise BadSpec("controls need a database-only head, as made by tfa.fit")
    strengths = head.evidence.assignments[assignment]
    decisions = dataclasses.replace(
        head.decisions,
        assignment=assignment,
        carrier=control.carrier,
        admit_cls=False,
        c=strengths.c if control.c is None else control.c,
        beta=strengths.beta if control.beta is None else control.beta,
    )
    return reassembled(head, decisions)


def reassembled(head: Head, decisions: Decisions) -> Head:
    """Return the same fitted branches under other decisions."""
    return assemble(head, decisions, head.evidence, backend_for("cpu"))


def _fit(assignment: str, control: Control) -> Fit:
    return lambda database, shared: RetrieverHead(under_control(fitted_tfa(database, shared), assignment, control))


SPECTRAL_CARDS = tuple(
    HeadCard(
        name=f"{assignment}-{name}",
        title=f"{assignment.capitalize()} VLAD, {control.title}",
        sees="database",
        fit=_fit(assignment, control),
        settings={"assignment": assignment, "control": name},
    )
    for assignment in ASSIGNMENT_KINDS
    for name, control in CONTROLS.items()
)


# --- ablations -----------------------------------------------------------------------------------------------------


def carrier_by_support(original: Candidate, partial: Candidate, adaptive: Candidate) -> str:
    """Apply the method's carrier rule without conditions on agreement."""
    if partial.support <= original.support:
        return "original"
    return "partial" if partial.support > adaptive.support else "adaptive"


def carrier_by_agreement(original: Candidate, partial: Candidate, adaptive: Candidate) -> str:
    """Apply the method's carrier rule without conditions on support."""
    if partial.gain_over(original) < 0:
        return "original"
    return "partial" if adaptive.gain_over(partial) < 0 else "adaptive"


def carrier_ties_to_partial(original: Candidate, partial: Candidate, adaptive: Candidate) -> str:
    """Apply the method's rule, but break exact ties in support for partial whitening."""
    chosen = METHOD_RULES.carrier(original, partial, adaptive)
    return "partial" if chosen == "adaptive" and partial.support == adaptive.support else chosen


@dataclass(frozen=True)
class Ablation:
    title: str
    rules: Rules


# Agreement decides for a change only if it rises: a tie is not evidence.
ABLATIONS: Mapping[str, Ablation] = {
    "support-only": Ablation(
        "support only",
        Rules(
            assignment=lambda hard, soft: HARD if hard.support > soft.support else SOFT,
            global_token=lambda fused, local: fused.support > local.support,
            carrier=carrier_by_support,
        ),
    ),
    "agreement-only": Ablation(
        "agreement only",
        Rules(
            assignment=lambda hard, soft: HARD if hard.gain_over(soft) > 0 else SOFT,
            global_token=lambda fused, local: fused.gain_over(local) > 0,
            carrier=carrier_by_agreement,
        ),
    ),
    "ties-partial": Ablation("support ties to partial", Rules(carrier=carrier_ties_to_partial)),
    "always-cls": Ablation(
        "unconditional CLS", Rules(global_token=lambda fused, local: True, target_token=lambda token: True)
    ),
    "no-cls": Ablation("no CLS", Rules(global_token=lambda fused, local: False, target_token=lambda token: False)),
    "forced-hard": Ablation("forced hard", Rules(assignment=lambda hard, soft: HARD, route=lambda evidence: HARD)),
    "forced-soft": Ablation("forced soft", Rules(assignment=lambda hard, soft: SOFT, route=lambda evidence: SOFT)),
}


def fit_by(rules: Rules, head: Head) -> Head:
    """Decide a fitted head again by other rules."""
    decisions, evidence = decide_from_database(head.branches, head.cls, backend_for("cpu"), rules=rules)
    return assemble(head, decisions, evidence, backend_for("cpu"))


def calibrate_by(rules: Rules, head: Head, target: Tokens) -> Head:
    """Calibrate a fitted head on target photos by other rules."""
    backend = backend_for("cpu")
    words = [vocabulary.centers for vocabulary in head.vocabularies]
    described = describe_residuals(target, words, ASSIGNMENT_KINDS, head.spec.temperature, backend, dtype=head.dtype)
    decisions, evidence = decide_from_target(head.branches, described, head.cls, target.cls, backend, rules=rules)
    return assemble(head, decisions, evidence, backend, data_used="target")


def fitted_single(database: Photos, shared: Shared) -> Head:
    """Fit one construction: equal vocabularies always agree, so only support and strengths decide."""
    words = fitted_tfa(database, shared).vocabularies[0].centers
    return shared.once("single", lambda: pipeline.fit(database.tokens, shared.spec, [words] * 3, device=shared.device))


def _fit_database(rules: Rules) -> Fit:
    return lambda database, shared: RetrieverHead(fit_by(rules, fitted_tfa(database, shared)))


def _fit_target(rules: Rules) -> Fit:
    def calibrate(head: Head, target: Tokens) -> BaseHead:
        return calibrate_by(rules, head, target)

    return lambda database, shared: RetrieverHead(fitted_tfa(database, shared), how=calibrate)


def _card(name: str, title: str, fit: Fit, target: bool) -> HeadCard:
    return HeadCard(
        name=f"tfa-fullq-{name}" if target else f"tfa-{name}",
        title=f"TFA-FullQ, {title}" if target else f"TFA, {title}",
        sees="target" if target else "database",
        fit=fit,
        settings={"ablation": name},
        note="ablation",
        plan=FULL_QUERY if target else NO_CALIBRATION,
    )


ABLATION_CARDS = (
    *(_card(name, ablation.title, _fit_database(ablation.rules), False) for name, ablation in ABLATIONS.items()),
    _card("single", "single construction", lambda d, s: RetrieverHead(fitted_single(d, s), (0,)), False),
    *(_card(name, ablation.title, _fit_target(ablation.rules), True) for name, ablation in ABLATIONS.items()),
    _card(
        "single",
        "single construction",
        lambda d, s: RetrieverHead(fitted_single(d, s), (0,), lambda head, target: pipeline.calibrate(head, target)),
        True,
    ),
)

CARDS = (*SPECTRAL_CARDS, *ABLATION_CARDS)
