"""Rankings in few bytes: what a query's rankings share is written once, and each then as its departures from it.

The rankings of one query, by ten splits and three replicas, name nearly the same images in nearly the same order.
Of each query its *usual order* is kept: every image that any of its rankings names, by how high it stands in them.
A ranking is then the Lehmer code of its images in that order: the number of images that stand before each and were
not named yet. A ranking in the usual order is all zeros, and zeros compress to nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfa_bench.array_json import BadRecord, declared_bytes, pack, unpack

MAX_STEPS = 20_000_000_000  # comparisons to unpack the rankings of a record: minutes, and far above any of ours


def pack_rankings(rankings: np.ndarray) -> dict[str, Any]:
    """Of `q s r d` database indices. The largest value of the type stands for no image: of a whole ranking or none."""
    queries, depth = len(rankings), rankings.shape[-1]
    rows = rankings.reshape(queries, -1, depth)
    evaluated = (rows != np.iinfo(rankings.dtype).max).any(axis=2)
    query, images = np.nonzero(evaluated)[0], rows[evaluated].astype(np.int64)
    if (np.diff(np.sort(images, axis=1), axis=1) == 0).any():
        raise BadRecord("a ranking names an image twice; a head's ranking must name each image once")
    orders, places, counts = _usual_orders(query, images, queries)
    codes = _lehmer(places)
    return {
        "type": rankings.dtype.newbyteorder("<").str.replace("|u1", "<u1"),
        "shape": list(rankings.shape),
        # The stored key of `evaluated`: another word would make every committed record unreadable.
        "asked": pack(np.packbits(evaluated)),
        "counts": pack(counts.astype(smallest(counts))),
        "orders": pack(orders.astype(smallest(orders))),
        # All codes of one place together: first places are nearly always 0, last ones seldom.
        "codes": pack(np.ascontiguousarray(codes.T).astype(smallest(codes))),
    }


def unpack_rankings(packed: dict[str, Any]) -> np.ndarray:
    try:
        declared_bytes(packed)
        shape, kind = tuple(packed["shape"]), np.dtype(packed["type"])
        if kind.kind != "u":
            raise BadRecord(f"packed rankings are of type {kind}; allowed are unsigned integers")
        queries, depth, each = shape[0], shape[-1], math.prod(shape[1:-1])
        evaluated = np.unpackbits(unpack(packed["asked"]), count=queries * each).astype(bool).reshape(queries, each)
        counts, orders = (unpack(packed[name]).astype(np.int64) for name in ("counts", "orders"))
        codes, query = unpack(packed["codes"]).astype(np.int64), np.nonzero(evaluated)[0]
        # A file of a few bytes can claim any depth, and the work grows with its square.
        if codes.shape != (depth, len(query)) or len(query) * depth**2 > MAX_STEPS:
            raise BadRecord(f"packed rankings are damaged: codes of shape {codes.shape} for a depth of {depth}")
        if counts.shape != (queries,) or counts.sum() != len(orders):
            raise BadRecord("packed rankings are damaged: the orders of the queries are not as long as they say")
        places = _from_lehmer(codes.T)
        if (places >= counts[query][:, None]).any():
            raise BadRecord("packed rankings are damaged: a query's order is shorter than its rankings need")
        rows = np.full((queries, each, depth), np.iinfo(kind).max, kind)
        rows[evaluated] = orders[(np.cumsum(counts) - counts)[query][:, None] + places]
        return rows.reshape(shape)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise BadRecord(f"packed rankings are damaged: {type(error).__name__} {error}") from None


def _usual_orders(query: np.ndarray, images: np.ndarray, queries: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of rankings `n d` of `query` `n`: images of every query's order, in a row; the place `n d` of each entry in the
    order of its query; how many images each query has.

    An image stands the higher, the more and the better places it has; of equals the smaller index first.
    """
    depth, largest = images.shape[1], int(images.max(initial=0)) + 1
    pairs, entry = np.unique(query[:, None] * largest + images, return_inverse=True)
    weight = np.bincount(entry.reshape(-1), np.broadcast_to(depth - np.arange(depth), images.shape).reshape(-1))
    owner, image = pairs // largest, pairs % largest
    order = np.lexsort((image, -weight, owner))
    counts = np.bincount(owner, minlength=queries)
    place = np.empty(len(pairs), np.int64)
    place[order] = np.arange(len(pairs)) - np.repeat(np.cumsum(counts) - counts, counts)
    return image[order], place[entry].reshape(images.shape), counts


def _lehmer(places: np.ndarray) -> np.ndarray:
    """`n d` distinct places → for each, the number of places before it that no earlier entry took."""
    codes = places.copy()
    for later in range(1, places.shape[1]):
        for earlier in range(later):
            codes[:, later] -= places[:, earlier] < places[:, later]
    return codes


def _from_lehmer(codes: np.ndarray) -> np.ndarray:
    places = codes.copy()
    for earlier in range(codes.shape[1] - 2, -1, -1):
        later = places[:, earlier + 1 :]
        later += later >= places[:, earlier : earlier + 1]
    return places


def smallest(values: np.ndarray) -> np.dtype:
    """The smallest unsigned type that holds all of them."""
    largest = int(values.max(initial=0))
    return next(kind for kind in map(np.dtype, ("u1", "u2", "u4")) if largest <= np.iinfo(kind).max)
