"""SAM's automatic masks: a grid of points prompts the model, and confident, stable masks remain.

transformers runs SAM. MobileSAM has the same prompt encoder and mask decoder after a TinyViT. Weights come from a file
or folder on this machine, under their authors' names or those of transformers; nothing is downloaded or executed.
Preprocessing and non-maximum suppression are implemented here, because transformers' versions need torchvision.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import interpolate
from transformers import SamConfig, SamModel

from tfa.encoders.weights import as_float32
from tfa.errors import BadSpec, BadWeights, WeightsMissing
from tfa.photos.images import resize
from tfa_bench.heads.peers.mobile_sam import TinyViT, TinyViTSizes
from tfa_bench.heads.peers.segvlad import reduce_image
from tfa_bench.heads.trained.checkpoints import check_finite, read_checkpoint

_T = TypeVar("_T")

_MEAN, _STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
_POINTS_AT_ONCE = 4  # each needs a 4 MB image in the decoder; batches of 8 were slower on a CPU

# Width, blocks, attention heads and the blocks with global attention of each published size.
SAM_SIZES = {
    "vit-b": (768, 12, 12, (2, 5, 8, 11)),
    "vit-l": (1024, 24, 16, (5, 11, 17, 23)),
    "vit-h": (1280, 32, 16, (7, 15, 23, 31)),
}

_MOBILE_PREFIX = "image_encoder.patch_embed.seq."  # only TinyViT's names, so MobileSAM's, start like this
_PUBLISHED_PREFIX = "image_encoder."
# One tensor with two names in transformers; a file has either or both.
TIED_NAMES = ("shared_image_embedding.positional_embedding", "prompt_encoder.shared_embedding.positional_embedding")

# Authors' names → transformers'; the first match counts.
_VISION = (
    (r"^image_encoder\.patch_embed\.proj\.", "vision_encoder.patch_embed.projection."),
    (r"^image_encoder\.blocks\.(\d+)\.norm(\d)\.", r"vision_encoder.layers.\1.layer_norm\2."),
    (r"^image_encoder\.blocks\.", "vision_encoder.layers."),
    (r"^image_encoder\.neck\.0\.", "vision_encoder.neck.conv1."),
    (r"^image_encoder\.neck\.1\.", "vision_encoder.neck.layer_norm1."),
    (r"^image_encoder\.neck\.2\.", "vision_encoder.neck.conv2."),
    (r"^image_encoder\.neck\.3\.", "vision_encoder.neck.layer_norm2."),
)
_REST = (
    (r"^image_encoder\.", "vision_encoder."),
    (r"^prompt_encoder\.pe_layer\.positional_encoding_gaussian_matrix$", TIED_NAMES[1]),
    (r"^prompt_encoder\.point_embeddings\.", "prompt_encoder.point_embed."),
    (r"^prompt_encoder\.mask_downscaling\.0\.", "prompt_encoder.mask_embed.conv1."),
    (r"^prompt_encoder\.mask_downscaling\.1\.", "prompt_encoder.mask_embed.layer_norm1."),
    (r"^prompt_encoder\.mask_downscaling\.3\.", "prompt_encoder.mask_embed.conv2."),
    (r"^prompt_encoder\.mask_downscaling\.4\.", "prompt_encoder.mask_embed.layer_norm2."),
    (r"^prompt_encoder\.mask_downscaling\.6\.", "prompt_encoder.mask_embed.conv3."),
    (r"^(mask_decoder\.transformer\.layers\.\d+)\.norm(\d)\.", r"\1.layer_norm\2."),
    (r"^mask_decoder\.transformer\.norm_final_attn\.", "mask_decoder.transformer.layer_norm_final_attn."),
    (r"^mask_decoder\.output_upscaling\.0\.", "mask_decoder.upscale_conv1."),
    (r"^mask_decoder\.output_upscaling\.1\.", "mask_decoder.upscale_layer_norm."),
    (r"^mask_decoder\.output_upscaling\.3\.", "mask_decoder.upscale_conv2."),
    (r"^(mask_decoder\.(?:output_hypernetworks_mlps\.\d+|iou_prediction_head))\.layers\.0\.", r"\1.proj_in."),
    (r"^(mask_decoder\.(?:output_hypernetworks_mlps\.\d+|iou_prediction_head))\.layers\.1\.", r"\1.layers.0."),
    (r"^(mask_decoder\.(?:output_hypernetworks_mlps\.\d+|iou_prediction_head))\.layers\.2\.", r"\1.proj_out."),
)


@dataclass(frozen=True, kw_only=True)
class MaskSettings:
    """Prompts and thresholds: the published defaults of the automatic mask generator."""

    points_per_side: int = 32
    least_iou: float = 0.88  # minimum predicted IoU (exclusive) of a mask
    least_stability: float = 0.95  # area above +offset ÷ area above −offset
    stability_offset: float = 1.0
    most_overlap: float = 0.7  # maximum intersection over union of boxes
    longest: int = 320  # half of the published 640 × 480 pixels; smaller images are not enlarged


class SamSegmenter:
    """A SAM with its weights and mask settings."""

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

    @torch.inference_mode()
    def segment(self, image: Image.Image) -> np.ndarray:
        """Return boolean masks `(s, h, w)` at the reduced resolution, most confident first; possibly none."""
        prompting = self.prompting
        image = reduce_image(image, prompting.longest)
        pixels, inside = prepare_square(image, self.side)
        masks = [np.zeros((0, image.height, image.width), dtype=bool)]
        ious = [np.zeros(0, np.float32)]
        embedded = self._sam.vision_encoder(torch.from_numpy(pixels)[None].to(self.device))[0]
        patch = self.side // embedded.shape[3]
        # The rest is padding. Enlarging interpolates toward the next cell, so draw one more than the image covers.
        columns, rows = (-(-length // patch) + 1 for length in inside)
        points = torch.from_numpy(grid_points(prompting.points_per_side, inside)).to(self.device)
        for some in points.split(_POINTS_AT_ONCE):
            iou, tokens, images = prompt_points(self._sam, embedded, some)
            confident = iou > prompting.least_iou
            if not confident.any():
                continue
            logits = draw_masks(self._sam, tokens, images[..., :rows, :columns], confident)
            large = enlarge(logits, patch, inside, image.size).cpu().numpy()
            stable = stability(large, prompting.stability_offset) >= prompting.least_stability
            masks.append(large[stable] > 0)
            ious.append(iou[confident].cpu().numpy()[stable])
        candidates = np.concatenate(masks)
        return candidates[suppress(boxes_of(candidates), np.concatenate(ious), prompting.most_overlap)]


def prompt_points(sam: Any, embedded: Tensor, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run the mask decoder up to its masks, so that only confident ones are drawn.

    Args:
        embedded: the image from the vision encoder, `(1, c, h, w)`.
        points: one foreground point per prompt, `(p, 2)`.

    Returns:
        Predicted IoUs `(p, 3)`, mask tokens `(p, 3, c)`, and the image updated by each prompt, `(p, c, h, w)`.
    """
    decoder, count = sam.mask_decoder, len(points)
    labels = torch.ones(count, 1, 1, device=points.device)
    sparse, dense = sam.prompt_encoder(points[:, None, None], labels, None, None)
    output = torch.cat([decoder.iou_token.weight, decoder.mask_tokens.weight])
    # Prompts are the batch and the image broadcasts to them, so the first layer projects the image only once.
    tokens, cells = decoder.transformer(
        point_embeddings=torch.cat([output.expand(count, 1, -1, -1), sparse], dim=2),
        image_embeddings=embedded + dense[:1],
        image_positional_embeddings=sam.get_image_wide_positional_embeddings(),
        attention_similarity=None,
    )
    # Token 0 predicts IoUs. Token 1 draws the one mask of unambiguous prompts, which the published masks leave out.
    iou = decoder.iou_prediction_head(tokens[:, 0, 0])[:, 1:]
    images = cells[:, 0].transpose(1, 2).unflatten(2, embedded.shape[2:])
    return iou, tokens[:, 0, 2 : 1 + decoder.num_mask_tokens], images


