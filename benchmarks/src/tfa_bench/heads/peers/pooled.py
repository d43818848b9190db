"""Heads that pool an image's tokens: generalized mean, mean or global token; and RIA.

    anyloc-gem   m = mean_i p̃_i³,   g = sign(m) |m|^{1/3} in each channel
    mean         g = mean_i p̃_i
    cls          g = the global token

All are compared by cosine. Nothing is learned from the database.

RIA, a reconstruction: the covariance of an image's patches, mapped to a flat space and compared by cosine.

    X = unit patches − their mean     C = (XR)ᵀ(XR) / (N − 1) + ε I,   RᵀR = I_m
    v = L2 half(map(C))               map = log (log-Euclidean) or square root (power-Euclidean)

The paper gives the idea (second-order statistics, a Riemannian map, a random projection) and the seeds 0, 1, 42. Our
choices: m = 128, the orthonormalized Gaussian projection, centering in each image, ε, both maps, no signed root.
The inner product of two half-vectors with √2 off the diagonal is tr(map(C₁) map(C₂)).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tfa.core.arrays import l2_normalize
from tfa.core.tokens import Tokens
from tfa.errors import ChannelMismatch
from tfa.method.second_order import COVARIANCE_RIDGE, covariance, descriptor_width, half_vector, spectral_map
from tfa_bench.heads.contract import ONLY, PEER_STAGES, HeadCard, Photos, Shared
from tfa_bench.heads.vectors import DescribeImage, VectorHead, check_channels, describe_each, global_tokens

# --- one pooled token ----------------------------------------------------------------------------------------------


def generalized_mean(unit: np.ndarray) -> np.ndarray:
    """Pool unit patches `(n, d)` → `(d,)`: p = 3 keeps the sign, so the root is the real cube root."""
    return l2_normalize(np.cbrt((unit * unit * unit).mean(axis=0)))


def mean(unit: np.ndarray) -> np.ndarray:
    """Pool unit patches `(n, d)` → `(d,)`."""
    return l2_normalize(unit.mean(axis=0))


def global_token(tokens: Tokens) -> np.ndarray:
    """Return unit global tokens `(b, d_g)`."""
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
                f"query global tokens have {rows.shape[1]} channels, database tokens {width}; "
                "encode database and queries with one encoder"
            )
        return rows

    return VectorHead.of(database, {ONLY: describe}, "nothing", shared.progress)


TOKEN_CARDS: tuple[HeadCard, ...] = (
    HeadCard(
        stages=PEER_STAGES,
        name="anyloc-gem",
        title="AnyLoc-GeM",
        sees="nothing",
        fit=partial(_fit_pool, pool=lambda unit, _: generalized_mean(unit)),
        settings={"power": 3},
    ),
    HeadCard(name="cls", title="Global token", sees="nothing", fit=_fit_global, stages=PEER_STAGES),
    HeadCard(
        stages=PEER_STAGES,
        name="mean",
        title="Mean patch token",
        sees="nothing",
        fit=partial(_fit_pool, pool=lambda unit, _: mean(unit)),
    ),
)


# --- covariances ---------------------------------------------------------------------------------------------------


_SEEDS = (0, 1, 42)
DIRECTIONS = 128
MAPS = {"log": np.log, "sqrt": np.sqrt}


def projection(channels: int, directions: int, seed: int) -> np.ndarray:
    """Return R `(d, m)` with orthonormal columns, m = min(directions, channels)."""
    gaussian = np.random.default_rng(seed).normal(size=(channels, min(directions, channels)))
    return np.linalg.qr(gaussian)[0]


def covariance_descriptor(unit: np.ndarray, columns: np.ndarray, name: str) -> np.ndarray:
    """Describe unit patches `(n, d)` of one image as `(m(m+1)/2,)`."""
    return l2_normalize(half_vector(spectral_map(covariance((unit - unit.mean(axis=0)) @ columns), MAPS[name])))


def describe_covariance(tokens: Tokens, columns: np.ndarray, name: str) -> np.ndarray:
    """Return descriptors `(b, m(m+1)/2)` of all images."""
    channels, directions = columns.shape
    check_channels(tokens, channels)
    return describe_each(
        tokens, descriptor_width(directions), lambda unit, _: covariance_descriptor(unit, columns, name)
    )


def _fit(database: Photos, shared: Shared, *, name: str) -> VectorHead:
    how = {}
    for seed in _SEEDS:
        columns = projection(database.tokens.channels, DIRECTIONS, seed).astype(np.float32)
        how[str(seed)] = partial(describe_covariance, columns=columns, name=name)
    return VectorHead.of(database, how, "nothing", shared.progress)


def _card(name: str, title: str, of_spectrum: str) -> HeadCard:
    return HeadCard(
        stages=PEER_STAGES,
        name=name,
        title=title,
        sees="nothing",
        fit=partial(_fit, name=of_spectrum),
        settings={"directions": DIRECTIONS, "ridge": COVARIANCE_RIDGE, "map": of_spectrum, "seeds": list(_SEEDS)},
        note=(
            f"reconstruction: unit patches centered in each image, Gaussian projection to {DIRECTIONS} orthonormal "
            f"directions, covariance + {COVARIANCE_RIDGE:g} I, {of_spectrum} map, half-vector with √2 off the "
            "diagonal, no signed root"
        ),
    )


RIA_CARDS: tuple[HeadCard, ...] = (
    _card("ria", "RIA (reconstruction)", "log"),
    _card("ria-power", "RIA (reconstruction, square root)", "sqrt"),
)

CARDS = (*TOKEN_CARDS, *RIA_CARDS)
