"""The house: what lies where. Which room may import which is the contract of import-linter in pyproject.toml."""

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

MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def test_the_top_holds_the_tour_and_the_public_names_alone():
    assert {file.stem for file in PACKAGE.glob("*.py")} == {
        "__init__",
        "__main__",
        "_http",
        "client",
        "version",
        "errors",
        "pipeline",
        "types",
    }


@pytest.mark.parametrize("room", sorted({file.parent for file in MODULES}), ids=lambda room: room.name)
def test_every_room_has_a_sign_at_its_door(room):
    sign = ast.get_docstring(ast.parse((room / "__init__.py").read_text("utf-8")))
    assert sign is not None, f"{room.name}/__init__.py says neither what comes in nor what goes out"
    assert len(sign) > 30


def test_imports_are_absolute():
    relative = [
        f"{name_of(file)}:{node.lineno}"
        for file in MODULES
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


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
    words = [".." + "/shared", "/" + "work/"] + [
        name + ".md" for name in ("METHOD", "ENGINES", "PEERS", "STYLE", "HOUSE", "REVIEW", "TRAINED", "SCALE")
    ]
    found = []
    for file in tracked_files():
        try:
            text = file.read_text("utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        found += [f"{file.relative_to(ROOT)}: {word}" for word in words if word in text]
    assert found == []


def test_no_function_takes_more_than_eight_parameters():
    """A longer list hides an options object. Verbs of the command line are exempt: each option is a parameter."""
    long = []
    for file in MODULES:
        if name_of(file).startswith("cli/"):
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args
                names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
                names += [one.arg for one in (given.vararg, given.kwarg) if one is not None]
                count = len(names) - (names[:1] in (["self"], ["cls"]))
                if count > 8:
                    long.append(f"{name_of(file)}: {node.name} takes {count}")
    assert long == []
