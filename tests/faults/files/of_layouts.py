"""Ground truth as datasets bring it: pickles, lists, tables, poses. A folder for each layout, read by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.datasets.trees import pictures, python2_pairs, ragged, save_objects, with_npy_header
from tests.faults.files.targets import PLAIN_JSON, Target, files_below
from tfa_bench.datasets.load import Reading, card_for, check_files, plan_reading

NAMES = [f"{number}.png" for number in range(4)]
OPTIONS: dict[str, dict[str, Any]] = {
    "gt_npy": {"database": "db", "queries": "q", "positives": "gt.npy"},
    "vpr_bench": {"database": ["db"], "queries": ["q"]},
    "camera": {"max_angle": 40.0},
    "uav_visloc": {"coverage": True},
    "sues": {"heights": [150]},
    "robotcar": {"conditions": ["night"], "poses": ["all.nvm", "train.txt"]},
    "gsv_cities": {"city": "Oslo"},
}


def _target(name: str, folder: Path, make: dict[str, Callable[[Path], object]], *patterns: str) -> Target:
    for layout, maker in make.items():
        maker(folder / layout)
    files = files_below(folder, *(f"*/{pattern}" for pattern in patterns))

    def read(folder: Path, victim: str, changed: bool) -> None:
        layout = victim.split("/")[0]
        if layout == "own":  # a dataset that brings its card
            card, _ = card_for("own", folder / layout)
            check_files(card, plan_reading(card, folder / layout, None).load(folder / layout), folder / layout)
            return
        Reading(layout, OPTIONS.get(layout, {})).load(folder / layout)

    return Target(name, files, read, {file: PLAIN_JSON for file in files if file.endswith(".json")})


def _both(root: Path, database: str = "db", queries: str = "q") -> Path:
    pictures(root / database, NAMES)
    pictures(root / queries, NAMES[:3], 10)
    return root


# --- pickled arrays ------------------------------------------------------------------------------------------------


def pickled(name: str, folder: Path) -> Target:
    def rows(root: Path) -> None:
        array = np.empty((3, 2), object)
        array[:, 0] = [0, 1, 2]
        array[:, 1] = [[0, 1], [2], [3]]
        save_objects(_both(root) / "gt.npy", array)

    def python2(root: Path) -> None:
        truth = with_npy_header(python2_pairs([(0, [0, 1]), (1, [2]), (2, [])]), (3, 2))
        (_both(root) / "ground_truth_new.npy").write_bytes(truth)

    return _target(name, folder, {"gt_npy": rows, "vpr_bench": python2}, "*.npy")


def listed(name: str, folder: Path) -> Target:
    def lists(root: Path) -> None:
        np.save(_both(root) / "x_dbImages.npy", np.array([f"db/{one}" for one in NAMES]))
        save_objects(root / "x_qImages.npy", np.array([f"q/{one}" for one in NAMES[:3]], object))

    def cities(root: Path) -> None:
        lists(root)
        save_objects(root / "x_gt.npy", ragged([[0, 1], [2], [3]]))

    def msls(root: Path) -> None:
        lists(root)
        np.save(root / "x_qIdx.npy", np.array([0, 2]))
        save_objects(root / "x_pIdx.npy", ragged([[0, 1], [3]]))

    return _target(name, folder, {"gsv_lists": cities, "msls": msls}, "*.npy")


# --- JSON and text -------------------------------------------------------------------------------------------------


def positives(name: str, folder: Path) -> Target:
    listed = {name: [NAMES[number], NAMES[3]] for number, name in enumerate(NAMES[:3])}
    texts = ("title", "positives", "citation", "licence", "get")
    card = {"name": "own", "layout": "folder", "group": "Other", **dict.fromkeys(texts, "as it is")}
    card |= {"options": {}, "counts": {"database": 4, "queries": 3}}

    def plain(root: Path) -> None:
        (_both(root, "database", "queries") / "positives.json").write_text(json.dumps(listed))

    def carded(root: Path) -> None:
        plain(root)
        (root / "card.json").write_text(json.dumps(card))

    def city(root: Path) -> None:
        names = [f"Oslo_{place:07d}_2019_05_120_59.9_10.7_abc{number}.jpg" for number, place in enumerate((1, 1, 2, 2))]
        pictures(root / "Images/Oslo", names)
        (root / "queries.txt").write_text("\n".join(names[1::2]))

    return _target(name, folder, {"folder": plain, "own": carded, "gsv_cities": city}, "*.json", "*.txt")


def tables(name: str, folder: Path) -> Target:
    def nardo(root: Path) -> None:
        _both(root, "reference_images", "query_images")
        columns = ",".join(["query_ind", *(f"top_{rank}_ref_ind" for rank in range(1, 6))])
        (root / "gt_matches.csv").write_text(f"{columns}\n0,1,2,3,0,1\n1.0,1,0,2,3,3\n2,0,0,0,0,1\n")

    def visloc(root: Path) -> None:
        pictures(root / "01/drone", ["01_0001.JPG", "01_0002.JPG"])
        pictures(root / "01/tiles", ["a.png", "b.png"])
        (root / "01/01.csv").write_text("num,lat,lon\n1,0,10\n2,0.001,10.001\n")
        (root / "01/tiles/tiles.csv").write_text("file,lat,lon,half_width\na.png,0,10.0005,80\nb.png,0,10,80\n")

    def sues(root: Path) -> None:
        for place in ("0001", "0002", "0003"):
            pictures(root / "satellite-view" / place, ["0.png"])
            pictures(root / "drone_view_512x512" / place / "150", NAMES[:2])
        (root / "indexs.yaml").write_text("index : ['0001',\n - '0002']\n")

    made = {"gt_matches": nardo, "uav_visloc": visloc, "sues": sues}
    return _target(name, folder, made, "*.csv", "*/*.csv", "*/tiles/*.csv", "*.yaml")


def poses(name: str, folder: Path) -> Target:
    unturned = "1 0 0\n0 1 0\n0 0 1"

    def mall(root: Path) -> None:
        for split, count in (("training", 3), ("query", 2)):
            pictures(root / f"{split}_images_undistort", [f"{number}.jpg" for number in range(count)])
            (root / f"{split}_gt").mkdir()
            for number in range(count):
                text = f"{unturned}\n0 0 0\n{unturned}\n{number} 0 0.5\n1280 720\n\n"
                (root / f"{split}_gt/{number}.camera").write_text(text)

    def seasons(root: Path) -> None:
        for part in ("reference", "query"):
            pictures(root / part / "undistorted_images/cam0", ["100.png", "200.png"])
            lines = [f"{stamp}, {stamp / 100}, 0, 1, 0, 0, 0, 1, 1.5, 0, 0" for stamp in (100, 200)]
            (root / part / "GNSSPoses.txt").write_text("# timestamp …\n" + "\n".join(lines) + "\n")
            named = ("transform_S_AS", "transform_w_gpsw", "transform_e_gpsw")
            text = "".join(f"# {one}: translation, quaternion\n1,2,3,0,0,0.6,0.8\n\n" for one in named)
            (root / part / "Transformations.txt").write_text(text + "# GNSS scale\n1.25\n")

    def robotcar(root: Path) -> None:
        pictures(root / "images/overcast-reference/rear", ["1.jpg", "2.jpg"])
        pictures(root / "images/night/rear", ["3.jpg", "4.jpg"])
        model = "NVM_V3\n\n2\n" + "".join(f"./rear/{one}.png 400 1 0 0 0 {one} 2 3 0 0\n" for one in (1, 2))
        (root / "all.nvm").write_text(model)
        matrix = "1 0 0 1 0 1 0 2 0 0 1 3 0 0 0 1"
        (root / "train.txt").write_text(f"night/rear/3.jpg {matrix}\nnight/rear/4.jpg 1 0 0 0 1 2 3\n")

    made = {"camera": mall, "poses_4seasons": seasons, "robotcar": robotcar}
    return _target(name, folder, made, "*/*.camera", "*/*.txt", "*.nvm", "*.txt")
