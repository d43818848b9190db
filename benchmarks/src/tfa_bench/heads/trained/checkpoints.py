"""Load checkpoint files into models: nothing in a file is executed, and every name and shape is checked."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tfa.core.files import hash_file
from tfa.encoders.weights import read_safetensors, read_torch
from tfa.errors import BadWeights, WeightsMissing
from tfa_bench.heads.trained import models
from tfa_bench.heads.trained.models import Architecture, ImageModel
from tfa_bench.heads.trained.networks import to_published_name
from tfa_bench.heads.trained.systems import TrainedSystem, recognize

_NESTS = ("state_dict", "model_state_dict", "model")  # where training scripts put the weights
_WRAPPER = "module."  # prefix of every name after training on several devices
_SAVED = (b"PK\x03\x04", b"\x80")  # first bytes of torch.save files: an archive, or a pickle of old releases
_LISTED = 20  # names of each kind in an error
_COUNTER = "num_batches_tracked"  # batch norm counters, which affect no answer and may be missing
_CONVERTED = "plain.pth"
_CONVERTING = (  # no single quotes, because a shell quotes it with them
    'import sys, torch; c = torch.load(sys.argv[1], map_location="cpu", weights_only=False); '
    f"c = next((c[k] for k in {json.dumps(_NESTS)} if isinstance(c, dict) and k in c), c); "
    'c = c.state_dict() if hasattr(c, "state_dict") else c; '
    f'torch.save({{k: v for k, v in c.items() if isinstance(v, torch.Tensor)}}, "{_CONVERTED}")'
)


def get_architecture(system: TrainedSystem) -> Architecture:
    """Look up the architecture that a system names."""
    architecture: Architecture = getattr(models, system.architecture)
    return architecture


def load_model(system: TrainedSystem, path: Path) -> tuple[ImageModel, str]:
    """Load a system's checkpoint.

    Returns:
        The model in eval mode on the CPU, and the sha256 of the file.
    """
    if not path.is_file():
        raise WeightsMissing(f"no checkpoint {path} of {system.title}; download it: {system.published}", path)
    return build_trained_model(system, read_checkpoint(path), path), hash_file(path)


def build_trained_model(system: TrainedSystem, content: Mapping[str, Tensor], path: Path) -> ImageModel:
    """Build the model from a checkpoint's tensors; each must exist and fit."""
    architecture = get_architecture(system)
    names = {_replace_prefix(name, architecture): name for name in content}  # published names → names in the file
    if len(names) < len(content):
        raise BadWeights(f"{path} holds tensors of its backbone under two names; download it again", path)
    tensors = {name: content[in_file] for name, in_file in names.items()}
    _check_system(system, tensors, path)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    empty = next((name for name, shape in shapes.items() if 0 in shape), None)
    if empty is not None:
        raise BadWeights(
            f"{path} is not a checkpoint of {system.title}: the tensor {names[empty][:120]} is empty", path
        )
    try:
        with torch.device("meta"):  # no memory and no random numbers for weights that are replaced at once
            model = architecture.build(shapes)
    except (ValueError, RuntimeError, OverflowError, ZeroDivisionError) as error:
        raise BadWeights(f"{path} is not a checkpoint of {system.title}: it has {error}", path) from None
    expected = list_weights(model, architecture)
    for name in expected:
        if name not in tensors and name.endswith(_COUNTER):
            tensors[name] = torch.zeros((), dtype=torch.int64)
    tensors = {name: tensor for name, tensor in tensors.items() if name not in architecture.may_have}
    problems = _list_problems(tensors, expected, architecture, set(content))
    if problems:
        raise BadWeights(
            f"{path} is not a complete checkpoint of {system.title}; download it: {system.published}",
            path,
            more=problems,
        )
    tensors = {name: tensor.to(expected[name].dtype) for name, tensor in tensors.items()}
    check_finite(tensors, path)
    _check_signs(tensors, names, path)
    state = {part: value for name in expected for part, value in expected[name].split(tensors[name]).items()}
    model.load_state_dict(state, strict=True, assign=True)
    return model.eval().requires_grad_(False)


@dataclass(frozen=True)
class PublishedWeight:
    """A tensor of a checkpoint and our modules' weights that are its row blocks, in order."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: tuple[str, ...]

    def split(self, tensor: Tensor) -> dict[str, Tensor]:
        """Split the tensor into the weights."""
        blocks = tensor.chunk(len(self.parts)) if len(self.parts) > 1 else (tensor,)
        return dict(zip(self.parts, blocks, strict=True))


def list_weights(model: ImageModel, architecture: Architecture) -> dict[str, PublishedWeight]:
    """List the tensors that a checkpoint of this model must have, by their published names."""
    state = model.state_dict()
    parts: dict[str, tuple[str, ...]] = {}
    for name in state:
        published = to_published_name(name, architecture.names)
        parts[published] = (*parts.get(published, ()), name)
    weights = {}
    for published, names in parts.items():
        first = state[names[0]]
        shape = tuple(first.shape) if len(names) == 1 else (len(names) * len(first), *first.shape[1:])
        weights[published] = PublishedWeight(shape, first.dtype, names)
    return weights


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file by name: plain, nested or wrapped, from safetensors or torch.save."""
    if path.suffix == ".safetensors":
        content: Any = {name: torch.from_numpy(one) for name, one in read_safetensors(path, BadWeights).items()}
    else:
        _check_beginning(path)
        content = read_torch(path, BadWeights, "It can be converted:", more=_explain_conversion(path))
    for key in _NESTS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not content:
        kind = "nothing" if isinstance(content, Mapping) else f"a {type(content).__name__}"
        raise BadWeights(f"{path} holds {kind}; a checkpoint holds tensors by name (a state_dict)", path)
    for name, value in content.items():
        _check_entry(name, value, path)
    if all(name.startswith(_WRAPPER) for name in content):
        return {name.removeprefix(_WRAPPER): value for name, value in content.items()}
    return dict(content)


