"""Spectral controls, ablations of the controllers, and single branches of the dual head.

Controls: an assignment under a fixed transformation of its descriptors, without global token.

    original   S_0          full       S_w(1)   the adaptive kernel at c = 1, β = 0
    centered   S_c          adaptive   S_A      before selection
    partial    S_w(1/2)

`hard-…` and `soft-…` fix the assignment, and S_A has the strengths from the database. `fullq-…` has the assignment and
the strengths of TFA-FullQ, as in the paper's table; if it mixes both assignments, so does every control.

Ablations replace one rule and keep all evidence. Each uses database evidence (`tfa-…`), evidence of N queries
(`tfa-cN-…`) or evidence of all queries (`tfa-fullq-…`, as in the paper's ablations). A forced carrier keeps assignment,
global token and scales, which are decided before it. The paper names most other ablations without a formula; the
formulas are our choice.

`dual-k32-…` and `dual-k64-…` score with the source or the map vocabulary of the dual head only. `dual-database`
calibrates the dual head on the map images.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa import pipeline
from tfa.core.arrays import backend_for
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec
from tfa.method.database import METHOD_RULES, Rules, decide_from_database
from tfa.method.decisions import DatabaseEvidence, Decisions, TargetDecisions, TargetEvidence
from tfa.method.dual_vocabulary import DualHead
from tfa.method.evidence import Candidate
from tfa.method.head import ENSEMBLE, BaseHead, Head, ReplicaName, assemble
from tfa.method.residuals import ASSIGNMENT_KINDS, HARD, SOFT, describe_residuals
from tfa.method.scorer import Scorer, join_scorers
from tfa.method.target import decide_from_target
from tfa.method.vocabulary import CONSTRUCTIONS
from tfa_bench.heads.contract import Fit, HeadCard, Photos, Shared
from tfa_bench.heads.tfa_heads import RetrieverHead, fitted_tfa, retriever_card
from tfa_bench.protocols import FULL_QUERY, NO_CALIBRATION, budget

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
    """Return `head` with replaced decisions, which no evidence can flip, and without global token."""
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
    return assemble(head, decisions, dataclasses.replace(head.evidence, margins={}), backend_for("cpu"))


def under_control_of_target(head: Head, target: Tokens, control: Control, rules: Rules = METHOD_RULES) -> Head:
    """Calibrate `head`, then replace its carrier and drop the global token; a mixture stays a mixture."""
    calibrated = calibrate_by(rules, head, target)
    made, evidence = calibrated.decisions, calibrated.evidence
    assert isinstance(made, TargetDecisions)
    assert isinstance(evidence, TargetEvidence)
    given = {name: value for name, value in (("c", control.c), ("beta", control.beta)) if value is not None}
    decisions = dataclasses.replace(
        made,
        carrier=control.carrier,
        admit_cls=False,
        strengths={assignment: {**own, **given} for assignment, own in made.strengths.items()},
    )
    evidence = dataclasses.replace(evidence, margins={"route": evidence.margins["route"]})  # the others are fixed
    return assemble(head, decisions, evidence, backend_for("cpu"), data_used="target")


def _fit(assignment: str, control: Control) -> Fit:
    return lambda database, shared: RetrieverHead(
        under_control(fitted_tfa(database, shared), assignment, control), device=shared.device
    )


def _fit_under_fullq(control: Control) -> Fit:
    def calibrate(head: Head, target: Tokens) -> BaseHead:
        return under_control_of_target(head, target, control)

    return lambda database, shared: RetrieverHead(fitted_tfa(database, shared), how=calibrate, device=shared.device)


# On AmsterTime and Office Loop, where TFA-FullQ is hard, the paper's AnyLoc and its original cosine are equal.
_MATCHED_ANYLOC = "our reading: the matched AnyLoc of the paper's tables is this head (unit centers, three seeds)"

SPECTRAL_CARDS = (
    *(
        HeadCard(
            name=f"{assignment}-{name}",
            title=f"{assignment.capitalize()} VLAD, {control.title}",
            sees="database",
            fit=_fit(assignment, control),
            settings={"assignment": assignment, "control": name},
            note=_MATCHED_ANYLOC if (assignment, name) == (HARD, "original") else "",
        )
        for assignment in ASSIGNMENT_KINDS
        for name, control in CONTROLS.items()
    ),
    *(
        HeadCard(
            name=f"fullq-{name}",
            title=f"VLAD of TFA-FullQ, {CONTROLS[name].title}",
            sees="target",
            fit=_fit_under_fullq(CONTROLS[name]),
            settings={"assignment": "fullq", "control": name},
            plan=FULL_QUERY,
        )
        for name in ("original", "partial", "full", "adaptive")
    ),
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


def carrier_by_contraction(original: Candidate, partial: Candidate, adaptive: Candidate) -> str:
    """Apply the method's rule, but restore original cosine whenever partial whitening does not expand support."""
    return "original" if partial.support <= original.support else METHOD_RULES.carrier(original, partial, adaptive)


def force_carrier(carrier: str) -> Rules:
    """Return the method's rules with a fixed carrier, which is the last decision and changes no other."""
    return Rules(carrier=lambda original, partial, adaptive: carrier)


@dataclass(frozen=True)
class Ablation:
    title: str
    rules: Rules
    note: str = "ablation"


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
    "forced-original": Ablation("forced original cosine", force_carrier("original")),
    "forced-partial": Ablation("forced partial whitening", force_carrier("partial")),
    "forced-adaptive": Ablation("forced adaptive kernel", force_carrier("adaptive")),
    "support-contraction": Ablation(
        "fallback by support only",
        Rules(carrier=carrier_by_contraction),
        "our reading: original cosine if partial whitening does not expand support, whatever its agreement",
    ),
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
    return lambda database, shared: RetrieverHead(fit_by(rules, fitted_tfa(database, shared)), device=shared.device)


