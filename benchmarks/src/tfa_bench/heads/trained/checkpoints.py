"""From a checkpoint file to a model with its weights: nothing in the file is executed, every name and shape counts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tfa.base.files import sha256_of_file
from tfa.encoders.weights import read_safetensors, read_torch
from tfa.errors import BadWeights, WeightsMissing
from tfa_bench.heads.trained.image_model import Architecture, ImageModel, Shapes
from tfa_bench.heads.trained.systems import TrainedSystem, recognised

NESTS = ("state_dict", "model_state_dict", "model")  # where training scripts put the weights
WRAPPER = "module."  # what training on several devices puts before every name
SAVED = (b"PK\x03\x04", b"\x80")  # how files of torch.save begin: an archive, or a pickle of old releases
LISTED = 20  # names of each kind in an error
_CONVERTED = "plain.pth"
_CONVERTING = (  # without a single quote, in which a shell puts it
    'import sys, torch; c = torch.load(sys.argv[1], map_location="cpu", weights_only=False); '
    f"c = next((c[k] for k in {json.dumps(NESTS)} if isinstance(c, dict) and k in c), c); "
    'c = c.state_dict() if hasattr(c, "state_dict") else c; '
    f'torch.save({{k: v for k, v in c.items() if isinstance(v, torch.Tensor)}}, "{_CONVERTED}")'
)


def architecture_of(system: TrainedSystem) -> Architecture:
    module, _, name = system.architecture.partition(":")
    found: Architecture = getattr(import_module(f"tfa_bench.heads.trained.{module}"), name)
    return found


def load_model(system: TrainedSystem, path: Path) -> tuple[ImageModel, str]:
    """The system with the weights of a file, in eval mode on the CPU, and the sha256 of the file."""
    if not path.is_file():
        raise WeightsMissing(
            f"there is no checkpoint {path} of {system.title}; its authors publish it: {system.published}", path
        )
    return build_model(system, read_checkpoint(path), path), sha256_of_file(path)


def build_model(system: TrainedSystem, given: Mapping[str, Tensor], path: Path) -> ImageModel:
    """An empty model of the sizes that the tensors have, and these in it, if each of them is there and fits."""
    architecture = architecture_of(system)
    names = {_renamed(name, architecture): name for name in given}
    if len(names) < len(given):
        raise BadWeights(f"{path} holds tensors of its backbone under two names; get it again", path)
    tensors = {name: given[before] for name, before in names.items()}
    _check_system(system, tensors, path)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    empty = next((name for name, shape in shapes.items() if 0 in shape), None)
    if empty is not None:
        raise BadWeights(f"{path} is no checkpoint of {system.title}: the tensor {names[empty][:120]} is empty", path)
    try:
        with torch.device("meta"):  # no memory and no random numbers for weights that are replaced at once
            model = architecture.build(shapes)
    except (ValueError, RuntimeError, OverflowError, ZeroDivisionError) as error:
        raise BadWeights(f"{path} is no checkpoint of {system.title}: it has {error}", path) from None
    wanted = model.state_dict()
    for name, unset in wanted.items():
        if name not in tensors and name.endswith(architecture.may_lack):
            tensors[name] = torch.zeros(unset.shape, dtype=unset.dtype)
    tensors = {name: tensor for name, tensor in tensors.items() if name not in architecture.may_have}
    problems = _problems({name: tuple(t.shape) for name, t in tensors.items()}, wanted, architecture, set(given))
    if problems:
        raise BadWeights(
            f"{path} is no whole checkpoint of {system.title}; get it from its authors: {system.published}",
            path,
            more=problems,
        )
    tensors = {name: tensor.to(wanted[name].dtype) for name, tensor in tensors.items()}
    check_finite(tensors, path)
    _check_signs(tensors, names, path)
    model.load_state_dict(tensors, strict=True, assign=True)
    model.eval().requires_grad_(False)
    model.ready(architecture.resizing.size)
    return model


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name: plain, nested or wrapped, safetensors or what torch.save wrote."""
    if path.suffix == ".safetensors":
        content: Any = read_safetensors(path, BadWeights)
    else:
        _check_beginning(path)
        content = read_torch(path, BadWeights, "It can be converted:", more=how_to_convert(path))
    for key in NESTS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not content:
        kind = "nothing" if isinstance(content, Mapping) else f"a {type(content).__name__}"
        raise BadWeights(f"{path} holds {kind}; a checkpoint holds tensors by name (a state_dict)", path)
    for name, value in content.items():
        _check_entry(name, value, path)
    if all(name.startswith(WRAPPER) for name in content):
        return {name.removeprefix(WRAPPER): value for name, value in content.items()}
    return dict(content)


