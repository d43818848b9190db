"""Layouts: how the folder of a dataset is read.

A layout is a module of this folder with a function `load(root, …)`, found by its file name. Small layouts share a
module, in which each is an object of its name; they are listed here.
"""

from collections.abc import Mapping

# Layout → the module that holds it with others.
SHARED: Mapping[str, str] = {
    "camera": "anyloc",
    "gt_matches": "anyloc",
    "gt_npy": "anyloc",
    "vpair": "anyloc",
    "identity": "labels",
    "pairs": "labels",
    "sues": "labels",
    "gsv_lists": "lists",
    "msls": "lists",
    "gsv_cities": "lists",
    "poses_4seasons": "drives",
    "robotcar": "drives",
}
