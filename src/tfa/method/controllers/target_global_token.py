"""Is the global token used on target photos? Quality, retention, and a rescue for what complements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfa.method.controllers.decisions import BranchQuality, GlobalEvidence
from tfa.method.controllers.target_kernels import Kernel, PseudoRows, branch_relation
from tfa.method.evidence.information import extreme_support, information
from tfa.method.evidence.relation import Subsamples
from tfa.method.evidence.rows import EPSILON, RowFacts, row_facts
from tfa.method.evidence.support import correlation


@dataclass(frozen=True)
class ScoreBranch:
    """Local patches or the global token: in each construction its kernel, target scores and pseudo-query rows."""

    kernels: Sequence[Kernel]
    scores: Sequence[np.ndarray]
    pseudo_facts: Sequence[RowFacts]


def judge_global_token(local: ScoreBranch, cls: ScoreBranch, pseudo: PseudoRows, samples: Subsamples) -> GlobalEvidence:
    """Both branches' qualities, their ratios, and the correlation of their row spreads."""
    local_rows, cls_rows = ([row_facts(scores.copy()) for scores in branch.scores] for branch in (local, cls))
    ours, theirs = _quality(local, local_rows, pseudo, samples), _quality(cls, cls_rows, pseudo, samples)
    return GlobalEvidence(
        local=ours,
        cls=theirs,
        r_T=theirs.T / (ours.T + EPSILON),
        r_C=theirs.B / (ours.B + EPSILON),
        r_J=float(np.sqrt(theirs.B * theirs.J) / (np.sqrt(ours.B * ours.J) + EPSILON)),
        corr=tuple(correlation(a.spread, b.spread) for a, b in zip(local_rows, cls_rows, strict=True)),
    )


def _quality(
    branch: ScoreBranch, target_rows: Sequence[RowFacts], pseudo: PseudoRows, samples: Subsamples
) -> BranchQuality:
    images, counted = pseudo.images, pseudo.counted
    tops = np.stack([rows.top for rows in target_rows])
    pseudo_tops = np.stack([rows.top[counted] for rows in branch.pseudo_facts])
    kept = information(tops, images).mean()
    reference = information(pseudo_tops, images).mean() if pseudo_tops.shape[1] else 0.0
    information_kept = max(float(min(kept, reference)), 0.0)
    joint = [
        branch_relation(kernel, scores, pseudo, s, samples)[0]
        for s, (kernel, scores) in enumerate(zip(branch.kernels, branch.scores, strict=True))
    ]
    relation = float(np.median(np.mean(joint, axis=0)))
    support = extreme_support(tops, images)
    retention = [
        float(target.peak.mean() / (rows.peak[counted].mean() + EPSILON)) if counted.any() else 0.0
        for target, rows in zip(target_rows, branch.pseudo_facts, strict=True)
    ]
    quality = float(np.cbrt(information_kept * relation * support))
    return BranchQuality(information_kept, relation, support, quality, float(np.mean(retention)))
