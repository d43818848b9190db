"""One ONNX graph from a photo to a unit vector; products with the exported rows are the map's scores."""

from __future__ import annotations

import importlib
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.torch import save_file

from tests.encoders.tiny import TINY, random_weights
from tests.exports.conftest import scores_of
from tests.exports.test_exports import session
from tests.fakes import random_image
from tests.walkthrough.commands import HOW_TO, steps_of
from tfa.core.tokens import Tokens
from tfa.encoders import load_encoder
from tfa.encoders.catalogue import CATALOGUE
from tfa.errors import BadSpec, TfaError
from tfa.exports.onnx_head import write_onnx_place
from tfa.exports.vectors import compile_map
from tfa.maps import PlaceMap
from tfa.photos.token_cache import TokenCache
from tfa.types import BuildOptions, EncoderOptions

ROOT = Path(__file__).parents[2]
QUERIES = [random_image(100 + number, (70, 60)) for number in range(4)]


@pytest.fixture(scope="module")
def town_of(tmp_path_factory):
    """`town_of(encoder, carrier)`: a calibrated map of twelve photos, under random weights with true names."""
    folder = tmp_path_factory.mktemp("place")
    for number in range(12):
        random_image(number, (64, 48)).save(folder / f"{number:02}.png")
    (folder / "night").mkdir()
    for number in range(20):
        random_image(200 + number).save(folder / "night" / f"{number:02}.png")

    @cache
    def build(name: str, carrier: str) -> PlaceMap:
        card = TINY[name.partition("@")[0]]
        weights = folder / f"{card.name}.safetensors"
        # Layer scales are as small as those of trained models.
        tensors = {key: 0.1 * t if "lambda1" in key else t for key, t in random_weights(card).items()}
        save_file(tensors, weights)
        town = PlaceMap.build(
            sorted(folder.glob("*.png")),
            head="second-order",
            encoder=load_encoder(name, weights=weights),
            map_spec=BuildOptions(carrier=carrier, storage="float32", rerank=False),
            options=EncoderOptions(weights=weights, cache=TokenCache(folder / "tokens")),
        )
        town.calibrate(sorted((folder / "night").glob("*.png")), name="night")
        return town

    with pytest.MonkeyPatch.context() as patch:
        for name, card in TINY.items():
            patch.setitem(CATALOGUE, name, card)
        yield build


def pixels_of(town: PlaceMap) -> np.ndarray:
    """The queries as the graph takes them: RGB from 0 to 1 at the encoder's size."""
    encoder = town.encoder
    pictures = [np.asarray(encoder.prepare(image), np.float32) / 255 for image in QUERIES]
    return np.stack(pictures).transpose(0, 3, 1, 2)


@pytest.mark.parametrize(
    ("name", "carrier", "close"),
    # As a share of all scores' range. Random weights leave patches little spread: where a token of float16 happens to
    # round the other way, that is seen.
    [("tiny-v2", "partial", 1e-4), ("tiny-v2", "original", 1e-4), ("tiny-v3", "partial", 1e-3)],
)
def test_the_products_of_vectors_and_rows_are_the_scores_of_the_map(town_of, tmp_path, name, carrier, close):
    town = town_of(f"{name}@{8 * TINY[name].patch}", carrier)
    queries = Tokens(*town.encoder.encode(QUERIES))
    pixels = pixels_of(town)
    for calibration in ("none", "night"):
        rows = write_onnx_place(tmp_path / "place.onnx", town, compile_map(town, calibration))
        model = session(tmp_path / "place.onnx")
        vectors, descriptors = model.run(["vector", "descriptor"], {"images": pixels})
        expected = scores_of(town, queries, calibration)
        np.testing.assert_allclose(vectors @ rows.vectors.T, expected, atol=close * np.ptp(expected))
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(descriptors, axis=1), 1, atol=1e-6)
        [one] = model.run(["vector"], {"images": pixels[2:3]})
        np.testing.assert_allclose(one, vectors[2:3], atol=1e-5)  # any number of photos at once
        with np.load(tmp_path / "place.npz", allow_pickle=False) as held:
            assert np.array_equal(held["vectors"], rows.vectors)
            assert held["ids"].tolist() == [record.id for record in town.images]
            assert not held["bias"].any()
    assert compile_map(town, "night").bias.any()


def test_the_file_needs_no_runtimes_own_operators(town_of, tmp_path):
    town = town_of("tiny-v3@128", "partial")
    for int8 in (False, True):
        write_onnx_place(tmp_path / "place.onnx", town, compile_map(town), int8=int8)
        model = onnx.load(tmp_path / "place.onnx")
        onnx.checker.check_model(model, full_check=True)  # types and shapes of every node
        assert [opset.domain for opset in model.opset_import] == [""]
        assert {node.domain for node in model.graph.node} == {""}
        assert any(node.op_type == "MatMulInteger" for node in model.graph.node) == int8
        kinds = {
            value.type.tensor_type.elem_type for value in onnx.shape_inference.infer_shapes(model).graph.value_info
        }
        assert onnx.TensorProto.DOUBLE not in kinds  # accelerators have none


