"""A benchmark head: cosine of mean patches. Use it with `tfa bench run --heads example-mean,tfa …`."""

from __future__ import annotations

import numpy as np

from tfa_bench.heads.contract import ONLY, HeadCard, Photos, Shared


def describe(photos: Photos) -> np.ndarray:
    """Return a unit vector per photo, `(b, d)`."""
    means = np.stack([np.asarray(patches, np.float32).mean(axis=0) for patches in photos.tokens.patches])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


class MeanHead:
    replicas = (ONLY,)
    data_used = "nothing"

    def __init__(self, database: Photos) -> None:
        self.vectors = describe(database)

    def scores(self, queries: Photos, replica: str) -> np.ndarray:
        return describe(queries) @ self.vectors.T


def fit(database: Photos, shared: Shared) -> MeanHead:
    return MeanHead(database)


MEAN = HeadCard(
    name="example-mean",
    title="Mean patch (example)",
    sees="nothing",
    fit=fit,
    settings={"revision": 1},  # everything that determines the scores
    stages=("peers",),  # shares no stage with TFA
)
