"""`tfa pairs` and `tfa export`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.fakes import FakeEncoder, random_image
from tfa.maps import PlaceMap
from tfa.types import HeadSpec


@pytest.fixture
def town(fake_encoder: Path) -> PlaceMap:
    for folder in ("images/db/a", "images/db/b", "images/query/day"):
        Path(folder).mkdir(parents=True)
    for number in range(8):
        random_image(number).save(f"images/db/{'ab'[number % 2]}/{number}.png")
    for number in (3, 6):
        random_image(number, (64, 48)).save(f"images/query/day/q{number}.png")
    built = PlaceMap.build("images/db", head="paper", encoder=FakeEncoder(), spec=HeadSpec(words=4))
    built.save("town.tfa")
    return built


def test_pairs_are_a_line_for_each_query_and_map_image(run, town):
    result = run("pairs", "town.tfa", "images/query", "-o", "pairs.txt", "-k", 3, "-q")
    assert result.exit_code == 0, result.stderr
    assert "6 pairs for 2 photos" in result.stdout
    lines = Path("pairs.txt").read_text().splitlines()
    expected = []
    for name in ("day/q3.png", "day/q6.png"):
        for hit in town.query(f"images/query/{name}", k=3):
            expected.append(f"{name} {Path(hit.image).relative_to(Path('images/db').resolve()).as_posix()}")
    assert lines == expected
    assert run("pairs", "town.tfa", "images/query", "-o", "p.txt", "-k", 1, "--root", "images", "-q").exit_code == 0
    first = Path("p.txt").read_text().splitlines()[0]
    assert first.split() == ["query/day/q3.png", f"db/{expected[0].split()[1]}"]


def test_a_photo_that_cannot_be_read_leaves_the_others(run, town):
    Path("images/query/day/bad.png").write_bytes(b"no picture")
    result = run("pairs", "town.tfa", "images/query", "-o", "pairs.txt", "-k", 2, "-q")
    assert result.exit_code == 1
    assert "bad.png" in result.stderr
    assert len(Path("pairs.txt").read_text().splitlines()) == 4


def test_a_file_outside_the_root_is_an_error(run, town):
    result = run("pairs", "town.tfa", "images/query", "-o", "pairs.txt", "--root", "images/query", "-q")
    assert result.exit_code == 1
    assert "--root" in result.stderr
    assert not Path("pairs.txt").exists()


def test_pairs_for_other_programs_and_names_that_collide(run, town):
    random_image(2, (64, 48)).save("images/query/2.png")
    Path("images/db/2.png").write_bytes(Path("images/db/a/2.png").read_bytes())
    assert run("add", "town.tfa", "images/db/2.png").exit_code == 0
    result = run("pairs", "town.tfa", "images/query", "-o", "hloc.txt", "-k", 1, "-q")
    assert "2.png names both a query and another map image" in result.stderr
    assert Path("hloc.txt").read_text().splitlines()[0].startswith("query/2.png db/")
    for kind in ("colmap", "kapture"):
        assert run("pairs", "town.tfa", "images/query", "-o", "p.txt", "-k", 1, "-q", "--format", kind).exit_code == 0
        assert Path("p.txt").read_text().splitlines()[-1].replace(",", "").startswith("query/day/q6.png db/")
    assert (
        "needs --views cameraInit.sfm"
        in run("pairs", "town.tfa", "images/query", "-o", "p.txt", "--format", "alicevision").stderr
    )
    refused = run("export", "town.tfa", "-o", "t.npz", "--root", "images")
    assert "are for --format hloc" in refused.stderr


def test_descriptors_for_hloc_are_of_the_map_or_of_queries(run, town):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed: no descriptors were written for hloc")
    assert run("export", "town.tfa", "--format", "hloc", "-o", "map.h5", "--root", "images", "-q").exit_code == 0
    asked = ("--queries", "images/query", "--root", "images", "-q")
    assert run("export", "town.tfa", "--format", "hloc", "-o", "queries.h5", *asked).exit_code == 0
    with h5py.File("map.h5") as held, h5py.File("queries.h5") as queries:
        query = queries["query/day/q3.png/global_descriptor"][()]
        for hit in town.query("images/query/day/q3.png", k=8, rerank=False):
            name = Path(hit.image).relative_to(Path("images").resolve()).as_posix()
            assert query @ held[f"{name}/global_descriptor"][()] == pytest.approx(hit.score, abs=2e-2)
    Path("images/db/2.png").write_bytes(Path("images/db/a/2.png").read_bytes() + b" ")
    Path("images/query/2.png").write_bytes(Path("images/query/day/q3.png").read_bytes())
    assert run("add", "town.tfa", "images/db/2.png", "-q").exit_code == 0
    refused = run("export", "town.tfa", "--format", "hloc", "-o", "new.h5", "--queries", "images/query", "-q")
    assert "2.png names both a query and another map image; pass a --root FOLDER" in refused.stderr
    assert not Path("new.h5").exists()


@pytest.mark.parametrize(("kind", "package"), [("npz", "numpy"), ("faiss", "faiss"), ("onnx-head", "numpy")])
def test_every_format_is_written(run, town, kind, package):
    pytest.importorskip(package)
    result = run("export", "town.tfa", "--format", kind, "-o", "new/file.out")
    assert result.exit_code == 0, result.stderr
    assert "dimensions" in result.stdout
    assert Path("new/file.out").stat().st_size > 300
    if kind == "npz":
        with np.load("new/file.out") as held:
            assert held["vectors"].shape[0] == 8


def test_what_cannot_be_exported_is_an_error(run, town):
    assert run("export", "town.tfa", "--format", "csv", "-o", "x").exit_code == 2
    assert "'night'" in run("export", "town.tfa", "-o", "x", "--calibration", "night").stderr
    assert run("export", "town.tfa").exit_code == 2
    assert "for --format onnx, not npz" in run("export", "town.tfa", "-o", "x", "--dims", 512).stderr
    assert "name the graph NAME.onnx" in run("export", "town.tfa", "-o", "x.npz", "--format", "onnx").stderr
    assert "--format onnx-head" in run("export", "town.tfa", "-o", "x.onnx", "--format", "onnx").stderr
    assert not Path("x.onnx").exists()
    assert "$ tfa export town.tfa --format npz" in run("export", "--help").stdout
    assert "$ tfa pairs town.tfa" in run("pairs", "--help").stdout


def test_an_export_replaces_no_file_and_says_what_it_holds(run, town):
    town.calibrate([random_image(number) for number in range(20, 30)], name="night")
    first = run("export", "town.tfa", "--format", "npz", "-o", "a.npz")
    assert first.stdout.endswith("; calibration night; without reranking and confidence\n")
    refused = run("export", "town.tfa", "-o", "a.npz", "--calibration", "none")
    assert refused.exit_code == 1
    assert "a.npz exists already; choose another --out, or replace it with --force" in refused.stderr
    again = run("export", "town.tfa", "-o", "a.npz", "--calibration", "none", "--force")
    assert again.stdout.endswith("; no calibration; without reranking and confidence\n")
    Path("place.npz").touch()  # where the descriptors of map images go
    refused = run("export", "town.tfa", "--format", "onnx", "-o", "place.onnx")
    assert "place.npz exists already" in refused.stderr
