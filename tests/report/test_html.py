"""The skeleton that every report extends: all its files come with the package, all texts are escaped."""

import importlib.resources
import re
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from PIL import Image

from tfa.errors import TfaError
from tfa.report.html import ReportTable, embed_photo, render_template

REPORTS = [
    ("tfa.report", "map.html"),
    ("tfa.report", "loops.html"),
    ("tfa_bench.figures", "figures.html"),
    ("tfa.demo", "demo.html"),
]
SHARED = {"base.html", "macros.html", "style.css"}


@pytest.mark.parametrize(("package", "report"), REPORTS)
def test_a_report_extends_the_skeleton_and_all_it_names_comes_with_the_package(package, report):
    template = (importlib.resources.files(package) / "templates" / report).read_text("utf-8")
    shared = importlib.resources.files("tfa.report") / "templates"
    assert template.startswith('{% extends "base.html" %}')
    assert set(re.findall(r'"([a-z]+\.(?:html|css))"', template)) <= SHARED
    assert {file.name for file in shared.iterdir()} == SHARED | {"loops.html", "map.html", "plan_view.js"}
    assert "<style" not in template
    assert "| safe" not in template  # nothing is left unescaped


def test_a_page_escapes_its_texts_and_misses_no_value(tmp_path):
    template = tmp_path / "page.html"
    template.write_text(
        '{% extends "base.html" %}{% import "macros.html" as macros %}'
        "{% block body %}{{ macros.figure(source, '<i>', '</dd>') }}{% endblock %}"
    )
    page = render_template(template, title="<b>", intro=["a & b"], source='"')
    assert "<title>&lt;b&gt;</title>" in page
    assert "<p>a &amp; b</p>" in page
    assert 'alt="&lt;i&gt;" src="&#34;"' in page
    assert "<figcaption>&lt;/dd&gt;</figcaption>" in page
    assert "prefers-color-scheme: dark" in page
    with pytest.raises(UndefinedError):
        render_template(template, title="t", intro=[])


def test_pictures_are_embedded_as_files_or_as_jpeg(tmp_path):
    Image.new("RGBA", (4, 3), "#336699").save(tmp_path / "a.png")
    assert embed_photo(tmp_path / "a.png").startswith("data:image/png;base64,iVBOR")
    with Image.open(tmp_path / "a.png") as picture:
        assert embed_photo(picture).startswith("data:image/jpeg;base64,/9j/")
    for name, message in (("b.png", "not found"), ("c.svg", "must end in")):
        with pytest.raises(TfaError, match=message):
            embed_photo(Path(tmp_path / name))


def test_a_table_without_rows_has_no_columns():
    assert ReportTable([]).columns == []
