"""The decoder for many points against transformers' own, which keeps an image of its own for each."""

from __future__ import annotations

import pytest
import torch
from transformers import SamModel

from tests.benchmarks.heads.sam import tiny
from tfa_bench.heads.peers import mask_drawing
from tfa_bench.heads.peers.mask_drawing import MaskDrawing
from tfa_bench.heads.peers.point_decoder import PointDecoder


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
    decoder = PointDecoder(sam, image)
    drawing = MaskDrawing(sam, decoder)
    for start, some in ((0, points[:3]), (3, points[3:])):  # the second lot in the memory of the first
        iou, asked, images = decoder.answers(some)
        assert torch.allclose(iou, wanted.iou_scores[0, start : start + len(some)], atol=1e-5)
        for index, changed in enumerate(images):
            logits = drawing.logits(changed, asked[index])
            assert torch.allclose(logits, wanted.pred_masks[0, start + index], atol=1e-5)
    assert wanted.pred_masks.std() > 1e-3  # points and masks differ
    assert (wanted.pred_masks[0, 0] - wanted.pred_masks[0, 1]).abs().max() > 1e-3


@torch.inference_mode()
def test_only_the_masks_and_rows_asked_for_are_drawn_however_many_cells_at_a_time(sam, image, points, monkeypatch):
    decoder = PointDecoder(sam, image)
    _, asked, images = decoder.answers(points)
    logits = MaskDrawing(sam, decoder).logits(images[1], asked[1])
    assert logits.shape == (3, 16, 16)
    monkeypatch.setattr(mask_drawing, "CELLS_AT_ONCE", 5)  # of twelve cells: the last lot is smaller
    fewer = MaskDrawing(sam, decoder, rows=3).logits(images[1], asked[1, [2, 0]])
    assert torch.allclose(fewer, logits[[2, 0], :12], atol=1e-6)
