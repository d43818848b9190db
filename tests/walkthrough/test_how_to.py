"""How-to guides: every marked command runs and has the described effect; every other command parses, on all pages.

Pages that need a recording, a real encoder or ROS are followed where these are: see `ELSEWHERE`.
"""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import numpy as np
import pytest
import typer
from PIL import Image

from count_words import list_pages
from tests.cli.conftest import fake_encoder, run  # noqa: F401
from tests.maps.conftest import photo
from tests.photos.test_where_taken import photo as dated
from tests.photos.test_where_taken import track
from tests.walkthrough.commands import HOW_TO, ROOT, Step, commands_of, follow, spans_of, steps_of
from tfa.cli.app import app
from tfa.maps import PlaceMap
from tfa.service.settings import read_api_keys

PAGES = sorted(HOW_TO.glob("*.md"))
FIRST_BUILD = "build photos/ --out town.tfa --positions positions.csv"
# Pages that a newcomer can follow with the rendered town, and the commands that come before.
TOWN = {
    "adapt-to-a-camera.md": (FIRST_BUILD,),
    "benchmark-your-data.md": (),
    "choose-an-encoder.md": (),
    "evaluate.md": (FIRST_BUILD,),
    "ros2.md": (),
    "serve.md": (),
}
HERE = {"hloc-colmap.md", "positions.md", "scale.md", "sessions.md"}
ELSEWHERE = {
    "bags-and-videos.md": "tests/cli/test_cli_recordings.py",
    "close-loops.md": "tests/cli/test_cli_loops.py",
    "export-answers.md": "tests/cli/test_cli_answer_files.py",
    "onnx.md": "tests/exports/test_onnx_place.py",
}


def test_every_page_with_marked_blocks_is_followed():
    assert {page.name for page in PAGES if steps_of(page)} == {*TOWN, *HERE, *ELSEWHERE}
    assert [name for name, test in ELSEWHERE.items() if f'"{name}"' not in (ROOT / test).read_text("utf-8")] == []


def find_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that words name, and the words after its name."""
    command, rest = typer.main.get_command(app), words[1:]
    while hasattr(command, "get_command") and rest and not rest[0].startswith("-"):
        inner = command.get_command(typer.Context(command), rest[0])
        assert inner is not None, f"{' '.join(words)}: there is no command {rest[0]}"
        command, rest = inner, rest[1:]
    return command, rest


def parse(words: list[str], *, in_sentence: bool = False) -> tuple[list[str], list[str]]:
    """Return the arguments that the words of a command give, and the required arguments and options that they lack.

    In a sentence, the last option may lack its value.
    """
    command, rest = find_command(words)
    takes_value = {name for one in command.params if not getattr(one, "is_flag", False) for name in one.opts}
    if in_sentence and rest and rest[-1] in takes_value:
        rest = [*rest, "VALUE"]
    values, others, order = command.make_parser(typer.Context(command)).parse_args(rest)
    assert others == [], " ".join(words)
    given = [one.name for one in order if one.param_type_name == "argument" and values.get(one.name)]
    missing = [one.name for one in command.params if one.required and not values.get(one.name)]
    return given, missing + ["out"] * (command.name == "build" and not values.get("out"))


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_every_command_parses_and_has_its_required_options(page):
    for words in commands_of(page):
        assert parse(words)[1] == [], " ".join(words)


@pytest.mark.parametrize("page", list_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_in_a_sentence_or_table_parses_and_is_complete_if_it_has_arguments(page):
    for words in spans_of(page):
        given, missing = parse(words, in_sentence=True)
        assert not given or not missing or "…" in words, " ".join(words)


def test_the_index_names_every_page():
    text = (HOW_TO / "index.md").read_text("utf-8")
    assert {*re.findall(r"\]\(([\w-]+\.md)\)", text)} == {page.name for page in PAGES} - {"index.md"}


@pytest.mark.parametrize("name", TOWN)
def test_a_newcomer_follows_the_page(name, types, newcomer):
    for command in TOWN[name]:
        types.tfa(command)
    for step in steps_of(HOW_TO / name):
        types.type(step)


def test_the_service_accepts_the_api_keys_of_the_page(tmp_path):
    [keys] = re.findall(r"```text\n(robot1 .*?)```", (HOW_TO / "secure-a-service.md").read_text("utf-8"), re.DOTALL)
    (tmp_path / "api-keys").write_text(keys, "utf-8")
    assert [(one.name, one.edits) for one in read_api_keys(tmp_path / "api-keys")] == [
        ("robot1", False),
        ("office", True),
    ]


def test_a_map_in_a_store(types, newcomer):
    pytest.importorskip("tfa_lance", reason="tfa-lance is not installed: pip install -e plugins/tfa-lance")
    for step in steps_of(HOW_TO / "scale.md"):
        types.type(Step(step.language, step.text.replace("lance:///maps", f"lance://{newcomer}/maps")))
    assert "photos/" in types.said[f"tfa query lance://{newcomer}/maps/town photo.jpg"]


def test_sessions_merge_and_age(run, fake_encoder):  # noqa: F811
    for place in range(10):
        photo(Path("summer") / f"{place:02}.png", place)
        photo(Path("winter") / f"{place:02}.png", place + 4, light=0.7)
        photo(Path("lately") / f"{place:02}.png", place + 2, light=0.8)
    photo(Path("autumn/15.png"), 15)
    Image.open("summer/03.png").save("summer/again.png", compress_level=1)  # a near duplicate
    photo(Path("photo.jpg"), 6, light=0.9)
    *_, everywhere, winter, _, report, dry, pruned, _ = follow(HOW_TO / "sessions.md", run)
    assert "summer/06.png" in everywhere
    assert "summer" not in winter
    assert "winter/02.png" in winter
    assert Path("report.html").stat().st_size > 1000
    assert report
    going = int(re.search(r"(\d+) images? of 22 can be removed", dry)[1])
    assert going
    assert "expected R@1 on similar photos" in dry
    assert f"the map holds {22 - going} images" in pruned


def test_hloc_and_colmap_take_what_is_handed_over(run, fake_encoder):  # noqa: F811
    h5py = pytest.importorskip("h5py", reason="h5py is not installed (pip install -e '.[dev]')")
    pytest.importorskip("pycolmap", reason="pycolmap is not installed (pip install -e '.[dev]')")
    for place in range(6):
        for folder, light in (("db", 1.0), ("query", 0.9)):  # the same names in both
            textured(Path("images") / folder / f"{place}.png", place, light)
    follow(HOW_TO / "hloc-colmap.md", run)

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


def test_positions_go_in_and_come_out(run, fake_encoder):  # noqa: F811
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

    *_, asked, measured, spoken = follow(HOW_TO / "positions.md", run)
    walked = [one.position.to_dict() for one in PlaceMap.load("walk.tfa").images]
    assert walked[4] == pytest.approx({"lat": 50.004, "lon": 7.0, "alt": 90.0})
    hit = json.loads(asked)["answers"][0]["hits"][0]
    east = np.degrees(30 / 6_371_000 / np.cos(np.radians(48.858)))  # 30 m
    assert hit["image"].endswith("survey/03.png")
    assert hit["position"]["lon"] == pytest.approx(2.2945 + east, abs=1e-4)
    assert (hit["position"]["alt"], hit["position"]["heading"]) == (33.0, 90.0)
    assert "33.0 90.0" in spoken
    assert "Right answers: at most 25 m away" in measured
    assert "100.0 [100.0, 100.0]" in measured
    tiles = PlaceMap.load("air.tfa").images
    assert len(tiles) == 9
    assert all(one.position is not None for one in tiles)
