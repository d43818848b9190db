"""SAM built from weights on this machine: a file of a published size, or a folder that says its size itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfa.errors import BadSpec, BadWeights, WeightsMissing

if TYPE_CHECKING:
    import torch

# Width, blocks, attention heads and the blocks with global attention, of each published size.
SIZES = {
    "vit-b": (768, 12, 12, (2, 5, 8, 11)),
    "vit-l": (1024, 24, 16, (5, 11, 17, 23)),
    "vit-h": (1280, 32, 16, (7, 15, 23, 31)),
}
# One tensor under two names; files hold it under either or both.
TIED = ("shared_image_embedding.positional_embedding", "prompt_encoder.shared_embedding.positional_embedding")


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
    return SamConfig(vision_config=vision)


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


def build(config: Any, weights: Path, name: str) -> tuple[Any, str]:
    """The model with these weights, in eval mode, and the digest of the weights."""
    import torch
    from transformers import SamModel

    from tfa.encoders.weights import _as_float32, _without_prefix

    tensors, sha256 = _as_float32(_tied(_without_prefix(_read_all(weights))))
    with torch.device("meta"):  # no memory and no random numbers for weights that are replaced at once
        sam = SamModel(config)
    _check({key: tuple(tensor.shape) for key, tensor in tensors.items()}, sam.state_dict(), weights, name)
    sam.load_state_dict(tensors, strict=True, assign=True)
    return sam.eval().requires_grad_(False), sha256


def _read_all(weights: Path) -> dict[str, torch.Tensor]:
    from tfa.encoders.weights import _read

    if weights.is_dir():
        files = sorted(weights.glob("*.safetensors")) or sorted(weights.glob("pytorch_model*.bin"))
    else:
        files = [weights] if weights.is_file() else []
    if not files:
        raise WeightsMissing(
            f"there are no SAM weights at {weights}; give a .safetensors or .pth file with transformers' names, or "
            "a folder written by save_pretrained. Nothing is downloaded"
        )
    return {key: tensor for file in files for key, tensor in _read(file).items()}


def _tied(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    held = next((tensors[key] for key in TIED if key in tensors), None)
    return tensors if held is None else {**dict.fromkeys(TIED, held), **tensors}


def _check(shapes: dict[str, tuple[int, ...]], wanted: Mapping[str, Any], weights: Path, name: str) -> None:
    problems = {
        "missing": [key for key in wanted if key not in shapes],
        "extra": [key for key in shapes if key not in wanted],
        "of another shape": [key for key in wanted if key in shapes and shapes[key] != tuple(wanted[key].shape)],
    }
    mismatches = [f"{len(keys)} {kind}: {', '.join(keys[:4])}" for kind, keys in problems.items() if keys]
    if mismatches:
        raise BadWeights(
            f"{weights} does not hold the weights of SAM {name} under transformers' names:",
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
