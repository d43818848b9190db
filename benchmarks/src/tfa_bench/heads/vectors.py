"""Describe images by one vector each, one image at a time, and score by inner products."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa.core.arrays import Spill, l2_normalize, release
from tfa.core.progress import Progress
from tfa.core.tokens import Tokens
from tfa.errors import BadTokens, ChannelMismatch
from tfa.search.gallery import QUERY_BLOCK, find_duplicates, inner
from tfa_bench.heads.contract import Photos

DescribeImage = Callable[[np.ndarray, int], np.ndarray]  # unit patches (n, d) and the image's index → its vector


def describe_each(tokens: Tokens, width: int, describe_image: DescribeImage) -> np.ndarray:
    """Return vectors `(b, width)` in float32. Images are described one by one, so vectors are independent."""
    rows = np.empty((len(tokens), width), np.float32)
    for batch in tokens.batches():
        for index, patches in enumerate(batch.patches, batch.start):
            rows[index] = describe_image(l2_normalize(patches.astype(np.float32)), index)
    return rows


def check_channels(tokens: Tokens, channels: int) -> None:
    if len(tokens) and tokens.channels != channels:
        raise ChannelMismatch(
            f"these tokens have {tokens.channels} channels, this head was fitted to {channels}; "
            "encode database and queries with one encoder"
        )


def global_tokens(tokens: Tokens, head: str) -> np.ndarray:
    """Return the global tokens `(b, d_g)`; an error names the head that needs them."""
    if tokens.cls is None:
        raise BadTokens(
            f"the head {head!r} uses the global (CLS) token and these tokens have none; "
            "use an encoder with a global token, or a head that uses only patches, such as 'mean' or 'anyloc'"
        )
    return tokens.cls


def content_order(tokens: Tokens) -> np.ndarray:
    """Return image indices sorted by a hash of their patches.

    Random draws in this order do not depend on the database order. Images with equal patches tie and are
    interchangeable.
    """
    digests = []
    for index in range(len(tokens)):
        patches = np.ascontiguousarray(tokens.load(index, index + 1)[0])
        digests.append(hashlib.blake2b(patches.data, digest_size=16, key=str(patches.shape).encode()).digest())
    return np.array(sorted(range(len(tokens)), key=digests.__getitem__), np.int64)


def join_tokens(one: Tokens, other: Tokens) -> Tokens:
    """Concatenate the patches of both sets lazily."""
    return Tokens(_Both(one, other))


class _Both(Sequence):
    def __init__(self, one: Tokens, other: Tokens) -> None:
        self.one, self.other = one.patches, other.patches
        self.shapes = np.concatenate([one.shapes, other.shapes])

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, index: Any) -> Any:
        return self.one[index] if index < len(self.one) else self.other[index - len(self.one)]


def random_start(points: int, words: int, seed: int) -> np.ndarray:
    """Return indices of the `words` points that k-means starts from; they repeat if there are fewer points."""
    return np.resize(np.random.default_rng(seed).permutation(points)[:words], words)


CHANNELS_AT_ONCE = 2048  # channels in float64 per step
_ROUNDING = 1e-10  # directions with a smaller share of the total energy are rounding noise


@dataclass(frozen=True)
class Whitening:
    """Rows `(b, D)` → whitened unit rows `(b, r)`."""

    mean: np.ndarray  # (D,)
    projection: np.ndarray | None  # (D, r); None if the sample has no direction to whiten

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        return l2_normalize(rows) if self.projection is None else l2_normalize((rows - self.mean) @ self.projection)


def fit_whitening(rows: np.ndarray, dimensions: int) -> Whitening:
    """Fit on rows `(t, D)`, to at most `dimensions` coordinates, fewer if the rows span fewer."""
    count = len(rows)
    mean = rows.mean(axis=0, dtype=np.float64)
    gram = np.zeros((count, count))
    for block in _centered(rows, mean):
        gram += block @ block.T
    eta, basis = np.linalg.eigh(gram)
    eta, basis = eta[::-1][:dimensions], basis[:, ::-1][:, :dimensions]
    kept = eta > _ROUNDING * (np.trace(gram) + count * (mean @ mean))  # the bracket is Σ ‖row‖²
    if not kept.any():
        return Whitening(np.zeros_like(mean, rows.dtype), None)
    weights = basis[:, kept] * (np.sqrt(count - 1) / eta[kept])
    projection = np.concatenate([(block.T @ weights).astype(rows.dtype) for block in _centered(rows, mean)])
    return Whitening(mean.astype(rows.dtype), projection)


def _centered(rows: np.ndarray, mean: np.ndarray) -> Iterator[np.ndarray]:
    """Yield X_c in blocks of channels: small eigenvalues need float64, in which all of X_c would fill the memory."""
    for low in range(0, rows.shape[1], CHANNELS_AT_ONCE):
        part = slice(low, low + CHANNELS_AT_ONCE)
        yield rows[:, part].astype(np.float64) - mean[part]


_IMAGES_AT_ONCE = 256
IN_MEMORY_BYTES = 64 << 20  # larger galleries are stored in a mapped temporary file

Describe = Callable[[Tokens], np.ndarray]  # b images → (b, D) unit vectors, each image independently


def described(tokens: Tokens, describe: Describe, progress: Progress) -> np.ndarray:
    """Return vectors `(m, D)` of a database in batches; large galleries are stored in a mapped temporary file."""
    rows = None
    with progress.task("descriptors", len(tokens), "images") as task:
        for start in range(0, len(tokens), _IMAGES_AT_ONCE):
            part = describe(tokens.select(slice(start, start + _IMAGES_AT_ONCE)))
            if rows is None:
                rows = Spill(IN_MEMORY_BYTES).empty((len(tokens), part.shape[1]), part.dtype)
            rows[start : start + len(part)] = part
            release(rows)
            task.advance(len(part))
    assert rows is not None, "a database has images"
    return rows


@dataclass(frozen=True)
class VectorHead:
    """A description function and the described database, per replica."""

    describe: Mapping[str, Describe]
    gallery: Mapping[str, np.ndarray]  # (m, D)
    duplicates: Mapping[str, np.ndarray | None]
    data_used: str

    @classmethod
    def of(cls, database: Photos, describe: Mapping[str, Describe], data_used: str, progress: Progress) -> VectorHead:
        gallery = {replica: described(database.tokens, describe[replica], progress) for replica in describe}
        return cls(describe, gallery, {replica: find_duplicates(rows) for replica, rows in gallery.items()}, data_used)

    @property
    def replicas(self) -> tuple[str, ...]:
        return tuple(self.describe)

    def scores(self, queries: Photos, replica: str) -> np.ndarray:
        gallery, duplicates = self.gallery[replica], self.duplicates[replica]
        blocks = []
        for start in range(0, len(queries), QUERY_BLOCK):
            tokens, count = _padded(queries.tokens, start)  # equal shapes: no score depends on its neighbors
            rows = inner(self.describe[replica](tokens), gallery)[:count]
            blocks.append(rows if duplicates is None else rows[:, duplicates])  # equal images tie to the last bit
        return np.concatenate(blocks) if blocks else np.empty((0, len(gallery)), gallery.dtype)


def _padded(tokens: Tokens, start: int) -> tuple[Tokens, int]:
    """Return the block of queries at `start`, padded with its first query, and its real length."""
    count = min(QUERY_BLOCK, len(tokens) - start)
    return tokens.select(np.r_[np.arange(start, start + count), np.full(QUERY_BLOCK - count, start)]), count
