"""Datasets of the parts `union` and `reduction`: what they are at once, their tokens when a row needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from tfa_bench.heads.contract import Photos
from tfa_bench.record_inputs import Identified
from tfa_bench.run import Bench
from tfa_bench.studies.joined_tokens import joined_tokens

UNION = "all as one"


class Datasets:
    """Several datasets under one encoder."""

    def __init__(self, known: Sequence[Identified], encode: Callable[[], Sequence[Bench]]) -> None:
        self.known, self._encode = known, encode

    @classmethod
    def of(cls, benches: Sequence[Bench]) -> Datasets:
        """Of tokens that are there."""
        return cls(benches, lambda: benches)

    @cached_property
    def benches(self) -> Sequence[Bench]:
        """With their tokens: images that the cache does not know are encoded now."""
        return self._encode()

    @property
    def encoder(self) -> str:
        return self.known[0].encoder.id

    @property
    def galleries(self) -> list[str]:
        """All datasets as one, then each alone."""
        return [UNION, *(one.truth.name for one in self.known)]

    def members(self, gallery: str) -> Sequence[Bench]:
        return [bench for bench in self.benches if gallery in (UNION, bench.truth.name)]


def joined(members: Sequence[Bench]) -> Photos:
    """The images of some datasets as one database."""
    if len(members) == 1:
        return members[0].database
    known = all(bench.database.paths is not None for bench in members)
    paths = tuple(path for bench in members for path in bench.database.paths or ())
    return Photos(joined_tokens([bench.database.tokens for bench in members]), paths if known else None)
