"""Rankings and spectra → numbers that decide between candidates. Pure statistics, without labels.

`rows` sums up rows of scores (mean, spread, z-scores); `support` judges coverage and reproducibility together;
`information` and `relation` judge how much of the database's behaviour survives on target photos.
"""

from tfa.method.evidence.information import bootstrap_interval, extreme_support, information
from tfa.method.evidence.relation import RelationTerms, Subsamples, View, joint_scores, relation_terms
from tfa.method.evidence.rows import (
    EPSILON,
    NOBODY,
    RowFacts,
    mean_and_spread,
    row_facts,
    row_tops,
    standardised,
    z_scores,
)
from tfa.method.evidence.support import (
    PAIRS,
    SAME,
    Candidate,
    Mask,
    agreement,
    correlation,
    dispersion_penalised,
    support,
)

__all__ = [
    "EPSILON",
    "NOBODY",
    "PAIRS",
    "SAME",
    "Candidate",
    "Mask",
    "RelationTerms",
    "RowFacts",
    "Subsamples",
    "View",
    "agreement",
    "bootstrap_interval",
    "correlation",
    "dispersion_penalised",
    "extreme_support",
    "information",
    "joint_scores",
    "mean_and_spread",
    "relation_terms",
    "row_facts",
    "row_tops",
    "standardised",
    "support",
    "z_scores",
]
