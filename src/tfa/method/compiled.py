"""A head as one vector per image, for any inner-product engine:

score(q, d) = ⟨Ψ(q), Ψ(d)⟩ + b_d,   Ψ = ⊕_t √weight_t · f_t
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfa.base.tokens import Tokens
from tfa.method.scorer import Scorer


@dataclass(frozen=True)
class Compiled:
    """A head as one vector per image: any inner-product engine can serve it."""

    scorer: Scorer
    database: np.ndarray  # m D
    bias: np.ndarray  # m

    def query(self, tokens: Tokens) -> np.ndarray:
        """`q D`."""
        self.scorer._check(tokens)
        features = self.scorer.query_features(tokens)
        return direct_sum([term.weight for term in self.scorer.terms], features)


def compile_scorer(scorer: Scorer) -> Compiled:
    galleries = [np.concatenate([np.asarray(chunk, scorer.dtype) for chunk in term.gallery]) for term in scorer.terms]
    database = direct_sum([term.weight for term in scorer.terms], galleries)
    return Compiled(scorer, database, scorer.bias.astype(scorer.dtype))


def direct_sum(weights: Sequence[float], features: Sequence[np.ndarray]) -> np.ndarray:
    """Ψ: features side by side, each scaled by the root of its weight."""
    return np.concatenate(
        [f if w == 1 else f * f.dtype.type(np.sqrt(w)) for w, f in zip(weights, features, strict=True)],
        axis=1,
    )
