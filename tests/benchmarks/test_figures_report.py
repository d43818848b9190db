"""The figure report embeds every picture, loads nothing, and names missing data."""

from __future__ import annotations

import builtins
import re
import subprocess
import sys

import pytest
from PIL import Image

from tests.benchmarks.figure_records import synthetic_truth, write_photos, write_record, write_town
from tfa.errors import BadSpec, MissingExtra
from tfa_bench.figures.plots import find_studies
from tfa_bench.figures.report import find_families, write_figures
from tfa_bench.protocols import FULL_QUERY, budget
from tfa_bench.records import BadRecord

pytestmark = pytest.mark.slow


@pytest.fixture
def town(tmp_path):
    return write_town(tmp_path / "results")


@pytest.mark.slow
def test_the_report_embeds_every_picture_and_names_no_address(town, tmp_path):
    results, truth = town
    write_record(results, truth, "tfa-c8", plan=budget(8, splits=2))
    write_record(results, truth, "tfa-full", plan=FULL_QUERY)
    out = tmp_path / "out"
    written = write_figures(results, out, photos={"town": write_photos(tmp_path / "photos", truth)})
    folder = out / "town" / "fake-s8@32"
    names = ["calibration", "precision-recall", "evidence", "scores", "successes", "failures"]
    assert written == [*(folder / f"{name}.png" for name in names), out / "report.html"]
    for path in written[:-1]:
        with Image.open(path) as picture:
            assert picture.format == "PNG"
            assert min(picture.size) > 300
            assert len(picture.convert("RGB").getcolors(maxcolors=1 << 20)) > 5
    page = written[-1].read_text("utf-8")
    images = re.findall(r'<img class="\w+" alt="([^"]+)" src="data:image/(png|jpeg);base64,[\w+/=]+">', page)
    assert [kind for _, kind in images] == ["png"] * 4 + ["jpeg"] * 2
    assert "uncalibrated 75.0" in images[0][0]
    assert page.count("<img") == 6
    assert not re.search(r"https?:|<script|<link|url\(", page)
    assert "12 queries. Encoder: fake-s8@32. A positive: the same frame." in page
    assert "The town &lt;&amp;&gt;" in page
    assert "prefers-color-scheme: dark" in page
    assert '<th scope="row">Head &lt;anyloc&gt;<br><code>anyloc</code></th><td class="n">58.3</td>' in page
    assert not list(tmp_path.rglob("*.tmp"))


def test_scene_families_share_sheets_and_the_main_query_is_left_out_of_the_others(tmp_path):
    results, photos = tmp_path / "results", {}
    for name in ("sped", "pitts30k", "pitts250k", "backyard"):  # condition shift, twice urban, other
        truth = synthetic_truth(name)
        truth.write(results / name)
        for head, wrong in {"tfa": (1,), "anyloc": (2, 3, 7), "tfvpr": (3, 7), "ria": (7,)}.items():
            write_record(results, truth, head, wrong if name != "pitts250k" else ())
        photos[name] = write_photos(tmp_path / name, truth)
    studies = find_studies(results)
    [families] = find_families(studies, photos, "tfa")
    # The first dataset of each family with such a query, in the order of the paper's headings.
    assert {name: grid.queries for name, grid in families.chosen.items()} == {
        "pitts30k": (7,), "sped": (7,), "backyard": (7,),
    }  # fmt: skip
    assert list(families.chosen) == ["pitts30k", "sped", "backyard"]
    written = write_figures(results, tmp_path / "out", photos=photos, rows=2)
    assert [path.relative_to(tmp_path / "out").as_posix() for path in written[:3]] == [
        f"fake-s8@32/{name}.png" for name in ("main", "successes", "failures")
    ]
    page = written[-1].read_text("utf-8")
    [main, successes, failures] = re.findall(r'alt="Queries and best answers. ([^"]+)"', page)
    assert main.count("query 7: tfa right, anyloc wrong, tfvpr wrong, ria wrong") == 3
    assert "query 7" not in successes
    assert successes.count("query 2: tfa right, anyloc wrong") == successes.count("query 3: tfa right") == 3
    assert failures.count("query 1: tfa wrong, anyloc right") == 3
    alone = re.findall(r'alt="Queries and the best answers of [^"]+"', page)
    assert len(alone) == 6
    assert not any("query 7" in alt for alt in alone)
    # One family has no main figure, and nothing is left out.
    written = write_figures(results, tmp_path / "one", photos={"sped": photos["sped"]})
    assert not (tmp_path / "one" / "fake-s8@32").exists()
    assert "query 7: tfa right" in written[-1].read_text("utf-8")


