"""A map of `tfa build --paper` is TFA as published, and its calibration TFA-C64."""

import json

import numpy as np
import pytest

import tfa
from tests.fakes import FakeEncoder
from tests.maps.conftest import photo, reopened, scores
from tfa.errors import BadSpec
from tfa.maps import PlaceMap
from tfa.types import PAPER_ENCODER, BuildOptions, EncoderOptions, HeadSpec


@pytest.fixture
def published(town, cache, tmp_path):
    built = PlaceMap.build(
        town, map_spec=BuildOptions.paper(), encoder=FakeEncoder(), options=EncoderOptions(cache=cache)
    )
    built.save(tmp_path / "paper.tfa")
    return reopened(tmp_path / "paper.tfa", cache)


def test_scores_are_those_of_the_published_head(published, town, camera):
    assert published.state.map_spec == BuildOptions(head="paper", storage="float32", rerank=False)
    assert published.state.spec == HeadSpec(max_pca=80_000).to_dict()
    head = tfa.fit(tfa.encode(town, FakeEncoder()).tokens, HeadSpec.paper())
    target = tfa.encode(camera, FakeEncoder()).tokens
    np.testing.assert_allclose(scores(published, sorted(camera.iterdir())), head.scores(target, 0), atol=2e-6)

    published.calibrate(camera)  # 20 photos: enough to calibrate scores, which the paper does not
    assert published.info().calibrations[0].decisions["score_calibrated"] is False
    expected = tfa.calibrate(head, target).scores(target, 0)
    found = scores(published, sorted(camera.iterdir()), "target")
    np.testing.assert_allclose(found, expected, atol=2e-6 * np.abs(expected).max())
    assert published.info().published == f"TFA-C20 as published, with fake@28 instead of {PAPER_ENCODER}"
    published.calibrate(camera, score=True)
    assert published.info().calibrations[0].decisions["score_calibrated"] is True
    assert published.info().published is None


def test_the_encoder_of_the_paper_is_the_default(town, monkeypatch):
    loaded = []

    def load(name, **_):
        loaded.append(name)
        return FakeEncoder()

    monkeypatch.setattr("tfa.maps.map.load_encoder", load)
    PlaceMap.build(town, map_spec=BuildOptions.paper())
    PlaceMap.build(town)
    assert loaded == ["dinov2-b14@322", "dinov2-s14-focus"]
    for more in ({"head": "paper"}, {"spec": HeadSpec()}):
        with pytest.raises(BadSpec, match="builds TFA as published"):
            PlaceMap.build(town, map_spec=BuildOptions.paper(), **more)
    with pytest.raises(BadSpec, match="and precision"):
        PlaceMap.build(town, map_spec=BuildOptions.paper(), options=EncoderOptions(precision="int8"))


def test_edits_keep_it_published_and_other_settings_do_not(published, place_map, tmp_path):
    assert published.info().published == f"TFA as published, with fake@28 instead of {PAPER_ENCODER}"
    published.add(photo(tmp_path / "more.png", 30))
    published.refit()
    assert published.state.is_published
    assert place_map.info().published is None  # the same head, but float16 and reranked
    assert "published" not in place_map.info().to_dict()


def test_the_name_has_no_addition_with_the_encoder_of_the_paper(town, cache):
    encoder = FakeEncoder()
    encoder.id = PAPER_ENCODER
    built = PlaceMap.build(town, map_spec=BuildOptions.paper(), encoder=encoder, options=EncoderOptions(cache=cache))
    assert built.info().published == json.loads(json.dumps(built.info().to_dict()))["published"] == "TFA as published"
