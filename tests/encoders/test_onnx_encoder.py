"""Encoders run by onnxruntime: in float32 the same as torch's, in integers near it and never mixed with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from safetensors.torch import save_file

from tests.encoders.tiny import TINY, random_weights
from tests.fakes import random_image
from tfa.encoders import load_encoder, parse_encoder
from tfa.encoders.onnx_encoder import LARGEST_PAIR, PIXELS, balance, quantize_weights, vit_graph
from tfa.encoders.onnx_graph import CONTRIBUTED, Graph
from tfa.photos.images import to_array
from tfa.photos.token_cache import TokenCache

pytestmark = pytest.mark.slow

IMAGES = [random_image(seed, (90, 70)) for seed in range(5)]


@pytest.fixture(params=TINY)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def weights(tmp_path: Path):
    """The file of a tiny card's weights. Layer scales are as small as those of trained models."""

    def write(name: str, seed: int = 0) -> Path:
        path = tmp_path / f"{name}-{seed}.safetensors"
        tensors = random_weights(TINY[name], seed)
        save_file({key: 0.3 * t.abs() if "lambda1" in key else t for key, t in tensors.items()}, path)
        return path

    return write


def run(model: bytes, **inputs: np.ndarray) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, inputs)


def cosines(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    a, b = found.astype(np.float64), expected.astype(np.float64)
    return (a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))


