"""Does the global token join in on target photos? Quality, retention, and a rescue for what complements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfa.method.controllers.target_decisions import BranchQuality, GlobalEvidence
from tfa.method.controllers.target_kernels import Kernel, pseudo_view, target_view
from tfa.method.evidence import (
    EPSILON,
    Mask,
    RowFacts,
    Subsamples,
    correlation,
    extreme_support,
    information,
    joint_scores,
    relation_terms,
    row_facts,
)


def judge_global_token(
    local_kernels: Sequence[Kernel],
    local_scores: Sequence[np.ndarray],
    local_facts: Sequence[RowFacts],
    similar: Kernel,
    cls_facts: Sequence[RowFacts],
    masks: Sequence[Mask],
    pseudo: np.ndarray,
    counted: np.ndarray,
    samples: Subsamples,
) -> GlobalEvidence:
    """Both branches' qualities, their ratios, and the correlation of their row spreads."""
    cls_scores = [similar.target_scores()] * len(masks)
    rows = {
        "local": [row_facts(scores.copy()) for scores in local_scores],
        "cls": [row_facts(scores.copy()) for scores in cls_scores],
    }
    images = local_scores[0].shape[1]
    shared = (masks, pseudo, counted, images, samples)
    local = _quality(local_kernels, local_scores, rows["local"], local_facts, *shared)
    cls = _quality([similar] * len(masks), cls_scores, rows["cls"], cls_facts, *shared)
    return GlobalEvidence(
        local=local,
        cls=cls,
        r_T=cls.T / (local.T + EPSILON),
        r_C=cls.B / (local.B + EPSILON),
        r_J=float(np.sqrt(cls.B * cls.J) / (np.sqrt(local.B * local.J) + EPSILON)),
        corr=tuple(correlation(a.spread, b.spread) for a, b in zip(rows["local"], rows["cls"], strict=True)),
    )


def _quality(
    kernels: Sequence[Kernel],
    scores: Sequence[np.ndarray],
    target_rows: Sequence[RowFacts],
    pseudo_rows: Sequence[RowFacts],
    masks: Sequence[Mask],
    pseudo: np.ndarray,
    counted: np.ndarray,
    images: int,
    samples: Subsamples,
) -> BranchQuality:
    tops = np.stack([rows.top for rows in target_rows])
    pseudo_tops = np.stack([rows.top[counted] for rows in pseudo_rows])
    kept = information(tops, images).mean()
    reference = information(pseudo_tops, images).mean() if pseudo_tops.shape[1] else 0.0
    information_kept = max(float(min(kept, reference)), 0.0)
    joint: list[np.ndarray] = []
    for s, (kernel, mask) in enumerate(zip(kernels, masks, strict=True)):
        target = relation_terms(target_view(kernel, scores[s]), samples.target)
        reference_terms = relation_terms(pseudo_view(kernel, pseudo, mask, counted, images), samples.pseudo)
        joint.append(joint_scores(target, reference_terms))
    relation = float(np.median(np.mean(joint, axis=0)))
    support = extreme_support(tops, images)
    retention = [
        float(target.peak.mean() / (rows.peak[counted].mean() + EPSILON)) if counted.any() else 0.0
        for target, rows in zip(target_rows, pseudo_rows, strict=True)
    ]
    quality = float(np.cbrt(information_kept * relation * support))
    return BranchQuality(information_kept, relation, support, quality, float(np.mean(retention)))
