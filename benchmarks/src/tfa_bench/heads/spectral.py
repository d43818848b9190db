"""Spectral controls: each assignment under a fixed transformation of its descriptors, no global token.

original   S_0              full       S_w(1)    the adaptive kernel at c = 1, β = 0
centred    S_c              adaptive   S_A       at the strengths the database gave, before selection
partial    S_w(1/2)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from tfa.core.arrays import backend_for
from tfa.errors import BadSpec
from tfa.method.decisions import DatabaseEvidence, Decisions
from tfa.method.head import Head, assemble
from tfa.method.residuals import ASSIGNMENT_KINDS
from tfa_bench.heads.contract import Fit, HeadCard
from tfa_bench.heads.tfa_heads import RetrieverHead, fitted_tfa


@dataclass(frozen=True)
class Control:
    """A carrier with its strengths; None keeps the strengths the database gave."""

    title: str
    carrier: str
    c: float | None = None
    beta: float | None = None


CONTROLS: Mapping[str, Control] = {
    "original": Control("cosine", "original"),
    "centred": Control("centered", "adaptive", 0.0, 1.0),  # ℓ(c) = 0, ℓ(β) = 1: S_c alone
    "partial": Control("partial whitening", "partial"),
    "full": Control("full whitening", "adaptive", 1.0, 0.0),
    "adaptive": Control("adaptive spectrum", "adaptive"),
}


def under_control(head: Head, assignment: str, control: Control) -> Head:
    """`head` with its decisions replaced and the global token left out."""
    if not isinstance(head.decisions, Decisions) or not isinstance(head.evidence, DatabaseEvidence):
        raise BadSpec("controls are taken from a database-only head; give the head that tfa.fit made")
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
    """The same fitted branches under other decisions."""
    return assemble(head, decisions, head.evidence, backend_for("cpu"))


def _fit(assignment: str, control: Control) -> Fit:
    return lambda database, shared: RetrieverHead(under_control(fitted_tfa(database, shared), assignment, control))


CARDS = tuple(
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
