"""Places whose geometry is known: photos are crops of larger fields of tokens."""

from __future__ import annotations

import numpy as np

from tfa.core.tokens import Tokens

GRID = (8, 8)
SHIFT = (1, -1)  # rows down and columns right by which a query's patches lie elsewhere in their database image
SHARED = 49  # patches that both crops hold: 7 × 7


def crop(field: np.ndarray, top: int, left: int) -> np.ndarray:
    return field[top : top + GRID[0], left : left + GRID[1]].reshape(-1, field.shape[-1])


def town(places: int = 10, channels: int = 16, seed: int = 0) -> tuple[Tokens, Tokens]:
    """Database and queries. Image 2p is place p; image 2p + 1 holds all patches of query p, in disorder.

    Whoever looks at patches alone prefers the second, whoever looks at where they lie the first.
    """
    rng = np.random.default_rng(seed)
    database, queries = [], []
    for _ in range(places):
        field = rng.normal(size=(14, 14, channels))
        query = crop(field, 4, 2)
        queries.append(query + 0.02 * rng.normal(size=query.shape))
        database.append(crop(field, 3, 3))
        database.append(rng.permutation(query))
    return Tokens(np.stack(database), grid=GRID), Tokens(np.stack(queries), grid=GRID)
