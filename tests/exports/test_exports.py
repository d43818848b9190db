"""Other programs compute the map's answers from an export."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.exports.conftest import scores_of
from tests.fakes import random_image
from tfa.core.tokens import Tokens
from tfa.errors import MissingExtra, NoImages, TfaError
from tfa.explain.why import explain_score
from tfa.exports.hloc import find_photo_root, list_photo_pairs, name_pairs, relative_name, write_pairs
from tfa.exports.onnx_head import write_onnx_head
from tfa.exports.vectors import compile_map, write_faiss, write_npz
from tfa.method.scorer import Compiled
from tfa.report.collect import collect_report
from tfa.types import Answer, Hit

KINDS = [(c, a) for c in ("original", "partial", "adaptive") for a in ("hard", "soft")]


def session(path):
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def asked(model, tokens):
    """The vectors of photos under the graph."""
    feeds = {"patches": np.asarray(tokens.patches, np.float32)}
    if any(wanted.name == "global" for wanted in model.get_inputs()):
        feeds["global"] = np.asarray(tokens.cls, np.float32)
    return model.run(["vector"], feeds)[0]


@pytest.mark.parametrize(("carrier", "assignment"), KINDS)
@pytest.mark.parametrize("admit", [True, False])
def test_the_graph_and_the_arrays_give_the_scores_of_the_map(map_of, queries, tmp_path, carrier, assignment, admit):
    town = map_of(carrier, assignment, admit)
    compiled = compile_map(town)
    write_npz(tmp_path / "town.npz", compiled)
    write_onnx_head(tmp_path / "head.onnx", compiled)
    expected = scores_of(town, queries)
    with np.load(tmp_path / "town.npz", allow_pickle=False) as held:
        model = session(tmp_path / "head.onnx")
        for tokens, rows in ((queries, slice(None)), (queries.select([3]), [3])):
            psi = asked(model, Tokens(tokens.load(0, len(tokens)), tokens.cls))
            np.testing.assert_allclose(psi @ held["vectors"].T + held["bias"], expected[rows], rtol=1e-6, atol=1e-4)
        ours = Compiled(compiled.scorer, held["vectors"], held["bias"]).query(queries)
        np.testing.assert_allclose(ours @ held["vectors"].T + held["bias"], expected, rtol=1e-6, atol=1e-5)
        assert held["ids"].tolist() == [record.id for record in town.images]
        assert held["images"].tolist() == [record.path for record in town.images]
        assert json.loads(str(held["about"]))["encoder"] == "fake@28"


@pytest.mark.parametrize("storage", ["float16", "float32", "int7"])
def test_an_ensemble_an_addition_and_a_removal_are_exported(map_of, queries, tmp_path, storage):
    town = map_of("partial", "soft", ensemble=True, storage=storage)
    random_image(70).save(tmp_path / "later.png")
    town.add(tmp_path / "later.png")
    town.remove([2])
    compiled = compile_map(town)
    write_onnx_head(tmp_path / "head.onnx", compiled)
    scores = asked(session(tmp_path / "head.onnx"), queries) @ compiled.vectors.T + compiled.bias
    rounding = 2e-4 if storage == "int7" else 1e-7  # a map of integers rounds its queries, the graph does not
    np.testing.assert_allclose(scores, scores_of(town, queries), rounding, 3e-4)  # replicas: sums thrice as large
    assert 2 not in compiled.ids
    assert compiled.ids[-1] == 10
    copies = [i for i, name in enumerate(compiled.images) if Path(name).name in ("4.png", "copy.png")]
    assert len(copies) == 2
    assert np.array_equal(compiled.vectors[copies[0]], compiled.vectors[copies[1]])


def test_the_graph_takes_other_numbers_of_patches_and_empty_words(map_of, tmp_path):
    town = map_of("adaptive", "hard", admit=False)
    write_onnx_head(tmp_path / "head.onnx", compile_map(town))
    model, scorer = session(tmp_path / "head.onnx"), town.state.head.scorer
    unit = scorer.sides[0].centers[:1] / np.linalg.norm(scorer.sides[0].centers[0])
    for patches in (
        np.random.default_rng(0).normal(size=(3, 7, 12)),
        np.repeat(unit[None], 2, 1),
        np.zeros((1, 4, 12)),
    ):
        tokens = Tokens(patches.astype(np.float32))
        expected = Compiled(scorer, np.empty(0), np.empty(0)).query(tokens)
        np.testing.assert_allclose(asked(model, tokens), expected, atol=1e-5)


def test_a_calibrated_map_is_exported_with_its_bias(map_of, queries, tmp_path):
    town = map_of("adaptive", "hard", admit=True)
    for number in range(20):
        random_image(200 + number).save(tmp_path / f"{number}.png")
    town.calibrate(sorted(tmp_path.glob("*.png")), name="night", score=True)
    for name in ("night", "none"):
        compiled = compile_map(town, name)
        scores = Compiled(compiled.scorer, compiled.vectors, compiled.bias).query(queries) @ compiled.vectors.T
        np.testing.assert_allclose(scores + compiled.bias, scores_of(town, queries, name), atol=1e-4)
        assert compiled.bias.any() == (name == "night")
        assert compiled.about["calibration"] == name


def test_an_index_file_answers_as_the_map(map_of, queries, tmp_path):
    faiss = pytest.importorskip("faiss")
    town = map_of("partial", "soft")
    town.remove([0])
    compiled = compile_map(town)
    compiled = dataclasses.replace(compiled, bias=np.linspace(0, 0.5, len(compiled.ids), dtype=np.float32))
    write_faiss(tmp_path / "town.faiss", compiled)
    index = faiss.read_index(str(tmp_path / "town.faiss"))
    psi = Compiled(compiled.scorer, compiled.vectors, compiled.bias).query(queries)
    scores, ids = index.search(np.concatenate([psi, np.ones((len(psi), 1), np.float32)], axis=1), 4)
    expected = scores_of(town, queries) + compiled.bias
    np.testing.assert_allclose(scores, -np.sort(-expected, axis=1)[:, :4], atol=1e-4)
    assert 0 not in ids
    assert set(ids.ravel().tolist()) <= set(compiled.ids.tolist())
    column = {int(i): c for c, i in enumerate(compiled.ids)}
    found = np.array([[expected[row, column[int(i)]] for i in ids[row]] for row in range(len(ids))])
    np.testing.assert_allclose(found, scores, atol=1e-4)


def test_a_missing_package_says_how_to_get_it(map_of, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtra, match=r"pip install 'tfa-vpr\[export\]'"):
        write_faiss(tmp_path / "out", compile_map(map_of()))
    assert not list(tmp_path.iterdir())


def test_a_graph_too_large_for_its_format_is_refused(map_of, tmp_path, monkeypatch):
    monkeypatch.setattr("tfa.exports.onnx_head.MAX_ONNX_BYTES", 100)
    with pytest.raises(TfaError, match="--format npz"):
        write_onnx_head(tmp_path / "head.onnx", compile_map(map_of()))


def test_an_empty_map_is_not_exported(map_of):
    town = map_of()
    town.remove([record.id for record in town.images])
    with pytest.raises(NoImages, match="the map has no images"):
        compile_map(town)


# --- pairs -------------------------------------------------------------------------------------------------------


def test_pairs_name_photos_below_their_folders(tmp_path):
    hits = [
        Hit(id=0, image=str(tmp_path / "map" / "a" / "1.jpg"), score=0.9, confidence=0.5),
        Hit(id=1, image=str(tmp_path / "q" / "x.jpg"), score=0.8, confidence=0.5),
    ]
    answers = [
        Answer(query=str(tmp_path / "q" / "x.jpg"), hits=hits, confidence=0.5),
        Answer(query=str(tmp_path / "q" / "bad.jpg"), hits=[], confidence=0.0, error="no"),
    ]
    pairs = name_pairs(list_photo_pairs(answers), tmp_path / "q", tmp_path)
    assert pairs == [("x.jpg", "map/a/1.jpg")]  # not with itself
    write_pairs(tmp_path / "new" / "pairs.txt", [*pairs, ("x.jpg", "b.jpg")])
    assert (tmp_path / "new" / "pairs.txt").read_text() == "x.jpg map/a/1.jpg\nx.jpg b.jpg\n"


def test_names_that_pairs_cannot_hold_are_refused(tmp_path):
    with pytest.raises(TfaError, match="--root"):
        relative_name(tmp_path / "a.jpg", tmp_path / "other")
    with pytest.raises(TfaError, match="white space"):
        relative_name(tmp_path / "a b.jpg", tmp_path)
    assert find_photo_root([tmp_path / "a" / "1.jpg", tmp_path / "a" / "b" / "2.jpg"]) == (tmp_path / "a").resolve()
    assert find_photo_root([tmp_path / "a" / "1.jpg"]) == (tmp_path / "a").resolve()


@pytest.mark.slow
@pytest.mark.parametrize("carrier", ["original", "partial", "adaptive"])
def test_a_map_of_integers_is_explained_and_reported_like_one_of_floats(map_of, queries, carrier):
    whole, integers = (map_of(carrier, "soft", admit=False, storage=storage) for storage in ("float32", "int7"))
    one = Tokens(queries.patches[:1], queries.cls[:1], grid=(4, 4))
    told, expected = explain_score(integers, one, 3), explain_score(whole, one, 3)
    assert told["score"] == pytest.approx(expected["score"], abs=2e-2)
    local = sum(part["contribution"] for part in told["terms"] if "words" in part["name"])
    for name in ("query_heat", "image_heat"):
        assert np.sum(told[name]) == pytest.approx(local, rel=1e-6)
        np.testing.assert_allclose(told[name], expected[name], atol=2e-2)
    assert collect_report(integers)["duplicates"] == collect_report(whole)["duplicates"]
