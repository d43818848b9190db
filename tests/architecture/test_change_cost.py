"""What a change costs: made-up changes, each a patch of few files of a copy of the package, arrive everywhere.

A patch names files below the repository: either their new text, or pieces to insert after a line that is there once.
`changed_copy.py` looks for the change, in a process that imports the copy.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.architecture.test_layout import ROOT
from tests.waiting import child_environment

pytestmark = pytest.mark.slow
COPIED = ("src/tfa", "benchmarks/src/tfa_bench", "ros")
Patch = Mapping[str, str | Sequence[tuple[str, str]]]  # file → its text, or pairs of a line and what follows it

HIT: Patch = {
    "src/tfa/types.py": [
        (
            '    sure: bool = opt(False, "Whether the hit is reliable.")',
            '    rank: int = opt(0, "Place of the hit among its answer\'s hits, from 1.")',
        )
    ],
    "src/tfa/maps/answer.py": [
        (
            "            inliers=None if matches == UNVERIFIED else matches, sure=i in sure_images,",
            "            rank=len(hits) + 1,",
        )
    ],
    "ros/tfa_msgs/msg/Match.msg": [("bool sure             # whether it can be relied on", "int64 rank")],
}
OPTION: Patch = {
    "src/tfa/types.py": [
        (
            '    k: int = opt(5, "Hits per photo.", ge=1, le=1000)',
            '    skip: int = opt(0, "Leave out this many of the best hits.", ge=0, le=9)',
        )
    ],
    "src/tfa/maps/answer.py": [("            answers[photo] = answer", "            del answer.hits[: options.skip]")],
}
STORE: Patch = {
    "made-up/made_up_store.py": (ROOT / "examples/plugin/src/tfa_example_plugin/store.py").read_text("utf-8"),
    "made-up/pyproject.toml": (
        '[project]\nname = "made-up-store"\nversion = "1.0"\n'
        '[project.entry-points."tfa.stores"]\nmade-up = "made_up_store:open_store"\n'
    ),
}
# With a spread of its own: the carrier that costs most.
CARRIER: Patch = {
    "src/tfa/method/carriers.py": [
        ('    "full": "full whitening",', '    "slight": "plain and slightly whitened scores",'),
        (
            '    "sigma_partial": Sigma(0.5, "S_P", "spread of the partly whitened scores"),',
            '    "sigma_slight": Sigma(0.25, "S_¼", "spread of the slightly whitened scores"),',
        ),
        (
            '    "tempered": _tempered,',
            '    "slight": lambda of: (\n'
            '        KernelTerm(0.5 / of.sigma("sigma_original"), None),\n'
            '        KernelTerm(0.5 / of.sigma("sigma_slight"), 0.25),\n'
            "    ),",
        ),
    ],
    "src/tfa/reference/second_order.py": [
        (
            "        return pca.whitened(queries, database, FULL)",
            '    if carrier == "slight":\n'
            "        may, whitened = allowed(database), pca.whitened(queries, database, 0.25)\n"
            "        plain = queries @ database.T / median_spread(database @ database.T, may)\n"
            "        spread = median_spread(pca.whitened(database, database, 0.25), may)\n"
            "        return (plain + whitened / spread) / 2",
        )
    ],
}
ENCODER: Patch = {
    "src/tfa/encoders/catalogue.py": [
        (
            '    "dinov2": _DINOV2,',
            '    "made-up": replace(\n'
            '        _DINOV2, model="Dinov2WithRegisters", antialias=True, has_two_rules=False,\n'
            '        rules=((r"^made_up\\.", ""), *_DINOV2.rules),\n'
            "    ),",
        ),
        (
            "CATALOGUE: dict[str, Card] = {card.name: card for card in _CARDS}",
            'CATALOGUE["made-up-14"] = replace(\n'
            '    _dinov2("s", 4), name="made-up-14", family="made-up",\n'
            "    width=24, depth=3, heads=2, size=56, positions=3,\n"
            ")",
        ),
    ]
}
LAYOUT: Patch = {
    "benchmarks/src/tfa_bench/datasets/layouts/made_up.py": '''"""Images of one folder, by their first letter."""

from pathlib import Path

from tfa_bench.datasets.files import DatasetFiles, images_in, same_labels


def load(root: Path, *, query: str = "q") -> DatasetFiles:
    images = images_in(root)
    queries = tuple(image for image in images if image.name.startswith(query))
    database = tuple(image for image in images if image not in queries)
    labels = [[image.stem[1:] for image in part] for part in (database, queries)]
    return DatasetFiles(database, queries, same_labels(*labels))
''',
    "benchmarks/src/tfa_bench/datasets/catalogue/made-up-town.json": (
        '{"name": "made-up-town", "title": "Made up", "layout": "made_up", "options": {"query": "q"}, '
        '"positives": "the same number", "group": "Other", "citation": "none", "licence": "none", "get": "nowhere"}'
    ),
}
HEAD: Patch = {
    "benchmarks/src/tfa_bench/heads/made_up.py": '''"""Mean patches, compared by cosine."""

import numpy as np

from tfa_bench.heads.contract import ONLY, HeadCard, Photos, Shared


class MadeUpHead:
    replicas = (ONLY,)
    data_used = "nothing"

    def __init__(self, database: Photos) -> None:
        self.vectors = describe(database)

    def scores(self, queries: Photos, replica: str) -> np.ndarray:
        return describe(queries) @ self.vectors.T


def describe(photos: Photos) -> np.ndarray:
    means = np.stack([np.asarray(patches, np.float32).mean(axis=0) for patches in photos.tokens.patches])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def fit(database: Photos, shared: Shared) -> MadeUpHead:
    return MadeUpHead(database)


CARDS = (HeadCard(name="made-up", title="Made up", sees="nothing", fit=fit, stages=("peers",)),)
''',
    "benchmarks/src/tfa_bench/heads/catalogue.py": [
        ("_PEERS: Mapping[str, tuple[str, ...]] = {", '    "made_up": ("made-up",),')
    ],
}
# What is changed, the patch, and the files it may cost. The tests of an encoder, a layout and a head are one file each:
# a tiny card in tests/encoders/tiny.py, and a test module.
CHANGES = {
    "hit": (HIT, 3),
    "option": (OPTION, 2),
    "store": (STORE, 2),
    "carrier": (CARRIER, 2),
    "encoder": (ENCODER, 3 - 1),
    "layout": (LAYOUT, 3 - 1),
    "head": (HEAD, 2),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of the packages, laid out as in the repository; a test restores what it changes."""
    root = tmp_path_factory.mktemp("copy")
    for folder in COPIED:
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def change_text(text: str, pieces: Sequence[tuple[str, str]]) -> str:
    """Insert lines after others."""
    for line, following in pieces:
        assert text.count(f"{line}\n") == 1, f"the patch no longer fits; write it again for the code of today: {line}"
        text = text.replace(f"{line}\n", f"{line}\n{following}\n")
    return text


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_arrives_everywhere_at_its_price(name, copy, tmp_path):
    patch, most = CHANGES[name]
    assert len(patch) <= most
    before = {file: (copy / file).read_text("utf-8") if (copy / file).exists() else None for file in patch}
    for file, change in patch.items():
        text = change if isinstance(change, str) else change_text(before[file] or "", change)
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        (copy / file).write_text(text, "utf-8")
    try:
        paths = [copy / "src", copy / "benchmarks" / "src", copy / "ros" / "tfa_ros", copy / "made-up", ROOT]
        environment = child_environment(*paths, TFA_CACHE=str(tmp_path / "cache"), COLUMNS="200", NO_COLOR="1")
        command = [sys.executable, "-m", "tests.architecture.changed_copy", name, str(copy), str(tmp_path)]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    finally:
        for file, text in before.items():
            if text is None:
                (copy / file).unlink()
            else:
                (copy / file).write_text(text, "utf-8")


def test_a_patch_that_no_longer_fits_is_named():
    with pytest.raises(AssertionError, match=r"no longer fits.*: gone"):
        change_text("here\n", [("gone", "new")])
