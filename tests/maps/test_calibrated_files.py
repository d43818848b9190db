"""Calibrated maps on disk: edits keep every head complete, or do not happen."""

import json
import os

import numpy as np
import pytest

import tfa
from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, hits, killed_before_the_header, mixture_with_cls, photo, reopened, scores
from tfa import pipeline
from tfa.core.files import hash_json
from tfa.errors import BadMap
from tfa.maps import PlaceMap
from tfa.maps.describe import list_differences
from tfa.maps.folder import writer
from tfa.types import BuildOptions

pytestmark = pytest.mark.slow

# --- editing -----------------------------------------------------------------------------------------------------


def test_a_photo_added_before_or_after_calibrating_has_the_same_row(place_map, camera, dusk, tmp_path):
    """The bias of an added image comes from the calibration photos, in either order."""
    new = photo(tmp_path / "new.png", 17)
    place_map.save(tmp_path / "a.tfa")
    place_map.save(tmp_path / "b.tfa")
    after, before = reopened(tmp_path / "a.tfa"), reopened(tmp_path / "b.tfa")
    before.add([new])
    before.calibrate(camera)
    after.calibrate(camera)
    after.add([new])
    for opened in (after, reopened(tmp_path / "a.tfa"), reopened(tmp_path / "b.tfa")):
        assert hits(opened, dusk) == hits(before, dusk)
        assert hits(opened, new)[0]["id"] == 14
        assert opened.state.chosen().stored.scorer.bias[14] != 0


def test_removing_writes_the_header_only_and_holds_for_every_head(saved, town, camera, cache):
    editor = reopened(saved)
    editor.calibrate(camera)
    files = {name: (saved / name).stat().st_mtime_ns for name in os.listdir(saved) if name != "map.json"}
    editor.remove([5])
    for name, time in files.items():
        assert (saved / name).stat().st_mtime_ns == time
    for name in ("none", "target"):
        assert 5 not in {hit["id"] for hit in hits(reopened(saved), town / "05.png", name)}
    assert len(reopened(saved).calibrate(camera, name="later").notes) == 0  # still fitted on the removed photo


def test_additions_are_joined_for_every_head(saved, camera, dusk, tmp_path, cache):
    editor = reopened(saved)
    for i in range(writer.MAX_SEGMENTS + 3):
        editor.add([photo(tmp_path / f"n{i}.png", 200 + i)])
        if i in (4, 9):
            editor.calibrate(camera, name=f"after-{i}")
    opened = reopened(saved)
    assert len(opened) == 14 + writer.MAX_SEGMENTS + 3
    for name in ("none", "after-4", "after-9"):
        np.testing.assert_allclose(scores(opened, [dusk], name), scores(editor, [dusk], name), rtol=1e-5)
        assert opened.query(tmp_path / "n4.png", k=1, calibration=name)[0].id == 18
    assert len(list(saved.glob("gallery-*"))) == 3 * len(opened.state.segments)
    opened.save(tmp_path / "copy.tfa")
    copy = reopened(tmp_path / "copy.tfa")
    assert copy.state.segments == (len(copy),)
    np.testing.assert_allclose(scores(copy, [dusk]), scores(editor, [dusk]), rtol=1e-5)  # in other blocks of rows
    copy.calibrate(camera, name="after-4")
    assert copy.calibrations == ["after-9", "after-4"]


