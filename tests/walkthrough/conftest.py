"""The rendered town as the pages have it: photos/, positions.csv, positives.json, evening-walk/ and the rest."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.fakes import FakeEncoder
from tfa.demo.town import render_town

REFERENCES, QUERIES = 16, 10


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a newcomer has it after copying the demo's town; drawn once."""
    root = tmp_path_factory.mktemp("newcomer")
    town = render_town(root / "town", references=REFERENCES, queries=QUERIES, size=(96, 72))
    (root / "photos").mkdir()
    renamed = {name: f"{number:04d}.jpg" for number, name in enumerate(town.reference_files)}
    for name, short in renamed.items():
        shutil.copy(town.references / name, root / "photos" / short)
    positions = town.positions_csv.read_text("utf-8")
    for name, short in renamed.items():
        positions = positions.replace(name, short)
    (root / "positions.csv").write_text(positions, "utf-8")
    truth = {query: [renamed[name] for name in names] for query, names in town.positives.items()}
    (root / "positives.json").write_text(json.dumps(truth), "utf-8")
    for folder in ("evening-walk", "drive"):
        shutil.copytree(town.queries, root / folder)
    # Of the walk itself: two photos cannot be told apart in so small a picture by anything but their noise.
    (root / "robot-camera").mkdir()
    for name in town.query_files[::2]:
        shutil.copy(town.queries / name, root / "robot-camera" / name)
    shutil.copy(town.queries / town.query_files[4], root / "photo.jpg")
    shutil.copy(town.queries / town.query_files[7], root / "new.jpg")
    for part, source in (("database", town.references), ("queries", town.queries)):
        (root / "data" / "my-town" / part).mkdir(parents=True)
        for number, path in enumerate(sorted(source.glob("*.jpg"))[:QUERIES]):
            shutil.copy(path, root / "data" / "my-town" / part / f"{number:07d}.jpg")
    pairs = {f"{number:07d}.jpg": [f"{number:07d}.jpg"] for number in range(QUERIES)}
    (root / "data" / "my-town" / "positives.json").write_text(json.dumps(pairs), "utf-8")
    shutil.rmtree(root / "town")
    return root


@pytest.fixture
def newcomer(drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of one walk, with a quick encoder in place of the default one."""
    work = tmp_path / "work"
    shutil.copytree(drawn, work)
    monkeypatch.chdir(work)
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    import tfa.bench.run
    import tfa.maps.map  # noqa: F401

    for name, module in list(sys.modules.items()):
        if name.startswith("tfa.") and hasattr(module, "load_encoder"):
            monkeypatch.setattr(module, "load_encoder", lambda *_, **__: FakeEncoder())
    return work
