"""Vision transformers as ONNX graphs, run by onnxruntime without torch, in 8-bit integers or in float32.

In 8 bits, linear layers are computed in integers; norms, attention and residual sums stay float32. Such a graph is
created once from the weights and stored in the user's cache. The portable form uses only standard ONNX operators.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfa.core.arrays import start_threads
from tfa.core.files import cache_folder, write_atomically
from tfa.encoders.catalogue import EncoderId, fast_fingerprint
from tfa.encoders.dino import DinoEncoder
from tfa.encoders.onnx_graph import CONTRIBUTED, Graph
from tfa.encoders.packaged_weights import block_name
from tfa.encoders.positions import resample_table, rotary_factors

if TYPE_CHECKING:
    from PIL import Image

    from tfa.encoders.weights import LoadedWeights


# Processors without VNNI add neighboring products, a₀w₀ + a₁w₁, in 16 bits and saturate; others do not. Tokens must not
# depend on the processor, so |w₀| + |w₁| ≤ 128: 255 · 128 < 2¹⁵.
LARGEST_PAIR = 128

# Share of a channel's spread moved from activations to weights. With the default encoder, tokens are closest to float32
# between 0.5 and 0.7.
_SHARE = 0.7
_DEVIATIONS = 3.0  # standard deviations that cover most values of a normed channel


def quantize_weights(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantize weights to int8 `(out, in)` with float32 scales `(out,)`, within the limit of neighboring sums."""
    pairs = np.add.reduceat(np.abs(weight), np.arange(0, weight.shape[1], 2), axis=1)
    # Rounding adds at most one half to each of two neighbors, hence one less than allowed.
    scales = pairs.max(axis=1) / np.float32(LARGEST_PAIR - 1)
    scales = np.where(scales > 0, scales, np.float32(1)).astype(np.float32)  # a zero row stays zero
    return np.rint(weight / scales[:, None]).astype(np.int8), scales


def balance(scale: np.ndarray, shift: np.ndarray, weights: Sequence[np.ndarray]) -> np.ndarray:
    """Return factors t `(in,)` by which activations are divided and weights multiplied: (x / t) (W ∘ t)ᵀ = x Wᵀ.

    Without them, a channel far larger than the others would use up the int8 range. The size of activations after a norm
    is known without photos: x_j = scale_j n_j + shift_j with n_j of unit variance.
    """
    activations = _DEVIATIONS * np.abs(scale) + np.abs(shift)
    columns = np.max([np.abs(weight).max(axis=0) for weight in weights], axis=0)
    small = np.float32(1e-6)  # avoids division by zero for unused and constant-zero channels
    logs = _SHARE * np.log(np.maximum(activations, small)) - (1 - _SHARE) * np.log(np.maximum(columns, small))
    return np.exp(logs - logs.mean()).astype(np.float32)


# --- graph file -----------------------------------------------------------------------------------

PIXELS = "pixels"  # graph input, float32 (1, 3, h, w); the output is (1, prefix+n, d)
_DIGEST = 32  # bytes


def graph_path(fingerprint: str) -> Path:
    return cache_folder() / "weights" / f"int8-{fingerprint[:32]}.graph"


def read_graph(fingerprint: str) -> bytes | None:
    """Read the cached int8 graph of an encoder; None if it is missing or damaged."""
    try:
        content = graph_path(fingerprint).read_bytes()
    except OSError:
        return None
    digest, graph = content[:_DIGEST], content[_DIGEST:]
    return graph if hashlib.sha256(graph).digest() == digest else None


def write_graph(fingerprint: str, graph: bytes) -> None:
    """Cache a graph for later processes; write errors are ignored."""
    content = hashlib.sha256(graph).digest() + graph
    with contextlib.suppress(OSError):
        write_atomically(graph_path(fingerprint), lambda temporary: temporary.write_bytes(content))


# --- graph ----------------------------------------------------------------------------------------

_SMALLEST = np.array(1e-6, np.float32)  # minimum divisor, for tokens of zeros
ENCODER_OPSET = 20  # the first with Gelu

Affine = tuple[np.ndarray, np.ndarray]  # weights (out, in) and bias (out,)


Weights = Mapping[str, np.ndarray]  # under module names of transformers


def vit_graph(identity: EncoderId, weights: Weights, *, integers: bool) -> bytes:
    """Build the ONNX model of an encoder, up to the layer that is read. Products are 8-bit integers or float32."""
    out = Graph(ENCODER_OPSET)
    pixels = out.input(PIXELS, [1, 3, identity.height, identity.width])
    tokens = VitNodes(out, identity, weights, integers=integers).tokens(pixels)
    patches = identity.grid[0] * identity.grid[1]
    out.output(tokens, "tokens", [1, identity.card.prefix + patches, identity.card.width * identity.depths])
    return out.model("tfa encoder")


