"""Load datasets by name and folder; messages for incomplete copies."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.benchmarks.datasets.trees import picture, pictures, python2_pairs, utm, with_npy_header
from tfa_bench.datasets import card as card_module
from tfa_bench.datasets import load as loading
from tfa_bench.datasets.card import Counts, DatasetCard, cards
from tfa_bench.datasets.check import check_dataset
from tfa_bench.datasets.files import BadDataset, DatasetFiles
from tfa_bench.datasets.load import check_files, load_dataset
from tfa_bench.records import Truth


def small(name: str, **changes: object) -> DatasetCard:
    given = {
        "title": name.title(), "layout": "folder", "positives": "same place", "group": "Other", "citation": "none",
        "licence": "unknown", "get": "from the authors",
    } | changes  # fmt: skip
    return DatasetCard(name=name, **given)  # type: ignore[arg-type]


@pytest.fixture
def catalogue(monkeypatch):
    """Small cards beside the packaged ones."""
    made = {
        card.name: card
        for card in (
            small("bench-of-two", layout="vpr_bench", counts=Counts(3, 2)),
            small("bench-of-three", layout="vpr_bench", counts=Counts(3, 3)),
            small("secret", layout="dvgl", public=False),
            small("secret-folder", public=False),
            small("lights", layout="dvgl", options={"conditions": {"day": "queries_day", "night": "queries_night"}},
                  counts=Counts(1, 3, {"day": 1, "night": 2})),
        )
    }  # fmt: skip
    known = {**cards(), **made}
    monkeypatch.setattr(card_module, "_packaged", lambda: known)
    return made


@pytest.fixture
def town(tmp_path):
    pictures(tmp_path / "database", ["a.png", "b.png", "c.png"])
    pictures(tmp_path / "queries", ["p.png", "q.png"], start=10)
    (tmp_path / "positives.json").write_text(json.dumps({"p.png": ["a.png"], "q.png": ["b.png", "c.png"]}))
    return tmp_path


@pytest.fixture
def bench(tmp_path):
    pictures(tmp_path / "ref", ["0.jpg", "1.jpg", "2.jpg"])
    pictures(tmp_path / "query", ["0.jpg", "1.jpg"], start=7)
    (tmp_path / "ground_truth_new.npy").write_bytes(with_npy_header(python2_pairs([(0, [0]), (1, [1, 2])]), (2, 2)))
    return tmp_path


def texts(findings, level):
    return [finding.text for finding in findings if finding.level == level]


# --- loading ---


def test_a_card_is_read_with_its_layout(catalogue, bench):
    dataset = load_dataset("bench-of-two", bench)
    assert [row.tolist() for row in dataset.positives] == [[0], [1, 2]]
    assert dataset.card is catalogue["bench-of-two"]
    assert dataset.notes == ()


def test_truth_names_images_below_the_folder(catalogue, bench, tmp_path):
    truth = load_dataset("bench-of-two", bench).truth()
    assert truth.database == ("ref/0.jpg", "ref/1.jpg", "ref/2.jpg")
    assert (truth.name, truth.title, truth.rule) == ("bench-of-two", "Bench-Of-Two", "same place")
    truth.write(tmp_path / "results")
    assert Truth.read(tmp_path / "results").fingerprint == truth.fingerprint


def test_another_number_of_images_is_refused_with_both_numbers_and_the_sibling(catalogue, bench):
    message = r"bench-of-three declares 3 queries, found 2 \(these are the counts of bench-of-two\)"
    with pytest.raises(BadDataset, match=message):
        load_dataset("bench-of-three", bench)


def test_counts_of_conditions_are_checked(catalogue, tmp_path):
    picture(tmp_path / "gallery" / utm(0, 0))
    pictures(tmp_path / "queries_day", [utm(0, 1), utm(0, 2)])
    pictures(tmp_path / "queries_night", [utm(0, 3)])
    with pytest.raises(BadDataset, match="declares 1 queries of day, found 2; lights declares 2 queries of night"):
        load_dataset("lights", tmp_path)


def test_the_generic_layout_serves_any_card_and_says_so(catalogue, town):
    dataset = load_dataset("bench-of-two", town)
    assert [row.tolist() for row in dataset.positives] == [[0], [1, 2]]
    assert "layout folder instead of vpr_bench" in dataset.notes[0]


def test_a_name_without_a_card_is_a_folder_of_ones_own(town):
    dataset = load_dataset("my-town", town)
    assert (dataset.card.layout, dataset.card.positives) == ("folder", "as listed in positives.json")
    assert "is not a known dataset" in dataset.notes[0]
    assert "if sped is meant" in load_dataset("spedd", town).notes[0]


def test_a_folder_of_ones_own_may_come_with_positions_only(town):
    (town / "positives.json").unlink()
    lines = ["file,x,y", "a.png,0,0", "b.png,30,0", "c.png,60,0", "p.png,5,0", "q.png,45,0"]
    (town / "positions.csv").write_text("\n".join(lines))
    dataset = load_dataset("my-town", town)
    assert [row.tolist() for row in dataset.positives] == [[0, 1], [1, 2]]
    assert "25 m" in dataset.truth().rule


def test_a_name_without_a_card_needs_the_folders(tmp_path):
    with pytest.raises(BadDataset, match=r"unknown dataset 'pits30k'; did you mean pitts30k.*database and .*queries"):
        load_dataset("pits30k", tmp_path)


def test_positives_of_ones_own_replace_those_of_the_folder(catalogue, town, tmp_path_factory):
    own = tmp_path_factory.mktemp("own") / "mine.json"
    own.write_text(json.dumps({"p.png": ["c.png"]}))
    for name in ("my-town", "bench-of-two", "secret-folder"):
        dataset = load_dataset(name, town, positives=own)
        assert [row.tolist() for row in dataset.positives] == [[2], []]
        assert "mine.json" in dataset.truth().rule
        assert any("queries without positives: 1" in note for note in dataset.notes)
    with pytest.raises(BadDataset, match=r"gone\.json does not exist"):
        load_dataset("my-town", town, positives=own.with_name("gone.json"))


def test_positives_of_ones_own_apply_to_any_layout(catalogue, bench):
    own = bench / "mine.json"
    own.write_text(json.dumps({"query/1.jpg": ["ref/0.jpg"], "query/0.jpg": []}))
    dataset = load_dataset("bench-of-two", bench, positives=own)
    assert [row.tolist() for row in dataset.positives] == [[], [0]]
    own.write_text(json.dumps({"query/9.jpg": []}))
    with pytest.raises(BadDataset, match=r"1 unknown query names \(first: query/9\.jpg\)"):
        load_dataset("bench-of-two", bench, positives=own)


def test_an_unpublished_protocol_takes_positives_or_says_whose_rule_it_uses(catalogue, tmp_path):
    pictures(tmp_path / "images/test/database", [utm(0, 0), utm(0, 1, "x")])
    pictures(tmp_path / "images/test/queries", [utm(0, 0, "q")])
    by_rule = load_dataset("secret", tmp_path)
    assert [row.tolist() for row in by_rule.positives] == [[0, 1]]
    assert any("protocol not public: positives follow our rule" in note for note in by_rule.notes)
    (tmp_path / "positives.json").write_text(json.dumps({utm(0, 0, "q"): [utm(0, 1, "x")]}))
    dataset = load_dataset("secret", tmp_path)
    assert [row.tolist() for row in dataset.positives] == [[1]]
    assert dataset.card.positives == "as listed by the user in positives.json"


def test_what_a_layout_finds_is_checked(town):
    card, images = small("x"), tuple(pictures(town / "database", ["a.png", "b.png"]))
    whole = DatasetFiles(images, images, (np.array([0]), np.array([], np.int64)))
    check_files(card, whole, town)
    for fault, message in (
        ({"positives": (np.array([0]), np.array([2]))}, "positives name image 2; allowed are 0 to 1"),
        ({"positives": (np.array([0]),)}, "1 lists of positives for 2 queries"),
        ({"conditions": {"day": np.array([5])}}, "condition day name image 5"),
        ({"database": (images[0], images[0])}, "twice"),
    ):
        with pytest.raises(BadDataset, match=message):
            check_files(card, replace(whole, **fault), town)


def test_an_unknown_layout_lists_those_there_are():
    with pytest.raises(BadDataset, match=r"unknown layout 'flat'; choose one of .*folder"):
        loading.load_layout("flat")


def test_loading_imports_nothing_heavy():
    code = (
        "import sys, tfa_bench.datasets.check\n"
        "print(sorted({'torch', 'scipy', 'matplotlib', 'PIL', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- checking ---


def test_a_whole_copy_has_no_errors(catalogue, bench):
    assert check_dataset("bench-of-two", bench) == []


def test_a_check_tells_everything_missing_at_once(tmp_path):
    missing = texts(check_dataset("svox", tmp_path), "error")
    assert len(missing) == 6
    assert missing[0].endswith("images/test/database is missing")
    assert texts(check_dataset("sped", tmp_path / "nowhere"), "error") == [f"{tmp_path / 'nowhere'} is not a folder"]


def test_a_check_tells_counts_unreadable_images_and_copies_together(catalogue, bench):
    (bench / "ref" / "1.jpg").write_bytes(b"not an image")
    (bench / "query" / "1.jpg").write_bytes((bench / "ref" / "2.jpg").read_bytes())
    findings = check_dataset("bench-of-three", bench)
    assert {(finding.level, finding.kind) for finding in findings} == {
        ("error", "count"), ("error", "unreadable"), ("warning", "duplicate"),
    }  # fmt: skip
    assert "1 images cannot be read: ref/1.jpg" in texts(findings, "error")
    assert "1 queries are copies of database images" in texts(findings, "warning")[0]


def test_only_a_deep_check_decodes_images(catalogue, bench):
    file = bench / "ref" / "0.jpg"
    Image.effect_noise((64, 64), 90).save(file)
    file.write_bytes(file.read_bytes()[:1500])  # the header is whole, pixels are not
    assert texts(check_dataset("bench-of-two", bench), "error") == []
    assert "ref/0.jpg" in texts(check_dataset("bench-of-two", bench, deep=True), "error")[0]


@pytest.mark.parametrize(
    "name", ["sped", "amstertime", "msls-val", "gsv-brussels", "corridor", "v4rl-shopping", "vpair"]
)
def test_a_check_of_an_empty_folder_never_raises(name, tmp_path):
    assert texts(check_dataset(name, tmp_path), "error")


def test_a_check_of_damaged_ground_truth_names_it(catalogue, bench):
    (bench / "ground_truth_new.npy").write_bytes(b"\x93NUMPY damaged")
    assert "ground_truth_new.npy" in texts(check_dataset("bench-of-two", bench), "error")[0]
