"""Global descriptors in hloc's file: a group for each image name, in it the vector `global_descriptor`.

hloc ranks by inner products of two such files. The bias of a map's image is its vector's last number, and a query has
a 1 there, so that its ranking is the map's own, before verification.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfa.base.files import write_atomically
from tfa.base.tokens import Tokens
from tfa.errors import MissingExtra, TfaError
from tfa.exports.hloc_pairs import relative_name
from tfa.exports.vectors import CompiledMap
from tfa.method.scorer import Compiled

DATASET = "global_descriptor"


def query_vectors(compiled: CompiledMap, tokens: Tokens) -> np.ndarray:
    """What queries are searched with, `q D+1`: Ψ(q) and a 1."""
    psi = Compiled(compiled.scorer, compiled.vectors, compiled.bias).query(tokens).astype(np.float32)
    return np.concatenate([psi, np.ones((len(psi), 1), np.float32)], axis=1)


def write_hloc_features(path: Path, photos: Sequence[Path], vectors: np.ndarray, root: Path) -> None:
    """The vectors `b D` of photos, by their names below `root`."""
    try:
        import h5py
    except ImportError:
        raise MissingExtra("descriptors for hloc need h5py; install with: pip install 'tfa-vpr[hloc]'") from None
    names = [relative_name(photo, root) for photo in photos]
    inner = {str(parent) for name in names for parent in Path(name).parents}
    for name in names:
        if name in inner or DATASET in Path(name).parts:
            raise TfaError(f"{name} cannot be a name in hloc's file beside the others; rename it")

    def write(temporary: Path) -> None:
        with h5py.File(str(temporary), "w", locking=False) as file:  # whoever writes atomically holds it
            for name, vector in zip(names, vectors, strict=True):
                file.require_group(name).create_dataset(DATASET, data=vector)

    write_atomically(Path(path), write)
