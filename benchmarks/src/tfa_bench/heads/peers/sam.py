"""SAM's automatic masks: a grid of points prompts it, and the masks it is sure of are kept.

Weights come from a file or folder on this machine; nothing is downloaded and nothing in them is executed.
Preparation and suppression of overlapping boxes are our own code, so that no vision library is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tfa.photos.images import resize
from tfa_bench.heads.peers.mask_drawing import Enlarging, MaskDrawing
from tfa_bench.heads.peers.point_decoder import PointDecoder
from tfa_bench.heads.peers.sam_weights import build, folder_config, size_of, sized_config
from tfa_bench.heads.peers.segments import reduced

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
POINTS_AT_ONCE = 16  # each has 1.6 MB of its own in memory


@dataclass(frozen=True, kw_only=True)
class MaskSettings:
    """How masks are prompted for and which are kept: the published defaults of the automatic mask generator."""

    points_per_side: int = 32
    least_iou: float = 0.88  # what the model predicts of its own mask; it must have more
    least_stability: float = 0.95  # area above +offset ÷ area above −offset
    stability_offset: float = 1.0
    most_overlap: float = 0.7  # intersection over union of boxes
    longest: int = 320  # half of the 640 × 480 pixels that the published head works at; ours: nothing is enlarged to it


class SamSegmenter:
    """A SAM with its weights, and how it is prompted."""

    def __init__(
        self, name: str, sam: Any, sha256: str, prompting: MaskSettings | None = None, device: str = "cpu"
    ) -> None:
        self.name, self.sha256, self.prompting = name, sha256, prompting or MaskSettings()
        self.device = "cpu" if device == "torch" else device
        self._sam = sam.to(self.device)
        self.side = int(sam.prompt_encoder.input_image_size)

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"segmenter": self.name, "weights": self.sha256, **asdict(self.prompting)}

    def segment(self, image: Image.Image) -> np.ndarray:
        """Boolean masks `s h w` at the reduced resolution, most confident first; none if it is sure of none."""
        import torch

        image = reduced(image, self.prompting.longest)
        pixels, inside = prepare(image, self.side)
        masks = [np.zeros((0, image.height, image.width), dtype=bool)]
        ious = [np.zeros(0, np.float32)]
        with torch.inference_mode():
            embedded = self._sam.vision_encoder(torch.from_numpy(pixels)[None].to(self.device))[0]
            decoder = PointDecoder(self._sam, embedded)
            across = Enlarging(4 * decoder.grid[1], self.side, inside[0], image.width, self.device)
            down = Enlarging(4 * decoder.grid[0], self.side, inside[1], image.height, self.device)
            drawing = MaskDrawing(self._sam, decoder, -(-down.read // 4))  # rows of cells; below them is padding
            points = torch.from_numpy(grid_points(self.prompting.points_per_side, inside)).to(self.device)
            for some in points.split(POINTS_AT_ONCE):
                predicted, wanted, images = decoder.answers(some)
                for iou, asked, changed in zip(predicted, wanted, images, strict=True):
                    good = iou > self.prompting.least_iou
                    if not good.any():
                        continue
                    large = down.lines(across.columns(drawing.logits(changed, asked[good]))).cpu().numpy()
                    sure = stability(large, self.prompting.stability_offset) >= self.prompting.least_stability
                    masks.append(large[sure] > 0)
                    ious.append(iou[good].cpu().numpy()[sure])
        found = np.concatenate(masks)
        return found[suppress(boxes_of(found), np.concatenate(ious), self.prompting.most_overlap)]


def read_sam(
    weights: Path, model: str = "vit-h", *, prompting: MaskSettings | None = None, device: str = "cpu"
) -> SamSegmenter:
    """SAM of a published size from a file of weights, or of the size that a saved folder's own config says."""
    config = folder_config(weights) if weights.is_dir() else sized_config(model)
    size = size_of(config) if weights.is_dir() else model
    return SamSegmenter(f"SAM {size}", *build(config, weights, size), prompting, device)


def read_mobile_sam(
    weights: Path, *, prompting: MaskSettings | None = None, device: str = "cpu", config: Any = None, sizes: Any = None
) -> SamSegmenter:
    """MobileSAM: SAM's prompt encoder and mask decoder behind a TinyViT."""
    from tfa_bench.heads.peers.tiny_vit import TinyViT

    built = build(config or sized_config("vit-b"), weights, "MobileSAM", lambda: TinyViT(sizes))
    return SamSegmenter("MobileSAM", *built, prompting, device)


def prepare(image: Image.Image, side: int) -> tuple[np.ndarray, tuple[int, int]]:
    """float32 `3 side side`, the image in its upper left corner, and its (width, height) there."""
    scale = side / max(image.size)
    inside = (max(int(image.width * scale + 0.5), 1), max(int(image.height * scale + 0.5), 1))
    pixels = (np.asarray(resize(image, inside), np.float32) - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    padded = np.zeros((3, side, side), np.float32)  # zero is the mean colour
    padded[:, : inside[1], : inside[0]] = pixels.transpose(2, 0, 1)
    return padded, inside


def grid_points(per_side: int, size: tuple[int, int]) -> np.ndarray:
    """Points (x, y) at the middles of a grid over (width, height), row by row, `p 2`."""
    middles = (np.arange(per_side) + 0.5) / per_side
    x, y = np.meshgrid(middles * size[0], middles * size[1])
    return np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float32)


def stability(logits: np.ndarray, offset: float) -> np.ndarray:
    """How little a mask `s h w` changes with its threshold: |logit > offset| / |logit > −offset|, 0 if empty."""
    # Counted mask by mask, which is many times quicker than a sum over axes.
    inner = np.array([np.count_nonzero(mask > offset) for mask in logits])
    outer = np.array([np.count_nonzero(mask > -offset) for mask in logits])
    return inner / np.maximum(outer, 1)


def boxes_of(masks: np.ndarray) -> np.ndarray:
    """First and last column and row of each mask, `s 4` as (left, top, right, bottom); zeros if it is empty."""
    columns, rows = np.any(masks, axis=1), np.any(masks, axis=2)
    left, top = columns.argmax(axis=1), rows.argmax(axis=1)
    right = columns.shape[1] - 1 - columns[:, ::-1].argmax(axis=1)
    bottom = rows.shape[1] - 1 - rows[:, ::-1].argmax(axis=1)
    boxes = np.stack([left, top, right, bottom], axis=1).astype(np.float64)
    return np.where(np.any(columns, axis=1)[:, None], boxes, 0)


def suppress(boxes: np.ndarray, scores: np.ndarray, most_overlap: float) -> np.ndarray:
    """Indices of boxes `s 4` by falling score, without those that overlap a better one by more than allowed."""
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    waiting = np.argsort(-scores, kind="stable")  # equal scores: the first point wins
    kept = []
    while len(waiting):
        best, waiting = waiting[0], waiting[1:]
        kept.append(best)
        low = np.maximum(boxes[best, :2], boxes[waiting, :2])
        high = np.minimum(boxes[best, 2:], boxes[waiting, 2:])
        shared = (high - low).clip(min=0).prod(axis=1)
        # Without division: two boxes of no area (lines one pixel wide) do not suppress each other.
        waiting = waiting[shared <= most_overlap * (area[best] + area[waiting] - shared)]
    return np.array(kept, dtype=np.int64)
