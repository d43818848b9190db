"""A real limit on memory, from hardly any to enough: a build ends with a map, or with one sentence and none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.faults.conftest import Campaign
from tests.faults.verb_runs import exit_codes
from tests.golden.regenerate import HERE
from tfa.maps import PlaceMap

FEW = (0, 3, 24, 512)  # megabytes above what is taken when all is imported
MANY = (0, 0.5, 1, 2, 3, *range(4, 260, 4), 512)


@pytest.mark.parametrize("there", [False, True], ids=["a new map", "a map there is"])
def test_a_build_within_limits_of_memory(campaign: Campaign, tmp_path: Path, there: bool) -> None:
    levels: tuple[float, ...] = MANY if campaign.full else FEW
    shutil.copytree(HERE / "photos", tmp_path / "photos")
    plan, maps = [], [tmp_path / f"{level}.tfa" for level in levels]
    for level, path in zip(levels, maps, strict=True):
        if there:
            shutil.copytree(HERE / "paper", path)
        words = ["build", "photos", "--out", str(path), "--force", "--quiet"]
        plan.append((words, f"memory {level}", str(tmp_path / f"{level}.txt")))
    codes, wrong = exit_codes(plan, tmp_path), []
    old = (HERE / "paper" / "map.json").read_bytes()
    for (_, way, said), path, code in zip(plan, maps, codes, strict=True):
        text = Path(said).read_text("utf-8", "replace")
        if code == 0:
            good = PlaceMap.load(path, checksum=True).state.head_kind == "second-order"
        else:  # OpenBLAS has a sentence of its own, and ends the process with it
            good = code == 1 and "memory" in text.lower() and len(text.splitlines()) == 1 and "Traceback" not in text
            good = good and ((path / "map.json").read_bytes() == old if there else not path.exists())
        if not good:
            wrong.append(f"{way}: exit code {code}\n{text}")
    campaign.count("builds under a memory limit", len(plan), len(wrong))
    assert wrong == []
    assert codes[0] == 1
    assert codes[-1] == 0
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert left == []