def test_what_cannot_be_drawn_is_said(tmp_path):
    truth = synthetic_truth()
    truth.write(tmp_path / "town")
    write_record(tmp_path, truth, "gem", (0, 1))
    out, photos = tmp_path / "out", write_photos(tmp_path / "photos", truth)
    written = write_figures(tmp_path / "town", out, photos={})
    assert [path.name for path in written] == ["precision-recall.png", "scores.png", "report.html"]
    page = written[-1].read_text("utf-8")
    for sentence in (
        "No head calibrated on N queries is recorded",
        "Head tfa is not recorded.",
        "pass their folder with --photos town=FOLDER",
    ):
        assert sentence in page
    for reference, sentence in (
        ("tfa", "head tfa is not recorded"),
        ("gem", "no head to compare with gem is recorded"),
    ):
        [*_, report] = write_figures(tmp_path / "town", out, photos={"town": photos}, reference=reference)
        assert f"The photos are not shown: {sentence}." in report.read_text("utf-8")
    write_record(tmp_path, truth, "tfa", (0, 1))
    page = write_figures(tmp_path / "town", out, photos={"town": photos})[-1].read_text("utf-8")
    assert "There are no queries where tfa is right, at least one other head wrong." in page
    assert "The record of head tfa has no evidence." in page


def test_datasets_and_encoders_are_chosen_by_name(town, tmp_path):
    results, truth = town
    write_town(results, "village")
    write_record(results, truth, "tfa", encoder="other@8")
    assert [study.folder for study in find_studies(results)] == [
        "town/fake-s8@32", "town/other@8", "village/fake-s8@32",
    ]  # fmt: skip
    assert [study.folder for study in find_studies(results, ["town"], "other@8")] == ["town/other@8"]
    with pytest.raises(BadSpec, match=r"no records of dataset 'city'; recorded: town, village"):
        find_studies(results, ["city"])
    with pytest.raises(BadSpec, match=r"no records of encoder 'x'"):
        find_studies(results, None, "x")
    with pytest.raises(BadSpec, match="drop one filter"):
        find_studies(results, ["village"], "other@8")
    with pytest.raises(BadSpec, match=r"--photos names 'city', but the drawn records are of town, village"):
        write_figures(results, tmp_path / "out", photos={"city": tmp_path})
    with pytest.raises(BadSpec, match="is not a folder"):
        write_figures(results, tmp_path / "out", photos={"town": tmp_path / "none"})
    assert not (tmp_path / "out").exists()


def test_an_empty_folder_and_a_record_found_twice_are_errors(town, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadRecord, match="holds no records to draw"):
        find_studies(tmp_path / "empty")
    results, truth = town
    write_record(results / "again", truth, "tfa")
    truth.write(results / "again" / "town")
    with pytest.raises(BadRecord, match="have the same head"):
        find_studies(results)


def test_without_matplotlib_the_extra_is_named(town, tmp_path, monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **given):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **given)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"pip install 'tfa-bench'"):
        write_figures(town[0], tmp_path / "out", photos={})


def test_importing_the_figures_loads_no_matplotlib():
    code = "import sys, tfa_bench.figures.report; print({'matplotlib', 'torch', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