class VitNodes:
    """Nodes of a vision transformer for one image, with onnxruntime's operators.

    `_PortableNodes` is the form for other runtimes.
    """

    def __init__(self, out: Graph, identity: EncoderId, weights: Weights, *, integers: bool) -> None:
        self._identity, self._card, self._integers = identity, identity.card, integers
        self._weights, self._out = weights, out
        self._rotary = rotary_factors(identity) if self._card.names.rotary else None

    @cached_property
    def _still(self) -> np.ndarray:
        """Part of the embedding that does not depend on pixels, `(1, prefix+n, d)`: CLS, registers, positions, bias."""
        rows, columns = self._identity.grid
        cls, bias = self._weights["embeddings.cls_token"], self._weights[f"{self._card.names.stem}.bias"]
        patches = np.broadcast_to(bias, (1, rows * columns, len(bias)))
        table = self._weights.get("embeddings.position_embeddings")
        if table is not None:
            table = resample_table(table, self._identity)
            cls, patches = cls + table[:, :1], patches + table[:, 1:]
        registers = [self._weights["embeddings.register_tokens"]] if self._card.registers else []
        return np.concatenate([cls, *registers, patches], axis=1)

    def tokens(self, pixels: str) -> str:
        """Add the tokens `(b, prefix+n, d)` of normalized pixels `(b, 3, h, w)`, up to the layer that is read."""
        x, identity, earlier = self._embedding(pixels), self._identity, ""
        for layer in range(identity.layer):
            x = self._block(block_name(self._card, layer), x)
            earlier = x if layer == identity.earlier else earlier
        last = block_name(self._card, identity.layer)
        if identity.facet != "token":
            projection = self._affine(f"{last}.attention.{identity.facet[0]}_proj")
            y, [projection] = self._norm(f"{last}.norm1", x, projection)
            y = self._linear(y, projection)
        else:
            y = self._block(last, x)
            if identity.final_norm:
                y, _ = self._norm(self._card.names.norm, y)
        return self._out.add("Concat", earlier, y, axis=2) if earlier else y

    def _embedding(self, pixels: str) -> str:
        out, card = self._out, self._card
        stem = card.names.stem
        side = [card.patch, card.patch]
        kernel = out.constant(self._weights[f"{stem}.weight"])
        patches = out.add("Conv", pixels, kernel, kernel_shape=side, strides=side)
        patches = out.add("Reshape", patches, out.constant(np.array([0, card.width, -1])))
        patches = out.add("Transpose", patches, perm=[0, 2, 1])
        patches = out.add("Add", patches, out.constant(self._still[:, card.prefix :]))
        return out.add("Concat", self._prefix(patches), patches, axis=1)

    def _prefix(self, _patches: str) -> str:
        """Return the tokens before the patches `(b, prefix, d)` as input of the first block."""
        return self._out.constant(self._still[:, : self._card.prefix])

    def _block(self, block: str, x: str) -> str:
        x = self._out.add("Add", x, self._attention(block, x))
        return self._out.add("Add", x, self._mlp(block, x))

    def _attention(self, block: str, x: str) -> str:
        projections = [self._affine(f"{block}.attention.{letter}_proj") for letter in "qkv"]
        x, projections = self._norm(f"{block}.norm1", x, *projections)
        # Three products instead of one of three times the width, which would have to be split by copying.
        query, key, value = (self._linear(x, projection) for projection in projections)
        if self._rotary is not None:
            query, key = self._turned(query), self._turned(key)
        x = self._attended(query, key, value)
        return self._linear(x, self._scaled(f"{block}.attention.o_proj", f"{block}.layer_scale1.lambda1"))

    def _attended(self, query: str, key: str, value: str) -> str:
        """Add softmax(q kᵀ / √channels) v of every head."""
        heads = self._card.heads
        return self._out.add("MultiHeadAttention", query, key, value, domain=CONTRIBUTED, num_heads=heads)

    def _turned(self, x: str) -> str:
        """Rotate queries or keys by patch position: x cos + swap(x) (∓ sin)."""
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
        gated = self._card.mlp == "swiglu"
        up, down = ("up_proj", "down_proj") if gated else self._card.names.mlp
        names = ["gate_proj", up] if gated else [up]
        x, layers = self._norm(f"{block}.norm2", x, *(self._affine(f"{block}.mlp.{name}") for name in names))
        # Activations of some tokens, mainly CLS, are many times larger than those of others here.
        wide = [self._linear(x, layer, by_token=True) for layer in layers]
        if gated:
            x = out.add("Mul", out.add("Mul", wide[0], out.add("Sigmoid", wide[0])), wide[1])
        else:
            x = out.add("Gelu", wide[0])
        return self._linear(x, self._scaled(f"{block}.mlp.{down}", f"{block}.layer_scale2.lambda1"), by_token=True)

    def _norm(self, name: str, x: str, *layers: Affine) -> tuple[str, list[Affine]]:
        """Add the norm of x; also return the layers that read it, balanced for integer products."""
        scale, shift = self._affine(name)
        if self._integers and layers:
            factors = balance(scale, shift, [weight for weight, _ in layers])
            scale, shift = scale / factors, shift / factors
            layers = tuple((weight * factors, bias) for weight, bias in layers)
        constants = (self._out.constant(scale), self._out.constant(shift))
        epsilon = self._card.names.epsilon
        return self._out.add("LayerNormalization", x, *constants, epsilon=epsilon), list(layers)

    def _affine(self, name: str) -> Affine:
        weight = self._weights[f"{name}.weight"]
        bias = self._weights.get(f"{name}.bias")  # DINOv3's keys have none
        return weight, np.zeros(len(weight), np.float32) if bias is None else bias

    def _scaled(self, name: str, scale: str) -> Affine:
        """Fold a layer scale into a linear layer: λ ∘ (W x + b) = (λ ∘ W) x + λ ∘ b."""
        weight, bias = self._affine(name)
        return weight * self._weights[scale][:, None], bias * self._weights[scale]

    def _linear(self, x: str, layer: Affine, *, by_token: bool = False) -> str:
        """Add x Wᵀ + b, with one activation scale per image or per token: y = r ((x / r) Wᵀ) + b, r the largest |x|."""
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
        """Add x Wᵀ + b with int8 weights and dynamically quantized activations."""
        factors = [self._out.constant(weight.T), self._out.constant(scales)]
        last = [] if bias is None else ["", self._out.constant(bias)]
        return self._out.add("DynamicQuantizeMatMul", x, *factors, *last, domain=CONTRIBUTED)