@pytest.mark.parametrize(
    "choice",
    [
        "",
        "@64x80",
        "/l1",
        "/l0+2",
        *(pytest.param(c, marks=pytest.mark.slow) for c in ("/l0", "/l0-query", "/l1-key", "/value")),
    ],
)
def test_in_float32_the_graph_is_torchs_model(name: str, choice: str, weights) -> None:
    identity, file = parse_encoder(name + choice), weights(name)
    card = identity.card
    plain = load_encoder(name + choice, weights=file)
    graph = vit_graph(identity, plain.weights, integers=False)  # type: ignore[attr-defined]
    patches, cls = plain.encode(IMAGES[:2])
    assert cls is not None
    for image, expected, whole in zip(IMAGES, patches, cls, strict=False):
        pixels = to_array(image, (identity.width, identity.height), card.mean, card.std, card.resample)
        [tokens] = run(graph, **{PIXELS: pixels[None]})
        np.testing.assert_allclose(tokens[0, card.prefix :], expected.astype(np.float32), rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(tokens[0, 0, -card.width :], whole.astype(np.float32), rtol=2e-3, atol=2e-3)


def test_tokens_are_near_those_of_float32(name: str, weights) -> None:
    for choice in ("", "/l1", "/key"):
        plain, fast = (load_encoder(name + choice, weights=weights(name), precision=one) for one in ("float32", "int8"))
        for found, expected in zip(fast.encode(IMAGES), plain.encode(IMAGES), strict=True):
            assert found is not None
            assert expected is not None
            assert found.shape == expected.shape
            assert found.dtype == np.float16
            assert cosines(found, expected).mean() > 0.995
            assert (found != expected).any()  # it is another arithmetic, and not torch under another name


def test_batch_and_threads_change_no_bit(name: str, weights) -> None:
    one, three = (load_encoder(name, weights=weights(name), precision="int8") for _ in range(2))
    one._threads, three._threads = 1, 3  # type: ignore[attr-defined]
    together = one.encode(IMAGES)
    for images in ([0, 1, 2, 3, 4], [3], [4, 1]):  # by a thread each, and by all threads
        for found, expected in zip(three.encode([IMAGES[i] for i in images]), together, strict=True):
            assert found is not None
            assert expected is not None
            np.testing.assert_array_equal(found, expected[images])


def test_the_contract_of_encoders_holds(name: str, weights) -> None:
    plain, fast = (load_encoder(f"{name}@60x40", weights=weights(name), precision=one) for one in ("float32", "int8"))
    for attribute in ("id", "grid", "channels", "global_channels", "notes", "device"):
        assert getattr(fast, attribute) == getattr(plain, attribute)
    patches, cls = fast.encode([])
    assert cls is not None
    assert patches.shape == (0, fast.grid[0] * fast.grid[1], 24)
    assert cls.shape == (0, 24)
    prepared = fast.prepare(IMAGES[0])  # type: ignore[attr-defined]
    np.testing.assert_array_equal(fast.encode([IMAGES[0]])[0], fast.encode([prepared])[0])


def test_the_model_is_the_same_and_the_tokens_are_told_apart(weights) -> None:
    plain, fast = (load_encoder("tiny-v2", weights=weights("tiny-v2"), precision=one) for one in ("float32", "int8"))
    other = load_encoder("tiny-v2", weights=weights("tiny-v2", 1), precision="int8")
    assert fast.model == plain.model == plain.fingerprint
    assert len({plain.fingerprint, fast.fingerprint, other.fingerprint}) == 3
    assert other.model != fast.model


def test_the_cache_keeps_them_on_different_shelves(weights, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    IMAGES[0].save(path)
    plain, fast = (load_encoder("tiny-v2", weights=weights("tiny-v2"), precision=one) for one in ("float32", "int8"))
    cache = TokenCache(tmp_path / "tokens")
    for encoder in (plain, fast):
        found = cache.encode([path], encoder)
        np.testing.assert_array_equal(found.tokens.load(0, 1), encoder.encode([IMAGES[0]])[0])


def test_only_what_is_read_is_in_the_graph(weights) -> None:
    def products(text: str) -> int:
        identity = parse_encoder(text)
        plain = load_encoder(text, weights=weights("tiny-v2"))
        content = vit_graph(identity, plain.weights, integers=False)  # type: ignore[attr-defined]
        constants = onnx.load_from_string(content).graph.initializer
        return sum(len(constant.dims) == 2 for constant in constants)  # weights of linear layers

    assert products("tiny-v2") == 3 * 6
    assert products("tiny-v2/l1") == 2 * 6
    assert products("tiny-v2/l1-value") == 6 + 1


def test_rounding_by_hand() -> None:
    weight = np.array([[0.6, -0.67, 0.0, 0.3], [0.0, 0.0, 0.0, 0.0], [-12.6, 0.1, 0.16, 6.2]], np.float32)
    rounded, scales = quantize_weights(weight)
    np.testing.assert_allclose(scales, [0.01, 1.0, 0.1], rtol=1e-6)
    np.testing.assert_array_equal(rounded, [[60, -67, 0, 30], [0, 0, 0, 0], [-126, 1, 2, 62]])


@pytest.mark.parametrize("channels", [1, 2, 7, 64, 385])
def test_no_processor_saturates(channels: int) -> None:
    """Neighbours stay within what 16 bits can hold, and the product of the largest activations is exact."""
    rng = np.random.default_rng(channels)
    weight = rng.standard_normal((48, channels)).astype(np.float32) ** 3  # heavy tails
    weight[:8] = np.abs(weight[:8]) + 10  # every pair near its bound, all of one sign
    rounded, _ = quantize_weights(weight)
    wide = np.pad(np.abs(rounded.astype(np.int64)), ((0, 0), (0, channels % 2)))
    pairs = wide.reshape(48, -1, 2).sum(axis=2)
    assert pairs.max() <= LARGEST_PAIR
    assert 255 * LARGEST_PAIR < 2**15

    graph = Graph(20)
    ones = graph.constant(np.ones(48, np.float32))
    x = graph.input("x", [6, channels])
    y = graph.add("DynamicQuantizeMatMul", x, graph.constant(rounded.T), ones, domain=CONTRIBUTED)
    graph.output(y, "y", [6, 48])
    activations = rng.choice([0, 200, 254, 255], size=(6, channels)).astype(np.float32)
    activations[0, 0] = 255  # so that the scale is 1
    [found] = run(graph.model("product"), x=activations)
    np.testing.assert_array_equal(found, activations.astype(np.int64) @ rounded.T.astype(np.int64))


def test_balancing_changes_no_product() -> None:
    rng = np.random.default_rng(0)
    scale, shift = np.array([1.0, 30.0, 0.01, 0.0]), np.array([0.0, 1.0, 0.0, 0.0])
    weights = [rng.standard_normal((3, 4)) * [1, 0.1, 5, 0] for _ in range(2)]
    factors = balance(scale, shift, weights)
    assert np.isfinite(factors).all()
    assert factors.argmax() == 1  # the loud channel is turned down, and its weights up
    x = scale * rng.standard_normal((10, 4)) + shift
    for weight in weights:
        np.testing.assert_allclose((x / factors) @ (weight * factors).T, x @ weight.T, rtol=1e-6, atol=1e-9)
