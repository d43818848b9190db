"""An engine such as another distribution would bring: arrays and nothing else, and no word on mean or spread."""

from __future__ import annotations

import numpy as np

from tfa.errors import BadSpec
from tfa.search.engine import SearchResult


class NumpyEngine:
    name = "numpy"

    def __init__(self, width):
        self.width, self.held = width, {}

    @classmethod
    def create(cls, vectors, bias, ids, payload=None):
        made = cls(vectors.shape[1])
        made.upsert(vectors, bias, ids, payload)
        return made

    def upsert(self, vectors, bias, ids, payload=None):
        if not len(set(np.asarray(ids).tolist())) == len(vectors) == len(bias):
            raise BadSpec(f"{len(vectors)} vectors need as many distinct ids and biases")
        for one, vector, level, facts in zip(ids, vectors, bias, payload or [{}] * len(ids), strict=True):
            self.held[int(one)] = (np.asarray(vector, np.float32), float(level), facts)

    def delete(self, ids):
        for one in ids:
            self.held.pop(int(one), None)

    def search(self, vectors, k):
        vectors = np.asarray(vectors)
        if k < 1:
            raise BadSpec(f"k={k} is out of range")
        if vectors.shape[1:] != (self.width,):
            raise BadSpec(f"vectors have shape {vectors.shape}")
        ids = np.array(sorted(self.held), np.int64)
        scores = np.zeros((len(vectors), len(ids)), np.float32)
        for column, one in enumerate(ids.tolist()):
            vector, bias, _ = self.held[one]
            scores[:, column] = (vectors * vector).sum(axis=1, dtype=np.float64) + bias
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return SearchResult(ids[order], np.take_along_axis(scores, order, axis=1))

    def payload(self, ids):
        return [self.held[int(one)][2] for one in ids]

    def count(self):
        return len(self.held)

    def describe(self):
        return {"engine": self.name, "count": self.count(), "dimensions": self.width}
