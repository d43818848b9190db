"""Heads that pool an image's tokens into one of them: generalised mean, mean, or the global token as it is.

    anyloc-gem   m = mean_i p̃_i³,   g = sign(m) |m|^{1/3} in each channel
    mean         g = mean_i p̃_i
    cls          g = the global token

All are compared by cosine. Nothing is learned from the database.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tfa.bench.heads.contract import ONLY, HeadCard, Photos, Shared
from tfa.bench.heads.token_passes import DescribeImage, check_channels, describe_each, global_tokens
from tfa.bench.heads.vectors import VectorHead
from tfa.core.arrays import l2_normalize
from tfa.core.tokens import Tokens
from tfa.errors import ChannelMismatch


def generalised_mean(unit: np.ndarray) -> np.ndarray:
    """Unit patches `n d` → `d`: p = 3 keeps the sign, so the root is the real cube root."""
    return l2_normalize(np.cbrt((unit * unit * unit).mean(axis=0)))


def mean(unit: np.ndarray) -> np.ndarray:
    """Unit patches `n d` → `d`."""
    return l2_normalize(unit.mean(axis=0))


def global_token(tokens: Tokens) -> np.ndarray:
    """Unit global tokens `b d_g`."""
    return l2_normalize(global_tokens(tokens, "cls").astype(np.float32))


def _fit_pool(database: Photos, shared: Shared, *, pool: DescribeImage) -> VectorHead:
    channels = database.tokens.channels

    def describe(tokens: Tokens) -> np.ndarray:
        check_channels(tokens, channels)
        return describe_each(tokens, channels, pool)

    return VectorHead.of(database, {ONLY: describe}, "nothing", shared.progress)


def _fit_global(database: Photos, shared: Shared) -> VectorHead:
    width = global_tokens(database.tokens, "cls").shape[1]

    def describe(tokens: Tokens) -> np.ndarray:
        rows = global_token(tokens)
        if rows.shape[1] != width:
            raise ChannelMismatch(
                f"these global tokens have {rows.shape[1]} channels, those of the database {width}; "
                "encode database and queries with one encoder"
            )
        return rows

    return VectorHead.of(database, {ONLY: describe}, "nothing", shared.progress)


CARDS: tuple[HeadCard, ...] = (
    HeadCard(
        name="anyloc-gem",
        title="AnyLoc-GeM",
        sees="nothing",
        fit=partial(_fit_pool, pool=lambda unit, _: generalised_mean(unit)),
        settings={"power": 3},
    ),
    HeadCard(name="cls", title="Global token", sees="nothing", fit=_fit_global),
    HeadCard(
        name="mean",
        title="Mean patch token",
        sees="nothing",
        fit=partial(_fit_pool, pool=lambda unit, _: mean(unit)),
    ),
)