KINDS = {
    "paper": BuildOptions(head="paper", storage="float16"),
    "paper int7": BuildOptions(head="paper", storage="int7"),
    "dual": BuildOptions(head="paper-dual"),
    "second-order": BuildOptions(),
    "reduced": BuildOptions(rerank=False, dims=8),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_removed_additions_are_dropped_when_additions_are_joined(kind, town, camera, tmp_path, cache, monkeypatch):
    built = PlaceMap.build(town, encoder=FakeEncoder(), spec=SPEC, map_spec=KINDS[kind])
    if kind != "dual":
        built.calibrate(camera, name="night")
    new = [photo(tmp_path / "new" / f"{place}.png", place) for place in range(200, 206)]
    maps = []
    for name, most in (("joined", 4), ("apart", 100)):
        monkeypatch.setattr(writer, "MAX_SEGMENTS", most)
        built.save(tmp_path / f"{name}.tfa")
        editor = reopened(tmp_path / f"{name}.tfa")
        editor.remove([3])
        for number, path in enumerate(new):
            assert editor.add([path]).added == [14 + number]
            if number % 2:
                editor.remove([14 + number])
        maps += [editor, reopened(tmp_path / f"{name}.tfa")]
    editor, joined, *apart = maps
    for one in (editor, joined):
        assert [record.id for record in one.state.images] == [*range(15), *range(16, 20)]  # 15 was removed and joined
        assert one.state.removed == {3, 17, 19}
        assert one.state.segments == (14, 3, 1, 1)
    assert {len(one.state.images) for one in apart} == {20}
    queries = [*new, *sorted(camera.iterdir())]
    for head in ("none", *joined.calibrations):
        expected = [
            [(hit.id, hit.score) for hit in found] for found in apart[1].query_many(queries, k=99, calibration=head)
        ]
        for one in (editor, joined):
            found = one.query_many(queries, k=99, calibration=head)
            assert [[hit.id for hit in answer] for answer in found] == [[own for own, _ in row] for row in expected]
            scores = [[hit.score for hit in answer] for answer in found]
            np.testing.assert_allclose(scores, [[score for _, score in row] for row in expected], rtol=1e-5)
    assert joined.add([new[1]]).added == [20]


def test_a_calibration_is_adopted_after_removed_images_were_dropped(saved, camera, dusk, tmp_path, cache, monkeypatch):
    monkeypatch.setattr(writer, "MAX_SEGMENTS", 2)
    editor = reopened(saved, cache)
    editor.add([photo(tmp_path / "new" / f"{place}.png", place) for place in (200, 201)])
    editor.remove([14])
    apart = PlaceMap(editor.storage.branch(saved=False), FakeEncoder())
    apart.calibrate(camera, name="night")
    editor.add([photo(tmp_path / "new" / "202.png", 202)])
    assert [record.id for record in editor.state.images] == [*range(14), 15, 16]
    editor.adopt_calibration(apart, "night")
    reopened(saved).calibrate(camera, name="again")
    opened = reopened(saved)
    np.testing.assert_array_equal(scores(opened, [dusk], "night"), scores(opened, [dusk], "again"))
    assert opened.query(tmp_path / "new" / "202.png", k=1, calibration="night")[0].id == 16


def test_an_unsaved_map_can_be_calibrated_and_saved(place_map, camera, dusk, tmp_path):
    place_map.calibrate(camera, name="night")
    place_map.save(tmp_path / "m.tfa")
    assert hits(reopened(tmp_path / "m.tfa"), dusk) == hits(place_map, dusk, "night")


def test_refit_drops_calibrations_and_says_how_to_make_them_again(saved, camera, dusk, cache):
    editor = reopened(saved)
    for name in ("day", "night"):
        editor.calibrate(camera, name=name)
    editor.refit()
    [note] = editor.notes
    assert "day, night are dropped" in note
    assert f"tfa calibrate {saved} PHOTOS --name night" in note
    for opened in (editor, reopened(saved)):
        assert opened.calibrations == []
        assert opened.state.active == "none"
    editor.calibrate(camera)
    assert len(list(saved.iterdir())) == 9  # a head and a gallery more than a new map
    assert editor.query(dusk, k=1)[0].id == 5


def test_the_head_is_rebuilt_from_the_photos_when_the_cache_is_lost(saved, town, camera, tmp_path, monkeypatch, cache):
    editor = reopened(saved)
    editor.add([photo(tmp_path / "more.png", 30)])
    editor.remove([2])
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "empty"))
    assert reopened(saved).calibrate(camera).notes == []
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "empty2"))
    (town / "02.png").unlink()
    with pytest.raises(BadMap, match=r"02\.png.*restore them, or .*tfa refit .*including removed ones"):
        reopened(saved).calibrate(camera, name="b")
    photo(town / "02.png", 900)
    with pytest.raises(BadMap, match=r"02\.png is not the photo.*restore it"):
        reopened(saved).calibrate(camera, name="b")
    reopened(saved).refit()  # as the error advises
    assert reopened(saved).calibrate(camera, name="b").notes == []


