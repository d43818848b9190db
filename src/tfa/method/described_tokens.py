"""Tokens that bring their descriptors: whoever describes the same images many times computes them once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfa.base.backend import Backend
from tfa.base.tokens import Tokens


@dataclass(frozen=True)
class Described:
    """Residual descriptors of a set of images under one assignment and one vocabulary."""

    descriptors: np.ndarray  # b k·d
    mass: np.ndarray  # b k: norm of each residual block before it was normalised


class DescribedTokens(Tokens):
    """`describe` and `describe_second_order` take these descriptors instead of computing them."""

    def described(
        self,
        centers: Sequence[np.ndarray],
        assignments: Sequence[str],
        temperature: float,
        backend: Backend,
        dtype: str,
    ) -> dict[tuple[str, int], Described]:
        """What `describe` would compute, to the last bit."""
        raise NotImplementedError

    def described_second_order(self, directions: Sequence[np.ndarray], dtype: str) -> list[np.ndarray]:
        """What `describe_second_order` would compute, to the last bit."""
        raise NotImplementedError
