"""Masks kept by the content of a photo and all that shapes them, so that no photo is segmented twice."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tfa.base.files import cache_folder, map_tensors, sha256_of_json, write_tensors
from tfa.errors import TfaError
from tfa.photos.cache_room import mark_used
from tfa_bench.heads.peers.segments import Segmenter

REVISION = 1  # of how masks are made from equal settings


class KeptMasks:
    """A segmenter that looks for a photo's masks in the user's cache first, one file a photo."""

    def __init__(self, segmenter: Segmenter, folder: Path | None = None) -> None:
        self.segmenter = segmenter
        identity = sha256_of_json({"revision": REVISION, **segmenter.settings})
        self.folder = (cache_folder() / "masks" if folder is None else folder) / identity[:32]

    @property
    def name(self) -> str:
        return self.segmenter.name

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.segmenter.settings

    def segment(self, image: Image.Image) -> np.ndarray:
        content = hashlib.sha256(f"{image.mode} {image.size}\n".encode() + image.tobytes()).hexdigest()
        path = self.folder / f"{content}.safetensors"
        kept = _read(path)
        if kept is not None:
            mark_used([path])
            return kept
        masks = self.segmenter.segment(image)
        count, height, width = masks.shape  # there may be none
        bits = np.packbits(masks.reshape(count, height * width), axis=1)
        write_tensors(path, {"bits": bits, "size": np.array([height, width], np.int64)})
        return masks


def _read(path: Path) -> np.ndarray | None:
    """The masks of a file; None where there is none, or it is damaged: they are made again."""
    try:
        arrays, _ = map_tensors(path)
        height, width = (int(length) for length in arrays["size"])
        flat = np.unpackbits(arrays["bits"], axis=1, count=height * width).astype(bool)
        return flat.reshape(len(flat), height, width)
    except (TfaError, OSError, KeyError, ValueError):
        return None