def test_a_calibration_starts_from_the_words_of_the_map(saved, town, camera, cache, monkeypatch):
    def refused(*_, **__):
        raise AssertionError("a calibration fits no vocabulary and takes no decision of the database-only head")

    monkeypatch.setattr(pipeline, "fit_vocabularies", refused)
    monkeypatch.setattr(pipeline, "decide_from_database", refused)
    editor = reopened(saved, cache)
    assert editor.calibrate(camera).notes == []
    monkeypatch.undo()
    monkeypatch.setenv("TFA_CACHE", str(cache.folder.parent))
    expected = pipeline.calibrate(
        tfa.fit(tfa.encode(town, FakeEncoder()).tokens, SPEC), tfa.encode(camera, FakeEncoder()).tokens, score=True
    )
    assert editor.state.chosen().decisions == expected.decisions.to_dict()
    assert editor.state.chosen().evidence == expected.evidence.to_dict()


def test_words_given_from_outside_are_kept_for_calibrations(town, camera, cache, tmp_path):
    encoded = tfa.encode(town, FakeEncoder())
    centers = [np.random.default_rng(s).normal(size=(6, 12)) for s in range(3)]
    given = PlaceMap.from_head(tfa.fit(encoded.tokens, centers=centers), encoded, FakeEncoder())
    given.save(tmp_path / "given.tfa")
    opened = reopened(tmp_path / "given.tfa", cache)
    np.testing.assert_array_equal(opened.state.vocabularies, centers)
    opened.calibrate(camera)
    np.testing.assert_array_equal(opened.state.chosen().stored.scorer.sides[0].centers, np.float32(centers[0]))


# --- files -------------------------------------------------------------------------------------------------------


def test_the_global_token_is_stored_once_in_an_ensemble(town, camera, dusk, cache, tmp_path, monkeypatch):
    mixture_with_cls(monkeypatch)
    built = PlaceMap.build(town, head="paper", encoder=FakeEncoder(), spec=SPEC, map_spec=BuildOptions(ensemble=True))
    assert built.info().to_dict()["decisions"]["admit_cls"]
    built.calibrate(camera)
    built.save(tmp_path / "m.tfa")
    built.add([photo(tmp_path / "new.png", 40)])
    opened = reopened(tmp_path / "m.tfa")
    for place_map in (built, opened):
        for head in place_map.state.heads:
            parts = [part for part in head.stored.scorer.terms if part.side == -1]
            assert len(parts) == 3
            assert all(
                part.gallery.chunks[chunk] is parts[0].gallery.chunks[chunk] for part in parts for chunk in (0, 1)
            )
    layout = opened.state.chosen().stored.layout()["terms"]
    assert [entry["same_as"] is None for entry in layout if entry["side"] == -1] == [True, False, False]
    for name in ("none", "target"):
        assert hits(opened, dusk, name) == hits(built, dusk, name)


def test_an_addition_keeps_the_files_of_every_head(saved, camera, tmp_path, cache):
    editor = reopened(saved)
    editor.calibrate(camera)
    before = {name: (saved / name).stat().st_mtime_ns for name in os.listdir(saved) if name != "map.json"}
    editor.add([photo(tmp_path / "x.png", 70)])
    for name, time in before.items():
        assert (saved / name).stat().st_mtime_ns == time
    assert len(set(os.listdir(saved)) - set(before)) == 5  # header, image list, tokens, a gallery file for each head


