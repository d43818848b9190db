"""Positions, records and truth of the benchmark, saved evaluations, released vocabularies."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

from tests.benchmarks.synthetic_records import named, ranking, synthetic_record, synthetic_truth
from tests.benchmarks.zip_members import read_member, replace_member
from tests.evaluate.judged_queries import made_judgement
from tests.fakes import random_image
from tests.faults.files.targets import GIGABYTE, PLAIN_JSON, Layer, Target, files_below
from tfa.core.files import write_json
from tfa.encoders.released_words import load_vocabulary
from tfa.evaluate.explorer import page_content, score_table
from tfa.evaluate.ground_truth import GroundTruth
from tfa.evaluate.judgement import score_run
from tfa.evaluate.map_evaluation import MapEvaluation, compare_with_file, make_result
from tfa.maps.building.photo_list import list_photos
from tfa.photos.find_positions import find_positions
from tfa.photos.positions import read_gpx
from tfa.report.html import embed_json
from tfa_bench.records import Record, Truth, find_records, record_path


def _with_facts(facts: bytes, archive: bytes) -> bytes:
    record = replace_member(read_member(archive, "vlad.npz"), "facts.json", facts)
    return replace_member(archive, "vlad.npz", record)


RECORD_FACTS = Layer(lambda data: read_member(read_member(data, "vlad.npz"), "facts.json"), _with_facts)


def positions(name: str, folder: Path) -> Target:
    rows = [f"photos/{number:02d}.jpg,{52.5 + number / 100},{13.25 - number / 50}" for number in range(12)]
    (folder / "globe.csv").write_text("\n".join(["file,lat,lon", *rows, ""]), encoding="utf-8")
    plane = [f'"{number:02d}.jpg", {1000.5 * number}, {-20.25 * number}, note' for number in range(12)]
    (folder / "plane.csv").write_text("\r\n".join(["\ufefffile, x, y, more", *plane]), encoding="utf-8")
    photos = [Path(f"/photos/{number:02d}.jpg") for number in range(12)]

    def read(folder: Path, victim: str, changed: bool) -> None:
        for position in find_positions(photos, Path("/photos").parent, folder / victim)[0]:
            assert position is None or len(str(position)) < 60

    return Target(name, files_below(folder, "*.csv"), read)


def tracks(name: str, folder: Path) -> Target:
    points = "".join(
        f'<trkpt lat="{52.5 + number / 1000}" lon="{13.25 - number / 1000}"><ele>{number}</ele>'
        f"<time>2025-06-01T12:00:{number:02d}Z</time></trkpt>"
        for number in range(12)
    )
    (folder / "track.gpx").write_text(
        f'<?xml version="1.0"?><gpx xmlns="http://www.topografix.com/GPX/1/1"><trk><trkseg>{points}</trkseg></trk></gpx>'
    )

    def read(folder: Path, victim: str, changed: bool) -> None:
        read_gpx(folder / victim)

    return Target(name, files_below(folder, "*.gpx"), read)


def manifests(name: str, folder: Path) -> Target:
    for number in range(5):
        random_image(number).save(folder / f"{number}.png")
    rows = [(f"{number}.png", 52.5 + number / 100, 13.25, f"drive {number % 2}") for number in range(5)]
    lines = [",".join(map(str, row)) for row in (("uri", "lat", "lon", "session"), *rows)]
    (folder / "list.csv").write_text("\n".join([*lines, ""]))
    columns = dict(zip(("uri", "lat", "lon", "session"), map(list, zip(*rows, strict=True)), strict=True))
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "list.parquet")
    files = files_below(folder, "list.*")

    def read(folder: Path, victim: str, changed: bool) -> None:
        list_photos(folder / victim)

    return Target(name, files, read, memory=4 * GIGABYTE)  # Arrow reserves address space


def records(name: str, folder: Path) -> Target:
    truth = synthetic_truth([[0], [1, 2], [3], []])
    truth.write(folder / "town")
    for head in ("vlad", "gem"):
        ranked = [[[ranking([query, query + 1])] * 2] * 3 for query in range(4)]
        record = synthetic_record(truth, ranked, head=named(head))
        record.write(record_path(folder, "town", "tiny@28", head))
    files = files_below(folder, "town/*/*.zip")

    def read(folder: Path, victim: str, changed: bool) -> None:
        for path in find_records(folder):
            Record.read(path)

    return Target(name, files, read, dict.fromkeys(files, RECORD_FACTS))


def truth(name: str, folder: Path) -> Target:
    synthetic_truth([[0], [1, 2], [3], []], conditions={"night": [0, 1], "day": [2, 3]}).write(folder)
    files = files_below(folder, "*.json")
    return Target(name, files, lambda folder, victim, changed: Truth.read(folder), dict.fromkeys(files, PLAIN_JSON))


def evaluation(name: str, folder: Path) -> Target:
    now = MapEvaluation(made_judgement(queries=6, images=4, depth=3), GroundTruth("near", "f", (), ()), "none", (), ())
    write_json(folder / "before.json", make_result(now, worst=2).to_dict())
    files = files_below(folder, "*.json")

    def read(folder: Path, victim: str, changed: bool) -> None:
        both = compare_with_file(now, folder / victim)
        score_table([score_run(both, run) for run in both.runs])
        embed_json(page_content(both))

    return Target(name, files, read, dict.fromkeys(files, PLAIN_JSON))


def vocabulary(name: str, folder: Path) -> Target:
    words = np.random.default_rng(0).normal(size=(8, 6))
    np.save(folder / "plain.npy", words.astype(np.float32))
    np.save(folder / "columns.npy", np.asfortranarray(words))
    stream = io.BytesIO()
    np.lib.format.write_array(stream, words, version=(2, 0))
    (folder / "second.npy").write_bytes(stream.getvalue())
    files = files_below(folder, "*.npy")

    def read(folder: Path, victim: str, changed: bool) -> None:
        assert np.isfinite(load_vocabulary(folder / victim)).all()

    return Target(name, files, read)
