"""Layouts: readers of dataset folders.

A layout is a module of this folder with a function `load(root, …)`, named by its file. Small layouts share a module
as objects with the layout's name; `SHARED` lists them.
"""

from collections.abc import Mapping

# Layout → module that it shares with others.
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