def test_a_calibration_that_cannot_be_written_changes_nothing(saved, camera, dusk, cache, monkeypatch):
    editor = reopened(saved)
    with monkeypatch.context() as patch:
        patch.setattr(writer, "write_json", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            editor.calibrate(camera)
    assert editor.calibrations == reopened(saved).calibrations == []
    editor.calibrate(camera)
    assert reopened(saved).calibrations == ["target"]


@pytest.mark.kill
@pytest.mark.parametrize("edit", ["calibrate", "add"])
def test_a_kill_before_the_header_is_replaced_changes_nothing(saved, camera, dusk, cache, tmp_path, edit):
    editor = reopened(saved)
    editor.calibrate(camera, name="night", score=False)
    before = hits(editor, dusk)
    new = photo(tmp_path / "x.png", 70)
    edits = {"calibrate": "opened.calibrate(sys.argv[2], name='night')", "add": "opened.add([sys.argv[3]])"}
    assert killed_before_the_header(saved, edits[edit], camera, new) == -9
    opened = reopened(saved)
    assert hits(opened, dusk) == before
    opened.add([new])  # and the next edit works, and tidies
    header = json.loads((saved / "map.json").read_text())
    assert {*os.listdir(saved)} == {"map.json", *(entry["name"] for entry in header["files"])}


def test_a_header_whose_heads_do_not_fit_is_refused(saved):
    header = json.loads((saved / "map.json").read_text())
    header.pop("digest")
    header["active"] = "night"
    (saved / "map.json").write_text(json.dumps({**header, "digest": hash_json(header)}))
    with pytest.raises(BadMap, match="active 'night'"):
        PlaceMap.load(saved)


# --- telling -----------------------------------------------------------------------------------------------------


def test_info_tells_each_calibration(saved, camera, cache):
    editor = reopened(saved)
    editor.calibrate(camera, name="night")
    info = json.loads(json.dumps(reopened(saved).info().to_dict()))
    assert info["data_used"] == "database"
    [entry] = info["calibrations"]
    assert set(entry) == {
        "name", "active", "calibration", "decisions", "reasons", "evidence", "data_used", "verification",
        "differences", "decided",
    }  # fmt: skip
    assert (entry["name"], entry["active"], entry["data_used"]) == ("night", True, "target")
    assert entry["differences"][-1].startswith("scores are calibrated")
    assert "reasons" not in entry["evidence"]


BEFORE = {"assignment": "soft", "carrier": "partial", "admit_cls": False, "c": 0.25, "beta": 0.5}
AFTER = {
    "route": "soft", "soft_weight": 1.0, "strengths": {"soft": {"c": 0.25, "beta": 0.5}}, "carrier": "partial",
    "admit_cls": False, "local_weight": 0.4, "score_calibrated": False,
}  # fmt: skip
BOTH = {"hard": {"c": 0.1, "beta": 0.5}, "soft": {"c": 0.25, "beta": 0.5}}


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, {}, []),
        (
            {},
            {"route": "hard", "strengths": {"hard": {"c": 0.25, "beta": 0.5}}},
            ["assignment is hard instead of soft"],
        ),
        (
            {},
            {"route": "mixture", "soft_weight": 0.25, "strengths": BOTH, "carrier": "adaptive"},
            [
                "hard and soft assignment are mixed, soft with weight 0.25, instead of soft only",
                "the carrier is adaptive instead of partial",
                "the strengths of hard are c 0.100 and β 0.500 instead of c 0.250 and β 0.500",
            ],
        ),
        (
            {"c": 0.5},
            {},
            [
                "the strengths of soft are c 0.250 and β 0.500 instead of c 0.500 and β 0.500 "
                "(the partial carrier does not use them)"
            ],
        ),
        ({}, {"admit_cls": True}, ["the global token is used with weight 0.60 instead of left out"]),
        ({"admit_cls": True}, {}, ["the global token is left out instead of used"]),
        ({"admit_cls": True}, {"admit_cls": True}, ["the global token has weight 0.60 instead of 0.50"]),
        ({"admit_cls": True}, {"admit_cls": True, "local_weight": 0.5}, []),
        (
            {},
            {"score_calibrated": True},
            ["scores are calibrated: each image's mean score on the calibration photos is subtracted"],
        ),
    ],
)
def test_differences_in_words(before, after, told):
    assert list_differences({**BEFORE, **before}, {**AFTER, **after}) == told