def _fit_target(rules: Rules) -> Fit:
    def calibrate(head: Head, target: Tokens) -> BaseHead:
        return calibrate_by(rules, head, target)

    return lambda database, shared: RetrieverHead(fitted_tfa(database, shared), how=calibrate, device=shared.device)


_SINGLE = "single"
_ABLATION = re.compile(r"(tfa-fullq|tfa-c([1-9][0-9]{0,5})|tfa)-(.+)")


def ablation_card(name: str) -> HeadCard | None:
    """Return the card of `tfa-RULE`, `tfa-cN-RULE` or `tfa-fullq-RULE`; None for other names."""
    match = _ABLATION.fullmatch(name)
    if match is None or match[3] not in (*ABLATIONS, _SINGLE):
        return None
    plan = budget(int(match[2])) if match[2] else FULL_QUERY if match[1] == "tfa-fullq" else NO_CALIBRATION
    calibrate = (lambda head, target: pipeline.calibrate(head, target)) if plan.calibrates else None
    title, note = "single construction", "ablation"
    fit: Fit = lambda database, shared: RetrieverHead(  # noqa: E731
        fitted_single(database, shared), (0,), calibrate, device=shared.device
    )
    if match[3] in ABLATIONS:
        ablation = ABLATIONS[match[3]]
        title, note = ablation.title, ablation.note
        fit = (_fit_target if plan.calibrates else _fit_database)(ablation.rules)
    return HeadCard(
        name=name,
        title=f"{match[1].replace('tfa', 'TFA').replace('fullq', 'FullQ').replace('-c', '-C')}, {title}",
        sees="target" if plan.calibrates else "database",
        fit=fit,
        settings={"ablation": match[3]},
        note=note,
        plan=plan,
    )


ABLATION_CARDS = tuple(
    card
    for system in ("tfa", "tfa-fullq")
    for rule in (*ABLATIONS, _SINGLE)
    if (card := ablation_card(f"{system}-{rule}")) is not None
)


# --- branches of the dual head -------------------------------------------------------------------------------------


_DUAL = re.compile(r"dual-(k32|k64|database)(.*)")
_BRANCHES = {"k32": ("source", "K32 branch"), "k64": ("map", "K64 branch")}
_DATABASE_NOTE = "our reading: the map images, each without itself, calibrate the scores of the dual head"


def dual_part_card(name: str, *supplied: Any) -> HeadCard | None:
    """Return the card of a dual head with one branch, or calibrated on the map images; None for other names."""
    match = _DUAL.fullmatch(name)
    base = None if match is None else retriever_card(f"dual{match[2]}", *supplied)
    if match is None or base is None or (match[1] == "database" and match[2]):
        return None
    own = base.fit
    branch, title = _BRANCHES.get(match[1], ("", ""))

    def fit(database: Photos, shared: Shared) -> RetrieverHead:
        fitted = own(database, shared)
        assert isinstance(fitted, RetrieverHead)
        dual = fitted.retriever
        assert isinstance(dual, DualHead)
        changed = select_branch(dual, branch) if branch else calibrate_on_database(dual, database.tokens)
        return dataclasses.replace(fitted, retriever=changed)

    if branch:
        settings = {**base.settings, "branch": branch}
        return dataclasses.replace(base, name=name, title=f"{base.title}, {title}", fit=fit, settings=settings)
    settings = {**base.settings, "score_calibration": "database"}
    title = "TFA dual, calibrated on the database"
    return dataclasses.replace(base, name=name, title=title, fit=fit, settings=settings, note=_DATABASE_NOTE)


def select_branch(head: DualHead, name: str) -> DualHead:
    """Return the head with one of its branches, "source" or "map"."""
    members = {key: member for key, member in head.members.items() if key[0] == name}
    scorers: dict[ReplicaName, Scorer] = {s: join_scorers([member]) for (_, s), member in members.items()}
    scorers[ENSEMBLE] = join_scorers([members[key] for key in sorted(members)])
    return dataclasses.replace(head, members=members, scorers=scorers)


def calibrate_on_database(head: DualHead, database: Tokens) -> DualHead:
    """Subtract each image's log mean exp of scores with the other images of the database, without duplicates."""
    images = np.arange(len(database))

    def less_usual(member: Scorer) -> Scorer:
        scores = member.scores(database).astype(np.float64)
        first = images if member.duplicates is None else member.duplicates
        same = first[:, None] == first[None, :]
        scores[same] = -np.inf
        others = len(images) - same.sum(axis=0)
        usual = np.logaddexp.reduce(scores, axis=0) - np.log(np.maximum(others, 1))
        return dataclasses.replace(member, bias=member.bias - np.where(others > 0, usual, 0.0))

    fresh = {id(member): less_usual(member) for member in head.members.values()}
    scorers: dict[ReplicaName, Scorer] = {
        s: join_scorers([fresh[id(member)] for (_, own), member in head.members.items() if own == s])
        for s in CONSTRUCTIONS
    }
    decisions = dataclasses.replace(head.decisions, calibration="log mean exp", calibration_images=len(images))
    return dataclasses.replace(head, decisions=decisions, scorers=scorers)


CARDS = (*SPECTRAL_CARDS, *ABLATION_CARDS)
