"""The command line as a whole: help, version, exit codes, output streams."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes import random_image
from tests.waiting import child_environment
from tfa.errors import BadWeights
from tfa.types import EncoderOptions
from tfa.version import __version__

VERBS = [
    ["build"], ["query"], ["info"], ["calibrate"], ["add"], ["remove"], ["refit"], ["encoders"],
    ["weights"], ["weights", "get"], ["demo"], ["explain"], ["bench"],
    ["bench", "run"], ["bench", "heads"], ["bench", "datasets"], ["bench", "check"], ["bench", "score"],
    ["bench", "table"], ["bench", "results"], ["bench", "figures"], ["bench", "explore"],
    ["serve"], ["report"], ["pairs"], ["export"], ["evaluate"], ["speed"],

]  # fmt: skip


def test_help_lists_every_verb(run):
    result = run("--help")
    assert result.exit_code == 0
    for verb in VERBS:
        assert f" {verb[0]} " in result.stdout


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_help_shows_an_example(run, verb):
    result = run(*verb, "--help")
    assert result.exit_code == 0
    assert "Examples" in result.stdout
    assert f"$ tfa {' '.join(verb)}" in result.stdout


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["build", "--help"], ["encoders", "--help"]])
def test_help_and_version_stay_light(words):
    code = (
        "import sys\n"
        f"sys.argv = ['tfa', *{words!r}]\n"
        "from tfa.cli.app import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "heavy = {'torch', 'transformers', 'PIL', 'safetensors'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_version(run):
    assert run("--version").stdout == f"tfa {__version__}\n"


@pytest.mark.parametrize(
    "words",
    [
        ["fly"],
        ["build"],
        ["build", "photos"],
        ["build", "absent", "--out", "new.tfa"],
        ["build", "photos", "--out", "new.tfa", "--set", "head.words=0"],
        ["build", "photos", "--out", "new.tfa", "--weights", "absent.pth"],
        ["build", "photos", "--out", "new.tfa", "--positions", "absent.csv"],
        ["query", "town.tfa"],
        ["query", "town.tfa", "near.jpg", "-k", "0"],
        ["query", "town.tfa", "near.jpg", "--no-such-option"],
        ["query", "town.tfa", "near.jpg", "--montage", "answer.txt"],
        ["remove", "town.tfa"],
        ["calibrate", "town.tfa"],
        ["calibrate", "town.tfa", "photos", "--budget", "1"],
        ["demo", "--references", "1"],
        ["bench", "run", "--depth", "many"],
    ],
    ids=" ".join,
)
def test_usage_errors_exit_with_2(run, spy, folder, words):
    result = run(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert re.search(r"\nSee tfa [a-z ]*--help\.\n$", result.stderr)
    assert "Traceback" not in result.stderr
    assert spy.calls == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fly", "unknown command fly"),
        ("qeury", "unknown command qeury; did you mean query?"),
        ("weights gett", "unknown command gett; did you mean get?"),
        ("query town.tfa --montag x", "unknown option --montag; did you mean --montage?"),
        ("build", "missing PHOTOS"),
        ("export town.tfa", "missing --out"),
        ("query town.tfa --out", "--out needs a value"),
        ("info town.tfa near.jpg", "unexpected argument: near.jpg"),
        ("build photos --out a.tfa --head fancy", "--head: 'fancy' is unknown; use second-order, paper or paper-dual"),
        ("export town.tfa -o x --format csv", "--format: 'csv' is unknown; use npz, faiss, onnx-head, onnx or hloc"),
        ("build photos --out a.tfa --positions gone.csv", "--positions: 'gone.csv' does not exist"),
        ("query town.tfa near.jpg -k 0", "-k: 0 is out of range: must be between 1 and 1000"),
        (
            "explain town.tfa near.jpg --rank 99",
            "--rank: 99 is out of range: must be between 1 and 14, 1 is the best hit",
        ),
    ],
)
def test_a_usage_error_names_the_option_and_the_help(run, folder, words, said):
    result = run(*words.split())
    assert result.exit_code == 2
    error, see = result.stderr.splitlines()
    assert error == f"error: {said}"
    assert re.fullmatch(r"See tfa ([a-z]+ )?--help\.", see)


def test_messages_name_options_as_they_are_typed(capsys):
    from tfa.cli.console import show_error

    show_error("fix it, or use --skip-bad (skip_bad=True)", "cuda does not go with quiet=True (--quiet), give one")
    assert capsys.readouterr().err == "error: fix it, or use --skip-bad\ncuda does not go with --quiet, give one\n"


@pytest.mark.parametrize(
    "words",
    [
        ["explain", "town.tfa", "near.jpg"],
        ["pairs", "town.tfa", "near.jpg", "-o", "pairs.txt"],
        ["add", "town.tfa", "near.jpg"],
        ["calibrate", "town.tfa", "camera"],
        ["refit", "town.tfa"],
    ],
    ids=lambda words: words[0],
)
def test_every_verb_that_encodes_takes_the_same_options(run, spy, folder, words):
    (folder / "w.pth").touch()
    result = run(*words, "--weights", "w.pth", "--threads", 2, "--precision", "int8")
    assert result.exit_code == 0, result.stderr
    assert spy.given("use_encoder")["options"] == EncoderOptions(weights=Path("w.pth"), threads=2, precision="int8")


def test_an_error_is_one_block_and_exits_with_1(run, spy, folder):
    spy.raises = BadWeights("vit.pth has 3 keys too many: a, b, c", more=["give the file of dinov2-b14"])
    result = run("build", "photos", "--out", "new.tfa")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "error: vit.pth has 3 keys too many: a, b, c\ngive the file of dinov2-b14\n"


@pytest.mark.parametrize("place", [0, 5])
def test_debug_shows_the_traceback_wherever_it_stands(run, spy, folder, place):
    spy.raises = BadWeights("vit.pth is no weights file")
    words = ["build", "photos", "--out", "new.tfa", "-q"]
    result = run(*words[:place], "--debug", *words[place:])
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "in build" in result.stderr
    assert result.stderr.endswith("error: vit.pth is no weights file\n")


def test_debug_after_two_dashes_is_an_argument(run, spy, folder):
    result = run("remove", "town.tfa", "--", "--debug")
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr
    assert spy.given("remove")["photos"] == ["--debug"]


def test_a_defect_and_a_full_disk_are_readable_too(run, spy, folder):
    spy.raises = ZeroDivisionError("division by zero")
    result = run("info", "town.tfa")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ZeroDivisionError: division by zero\n")
    assert "This is a bug in tfa" in result.stderr
    assert "Traceback" not in result.stderr
    spy.raises = OSError(28, "No space left on device", "town.tfa/head.safetensors")
    said = run("info", "town.tfa").stderr
    assert said.startswith("error: the disk is full at town.tfa/head.safetensors (No space left on device); ")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(122, "Disk quota exceeded"), "error: the disk is full (Disk quota exceeded)"),
        (OSError(24, "Too many open files", "town.tfa"), "error: too many open files at town.tfa"),
        (MemoryError(), "error: out of memory; "),
        (MemoryError("Unable to allocate 3 GiB"), "error: out of memory (Unable to allocate 3 GiB); "),
    ],
)
def test_what_ran_out_is_no_defect(run, spy, folder, error, words):
    spy.raises = error
    result = run("info", "town.tfa")
    assert result.exit_code == 1
    assert result.stderr.startswith(words)
    assert "bug" not in result.stderr


def test_ctrl_c_says_what_is_kept(run, spy, folder):
    spy.raises = KeyboardInterrupt()
    result = run("build", "photos", "--out", "new.tfa")
    assert result.exit_code == 130
    assert "Encoded photos are cached in" in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_a_title_is_red_on_a_terminal(monkeypatch, capsys):
    from tfa.cli.console import show_error

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    show_error("no [such] photo")
    assert capsys.readouterr().err == "\x1b[1;31merror:\x1b[0m no [such] photo\n"


def test_a_terminal_without_greek_shows_question_marks(tmp_path):
    name = tmp_path / "σ.tfa"
    name.mkdir()
    command = [sys.executable, "-m", "tfa", "build", str(tmp_path), "--out", str(name)]
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment(PYTHONIOENCODING="ascii"))
    assert done.returncode == 1
    assert "?.tfa exists already" in done.stderr


def test_a_closed_pipe_is_no_error():
    command = [sys.executable, "-m", "tfa", "encoders"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdout.close()
        assert running.stderr.read() == b""


def test_a_real_ctrl_c(tmp_path):
    code = (
        "import signal, sys, time, types, tfa.maps\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in a background job
        "def build(photos, **given):\n"
        "    print('begun', file=sys.stderr, flush=True)\n"
        "    time.sleep(60)\n"
        "tfa.maps.PlaceMap = types.SimpleNamespace(build=build)\n"
        "from tfa.cli.app import main\n"
        f"sys.argv = ['tfa', 'build', {str(tmp_path)!r}, '--out', {str(tmp_path / 'new.tfa')!r}]\n"
        "main()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr.readline() == "begun\n"
        running.send_signal(signal.SIGINT)
        told = running.stderr.read()
    assert running.returncode == 130
    assert told.startswith("\ninterrupted. No saved map was changed.")
    assert "Traceback" not in told


OPTIMIZED = """
import runpy, sys
import tfa.encoders, tfa.maps.map
from tests.fakes import FakeEncoder
tfa.encoders.load_encoder = tfa.maps.map.load_encoder = lambda *_, **__: FakeEncoder()
sys.argv[0] = "tfa"
runpy.run_module("tfa", run_name="__main__", alter_sys=True)
"""


def test_python_without_asserts_and_docstrings_gives_the_same_answers(tmp_path):
    """Build and query with `python -OO -m tfa` and without -OO."""
    for place in range(12):
        (tmp_path / "photos").mkdir(exist_ok=True)
        random_image(place).save(tmp_path / "photos" / f"{place:02}.png")
    random_image(3).point(lambda value: min(value + 6, 255)).save(tmp_path / "query.png")
    answers = []
    for number, flags in enumerate(([], ["-OO"])):
        environment = child_environment(Path(__file__).parents[2], TFA_CACHE=str(tmp_path / f"cache{number}"))
        out = f"{number}.tfa"
        for words in (["build", "photos", "--out", out, "--json"], ["query", out, "query.png", "--json"]):
            command = [sys.executable, *flags, "-c", OPTIMIZED, *words]
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout.replace(out, "town.tfa")))
    assert answers[0] == answers[1]
    assert "03.png" in json.dumps(answers[0])
    tensors = [{file.name: file.read_bytes() for file in (tmp_path / f"{n}.tfa").glob("*.safetensors")} for n in (0, 1)]
    assert tensors[0] == tensors[1] != {}
