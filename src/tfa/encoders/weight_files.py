"""Files of weights, read so that nothing in them is executed: safetensors, and what torch.save wrote."""

from __future__ import annotations

import pickle
import reprlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tfa.errors import BadWeights, TfaError

_NESTS = ("model", "state_dict", "teacher")  # where training scripts put the weights in a checkpoint
_PREFIXES = ("module.", "backbone.")  # what wrappers put before every key


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint, wherever it nests them and whatever wrappers put before their names."""
    return _without_prefix(_tensors(path))


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        return read_safetensors(path, BadWeights)
    if path.suffix not in (".pth", ".pt", ".bin"):
        raise BadWeights(
            f"{path} ends in {path.suffix or 'nothing'}; weights are read from .safetensors, .pth, .pt and .bin"
        )
    content = read_torch(path, BadWeights, "Save the model's state_dict alone, best as safetensors")
    for _ in _NESTS:  # not for ever: a checkpoint can hold itself
        held = content if isinstance(content, Mapping) else {}
        content = next((held[key] for key in _NESTS if isinstance(held.get(key), Mapping)), content)
    if not isinstance(content, Mapping):
        raise BadWeights(f"{path} holds a {type(content).__name__}; it must hold a dict of tensors (a state_dict)")
    for key, value in content.items():
        if not (isinstance(key, str) and isinstance(value, torch.Tensor)):
            raise BadWeights(
                f"{path}: entry {reprlib.repr(key)} is a {type(value).__name__}, must be a tensor; "
                "save the state_dict alone"
            )
    return dict(content)


def _without_prefix(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    for prefix in _PREFIXES:
        if tensors and all(key.startswith(prefix) for key in tensors):
            tensors = {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
    return tensors


def read_safetensors(path: Path, bad: type[TfaError]) -> dict[str, torch.Tensor]:
    """Every tensor of the file by its name; `bad` is the error of a damaged one."""
    try:
        return load_file(path)
    except Exception as error:  # its own error, those of the file system, and torch's for a type it does not have
        raise bad(f"{path} is not a whole safetensors file: {error}; get it again") from None


def read_torch(path: Path, bad: type[TfaError], advice: str) -> Any:
    """What torch.save wrote, if it is tensors and plain containers; `advice` says what to save instead."""
    _check_archive(path, bad)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise bad(f"{path} holds more than tensors; it was refused and nothing in it was executed. {advice}") from None
    except Exception as error:  # damaged archives raise OSError, RuntimeError, EOFError, KeyError …
        raise bad(f"{path} is not a file torch can read: {error}; get it again") from None


def _check_archive(path: Path, bad: type[TfaError]) -> None:
    """Refuse an archive that stands for more than it holds; torch.save compresses nothing."""
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
    except Exception:  # another format, or damaged: torch says so
        return
    if unpacked > path.stat().st_size:
        raise bad(f"{path} unpacks to {unpacked:,} bytes, more than it has; torch.save writes no such file")
