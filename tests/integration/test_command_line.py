"""The real command line with a real encoder, from photos to places."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from tfa.cli.app import app

pytestmark = pytest.mark.slow

ENCODER = "dinov2-s14@112/l1-token"  # two blocks are enough to tell rendered façades apart


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def run(work):
    """The command line in this process: another one takes seconds to import what this one has."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(work).items():
            patch.setenv(name, value)
        patch.chdir(work)

        def call(*arguments, expect=0):
            done = CliRunner().invoke(app, [*map(str, arguments)], prog_name="tfa")
            assert done.exit_code == expect, done.stdout + done.stderr
            assert "Traceback" not in done.stderr
            return done

        yield call


@pytest.fixture(scope="module")
def run_alone(work):
    """The command line in a process of its own, with no way to a model hub."""

    def call(*arguments, expect=0):
        done = subprocess.run(
            [sys.executable, "-m", "tfa", *map(str, arguments)],
            capture_output=True, text=True, check=False, cwd=work, env={**os.environ, **environment(work)},
        )  # fmt: skip
        assert done.returncode == expect, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return call


def environment(work):
    return {"TFA_CACHE": str(work / "cache"), "HF_HUB_OFFLINE": "1", "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


@pytest.fixture(scope="module")
def built(run_alone, work, town, random_weights):
    options = ("--encoder", ENCODER, "--weights", random_weights, "--positions", town.positions_csv)
    options += ("--set", "head.words=16")
    done = run_alone("build", town.references, "--out", work / "town.tfa", *options)
    assert "20" in done.stdout
    return work / "town.tfa"


def test_answers_in_json(run, run_alone, built, town):
    words = ("query", built, town.queries, "-k", 5, "--no-rerank", "--json")
    answers = json.loads(run_alone(*words).stdout)["answers"]
    assert json.loads(run(*words).stdout)["answers"] == answers
    assert [Path(a["query"]).name for a in answers] == town.query_files
    for answer in answers:
        assert [set(hit) for hit in answer["hits"]] == [
            {"image", "id", "score", "confidence", "inliers", "sure", "position"}
        ] * 5
        assert set(answer["hits"][0]["position"]) == {"x", "y"}
        scores = [hit["score"] for hit in answer["hits"]]
        assert scores == sorted(scores, reverse=True)


def test_every_reference_finds_itself(run, built, town):
    answers = json.loads(run("query", built, town.references, "-k", 1, "--json").stdout)["answers"]
    assert [Path(a["hits"][0]["image"]).name for a in answers] == town.reference_files


def test_human_output_and_montage(run, built, town, work):
    done = run("query", built, town.queries / town.query_files[0], "-k", 3, "--montage", work / "answer.png")
    assert town.reference_files[0][:4] in done.stdout
    with Image.open(work / "answer.png") as picture:
        assert picture.width > 3 * 200


def test_info_tells_decisions_with_reasons(run, built):
    text = run("info", built, "--evidence").stdout
    facts = json.loads(run("info", built, "--json").stdout)
    assert facts["encoder"]["id"] == "dinov2-s14@112/l1"  # the canonical form leaves the default facet out
    assert facts["positions"] == 20
    assert facts["decisions"]["carrier"] in text
    assert facts["reasons"]["carrier"] in " ".join(text.split())


def test_no_place_below_the_asked_confidence(run, built, elsewhere):
    strangers = sorted(elsewhere.rglob("*.jpg"))
    sure = [a["hits"][0]["confidence"] for a in json.loads(run("query", built, *strangers, "--json").stdout)["answers"]]
    bar = min(min(sure) + 1e-6, 1.0)
    answers = json.loads(run("query", built, *strangers, "--json", "--min-confidence", bar).stdout)["answers"]
    assert [bool(a["hits"]) for a in answers] == [value >= bar for value in sure]
    assert min(sure) < 1
    assert not all(a["hits"] for a in answers)
    assert "between 0 and 1" in run("query", built, strangers[0], "--min-confidence", 50, expect=2).stderr


def test_calibrate_and_go_back(run, built, town):
    camera = [town.queries / name for name in town.query_files[:9]]
    told = json.loads(run("calibrate", built, *camera, "--name", "dusk", "--json").stdout)
    assert told["name"] == "dusk"
    assert told["decisions"]["representation"] == "second_order"
    assert told["decisions"]["centring"]
    facts = json.loads(run("info", built, "--json").stdout)
    assert [entry["name"] for entry in facts["calibrations"]] == ["dusk"]
    asked = town.queries / town.query_files[9]

    def scores(*options):
        return [
            hit["score"]
            for hit in json.loads(run("query", built, asked, "--json", *options).stdout)["answers"][0]["hits"]
        ]

    assert scores() == scores("--calibration", "dusk")
    assert scores("--calibration", "none") != scores()
    assert "dusk" in " ".join(run("query", built, asked, "--calibration", "noon", expect=1).stderr.split())
    in_map = town.references / town.reference_files[2]
    assert town.reference_files[2] in run("calibrate", built, in_map, *camera, expect=1).stderr


def test_add_remove_refit(run, built, town, work):
    new = town.queries / town.query_files[3]
    run("add", built, new)
    assert json.loads(run("info", built, "--json").stdout)["images"] == 21
    alone = run("query", built, new, "-k", 1, "--calibration", "none", "--json")
    assert json.loads(alone.stdout)["answers"][0]["hits"][0]["id"] == 20
    run("remove", built, new)
    run("remove", built, 0)
    assert json.loads(run("info", built, "--json").stdout)["images"] == 19
    run("refit", built)
    facts = json.loads(run("info", built, "--json").stdout)
    assert (facts["images"], facts["removed_images"], facts["unseen_share"]) == (19, 0, 0)
    assert json.loads(run("query", built, new, "-k", 30, "--json").stdout)["answers"][0]["hits"][-1]["id"] != 0


def test_bad_input_gets_one_readable_block(run, run_alone, built, town, work, random_weights):
    broken = work / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff nonsense")
    (work / "empty").mkdir(exist_ok=True)
    assert "broken.jpg" in run("query", built, broken, expect=1).stderr
    assert "empty" in run("build", work / "empty", "--out", work / "e.tfa", expect=1).stderr
    assert "nowhere" in run("query", work / "nowhere.tfa", broken, expect=1).stderr
    assert "exists" in run("build", town.references, "--out", built, expect=1).stderr
    text = run("build", town.references, "--out", work / "x.tfa", "--encoder", "dinov2-x14", expect=2).stderr
    assert "dinov2-s14" in text
    large = ("build", town.references, "--out", work / "x.tfa", "--encoder", "dinov2-b14")
    assert "--weights" in " ".join(run_alone(*large, expect=1).stderr.split())
    text = run(*large, "--weights", random_weights, expect=1).stderr
    assert "384" in text  # the width found, in place of 768
    assert not (work / "x.tfa").exists()
    text = run("remove", built, "zebra.jpg", expect=1).stderr
    assert "zebra.jpg" in text


def test_a_broken_photo_among_good_ones(run, town, work, random_weights):
    photos = work / "mixed"
    photos.mkdir()
    for name in town.reference_files[:5]:
        (photos / name).write_bytes((town.references / name).read_bytes())
    (photos / "torn.jpg").write_bytes((town.references / town.reference_files[6]).read_bytes()[:900])
    options = ("--out", work / "mixed.tfa", "--encoder", ENCODER, "--weights", random_weights)
    options += ("--set", "head.words=4")
    assert "torn.jpg" in run("build", photos, *options, expect=1).stderr
    done = run("build", photos, *options, "--skip-bad")
    assert "torn.jpg" in done.stdout + done.stderr
    assert json.loads(run("info", work / "mixed.tfa", "--json").stdout)["images"] == 5
