"""Building and querying a map."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import tfa
from tests.awkward_photos import KINDS, awkward_photo, forms_of
from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo, reopened
from tfa.core.tokens import Tokens
from tfa.errors import BadImage, BadSpec, BadWeights, ChannelMismatch, NoImages
from tfa.explain.why import explain_match
from tfa.maps import PlaceMap
from tfa.photos.images import as_rgb
from tfa.types import BuildOptions, EncoderOptions


def test_a_photo_finds_its_place(place_map, tmp_path):
    hits = place_map.query(photo(tmp_path / "dusk.png", 5, light=0.8), k=3, rerank=False)
    assert len(hits) == 3
    assert Path(hits[0].image).name == "05.png"
    assert hits[0].id == 5
    assert hits[0].score >= hits[1].score >= hits[2].score
    assert 0 <= hits[2].confidence <= hits[0].confidence <= 1
    keys = {"image", "id", "score", "confidence", "inliers", "sure", "position"}
    assert json.loads(json.dumps(hits[0].to_dict())).keys() == keys


def test_scores_are_those_of_the_head(place_map, town, cache):
    encoded = tfa.encode(town, FakeEncoder(), cache=cache)
    head = tfa.fit(encoded.tokens, SPEC)
    expected = head.scores(encoded.tokens)
    found = place_map.state.head.scorer.scores(encoded.tokens)
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())
    np.testing.assert_array_equal(found.argmax(axis=1), expected.argmax(axis=1))


@pytest.mark.parametrize("ensemble", [False, True])
def test_float32_storage_keeps_the_head_exactly(town, cache, ensemble):
    kept = BuildOptions(storage="float32", ensemble=ensemble)
    built = PlaceMap.build(
        town, head="paper", encoder=FakeEncoder(), spec=SPEC, options=EncoderOptions(cache=cache), map_spec=kept
    )
    encoded = tfa.encode(town, FakeEncoder(), cache=cache)
    expected = tfa.fit(encoded.tokens, SPEC).scores(encoded.tokens, "ensemble" if ensemble else 0)
    np.testing.assert_allclose(built.state.head.scorer.scores(encoded.tokens), expected, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_form_of_a_photo_changes_no_answer(place_map, town, tmp_path, kind):
    forms = forms_of(awkward_photo(kind, town / "03.png", tmp_path))
    expected = place_map.query(forms["path"], k=5).hits
    assert kind == "deep" or expected[0].id == 3
    for given in forms.values():
        assert place_map.query(given, k=5).hits == expected
    many = place_map.query_many(list(forms.values()), k=5)
    assert [answer.query for answer in many] == [forms["name"], forms["name"], "bytes", forms["name"], "array", "array"]
    assert all(answer.hits == expected for answer in many)


def test_what_is_no_photo_is_refused(place_map):
    for wrong in (np.zeros((8, 8, 3)), np.zeros((8, 8, 4), np.uint8), None):
        for ask in (
            place_map.query, place_map.query_many, place_map.follow().step, place_map.calibrate,
            partial(explain_match, place_map),
        ):  # fmt: skip
            with pytest.raises(BadSpec, match=r"a photo must be .*, got "):
                ask(wrong)
    with pytest.raises(BadSpec, match="photos must be paths here, got ndarray"):
        place_map.add([np.zeros((8, 8, 3), np.uint8)])


def test_a_map_says_in_a_line_what_it_is(place_map, saved, camera):
    assert repr(PlaceMap.load(saved)) == (
        f"<PlaceMap {saved}: 14 photos; encoder fake@28; paper head (soft, partial); no calibration; reranked>"
    )
    place_map.calibrate([np.asarray(as_rgb(path)) for path in sorted(camera.iterdir())], "night")
    assert "; calibrations night (active); " in repr(place_map)
    report = place_map.calibrate(camera, "day")
    night, day = (place_map.state.chosen(name) for name in ("night", "day"))
    assert report.used == night.calibration["used"] == 20
    assert night.decisions == day.decisions  # files and pixels in memory teach the same


def test_many_photos_a_broken_one_among_them(place_map, town, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"not a picture")
    photos = [town / "01.png", broken, tmp_path / "absent.png", *(town / f"{i:02d}.png" for i in range(2, 12))]
    answers = place_map.query_many(photos, k=1)
    assert [answer.query for answer in answers] == [str(p) for p in photos]
    assert [a.hits[0].id if a.hits else None for a in answers] == [1, None, None, *range(2, 12)]
    assert "broken.jpg" in answers[1].error
    assert "absent.png" in answers[2].error
    with pytest.raises(BadImage, match=r"broken\.jpg"):
        place_map.query(broken)


def test_photos_from_outside_are_less_sure_and_can_be_refused(place_map, tmp_path):
    inside = [place_map.query(photo(tmp_path / f"in{i}.png", i, 0.85))[0].confidence for i in range(14)]
    outside = [place_map.query(photo(tmp_path / f"out{i}.png", 500 + i, 0.85))[0].confidence for i in range(14)]
    assert np.median(outside) < np.median(inside)
    stranger = tmp_path / "out0.png"
    assert outside[0] < 1
    assert place_map.query(stranger, min_confidence=outside[0] + 1e-6).hits == []
    assert place_map.query(stranger, min_confidence=outside[0]).hits != []
    answer = place_map.query_many([stranger], min_confidence=0.0)[0]
    assert answer.confidence == pytest.approx(outside[0])
    for wrong in (-0.1, 1.5, 50):
        with pytest.raises(BadSpec, match="between 0 and 1"):
            place_map.query(stranger, min_confidence=wrong)
    with pytest.raises(BadSpec, match="k=0"):
        place_map.query(stranger, k=0)


def test_positions_come_back_with_the_hits(town, cache, tmp_path):
    csv = tmp_path / "positions.csv"
    csv.write_text("file,x,y\n" + "".join(f"{i:02d}.png,{i},{2 * i}\n" for i in range(14)))
    built = PlaceMap.build(town, head="paper", encoder=FakeEncoder(), spec=SPEC, positions=csv)
    assert built.query(town / "04.png", k=1)[0].position.to_dict() == {"x": 4.0, "y": 8.0}
    built.save(tmp_path / "m.tfa")
    assert reopened(tmp_path / "m.tfa").query(town / "04.png", k=1)[0].to_dict()["position"] == {"x": 4.0, "y": 8.0}


def test_an_encoder_without_a_global_token(town, cache):
    built = PlaceMap.build(town, head="paper", encoder=FakeEncoder(global_token=False), spec=SPEC)
    assert not built.info().to_dict()["decisions"]["admit_cls"]
    assert built.query(town / "07.png", k=1)[0].id == 7


def test_two_photos_of_the_same_content_tie_and_the_first_wins(town, cache):
    (town / "99.png").write_bytes((town / "02.png").read_bytes())
    built = PlaceMap.build(town, head="paper", encoder=FakeEncoder(), spec=SPEC)
    first, second = built.query(town / "02.png", k=2)
    assert (Path(first.image).name, Path(second.image).name) == ("02.png", "99.png")
    assert first.score == second.score


def test_another_encoder_is_refused(saved, town):
    stranger = PlaceMap.load(saved, encoder=FakeEncoder(salt="other weights"))
    with pytest.raises(BadWeights, match="built with fake@28"):
        stranger.query(town / "00.png")
    with pytest.raises(ChannelMismatch, match="9 channels"):
        reopened(saved).query_tokens(Tokens(np.ones((1, 4, 9))))


def test_too_few_photos(tmp_path, cache):
    with pytest.raises(NoImages):
        PlaceMap.build(tmp_path, head="paper", encoder=FakeEncoder())
    photo(tmp_path / "one" / "a.png", 1)
    with pytest.raises(NoImages, match="at least 2"):
        PlaceMap.build(tmp_path / "one", head="paper", encoder=FakeEncoder())
    with pytest.raises(BadSpec, match="int4"):
        PlaceMap.build(tmp_path / "one", head="paper", encoder=FakeEncoder(), map_spec=BuildOptions(storage="int4"))


def test_a_broken_photo_stops_the_build_unless_skipped(town, cache):
    (town / "05b.jpg").write_bytes(b"\xff\xd8 broken")
    with pytest.raises(BadImage, match=r"05b\.jpg"):
        PlaceMap.build(town, head="paper", encoder=FakeEncoder(), spec=SPEC)
    built = PlaceMap.build(town, head="paper", encoder=FakeEncoder(), spec=SPEC, options=EncoderOptions(skip_bad=True))
    assert len(built) == 14
    assert [Path(name).name for name, _ in built.skipped] == ["05b.jpg"]


def test_info_is_json_and_gives_reasons(place_map, saved):
    info = json.loads(json.dumps(place_map.info().to_dict()))
    assert info["images"] == info["fitted_images"] == 14
    assert info["data_used"] == "database"
    assert info["unseen_share"] == 0
    assert set(info["reasons"]) == {"assignment", "strengths", "admit_cls", "carrier"}
    assert info["bytes"] == sum(f.stat().st_size for f in saved.iterdir() if f.name != "map.json")
    assert info["decisions"]["carrier"] in ("original", "partial", "adaptive")
