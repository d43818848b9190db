"""Calibrations of a map: which photos make them, and how they answer."""

from pathlib import Path

import numpy as np
import pytest

import tfa
from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, hits, mixture_with_cls, photo, reopened, scores
from tfa import pipeline
from tfa.core.files import hash_file
from tfa.core.tokens import Tokens
from tfa.errors import BadCalibration, BadImage, BadMap, BadSpec, NoImages
from tfa.maps import PlaceMap, calibrate
from tfa.maps.storage import MemoryStorage
from tfa.types import BuildOptions
from tfa.verification.patches import CompactTokens

pytestmark = pytest.mark.slow

# --- querying -----------------------------------------------------------------------------------------------------


def test_a_calibration_is_kept_beside_the_map_and_answers(saved, camera, dusk, cache):
    editor = reopened(saved)
    before = hits(editor, dusk)
    report = editor.calibrate(camera, name="night")
    assert (report.name, report.used, report.photos, report.skipped) == ("night", 20, 20, [])
    assert report.decisions["route"] in ("hard", "soft", "mixture")
    assert set(report.reasons) >= {"route", "strengths", "carrier", "admit_cls"}
    for opened in (editor, reopened(saved)):
        assert opened.calibrations == ["night"]
        assert hits(opened, dusk, "none") == before
        assert hits(opened, dusk) == hits(opened, dusk, "night") == hits(editor, dusk)
        assert hits(opened, dusk) != before
        assert opened.query(dusk, k=1)[0].id == 5
        assert (
            opened.query_many([dusk], k=99, calibration="none")[0].hits
            == opened.query(dusk, 99, min_confidence=0.0, calibration="none").hits
        )


@pytest.mark.parametrize("ensemble", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("score", [False, True])
@pytest.mark.parametrize("mixture", [False, True])
def test_scores_are_those_of_the_calibrated_head(town, camera, cache, tmp_path, monkeypatch, ensemble, score, mixture):
    if mixture:
        mixture_with_cls(monkeypatch)
    made = {"encoder": FakeEncoder(), "spec": SPEC, "map_spec": BuildOptions(storage="float32", ensemble=ensemble)}
    built = PlaceMap.build(town, head="paper", **made)
    built.save(tmp_path / "m.tfa")
    built.calibrate(camera, score=score)
    database, target = tfa.encode(town, FakeEncoder()), tfa.encode(camera, FakeEncoder())
    head = pipeline.calibrate(tfa.fit(database.tokens, SPEC), target.tokens, score=score)
    expected = head.scores(target.tokens, "ensemble" if ensemble else 0)
    found = scores(reopened(tmp_path / "m.tfa"), sorted(camera.iterdir()), "target")
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())
    np.testing.assert_array_equal(scores(built, sorted(camera.iterdir())), found)
    info = built.info().to_dict()["calibrations"][0]
    assert info["decisions"]["score_calibrated"] == info["calibration"]["score"] == score
    assert info["data_used"] == "target"


def test_several_calibrations_the_newest_is_the_default(saved, camera, dusk, cache):
    editor = reopened(saved)
    for name in ("day", "night", "day"):
        photos = sorted(camera.iterdir())[: 12 if name == "night" else 20]
        report = editor.calibrate(photos, name=name)
    assert any("replaced the previous calibration 'day'" in note for note in report.notes)
    opened = reopened(saved)
    assert opened.calibrations == ["night", "day"]
    assert [entry["active"] for entry in opened.info().to_dict()["calibrations"]] == [False, True]
    assert hits(opened, dusk) == hits(opened, dusk, "day") != hits(opened, dusk, "night")
    opened.activate("night")  # the replaced files stay for one more edit
    assert len(list(saved.glob("head-*"))) == len(list(saved.glob("gallery-*"))) == 3


def test_an_unknown_calibration_is_told_with_those_there_are(saved, camera, dusk, cache):
    editor = reopened(saved)
    with pytest.raises(BadCalibration, match=r"calibration 'fog' not found. This map has none"):
        editor.query(dusk, calibration="fog")
    editor.calibrate(camera, name="night")
    for ask in (editor.query, lambda q, calibration: editor.query_many([q], calibration=calibration)):
        with pytest.raises(BadCalibration, match=r"calibration 'fog' not found. Available: night, or 'none'"):
            ask(dusk, calibration="fog")
    with pytest.raises(BadCalibration):
        editor.query_tokens(Tokens(np.ones((1, 4, 12)), np.ones((1, 6))), calibration="Night")


