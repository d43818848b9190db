"""The scale study: synthetic places, reused rows, error counts and tables."""

from __future__ import annotations

import json

import numpy as np
import pytest

from studies.scale import engines, versions
from studies.scale.engines import (
    CONTENDERS,
    PHOTOS,
    EngineSettings,
    MadeUpPlaces,
    exact_answers,
    mappings,
    measured,
    run_engines,
    spilled_bytes,
)
from studies.scale.local_servers import RunningEngine, folder_bytes, new_server
from studies.scale.rows import SavedRows, all_tables, tables
from studies.scale.run import PARTS, ScaleSettings, chosen_parts, main, run_parts
from studies.scale.versions import Seen, Switched, judged
from tfa.core.arrays import Spill
from tfa.core.files import BadFile
from tfa.errors import BadSpec, StoreUnavailable

DIMS, BLOCK = 64, 400


@pytest.fixture
def places(tmp_path):
    return MadeUpPlaces(tmp_path / "vectors", DIMS, BLOCK)


# --- made-up places --------------------------------------------------------------------------------------------------


def test_the_first_images_of_a_large_file_are_those_of_a_small_one(places, tmp_path):
    few = np.array(places.vectors(300))
    many = places.vectors(1000)
    np.testing.assert_array_equal(many[:300], few)
    np.testing.assert_array_equal(MadeUpPlaces(tmp_path / "other", DIMS, BLOCK).vectors(1000), many)


def test_a_block_that_was_not_finished_is_made_again(places):
    whole = np.array(places.vectors(800))
    [file] = places.folder.iterdir()
    with file.open("r+b") as opened:
        opened.truncate(BLOCK * DIMS * 4 + 1000)
    np.testing.assert_array_equal(places.vectors(800), whole)


