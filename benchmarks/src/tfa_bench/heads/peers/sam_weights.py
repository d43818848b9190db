"""SAM built from weights on this machine: a file of a published size, or a folder that says its size itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfa.errors import BadSpec, BadWeights, WeightsMissing
from tfa_bench.heads.peers.sam_names import is_mobile, to_transformers_names

if TYPE_CHECKING:
    import torch

# Width, blocks, attention heads and the blocks with global attention, of each published size.
SIZES = {
    "vit-b": (768, 12, 12, (2, 5, 8, 11)),
    "vit-l": (1024, 24, 16, (5, 11, 17, 23)),
    "vit-h": (1280, 32, 16, (7, 15, 23, 31)),
}


def sized_config(model: str) -> Any:
    """The config of a published size."""
    from transformers import SamConfig

    if model not in SIZES:
        raise BadSpec(f"SAM has no size {model!r}; use {', '.join(SIZES)}")
    width, blocks, heads, whole = SIZES[model]
    vision = {
        "hidden_size": width,
        "num_hidden_layers": blocks,
        "num_attention_heads": heads,
        "global_attn_indexes": list(whole),
    }
    # transformers' own default is 1e-6; the authors' decoder was trained with 1e-5.
    return SamConfig(vision_config=vision, mask_decoder_config={"layer_norm_eps": 1e-5})


def folder_config(folder: Path) -> Any:
    """The config of a folder written by `save_pretrained`."""
    from transformers import SamConfig

    file = folder / "config.json"
    try:
        values = json.loads(file.read_text("utf-8"))
        if values.get("model_type") != "sam":
            raise BadWeights(f"{file} is of a {values.get('model_type')!r}; give a folder of a 'sam' model")
        return SamConfig.from_dict(values)
    except BadWeights:
        raise
    except Exception as error:  # no file, no JSON, values of another type: all of it means no SAM folder
        raise BadWeights(
            f"{file} does not describe a SAM model ({type(error).__name__}: {error}); give a folder written by "
            "save_pretrained, or a weights file and its size"
        ) from None


def build(
    config: Any, weights: Path, name: str, encoder: Callable[[], torch.nn.Module] | None = None
) -> tuple[Any, str]:
    """The model with these weights, in eval mode, and the digest of the weights; `encoder` in place of SAM's ViT."""
    import torch
    from transformers import SamModel

    from tfa.encoders.weights import as_float32
    from tfa_bench.heads.trained.checkpoints import check_finite

    given = _read_all(weights)
    if is_mobile(given) != (encoder is not None):
        raise BadWeights(_other_head(weights, mobile=encoder is None), weights)
    tensors, sha256 = as_float32(to_transformers_names(given))
    with torch.device("meta"):  # no memory and no random numbers for weights that are replaced at once
        sam: Any = SamModel(config)
        if encoder is not None:
            sam.vision_encoder = encoder()
    _check({key: tuple(tensor.shape) for key, tensor in tensors.items()}, sam.state_dict(), weights, name)
    check_finite(tensors, weights)
    sam.load_state_dict(tensors, strict=True, assign=True)
    return sam.eval().requires_grad_(False), sha256


def _other_head(weights: Path, *, mobile: bool) -> str:
    if mobile:
        return f"{weights} holds the weights of MobileSAM; use --heads segvlad-mobilesam, which fetches them itself"
    return f"{weights} does not hold the weights of MobileSAM; remove it and run tfa weights get mobilesam"


def _read_all(weights: Path) -> dict[str, torch.Tensor]:
    from tfa_bench.heads.trained.checkpoints import read_checkpoint

    if weights.is_dir():
        files = sorted(weights.glob("*.safetensors")) or sorted(weights.glob("pytorch_model*.bin"))
    else:
        files = [weights] if weights.is_file() else []
    if not files:
        raise WeightsMissing(
            f"there are no SAM weights at {weights}; give the authors' .pth file, a .safetensors file, or a folder "
            "written by save_pretrained. Nothing is downloaded"
        )
    return {key: tensor for file in files for key, tensor in read_checkpoint(file).items()}


def _check(shapes: dict[str, tuple[int, ...]], wanted: Mapping[str, Any], weights: Path, name: str) -> None:
    problems = {
        "missing": [key for key in wanted if key not in shapes],
        "extra": [key for key in shapes if key not in wanted],
        "of another shape": [key for key in wanted if key in shapes and shapes[key] != tuple(wanted[key].shape)],
    }
    mismatches = [f"{len(keys)} {kind}: {', '.join(keys[:4])}" for kind, keys in problems.items() if keys]
    if mismatches:
        raise BadWeights(
            f"{weights} does not hold the weights of SAM {name} under its authors' names or transformers':",
            more=[
                *(f"  {line}" for line in mismatches),
                f"give the size the file belongs to ({', '.join(SIZES)}), or a folder written by save_pretrained",
            ],
        )


def size_of(config: Any) -> str:
    """The published size a config has, or its width and blocks."""
    vision = config.vision_config
    for name, (width, blocks, _, _) in SIZES.items():
        if (vision.hidden_size, vision.num_hidden_layers) == (width, blocks):
            return name
    return f"{vision.hidden_size}x{vision.num_hidden_layers}"
