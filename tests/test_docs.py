"""Documentation: examples run, links work, code names exist, tables equal the output of commands."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

import tfa
from count_words import list_pages
from fill_tables import BLOCK, fill
from make_reference import COMMITTED, DOCS, PAGES, ROOT
from tests.fakes import FakeEncoder, random_image
from tfa.core.files import read_tensor_header
from tfa.maps import PlaceMap
from tfa.types import BuildOptions, HeadSpec

EXAMPLE_PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
RUNNABLE = re.compile(r"^<!-- run -->\n+```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def blocks() -> list:
    """Return the examples to run; those of how-to pages run in tests/walkthrough/test_how_to.py."""
    found = []
    for page in (page for page in EXAMPLE_PAGES if page.parent.name != "how-to"):
        for number, match in enumerate(RUNNABLE.finditer(page.read_text("utf-8"))):
            found.append(pytest.param(page, match, id=f"{page.name}-{number}"))
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder: eight photos, a calibrated map of them, and a fake encoder in place of the default one."""
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


def heading_anchors(text: str) -> set[str]:
    """Return the anchors that code hosts make from headings."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def pages_of_checkout() -> list[Path]:
    """Return every Markdown page of the repository."""
    folders = ("docs", "results", "examples", "ros", "plugins", "benchmarks", "src", "tests")
    return [*sorted(ROOT.glob("*.md")), *(page for name in folders for page in sorted((ROOT / name).rglob("*.md")))]


@pytest.mark.parametrize("page", pages_of_checkout(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_work_in_a_checkout(page: Path):
    for link in LINK.findall(re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)):
        if re.match(r"[a-z]+:", link):
            continue  # another site
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), link
        if anchor and file.suffix == ".md":
            assert anchor in heading_anchors(file.read_text("utf-8")), link


@pytest.mark.parametrize("name", COMMITTED)
def test_a_committed_reference_page_is_up_to_date(name: str):
    assert (DOCS / name).read_text("utf-8") == PAGES[name](), "run python docs/site/make_reference.py"


def pages_with_printed_tables() -> list[Path]:
    return [page for page in list_pages() if BLOCK.search(page.read_text("utf-8"))]


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with_printed_tables(), ids=lambda page: page.name)
def test_a_table_is_what_the_command_prints(page: Path):
    text = page.read_text("utf-8")
    assert fill(text) == text, "run python docs/site/fill_tables.py"
    assert all(len(block[4].splitlines()) > 2 for block in BLOCK.finditer(text))


def test_there_are_such_pages():
    names = {page.stem for page in pages_with_printed_tables()}
    assert {"README", "summary", "performance", "confidence", "choosing-the-head"} <= names


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


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


def resolve(name: str) -> object:
    """Return the module or attribute that a dotted name below `tfa` means."""
    found: object = tfa
    for depth, part in enumerate(name.split("."), start=1):
        if not hasattr(found, part):
            importlib.import_module(".".join(("tfa", *name.split(".")[:depth])))  # which sets it
        found = getattr(found, part)
    return found


CODE_PAGES = [DOCS / "explanation" / "method.md", DOCS / "architecture.md", ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("page", CODE_PAGES, ids=lambda page: page.name)
def test_names_of_the_code_exist(page: Path):
    text = page.read_text("utf-8")
    packages = "|".join(sorted(folder.parent.name for folder in (ROOT / "src" / "tfa").glob("*/__init__.py")))
    for name in set(re.findall(rf"`((?:{packages}|pipeline)\.(?!py`)[\w.]+)`", text)):
        assert resolve(name) is not None
    files = {f"src/tfa/{file}" for file in re.findall(rf"`((?:{packages})/[\w/]*(?:\.py)?)`", text)}
    files |= set(re.findall(r"`((?:tests|src|benchmarks|docs)/[\w/]+(?:\.py)?)`", text))
    assert [file for file in sorted(files) if not (ROOT / file).exists()] == []


@pytest.mark.parametrize("page", EXAMPLE_PAGES, ids=lambda page: page.name)
def test_public_names_exist(page: Path):
    names = set(re.findall(r"\btfa\.([A-Z][A-Za-z]+)\b", page.read_text("utf-8")))
    assert sorted(name for name in names if not hasattr(tfa, name)) == []
