"""The default encoder with its real weights on a small rendered town.

The weights come from the package index once and are cached; without it these tests are skipped, and say so.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import tfa
from tfa.demo.run import DEFAULT, SHOWN, run_demo
from tfa.encoders import DEFAULT_ENCODER, load_encoder
from tfa.errors import WeightsMissing
from tfa.exports.hloc import query_vectors
from tfa.exports.onnx_head import write_onnx_place
from tfa.exports.vectors import compile_map
from tfa.maps import PlaceMap
from tfa.photos.images import as_rgb
from tfa.types import BuildOptions
from tfa_bench.heads.contract import Photos
from tfa_bench.heads.controls import CONTROLS, under_control
from tfa_bench.heads.tfa_heads import RetrieverHead
from tfa_bench.rank import mean_recall

pytestmark = pytest.mark.encoder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """Weights from the user's cache; tokens go to one of the tests' own."""
    try:
        loaded = load_encoder(DEFAULT_ENCODER, precision="float32")
    except WeightsMissing as error:
        pytest.skip(f"no weights to be had: {error}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFA_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield loaded


@pytest.fixture(scope="module")
def demo(encoder, tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    return run_demo(out, references=24, queries=8, encoder=encoder)


def test_the_demo_writes_what_it_says(demo):
    text = str(demo)
    for name in ("town.tfa", "answer.png", "montage.png", "report.html"):
        assert (demo.out / name).exists()
        assert name in text
    kept = json.loads((demo.out / "result.json").read_text())["recall"]
    assert kept[DEFAULT]["R@1"] == demo.recalls[DEFAULT][0]
    assert set(demo.recalls) == set(SHOWN)
    for values in demo.recalls.values():
        assert 0 <= values[0] <= values[1] <= 1
    assert demo.recalls[DEFAULT][1] >= 0.5  # far above the chance of 5 in 24
    assert "how the patches of an image vary together" in text


def test_float16_storage_keeps_every_top_answer(demo, encoder, tmp_path):
    database = tfa.encode(demo.out / "town" / "references", encoder)
    queries = tfa.encode(demo.out / "town" / "queries", encoder)
    head = tfa.fit(database.tokens)
    everyone = [*database.paths, *queries.paths]
    tops = {}
    for storage in ("float16", "float32"):
        made = PlaceMap.from_head(head, database, encoder, map_spec=BuildOptions(storage=storage, rerank=False))
        made.save(tmp_path / f"{storage}.tfa")
        opened = PlaceMap.load(tmp_path / f"{storage}.tfa", encoder=encoder)
        tokens = [opened.query_tokens(encoded.tokens, k=1) for encoded in (database, queries)]
        tops[storage] = [hits[0].id for part in tokens for hits in part]
    assert tops["float16"] == tops["float32"]
    assert len(tops["float16"]) == len(everyone)
    sizes = {s: PlaceMap.load(tmp_path / f"{s}.tfa").info().to_dict()["bytes"] for s in tops}
    assert sizes["float16"] < 0.6 * sizes["float32"]


def test_photos_from_elsewhere_are_less_sure(demo, encoder, elsewhere):
    opened = PlaceMap.load(demo.out / "town.tfa", encoder=encoder)
    inside = [a.confidence for a in opened.query_many(sorted((demo.out / "town" / "queries").iterdir()))]
    outside = [a.confidence for a in opened.query_many(sorted(elsewhere.rglob("*.jpg")))]
    assert np.median(outside) < np.median(inside)


def test_controls_are_what_their_names_say(demo, encoder):
    database = tfa.encode(demo.out / "town" / "references", encoder)
    queries = tfa.encode(demo.out / "town" / "queries", encoder)
    head = tfa.fit(database.tokens)
    hard = under_control(head, "hard", CONTROLS["original"])
    branch = head.branches["hard", 1]
    side = hard.scorer(1).sides[0]
    v = side.describe(queries.tokens, False, "float32").descriptors
    np.testing.assert_allclose(hard.scores(queries.tokens, 1), v @ np.array(branch.described.descriptors).T, atol=1e-5)
    rows = [[i] for i in range(len(database.paths))]
    assert mean_recall(RetrieverHead(hard), Photos(database.tokens), rows, (1,)) == [1.0]


def test_a_reference_is_found_by_its_path(demo, encoder):
    opened = PlaceMap.load(demo.out / "town.tfa", encoder=encoder)
    photo = demo.out / "town" / "references" / "ref_003.jpg"
    hit = opened.query(photo, k=1)[0]
    assert Path(hit.image) == photo.resolve()
    assert hit.position is not None


def test_one_file_of_a_real_encoder_is_small_and_says_what_the_map_says(demo, encoder, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    town = PlaceMap.load(demo.out / "town.tfa", encoder=encoder)
    compiled = compile_map(town)
    rows = write_onnx_place(tmp_path / "place.onnx", town, compiled)
    assert (tmp_path / "place.onnx").stat().st_size < 200e6
    photo = next((demo.out / "town" / "queries").glob("*.jpg"))
    expected = query_vectors(compiled, tfa.encode([photo], encoder).tokens) @ compiled.with_bias.T
    pixels = np.asarray(encoder.prepare(as_rgb(photo)), np.float32).transpose(2, 0, 1)[None] / 255
    session = runtime.InferenceSession(tmp_path / "place.onnx", providers=["CPUExecutionProvider"])
    [vector] = session.run(["vector"], {"images": pixels})
    # Positions are resampled by numpy in the file and by torch in the map: some float16 tokens round the other way.
    np.testing.assert_allclose(vector @ rows.vectors.T, expected, atol=5e-4 * np.ptp(expected))


def test_calibrating_on_the_very_queries_does_not_lower_recall(demo, encoder):
    folder = demo.out / "town"
    database, queries = tfa.encode(folder / "references", encoder), tfa.encode(folder / "queries", encoder)
    positives = json.loads((folder / "positives.json").read_text())
    names = [path.name for path in database.paths]
    rows = [[names.index(name) for name in positives[path.name]] for path in queries.paths]
    head = tfa.fit(database.tokens)
    plain, scored = (
        mean_recall(RetrieverHead(made), Photos(queries.tokens), rows, (1,))[0]
        for made in (tfa.calibrate(head, queries.tokens), tfa.calibrate(head, queries.tokens, score=True))
    )
    assert scored >= plain - 1e-9
