"""Match lines end at their patches for any grid; missing data is reported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from tfa.errors import TfaError
from tfa.explain.draw_matches import (
    MATCH_CAPTION,
    MATCH_EDGE,
    MATCH_GAP,
    MATCH_WIDTH,
    cell_centers,
    draw_matches,
    format_caption,
    ramp,
)
from tfa.explain.draw_montage import GRAY
from tfa.verification.matching import Matches, find_matches

BLUE, GREEN = "#102030", "#103020"  # dark, so that every line is brighter than its photo


def photo(size: tuple[int, int] = (400, 300), colour: str = BLUE) -> Image.Image:
    return Image.new("RGB", size, colour)


def matches_of(*rows: tuple[int, int, bool]) -> Matches:
    ours, theirs, consistent = zip(*rows, strict=True) if rows else ((), (), ())
    return Matches(np.array(ours, int), np.array(theirs, int), np.ones(len(ours)), np.array(consistent, bool))


def places(picture: Image.Image) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Corner and size of the two photos, read off their pixels."""
    pixels = np.asarray(picture).astype(int)
    inside = np.flatnonzero((pixels[MATCH_EDGE + 1] < 250).any(axis=1))
    cut = int(np.flatnonzero(np.diff(inside) > 1)[0])
    height = int(np.flatnonzero((pixels[MATCH_EDGE:, inside[0]] > 250).all(axis=1))[0])
    return [
        ((int(part[0]), MATCH_EDGE), (int(part[-1] - part[0] + 1), height))
        for part in (inside[: cut + 1], inside[cut + 1 :])
    ]


def near(picture: Image.Image, spot: np.ndarray, colour: tuple[int, int, int], reach: int = 2) -> bool:
    """Whether that colour, or a translucent shade of it, is about a pixel."""
    x, y = np.rint(spot).astype(int)
    around = np.asarray(picture)[y - reach : y + reach + 1, x - reach : x + reach + 1].reshape(-1, 3).astype(int)
    return bool((np.abs(around - colour).max(axis=1) < 90).any())


