"""Automatic masks against the published procedure written plainly: a point at a time, every mask drawn in full."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from tests.benchmarks.heads.sam import tiny
from tests.fakes import random_image
from tfa_bench.heads.peers.sam import MaskSettings, SamSegmenter, prepare_square, read_mobile_sam

Candidate = tuple[float, np.ndarray]  # predicted IoU, logits at the size of the halved photo
ROUNDING = 1e-2  # of logits, in parts of the offset that their stability is asked at


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory) -> SamSegmenter:
    path = tmp_path_factory.mktemp("plain") / "mobile_sam.pt"
    torch.save(tiny.weights(7), path)
    return read_mobile_sam(path, config=tiny.config(), sizes=tiny.SIZES)


@torch.inference_mode()
def candidates(sam: torch.nn.Module, picture: Image.Image, a_side: int) -> list[Candidate]:
    """All three masks of every point, by transformers' own modules and the published two enlargements."""
    pixels, (width, height) = prepare_square(picture, tiny.SIDE)
    embedded = sam.vision_encoder(torch.from_numpy(pixels)[None])[0]
    found = []
    for row in range(a_side):
        for column in range(a_side):
            point = torch.tensor([[(column + 0.5) / a_side * width, (row + 0.5) / a_side * height]])
            answer = sam(image_embeddings=embedded, input_points=point[None, None], multimask_output=True)
            for iou, logits in zip(answer.iou_scores[0, 0], answer.pred_masks[0, 0], strict=True):
                large = interpolate(logits[None, None], (tiny.SIDE, tiny.SIDE), mode="bilinear", align_corners=False)
                size = (picture.height, picture.width)
                large = interpolate(large[..., :height, :width], size, mode="bilinear", align_corners=False)
                found.append((float(iou), large[0, 0].numpy()))
    return found


def box(mask: np.ndarray) -> tuple[int, int, int, int]:
    inside = [(x, y) for y in range(mask.shape[0]) for x in range(mask.shape[1]) if mask[y, x]]
    if not inside:
        return 0, 0, 0, 0
    across, down = zip(*inside, strict=True)
    return min(across), min(down), max(across), max(down)


def overlap(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    across, down = (max(min(a[i + 2], b[i + 2]) - max(a[i], b[i]), 0) for i in (0, 1))
    areas = [(one[2] - one[0]) * (one[3] - one[1]) for one in (a, b)]
    union = sum(areas) - across * down
    return across * down / union if union else 0.0


def stability(logits: np.ndarray, offset: float) -> float:
    inner = sum(value > offset for value in logits.ravel())
    outer = sum(value > -offset for value in logits.ravel())
    return inner / outer if outer else 0.0


def published(found: list[Candidate], settings: MaskSettings) -> list[np.ndarray]:
    """Sure and stable ones, by falling IoU, that overlap no better one that was kept."""
    kept: list[np.ndarray] = []
    for iou, logits in sorted(found, key=lambda one: -one[0]):
        if iou <= settings.least_iou or stability(logits, settings.stability_offset) < settings.least_stability:
            continue
        if all(overlap(box(logits > 0), box(one > 0)) <= settings.most_overlap for one in kept):
            kept.append(logits)
    return kept


@pytest.mark.parametrize("size", [(60, 40), (34, 90)])
def test_masks_are_those_of_the_published_procedure(segmenter, size, monkeypatch):
    photo = random_image(4, size)
    small = photo.resize((size[0] // 2, size[1] // 2), Image.Resampling.BILINEAR)
    found = candidates(segmenter._sam, small, 5)
    offset = 0.03 * float(np.std([logits for _, logits in found]))
    # Limits between two of the values that random weights give: each rule has something to decide, and none a tie.
    least_iou = float(np.mean(sorted(iou for iou, _ in found)[36:38]))
    stabilities = sorted(stability(logits, offset) for iou, logits in found if iou >= least_iou)
    settings = MaskSettings(
        points_per_side=5,
        least_iou=least_iou,
        least_stability=float(np.mean(stabilities[8:10])),
        stability_offset=offset,
        longest=max(small.size),
    )
    counts = []
    for most_overlap in (0.9, 1.0):
        monkeypatch.setattr(segmenter, "prompting", replace(settings, most_overlap=most_overlap))
        wanted, masks = published(found, segmenter.prompting), segmenter.segment(photo)
        assert len(masks) == len(wanted)
        for mask, logits in zip(masks, wanted, strict=True):
            clear = np.abs(logits) > ROUNDING * offset
            assert np.array_equal(mask[clear], logits[clear] > 0)
            assert clear.mean() > 0.99
        counts.append(len(wanted))
    assert 1 < counts[0] < counts[1] < len(stabilities) < len(found)
