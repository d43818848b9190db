"""What the documents say is so: marked examples run, links lead somewhere, tables name everything there is."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import tfa
from tests.fakes import FakeEncoder, random_image
from tfa.core.files import read_tensor_header
from tfa.encoders import CATALOGUE
from tfa.maps import PlaceMap
from tfa.types import BuildOptions, HeadSpec

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MORE_PAGES = [ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
RUNNABLE = re.compile(r"^<!-- run -->\n+```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def blocks() -> list:
    """Of the pages; those of recipes are run where what they need is."""
    found = []
    for page in (page for page in PAGES if page.parent.name != "recipes"):
        for number, match in enumerate(RUNNABLE.finditer(page.read_text("utf-8"))):
            found.append(pytest.param(page, match, id=f"{page.name}-{number}"))
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where examples run: eight photos, a calibrated map of them, and a quick encoder in place of the default one."""
    monkeypatch.chdir(tmp_path)
    for name, module in list(sys.modules.items()):
        if name.startswith("tfa.") and hasattr(module, "load_encoder"):
            monkeypatch.setattr(module, "load_encoder", lambda *_, **__: FakeEncoder())
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "photos").mkdir()
    for number in range(8):
        random_image(number).save(tmp_path / "photos" / f"{number}.png")
    kept = BuildOptions(head="paper", storage="float16")
    built = PlaceMap.build(tmp_path / "photos", encoder=FakeEncoder(), spec=HeadSpec(words=4), map_spec=kept)
    built.save(tmp_path / "town.tfa")
    for number, name in enumerate(("photo.jpg", "new.jpg"), start=50):
        random_image(number).save(tmp_path / name)
    for number in range(100, 108):
        random_image(number).save(tmp_path / f"camera{number}.png")
    built.calibrate(sorted(tmp_path.glob("camera*.png")), name="night", score=True)
    return tmp_path


@pytest.mark.parametrize(("page", "block"), blocks())
def test_marked_examples_run(page, block, folder):
    before = page.read_text("utf-8")[: block.start(1)].count("\n")
    code = compile("\n" * before + block[1], str(page), "exec")  # errors then name the page's own line
    exec(code, {"__name__": "example"})


def test_there_are_examples():
    assert blocks()


def heading_anchors(page: Path) -> set[str]:
    """Anchors as GitHub makes them of headings."""
    prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES + MORE_PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in LINK.findall(page.read_text("utf-8")):
        if re.match(r"[a-z]+:", link):
            continue  # another site
        target, _, anchor = link.partition("#")
        file = (page.parent / target) if target else page
        assert file.exists(), f"{page.name}: {link}"
        if anchor and file.suffix == ".md":
            assert anchor in heading_anchors(file), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_links_to_the_glossary(page):
    assert page.name == "glossary.md" or "glossary.md)" in page.read_text("utf-8")


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")


def judged_names(folder) -> set[str]:
    """Fields and tensors that only a judged map has."""
    photos, kept = folder / "photos", BuildOptions(head="second-order", carrier="tempered", dims=8)
    built = PlaceMap.build(photos, encoder=FakeEncoder(), spec=HeadSpec(words=4), map_spec=kept)
    built.save(folder / "judged.tfa")
    built.calibrate(sorted(folder.glob("camera*.png")))
    header = json.loads((folder / "judged.tfa" / "map.json").read_text("utf-8"))
    names = {*header, *header["space"]}
    for head in header["heads"]:
        layout = head["layout"]
        names |= {*head["decisions"], *head["evidence"], *layout["sides"][0], "reduction", *layout["reduction"]}
    for file in header["files"]:
        if file["role"] in ("head", "gallery", "space", "coordinates"):
            tensors, _, _ = read_tensor_header(folder / "judged.tfa" / file["name"])
            for name in tensors:
                plain = name.replace("side0", "sideS").replace("space0", "spaceC")
                names.add(re.sub(r"^(calibrators|term)\d", r"\1P", plain.removesuffix(".step")))
    return names


def test_the_format_page_names_every_field_and_tensor(folder):
    town = folder / "town.tfa"
    header = json.loads((town / "map.json").read_text("utf-8"))
    records = json.loads(next(town.glob("images-*")).read_text("utf-8"))
    tensors, metadata, _ = read_tensor_header(next(town.glob("head-night-*")))
    tensors = {re.sub("^calibrators0", "calibratorsP", name.replace("side0", "sideS")) for name in tensors}
    names = {*header, *header["files"][0], *records[0], *(name for name in tensors if not name[-1].isdecimal())}
    names |= {*header["encoder"], *header["spec"]}
    for head in header["heads"]:
        names |= {*head, *head["decisions"], *(head["calibration"] or {})}
        names |= {f"sides[S].{key}" for key in head["layout"]["sides"][0]}
        names |= {f"terms[P].{key}" for key in head["layout"]["terms"][0]}
    names |= set(header["heads"][0]["evidence"])
    assert metadata == {"format": "tfa-place-map", "role": "head"}
    names |= judged_names(folder)
    text = page("reference/map-format.md")
    assert sorted(name for name in names if f"`{name}`" not in text) == []


