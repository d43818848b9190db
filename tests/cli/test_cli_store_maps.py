"""The command line with the URL of a map in a store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo
from tests.maps.store.stores import new_url
from tfa.maps import PlaceMap
from tfa.maps import map as map_module

PLACES = 14


@pytest.fixture
def url(tmp_path, monkeypatch):
    """A map in a store, and an encoder that needs no weights."""
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(map_module, "load_encoder", lambda *_, **__: FakeEncoder())
    for place in range(PLACES):
        photo(tmp_path / "town" / f"@{place}@{place}@.png", place)
    small = PlaceMap.build(tmp_path / "town", head="second-order", encoder=FakeEncoder(), spec=SPEC)
    address = new_url("memory://test{n}")
    small.publish(address, dims=64)
    return address


def test_verbs_take_a_url_where_they_take_a_map(run, url, tmp_path):
    dusk = photo(tmp_path / "dusk.png", 5, light=0.8)
    camera = [photo(tmp_path / "camera" / f"{place}.png", place, light=0.7) for place in range(10)]

    def answered(*options):
        result = run("query", url, dusk, "--json", "--no-rerank", *options)
        assert result.exit_code == 0, result.output
        return [hit["id"] for hit in json.loads(result.stdout)["answers"][0]["hits"]]

    best = answered()[0]
    assert "images: 14 (14 with a position)" in run("info", url).stdout
    assert "version 1 in memory, 64 dimensions per image; no earlier version" in run("info", url).stdout
    assert json.loads(run("info", url, "--json").stdout)["version"] == 1
    added = run("add", url, photo(tmp_path / "new.png", 40), "--session", "night", "--json")
    assert json.loads(added.stdout)["added"] == [PLACES]
    assert answered("--session", "night") == [PLACES]
    assert best not in answered("--region", "50,50,60,60")
    assert "removed 1 image (id 14)" in run("remove", url, PLACES).stdout
    assert "calibrated memory://" in run("calibrate", url, camera[0].parent, "--name", "night").stdout
    assert json.loads(run("calibrate", url, "--activate", "none", "--json").stdout)["active"] == "none"
    rolled = run("rollback", url)
    assert (rolled.exit_code, "rolled back the last change" in rolled.stdout) == (0, True)
    assert json.loads(run("rollback", url, "--json").stdout)["active"] == "none"
    copied = run("snapshot", url, "--to", f"{url}2", "--json")
    assert json.loads(copied.stdout) == {"url": f"{url}2", "version": 1, "images": PLACES}
    assert answered() == [
        hit["id"]
        for hit in json.loads(run("query", f"{url}2", dusk, "--json", "--no-rerank").stdout)["answers"][0]["hits"]
    ]
    assert "copied memory://" in run("snapshot", f"{url}2", "--to", url).stdout
    report = run("report", url, "--photos", dusk, "--json")
    assert json.loads(report.stdout)["map"]["images"] == PLACES


def test_several_photos_are_answered_one_by_one(run, url, tmp_path):
    walk = [photo(tmp_path / "walk" / f"{place}.png", place, light=0.8) for place in range(3)]
    answers = json.loads(run("query", url, tmp_path / "walk", "--json").stdout)["answers"]
    assert [answer["hits"][0]["position"]["x"] for answer in answers] == [0, 1, 2]
    refused = run("query", url, "--sequence", walk[0].parent)
    assert refused.exit_code != 0
    assert "a map in a store cannot follow a camera" in " ".join(refused.stderr.split())


def test_recall_of_a_store_is_that_of_the_folder_it_was_made_from(run, url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    PlaceMap.build(tmp_path / "town", head="second-order", encoder=FakeEncoder(), spec=SPEC).save("town.tfa")
    for place in range(4):
        photo(Path("walk") / f"{place}.png", place, light=0.8)
    Path("truth.csv").write_text("file,x,y\n0.png,0,0\n1.png,1,1\n2.png,90,90\n3.png,3,3\n")
    words = ("walk", "--ground-truth", "truth.csv", "--radius", 1)
    heads = []
    for name in ("town.tfa", url):
        result = run("evaluate", name, *words, "--html", "page.html", "--json")
        assert result.exit_code == 0, result.output
        heads += json.loads(result.stdout)["heads"]
    assert heads[0]["recalls"] == heads[1]["recalls"]
    assert [mistake["image"] for mistake in heads[0]["mistakes"]] == [one["image"] for one in heads[1]["mistakes"]]
    assert heads[0]["recalls"]["1"] == 0.75
    for flag in ("--online", "--sequence"):
        refused = run("evaluate", url, *words, flag)
        assert refused.exit_code == 2
        assert "a map in a store cannot follow a camera" in " ".join(refused.stderr.split())
    assert run("evaluate", url, *words, "--no-online").exit_code == 0


def test_a_file_of_answers_is_checked_against_all_positions_of_the_map(run, url, tmp_path, monkeypatch):
    """Not only against those of the sample that the head was fitted on."""
    monkeypatch.chdir(tmp_path)
    for place in range(PLACES):
        photo(tmp_path / "plain" / f"{place}.png", place)
    small = PlaceMap.build(tmp_path / "plain", head="second-order", encoder=FakeEncoder(), spec=SPEC)
    bare = new_url("memory://test{n}")
    small.publish(bare, dims=64)
    new = photo(tmp_path / "new.png", 40)
    words = ("query", bare, new, "--out", "a.gpx")
    assert "a.gpx would be empty" in " ".join(run(*words).stderr.split())
    (tmp_path / "where.csv").write_text("file,lat,lon\nnew.png,52.5,13.4\n")
    assert run("add", bare, new, "--positions", "where.csv").exit_code == 0
    assert all(image.position is None for image in PlaceMap.load(bare).state.images)  # the sample
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    assert "wrote a.gpx" in result.stderr
    metric = run("query", url, new, "--out", "b.gpx")  # whose positions are in meters
    assert metric.exit_code == 1
    assert "cannot hold positions in meters" in " ".join(metric.stderr.split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("refit",), "cannot be refitted in place"),
        (("explain", "{photo}"), "needs a map in a folder"),
        (("export", "-o", "{folder}/town.npz"), "needs a map in a folder"),
        (("snapshot", "--to", "town.tfa"), "is not a map URL"),
    ],
)
def test_what_needs_a_folder_is_refused_in_a_sentence(run, url, tmp_path, words, sentence):
    given = {"photo": photo(tmp_path / "dusk.png", 5), "folder": tmp_path}
    refused = run(words[0], url, *(word.format(**given) for word in words[1:]))
    assert refused.exit_code != 0
    assert sentence in " ".join(refused.stderr.split())


def test_a_folder_keeps_sessions_but_no_versions(run, url, tmp_path):
    PlaceMap.build(tmp_path / "town", head="second-order", encoder=FakeEncoder(), spec=SPEC).save(tmp_path / "t.tfa")
    assert "has no earlier version" in run("rollback", tmp_path / "t.tfa").stderr
    asked = ("query", tmp_path / "t.tfa", photo(tmp_path / "n.png", 40), "--json", "--session", "night")
    assert "no image of this map has a session" in " ".join(run(*asked).stderr.split())
    assert run("add", tmp_path / "t.tfa", tmp_path / "n.png", "--session", "night").exit_code == 0
    [answer] = json.loads(run(*asked).stdout)["answers"]
    assert [Path(hit["image"]).name for hit in answer["hits"]] == ["n.png"]


def test_a_password_reaches_the_store_and_no_screen(run, url):
    secret = url.replace("memory://", "memory://maps:secret@")
    copied = run("snapshot", url, "--to", secret)
    assert copied.exit_code == 0, copied.output
    shown = run("info", secret)
    assert shown.exit_code == 0, shown.output
    assert "memory://maps:***@" in shown.stdout
    assert "secret" not in copied.output + shown.output
    wrong = run("info", secret.replace("secret", "another"))
    assert wrong.exit_code == 1
    assert "another" not in wrong.output