def test_twins_tie_under_a_calibration_too(town, camera, cache):
    (town / "99.png").write_bytes((town / "02.png").read_bytes())
    built = PlaceMap.build(town, head="paper", encoder=FakeEncoder(), spec=SPEC)
    built.calibrate(camera)
    first, second = built.query(town / "02.png", k=2)
    assert (first.id, second.id) == (2, 14)
    assert first.score == second.score


# --- which photos ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "", "two words", "a/b", "../x", "night.", "nächtlich", "n\n"])
def test_names_that_cannot_be(place_map, camera, name):
    with pytest.raises(BadSpec, match="letters, digits, - and _"):
        place_map.calibrate(camera, name=name)
    assert place_map.calibrations == []


def test_names_must_differ_by_more_than_case(place_map, camera):
    place_map.calibrate(camera, name="Night-1_b")
    with pytest.raises(BadSpec, match="only in case"):
        place_map.calibrate(camera, name="night-1_B")


def test_photos_of_the_map_are_refused(saved, town, camera, cache):
    editor = reopened(saved)
    (camera / "copy.png").write_bytes((town / "03.png").read_bytes())
    with pytest.raises(BadCalibration, match=r"1 of 21 photos are in the map \(first: .*copy\.png\)"):
        editor.calibrate(camera)
    editor.remove([3])  # its descriptor stays, and the head was fitted on it
    with pytest.raises(BadCalibration, match="until tfa refit"):
        editor.calibrate(camera)
    with pytest.raises(BadCalibration, match="14 of 14"):
        editor.calibrate(town)
    assert reopened(saved).calibrations == []


def test_too_few_photos_and_few(place_map, camera):
    photos = sorted(camera.iterdir())
    with pytest.raises(NoImages, match="at least 2 photos; 1 of 1 photos are usable"):
        place_map.calibrate(photos[:1])
    with pytest.raises(NoImages, match=r"1 of . photos are usable"):
        place_map.calibrate([photos[0], photos[0]])
    [note] = place_map.calibrate(photos[:7]).notes
    assert note == "a calibration with only 7 photos may lower recall; use 64 if possible"
    assert place_map.calibrate(photos[:8], name="eight").notes == []
    with pytest.raises(BadSpec, match="budget=1"):
        place_map.calibrate(photos, budget=1)


def test_of_more_than_the_budget_a_fixed_sample_is_taken(place_map, camera):
    report = place_map.calibrate(camera, budget=9)
    assert (report.used, report.photos) == (9, 20)
    assert any("9 of 20 photos were sampled" in note for note in report.notes)
    drawn = sorted(np.random.default_rng(0).permutation(20)[:9])
    facts = place_map.info().to_dict()["calibrations"][0]["calibration"]
    assert facts["digests"] == [hash_file(sorted(camera.iterdir())[i]) for i in drawn]
    assert {key: facts[key] for key in ("given", "used", "budget", "score", "revision")} == {
        "given": 20, "used": 9, "budget": 9, "score": False, "revision": 2,
    }  # fmt: skip


def test_only_what_is_used_is_encoded(town, camera, cache):
    encoder = FakeEncoder()
    built = PlaceMap.build(town, head="paper", encoder=encoder, spec=SPEC)
    before = encoder.encoded
    built.calibrate(camera, budget=9)
    assert encoder.encoded - before == 9


@pytest.mark.parametrize("skip_bad", [False, True])
def test_of_a_large_folder_little_more_than_the_budget_is_read(place_map, tmp_path, monkeypatch, skip_bad):
    for number in range(200):
        (tmp_path / "many").mkdir(exist_ok=True)
        photo(tmp_path / "many" / f"{number:03d}.png", number + 50, light=0.7)
    if skip_bad:
        (tmp_path / "many" / "000.png").write_bytes(b"broken")
    real, inspected = calibrate.inspect_photo, []
    monkeypatch.setattr(calibrate, "inspect_photo", lambda path, **more: inspected.append(path) or real(path, **more))
    report = place_map.calibrate(tmp_path / "many", budget=8, skip_bad=skip_bad)
    assert (report.used, report.photos) == (8, 200)
    assert len(inspected) <= 10


