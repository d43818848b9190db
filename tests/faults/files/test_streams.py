"""Every verb that prints, with a standard closed, full or abandoned output."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.benchmarks.synthetic_records import ranking, synthetic_record, synthetic_truth
from tests.faults.conftest import Campaign, darker_photos
from tests.faults.verb_runs import STREAMS, exit_codes
from tests.golden.regenerate import HERE
from tfa_bench.records import record_path

MAP, PHOTO = "judged", "photos/7.png"
VERBS = [
    ["info", MAP], ["info", MAP, "--json"], ["query", MAP, PHOTO], ["query", MAP, "photos", "--json"],
    ["query", MAP, "photos"], ["explain", MAP, PHOTO], ["explain", MAP, PHOTO, "--json"], ["report", MAP],
    ["calibrate", MAP, "--activate", "none"], ["add", MAP, "more/10.png"], ["remove", MAP, "1"],
    ["calibrate", MAP, "--drop", "night"], ["pairs", MAP, "photos", "-o", "pairs.txt"],
    ["export", MAP, "--format", "npz", "-o", "map.npz", "--force"], ["encoders"], ["encoders", "--json"], ["cache"],
    ["bench", "datasets"], ["bench", "datasets", "sped"], ["bench", "heads"], ["bench", "score", "results"],
    ["build", "photos", "--out", "new.tfa", "--force"], ["build", "photos", "--out", "other.tfa", "--force", "--json"],
    ["refit", MAP], ["calibrate", MAP, "camera", "--name", "dusk"], ["add", MAP, "camera/1.png", "--json"],
    ["report", MAP, "-o", "report.html"], ["report", MAP, "--json"], ["refit", MAP, "--quiet"],
    ["query", MAP, "--sequence", "photos", "--json"], ["cache", "--json"], ["bench", "score", "results", "--json"],
    ["bench", "heads", "--json"], ["bench", "datasets", "--json"], ["bench", "table", "--help"], ["bench", "--help"],
    ["--help"], ["query", "--help"], ["serve", "--help"], ["demo", "--help"], ["bench", "run", "--help"],
    ["weights", "get", "--help"], ["--version"],
]  # fmt: skip
HELP = ("--help", "--version")  # printed before a verb is chosen
ONCE = ("remove", "--drop")  # what is gone cannot be taken away again


def verb_of(words: list[str]) -> tuple[str, ...]:
    """`query`, `bench score`; the help of a verb is another one."""
    return (*words[: 2 if words[0] == "bench" else 1], *(word for word in words if word in HELP))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (MAP, "photos"):
        shutil.copytree(HERE / name, tmp_path / name)
    darker_photos(HERE / "photos", tmp_path / "camera")
    shutil.copytree(HERE / "photos", tmp_path / "more")
    (tmp_path / "more/9.png").rename(tmp_path / "more/10.png")
    truth = synthetic_truth([[0], [1]])
    truth.write(tmp_path / "results/town")
    record = synthetic_record(truth, [[[ranking([0], 20)]], [[ranking([1], 20)]]])
    record.write(record_path(tmp_path / "results", "town", "tiny@28", "vlad"))
    return tmp_path


def test_the_end_is_quiet_and_the_exit_code_says_why(campaign: Campaign, folder: Path) -> None:
    plan: list[tuple[list[str], str, str]] = []
    for number, words in enumerate(VERBS):
        if not campaign.full and any(verb_of(words) == verb_of(earlier) for earlier in VERBS[:number]):
            continue
        # Each verb once and in one of the ways, or with all its options and in all of them.
        once = campaign.size(1, 3) == 1 or any(word in ONCE for word in words)
        tried = [STREAMS[number % 3]] if once else list(STREAMS)
        plan += [(words, kind, str(folder / f"{number}-{kind}.txt")) for kind in tried]
    codes, wrong = exit_codes(plan, folder), []
    for (words, kind, said), code in zip(plan, codes, strict=True):
        text = Path(said).read_text("utf-8", "replace")
        expected = {"closed": (0,), "full": (1,), "broken": (1, 141) if words[-1] in HELP else (141,)}[kind]
        complaint = "standard output (No space left on device)" in text
        quiet = "Traceback" not in text and "Exception ignored" not in text and "defect" not in text
        if code not in expected or not quiet or (complaint != (kind == "full") and words[-1] not in HELP):
            wrong.append(f"{' '.join(words)}, {kind}: exit code {code}\n{text}")
    campaign.count("closed, full or abandoned output", len(plan), len(wrong))
    assert wrong == []
