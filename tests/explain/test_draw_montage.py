"""The montage is readable, tolerates missing photos, and rejects invalid files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from tfa.errors import TfaError
from tfa.explain.draw_montage import EDGE, FRAMES, GAP, TILE, MontageRow, MontageTile, draw_montage, elide


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    paths = []
    for number, colour in enumerate(["#804020", "#208040", "#204080"]):
        paths.append(tmp_path / f"photo_{number}.png")
        Image.new("RGB", (320, 200), colour).save(paths[-1])
    return paths


def rows_of(photos: list[Path], tiles: int = 3) -> list[MontageRow]:
    marks = ["good", "bad", "none"]
    hits = [MontageTile(photos[i % 3], [f"hit {i}", "score 0.51"], marks[i % 3]) for i in range(tiles)]
    return [MontageRow(photos[0], "first query", hits), MontageRow(photos[1], "second query", hits[:1])]


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def left_of(column: int) -> int:
    """Left edge of a hit's tile."""
    return EDGE + TILE[0] + 2 * GAP + column * (TILE[0] + GAP)


@pytest.mark.parametrize("name", ["out.png", "out.jpg", "out.JPEG"])
def test_format_follows_the_extension(tmp_path: Path, photos: list[Path], name: str) -> None:
    draw_montage(rows_of(photos), tmp_path / name)
    with Image.open(tmp_path / name) as image:
        assert image.format == ("PNG" if name.endswith("png") else "JPEG")
    assert not list(tmp_path.glob(".*"))  # no temporary file is left


def test_size_grows_with_hits_and_rows(tmp_path: Path, photos: list[Path]) -> None:
    sizes = []
    fewer = [replace(row, tiles=row.tiles[:2]) for row in rows_of(photos)]
    for rows in (rows_of(photos), fewer, rows_of(photos)[:1]):
        draw_montage(rows, tmp_path / "out.png")
        sizes.append(size_of(tmp_path / "out.png"))
    assert sizes[0][0] == 2 * EDGE + TILE[0] + GAP + 3 * (TILE[0] + GAP)
    assert sizes[0][0] - sizes[1][0] == TILE[0] + GAP
    assert sizes[2][1] < sizes[0][1]


def test_photos_stand_in_frames_of_their_mark(tmp_path: Path, photos: list[Path]) -> None:
    draw_montage(rows_of(photos), tmp_path / "out.png")
    image = np.asarray(Image.open(tmp_path / "out.png").convert("RGB"))
    row = EDGE + 100
    for column, (mark, colour) in enumerate(zip(FRAMES, ["#804020", "#208040", "#204080"], strict=True)):
        assert tuple(image[row, left_of(column) + 1]) == ImageColor.getrgb(FRAMES[mark])
        assert tuple(image[row, left_of(column) + 60]) == ImageColor.getrgb(colour)


@pytest.mark.parametrize("kind", ["missing", "none", "broken", "folder"])
def test_a_photo_that_is_not_there_is_a_grey_tile_with_words(tmp_path: Path, photos: list[Path], kind: str) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff\xe0 not a photo")
    image = {"missing": tmp_path / "gone.jpg", "none": None, "broken": broken, "folder": tmp_path}[kind]
    draw_montage([MontageRow(tmp_path / "gone_too.jpg", "q", [MontageTile(image, [])])], tmp_path / "out.png")
    pixels = np.asarray(Image.open(tmp_path / "out.png").convert("L"), int)
    tile = pixels[EDGE + 25 + 8 : EDGE + 25 + TILE[1] - 8, left_of(0) + 8 : left_of(0) + TILE[0] - 8]
    assert np.median(tile) == pytest.approx(206, abs=4)
    assert (tile < 90).sum() > 30  # letters


def test_long_names_are_cut_in_the_middle() -> None:
    name = "a_very_long_name_" * 12 + "end.jpg"
    short = elide(name, 240, 13)
    assert len(short) < 60
    assert short.startswith("a_very")
    assert short.endswith("end.jpg")
    assert "…" in short
    assert elide("short.jpg", 240, 13) == "short.jpg"
    assert "\n" not in elide("two\nlines", 240, 13)


def test_what_cannot_be_drawn_is_refused(tmp_path: Path, photos: list[Path]) -> None:
    with pytest.raises(TfaError, match=r"\.png, \.jpg, \.jpeg"):
        draw_montage(rows_of(photos), tmp_path / "out.gif")
    with pytest.raises(TfaError, match="no answers"):
        draw_montage([], tmp_path / "out.png")
    assert not list(tmp_path.glob("out*"))


def test_a_query_without_hits_is_still_shown(tmp_path: Path, photos: list[Path]) -> None:
    draw_montage([MontageRow(photos[0], "no place", [])], tmp_path / "out.png")
    assert size_of(tmp_path / "out.png")[0] == 2 * EDGE + TILE[0]
