"""Dependencies point one way: the imports of the package, read without running it."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tfa

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "tfa"

# A stage may import what stands before it. CONTRIBUTING.md shows the same order.
STAGES = [
    "version", "errors", "config", "progress", "arrays", "tokens", "storage", "vocabulary_files", "images",
    "encoders", "shards", "cache", "lloyd", "vocabulary", "residual_pass", "residuals", "geometry", "evidence",
    "branches", "controllers",
    "levels_kernel", "levels", "products", "scoring", "coarse", "attribution", "retriever", "score_calibration",
    "self_calibration", "sequences", "verification", "head", "admission", "pipeline", "dual",
    "positions", "maps", "client_forms", "client", "contributions", "exports", "montage", "heat_drawing",
    "matches_drawing", "bench", "report", "service", "demo", "cli",
]  # fmt: skip
ALONE = {
    "reference",
    "reference_relation",
    "reference_target",
}  # the plain forms: they import no stage, and none imports them
FACADES = {"__init__", "__main__"}  # of the package itself: they point to stages and hold nothing
NUMERICS = [
    "lloyd", "vocabulary", "residual_pass", "residuals", "geometry", "evidence", "branches", "controllers", "levels",
    "products", "scoring", "coarse", "attribution", "retriever", "score_calibration", "sequences", "verification",
    "head", "admission", "reference", "reference_relation", "reference_target",
]  # fmt: skip
FILES_AND_SHELLS = {
    "storage", "vocabulary_files", "images", "shards", "cache", "encoders", "pipeline", "dual", "positions", "maps",
    "self_calibration", "client_forms", "client", "contributions", "exports", "montage", "heat_drawing",
    "matches_drawing", "bench", "report", "service", "demo", "cli",
}  # fmt: skip


def stage_of(file: Path) -> str:
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


MODULES = sorted(PACKAGE.rglob("*.py"))
STAGED = [file for file in MODULES if stage_of(file) not in FACADES]


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def imports(file: Path) -> set[str]:
    """Dotted names imported anywhere in a file: at the top, in a function, for type checkers."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute here"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def stages_imported(file: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(file) if name.startswith("tfa.")}


def packages_imported(file: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(file)}


def test_every_module_has_its_place():
    assert MODULES
    assert {stage_of(file) for file in STAGED} == set(STAGES) | ALONE


@pytest.mark.parametrize("file", STAGED, ids=name_of)
def test_earlier_stages_never_import_later_ones(file):
    if stage_of(file) in ALONE:
        assert stages_imported(file) <= {"reference", "reference_relation"}
        return
    own = STAGES.index(stage_of(file))
    imported = stages_imported(file)
    assert imported <= set(STAGES), "an import of something that is no stage"
    assert [stage for stage in STAGES if stage in imported and STAGES.index(stage) > own] == []


@pytest.mark.parametrize("file", [file for file in STAGED if stage_of(file) in NUMERICS], ids=name_of)
def test_numerics_know_no_files_and_no_shells(file):
    assert not stages_imported(file) & FILES_AND_SHELLS
    assert not packages_imported(file) & {"PIL", "safetensors", "torch", "transformers", "typer", "rich", "json"}


def test_only_the_command_line_imports_typer():
    assert {stage_of(file) for file in MODULES if "typer" in packages_imported(file)} == {"cli"}


def test_no_module_is_a_drawer_for_everything():
    assert not [name_of(file) for file in MODULES if {"util", "utils"} & set(Path(name_of(file)).with_suffix("").parts)]


def test_importing_the_package_is_light():
    code = (
        "import sys, tfa\n"
        "print(sorted({'torch', 'transformers', 'matplotlib', 'PIL', 'typer', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_resolves():
    assert tfa.__all__ == sorted(set(tfa.__all__))
    for name in tfa.__all__:
        assert getattr(tfa, name) is not None
    assert set(dir(tfa)) == set(tfa.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        tfa.no_such_name  # noqa: B018


def tracked_files() -> list[Path]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_speaks_of_the_place_it_was_written_in():
    # In pieces, so that this file does not contain them.
    words = [".." + "/shared", "/" + "work/"] + [name + ".md" for name in ("METHOD", "ENGINES", "PEERS", "STYLE")]
    found = []
    for file in tracked_files():
        try:
            text = file.read_text("utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        found += [f"{file.relative_to(ROOT)}: {word}" for word in words if word in text]
    assert found == []
