"""Export loop closures as CSV, JSON, g2o or image pairs, chosen by the file name."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from tfa.core.files import write_json, write_text
from tfa.exports.hloc import PhotoPair, find_photo_root, name_pairs, write_pairs
from tfa.types import LoopsResult

COLUMNS = ("query", "match", "query_image", "match_image", "confidence")


def write_loop_csv(path: Path, result: LoopsResult, names: Sequence[str]) -> None:
    """Write one pair per frame, with the confidence of its loop."""
    confidences = {pair.query: loop.confidence for loop in reversed(result.loops) for pair in loop.chain}
    confidences |= {loop.query: loop.confidence for loop in result.loops}
    written = io.StringIO(newline="")
    table = csv.writer(written)
    table.writerow(COLUMNS)
    for one in result.pairs:
        table.writerow((one.query, one.match, names[one.query], names[one.match], f"{confidences[one.query]:.4f}"))
    write_text(path, written.getvalue())


def write_g2o(path: Path, result: LoopsResult, names: Sequence[str]) -> None:
    """Write an edge per pair, to append to a planar pose graph whose vertices are the frames.

    A loop says that two frames show one place, within about a meter, and nothing on their relative heading.
    """
    write_text(path, "".join(f"EDGE_SE2 {one.match} {one.query} 0 0 0 1 0 0 1 0 1e-06\n" for one in result.pairs))


def write_loop_pairs(path: Path, result: LoopsResult, names: Sequence[str]) -> None:
    """Write image pairs for hloc and COLMAP, relative to the common folder of the frames."""
    pairs = [PhotoPair(Path(names[one.query]), Path(names[one.match]), 1.0) for one in result.pairs]
    root = find_photo_root([Path(name) for name in names])
    write_pairs(path, name_pairs(pairs, root, root))


LOOP_FORMATS: dict[str, Callable[[Path, LoopsResult, Sequence[str]], object]] = {
    ".csv": write_loop_csv,
    ".json": lambda path, result, names: write_json(path, result.to_dict()),
    ".g2o": write_g2o,
    ".txt": write_loop_pairs,
}