def draw_masks(sam: Any, tokens: Tensor, images: Tensor, chosen: Tensor) -> Tensor:
    """Draw the masks that `chosen` (`(p, 3)`, boolean) selects from `prompt_points`: logits `(s, 4h, 4w)`."""
    decoder, rows = sam.mask_decoder, chosen.any(dim=1)
    upscaled = decoder.activation(decoder.upscale_layer_norm(decoder.upscale_conv1(images[rows])))
    upscaled = decoder.activation(decoder.upscale_conv2(upscaled))
    networks = decoder.output_hypernetworks_mlps[1:]
    weights = torch.stack([network(tokens[rows, i]) for i, network in enumerate(networks)], dim=1)
    logits = (weights @ upscaled.flatten(2)).unflatten(2, upscaled.shape[2:])
    return logits[chosen[rows]]


def enlarge(logits: Tensor, patch: int, inside: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Resize logits `(s, h, w)`, four per cell, as published: to input pixels, crop to the image, to the image's size.

    `inside` and `size` are (width, height); cells have `patch` input pixels a side.
    """
    pixels = tuple(length * patch // 4 for length in logits.shape[1:])
    padded = interpolate(logits[:, None], pixels, mode="bilinear", align_corners=False)
    image = padded[..., : inside[1], : inside[0]]
    return interpolate(image, size[::-1], mode="bilinear", align_corners=False)[:, 0]


def read_sam(
    weights: Path, model: str = "vit-h", *, prompting: MaskSettings | None = None, device: str = "cpu"
) -> SamSegmenter:
    """Read a SAM of a published size from a weights file, or of the size in a saved folder's config."""
    config = _read_config(weights) if weights.is_dir() else sized_config(model)
    size = _name_size(config) if weights.is_dir() else model
    return SamSegmenter(f"SAM {size}", *load_sam(config, weights, size), prompting, device)


def read_mobile_sam(
    weights: Path,
    *,
    prompting: MaskSettings | None = None,
    device: str = "cpu",
    config: Any = None,
    sizes: TinyViTSizes | None = None,
) -> SamSegmenter:
    """Read MobileSAM: SAM's prompt encoder and mask decoder after a TinyViT."""
    loaded = load_sam(config or sized_config("vit-b"), weights, "MobileSAM", lambda: TinyViT(sizes))
    return SamSegmenter("MobileSAM", *loaded, prompting, device)


def prepare_square(image: Image.Image, side: int) -> tuple[np.ndarray, tuple[int, int]]:
    """Return float32 `(3, side, side)` with the image in its upper left corner, and its (width, height) there."""
    scale = side / max(image.size)
    inside = (max(int(image.width * scale + 0.5), 1), max(int(image.height * scale + 0.5), 1))
    pixels = (np.asarray(resize(image, inside), np.float32) - np.array(_MEAN, np.float32)) / np.array(_STD, np.float32)
    padded = np.zeros((3, side, side), np.float32)  # zero is the mean color
    padded[:, : inside[1], : inside[0]] = pixels.transpose(2, 0, 1)
    return padded, inside


def grid_points(per_side: int, size: tuple[int, int]) -> np.ndarray:
    """Return points (x, y) at the cell centers of a grid over (width, height), row by row, `(p, 2)`."""
    middles = (np.arange(per_side) + 0.5) / per_side
    x, y = np.meshgrid(middles * size[0], middles * size[1])
    return np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float32)


