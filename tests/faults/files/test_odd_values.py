"""Values of another kind where layouts and maps expect their own: one error that names the file."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.datasets.trees import pictures, save_objects
from tests.golden.regenerate import HERE, queries
from tfa.core.files import map_tensors, write_tensors
from tfa.errors import BadMap
from tfa.maps import PlaceMap
from tfa_bench.datasets.files import BadDataset
from tfa_bench.datasets.layouts import uav_visloc, vpr_bench
from tfa_bench.datasets.layouts.anyloc import gt_matches
from tfa_bench.datasets.layouts.labels import read_ids
from tfa_bench.datasets.layouts.lists import gsv_lists, msls
from tfa_bench.datasets.load import load_dataset
from tfa_bench.datasets.poses import read_centers


def test_a_model_of_one_endless_line_is_not_read_whole(tmp_path: Path) -> None:
    (tmp_path / "all.nvm").write_bytes(b"NVM_V3\n" + b"1 " * 2_000_000)
    with pytest.raises(BadDataset, match=r"all\.nvm, line 2: longer than"):
        read_centers(tmp_path / "all.nvm")


def test_lists_of_images_may_hold_anything(tmp_path: Path) -> None:
    pictures(tmp_path / "db", ["0.png"])
    names = np.array(["db/0.png"])
    for suffix, content in {"dbImages": names, "qImages": names, "gt": np.array(1), "pIdx": np.array(1)}.items():
        np.save(tmp_path / f"x_{suffix}.npy", content)
    np.save(tmp_path / "x_qIdx.npy", np.array(["first"]))
    with pytest.raises(BadDataset, match=r"x_gt\.npy holds one value"):
        gsv_lists.load(tmp_path)
    with pytest.raises(BadDataset, match=r"x_qIdx\.npy must list indices"):
        msls.load(tmp_path)
    letters = io.BytesIO()
    np.save(letters, names)
    (tmp_path / "x_dbImages.npy").write_bytes(letters.getvalue()[:-1] + b"\x7f")  # a letter that Unicode does not have
    with pytest.raises(BadDataset, match=r"x_dbImages\.npy.*invalid Unicode characters"):
        gsv_lists.load(tmp_path)


def test_a_query_that_is_no_number(tmp_path: Path) -> None:
    pictures(tmp_path / "ref", ["0.png"])
    pictures(tmp_path / "query", ["0.png"])
    for strange in ("first", [], float("inf")):
        rows = np.empty((1, 2), object)
        rows[0, 0], rows[0, 1] = strange, [0]
        save_objects(tmp_path / "ground_truth_new.npy", rows)
        with pytest.raises(BadDataset, match=r"ground_truth_new\.npy names a query"):
            vpr_bench.load(tmp_path)


def test_numbers_of_thousands_of_digits(tmp_path: Path) -> None:
    digits = "1" * 5000
    pictures(tmp_path / "reference_images", ["0.png"])
    pictures(tmp_path / "query_images", ["0.png"])
    (tmp_path / "gt_matches.csv").write_text(f"query_ind,top_1_ref_ind\n{digits},0\n")
    with pytest.raises(BadDataset, match=r"gt_matches\.csv, line 2: query_ind"):
        gt_matches.load(tmp_path, top=1)
    (tmp_path / "all.nvm").write_text(f"NVM_V3\n{digits}\n")
    with pytest.raises(BadDataset, match=r"all\.nvm, line 2: .* is not an NVM model's number of images"):
        read_centers(tmp_path / "all.nvm")
    (tmp_path / "ids.txt").write_text(digits)
    with pytest.raises(BadDataset, match=r"ids\.txt, line 1: .* is not an id"):
        read_ids(tmp_path / "ids.txt")
    (tmp_path / "ids.json").write_text("[" * 20_000)
    with pytest.raises(BadDataset, match=r"ids\.json is not JSON: .*nested too deep"):
        read_ids(tmp_path / "ids.json")
    pictures(tmp_path / "01/drone", ["01_0001.JPG"])
    (tmp_path / "01/01.csv").write_text(f"num,lat,lon\n{digits},0,10\n")
    with pytest.raises(BadDataset, match=r"01\.csv names no photo"):
        uav_visloc.load(tmp_path)


def test_options_of_a_card_may_be_anything(tmp_path: Path) -> None:
    pictures(tmp_path / "database", ["0.png"])
    pictures(tmp_path / "queries", ["0.png"])
    texts = dict.fromkeys(("title", "positives", "citation", "licence", "get"), "as it is")
    card = {"name": "own", "layout": "folder", "group": "Other", **texts}
    (tmp_path / "card.json").write_text(json.dumps({**card, "options": {"speed": [1]}}))
    with pytest.raises(BadDataset, match=r"layout folder and the options speed=\[1\]"):
        load_dataset("own", tmp_path)


@pytest.fixture
def map_folder(tmp_path: Path) -> Path:
    return shutil.copytree(HERE / "paper", tmp_path / "town.tfa")


@pytest.mark.parametrize(
    ("old", "new"),
    [('"id": 1,', '"id": 0,'), ('"fitted": true', '"fitted": "ok"'), ('"path": "1.png"', '"path": 1000000')],
    ids=["an id given twice", "a text for yes or no", "a number for a path"],
)
def test_records_of_images_are_checked(map_folder: Path, old: str, new: str) -> None:
    file = map_folder / "images-r000001.json"
    text = file.read_text("utf-8")
    assert old in text
    changed = text.replace(old, new, 1)
    file.write_text(changed + " " * (len(text) - len(changed)), encoding="utf-8")
    with pytest.raises(BadMap, match=r"town\.tfa is damaged"):
        PlaceMap.load(map_folder)


def test_records_of_images_nested_without_end(map_folder: Path) -> None:
    file = map_folder / "images-r000001.json"
    file.write_bytes(b"[" * file.stat().st_size)
    with pytest.raises(BadMap, match=r"town\.tfa is damaged"):
        PlaceMap.load(map_folder)


@pytest.mark.parametrize("number", [np.nan, 1e300], ids=["none", "too large, of which numpy warns"])
def test_a_map_whose_numbers_are_none_says_so_when_it_is_asked(map_folder: Path, number: float) -> None:
    file = map_folder / "gallery-r000001.safetensors"
    arrays, metadata = map_tensors(file)
    write_tensors(file, {**arrays, "bias": np.full_like(arrays["bias"], number)}, metadata)
    damaged = PlaceMap.load(map_folder)
    with pytest.raises(BadMap, match=r"not finite.*--checksum"):
        damaged.query_tokens(queries(), calibration="none")
