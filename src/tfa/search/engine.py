"""The contract of every engine: vectors with a bias each in, the k best of them for a query out.

    score(q, d) = ⟨vector(q), vector(d)⟩ + bias(d),   ties to the smaller id

An engine is given vectors and knows nothing of photos, words or spectra: a compiled head (`method.scorer`) is all it
needs. `exact`, `bounded` and `reduced` live in this process and search the map's own rows in place. An engine of
another distribution registers its class under the entry point `tfa.engines`; `tests/search/engine_contract.py` is the
suite that every engine passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from tfa.base.entry_points import load_plugin, plugin_names
from tfa.errors import BadSpec
from tfa.search.gallery import Known

GROUP = "tfa.engines"
OWN = {
    "exact": "tfa.search.exact:ExactEngine",
    "bounded": "tfa.search.bounded:BoundedEngine",
    "reduced": "tfa.search.reduced:ReducedEngine",
}
Payload = Mapping[str, Any]  # what is kept beside a vector: anything JSON can hold


@dataclass(frozen=True)
class SearchResult:
    """The best of each query, best first, and what all scores of its row were like."""

    ids: np.ndarray  # q k, int64
    scores: np.ndarray  # q k, float32
    mean: np.ndarray | None = None  # q, float64: over everything the engine holds; None if it does not know it
    spread: np.ndarray | None = None  # q, float64: the population standard deviation


@dataclass(frozen=True)
class QueryVectors:
    """Queries `q D`, still as the terms they are the direct sum of. `np.asarray` makes one array of them.

    An engine in this process multiplies the terms as they are, so that scores are those of the formula to the last bit,
    and takes what is `known`: products with rows that describing the queries needed anyway.
    """

    terms: tuple[np.ndarray, ...]  # q D_t each
    weights: tuple[float, ...]
    known: Known = ()

    def __len__(self) -> int:
        return len(self.terms[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return direct_sum(self.weights, self.terms).astype(dtype or self.terms[0].dtype, copy=False)


@runtime_checkable
class Engine(Protocol):
    """What finds the k best."""

    name: str

    @classmethod
    def create(
        cls, vectors: np.ndarray, bias: np.ndarray, ids: np.ndarray, payload: Sequence[Payload] | None = None
    ) -> Self:
        """An engine of vectors `m D` with a bias `m`, an id `m` and maybe a payload each."""
        ...

    def upsert(
        self, vectors: np.ndarray, bias: np.ndarray, ids: np.ndarray, payload: Sequence[Payload] | None = None
    ) -> None:
        """Add vectors; one whose id is known replaces it. Doing it twice is doing it once."""
        ...

    def delete(self, ids: Sequence[int] | np.ndarray) -> None:
        """Take vectors out. An id that is not there is no error."""
        ...

    def search(self, vectors: np.ndarray | QueryVectors, k: int) -> SearchResult:
        """The k best for each query `q D`, or all if there are fewer."""
        ...

    def payload(self, ids: Sequence[int] | np.ndarray) -> list[Payload]:
        """What is kept beside these ids."""
        ...

    def count(self) -> int:
        """How many vectors can be found."""
        ...

    def describe(self) -> dict[str, Any]:
        """`engine`, `count`, `dimensions` and what else is worth knowing, in JSON."""
        ...


def find_engine(name: str) -> type[Engine]:
    """The class of an engine by its name, ours or of another distribution; a miss suggests the nearest."""
    if name in OWN:
        module, _, kind = OWN[name].partition(":")
        return getattr(import_module(module), kind)
    brought: type[Engine] | None = load_plugin(GROUP, name, OWN)
    if brought is not None:
        return brought
    known = [*OWN, *plugin_names(GROUP, OWN)]
    near = get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise BadSpec(f"there is no engine {name!r}; there are {', '.join(known)}{hint}")


def direct_sum(weights: Sequence[float], features: Sequence[np.ndarray]) -> np.ndarray:
    """Ψ: features side by side, each scaled by the root of its weight."""
    scaled = [f if w == 1 else f * f.dtype.type(np.sqrt(w)) for w, f in zip(weights, features, strict=True)]
    return np.concatenate(scaled, axis=1)


def checked_k(k: int) -> int:
    if k < 1:
        raise BadSpec(f"k={k} is out of range: must be at least 1")
    return k