def test_each_pair_of_a_photo_and_an_image_is_compared_once(town, camera, cache, monkeypatch):
    """The admission of reranking and the expected recall look at the same pairs."""
    built = PlaceMap.build(town, encoder=FakeEncoder(), spec=SPEC)
    real, pairs = CompactTokens.evidence, []

    def noted(self, query, grid, indices):
        pairs.extend((query.tobytes(), int(index)) for index in indices)
        return real(self, query, grid, indices)

    monkeypatch.setattr(CompactTokens, "evidence", noted)
    monkeypatch.setattr(CompactTokens, "matches", lambda *_: pytest.fail("compared once more"))
    report = built.calibrate(camera)
    assert report.expected_recall is not None
    assert len(pairs) == len(set(pairs)) == 20 * len(built.images)


def test_a_photo_given_twice_counts_once(place_map, camera):
    (camera / "again.png").write_bytes((camera / "00.png").read_bytes())
    report = place_map.calibrate([camera, camera / "01.png"])
    assert (report.used, report.photos) == (20, 21)
    assert any("duplicate photos, ignored: 1" in note for note in report.notes)


def test_scores_are_calibrated_from_16_photos_on(place_map, camera):
    photos = sorted(camera.iterdir())
    assert not place_map.calibrate(photos[:15]).decisions["score_calibrated"]
    assert place_map.calibrate(photos[:16]).decisions["score_calibrated"]
    assert not place_map.calibrate(photos[:16], score=False).decisions["score_calibrated"]
    assert place_map.calibrate(photos[:8], score=True).decisions["score_calibrated"]


@pytest.mark.parametrize("budget", [64, 10])
def test_broken_photos_stop_or_are_skipped(place_map, camera, budget):
    (camera / "05.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(BadImage, match=r"05\.png"):
        place_map.calibrate(camera)
    report = place_map.calibrate(camera, skip_bad=True, budget=budget)
    assert report.used == min(19, budget)
    drawn = np.random.default_rng(0).permutation(20)[:budget]  # a broken photo that was not drawn is not looked at
    assert [Path(file).name for file, _ in report.skipped] == (["05.png"] if 5 in drawn else [])


def test_another_calibration_is_activated_for_good(saved, camera, dusk, cache):
    place_map = reopened(saved, cache)
    place_map.calibrate(camera, "night")
    place_map.calibrate(camera, "day", score=False)
    assert (place_map.activate("night"), reopened(saved).state.active) == ("night", "night")
    assert hits(reopened(saved), dusk) == hits(reopened(saved), dusk, "night")
    revision = place_map.state.revision
    assert place_map.activate("night") == "night"
    assert place_map.state.revision == revision  # nothing changed, nothing is written
    assert (place_map.activate(None), reopened(saved).state.active) == (None, "none")
    with pytest.raises(BadCalibration, match="calibration 'fog' not found"):
        place_map.activate("fog")


def test_a_dropped_calibration_leaves_nothing_behind(saved, camera, dusk, cache):
    place_map = reopened(saved, cache)
    before = hits(place_map, dusk)
    place_map.calibrate(camera, "night")
    place_map.calibrate(camera, "day")
    place_map.activate("night")
    place_map.drop_calibration("day")
    assert (place_map.calibrations, place_map.state.active) == (["night"], "night")
    place_map.drop_calibration("night")
    again = reopened(saved)
    assert (again.calibrations, again.state.active) == ([], "none")
    assert hits(again, dusk) == before
    assert {entry["head"] for entry in again.state.files} == {"none", None}
    for name in ("none", "night"):
        with pytest.raises(BadCalibration):
            place_map.drop_calibration(name)


def test_a_calibration_made_in_a_copy_is_adopted_after_an_edit(saved, camera, dusk, tmp_path, cache):
    place_map, copy = reopened(saved, cache), PlaceMap(MemoryStorage(reopened(saved).state), encoder=FakeEncoder())
    copy.cache = cache
    copy.calibrate(camera, "night")
    place_map.add(photo(tmp_path / "new.png", 40))
    place_map.adopt_calibration(copy, "night")
    again = reopened(saved)
    assert (again.calibrations, again.state.active, len(again)) == (["night"], "night", 15)
    other = PlaceMap(MemoryStorage(reopened(saved).state), encoder=FakeEncoder())  # without a folder
    other.cache = cache
    other.calibrate(camera, "night")
    assert hits(again, dusk) == hits(other, dusk)
    place_map.refit()
    with pytest.raises(BadMap, match="refitted during the calibration"):
        place_map.adopt_calibration(copy, "night")
