"""Vectors, payloads and the best of them by the definition, for tests of stores."""

from __future__ import annotations

import numpy as np

from tfa.search.reduction import fixed_rotation
from tfa.search.store import Entries
from tfa.search.ties import top_k

DIMENSIONS, IMAGES, QUERIES, K = 64, 300, 17, 10
SESSIONS = ("morning", 'it\'s "noon"', "night")
SCORE_ERROR = {"float32": 1e-6, "float16": 1e-4}
MANY, WIDE, RESCORED = 2000, 256, 100  # images and dimensions where an index has something to leave out


def vectors_with_bias(images: int, dimensions: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images, four of a place, and a query of every tenth, with a bias of σ = 1 folded in under the fixed rotation."""
    rng = np.random.default_rng(seed)
    places = np.repeat(rng.standard_normal((images // 4, dimensions - 1)), 4, axis=0)
    seen = places + 0.5 * rng.standard_normal(places.shape)
    asked = places[::10] + 0.5 * rng.standard_normal(places[::10].shape)
    seen, asked = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (seen, asked))
    rotation = fixed_rotation(dimensions)
    images_side = np.column_stack([seen, rng.normal(0, 1, len(seen))]) @ rotation.T
    queries_side = np.column_stack([asked, np.ones(len(asked))]) @ rotation.T
    return images_side.astype(np.float32), queries_side.astype(np.float32)


def payload_of(image: int, globe: bool = True) -> dict:
    """Every seventh image has no position, every ninth no session."""
    across, up = (image * 37 % 100) / 100, (image * 61 % 100) / 100
    place = {"lat": 52 + up, "lon": 13 + across} if globe else {"x": 1000 * across - 500, "y": 1000 * up}
    return {
        "path": f"straße/{image}.jpg",
        "digest": f"{image:064x}",
        "session": None if image % 9 == 0 else SESSIONS[image % 3],
        "position": None if image % 7 == 0 else place,
        "fitted": image % 2 == 0,
    }


def entries_of(ids: np.ndarray, vectors: np.ndarray, globe: bool = True) -> Entries:
    own = [int(one) for one in ids]
    return Entries(
        np.asarray(ids, np.int64),
        np.asarray(vectors, np.float32),
        [payload_of(one, globe) for one in own],
        [b"" if one % 5 == 0 else bytes([one % 256, 0, 255]) * 40 for one in own],
    )


def best_of(
    ids: np.ndarray, vectors: np.ndarray, queries: np.ndarray, k: int = K, dtype: str = "float32"
) -> tuple[np.ndarray, np.ndarray]:
    """By the definition: every score of the vectors as they are stored, in float64, ties to the smaller id."""
    order = np.argsort(ids)
    columns, best = top_k(queries.astype(np.float64) @ vectors[order].astype(dtype).astype(np.float64).T, k)
    return ids[order][columns], best
