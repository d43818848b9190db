"""`tfa build`: early validation, arguments and output."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tfa.maps import PlaceMap
from tfa.photos.find_positions import PositionSources
from tfa.types import BuildOptions, EncoderOptions, HeadSpec, RerankSpec


def test_defaults_are_passed_on(run, spy, folder):
    assert run("build", "photos", "--out", "new.tfa").exit_code == 0
    assert spy.given("build") == {
        "photos": Path("photos"), "encoder": "dinov2-s14-focus", "positions": PositionSources(), "spec": HeadSpec(),
        "map_spec": BuildOptions(), "options": EncoderOptions(), "progress": True,
    }  # fmt: skip
    assert spy.given("save") == {"path": Path("new.tfa"), "overwrite": False}


def test_every_option_is_passed_on(run, spy, folder):
    (folder / "w.pth").touch()
    options = "--encoder dinov2-b14@224 --weights w.pth --positions where.csv --skip-bad --set map.ensemble=yes "
    options += "--set map.storage=float32 --no-rerank --dims 64 --precision int8 --set head.words=8 --device cuda "
    options += "--set encoder.threads=2 --set encoder.batch_size=4 --force --quiet"
    assert run("build", "photos", "near.jpg", "--out", "town.tfa", *options.split()).exit_code == 0
    assert spy.given("build") == {
        "photos": [Path("photos"), Path("near.jpg")], "encoder": "dinov2-b14@224",
        "positions": PositionSources(csv=Path("where.csv")), "spec": HeadSpec(words=8), "progress": False,
        "map_spec": BuildOptions(storage="float32", ensemble=True, rerank=False, dims=64),
        "options": EncoderOptions(
            weights=Path("w.pth"), device="cuda", threads=2, precision="int8", batch_size=4, skip_bad=True
        ),
    }  # fmt: skip
    assert spy.given("save")["overwrite"] is True


def test_a_map_is_searched_by_fewer_numbers_if_asked(run, folder):
    result = run("build", "photos", "--out", "new.tfa", "--dims", "8")
    full = PlaceMap.load("new.tfa").info().to_dict()["reduction"]["full_dims"]
    told = f"search: 8 dimensions, 12 bytes per image; the best 100 are rescored with all {full}"
    assert told in " ".join(result.stdout.split())
    assert told in " ".join(run("info", "new.tfa").stdout.split())
    assert run("query", "new.tfa", "photos", "--no-online").exit_code == 0
    refused = run("build", "photos", "--out", "other.tfa", "--dims", "1")
    assert refused.exit_code == 2
    assert "--dims" in refused.stderr


def test_small_patches_are_passed_on(run, spy, folder):
    assert run("build", "photos", "--out", "new.tfa", "--set", "rerank.patches=small").exit_code == 0
    assert spy.given("build")["map_spec"] == BuildOptions(rerank=RerankSpec(patches="small"))
    assert "48 bytes of patches per image" in run("info", "new.tfa").stdout  # two bits of 12 numbers of 16 patches


def test_the_summary_is_short_and_notes_name_skipped_files(run, folder):
    result = run("build", "photos", "bad.jpg", "--out", "new.tfa", "--positions", "where.csv", "--skip-bad")
    lines = result.stdout.splitlines()
    assert lines[:2] == ["built new.tfa", "  images: 14 (3 with a position)"]
    assert re.fullmatch(r"  size: [\d.]+ kB, stored as int7", lines[2])
    reranked = PlaceMap.load("new.tfa").info().answers.reranked
    assert lines[3] == f"  reranking: {'on' if reranked else 'off'} (192 bytes of patches per image)"
    assert lines[4:] == ["query it with: tfa query new.tfa PHOTO"]
    assert "note: 2 rows of where.csv match no image" in result.stderr
    assert "1 file skipped:\n  bad.jpg cannot be opened" in result.stderr


def test_json_is_alone_on_standard_output(run, spy, folder):
    Path("bad.jpg").rename("[b]ad.jpg")
    result = run("build", "photos", "[b]ad.jpg", "--out", "new.tfa", "--positions", "where.csv", "--skip-bad", "--json")
    facts, kept = json.loads(result.stdout), PlaceMap.load("new.tfa").info().to_dict()
    [skipped] = facts.pop("skipped")
    assert skipped["file"] == "[b]ad.jpg"
    assert "cannot be opened" in skipped["reason"]
    assert facts == {**kept, "notes": facts["notes"]}
    assert all(f"note: {text}\n" in result.stderr for text in facts["notes"])
    assert len(facts["notes"]) == 2


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--out", "town.tfa"], "town.tfa exists already"),
        (["--out", "photos", "--force"], "--force does not replace photos"),
        (["--out", "near.jpg/new.tfa"], "near.jpg is a file, not a folder"),
        (["--out", "near.jpg/deep/new.tfa"], "near.jpg is a file, not a folder"),
        (["--out", "new.tfa", "--positions", "near.jpg"], "near.jpg: it is not a text file: NUL byte"),
    ],
)
def test_what_cannot_end_well_is_not_begun(run, spy, folder, words, complaint):
    result = run("build", "photos", *words)
    assert result.exit_code == 1
    assert complaint in result.stderr
    assert spy.calls == []


def test_settings_that_exclude_each_other_are_usage_errors(run, spy, folder):
    result = run("build", "photos", "--out", "new.tfa", "--set", "rerank.patches=small", "--no-rerank")
    assert result.exit_code == 2
    assert "rerank.patches needs stored patches, but --no-rerank stores none" in result.stderr
    assert spy.calls == []


def test_a_setting_is_checked_by_its_field(run, spy, folder):
    result = run("build", "photos", "--out", "new.tfa", "--set", "rerank.patches=tiny")
    assert result.exit_code == 2
    assert "rerank.patches: 'tiny' is unknown; use full or small" in result.stderr
    assert spy.calls == []


def test_a_folder_that_may_not_be_written_is_refused(run, spy, folder, monkeypatch):
    # Not by a real mode: tests may run as the superuser, who may write anywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    result = run("build", "photos", "--out", "locked/new.tfa")
    assert result.exit_code == 1
    assert "no permission" in result.stderr
    assert spy.calls == []


def test_out_may_be_in_a_folder_that_does_not_exist_yet(run, folder):
    assert run("build", "photos", "--out", "maps/2026/new.tfa").exit_code == 0
    assert len(PlaceMap.load("maps/2026/new.tfa")) == 14


# --- as published --------------------------------------------------------------------------------------------------


def test_paper_builds_the_published_system_and_names_it(run, spy, folder, monkeypatch):
    monkeypatch.setenv("TFA_ENCODER", "dinov2-s14")  # only --encoder overrides the paper's
    result = run("build", "photos", "--out", "new.tfa", "--paper")
    assert spy.given("build") == {
        "photos": Path("photos"), "encoder": "dinov2-b14@322", "positions": PositionSources(),
        "map_spec": BuildOptions.paper(),
        "options": EncoderOptions(), "progress": True,
    }  # fmt: skip
    assert "  system: TFA as published, with fake@28 instead of dinov2-b14@322\n" in result.stdout
    assert "  system: TFA as published" in run("info", "new.tfa").stdout
    spy.calls.clear()
    run("build", "photos", "--out", "other.tfa", "--paper", "--encoder", "fake")
    assert spy.given("build")["encoder"] == "fake"


def test_photos_of_a_folder_are_queried_independently(run, spy, folder):
    run("build", "photos", "--out", "new.tfa", "--paper")
    alone = json.loads(run("query", "new.tfa", "camera", "--no-online", "--json").stdout)
    assert json.loads(run("query", "new.tfa", "camera", "--json").stdout) == alone
    adapted = json.loads(run("query", "new.tfa", "camera", "--online", "--json").stdout)
    assert "adaptation_photos" in adapted["answers"][1]
    assert "adaptation_photos" not in alone["answers"][1]
    result = run("calibrate", "new.tfa", "camera", "--json")
    assert json.loads(result.stdout)["decisions"]["score_calibrated"] is False


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--head", "paper"], "excludes --head"),
        (["--rerank"], "excludes --rerank"),
        (["--dims", "8"], "excludes --dims"),
        (["--precision", "int8"], "excludes --precision"),
        (["--set", "map.storage=int7"], "excludes map.storage"),
        (["--set", "head.words=8"], "excludes head.words"),
        (["--set", "rerank.patches=small"], "excludes rerank.patches"),
    ],
)
def test_paper_excludes_options_that_change_it(run, spy, folder, more, message):
    result = run("build", "photos", "--out", "new.tfa", "--paper", *more)
    assert result.exit_code != 0
    assert message in result.stderr
    assert not spy.calls


def test_paper_needs_a_folder(run, spy, folder):
    result = run("build", "photos", "--out", "postgres://localhost/db/town", "--paper")
    assert result.exit_code != 0
    assert "--paper needs a map in a folder" in result.stderr
    assert not spy.calls
