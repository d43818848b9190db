"""Names and docstrings use plain words. This is the words' contract, as import-linter's is that of the layers."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    name: folder
    for name, folder in {
        "tfa": ROOT / "src" / "tfa",
        "tfa_bench": ROOT / "benchmarks" / "src" / "tfa_bench",
        "tfa_milvus": ROOT / "plugins" / "tfa-milvus" / "src" / "tfa_milvus",
        "tfa_qdrant": ROOT / "plugins" / "tfa-qdrant" / "src" / "tfa_qdrant",
    }.items()
    if folder.is_dir()
}
FORBIDDEN = {"asked", "told", "found", "own", "kept", "given", "known", "wanted", "brought", "going"}
FORBIDDEN |= {"ask", "asks", "asking", "askable"}
# What every head and every dataset layout of the benchmark defines.
PROTOCOL = {"tfa_bench": {"load", "missing", "CARDS", "NEED_FILES", "TAKES_POSITIVES"}}
# Names that a library or a format prescribes.
EXEMPT = re.compile(r".*(NotFound|not_found)$", re.IGNORECASE)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def modules(package: str) -> list[Path]:
    return sorted(PACKAGES[package].rglob("*.py"))


def split_name(name: str) -> list[str]:
    """Split an identifier into lower-case words."""
    snake = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name.strip("_"))
    return [word for word in snake.lower().split("_") if word]


def is_forbidden(name: str) -> bool:
    words = split_name(name)
    return bool(words) and bool({words[0], words[-1]} & FORBIDDEN) and not EXEMPT.match(name)


def assigned_names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return [node.target.id] if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else []


def defined_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield parameters, attributes, classes, functions and module-level names, with their lines."""
    for node in tree.body:
        yield from ((node.lineno, name) for name in assigned_names(node))
    for node in ast.walk(tree):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node.lineno, node.name
        if isinstance(node, ast.ClassDef):
            yield from ((line.lineno, name) for line in node.body for name in assigned_names(line))
        if isinstance(node, FUNCTIONS):
            listed = node.args
            names = [*listed.posonlyargs, *listed.args, *listed.kwonlyargs, listed.vararg, listed.kwarg]
            yield from ((name.lineno, name.arg) for name in names if name is not None)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


@pytest.mark.parametrize("package", PACKAGES)
def test_names_use_plain_words(package: str):
    bad = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in modules(package)
        for line, name in [(1, file.stem), *defined_names(ast.parse(file.read_text("utf-8")))]
        if is_forbidden(name)
    ]
    assert bad == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_public_name_is_defined_once(package: str):
    homes = defaultdict(set)
    # The plain formulas of `reference` are called as in the code that they explain.
    for file in (one for one in modules(package) if one.parent.name != "reference"):
        for node in ast.parse(file.read_text("utf-8")).body:
            defines = isinstance(node, (*FUNCTIONS, ast.ClassDef))
            for name in [node.name] if defines else assigned_names(node):
                if not name.startswith("_"):
                    homes[name].add(str(file.relative_to(ROOT)))
    twice = {name: sorted(files) for name, files in homes.items() if len(files) > 1}
    assert {name: files for name, files in twice.items() if name not in PROTOCOL.get(package, ())} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_do_not_begin_with_of(package: str):
    bad = []
    for file in modules(package):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Module)):
                text = ast.get_docstring(node) or ""
                if text.startswith("Of "):
                    bad.append(f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}")
    assert bad == []


def test_the_check_of_names_finds_what_it_forbids():
    source = (
        "class Asked:\n    own: int\n    def told(self, known_names): self.kept = 1\nWANTED = 1\ndef not_found(): ...\n"
    )
    names = {name for _, name in defined_names(ast.parse(source)) if is_forbidden(name)}
    assert names == {"Asked", "own", "told", "known_names", "kept", "WANTED"}
