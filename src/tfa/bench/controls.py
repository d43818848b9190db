"""Heads to compare with: the same fitted branches under fixed choices instead of the controller's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tfa.arrays import backend_for
from tfa.bench.recall import recall_at
from tfa.controllers.decisions import Decisions
from tfa.errors import BadSpec
from tfa.head import Head, assemble
from tfa.tokens import Tokens
from tfa.vocabulary import CONSTRUCTIONS


@dataclass(frozen=True)
class Control:
    """Fixed decisions; None keeps the controller's."""

    assignment: str | None
    carrier: str
    c: float | None = None
    beta: float | None = None


# S_w(1), full whitening, is the adaptive kernel at c = 1, β = 0.
CONTROLS: Mapping[str, Control] = {
    "hard VLAD, cosine (AnyLoc's head)": Control("hard", "original"),
    "soft VLAD, cosine": Control("soft", "original"),
    "soft, partial whitening": Control("soft", "partial"),
    "soft, full whitening": Control("soft", "adaptive", 1.0, 0.0),
    "soft, adaptive before selection": Control("soft", "adaptive"),
}


def under_control(head: Head, control: Control) -> Head:
    """`head` with its decisions replaced and the global token left out."""
    if not isinstance(head.decisions, Decisions):
        raise BadSpec("controls are taken from a database-only head; give the head that tfa.fit made")
    assignment = control.assignment or head.decisions.assignment
    strengths = head.evidence.assignments[assignment]
    decisions = dataclasses.replace(
        head.decisions,
        assignment=assignment,
        carrier=control.carrier,
        admit_cls=False,
        c=strengths.c if control.c is None else control.c,
        beta=strengths.beta if control.beta is None else control.beta,
    )
    dtype = str(head.branches[assignment, 0].described.descriptors.dtype)
    return assemble(
        head.spec, decisions, head.evidence, head.vocabularies, head.branches, head.cls, backend_for("cpu"), dtype
    )


def mean_recall(head: Head, queries: Tokens, positives: Sequence[Sequence[int]], ks: Sequence[int]) -> list[float]:
    """Recall of each replica, averaged: what the paper reports."""
    rows = [recall_at(head.search(queries, max(ks), s)[0], positives, ks) for s in CONSTRUCTIONS]
    return [float(value) for value in np.mean(rows, axis=0)]
