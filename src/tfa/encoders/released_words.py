"""Released vocabularies: one array of words `k d` from a file. Nothing in the file is executed.

.safetensors   one 2-D tensor, or several with one named `centers`
.pt, .pth      one bare tensor, as torch.save writes it
.npy           one array
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from tfa.errors import BadSpec

NAMED = "centers"
FLOATS = ("F64", "F32", "F16")  # of safetensors; numpy has no bfloat16


def load_vocabulary(path: str | Path) -> np.ndarray:
    """Words `k d` in float64, as the file has them: not normalised."""
    path = Path(path)
    readers = {".safetensors": _from_safetensors, ".pt": _from_torch, ".pth": _from_torch, ".npy": _from_numpy}
    if path.suffix.lower() not in readers:
        raise BadSpec(
            f"{path}: vocabularies are read from {', '.join(readers)} files, not from {path.suffix or 'this'}"
        )
    if not path.is_file():
        raise BadSpec(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}; give a vocabulary file")
    return checked_words(readers[path.suffix.lower()](path), str(path))


def checked_words(words: Any, origin: str) -> np.ndarray:
    """An array of words `k d` in float64; `origin` says in errors where it came from."""
    array = np.asarray(words)
    if array.ndim != 2 or 0 in array.shape:
        raise BadSpec(f"{origin} holds an array of shape {array.shape}; a vocabulary is (words, channels)")
    if not np.issubdtype(array.dtype, np.floating):
        raise BadSpec(f"{origin} holds {array.dtype} numbers; a vocabulary is floating point")
    if not np.isfinite(array).all():
        raise BadSpec(f"{origin} has non-finite values")
    return array.astype(np.float64)


def _from_safetensors(path: Path) -> np.ndarray:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
            shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
            flat = [name for name, shape in shapes.items() if len(shape) == 2]
            name = NAMED if NAMED in shapes else flat[0] if len(flat) == len(shapes) == 1 else None
            if name is None:
                raise BadSpec(
                    f"{path} holds {_listed(shapes)}; a vocabulary file has one 2-D tensor, or one named {NAMED!r}"
                )
            if slices[name].get_dtype() not in FLOATS:
                raise BadSpec(f"{path} holds {slices[name].get_dtype()} numbers; use {', '.join(FLOATS)}")
            return file.get_tensor(name)
    except SafetensorError as error:
        raise BadSpec(f"{path} is not a whole safetensors file: {error}") from None


def _listed(shapes: dict[str, tuple[int, ...]]) -> str:
    shown = [f"{name!r} {shape}" for name, shape in sorted(shapes.items())]
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "") if shown else "no tensor"


def _from_torch(path: Path) -> np.ndarray:
    import torch

    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise BadSpec(
            f"{path} holds more than a tensor; it was refused and nothing in it was executed. "
            "Save the words alone: torch.save(words, path)"
        ) from None
    except Exception as error:  # damaged archives raise OSError, RuntimeError, EOFError, KeyError …
        raise BadSpec(f"{path} is not a file torch can read: {error}") from None
    if not isinstance(content, torch.Tensor):
        inside = f" with the keys {', '.join(map(repr, list(content)[:4]))}" if isinstance(content, dict) else ""
        raise BadSpec(
            f"{path} holds a {type(content).__name__}{inside}; it must hold one bare tensor (words, channels)"
        )
    if not content.is_floating_point() or content.layout is not torch.strided:
        raise BadSpec(f"{path} holds a {content.layout} tensor of {content.dtype}; a vocabulary is dense and floating")
    return content.detach().to(torch.float64).numpy()  # bfloat16 has no numpy counterpart, float64 holds it


def _from_numpy(path: Path) -> np.ndarray:
    try:
        with open(path, "rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise BadSpec(f"{path} is not an array of numbers in .npy format: {error}") from None