def test_the_method_page_names_every_setting():
    rows = [f"| `{field.name}` | {field.default} |" for field in dataclasses.fields(HeadSpec)]
    assert [row for row in rows if row not in page("explanation/method.md")] == []


def resolved(name: str) -> object:
    """The module, or the attribute of one, that a dotted name below `tfa` means."""
    found: object = tfa
    for depth, part in enumerate(name.split("."), start=1):
        if not hasattr(found, part):
            importlib.import_module(".".join(("tfa", *name.split(".")[:depth])))  # which sets it
        found = getattr(found, part)
    return found


@pytest.mark.parametrize(
    "page", [ROOT / "docs" / "explanation" / "method.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_names_of_the_code_exist(page):
    text = page.read_text("utf-8")
    rooms = "|".join(sorted(folder.parent.name for folder in (ROOT / "src" / "tfa").glob("*/__init__.py")))
    names = set(re.findall(rf"`((?:{rooms}|pipeline)\.(?!py`)[\w.]+)`", text))
    for name in names:
        assert resolved(name) is not None
    files = {f"src/tfa/{file}" for file in re.findall(rf"`((?:{rooms})/[\w/]*(?:\.py)?)`", text)}
    files |= set(re.findall(r"`((?:tests|src)/[\w/]+(?:\.py)?)`", text))
    assert names | files
    assert [file for file in sorted(files) if not (ROOT / file).exists()] == []


def test_the_rooms_and_their_order_are_those_of_the_contract():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = [re.split(r" [:|] ", layer) for layer in contracts[0]["layers"] if layer != "__main__"]
    assert "```text\n" + "\n".join(", ".join(layer) for layer in layers) + "\n```" in text
    rooms = {folder.parent.name for folder in (ROOT / "src" / "tfa").glob("*/__init__.py")}
    assert rooms == set(re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \|$", text, re.MULTILINE)) & rooms


def test_the_encoders_page_tells_every_card():
    text = page("encoders.md")
    for card in CATALOGUE.values():
        hub = f"`{card.hub}`" if card.package is None else f"the package `{card.package.name}` {card.package.version}"
        row = f"| `{card.name}` | {hub} | {card.patch} | {card.width} | {card.depth} | {card.registers} | {card.size} |"
        assert row in text


def verbs(command, words=()):
    for name, inner in getattr(command, "commands", {}).items():
        yield from verbs(inner, (*words, name))
    if not hasattr(command, "commands"):
        yield " ".join(words), command


def app():
    from tfa.cli.app import app

    return app


def test_the_command_line_page_has_every_verb_and_option():
    told = dict(re.findall(r"^## tfa ([a-z ]+)\n(.*?)(?=^## |\Z)", page("cli.md"), re.MULTILINE | re.DOTALL))
    known = dict(verbs(typer.main.get_command(app())))
    assert set(told) == set(known)
    for verb, command in known.items():
        options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
        assert [o.opts[0] for o in options if not re.search(rf"[`\[ ]{o.opts[0]}\b", told[verb])] == [], verb
    assert any(parameter.opts[0] == "--positions" for parameter in known["build"].params)


@pytest.mark.slow
def test_the_readme_leads_with_what_the_records_say():
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = re.search(r"<!-- product: (.*?) -->\n(.*?)<!-- end of product -->", readme, re.DOTALL)
    assert shown is not None
    assert shown.start() < readme.index("\n## ")
    command = shown[1].split()
    found = CliRunner().invoke(app(), [*command[1:-1], str(ROOT / command[-1])])
    assert found.exit_code == 0, found.output
    table = [line for line in found.output.splitlines() if line.startswith("|")]
    assert shown[2].split("\n")[:-1] == table
    assert len(table) > 7


@pytest.mark.parametrize("part", ["engines", "switches", "killed", "replicas", "ray", "union", "reduction"])
def test_the_tables_of_scale_are_those_the_command_printed(part):
    from studies.scale.page import tables

    told = tables(json.loads((ROOT / "results" / "studies" / "scale.json").read_text("utf-8"))["rows"])
    shown = re.search(rf"<!-- scale: {part} -->\n(.*?)\n?<!-- end of {part} -->", page("scale.md"), re.DOTALL)
    assert shown is not None
    assert shown[1] == told[part]