def _explain_conversion(path: Path) -> list[str]:
    """Return instructions to convert a file that holds more than tensors."""
    command = shlex.join(["python", "-c", _CONVERTING, str(path)])
    return [f"if you trust its source, convert it once (this executes it) and use {_CONVERTED}:", f"  {command}"]


def _check_beginning(path: Path) -> None:
    """Reject files that torch.save never writes, such as the error page of a failed download."""
    with open(path, "rb") as file:
        first = file.read(4)
    if not first:
        raise BadWeights(f"{path} is not a checkpoint: the file is empty; download it again", path)
    if not first.startswith(_SAVED):
        raise BadWeights(
            f"{path} is not a checkpoint: it starts with {first!r}, unlike torch.save files; download it again "
            "(safetensors files must end in .safetensors)",
            path,
        )


def _check_entry(name: Any, value: Any, path: Path) -> None:
    if not isinstance(name, str) or not isinstance(value, Tensor):
        raise BadWeights(
            f"{path}: the entry {str(name)[:80]!r} is a {type(value).__name__}, must be a tensor; "
            "save only the state_dict",
            path,
        )
    plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
    if not plain or value.is_complex():
        raise BadWeights(f"{path}: the tensor {name[:80]!r} is not a plain array of numbers", path)
    # A view can represent far more numbers than are stored.
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise BadWeights(f"{path}: the tensor {name[:80]!r} has more numbers than the file stores", path)


def _replace_prefix(name: str, architecture: Architecture) -> str:
    for before, after in architecture.prefixes.items():
        if name.startswith(before):
            return after + name.removeprefix(before)
    return name


def _check_system(system: TrainedSystem, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Reject the file of another system and name that system."""
    patches = tensors.get("backbone.patch_embed.proj.weight")
    width = len(patches) if patches is not None and patches.ndim else 0
    other = recognize(tensors, width, path)
    if isinstance(other, str):
        raise BadWeights(f"{path} looks like a checkpoint of {other}, which no head supports", path)
    if other is None or other.name == system.name:
        return  # the missing names show the problem
    same_layout = other.marks == system.marks
    # Same layout: unless the file name or the width says otherwise, trust the user.
    if same_layout and (system.matches(width, path) or not other.matches(width, path)):
        return
    raise BadWeights(
        f"{path} looks like {other.title}'s checkpoint{', by its name' if other.called and same_layout else ''}; "
        f"use --heads {other.name} --checkpoint {other.name}={path}",
        path,
    )


def _list_problems(
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, PublishedWeight],
    architecture: Architecture,
    in_file: Collection[str],
) -> list[str]:
    """List missing, extra and misshapen tensors by their names in the file, one line per kind."""
    prefixes = {
        after: before
        for before, after in architecture.prefixes.items()
        if any(name.startswith(before) for name in in_file)
    }

    def rename(name: str) -> str:
        prefix = next((after for after in prefixes if name.startswith(after)), "")
        return (prefixes[prefix] + name.removeprefix(prefix) if prefix else name)[:120]

    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    misshapen = [name for name, weight in expected.items() if name in shapes and shapes[name] != weight.shape]
    kinds = {
        "missing": [rename(name) for name in expected if name not in shapes],
        "extra": [rename(name) for name in shapes if name not in expected],
        "of another shape": [f"{rename(name)} {shapes[name]} for {expected[name].shape}" for name in misshapen],
    }
    return [
        f"{len(names):,} {kind}: {', '.join(names[:_LISTED])}"
        + (f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else "")
        for kind, names in kinds.items()
        if names
    ]


def _check_signs(tensors: Mapping[str, Tensor], names: Mapping[str, str], path: Path) -> None:
    """Reject negative variances, which have no root, and exponents of a mean that are not positive."""
    for name, tensor in tensors.items():
        if name.endswith(".running_var") and bool((tensor < 0).any()):
            raise BadWeights(f"{path}: the tensor {names[name]} has variances below zero; download it again", path)
        if name.endswith(".p") and bool((tensor <= 0).any()):
            raise BadWeights(f"{path}: the tensor {names[name]} must be above zero; download it again", path)


def check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Reject weights that are not finite."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise BadWeights(f"{path}: the tensor {name} has values that are not numbers; download it again", path)
