"""Tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io

from tests.benchmarks.synthetic_cells import OWN, PAPERS, cell
from tfa_bench.tables.table import comma_separated, escaped, latex, markdown, write_table
from tfa_bench.tables.table_specs import layout


def test_latex_prints_titles_as_they_are():
    assert escaped(r"50%_&#$~^{x}\ →") == (
        r"50\%\_\&\#\$\textasciitilde{}\textasciicircum{}\{x\}\textbackslash{} $\to$"
    )
    text = latex(layout("heads", [cell("a_b", 50.0, title="A_b & 100%", note="ours"), cell("c", 40.0)]))
    assert r"A\_b \& 100\%$^{o}$ & database & \textbf{50.00}" in text
    assert r"\underline{40.00}" in text
    assert text.count(r"\begin{") == text.count(r"\end{") == 2
    assert all(
        line.count("&") - line.count(r"\&") == 5
        for line in text.splitlines()
        if "& database &" in line and r"\\" in line
    )


def test_markdown_escapes_what_would_be_markup():
    text = markdown(layout("heads", [cell("a", 50.0, title="a|b_c*")]))
    assert r"| a\|b\_c\* |" in text


def test_csv_parses_back():
    cells = [cell("tfa", 84.5, encoder=PAPERS), cell("tfa-c64", 83.0, encoder=PAPERS, sds={1: 0.5})]
    cells += [cell("ria", 60.0, title='RIA, "log"', note="reconstruction"), cell("tfa", 70.0)]
    [first, second] = csv.DictReader(io.StringIO(comma_separated(layout("primary", cells))))
    assert (first["group"], first["dataset"], first["encoder"]) == ("Condition shift", "SPED", PAPERS)
    assert (float(first["TFA"]), float(first["TFA paper"])) == (84.5, 85.12)
    assert (first["TFA-C64 sd"], first["TFA-C64 paper sd"], first["SALAD mark"]) == ("0.50", "0.63", "r")
    assert (second['RIA, "log"'], second["TFA paper"], second["AnyLoc"]) == ("60.00", "", "")


def test_the_order_of_records_does_not_matter(tmp_path):
    cells = [cell(h, 50.0 + i, encoder=e) for i, h in enumerate(["tfa", "anyloc", "ria"]) for e in (OWN, PAPERS)]
    for render in (markdown, comma_separated, latex):
        assert render(layout("primary", cells)) == render(layout("primary", cells[::-1]))
    paths = write_table(layout("primary", cells), tmp_path / "new")
    assert [path.name for path in paths] == ["primary.md", "primary.csv", "primary.tex"]
    assert paths[0].read_text("utf-8") == markdown(layout("primary", cells))
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(path.name for path in paths)