def stability(logits: np.ndarray, offset: float) -> np.ndarray:
    """Return the stability of masks `(s, h, w)`: |logit > offset| / |logit > −offset|, 0 if empty."""
    # Counting mask by mask is many times faster than a sum over axes.
    inner = np.array([np.count_nonzero(mask > offset) for mask in logits])
    outer = np.array([np.count_nonzero(mask > -offset) for mask in logits])
    return inner / np.maximum(outer, 1)


def boxes_of(masks: np.ndarray) -> np.ndarray:
    """Return first and last column and row of each mask, `(s, 4)` as (left, top, right, bottom); zeros if empty."""
    columns, rows = np.any(masks, axis=1), np.any(masks, axis=2)
    left, top = columns.argmax(axis=1), rows.argmax(axis=1)
    right = columns.shape[1] - 1 - columns[:, ::-1].argmax(axis=1)
    bottom = rows.shape[1] - 1 - rows[:, ::-1].argmax(axis=1)
    boxes = np.stack([left, top, right, bottom], axis=1).astype(np.float64)
    return np.where(np.any(columns, axis=1)[:, None], boxes, 0)


def suppress(boxes: np.ndarray, scores: np.ndarray, most_overlap: float) -> np.ndarray:
    """Return indices of boxes `(s, 4)` by falling score, without those that overlap a better one too much."""
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    waiting = np.argsort(-scores, kind="stable")  # equal scores: the first point wins
    chosen = []
    while len(waiting):
        best, waiting = waiting[0], waiting[1:]
        chosen.append(best)
        low = np.maximum(boxes[best, :2], boxes[waiting, :2])
        high = np.minimum(boxes[best, 2:], boxes[waiting, 2:])
        shared = (high - low).clip(min=0).prod(axis=1)
        # Without division: two boxes of zero area (lines one pixel wide) do not suppress each other.
        waiting = waiting[shared <= most_overlap * (area[best] + area[waiting] - shared)]
    return np.array(chosen, dtype=np.int64)


def sized_config(model: str) -> Any:
    """Return the config of a published size."""
    if model not in SAM_SIZES:
        raise BadSpec(f"SAM has no size {model!r}; use {', '.join(SAM_SIZES)}")
    width, blocks, heads, whole = SAM_SIZES[model]
    vision = {
        "hidden_size": width,
        "num_hidden_layers": blocks,
        "num_attention_heads": heads,
        "global_attn_indexes": list(whole),
    }
    # transformers' default is 1e-6; the authors' decoder was trained with 1e-5.
    return SamConfig(vision_config=vision, mask_decoder_config={"layer_norm_eps": 1e-5})


