"""The decoder for many points against transformers' own, which keeps an image of its own for each."""

from __future__ import annotations

import pytest
import torch
from transformers import SamModel

from tests.bench.heads.sam import tiny
from tfa.bench.heads.peers.point_decoder import PointDecoder


@pytest.fixture(scope="module", params=[1, 2, 3])
def sam(request) -> SamModel:
    torch.manual_seed(0)
    sam = SamModel(tiny.config(request.param)).eval().requires_grad_(False)
    for weight in sam.parameters():
        weight.copy_(torch.randn_like(weight) * 0.4)
    return sam


@pytest.fixture(scope="module")
def image() -> torch.Tensor:
    return torch.randn(1, 16, 4, 4, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def points() -> torch.Tensor:
    return torch.rand(5, 2, generator=torch.Generator().manual_seed(2)) * tiny.SIDE


@torch.inference_mode()
def test_masks_and_ious_are_those_of_transformers(sam, image, points):
    wanted = sam(image_embeddings=image, input_points=points[None, :, None], multimask_output=True)
    logits, iou = PointDecoder(sam, image).masks(points, -100.0)
    assert torch.allclose(iou, wanted.iou_scores[0].flatten(), atol=1e-5)
    assert torch.allclose(logits, wanted.pred_masks[0].flatten(0, 1), atol=1e-5)
    assert logits.std() > 1e-3  # points and masks differ
    assert (logits[0] - logits[3]).abs().max() > 1e-3


@torch.inference_mode()
def test_only_good_masks_are_drawn_and_only_the_rows_asked_for(sam, image, points):
    decoder = PointDecoder(sam, image)
    logits, iou = decoder.masks(points, -100.0)
    middle = float(iou.median())
    fewer, good = decoder.masks(points, middle, rows=3)
    assert torch.equal(good, iou[iou >= middle])
    assert torch.allclose(fewer, logits[iou >= middle, :12], atol=1e-6)
    none, no_iou = decoder.masks(points, 100.0)
    assert none.shape == (0, 16, 16)
    assert len(no_iou) == 0
