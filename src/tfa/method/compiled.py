"""A head as one vector per image, for any inner-product engine:

score(q, d) = ⟨Ψ(q), Ψ(d)⟩ + b_d,   Ψ = ⊕_t √weight_t · f_t
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfa.base.tokens import Tokens
from tfa.method.scorer import Scorer
from tfa.search.engine import direct_sum


@dataclass(frozen=True)
class Compiled:
    """A head as one vector per image: any inner-product engine can search it."""

    scorer: Scorer
    database: np.ndarray  # m D
    bias: np.ndarray  # m

    def query(self, tokens: Tokens) -> np.ndarray:
        """`q D`."""
        return np.asarray(self.scorer.query_vectors(tokens))


def compile_scorer(scorer: Scorer) -> Compiled:
    rows = scorer.rows
    galleries = [gallery.take(np.arange(len(rows))).astype(scorer.dtype, copy=False) for gallery in rows.galleries]
    return Compiled(scorer, direct_sum(rows.weights, galleries), scorer.bias.astype(scorer.dtype))
