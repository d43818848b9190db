"""Second-order heads as vectors, index and graph: other programs compute the same scores."""

import dataclasses

import numpy as np
import pytest

from tests.exports.test_exports import asked, session
from tests.worlds import seen_again, world
from tfa.core.arrays import backend_for
from tfa.core.tokens import Tokens
from tfa.encoders.onnx_graph import Graph
from tfa.exports.onnx_head import HEAD_OPSET, head_model, matrix_log, steps_of_root, write_onnx_head
from tfa.exports.vectors import CompiledMap, write_faiss, write_npz
from tfa.method.carriers import CARRIER_KERNELS
from tfa.method.head import assemble
from tfa.method.scorer import Compiled
from tfa.method.second_order import COVARIANCE_RIDGE
from tfa.pipeline import fit, fit_second_order
from tfa.types import HeadSpec


def compiled_of(head, replica=0, shifted=False) -> CompiledMap:
    """A head as `compiled_map` has it; `shifted` as if centred on and calibrated to target photos."""
    scorer = head.scorer(replica)
    if shifted:
        rng = np.random.default_rng(5)
        sides = [dataclasses.replace(one, shift=0.03 * rng.normal(size=len(one.eigenvalues))) for one in scorer.sides]
        scorer = dataclasses.replace(scorer, sides=tuple(sides), bias=0.1 * rng.normal(size=len(scorer.bias)))
    made, count = scorer.compile(), len(scorer.bias)
    names = tuple(f"{number}.jpg" for number in range(count))
    return CompiledMap(np.arange(count), made.database, made.bias, names, scorer, {"encoder": "made up"})


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("carrier", CARRIER_KERNELS)
def test_vectors_an_index_and_the_graph_give_the_scores_of_the_head(tmp_path, carrier, shifted):
    compiled, queries = compiled_of(fit_second_order(world(), carrier), shifted=shifted), seen_again(world())
    expected = compiled.scorer.scores(queries)
    spread = max(1.0, float(np.abs(expected).max()))  # weights of `blend` are as large as spreads are small
    write_npz(tmp_path / "town.npz", compiled)
    write_onnx_head(tmp_path / "head.onnx", compiled)
    with np.load(tmp_path / "town.npz", allow_pickle=False) as held:
        ours = Compiled(compiled.scorer, held["vectors"], held["bias"]).query(queries)
        np.testing.assert_allclose(ours @ held["vectors"].T + held["bias"], expected, rtol=1e-6, atol=1e-5 * spread)
        psi = asked(session(tmp_path / "head.onnx"), queries)
        np.testing.assert_allclose(psi @ held["vectors"].T + held["bias"], expected, rtol=1e-6, atol=1e-4 * spread)
    faiss = pytest.importorskip("faiss")
    write_faiss(tmp_path / "town.faiss", compiled)
    index = faiss.read_index(str(tmp_path / "town.faiss"))
    scores, ids = index.search(np.concatenate([ours, np.ones((len(ours), 1), np.float32)], axis=1), 3)
    np.testing.assert_allclose(scores, np.take_along_axis(expected, ids, axis=1), atol=1e-5 * spread)
    np.testing.assert_allclose(scores, -np.sort(-expected, axis=1)[:, :3], atol=1e-5 * spread)


def test_the_graph_holds_the_sum_of_the_constructions_and_128_directions(tmp_path):
    """Of 140 channels, so that directions are fewer; of 60 patches, so that C has directions with the ridge alone."""
    tokens = world(images=20, patches=60, channels=140, seed=3)
    compiled, queries = compiled_of(fit_second_order(tokens, "blend"), "ensemble", shifted=True), seen_again(tokens)
    assert compiled.scorer.sides[0].width == 128 * 129 // 2
    expected = compiled.scorer.scores(queries.select(slice(0, 4)))
    write_onnx_head(tmp_path / "head.onnx", compiled)
    psi = asked(session(tmp_path / "head.onnx"), queries.select(slice(0, 4)))
    scores = psi @ compiled.vectors.T + compiled.bias
    np.testing.assert_allclose(scores, expected, atol=1e-4 * max(1.0, float(np.abs(expected).max())))