def how_to_convert(path: Path) -> list[str]:
    """What a user does with a file that holds more than tensors."""
    command = shlex.join(["python", "-c", _CONVERTING, str(path)])
    return [
        f"if you trust where it comes from, convert it once, which does execute it, and give {_CONVERTED}:",
        f"  {command}",
    ]


def _check_beginning(path: Path) -> None:
    """Refuse at once what torch.save never wrote, such as the page of a download that failed."""
    with open(path, "rb") as file:
        first = file.read(4)
    if not first:
        raise BadWeights(f"{path} is no checkpoint: the file is empty; get it again", path)
    if not first.startswith(SAVED):
        raise BadWeights(
            f"{path} is no checkpoint: it begins with {first!r}, which torch.save does not write; get it again "
            "(safetensors must be called so)",
            path,
        )


def _check_entry(name: Any, value: Any, path: Path) -> None:
    if not isinstance(name, str) or not isinstance(value, Tensor):
        raise BadWeights(
            f"{path}: the entry {str(name)[:80]!r} is a {type(value).__name__}, must be a tensor; "
            "save the state_dict alone",
            path,
        )
    plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
    if not plain or value.is_complex():
        raise BadWeights(f"{path}: the tensor {name[:80]!r} is not a plain array of numbers", path)
    # A view can stand for far more numbers than were stored.
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise BadWeights(f"{path}: the tensor {name[:80]!r} stands for more numbers than the file holds", path)


def _renamed(name: str, architecture: Architecture) -> str:
    for before, after in architecture.renamed.items():
        if name.startswith(before):
            return after + name.removeprefix(before)
    return name


def _check_system(system: TrainedSystem, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse the file of another system by that system's name."""
    patches = tensors.get("backbone.patch_embed.proj.weight")
    width = len(patches) if patches is not None and patches.ndim else 0
    found = recognised(tensors, width, path)
    if isinstance(found, str):
        raise BadWeights(f"{path} looks like a checkpoint of {found}, which no head reads", path)
    if found is None or found.name == system.name:
        return  # the missing names will say what is wrong
    same_layout = found.marks == system.marks
    # One layout: without a word in the file's name, or another width, it is what the user says it is.
    if same_layout and (system.is_told_by(width, path) or not found.is_told_by(width, path)):
        return
    raise BadWeights(
        f"{path} looks like {found.title}'s checkpoint{', by its name' if found.called and same_layout else ''}; "
        f"use --heads {found.name} --checkpoint {found.name}={path}",
        path,
    )


def _problems(
    shapes: Shapes, wanted: Mapping[str, Tensor], architecture: Architecture, given: Collection[str]
) -> list[str]:
    """What is missing, extra or of another shape, a line each, in the names of the file."""
    used = {
        after: before
        for before, after in architecture.renamed.items()
        if any(name.startswith(before) for name in given)
    }

    def in_file(name: str) -> str:
        prefix = next((after for after in used if name.startswith(after)), "")
        return (used[prefix] + name.removeprefix(prefix) if prefix else name)[:120]

    other = [name for name in wanted if name in shapes and shapes[name] != tuple(wanted[name].shape)]
    kinds = {
        "missing": [in_file(name) for name in wanted if name not in shapes],
        "extra": [in_file(name) for name in shapes if name not in wanted],
        "of another shape": [f"{in_file(name)} {shapes[name]} for {tuple(wanted[name].shape)}" for name in other],
    }
    return [
        f"{len(names):,} {kind}: {', '.join(names[:LISTED])}"
        + (f" and {len(names) - LISTED:,} more" if len(names) > LISTED else "")
        for kind, names in kinds.items()
        if names
    ]


def _check_signs(tensors: Mapping[str, Tensor], names: Mapping[str, str], path: Path) -> None:
    """Refuse variances below zero, of which there is no root, and powers of a mean that are not above it."""
    for name, tensor in tensors.items():
        if name.endswith(".running_var") and bool((tensor < 0).any()):
            raise BadWeights(f"{path}: the tensor {names[name]} has variances below zero; get it again", path)
        if name.endswith(".p") and bool((tensor <= 0).any()):
            raise BadWeights(f"{path}: the tensor {names[name]} must be above zero; get it again", path)


def check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse weights that are not numbers."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise BadWeights(f"{path}: the tensor {name} has values that are not numbers; get it again", path)
