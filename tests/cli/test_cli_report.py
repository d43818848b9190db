"""`tfa report`: the page, the summary, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fakes import FakeEncoder, random_image
from tfa.maps import PlaceMap
from tfa.types import HeadSpec


@pytest.fixture
def town(fake_encoder: Path) -> Path:
    Path("photos").mkdir()
    for number in range(8):
        random_image(number).save(f"photos/{number}.png")
    Path("photos/copy.png").write_bytes(Path("photos/2.png").read_bytes())
    PlaceMap.build("photos", head="paper", encoder=FakeEncoder(), spec=HeadSpec(words=4)).save("town.tfa")
    return fake_encoder


@pytest.mark.parametrize(
    ("words", "written", "printing"),
    [
        (["report", "town.tfa", "-o", "page.html"], "page.html", "tfa.cli.info.say"),
        (["query", "town.tfa", "photos/1.png", "--montage", "hits.png"], "hits.png", "tfa.cli.query.show_answers"),
        (
            ["evaluate", "town.tfa", "photos", "--ground-truth", "truth.json", "--html", "page.html"],
            "page.html",
            "tfa.cli.evaluate.show_evaluation",
        ),
    ],
)
def test_a_file_is_there_even_if_nobody_reads_what_is_printed(run, town, monkeypatch, words, written, printing):
    """As with `| head -1`."""

    def nobody(*_given, **_named):
        raise BrokenPipeError

    Path("truth.json").write_text(json.dumps({f"{number}.png": [f"{number}.png"] for number in range(8)}))
    monkeypatch.setattr(printing, nobody)
    assert run(*words).exit_code == 141
    assert Path(written).stat().st_size > 1000


def test_the_page_is_written_and_the_advice_printed(run, town):
    result = run("report", "town.tfa", "-o", "new/report.html")
    assert result.exit_code == 0, result.stderr
    assert "9 images; " in result.stdout
    assert "Remove near duplicates" in result.stdout
    assert "wrote new/report.html" in result.stderr
    assert Path("new/report.html").read_text("utf-8").startswith("<!doctype html>")


def test_json_is_all_of_it_and_nothing_else(run, town):
    told = json.loads(run("report", "town.tfa", "--json").stdout)
    assert told["map"]["images"] == 9
    assert ["2.png", "copy.png"] in [[image["image"] for image in group["images"]] for group in told["duplicates"]]
    assert "evidence" not in told
    assert not Path("report.html").exists()


def test_what_cannot_be_reported_is_an_error(run, town):
    assert "no map at absent.tfa" in run("report", "absent.tfa").stderr
    assert run("report", "town.tfa", "-o", "photos/2.png/report.html").exit_code == 1
    assert "$ tfa report town.tfa -o report.html" in run("report", "--help").stdout
