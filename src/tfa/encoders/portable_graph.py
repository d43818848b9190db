"""A vision transformer of the DINO family in ONNX's own operators alone, for any runtime, with any number of images.

In float32, or with its linear layers in 8-bit integers (`int8.quantise` has the arithmetic). Integers have one scale
for all activations of a product, so such a graph takes one image at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tfa.base.onnx_graph import Graph
from tfa.encoders.int8.graph import ENCODER_OPSET, VitNodes

if TYPE_CHECKING:
    from tfa.encoders.vit import VitEncoder

__all__ = ["ENCODER_OPSET", "portable_tokens"]


def portable_tokens(out: Graph, encoder: VitEncoder, images: str, *, integers: bool) -> str:
    """Tokens `b prefix+n d` of RGB images `b 3 h w` from 0 to 1, at the size that the encoder reads."""
    card = encoder.identity.card
    mean, std = (np.array(three, np.float32).reshape(1, 3, 1, 1) for three in (card.mean, card.std))
    pixels = out.add("Div", out.add("Sub", images, out.constant(mean)), out.constant(std))
    tokens = _PortableNodes(out, encoder.identity, encoder.network, integers=integers).tokens(pixels)
    return out.cast(out.cast(tokens, np.float16), np.float32)  # encoders give tokens in float16


class _PortableNodes(VitNodes):
    def _prefix(self, patches: str) -> str:
        out = self._out
        several = out.add("Shape", patches, start=0, end=1)
        shape = out.add("Concat", several, out.constant(np.array([self._card.prefix, self._card.width])), axis=0)
        return out.add("Expand", super()._prefix(patches), shape)

    def _attended(self, query: str, key: str, value: str) -> str:
        out, channels = self._out, self._card.width // self._card.heads
        query = out.add("Mul", query, out.constant(np.float32(channels**-0.5)))
        query, value = self._heads(query, [0, 2, 1, 3]), self._heads(value, [0, 2, 1, 3])
        weights = out.add("Softmax", out.add("MatMul", query, self._heads(key, [0, 2, 3, 1])), axis=-1)
        x = out.add("Transpose", out.add("MatMul", weights, value), perm=[0, 2, 1, 3])
        return out.add("Reshape", x, out.constant(np.array([0, 0, -1])))

    def _heads(self, x: str, order: list[int]) -> str:
        shape = self._out.constant(np.array([0, 0, self._card.heads, -1]))
        return self._out.add("Transpose", self._out.add("Reshape", x, shape), perm=order)

    def _product(self, x: str, weight: np.ndarray, scales: np.ndarray, bias: np.ndarray | None = None) -> str:
        out = self._out
        rounded, scale, zero = out.split("DynamicQuantizeLinear", 3, x)
        sums = out.cast(out.add("MatMulInteger", rounded, out.constant(weight.T), zero), np.float32)
        y = out.add("Mul", sums, out.add("Mul", scale, out.constant(scales)))
        return y if bias is None else out.add("Add", y, out.constant(bias))
