"""Damaged photos, tables, truth, records, vocabularies and weights: refused with one error, or read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import fuzz as fuzz_runner
from tests.faults.conftest import OUT, Campaign
from tests.faults.files import fuzzing
from tests.faults.files.fuzzing import fuzz, kept_seeds
from tests.faults.files.targets import CORPORA, FAILING_ON_PURPOSE, TARGETS, corpus, corpus_folder, load_target
from tests.faults.files.worker import hostile


def test_every_other_file(campaign: Campaign, tmp_path: Path) -> None:
    others = [name for name, (module, *_) in TARGETS.items() if module != "maps"]
    assert fuzz(others, campaign, tmp_path) == []


def test_a_seed_gives_the_same_damage_again(tmp_path: Path) -> None:
    first, second = (load_target("positions", tmp_path / name) for name in ("a", "b"))
    made = [hostile(first, seed) for seed in range(40)]
    assert made == [hostile(second, seed) for seed in range(40)]
    assert len({content for _, content in made}) > 30


def test_seeds_that_found_something_are_kept_and_tried_first() -> None:
    kept = kept_seeds()
    assert kept
    assert set(kept) <= set(TARGETS)


def test_what_goes_wrong_is_counted_with_its_seed_and_the_rest_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OUT, raising=False)
    jobs = [
        {"target": name, "folder": str(tmp_path / name), "seeds": [0, 1, 2], "seconds": 1 if name == "hangs" else 300}
        for name in FAILING_ON_PURPOSE
    ]
    found: dict[str, list[str]] = {}
    for line in fuzzing.run(jobs, tmp_path):
        if "problem" in line:
            found.setdefault(line["target"], []).append(line["problem"])
    assert {name: len(problems) for name, problems in found.items()} == dict.fromkeys(FAILING_ON_PURPOSE, 3)
    assert "KeyError: 'raw'" in found["raises"][0]
    assert "status 6" in found["crashes"][0]
    assert "status 14" in found["hangs"][0]
    assert "MemoryError" in found["fills"][0]
    assert "bytes of memory, more than" in found["takes"][0]
    assert "without words" in found["mumbles"][0]
    kept = sorted(path.name for path in (tmp_path / "inputs").iterdir())
    assert kept == sorted(f"{name}-{seed}-file" for name in FAILING_ON_PURPOSE for seed in range(3))


def test_stored_inputs_are_few_and_small() -> None:
    assert {folder.name for folder in CORPORA.iterdir()} == {corpus_folder(name).name for name in TARGETS}
    sizes = {name: [(corpus_folder(name) / one).stat().st_size for one in corpus(name)] for name in TARGETS}
    assert max(map(len, sizes.values())) <= fuzz_runner.MOST
    assert max(map(max, sizes.values())) <= fuzz_runner.LARGEST
    assert sum(map(sum, sizes.values())) < 400_000


@pytest.mark.parametrize("guided", [False, True])
def test_the_runner_finds_a_raw_error_and_repeats_it(
    guided: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if guided:
        pytest.importorskip("atheris", reason="atheris is not installed (pip install -e '.[fuzz]')")
    monkeypatch.setattr(fuzz_runner, "OUT", tmp_path)
    assert fuzz_runner.fuzz_target("raises", 1, 1, guided=guided, keeps=False) == 1
    said = capfd.readouterr().out
    assert "KeyError: 'raw'" in said
    (found,) = (tmp_path / "raises" / "file").glob("????????????")
    assert f"python -m tests.faults.fuzz 'raises' --input {found}" in said
    assert fuzz_runner.main(["raises", "--input", str(found)]) == 1