def _read_config(folder: Path) -> Any:
    """Read the config of a folder written by `save_pretrained`."""
    file = folder / "config.json"
    try:
        values = json.loads(file.read_text("utf-8"))
        if values.get("model_type") != "sam":
            raise BadWeights(f"{file} describes a {values.get('model_type')!r}; use a folder of a 'sam' model")
        return SamConfig.from_dict(values)
    except BadWeights:
        raise
    except Exception as error:  # missing file, invalid JSON or wrong types: not a SAM folder
        raise BadWeights(
            f"{file} does not describe a SAM model ({type(error).__name__}: {error}); use a folder written by "
            "save_pretrained, or a weights file and its size"
        ) from None


def _name_size(config: Any) -> str:
    """Name the published size of a config, or else its width and blocks."""
    vision = config.vision_config
    for name, (width, blocks, _, _) in SAM_SIZES.items():
        if (vision.hidden_size, vision.num_hidden_layers) == (width, blocks):
            return name
    return f"{vision.hidden_size}x{vision.num_hidden_layers}"


def load_sam(config: Any, weights: Path, name: str, encoder: Callable[[], nn.Module] | None = None) -> tuple[Any, str]:
    """Load weights into a SAM, optionally with `encoder` instead of its ViT.

    Returns:
        The model in eval mode, and the digest of its weights.
    """
    tensors = _read_tensors(weights)
    if is_mobile(tensors) != (encoder is not None):
        raise BadWeights(_name_other_head(weights, mobile=encoder is None), weights)
    arrays, sha256 = as_float32(to_transformers_names(tensors))
    tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
    with torch.device("meta"):  # no memory and no random numbers for weights that are replaced at once
        sam: Any = SamModel(config)
        if encoder is not None:
            sam.vision_encoder = encoder()
    _check_tensors(tensors, sam.state_dict(), weights, name)
    check_finite(tensors, weights)
    sam.load_state_dict(tensors, strict=True, assign=True)
    return sam.eval().requires_grad_(False), sha256


def _name_other_head(weights: Path, *, mobile: bool) -> str:
    if mobile:
        return f"{weights} holds the weights of MobileSAM; use --heads segvlad-mobilesam, which downloads them"
    return f"{weights} does not hold the weights of MobileSAM; remove it and run tfa weights get mobilesam"


def _read_tensors(weights: Path) -> dict[str, Tensor]:
    if weights.is_dir():
        files = sorted(weights.glob("*.safetensors")) or sorted(weights.glob("pytorch_model*.bin"))
    else:
        files = [weights] if weights.is_file() else []
    if not files:
        raise WeightsMissing(
            f"no SAM weights at {weights}; use the authors' .pth file, a .safetensors file, or a folder "
            "written by save_pretrained. Nothing is downloaded"
        )
    return {key: tensor for file in files for key, tensor in read_checkpoint(file).items()}


def _check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], weights: Path, name: str) -> None:
    """Reject weights with missing, extra or misshapen tensors."""
    misshapen = [key for key in expected if key in tensors and tensors[key].shape != expected[key].shape]
    problems = {
        "missing": [key for key in expected if key not in tensors],
        "extra": [key for key in tensors if key not in expected],
        "of another shape": misshapen,
    }
    mismatches = [f"{len(keys)} {kind}: {', '.join(keys[:4])}" for kind, keys in problems.items() if keys]
    if mismatches:
        raise BadWeights(
            f"{weights} does not hold the weights of SAM {name} under its authors' names or transformers':",
            more=[
                *(f"  {line}" for line in mismatches),
                f"choose the size of the file ({', '.join(SAM_SIZES)}), or a folder written by save_pretrained",
            ],
        )


def is_mobile(names: Mapping[str, object]) -> bool:
    """Return True if the weights are MobileSAM's, whose image encoder is a TinyViT."""
    return any(name.startswith(_MOBILE_PREFIX) for name in names)


def to_transformers_names(tensors: Mapping[str, _T]) -> dict[str, _T]:
    """Rename tensors from their authors' names to transformers'. TinyViT's keep theirs; the tied tensor gets both."""
    named = dict(tensors)
    if any(name.startswith(_PUBLISHED_PREFIX) for name in tensors):
        rules = _REST if is_mobile(tensors) else (*_VISION, *_REST)
        named = {_rename(name, rules): tensor for name, tensor in tensors.items()}
    tied = next((named[name] for name in TIED_NAMES if name in named), None)
    return named if tied is None else {**dict.fromkeys(TIED_NAMES, tied), **named}


def _rename(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    """Apply the first matching rule."""
    for pattern, replacement in rules:
        renamed, count = re.subn(pattern, replacement, name)
        if count:
            return renamed
    return name
