"""Passes over tokens that the heads share: one vector per image, an order that is the photos' own, two sets as one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfa.core.arrays import l2_normalize
from tfa.core.tokens import Tokens
from tfa.errors import BadTokens, ChannelMismatch

DescribeImage = Callable[[np.ndarray, int], np.ndarray]  # unit patches n d and the image's index → its vector


def describe_each(tokens: Tokens, width: int, describe_image: DescribeImage) -> np.ndarray:
    """Vectors `b width` in float32. Each image is handed over alone, so no vector depends on its neighbours."""
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
    """The global tokens `b d_g`, or an error that names the head which needs them."""
    if tokens.cls is None:
        raise BadTokens(
            f"the head {head!r} uses the global (CLS) token and these tokens have none; "
            "use an encoder with a global token, or a head of patches alone such as 'mean' or 'anyloc'"
        )
    return tokens.cls


def content_order(tokens: Tokens) -> np.ndarray:
    """Indices of the images, sorted by a hash of their patches.

    What is drawn at random from images in this order does not change when the database is listed in another.
    Images with equal patches tie, and are interchangeable.
    """
    digests = []
    for index in range(len(tokens)):
        patches = np.ascontiguousarray(tokens.load(index, index + 1)[0])
        digests.append(hashlib.blake2b(patches.data, digest_size=16, key=str(patches.shape).encode()).digest())
    return np.array(sorted(range(len(tokens)), key=digests.__getitem__), np.int64)


def joined(one: Tokens, other: Tokens) -> Tokens:
    """The patches of both sets, loaded no earlier than theirs."""
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
    """Indices of the `words` points that k-means starts from; they repeat where there are fewer points."""
    return np.resize(np.random.default_rng(seed).permutation(points)[:words], words)
