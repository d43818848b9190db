"""Exports, explanation and report of second-order maps agree with their answers."""

import numpy as np
import pytest

from tests.exports.conftest import scores_of
from tests.exports.test_exports import asked, session
from tests.fakes import FakeEncoder, random_image
from tfa.core.tokens import Tokens
from tfa.explain.why import explain_score
from tfa.exports.onnx_head import write_onnx_head
from tfa.exports.vectors import compile_map
from tfa.maps import PlaceMap
from tfa.photos.token_cache import TokenCache
from tfa.report.collect import collect_report
from tfa.report.page import write_report
from tfa.types import BuildOptions, EncoderOptions, HeadSpec

# What rounding costs a score at most, as a share of the largest.
CLOSE = {"float32": 1e-5, "float16": 1e-5, "int7": 1e-2}  # a map of integers rounds its queries, exports do not


@pytest.fixture(params=["partial", "tempered"])
def carrier(request):
    return request.param


@pytest.fixture(params=CLOSE)
def town(world, carrier, request):
    folder, _, _ = world
    return PlaceMap.build(
        folder / "photos",
        head="second-order",
        encoder=FakeEncoder(),
        spec=HeadSpec(words=5),
        map_spec=BuildOptions(carrier=carrier, storage=request.param),
        options=EncoderOptions(cache=TokenCache(folder / "tokens")),
    )


def calibrated(town, tmp_path):
    for number in range(30):
        random_image(200 + number).save(tmp_path / f"{number}.png")
    town.calibrate(sorted(tmp_path.glob("*.png")), name="night")
    return town


@pytest.mark.parametrize("calibration", [None, "night"])
def test_vectors_and_the_graph_give_the_scores_of_the_map(town, queries, tmp_path, calibration):
    if calibration:
        calibrated(town, tmp_path)
    compiled, expected = compile_map(town, calibration), scores_of(town, queries, calibration)
    close = CLOSE[town.info().to_dict()["storage"]] * float(np.abs(expected).max())
    ours = np.asarray(compiled.scorer.query_vectors(queries)) @ compiled.vectors.T + compiled.bias
    np.testing.assert_allclose(ours, expected, atol=close)
    write_onnx_head(tmp_path / "head.onnx", compiled)
    psi = asked(session(tmp_path / "head.onnx"), queries)
    np.testing.assert_allclose(psi @ compiled.vectors.T + compiled.bias, expected, atol=10 * close)


@pytest.mark.parametrize("calibration", [None, "night"])
def test_a_map_tells_why(town, queries, tmp_path, calibration):
    if calibration:
        calibrated(town, tmp_path)
    one = Tokens(queries.patches[:1], queries.cls[:1], grid=(4, 4))
    expected = scores_of(town, one, calibration)[0]
    close = CLOSE[town.info().to_dict()["storage"]] * float(np.abs(expected).max())
    for column, record in enumerate(town.images):
        told = explain_score(town, one, record.id, calibration)
        assert told["score"] == pytest.approx(float(expected[column]), abs=max(close, 1e-4))
        assert sum(term["contribution"] for term in told["terms"]) == pytest.approx(told["score"])
        assert told["words"] == []
        assert told["linearised"]
        apart = ("shared by all images", "mean score of the image")
        local = sum(term["contribution"] for term in told["terms"] if not term["name"].endswith(apart))
        for heat in (told["query_heat"], told["image_heat"]):
            assert np.shape(heat) == (4, 4)
            assert np.sum(heat) == pytest.approx(local, rel=1e-6, abs=1e-9)


def test_a_report_is_written(town, tmp_path):
    report = collect_report(town)
    # Two copies of a photo are alike, also where their rows are integers.
    assert [[image["image"] for image in group["images"]] for group in report["duplicates"]] == [["copy.png", "4.png"]]
    write_report(tmp_path / "report.html", report)
    page = (tmp_path / "report.html").read_text()
    assert "near duplicates" in page
    assert "residuals" not in page
