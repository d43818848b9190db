"""An engine: vectors in, the k best out. This one is plain arrays; yours talks to a vector database.

The contract is `tfa.search.engine.Engine`. A query may be an array or `QueryVectors`: `np.asarray` makes both one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfa.errors import BadSpec
from tfa.search.engine import Payload, QueryVectors, SearchResult, checked_k


class DictEngine:
    """Keeps vectors in a dictionary by their ids. It says nothing of mean and spread: a map then samples them."""

    name = "example-dict"

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self.held: dict[int, tuple[np.ndarray, float, Payload]] = {}

    @classmethod
    def create(
        cls, vectors: np.ndarray, bias: np.ndarray, ids: np.ndarray, payload: Sequence[Payload] | None = None
    ) -> DictEngine:
        made = cls(vectors.shape[1])
        made.upsert(vectors, bias, ids, payload)
        return made

    def upsert(
        self, vectors: np.ndarray, bias: np.ndarray, ids: np.ndarray, payload: Sequence[Payload] | None = None
    ) -> None:
        if not len(set(np.asarray(ids).tolist())) == len(vectors) == len(bias):
            raise BadSpec(f"{len(vectors)} vectors need as many distinct ids and biases")
        for one, vector, level, facts in zip(ids, vectors, bias, payload or [{}] * len(ids), strict=True):
            self.held[int(one)] = (np.asarray(vector, np.float64), float(level), facts)

    def delete(self, ids: Sequence[int] | np.ndarray) -> None:
        for one in ids:
            self.held.pop(int(one), None)

    def search(self, vectors: np.ndarray | QueryVectors, k: int) -> SearchResult:
        checked_k(k)
        queries = np.asarray(vectors)
        if queries.shape[1:] != (self.dimensions,):
            raise BadSpec(f"vectors have shape {queries.shape}, must be (any number, {self.dimensions})")
        ids = np.array(sorted(self.held), np.int64)  # equal scores go to the smaller id
        scores = np.zeros((len(queries), len(ids)), np.float32)
        for column, one in enumerate(ids.tolist()):
            vector, bias, _ = self.held[one]
            scores[:, column] = (queries * vector).sum(axis=1) + bias
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return SearchResult(ids[order], np.take_along_axis(scores, order, axis=1))

    def payload(self, ids: Sequence[int] | np.ndarray) -> list[Payload]:
        return [self.held[int(one)][2] for one in ids]

    def count(self) -> int:
        return len(self.held)

    def describe(self) -> dict[str, Any]:
        return {"engine": self.name, "count": self.count(), "dimensions": self.dimensions}
