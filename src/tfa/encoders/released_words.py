"""Read released vocabularies: an array of words `(k, d)` from a file. Nothing in the file is executed.

.safetensors   one 2-D tensor, or several with one named `centers`
.pt, .pth      one bare tensor, as torch.save writes it
.npy           one array
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.files import read_npy
from tfa.errors import BadSpec

_NAMED = "centers"
_SUFFIXES = (".safetensors", ".pt", ".pth", ".npy")


def load_vocabulary(path: str | Path) -> np.ndarray:
    """Read words `(k, d)` as float64, without normalizing them."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise BadSpec(f"{path} is not a vocabulary file; use {', '.join(_SUFFIXES)}")
    if not path.is_file():
        raise BadSpec(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}; pass a vocabulary file")
    return check_words(_from_numpy(path) if suffix == ".npy" else _from_tensors(path), str(path))


def check_words(words: Any, origin: str) -> np.ndarray:
    """Check words and return them as float64 `(k, d)`; `origin` names the source in errors."""
    array = np.asarray(words)
    if array.ndim != 2 or 0 in array.shape:
        raise BadSpec(f"{origin} has shape {array.shape}; a vocabulary must be (words, channels)")
    if not np.issubdtype(array.dtype, np.floating):
        raise BadSpec(f"{origin} has dtype {array.dtype}; a vocabulary must be floating point")
    if not np.isfinite(array).all():
        raise BadSpec(f"{origin} has non-finite values")
    return array.astype(np.float64)


def _from_tensors(path: Path) -> np.ndarray:
    from tfa.encoders.weights import read_safetensors, read_torch

    if path.suffix.lower() == ".safetensors":
        stored = _words_among(read_safetensors(path, BadSpec), path)
        if stored.dtype.kind != "f":
            raise BadSpec(f"{path} has a tensor of {stored.dtype}; a vocabulary must be floating point")
        return stored.astype(np.float64)
    words: Any = read_torch(path, BadSpec, "Save only the words: torch.save(words, path)")
    import torch

    if not isinstance(words, torch.Tensor):
        inside = f" with the keys {', '.join(map(repr, list(words)[:4]))}" if isinstance(words, dict) else ""
        raise BadSpec(f"{path} contains a {type(words).__name__}{inside}; it must be one tensor (words, channels)")
    if not words.is_floating_point() or words.layout is not torch.strided:
        raise BadSpec(f"{path} has a {words.layout} tensor of {words.dtype}; a vocabulary must be dense floating point")
    if words.numel() * words.element_size() > path.stat().st_size:  # repeated rows stored once
        raise BadSpec(f"{path} expands to {words.numel():,} numbers, more than it stores; save words.contiguous()")
    return words.detach().to(torch.float64).numpy()  # numpy has no bfloat16, float64 represents it exactly


def _words_among(tensors: dict[str, np.ndarray], path: Path) -> np.ndarray:
    flat = [tensor for tensor in tensors.values() if tensor.ndim == 2]
    if _NAMED in tensors or len(flat) == len(tensors) == 1:
        return tensors[_NAMED] if _NAMED in tensors else flat[0]
    shown = [f"{name!r} {tuple(tensor.shape)}" for name, tensor in sorted(tensors.items())]
    listed = ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")
    raise BadSpec(
        f"{path} contains {listed or 'no tensor'}; a vocabulary file needs one 2-D tensor, or one named {_NAMED!r}"
    )


def _from_numpy(path: Path) -> np.ndarray:
    try:
        return read_npy(path)
    except (ValueError, OSError) as error:
        raise BadSpec(
            f"{path} is not an array of numbers in .npy format: {error}; save the words with numpy.save(path, words)"
        ) from None
