"""The site of the documentation: links move with the pages, broken ones are found, every page is in the menu."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path

import pytest

import tfa

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def make_site():
    spec = importlib.util.spec_from_file_location("make_site", ROOT / "docs" / "site" / "make_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pages(tmp_path, make_site, monkeypatch):
    """Of a small project: a README, two pages, a source file and a folder."""
    monkeypatch.setattr(make_site, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "code.py").write_text("pass\n")
    (tmp_path / "docs" / "two.md").write_text("# Two\n")
    (tmp_path / "README.md").write_text(
        "[one](docs/two.md#two) [code](src/code.py) [folder](src) [away](https://example.org/x) [here](#top)\n"
    )
    (tmp_path / "pages").mkdir()
    return tmp_path


def test_links_lead_to_where_the_pages_are_laid_out(pages, make_site):
    sources = {pages / "README.md": "index.md", pages / "docs" / "two.md": "two.md"}
    assert make_site.moved(pages / "README.md", sources, pages / "pages") == (
        "[one](two.md#two) [code](files/src/code.py.txt) folder [away](https://example.org/x) [here](#top)\n"
    )
    assert (pages / "pages" / "files" / "src" / "code.py.txt").read_text() == "pass\n"


def test_a_page_in_a_folder_finds_those_above_it(pages, make_site):
    (pages / "docs" / "recipes").mkdir()
    recipe = pages / "docs" / "recipes" / "one.md"
    recipe.write_text("[two](../two.md) [code](../../src/code.py)\n")
    sources = {recipe: "recipes/one.md", pages / "docs" / "two.md": "two.md"}
    moved = make_site.moved(recipe, sources, pages / "pages")
    assert moved == "[two](../two.md) [code](../files/src/code.py.txt)\n"


def test_links_that_lead_nowhere_are_found(tmp_path, make_site):
    (tmp_path / "a.html").write_text('<a href="b.html#there"></a><a href="b.html#gone"></a><img src="no.png">')
    (tmp_path / "b.html").write_text('<h2 id="there"></h2><a href="a.html"></a><a href="https://example.org"></a>')
    assert make_site.broken_links(tmp_path) == ["a.html: b.html#gone", "a.html: no.png"]


def test_the_reference_has_every_public_name(make_site):
    entries = [line.rpartition(".")[2] for line in make_site.reference().splitlines() if line.startswith(":::")]
    assert sorted(entries) == sorted(set(tfa.__all__) - {"__version__"})


def test_every_page_is_in_the_menu_once(make_site):
    menu = tomllib.loads((ROOT / "docs" / "site" / "zensical.toml").read_text("utf-8"))["project"]["nav"]
    named = []
    for entry in menu:
        for target in entry.values():
            named += [target] if isinstance(target, str) else [page for own in target for page in own.values()]
    top = [name for name in make_site.FROM_TOP if name != "README.md"]
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted(["index.md", "api.md", *top, *pages])
