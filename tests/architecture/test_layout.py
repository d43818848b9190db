"""The layout of the package. The contracts of import-linter in pyproject.toml say which package may import which."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tfa

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tfa"

MODULES = sorted(PACKAGE.rglob("*.py"))
BENCHMARK = ROOT / "benchmarks"
BENCHMARK_MODULES = sorted(BENCHMARK.rglob("*.py"))


def relative_name(file: Path) -> str:
    return file.relative_to(PACKAGE if file.is_relative_to(PACKAGE) else BENCHMARK).as_posix()


def test_the_top_level_holds_only_the_pipeline_and_the_public_names():
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


@pytest.mark.parametrize(
    "package", sorted({file.parent for file in (*MODULES, *BENCHMARK_MODULES)}), ids=lambda package: package.name
)
def test_every_package_has_a_docstring(package):
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8")))
    assert docstring is not None, f"{package.name}/__init__.py does not say what the package takes and returns"
    assert len(docstring) > 30


def test_imports_are_absolute():
    relative = [
        f"{relative_name(file)}:{node.lineno}"
        for file in (*MODULES, *BENCHMARK_MODULES)
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_no_module_is_called_utils():
    assert not [
        relative_name(file)
        for file in MODULES
        if {"util", "utils"} & set(Path(relative_name(file)).with_suffix("").parts)
    ]


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


def test_no_file_mentions_the_folder_it_was_written_in():
    # In pieces, so that this file does not contain them.
    words = [".." + "/shared", "/" + "work/"] + [
        name + ".md" for name in ("METHOD", "ENGINES", "PEERS", "STYLE", "HOUSE", "REVIEW", "TRAINED", "SCALE")
    ]
    mentions = []
    for file in tracked_files():
        try:
            text = file.read_text("utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        mentions += [f"{file.relative_to(ROOT)}: {word}" for word in words if word in text]
    assert mentions == []


def test_no_function_takes_more_than_eight_parameters():
    """A longer list hides an options object. Commands are exempt: each of their options is a parameter."""
    long = []
    for file in MODULES:
        if relative_name(file).startswith("cli/"):
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = node.args
                names = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
                names += [one.arg for one in (arguments.vararg, arguments.kwarg) if one is not None]
                count = len(names) - (names[:1] in (["self"], ["cls"]))
                if count > 8:
                    long.append(f"{relative_name(file)}: {node.name} takes {count}")
    assert long == []
