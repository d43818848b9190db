"""A map that its user may read and not write: it answers, and every edit is refused in a sentence.

Permissions mean nothing to root, so that as root the verbs are run by another user.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import Campaign, darker_photos
from tests.faults.verb_runs import NOBODY, exit_codes
from tests.golden.regenerate import HERE
from tfa.maps import PlaceMap

MAP, NEW, PHOTO = "town.tfa", "new.tfa", "photos/7.png"
READS = [["query", MAP, PHOTO], ["info", MAP, "--checksum"], ["explain", MAP, PHOTO]]
EDITS = [
    ["calibrate", MAP, "more"], ["add", MAP, "more/1.png"], ["remove", MAP, "1"], ["refit", MAP],
    ["build", "photos", "--out", MAP, "--force"], ["build", "photos", "--out", NEW],
]  # fmt: skip


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not that of pytest, which no other user may enter."""
    made = Path(tempfile.mkdtemp(prefix="tfa-read-only-"))
    try:
        for where in (made, made / "warm"):
            shutil.copytree(HERE / "judged", where / MAP)
            shutil.copytree(HERE / "photos", where / "photos")
            darker_photos(HERE / "photos", where / "more")
        for name in ("cache", "said"):
            (made / name).mkdir()
            os.chmod(made / name, 0o777)
        yield made
    finally:
        os.chmod(made, 0o755)
        os.chmod(made / MAP, 0o755)
        shutil.rmtree(made)


def test_a_map_that_cannot_be_written_answers_and_refuses_edits(campaign: Campaign, folder: Path) -> None:
    root, plan = os.geteuid() == 0, []
    for number, words in enumerate([*READS, *EDITS]):
        paths = (MAP, NEW, "photos", "more")
        warm = [f"warm/{word}" if "/" in word or word in paths else word for word in words]
        plan.append((warm, "here", str(folder / "said" / f"warm-{number}.txt")))
    for number, words in enumerate([*READS, *EDITS]):
        plan.append((words, "nobody" if root else "plain", str(folder / "said" / f"{number}.txt")))
    (folder / "plan.json").touch()
    os.chmod(folder / MAP, 0o555)
    if root:
        os.chmod(folder, 0o755)
        assert folder.stat().st_uid != NOBODY
    before = {file.name: file.read_bytes() for file in (folder / MAP).iterdir()}
    if not root:
        os.chmod(folder, 0o555)
    codes, wrong = exit_codes(plan, folder), []
    for (words, way, said), code in zip(plan, codes, strict=True):
        text = Path(said).read_text("utf-8", "replace")
        if way == "here":
            assert code == 0, text
            continue
        refused = words in EDITS
        sentences = [line for line in text.splitlines() if line.startswith("error: ")]
        good = (code, len(sentences)) == ((1, 1) if refused else (0, 0))
        if refused:
            good = good and "permission" in text.lower()
        if not good or "Traceback" in text or "defect" in text:
            wrong.append(f"{' '.join(words)}: exit code {code}\n{text}")
    campaign.count("commands on a read-only map", len(READS) + len(EDITS), len(wrong))
    assert wrong == []
    assert {file.name: file.read_bytes() for file in (folder / MAP).iterdir()} == before
    assert len(PlaceMap.load(folder / MAP, checksum=True)) > 0