def test_a_query_finds_photos_of_its_place_by_unit_vectors_and_a_bias(places):
    vectors, queries = places.vectors(800), places.queries(800, 20)
    assert queries.shape == (20, DIMS)
    np.testing.assert_allclose(np.linalg.norm(queries, axis=1), np.sqrt(2), atol=1e-3)  # Ψ and a 1
    assert abs(np.linalg.norm(vectors, axis=1) - 1).max() < 0.05  # Ψ and a small bias
    answers = exact_answers(vectors, queries, PHOTOS)
    together = (answers // PHOTOS == answers[:, :1] // PHOTOS).mean()
    assert together > 0.6  # by chance 0.005 beyond the first


def test_exact_answers_do_not_depend_on_blocks(places):
    vectors, queries = places.vectors(700), places.queries(700, 9)
    order = np.argsort(-(queries @ vectors.T), axis=1, kind="stable")[:, :10]
    np.testing.assert_array_equal(exact_answers(vectors, queries, 10, block=150), order)
    assert exact_answers(vectors[:6], queries, 10).shape == (9, 6)


# --- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["exact", "reduced", "faiss-flat"])
def test_engines_in_this_process_find_what_numpy_finds(name, tmp_path):
    if name.startswith("faiss"):
        pytest.importorskip("faiss")
    settings = EngineSettings(tmp_path, dims=DIMS, block=BLOCK)
    vectors, queries = settings.places.vectors(800), settings.places.queries(800, 30)
    row = measured(name, 800, queries, exact_answers(vectors, queries, 10), settings, "")
    assert row["recall_at_10"] > (0.999 if name == "faiss-flat" else 0.9)
    assert row["top_1"] > 0.9
    assert row["ratio"] == row["p50_ms"] / row["numpy_ms"]
    assert row["p99_ms"] >= row["p50_ms"] > 0


def test_memory_is_that_of_the_process_but_for_a_file(tmp_path):
    text = (
        "7f00-7f10 r--s 00000000 fe:00 12 /data/places.f32\nSize: 400 kB\nRss: 300 kB\nPss: 300 kB\n"
        "7f20-7f30 rw-s 00000000 fe:00 13 /tmp/tfa-spill-ab/x.bin (deleted)\nSize: 100 kB\nRss: 8 kB\n"
        "7f40-7f50 rw-p 00000000 00:00 0 \nSize: 50 kB\nRss: 40 kB\n"
    )
    places, spilled, own = mappings(text)
    assert (places.file, places.size, places.resident) == ("/data/places.f32", 400 << 10, 300 << 10)
    assert (spilled.spilled, spilled.resident, own.spilled, own.file) == (True, 8 << 10, False, "")
    rows, before = Spill(0).empty((1 << 20,), np.int8), spilled_bytes()
    if before:  # Linux
        assert before >= 1 << 20
        del rows
        assert spilled_bytes() <= before - (1 << 20)


def test_a_wrong_answer_costs_recall(tmp_path, monkeypatch):
    settings = EngineSettings(tmp_path, dims=DIMS, block=BLOCK)
    vectors, queries = settings.places.vectors(800), settings.places.queries(800, 30)
    truth = exact_answers(vectors, queries, 10)[::-1]  # those of other queries
    row = measured("exact", 800, queries, truth, settings, "")
    assert row["recall_at_10"] < 0.2
    assert row["top_1"] < 0.2


def test_rows_are_measured_once_and_given_up_in_words(tmp_path, monkeypatch):
    ran = []

    def answer(name, images, *_):
        ran.append((name, images))
        return {"given_up": "not finished within 1 s"} if name == "reduced" else {"what": name}

    monkeypatch.setattr(engines, "_in_its_own_process", answer)
    settings = EngineSettings(tmp_path, sizes=[500], engines=["exact", "reduced"], dims=DIMS, block=BLOCK)
    file = tmp_path / "scale.json"
    assert [row["engine"] for row in run_engines(settings, SavedRows(file), None)] == ["exact", "reduced"]
    assert list(run_engines(settings, SavedRows(file), None)) == []
    assert ran == [("exact", 500), ("reduced", 500)]
    assert len(list(run_engines(settings, SavedRows(file, again=True), None))) == 2
    assert len(SavedRows(file).rows) == 2


@pytest.mark.slow
def test_a_row_that_takes_too_long_is_given_up(tmp_path):
    settings = EngineSettings(tmp_path, sizes=[500], engines=["exact"], dims=DIMS, block=BLOCK, limit=0.01)
    [row] = run_engines(settings, SavedRows(), None)
    assert row["given_up"] == "not finished within 0 s"


@pytest.mark.stores
@pytest.mark.slow
def test_a_store_is_measured_in_a_process_of_its_own(tmp_path):
    pytest.importorskip("tfa_qdrant")
    settings = EngineSettings(tmp_path, sizes=[600], engines=["qdrant"], dims=DIMS, block=BLOCK)
    [row] = run_engines(settings, SavedRows(), None)
    assert row["recall_at_10"] > 0.99
    assert row["disk_bytes"] > 600 * DIMS * 2


def test_another_file_is_not_taken_for_rows(tmp_path):
    (tmp_path / "other.json").write_text('{"format": "tfa-speed", "version": 1}')
    with pytest.raises(BadFile):
        SavedRows(tmp_path / "other.json")


def test_parts_and_engines_by_name(tmp_path):
    assert chosen_parts(()) == list(PARTS)
    assert chosen_parts(["union", "engines"]) == ["engines", "union"]
    with pytest.raises(BadSpec, match="did you mean 'switches'"):
        chosen_parts(["switchs"])
    with pytest.raises(BadSpec, match="unknown engine 'exat'; did you mean 'exact'"):
        list(run_parts(["engines"], ScaleSettings(engines=["exat"]), SavedRows()))


def test_a_server_that_runs_elsewhere_is_not_killed():
    server = new_server("milvus", running="milvus://search:19530/")
    assert isinstance(server, RunningEngine)
    assert server.start().url == "milvus://search:19530"
    with pytest.raises(StoreUnavailable, match="was not started here"):
        server.kill()


def test_bytes_of_a_folder(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x" * 10_000)
    assert 10_000 <= folder_bytes(tmp_path) < 100_000


# --- switches --------------------------------------------------------------------------------------------------------


def test_what_goes_wrong_in_switches_is_counted():
    switched = [Switched(9.0, 10.0, "first"), Switched(20.0, 21.0, "second")]
    seen = [
        Seen(9.5, 9.6, ("second",)),  # while it switches either may answer
        Seen(10.3, 10.4, ("second",)),  # old, for 0.3 s
        Seen(11.5, 11.6, ("second",)),  # old, too late
        Seen(12.0, 12.1, ("first", "second")),
        Seen(13.0, 13.1, ("first",)),
        Seen(14.0, 14.5, (), "StoreUnavailable: away"),
        Seen(20.5, 20.6, ("first",)),
        Seen(21.2, 21.4, ("first",)),
    ]
    found = judged(seen, switched)
    assert (found["errors"], found["mixed"], found["late"]) == (1, 1, 1)
    assert found["old_seconds"] == pytest.approx(1.5)
    assert found["error"] == "StoreUnavailable: away"
    assert found["queries"] == 8


@pytest.mark.stores
@pytest.mark.kill
@pytest.mark.slow
def test_switches_kills_and_replicas_of_a_folder_of_lancedb(monkeypatch):
    pytest.importorskip("tfa_lance")
    monkeypatch.setattr(versions, "ASKERS", 1)  # each imports for seconds; two: python benchmarks/studies/scale/run.py
    settings, saved = ScaleSettings(engines=["lance"], switches=3, edits=2), SavedRows()
    rows = {row["part"]: row for row in run_parts(["switches", "killed", "replicas"], settings, saved)}
    assert rows["switches"]["queries"] > 0
    assert (rows["switches"]["errors"], rows["switches"]["mixed"]) == (0, 0)
    assert rows["killed"]["lost"] == 0
    assert rows["killed"]["acknowledged"] >= 2
    assert rows["killed"]["same_answer"]
    assert rows["replicas"]["edits"] == 2
    assert set(tables(saved.rows.values())) == {"switches", "killed", "replicas"}


# --- tables ----------------------------------------------------------------------------------------------------------


def engine_row(engine: str, images: int, p50: float, **more) -> dict:
    facts = {"what": engine, "exact": True, "dims": 1024, "build_seconds": 2.0, "memory_bytes": 100 * images,
             "queries": 50, "p50_ms": p50, "p99_ms": 2 * p50, "numpy_ms": p50 / 1.5, "ratio": 1.5, "recall_at_10": 1.0,
             "top_1": 0.995}  # fmt: skip
    return {"part": "engines", "name": f"{engine} {images}", "engine": engine, "images": images, **facts, **more}


def test_the_table_of_engines_has_sizes_growth_and_rows_that_were_given_up():
    rows = [engine_row("exact", 1000, 1.0), engine_row("exact", 100_000, 100.0, disk_bytes=200_000_000)]
    rows.append({"part": "engines", "name": "slow", "engine": "slow", "images": 100_000, "given_up": "not done"})
    text = all_tables(rows)
    assert "| exact | 2 | – | 100 | 1 | 2 | 1.5 | 1.000 | 0.995 |" in text
    assert "| exact | 2 | 2,000 | 100 | 100 | 200 | 1.5 | 1.000 | 0.995 |" in text
    assert "| slow | not done | – | – | – | – | – | – | – |" in text
    assert "| exact | 1.00 | 0.00 |" in text  # a hundred times the images, a hundred times the time, the same build


def test_every_contender_says_what_it_is():
    assert all(one.what for one in CONTENDERS.values())
    assert {one.server for one in CONTENDERS.values()} == {None, "postgres", "milvus", "lance", "qdrant"}


def test_the_script_refuses_what_it_cannot_do(script):
    assert "pass --dataset NAME=PATH at least twice" in " ".join(script(main, "union").stderr.split())
    assert "'many' is not a list of sizes" in script(main, "engines", "--sizes", "many").stderr


def test_the_script_prints_what_is_there_already(script, tmp_path):
    file, saved = tmp_path / "scale.json", SavedRows(tmp_path / "scale.json")
    row = engine_row("exact", 20_000, 1.0)
    saved.keep("engines", row["name"], row)
    words = ["engines", "--sizes", "20000", "--engines", "exact", "--out", str(file)]
    shown = script(main, *words)
    assert shown.exit_code == 0, shown.stderr
    assert "| exact | 2 |" in shown.stdout
    shown_there = tmp_path / "scale.md"
    shown_there.write_text("# Scale\n<!-- scale: engines -->\nold\n<!-- end of engines -->\nBelow.\n", "utf-8")
    told = json.loads(script(main, *words, "--json", "--quiet", "--page", str(shown_there)).stdout)
    assert shown_there.read_text("utf-8") == (
        f"# Scale\n<!-- scale: engines -->\n{tables([row])['engines']}\n<!-- end of engines -->\nBelow.\n"
    )
    assert told["rows"][0]["p50_ms"] == 1.0
