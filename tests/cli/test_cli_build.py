"""`tfa build`: what is checked before the work, what is passed on, what is printed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tfa.base.config import HeadSpec


def test_defaults_are_passed_on(run, stub, folder):
    assert run("build", "photos", "--out", "new.tfa").exit_code == 0
    assert stub.given("build") == {
        "photos": Path("photos"), "encoder": "dinov2-s14-focus", "weights": None, "positions": None,
        "skip_bad": False, "spec": HeadSpec(), "ensemble": False, "storage": "float16", "verify": True, "fast": False,
        "device": "cpu", "threads": None, "batch_size": 8, "progress": True,
    }  # fmt: skip
    assert stub.given("save") == {"path": Path("new.tfa"), "overwrite": False}


def test_every_option_is_passed_on(run, stub, folder):
    (folder / "w.pth").touch()
    options = "--encoder dinov2-b14@224 --weights w.pth --positions where.csv --skip-bad --ensemble --storage float32 "
    options += "--no-verify --fast --words 8 --device cuda --threads 2 --batch-size 4 --force --quiet"
    assert run("build", "photos", "near.jpg", "--out", "town.tfa", *options.split()).exit_code == 0
    assert stub.given("build") == {
        "photos": [Path("photos"), Path("near.jpg")], "encoder": "dinov2-b14@224", "weights": Path("w.pth"),
        "positions": Path("where.csv"), "skip_bad": True, "spec": HeadSpec(words=8), "ensemble": True,
        "storage": "float32", "verify": False, "fast": True, "device": "cuda", "threads": 2, "batch_size": 4,
        "progress": False,
    }  # fmt: skip
    assert stub.given("save")["overwrite"] is True


def test_the_report_gives_decisions_reasons_times_notes_and_skipped_files(run, stub, folder):
    result = run("build", "photos", "--out", "new.tfa")
    for text in (
        "built new.tfa", "92 images, 88 with a position", "dinov2-s14-focus@322", "hard", "soft agrees more",
        "adaptive", "widest support", "admitted", "CLS adds information", "c 0.312, β 0.500", "12.3 MB",
        "67,712 bytes per image", "must cover more of the map",
        "took encode 12.3 s, fit 5.0 s", "tfa query new.tfa PHOTO",
    ):  # fmt: skip
        assert text in result.stdout
    assert "note: 2 rows of where.csv match no image" in result.stderr
    assert "1 file skipped:\n  photos/[b]roken.jpg: image file is truncated" in result.stderr


def test_json_is_alone_on_standard_output(run, stub, folder):
    result = run("build", "photos", "--out", "new.tfa", "--json")
    facts = json.loads(result.stdout)
    assert facts["decisions"]["carrier"] == "adaptive"
    assert facts["skipped"] == [{"file": "photos/[b]roken.jpg", "reason": "image file is truncated"}]
    assert "note:" in result.stderr
    assert stub.given("build")["progress"] is False


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--out", "town.tfa"], "town.tfa exists already"),
        (["--out", "photos", "--force"], "not named like a map"),
        (["--out", "near.jpg/new.tfa"], "near.jpg is a file, not a folder"),
        (["--out", "near.jpg/deep/new.tfa"], "near.jpg is a file, not a folder"),
        (["--out", "new.tfa", "--positions", "near.jpg"], "near.jpg is not UTF-8 text"),
    ],
)
def test_what_cannot_end_well_is_not_begun(run, stub, folder, words, complaint):
    result = run("build", "photos", *words)
    assert result.exit_code == 1
    assert complaint in result.stderr
    assert stub.calls == []


def test_a_folder_that_may_not_be_written_is_refused(run, stub, folder, monkeypatch):
    # Not by a real mode: tests may run as the superuser, who may write anywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    result = run("build", "photos", "--out", "locked/new.tfa")
    assert result.exit_code == 1
    assert "no permission" in result.stderr
    assert stub.calls == []


def test_out_may_be_in_a_folder_that_does_not_exist_yet(run, stub, folder, monkeypatch):
    monkeypatch.setattr(stub, "save", lambda self, path, overwrite: None)
    assert run("build", "photos", "--out", "maps/2026/new.tfa").exit_code == 0
