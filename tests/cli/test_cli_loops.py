"""`tfa loops`: a drive of two laps, its files, its state, and bad input."""

import csv
import json
import re

import numpy as np
import pytest
from PIL import Image

from tests.exports.answers.test_recording import by_rosbags as read_messages
from tests.photos.recordings.made import IMAGES, drive_rows, write_bag
from tests.walkthrough.commands import HOW_TO, follow

LAP = 60


@pytest.fixture
def drive(fake_encoder):
    """Two laps of frames with names in order, and one that cannot be read."""
    rng = np.random.default_rng(4)
    places = rng.integers(0, 2, (LAP, 8, 8, 3)) * 220
    (fake_encoder / "drive").mkdir()
    for row in range(2 * LAP):
        blocks = (places[row % LAP] + rng.integers(0, 35, (8, 8, 3))).astype(np.uint8)
        Image.fromarray(blocks).resize((28, 28), Image.Resampling.NEAREST).save(fake_encoder / f"drive/{row:03d}.png")
    (fake_encoder / "drive/050a.jpg").write_bytes(b"\xff\xd8\xff nonsense")
    return fake_encoder


def test_loops_are_written_in_every_format_and_the_run_resumes(run, drive):
    files = ["loops.csv", "loops.json", "loops.g2o", "loops.mcap", "pairs.txt"]
    outs = [part for file in files for part in ("--out", file)]
    done = run("loops", "drive", "--gap", "15", *outs, "--state", "drive.state", "--json", "--quiet")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert (result["frames"], result["sessions"]) == (2 * LAP, 1)
    assert result["skipped"][0]["file"].endswith("050a.jpg")
    assert all(loop["query"] >= LAP and abs(loop["query"] - LAP - loop["match"]) <= 1 for loop in result["loops"])
    assert json.loads((drive / "loops.json").read_text()) == result
    with open("loops.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 0.9 * LAP
    assert {int(row["query"]) - int(row["match"]) for row in rows} <= {LAP - 1, LAP, LAP + 1}
    edges = (drive / "loops.g2o").read_text().splitlines()
    assert edges[0].split()[:3] == ["EDGE_SE2", rows[0]["match"], rows[0]["query"]]
    names = (drive / "pairs.txt").read_text().splitlines()
    assert len(edges) == len(names) == len(rows)
    assert names[0].split() == [f"{int(rows[0]['query']):03d}.png", f"{int(rows[0]['match']):03d}.png"]
    messages = read_messages(drive / "loops.mcap")
    times = [(one.header.stamp.sec, one.match.stamp.sec) for _, _, one in messages]
    assert times == [(int(row["query"]), int(row["match"])) for row in rows]  # without times, a second apart
    shown = [("" if one.heading != one.heading else f"{one.heading:.3f}") for _, _, one in messages]
    assert shown == [row["heading"] for row in rows]
    assert [f"{one.inliers:.0f}" for _, _, one in messages] == [row["inliers"] for row in rows]
    again = run("loops", "drive", "--gap", "15", "--state", "drive.state", "--json", "--quiet")
    assert json.loads(again.stdout)["loops"] == result["loops"]
    other = run("loops", "drive", "--gap", "16", "--state", "drive.state")
    assert other.exit_code == 2
    assert "other options" in other.stderr


def test_a_page_draws_the_drive_and_its_loops(run, drive):
    lines = [f"{row:03d}.png,{row % LAP}.0,{row // LAP}.5" for row in range(2 * LAP) if row != 3]
    (drive / "drive/positions.csv").write_text("\n".join(["file,x,y", *lines]), "utf-8")
    contents = []
    for options in ((), ("--positions", "drive/positions.csv")):
        done = run("loops", "drive", "--gap", "15", *options, "--html", "loops.html", "--out", "loops.csv", "--quiet")
        assert done.exit_code == 0, done.output
        page = (drive / "loops.html").read_text("utf-8")
        contents.append(json.loads(re.search(r'id="content">(.*)</script>', page)[1]))
    with open("loops.csv", newline="") as file:
        pairs = [(int(row["query"]), int(row["match"])) for row in csv.DictReader(file)]
    frames, plan = contents
    assert frames["track"] == [[0, 0], [2 * LAP, 2 * LAP]]
    assert [loop[0] for loop in frames["loops"]] == [list(pair) for pair in pairs]
    assert plan["track"][:5] == [[0.0, 0.5], [1.0, 0.5], [2.0, 0.5], None, [4.0, 0.5]]
    placed = [(query, match) for query, match in pairs if match != 3]  # frame 3 has no position
    assert [loop[:2] for loop in plan["loops"]] == [[[q % LAP, 1.5], [m % LAP, m // LAP + 0.5]] for q, m in placed]
    assert frames["closed"] == []
    assert len(plan["closed"]) == 2 * LAP - 1
    gaps = [np.linalg.norm(np.subtract(*(plan["closed"][one - (one > 3)] for one in pair))) for pair in placed]
    assert np.mean(gaps) < 0.9  # 1 m before
    assert plan["loops"][-1][2].startswith(f"drive/{pairs[-1][0]:03d}.png shows drive/{pairs[-1][1]:03d}.png")


def test_bad_values_are_refused_before_the_work(run, drive):
    for options, message in (
        (("--out", "loops.xlsx"), "must end in one of .csv .json .g2o .mcap .txt"),
        (("--gap", "far"), "--gap: 'far' is not allowed; use 60 (frames), 20m, 30s or 2min"),
        (("--gap", "30s"), "needs the time of every frame"),
        (("--gap", "20m"), "needs the position of every frame"),
        (("--session-breaks", "3"), "30s or 10min"),
    ):
        refused = run("loops", "drive", *options)
        assert refused.exit_code == 2, refused.output
        assert message in refused.stderr


def test_a_single_frame_has_no_loops(run, drive):
    done = run("loops", "drive/000.png")
    assert done.exit_code == 0, done.output
    assert "0 frames of 1 show an earlier place" in done.stdout


def test_the_page_is_followed(run, drive):
    [said] = follow(HOW_TO / "close-loops.md", run)
    assert re.search(r"(\d+) frames of 120 show an earlier place", said)
    assert (drive / "loops.csv").read_text().count("\n") > 40


def test_a_bag_has_times_but_no_path(run, fake_encoder):
    write_bag(fake_encoder / "made/drive.mcap", drive_rows(30)).rename(fake_encoder / "drive.mcap")
    how = ("--topic", IMAGES, "--every", "3", "--json", "--quiet")
    done = run("loops", "drive.mcap", "--gap", "2s", "--session-breaks", "10min", *how)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert (result["frames"], result["sessions"], result["loops"]) == (10, 1, [])
    stated = ("--gap", "4", "--state", "bag.state", *how)
    assert run("loops", "drive.mcap", *stated).exit_code == run("loops", "drive.mcap", *stated).exit_code == 0
    refused = run("loops", "drive.mcap", "--gap", "20m", *how)
    assert refused.exit_code == 2
    assert "first run: tfa frames drive.mcap --out FOLDER" in refused.stderr
