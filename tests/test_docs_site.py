"""The documentation site: links are moved, broken links are reported, every page is in the navigation."""

from __future__ import annotations

import tomllib

import pytest

import fill_tables
import make_reference
import make_site
import tfa

DOCS = make_reference.DOCS


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """A small project: a README, a page, a source file and a folder."""
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


def test_links_lead_to_where_the_pages_are_laid_out(pages):
    sources = {pages / "README.md": "index.md", pages / "docs" / "two.md": "two.md"}
    text = (pages / "README.md").read_text()
    assert make_site.move_links(text, pages / "README.md", sources, pages / "pages") == (
        "[one](two.md#two) [code](files/src/code.py.txt) folder [away](https://example.org/x) [here](#top)\n"
    )
    assert (pages / "pages" / "files" / "src" / "code.py.txt").read_text() == "pass\n"


def test_a_page_in_a_folder_finds_those_above_it(pages):
    guide = pages / "docs" / "how-to" / "one.md"  # which need not be a file: it may be generated
    sources = {guide: "how-to/one.md", pages / "docs" / "two.md": "two.md"}
    moved = make_site.move_links("[two](../two.md) [code](../../src/code.py)\n", guide, sources, pages / "pages")
    assert moved == "[two](../two.md) [code](../files/src/code.py.txt)\n"


def test_links_that_lead_nowhere_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#there"></a><a href="b.html#gone"></a><img src="no.png">')
    (tmp_path / "b.html").write_text('<h2 id="there"></h2><a href="a.html"></a><a href="https://example.org"></a>')
    assert make_site.find_broken_links(tmp_path) == ["a.html: b.html#gone", "a.html: no.png"]


def test_the_python_reference_has_every_public_name():
    entries = [line.rpartition(".")[2] for line in make_reference.python_page().splitlines() if line.startswith(":::")]
    assert sorted(entries) == sorted(set(tfa.__all__) - {"__version__"})


def test_every_page_is_in_the_navigation_once():
    navigation = tomllib.loads((DOCS / "site" / "zensical.toml").read_text("utf-8"))["project"]["nav"]
    named = []
    for entry in navigation:
        for target in entry.values():
            named += [target] if isinstance(target, str) else [page for one in target for page in one.values()]
    top = [place for name, place in make_site.ELSEWHERE.items() if "/" not in name]
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} | make_reference.PAGES.keys()
    assert sorted(named) == sorted([*top, *pages])


# --- generated pages -----------------------------------------------------------------------------------------------


def test_every_command_and_option_is_in_the_reference():
    for bench, page in ((False, make_reference.cli_page()), (True, make_reference.bench_page())):
        commands = make_reference.list_commands(bench=bench)
        assert commands
        for name, command in commands.items():
            section = page.partition(f"\n## tfa {name}\n")[2].partition("\n## ")[0]
            options = [one.opts[0] for one in command.params if one.param_type_name == "option" and not one.hidden]
            assert [one for one in options if one != "--help" and f"`{one}" not in section] == [], name
            assert [key for key in getattr(command.callback, "settable", {}) if f"`{key}`" not in section] == [], name


def test_defaults_come_from_the_parameter_or_from_its_help_text():
    page = make_reference.cli_page()
    assert "| `-k N (1..1000)` | `5` | Hits per photo. |" in page
    assert "| `--calibration NAME\\|none` | the active one | Calibration to use, or 'none'. |" in page
    assert "| `--online`, `--no-online` | on; off for maps built with --paper |" in page
    assert "| `--rerank`, `--no-rerank` | `--rerank` |" in page


def test_every_route_is_in_the_reference():
    page = make_reference.http_page()
    routes = [f"{method.upper()} {path}" for path, one in make_reference.openapi()["paths"].items() for method in one]
    assert len(routes) > 10
    assert [route for route in routes if f"### {route}\n" not in page] == []


def test_every_schema_and_every_value_is_in_the_reference():
    page = make_reference.json_page()
    files = [file.name for file in (DOCS / "schemas").glob("*.json") if file.name != "shared.schema.json"]
    assert [name for name in files if f"[{name}](../schemas/{name})" not in page] == []
    assert [name for name in make_reference.value_classes() if f"### {name}\n" not in page] == []


def test_tables_are_filled_by_what_commands_print(monkeypatch):
    monkeypatch.setattr(fill_tables, "print_tables", lambda command: [f"| {command} |\n", "| second |\n"])
    text = "<!-- table 2 of: tfa info -->\nold\n<!-- end of table -->\n"
    text += "<!-- table 1 of: python x -->\n<!-- end of table -->"
    assert fill_tables.fill(text) == (
        "<!-- table 2 of: tfa info -->\n| second |\n<!-- end of table -->\n"
        "<!-- table 1 of: python x -->\n| python x |\n<!-- end of table -->"
    )
