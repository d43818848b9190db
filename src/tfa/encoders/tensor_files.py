"""Files of tensors that others wrote, read without executing anything in them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from tfa.errors import TfaError


def read_safetensors(path: Path, bad: type[TfaError]) -> dict[str, torch.Tensor]:
    """Every tensor of the file by its name; `bad` is the error of a damaged one."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise bad(f"{path} is not a whole safetensors file: {error}") from None


def read_torch(path: Path, bad: type[TfaError], advice: str) -> Any:
    """What torch.save wrote, if it is tensors and plain containers; `advice` says what to save instead."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise bad(f"{path} holds more than tensors; it was refused and nothing in it was executed. {advice}") from None
    except Exception as error:  # damaged archives raise OSError, RuntimeError, EOFError, KeyError …
        raise bad(f"{path} is not a file torch can read: {error}") from None
