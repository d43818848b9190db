"""What every fitted head can be asked, whatever made it: scores, a ranking, one vector per image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from tfa.errors import BadSpec
from tfa.scoring import Compiled, Scorer, compile_scorer, top_k
from tfa.tokens import Tokens

Replica = int | Literal["ensemble"]
ENSEMBLE: Literal["ensemble"] = "ensemble"


class Retriever:
    """A head of several replicas, each a complete scorer, and their sum."""

    scorers: Mapping[Replica, Scorer]

    def __len__(self) -> int:
        return len(self.scorers[0].bias)

    def scorer(self, replica: Replica = 0) -> Scorer:
        if replica not in self.scorers:
            raise BadSpec(f"replica {replica!r} does not exist; use 0, 1, 2 or 'ensemble'")
        return self.scorers[replica]

    def scores(self, tokens: Tokens, replica: Replica = 0) -> np.ndarray:
        """Scores of query images against the database, `q m`."""
        return self.scorer(replica).scores(tokens)

    def search(self, tokens: Tokens, k: int = 10, replica: Replica = 0) -> tuple[np.ndarray, np.ndarray]:
        """The k best database images of each query: indices `q k` (int64) and scores `q k`."""
        if k < 1:
            raise BadSpec(f"k={k} is out of range: must be at least 1")
        return top_k(self.scores(tokens, replica), k)

    def compile(self, replica: Replica = 0) -> Compiled:
        """The head as one vector per image and a bias per database image."""
        return compile_scorer(self.scorer(replica))