@pytest.mark.parametrize(("grid", "other"), [((4, 4), (4, 4)), ((3, 8), (5, 2)), ((23, 23), (23, 23))])
@pytest.mark.parametrize("shape", [(400, 300), (300, 400), (900, 200)])
def test_a_line_joins_the_middles_of_two_cells(
    grid: tuple[int, int], other: tuple[int, int], shape: tuple[int, int]
) -> None:
    last = (grid[0] * grid[1] - 1, other[0] * other[1] - 1)
    for ours, theirs in ((0, last[1]), (last[0], 0)):
        picture = draw_matches(photo(shape), photo(colour=GREEN), matches_of((ours, theirs, True)), grid, other)
        (corner, size), (far, room) = places(picture)
        start = np.add(
            corner, [(ours % grid[1] + 0.5) * size[0] / grid[1], (ours // grid[1] + 0.5) * size[1] / grid[0]]
        )
        end = np.add(
            far, [(theirs % other[1] + 0.5) * room[0] / other[1], (theirs // other[1] + 0.5) * room[1] / other[0]]
        )
        colour = ramp(ours // grid[1] / (grid[0] - 1))
        for share in (0, 0.3, 0.5, 0.7, 1):
            assert near(picture, start + share * (end - start), colour)


def test_photos_are_equally_high_and_keep_their_shapes() -> None:
    picture = draw_matches(photo((800, 400)), photo((300, 300), GREEN), matches_of(), (4, 4), (4, 4))
    (first, size), (second, room) = places(picture)
    assert picture.width == MATCH_WIDTH
    assert size[1] == room[1]
    assert size[0] / size[1] == pytest.approx(2, abs=0.01)
    assert room[0] / room[1] == pytest.approx(1, abs=0.01)
    assert second[0] - first[0] - size[0] == MATCH_GAP


def test_cells_cover_the_whole_photo() -> None:
    centres = cell_centers(np.arange(6), (2, 3), (10, 20), (300, 100))
    assert centres.tolist() == [[60, 45], [160, 45], [260, 45], [60, 95], [160, 95], [260, 95]]


def test_what_moves_otherwise_is_a_faint_dot_without_a_line() -> None:
    picture = draw_matches(photo(), photo(), matches_of((5, 5, True), (0, 3, False)), (4, 4), (4, 4))
    (corner, size), (far, room) = places(picture)
    start, end = cell_centers(np.array([0]), (4, 4), corner, size)[0], cell_centers(np.array([3]), (4, 4), far, room)[0]
    background = ImageColor.getrgb(BLUE)
    for spot in (start, end):
        dot = np.asarray(picture)[round(spot[1]), round(spot[0])].astype(int)
        assert 40 < (dot - background).mean() < 180  # lighter than the photo, far from white
    between = np.asarray(picture)[round(start[1]), round(start[0]) + 12 : corner[0] + size[0]]
    assert (between == background).all()


def test_colours_tell_the_row_of_the_query() -> None:
    colours = np.array([ramp(place) for place in np.linspace(0, 1, 23)], int)
    luminance = colours @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(luminance) < 0).all()
    assert np.abs(np.diff(colours, axis=0)).sum(axis=1).min() > 2
    assert (
        draw_matches(photo(), photo(), matches_of((0, 0, True)), (1, 1), (1, 1)).size[0] == MATCH_WIDTH
    )  # a single row


def test_the_caption_counts() -> None:
    assert format_caption(matches_of((0, 0, True), (1, 1, True), (2, 9, False))) == "2 inliers among 3 matching patches"
    made = find_matches(np.eye(16, dtype=np.float32), np.eye(16, dtype=np.float32)[None], (4, 4), (4, 4))[0]
    assert format_caption(made) == f"{made.count} inliers among 16 matching patches"
    picture = draw_matches(photo(), photo(), made, (4, 4), (4, 4))
    words = np.asarray(picture.convert("L"))[-MATCH_EDGE - MATCH_CAPTION :]
    assert (words < 90).sum() > 300


def test_no_match_at_all_is_still_a_picture() -> None:
    assert format_caption(matches_of()) == "no matching patches"
    picture = draw_matches(photo(), photo(), matches_of(), (4, 4), (4, 4))
    (corner, size), _ = places(picture)
    inside = np.asarray(picture)[corner[1] : corner[1] + size[1], corner[0] : corner[0] + size[0]]
    assert (inside == ImageColor.getrgb(BLUE)).all()


@pytest.mark.parametrize("kind", ["missing", "broken", "folder"])
@pytest.mark.parametrize("both", [False, True])
def test_a_photo_that_is_not_there_is_a_box_with_its_name(tmp_path: Path, kind: str, both: bool) -> None:
    gone = {"missing": tmp_path / "gone.jpg", "broken": tmp_path / "broken.jpg", "folder": tmp_path}[kind]
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 not a photo")
    picture = draw_matches(gone if both else photo(), gone, matches_of((0, 0, True)), (4, 4), (4, 4))
    _, (corner, size) = places(picture)
    box = np.asarray(picture)[corner[1] : corner[1] + size[1], corner[0] : corner[0] + size[0]]
    assert (np.median(box.reshape(-1, 3), axis=0) == ImageColor.getrgb(GRAY)).all()
    assert (box.max(axis=2) < 90).sum() > 50  # letters
    assert size[0] / size[1] == pytest.approx(4 / 3, abs=0.01)


@pytest.mark.parametrize("name", ["new/why.png", "why.jpg"])
def test_the_picture_is_written_and_photos_may_be_files(tmp_path: Path, name: str) -> None:
    photo().save(tmp_path / "query.png")
    photo(colour=GREEN).save(tmp_path / "map.png")
    made = matches_of((0, 0, True))
    files = (tmp_path / "query.png", tmp_path / "map.png")
    picture = draw_matches(*files, made, (4, 4), (4, 4), tmp_path / name)
    with Image.open(tmp_path / name) as written:
        assert written.size == picture.size
    assert places(picture) == places(draw_matches(photo(), photo(colour=GREEN), made, (4, 4), (4, 4)))


def test_a_turned_photo_is_drawn_as_the_encoder_sees_it(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    photo((400, 200)).save(tmp_path / "turned.jpg", exif=exif)
    picture = draw_matches(tmp_path / "turned.jpg", photo(), matches_of(), (4, 4), (4, 4))
    (_, size), _ = places(picture)
    assert size[0] / size[1] == pytest.approx(0.5, abs=0.01)


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TfaError, match=r"\.png, \.jpg, \.jpeg"):
        draw_matches(photo(), photo(), matches_of(), (4, 4), (4, 4), tmp_path / "why.gif")
    with pytest.raises(TfaError, match="patch 16 of the query is outside a grid of 4 × 4"):
        draw_matches(photo(), photo(), matches_of((16, 0, True)), (4, 4), (4, 4))
    with pytest.raises(TfaError, match="patch 9 of the answer"):
        draw_matches(photo(), photo(), matches_of((0, 9, False)), (4, 4), (3, 3))


def test_linearized_contributions_are_drawn_against_an_even_share():
    heats = [np.array([[3.0, 1.0], [2.0, 2.0]]), np.full((2, 2), 2.0)]
    even = [heat - 2.0 for heat in heats]
    drawn, expected, plain = (
        np.asarray(draw_matches(photo(), photo(), matches_of(), (2, 2), (2, 2), None, *how))
        for how in ((heats, True), (even, False), (heats, False))
    )
    above = slice(0, drawn.shape[0] - 2 * MATCH_CAPTION)  # the captions differ
    assert np.array_equal(drawn[above], expected[above])
    assert not np.array_equal(drawn[above], plain[above])
    assert not np.array_equal(drawn, expected)
