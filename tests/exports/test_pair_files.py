"""Pairs and descriptors as other programs read them; the real ones, where they are installed."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.exports.conftest import scores_of
from tfa.errors import MissingExtra, TfaError
from tfa.exports.hloc import (
    PhotoPair,
    name_pairs,
    query_vectors,
    read_views,
    roots_without_collisions,
    write_hloc_features,
    write_kapture_pairs,
    write_match_list,
    write_view_pairs,
)
from tfa.exports.vectors import compile_map


def pair(root: Path, query: str, image: str, confidence: float = 0.5) -> PhotoPair:
    return PhotoPair(root / query, root / image, confidence)


def test_names_that_would_stand_for_two_photos_are_below_one_folder(tmp_path):
    queries, images = [tmp_path / "q" / "1.jpg", tmp_path / "q" / "2.jpg"], [tmp_path / "m" / "1.jpg"]
    *roots, note = roots_without_collisions(queries, images, tmp_path / "q", tmp_path / "m")
    assert roots == [tmp_path, tmp_path]
    assert "1.jpg names both a query and another map image" in note
    assert name_pairs([pair(tmp_path, "q/1.jpg", "m/1.jpg")], *roots) == [("q/1.jpg", "m/1.jpg")]
    apart = roots_without_collisions(queries[1:], images, tmp_path / "q", tmp_path / "m")
    assert apart == (tmp_path / "q", tmp_path / "m", None)
    same = roots_without_collisions(images, images, tmp_path / "m", tmp_path / "m")  # the map asked about itself
    assert same[2] is None


def test_kapture_has_a_score_and_no_comma_in_a_name(tmp_path):
    assert write_kapture_pairs(tmp_path / "pairs.txt", [pair(tmp_path, "q/a b.jpg", "m/1.jpg")], tmp_path) == 1
    lines = (tmp_path / "pairs.txt").read_text().splitlines()
    assert lines == ["# kapture format: 1.1", "# query_image, map_image, score", "q/a b.jpg, m/1.jpg, 0.500000"]
    with pytest.raises(TfaError, match="contains ,"):
        write_kapture_pairs(tmp_path / "pairs.txt", [pair(tmp_path, "q/a,b.jpg", "m/1.jpg")], tmp_path)


def test_kapture_itself_reads_the_pairs(tmp_path):
    theirs = pytest.importorskip(
        "kapture_localization.utils.pairsfile",
        reason="kapture-localization is not installed: it did not read the pairs",
    )
    found = [pair(tmp_path, "q/a b.jpg", "m/1.jpg"), pair(tmp_path, "q/a b.jpg", "m/2.jpg", 0.75)]
    write_kapture_pairs(tmp_path / "pairs.txt", found, tmp_path)
    assert theirs.get_ordered_pairs_from_file(str(tmp_path / "pairs.txt")) == {
        "q/a b.jpg": [("m/2.jpg", 0.75), ("m/1.jpg", 0.5)]
    }


def test_alicevision_has_views_each_two_once(tmp_path):
    views = [{"viewId": str(n), "path": str(tmp_path / f"{n}.jpg")} for n in (7, 30, 9)]
    (tmp_path / "init.sfm").write_text(json.dumps({"views": views}))
    found = [pair(tmp_path, f"{q}.jpg", f"{m}.jpg") for q, m in ((30, 7), (7, 9), (9, 7), (9, 30))]
    assert write_view_pairs(tmp_path / "pairs.txt", found, read_views(tmp_path / "init.sfm")) == 3
    assert (tmp_path / "pairs.txt").read_text() == "7 9 30\n9 30\n"
    with pytest.raises(TfaError, match="not a view of the sfm file"):
        write_view_pairs(tmp_path / "pairs.txt", [pair(tmp_path, "7.jpg", "8.jpg")], read_views(tmp_path / "init.sfm"))
    (tmp_path / "bad.sfm").write_text("[]")
    with pytest.raises(TfaError, match="not an sfm file with views"):
        read_views(tmp_path / "bad.sfm")


def test_colmap_matches_exactly_the_listed_pairs(tmp_path):
    colmap = pytest.importorskip("pycolmap", reason="pycolmap is not installed: COLMAP did not read the match list")
    wall = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 32), dtype=np.uint8))
    for name in ("q/1.png", "q/2.png", "m/1.png", "m/2.png", "m/3.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        wall.resize((256, 192), Image.Resampling.BICUBIC).save(tmp_path / name)  # alike: all could be matched
    found = [("q/1.png", "m/1.png"), ("q/1.png", "m/3.png"), ("q/2.png", "m/1.png"), ("m/1.png", "q/1.png")]
    assert write_match_list(tmp_path / "pairs.txt", found) == 3
    database = tmp_path / "colmap.db"
    colmap.extract_features(database, tmp_path, device=colmap.Device.cpu)
    wanted = colmap.ImportedPairingOptions()
    wanted.match_list_path = tmp_path / "pairs.txt"
    colmap.match_image_pairs(database, pairing_options=wanted, device=colmap.Device.cpu)
    with closing(sqlite3.connect(database)) as held:
        names = dict(held.execute("select image_id, name from images").fetchall())
        numbers = [number for [number] in held.execute("select pair_id from matches where rows > 0")]
    matched = {frozenset(names[one] for one in divmod(number, 2**31 - 1)) for number in numbers}  # as COLMAP counts
    assert matched == {frozenset(one) for one in found}


def test_hloc_ranks_by_the_descriptors_as_the_map_does(map_of, queries, tmp_path, monkeypatch):
    town = map_of()
    compiled = compile_map(town)
    photos = [Path(image) for image in compiled.images]
    root = Path(town.state.photo_root)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtra, match="tfa-vpr\\[hloc\\]"):
        write_hloc_features(tmp_path / "map.h5", photos, compiled.with_bias, root)
    monkeypatch.undo()
    h5py = pytest.importorskip("h5py", reason="h5py is not installed: no descriptors were written for hloc")
    write_hloc_features(tmp_path / "map.h5", photos, compiled.with_bias, root)
    with h5py.File(tmp_path / "map.h5") as file:
        held = np.stack([file[f"{photo.relative_to(root)}/global_descriptor"][()] for photo in photos])
    np.testing.assert_allclose(query_vectors(compiled, queries) @ held.T, scores_of(town, queries), atol=1e-4)
    with pytest.raises(TfaError, match="conflicts with another name"):
        write_hloc_features(tmp_path / "x.h5", [tmp_path / "a", tmp_path / "a" / "b"], held[:2], tmp_path)
    assert not (tmp_path / "x.h5").exists()