def test_in_integers_the_scores_are_near_those_of_float32(town_of, tmp_path):
    town = town_of("tiny-v2@112", "partial")
    rows = write_onnx_place(tmp_path / "place.onnx", town, compile_map(town), int8=True)
    model = session(tmp_path / "place.onnx")
    vectors = np.concatenate([model.run(["vector"], {"images": one[None]})[0] for one in pixels_of(town)])
    expected = scores_of(town, Tokens(*town.encoder.encode(QUERIES)))
    found = vectors @ rows.vectors.T
    assert 1e-4 < np.abs(found - expected).max() / np.ptp(expected) < 0.2
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.99


def test_fewer_numbers_are_the_best_so_many_directions(town_of, tmp_path):
    town = town_of("tiny-v2@112", "original")  # with ⟨v, μ⟩, which all images share
    expected = scores_of(town, Tokens(*town.encoder.encode(QUERIES)), "none")
    errors = []
    for dims in (5, 8, 32):  # the last are more than twelve photos have
        rows = write_onnx_place(tmp_path / "place.onnx", town, compile_map(town, "none"), dims=dims)
        vectors, descriptors = session(tmp_path / "place.onnx").run(None, {"images": pixels_of(town)})
        assert vectors.shape == (len(QUERIES), dims)
        assert descriptors.shape == (len(QUERIES), dims - 3)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
        errors.append(np.abs(vectors @ rows.vectors.T - expected).max() / np.ptp(expected))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-4
    with pytest.raises(BadSpec, match="at least 4"):
        write_onnx_place(tmp_path / "other.onnx", town, compile_map(town, "none"), dims=3)
    assert not (tmp_path / "other.onnx").exists()


@pytest.fixture
def exported(town_of, tmp_path, monkeypatch):
    """A folder with place.onnx, place.npz and the third photo of the map."""
    town = town_of("tiny-v2@112", "partial")
    write_onnx_place(tmp_path / "place.onnx", town, compile_map(town, "none"))
    random_image(2, (64, 48)).save(tmp_path / "photo.jpg", quality=98)
    monkeypatch.chdir(tmp_path)
    return town


def run_block(number: int) -> dict:
    """Run a Python block of the page and return the names it defines."""
    blocks = [step.text for step in steps_of(HOW_TO / "onnx.md") if step.language == "python"]
    names = {"__name__": "page"}
    exec(compile(blocks[number], "onnx.md", "exec"), names)
    return names


def test_the_page_finds_the_photo(exported, capsys):
    run_block(0)
    name, score = capsys.readouterr().out.split()
    assert Path(name).name == "02.png"
    assert float(score) > 0.9


def test_kornia_runs_the_file(exported):
    pytest.importorskip("kornia", reason="kornia is not installed (pip install -e '.[dev]')")
    found, ours = run_block(1), run_block(0)
    for name in ("vector", "descriptor"):
        assert found[name].shape == ours[name].shape
        assert (found[name] @ ours[name].T).item() > 0.999  # another decoder, another filter


def test_rtabmap_gets_descriptors(exported, monkeypatch):
    """As PyDescriptor.cpp calls it: init(dim), then extract of signed bytes, BGR or grey; it wants float32 `1 dim`."""
    shutil.copy(ROOT / "examples" / "rtabmap_tfa.py", "rtabmap_tfa.py")
    monkeypatch.syspath_prepend(Path.cwd())
    module = importlib.import_module("rtabmap_tfa")
    module.init(64)
    pictures = [np.asarray(random_image(number, (64, 48))) for number in (2, 2, 5)]
    pictures[1] = pictures[1] // 2 + 60  # the same place in another light
    one, again, other = (module.extract(picture[:, :, ::-1].copy().view(np.int8)) for picture in pictures)
    assert one.shape == (1, 64)
    assert one.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(one), 1, atol=1e-6)
    assert (one @ again.T).item() > (one @ other.T).item()
    grey = pictures[0].mean(axis=2).astype(np.uint8)[:, :, None]
    np.testing.assert_allclose(
        module.extract(grey.view(np.int8)), module.extract(np.repeat(grey, 3, axis=2).view(np.int8)), atol=1e-6
    )
    with pytest.raises(ValueError, match="PyDescriptor/Dim"):
        module.init(2)


def test_an_encoder_that_is_no_graph_is_refused(map_of, tmp_path):
    with pytest.raises(TfaError, match=r"fake@28 cannot be exported.*--format onnx-head"):
        write_onnx_place(tmp_path / "place.onnx", map_of(), compile_map(map_of()))
    assert not list(tmp_path.iterdir())