@pytest.mark.parametrize(
    "patches",
    [
        np.random.default_rng(0).normal(size=(3, 1, 6)),  # one patch
        np.random.default_rng(1).normal(size=(3, 2, 6)),
        np.stack([np.r_[np.ones((1, 6)), -np.ones((1, 6))]]),  # the largest spread there is
        np.ones((2, 5, 6)),  # a blank photo
        np.zeros((1, 4, 6)),
    ],
)
def test_the_graph_takes_one_patch_blank_photos_and_nothing(tmp_path, patches):
    compiled = compiled_of(fit_second_order(world(), "blend"))
    write_onnx_head(tmp_path / "head.onnx", compiled)
    tokens = Tokens(patches.astype(np.float32))
    expected = Compiled(compiled.scorer, compiled.vectors, compiled.bias).query(tokens)
    found = asked(session(tmp_path / "head.onnx"), tokens)
    np.testing.assert_allclose(found, expected, atol=2e-5 * max(1.0, float(np.abs(expected).max())))


def test_a_centred_residual_head_is_exported_with_its_shift(tmp_path):
    fitted = fit(world(), HeadSpec(words=8))
    decisions = dataclasses.replace(fitted.decisions, carrier="partial", admit_cls=False)
    head = assemble(fitted, decisions, fitted.evidence, backend_for("cpu"))
    compiled, queries = compiled_of(head, shifted=True), seen_again(world())
    (tmp_path / "head.onnx").write_bytes(head_model(compiled.scorer, {}))
    found = asked(session(tmp_path / "head.onnx"), queries) @ compiled.vectors.T + compiled.bias
    np.testing.assert_allclose(found, compiled.scorer.scores(queries), atol=1e-4)


# --- the logarithm ------------------------------------------------------------------------------------------------


def logarithms(matrices):
    runtime = pytest.importorskip("onnxruntime")
    graph = Graph(HEAD_OPSET)
    size = matrices.shape[-1]
    wide = graph.cast(graph.input("matrices", ["photos", size, size]), np.float64)
    # The graph's inputs are float32: what they lose of the ridge is given back.
    wide = graph.add("Add", wide, graph.constant(COVARIANCE_RIDGE * np.eye(size)))
    graph.output(graph.cast(matrix_log(graph, wide, size), np.float32), "logarithms", ["photos", size, size])
    model = runtime.InferenceSession(graph.model("logarithm"), providers=["CPUExecutionProvider"])
    [found] = model.run(None, {"matrices": matrices})
    return found


@pytest.mark.parametrize("size", [1, 6, 128])
def test_logarithms_by_products_are_those_of_the_eigenvalues(size):
    rng = np.random.default_rng(size)
    spectra = [np.geomspace(1e-6, 1, size), np.r_[np.zeros(size - 1), 2.0], np.zeros(size), np.full(size, 0.3)]
    matrices = []
    for values in spectra:
        turned = np.linalg.qr(rng.normal(size=(size, size)))[0]
        matrix = ((turned * values) @ turned.T).astype(np.float32)
        matrices.append((matrix + matrix.T) / 2)
    for found, matrix in zip(logarithms(np.stack(matrices)), matrices, strict=True):
        # Not `spectral_map`, which clips: in float32 a matrix of one direction has eigenvalues a little below 0.
        values, vectors = np.linalg.eigh(matrix.astype(np.float64) + COVARIANCE_RIDGE * np.eye(size))
        np.testing.assert_allclose(found, (vectors * np.log(values)) @ vectors.T, atol=2e-6)


def test_the_steps_of_a_root_are_known_beforehand():
    assert steps_of_root(1.0) == 1
    assert steps_of_root(0.5) < steps_of_root(1e-3) < steps_of_root(COVARIANCE_RIDGE / 2) < 30
