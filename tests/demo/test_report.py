"""The demo report is self-contained: escaped text, embedded pictures, correct numbers."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from tfa.demo.pictures import MatchPicture, write_demo_report
from tfa.errors import TfaError
from tfa.report.html import TableRow

VOID = {"meta", "img", "br"}
EMPTY = {"title": "t", "headline": "", "intro": [], "recalls": [], "montage": None, "matches": []}


class Reader(HTMLParser):
    """Collects text and attributes, and checks that every tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert not reader.open
    return reader


@pytest.fixture
def report(tmp_path: Path) -> Path:
    Image.new("RGB", (40, 30), "#336699").save(tmp_path / "montage.png")
    write_demo_report(
        tmp_path / "report.html",
        title="A <town> & its map",
        headline="",
        recalls=[
            TableRow("hard VLAD <b>", {"R@1": (80.0, None), "R@5": (95.6, None)}, {"fitted on": "<img src=x>"}),
            TableRow("TFA", {"R@1": (91.12, 0.25), "R@5": (95.6, None)}, {"fitted on": "database"}, "<i>tfa"),
            TableRow("one more", {"R@5": (90.0, None)}, {"fitted on": "database"}),
        ],
        montage=tmp_path / "montage.png",
        intro=["<script>alert(1)</script>"],
        matches=[],
    )
    return tmp_path / "report.html"


def test_every_text_is_escaped(report: Path) -> None:
    reader = read(report)
    text = " ".join(reader.text)
    for words in ("A <town> & its map", "hard VLAD <b>", "<img src=x>", "<i>tfa", "<script>alert(1)</script>"):
        assert words in text
    tags = [tag for tag, _ in reader.tags]
    assert "script" not in tags
    assert tags.count("img") == 1


def test_nothing_is_fetched_from_outside(report: Path) -> None:
    page = report.read_text(encoding="utf-8")
    assert not re.search(r"https?:|//\w|url\(|@import|<link", re.sub(r"base64,[A-Za-z0-9+/=]+", "", page))
    sources = [value for _, attrs in read(report).tags for name, value in attrs.items() if name in ("src", "href")]
    assert len(sources) == 1
    assert str(sources[0]).startswith("data:image/png;base64,")


def test_numbers_and_the_best_of_each_column(report: Path) -> None:
    page = report.read_text(encoding="utf-8")
    assert re.findall(r"<th scope=\"col\" class=\"n\">(R@\d)</th>", page) == ["R@1", "R@5"]
    assert '<td class="n">80.0</td>' in page
    assert '<td class="n"><b>91.1</b> <small>± 0.2</small></td>' in page
    assert '<td class="n">–</td><td class="n">90.0</td>' in page
    assert page.count("<b>95.6</b>") == 2
    assert "prefers-color-scheme: dark" in page
    assert "width=device-width" in page


def test_parts_may_be_absent(tmp_path: Path) -> None:
    write_demo_report(tmp_path / "r.html", **EMPTY)
    assert [tag for tag, _ in read(tmp_path / "r.html").tags if tag in ("table", "dl", "img")] == []


def test_a_montage_that_cannot_be_embedded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TfaError, match=r"gone\.png not found; draw it"):
        write_demo_report(tmp_path / "r.html", **EMPTY | {"montage": tmp_path / "gone.png"})
    with pytest.raises(TfaError, match="must end in"):
        write_demo_report(tmp_path / "r.html", **EMPTY | {"montage": tmp_path / "a.svg"})
    assert not (tmp_path / "r.html").exists()


def test_matching_patches_are_shown_with_their_words(tmp_path: Path) -> None:
    Image.new("RGB", (40, 30), "#336699").save(tmp_path / "a.png")
    drawn = [
        MatchPicture(tmp_path / "a.png", "Right answer of highest confidence", "37 of 112 <mutual> matches"),
        MatchPicture(tmp_path / "a.png", 'A "wrong" answer', "another place"),
    ]
    write_demo_report(tmp_path / "r.html", **EMPTY | {"matches": drawn})
    reader = read(tmp_path / "r.html")
    pictures = [attrs for tag, attrs in reader.tags if tag == "img"]
    assert [picture["alt"] for picture in pictures] == ["Right answer of highest confidence", 'A "wrong" answer']
    assert all(str(picture["src"]).startswith("data:image/png;base64,") for picture in pictures)
    text = " ".join(reader.text)
    assert "One answer in detail" in text
    assert "37 of 112 <mutual> matches" in text
    write_demo_report(tmp_path / "r.html", **EMPTY)
    assert "One answer in detail" not in (tmp_path / "r.html").read_text("utf-8")


def test_matches_without_their_picture_are_refused(tmp_path: Path) -> None:
    missing = [MatchPicture(tmp_path / "gone.png", "a", "b")]
    with pytest.raises(TfaError, match=r"gone\.png not found; draw it"):
        write_demo_report(tmp_path / "r.html", **EMPTY | {"matches": missing})
    assert not (tmp_path / "r.html").exists()
