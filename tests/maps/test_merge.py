"""Merged maps: one head for all images, shared places, and errors."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo, reopened
from tfa.errors import BadMap, BadSpec
from tfa.maps import PlaceMap
from tfa.maps.merge import keep_confirmed, merge_maps, note_dropped_calibrations
from tfa.maps.upkeep import Confirmed, make_image_key
from tfa.photos.token_cache import TokenCache
from tfa.types import BuildOptions, EncoderOptions

KEPT = BuildOptions(head="second-order", rerank=True)


def built(folder, cache, positions=None):
    options = EncoderOptions(cache=cache)
    made = PlaceMap.build(folder, encoder=FakeEncoder(), spec=SPEC, map_spec=KEPT, options=options, positions=positions)
    made.save(folder.with_suffix(".tfa"))
    return made


@pytest.fixture
def days(tmp_path, cache):
    """A map of places 0 to 11, and one of places 8 to 17 on another day; 10.png is one file in both."""
    for place in range(12):
        photo(tmp_path / "monday" / f"{place:02d}.png", place)
    for place in range(8, 18):
        photo(tmp_path / "friday" / f"{place:02d}.png", place, light=1.0 if place == 10 else 0.8)
    (tmp_path / "where.csv").write_text("file,x,y\n10.png,10,0\n17.png,17,0\n")
    monday = built(tmp_path / "monday", cache)
    friday = built(tmp_path / "friday", cache, tmp_path / "where.csv")
    return SimpleNamespace(monday=monday, friday=friday, folder=tmp_path, cache=cache)


def test_a_merged_map_is_that_of_all_photos(days):
    merged, report = merge_maps([days.monday, days.friday])
    whole = PlaceMap.build(
        [days.folder / "monday", *sorted(p for p in (days.folder / "friday").iterdir() if p.name != "10.png")],
        encoder=FakeEncoder(), spec=SPEC, map_spec=KEPT, options=EncoderOptions(cache=days.cache),
    )  # fmt: skip
    asked = photo(days.folder / "dusk.png", 14, light=0.7)
    hits = [hit.to_dict() for hit in merged.query(asked)]
    assert hits == [
        hit.to_dict() | {"position": one["position"]} for hit, one in zip(whole.query(asked), hits, strict=True)
    ]
    assert [(record.id, record.digest) for record in merged.images] == [(r.id, r.digest) for r in whole.images]
    assert all(record.fitted for record in merged.images)
    assert [part.photos for part in report.maps] == [12, 9]
    assert [part.repeated for part in report.maps] == [0, 1]
    assert "merged: 1" in " ".join(report.notes)


def test_photos_keep_positions_and_get_the_session_of_their_map(days):
    days.friday.add(photo(days.folder / "late.png", 30), session="friday night")
    merged, report = merge_maps([days.monday, days.friday])
    merged.save(days.folder / "week.tfa")
    images = reopened(days.folder / "week.tfa").images
    assert [one.session for one in images] == ["monday"] * 12 + ["friday"] * 9 + ["friday night"]
    assert report.maps[1].sessions == ["friday", "friday night"]
    placed = {one.path.rsplit("/", 1)[-1]: one.position.x for one in images if one.position is not None}
    assert placed == {"10.png": 10, "17.png": 17}  # Monday's 10.png had none
    found = merged.query(days.folder / "monday" / "09.png", k=30, sessions=("friday",))
    assert {hit.id for hit in found} == set(range(12, 21))


def test_photos_that_show_places_of_both_are_found_by_verification(days):
    _, report = merge_maps([days.monday, days.friday])
    part = report.maps[1]
    shared = {one.image.rsplit("/", 1)[-1]: one.shows.rsplit("/", 1)[-1] for one in part.shared}
    assert part.compared == 9
    assert shared.items() <= {f"{place:02d}.png": f"{place:02d}.png" for place in (8, 9, 11)}.items()
    assert shared
    assert all(one.inliers > 0 for one in part.shared)
    assert f"friday: {len(shared)} of 9 photos show places" in str(part)


def test_all_photos_that_are_lost_are_named_and_nothing_is_merged(days):
    shutil.rmtree(days.folder / "cache")
    gone = [days.folder / "monday" / "03.png", days.folder / "friday" / "16.png"]
    for path in gone:
        path.unlink()
    photo(days.folder / "friday" / "17.png", 55)
    maps = [reopened(days.folder / name, TokenCache()) for name in ("monday.tfa", "friday.tfa")]
    with pytest.raises(BadMap, match="3 photos are not in the token cache") as refused:
        merge_maps(maps)
    named = [line.strip() for line in refused.value.lines[1:]]
    assert named == [str(path) for path in (*gone, days.folder / "friday" / "17.png")]


def test_what_cannot_be_merged_is_refused(days):
    with pytest.raises(BadSpec, match="two or more"):
        merge_maps([days.monday])
    strange = reopened(days.folder / "friday.tfa")
    strange.state.encoder["fingerprint"] = "0" * 32
    with pytest.raises(BadMap, match="merged maps must share an encoder"):
        merge_maps([days.monday, strange])


def test_calibrations_that_are_dropped_are_named_with_their_command(days, camera):
    days.friday.calibrate(camera, name="dark", score=False)
    [note] = note_dropped_calibrations([days.monday, days.friday], days.folder / "week.tfa")
    assert "calibration dark is dropped" in note
    assert "--name dark" in note


def test_what_was_confirmed_is_read_back_and_joined(days):
    images = days.monday.images
    kept = Confirmed().watched(images, 100)
    kept.last[make_image_key(images[2])] = 150
    kept.write(days.folder / "monday.tfa")
    assert Confirmed.read(days.folder / "monday.tfa") == kept
    merged, _ = merge_maps([days.monday, days.friday])
    merged.save(days.folder / "week.tfa")
    keep_confirmed([days.monday, days.friday], merged)
    assert Confirmed.read(days.folder / "week.tfa").last == kept.last
    later = Confirmed({make_image_key(images[2]): 90}, {make_image_key(images[2]): 170, make_image_key(images[3]): 120})
    joined = kept.with_later(later)
    assert (joined.since_of(images[2]), joined.last_of(images[2]), joined.last_of(images[3])) == (90, 170, 120)
    fewer = joined.watched([*images[:2], *days.friday.images[-1:]], 500)
    assert sorted(fewer.since.values()) == [100, 100, 500]
    assert fewer.last == {}
    reopened(days.folder / "monday.tfa").remove([0])  # an edit leaves the file alone
    assert Confirmed.read(days.folder / "monday.tfa") == kept
