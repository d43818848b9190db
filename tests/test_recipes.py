"""Recipes of the docs: what they tell a reader to type is typed, and does what they say.

Lines `$ tfa …` of blocks marked `<!-- run -->` go to the command line under the fake encoder, Python blocks are run,
both in the order of the page. Recipes that need a real encoder are run where there is one (tests/exports).
"""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import fake_encoder, run  # noqa: F401
from tests.maps.conftest import photo
from tests.photos.test_where_taken import photo as dated
from tests.photos.test_where_taken import track
from tfa.maps import PlaceMap

RECIPES = Path(__file__).parents[1] / "docs" / "recipes"
BLOCK = re.compile(r"^<!-- run -->\n+```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def follow(run, fake_encoder, capsys):  # noqa: F811
    """`follow("sessions.md")`: what each command of the recipe printed, in order."""

    def follow(name: str) -> list[str]:
        told = []
        for kind, block in BLOCK.findall((RECIPES / name).read_text("utf-8")):
            if kind == "python":
                capsys.readouterr()
                exec(compile(block, name, "exec"), {"__name__": "recipe"})
                told.append(capsys.readouterr().out)
                continue
            for line in block.splitlines():
                prompt, program, *words = shlex.split(line, comments=True)
                assert (prompt, program) == ("$", "tfa"), line
                done = run(*words)
                assert done.exit_code == 0, f"{line}\n{done.output}"
                told.append(done.stdout)
        assert told
        return told

    return follow


def test_sessions_merge_and_age(follow, fake_encoder):  # noqa: F811
    for place in range(10):
        photo(Path("summer") / f"{place:02}.png", place)
        photo(Path("winter") / f"{place:02}.png", place + 4, light=0.7)
        photo(Path("lately") / f"{place:02}.png", place + 2, light=0.8)
    Image.open("summer/03.png").save("summer/again.png", compress_level=1)  # a near duplicate
    photo(Path("photo.jpg"), 6, light=0.9)
    *_, everywhere, winter, report, dry, pruned, _ = follow("sessions.md")
    assert "summer/06.png" in everywhere
    assert "summer" not in winter
    assert "winter/02.png" in winter
    assert Path("report.html").stat().st_size > 1000
    assert report
    going = int(re.search(r"(\d+) images? of 21 can go", dry)[1])
    assert going
    assert "photos that were given" in dry
    assert f"the map holds {21 - going} images" in pruned


def test_hloc_and_colmap_take_what_is_handed_over(follow, fake_encoder):  # noqa: F811
    h5py = pytest.importorskip("h5py", reason="h5py is not installed (pip install -e '.[dev]')")
    pytest.importorskip("pycolmap", reason="pycolmap is not installed (pip install -e '.[dev]')")
    for place in range(6):
        for folder, light in (("db", 1.0), ("query", 0.9)):  # the same names in both
            textured(Path("images") / folder / f"{place}.png", place, light)
    follow("hloc.md")

    # As hloc's parse_retrieval and pairs_from_retrieval read: two names a line; every dataset's group is a name.
    pairs = [line.split() for line in Path("pairs-query.txt").read_text("utf-8").splitlines()]
    assert {len(one) for one in pairs} == {2}
    assert {query for query, _ in pairs} == {f"query/{place}.png" for place in range(6)}
    vectors: dict[str, dict[str, np.ndarray]] = {}
    for name in ("map.h5", "queries.h5"):
        found = vectors.setdefault(name, {})
        with h5py.File(name) as file:
            file.visititems(
                lambda _, one, found=found: (
                    found.update({one.parent.name.strip("/"): one[()]}) if isinstance(one, h5py.Dataset) else None
                )
            )
    own, asked = vectors["map.h5"], vectors["queries.h5"]
    assert own.keys().isdisjoint(asked)
    ranked = [max(own, key=lambda name, one=one: one @ own[name]) for one in asked.values()]
    assert ranked == [name.replace("query", "db") for name in asked]

    listed = {frozenset(line.split()) for line in Path("matches.txt").read_text("utf-8").splitlines()}
    with closing(sqlite3.connect("town.db")) as held:
        names = dict(held.execute("select image_id, name from images").fetchall())
        numbers = [number for [number] in held.execute("select pair_id from matches")]
    assert {frozenset(names[one] for one in divmod(number, 2**31 - 1)) for number in numbers} == listed
    assert len(listed) == len(numbers) > 6


def textured(path: Path, place: int, light: float) -> None:
    """A photo that COLMAP finds features on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    wall = Image.fromarray(np.random.default_rng(place).integers(0, 256, (12, 16, 3), dtype=np.uint8))
    wall.resize((192, 144), Image.Resampling.BICUBIC).point(lambda value: int(value * light)).save(path)


def test_positions_go_in_and_come_out(follow, fake_encoder):  # noqa: F811
    rasterio = pytest.importorskip("rasterio")
    pytest.importorskip("pyproj")
    start = datetime(2025, 6, 1, 10, tzinfo=UTC)
    Path("walk").mkdir()
    for place in range(8):
        photo(Path("survey") / f"{place:02}.png", place)
        clock = start + timedelta(hours=2, seconds=place)  # two hours ahead
        dated(Path("walk") / f"{place:02}.jpg", taken=clock.strftime("%Y:%m:%d %H:%M:%S"))
    track(Path("walk.gpx"), [(f"10:00:{second:02}", 50 + second / 1000, 7, 90) for second in range(0, 10, 3)])
    rows = [f"{place:02}.png,{448_251.8 + 10 * place},5411932.7,{30 + place},90" for place in range(8)]
    Path("survey.csv").write_text("\n".join(["file,x,y,alt,heading", *rows]), "utf-8")
    photo(Path("photo.jpg"), 3, light=0.9)
    pixels = np.random.default_rng(0).integers(1, 255, (3, 160, 160), dtype=np.uint8)
    profile = {"driver": "GTiff", "width": 160, "height": 160, "count": 3, "dtype": "uint8", "crs": "EPSG:32631"}
    corner = rasterio.Affine(0.5, 0, 448_200.0, 0, -0.5, 5_412_000.0)
    with rasterio.open("ortho.tif", "w", transform=corner, **profile) as file:
        file.write(pixels)

    *_, asked, measured, spoken = follow("positions.md")
    walked = [one.position.to_dict() for one in PlaceMap.load("walk.tfa").images]
    assert walked[4] == pytest.approx({"lat": 50.004, "lon": 7.0, "alt": 90.0})
    hit = json.loads(asked)["answers"][0]["hits"][0]
    east = np.degrees(30 / 6_371_000 / np.cos(np.radians(48.858)))  # 30 m
    assert hit["image"].endswith("survey/03.png")
    assert hit["position"]["lon"] == pytest.approx(2.2945 + east, abs=1e-4)
    assert (hit["position"]["alt"], hit["position"]["heading"]) == (33.0, 90.0)
    assert "33.0 90.0" in spoken
    assert "an answer is right: at most 25 m away" in measured
    assert "100.0 [100.0, 100.0]" in measured
    tiles = PlaceMap.load("air.tfa").images
    assert len(tiles) == 9
    assert all(one.position is not None for one in tiles)