def portable_tokens(out: Graph, encoder: Any, images: str, *, integers: bool) -> str:
    """Add tokens `(b, prefix+n, d)` of RGB images `(b, 3, h, w)` from 0 to 1, at the encoder's input size."""
    card = encoder.identity.card
    mean, std = (np.array(three, np.float32).reshape(1, 3, 1, 1) for three in (card.mean, card.std))
    pixels = out.add("Div", out.add("Sub", images, out.constant(mean)), out.constant(std))
    tokens = _PortableNodes(out, encoder.identity, encoder.weights, integers=integers).tokens(pixels)
    return out.cast(out.cast(tokens, np.float16), np.float32)  # encoders return float16 tokens


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


class OnnxEncoder(DinoEncoder):
    """An `Encoder` that runs the graph of a vision transformer.

    Each image is encoded separately, so its tokens do not depend on the batch. With at least `threads` images, each
    thread encodes one image at a time; otherwise all threads work on one image.
    """

    def __init__(
        self,
        identity: EncoderId,
        weights_sha256: str,
        graph: bytes,
        threads: int,
        load_weights: Callable[[], LoadedWeights],
        *,
        integers: bool,
    ) -> None:
        super().__init__(identity, weights_sha256, "cpu")
        if integers:
            self.fingerprint, self.precision = fast_fingerprint(self.model), "int8"
        self._threads, self.graph, self._load_weights = threads, graph, load_weights
        self._session = cache(self._new_session)  # by number of threads

    @property
    def weights(self) -> Weights:
        """Weights under module names of transformers, read again from their file."""
        return self._load_weights().tensors

    def encode(self, images: Sequence[Image.Image]) -> tuple[np.ndarray, np.ndarray | None]:
        """Return float16 patches `(b, n, d)` and CLS tokens `(b, d)`."""
        if len(images) < self._threads:
            session = self._session(self._threads)
            return self._patches_and_cls([self._tokens(session, image) for image in images])
        return self._patches_and_cls(list(self._pool.map(partial(self._tokens, self._session(1)), images)))

    def _tokens(self, session: Any, image: Image.Image) -> np.ndarray:
        return session.run(None, {PIXELS: self._pixels(image)[None]})[0][0].astype(np.float16)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return start_threads(self._threads, "tfa-encode")

    def _new_session(self, threads: int) -> Any:
        import onnxruntime as runtime  # slow to import

        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors only; warnings concern the machine, not the model
        return runtime.InferenceSession(self.graph, options, providers=["CPUExecutionProvider"])
