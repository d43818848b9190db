"""Released vocabularies: one array of words `k d` from a file. Nothing in the file is executed.

.safetensors   one 2-D tensor, or several with one named `centers`
.pt, .pth      one bare tensor, as torch.save writes it
.npy           one array
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfa.errors import BadSpec

if TYPE_CHECKING:
    import torch

NAMED = "centers"


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
    from tfa.encoders.tensor_files import read_safetensors

    tensors = read_safetensors(path, BadSpec)
    name = NAMED if NAMED in tensors else next(iter(tensors), "")
    if name != NAMED and (len(tensors) != 1 or tensors[name].ndim != 2):
        shown = [f"{name!r} {tuple(tensor.shape)}" for name, tensor in sorted(tensors.items())]
        listed = ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")
        raise BadSpec(
            f"{path} holds {listed or 'no tensor'}; a vocabulary file has one 2-D tensor, or one named {NAMED!r}"
        )
    return _floats(tensors[name], path)


def _from_torch(path: Path) -> np.ndarray:
    import torch

    from tfa.encoders.tensor_files import read_torch

    content = read_torch(path, BadSpec, "Save the words alone: torch.save(words, path)")
    if not isinstance(content, torch.Tensor):
        inside = f" with the keys {', '.join(map(repr, list(content)[:4]))}" if isinstance(content, dict) else ""
        raise BadSpec(
            f"{path} holds a {type(content).__name__}{inside}; it must hold one bare tensor (words, channels)"
        )
    return _floats(content, path)


def _floats(tensor: torch.Tensor, path: Path) -> np.ndarray:
    import torch

    if not tensor.is_floating_point() or tensor.layout is not torch.strided:
        raise BadSpec(f"{path} holds a {tensor.layout} tensor of {tensor.dtype}; a vocabulary is dense and floating")
    return tensor.detach().to(torch.float64).numpy()  # bfloat16 has no numpy counterpart, float64 holds it


def _from_numpy(path: Path) -> np.ndarray:
    try:
        with open(path, "rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise BadSpec(f"{path} is not an array of numbers in .npy format: {error}") from None
