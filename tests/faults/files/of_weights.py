"""Weights of encoders, as safetensors and as torch writes them."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.encoders.tiny import TINY, random_weights, renamed
from tests.faults.files.targets import TENSOR_HEADER, Target, files_below
from tfa.encoders.released_words import load_vocabulary
from tfa.encoders.weights import resolve_weights

CARD = TINY["tiny-v2"]


def safetensors(name: str, folder: Path) -> Target:
    save_file(random_weights(CARD), folder / "modules.safetensors")
    save_file({"centers": torch.ones(4, 3)}, folder / "words.safetensors")
    files = files_below(folder, "*.safetensors")
    return Target(name, files, _read, dict.fromkeys(files, TENSOR_HEADER))


def pth(name: str, folder: Path) -> Target:
    weights = renamed(random_weights(CARD), CARD, "facebookresearch")
    torch.save({"model": weights}, folder / "zipped.pth")
    torch.save(weights, folder / "old.pth", _use_new_zipfile_serialization=False)
    torch.save(torch.ones(4, 3), folder / "words.pt")
    return Target(name, files_below(folder, "*.pt*"), _read)


def _read(folder: Path, victim: str, changed: bool) -> None:
    if victim.startswith("words"):
        load_vocabulary(folder / victim)
    else:
        resolve_weights(CARD, folder / victim)
