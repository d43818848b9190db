"""A vision transformer of the DINO family as a graph of integer matrix products.

Every linear layer is computed in integers (`quantise` has the arithmetic); norms, attention and residual sums stay
float32. What scales a layer's output (layer scale) is part of its weights, the positions are interpolated once, and of
the block that is read only what is read is computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tfa.base.onnx_graph import CONTRIBUTED, Graph
from tfa.encoders.encoder_name import EncoderId
from tfa.encoders.int8.graph_file import PIXELS
from tfa.encoders.int8.quantise import balance, quantize_weights
from tfa.encoders.weight_names import block_name

if TYPE_CHECKING:
    import torch

_SMALLEST = np.array(1e-6, np.float32)  # of a token's largest activation: a token of zeros must not be divided by zero
ENCODER_OPSET = 20  # the first with Gelu in it

Affine = tuple[np.ndarray, np.ndarray]  # weights `out in` and bias `out`


def int8_graph(identity: EncoderId, model: Any, *, integers: bool = True) -> bytes:
    """The ONNX model of `identity` with the weights of `model`, transformers' own, up to the layer that is read.

    Without `integers` every product is float32: the same graph, to be compared with torch.
    """
    out = Graph(ENCODER_OPSET)
    pixels = out.input(PIXELS, [1, 3, identity.height, identity.width])
    tokens = VitNodes(out, identity, model, integers=integers).tokens(pixels)
    patches = identity.grid[0] * identity.grid[1]
    out.output(tokens, "tokens", [1, identity.card.prefix + patches, identity.card.width])
    return out.model("tfa encoder")


class VitNodes:
    """The nodes of a vision transformer in a graph, one image at a time and with onnxruntime's own operators.

    `encoders.portable_graph` has the form of it that other runtimes read.
    """

    def __init__(self, out: Graph, identity: EncoderId, model: Any, *, integers: bool) -> None:
        self._identity, self._card, self._integers = identity, identity.card, integers
        self._model, self._out = model, out
        self._weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
        import torch  # reading a graph that was made before does without

        black = torch.zeros(1, 3, identity.height, identity.width)
        with torch.inference_mode():
            # Of a black picture the embedding is all that does not depend on pixels: CLS, registers, positions, bias.
            self._still = model.embeddings(black).numpy()
            turning = self._card.family == "dinov3"
            self._rotary = _rotary(model.rope_embeddings(black), self._card.prefix) if turning else None

    def tokens(self, pixels: str) -> str:
        """Add the tokens `b prefix+n d` of normalized pixels `b 3 h w`, up to the layer that is read."""
        x, identity = self._embedding(pixels), self._identity
        for layer in range(identity.layer):
            x = self._block(block_name(self._card, layer), x)
        last = block_name(self._card, identity.layer)
        if identity.facet != "token":
            projection = self._affine(f"{last}.attention.{identity.facet[0]}_proj")
            y, [projection] = self._norm(f"{last}.norm1", x, projection)
            y = self._linear(y, projection)
        else:
            y = self._block(last, x)
            if identity.final_norm:
                y, _ = self._norm("norm" if self._card.family == "dinov3" else "layernorm", y)
        return y

    def _embedding(self, pixels: str) -> str:
        out, card = self._out, self._card
        stem = "embeddings.patch_embeddings" + ("" if card.family == "dinov3" else ".projection")
        side = [card.patch, card.patch]
        kernel = out.constant(self._weights[f"{stem}.weight"])
        patches = out.add("Conv", pixels, kernel, kernel_shape=side, strides=side)
        patches = out.add("Reshape", patches, out.constant(np.array([0, card.width, -1])))
        patches = out.add("Transpose", patches, perm=[0, 2, 1])
        patches = out.add("Add", patches, out.constant(self._still[:, card.prefix :]))
        return out.add("Concat", self._prefix(patches), patches, axis=1)

    def _prefix(self, _patches: str) -> str:
        """Tokens before the patches `b prefix d`, as they enter the first block."""
        return self._out.constant(self._still[:, : self._card.prefix])

    def _block(self, block: str, x: str) -> str:
        x = self._out.add("Add", x, self._attention(block, x))
        return self._out.add("Add", x, self._mlp(block, x))

    def _attention(self, block: str, x: str) -> str:
        projections = [self._affine(f"{block}.attention.{letter}_proj") for letter in "qkv"]
        x, projections = self._norm(f"{block}.norm1", x, *projections)
        # Three products and not one of three times the width: cutting that into three would copy it.
        query, key, value = (self._linear(x, projection) for projection in projections)
        if self._rotary is not None:
            query, key = self._turned(query), self._turned(key)
        x = self._attended(query, key, value)
        return self._linear(x, self._scaled(f"{block}.attention.o_proj", f"{block}.layer_scale1.lambda1"))

    def _attended(self, query: str, key: str, value: str) -> str:
        """softmax(q kᵀ / √channels) v of every head."""
        heads = self._card.heads
        return self._out.add("MultiHeadAttention", query, key, value, domain=CONTRIBUTED, num_heads=heads)

    def _turned(self, x: str) -> str:
        """Queries or keys, rotated by their patch's position: x cos + swap(x) (∓ sin)."""
        assert self._rotary is not None
        out = self._out
        heads = out.add("Reshape", x, out.constant(np.array([0, 0, self._card.heads, -1])))
        first, second = out.split("Split", 2, heads, axis=3, num_outputs=2)
        swapped = out.add("Concat", second, first, axis=3)
        cosine, sine = (out.constant(array) for array in self._rotary)
        summed = out.add("Add", out.add("Mul", heads, cosine), out.add("Mul", swapped, sine))
        return out.add("Reshape", summed, out.constant(np.array([0, 0, -1])))

    def _mlp(self, block: str, x: str) -> str:
        out = self._out
        up, down = ("fc1", "fc2") if f"{block}.mlp.fc1.weight" in self._weights else ("up_proj", "down_proj")
        gated = self._card.mlp == "swiglu"
        x, layers = self._norm(
            f"{block}.norm2",
            x,
            *(self._affine(f"{block}.mlp.{name}") for name in (["gate_proj", up] if gated else [up])),
        )
        # The activations of some tokens, CLS before all, are many times those of the others here.
        wide = [self._linear(x, layer, by_token=True) for layer in layers]
        if gated:
            x = out.add("Mul", out.add("Mul", wide[0], out.add("Sigmoid", wide[0])), wide[1])
        else:
            x = out.add("Gelu", wide[0])
        return self._linear(x, self._scaled(f"{block}.mlp.{down}", f"{block}.layer_scale2.lambda1"), by_token=True)

    def _norm(self, name: str, x: str, *layers: Affine) -> tuple[str, list[Affine]]:
        """The norm of x, and the layers that read it, balanced between them where products are integers."""
        scale, shift = self._affine(name)
        if self._integers and layers:
            factors = balance(scale, shift, [weight for weight, _ in layers])
            scale, shift = scale / factors, shift / factors
            layers = tuple((weight * factors, bias) for weight, bias in layers)
        epsilon = float(self._model.get_submodule(name).eps)
        constants = (self._out.constant(scale), self._out.constant(shift))
        return self._out.add("LayerNormalization", x, *constants, epsilon=epsilon), list(layers)

    def _affine(self, name: str) -> Affine:
        weight = self._weights[f"{name}.weight"]
        bias = self._weights.get(f"{name}.bias")  # DINOv3's keys have none
        return weight, np.zeros(len(weight), np.float32) if bias is None else bias

    def _scaled(self, name: str, scale: str) -> Affine:
        """λ ∘ (W x + b) = (λ ∘ W) x + λ ∘ b."""
        weight, bias = self._affine(name)
        return weight * self._weights[scale][:, None], bias * self._weights[scale]

    def _linear(self, x: str, layer: Affine, *, by_token: bool = False) -> str:
        """x Wᵀ + b. Activations have one scale an image, or one a token: y = r ((x / r) Wᵀ) + b, r the largest |x|."""
        out, (weight, bias) = self._out, layer
        if not self._integers:
            return out.add("Add", out.add("MatMul", x, out.constant(weight.T)), out.constant(bias))
        if not by_token:
            return self._product(x, *quantize_weights(weight), bias)
        largest = out.add("ReduceMax", out.add("Abs", x), out.constant(np.array([2])), keepdims=1)
        largest = out.add("Max", largest, out.constant(_SMALLEST))
        y = self._product(out.add("Div", x, largest), *quantize_weights(weight))
        return out.add("Add", out.add("Mul", y, largest), out.constant(bias))

    def _product(self, x: str, weight: np.ndarray, scales: np.ndarray, bias: np.ndarray | None = None) -> str:
        """x Wᵀ + b of int8 weights, the activations rounded as they come."""
        factors = [self._out.constant(weight.T), self._out.constant(scales)]
        last = [] if bias is None else ["", self._out.constant(bias)]
        return self._out.add("DynamicQuantizeMatMul", x, *factors, *last, domain=CONTRIBUTED)


def _rotary(angles: tuple[torch.Tensor, torch.Tensor], prefix: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors `tokens 1 channels` of x and of x with its halves swapped; tokens before the patches do not turn."""
    cosine, sine = (angle.numpy() for angle in angles)
    half = sine.shape[1] // 2
    sine = np.concatenate([-sine[:, :half], sine[:, half:]], axis=1)
    still = (prefix, cosine.shape[1])
    turns = [np.concatenate([np.full(still, rest, np.float32), part]) for rest, part in ((1, cosine), (0, sine))]
    return turns[0][:, None], turns[1][:, None]
