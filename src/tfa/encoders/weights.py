"""Where weights come from: a file, a model hub, or a package.

Whatever the source, nothing in it is executed, and it must be exactly the model that was named.
"""

from __future__ import annotations

import hashlib
import pickle
import reprlib
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tfa.core.progress import Progress
from tfa.encoders.catalogue import DEFAULT_ENCODER, Card
from tfa.encoders.packaged_weights import check_numbers, check_weights, get_packaged_weights, to_module_names
from tfa.errors import BadWeights, TfaError, WeightsMissing

_NESTS = ("model", "state_dict", "teacher")  # where training scripts put the weights in a checkpoint
_PREFIXES = ("module.", "backbone.")  # what wrappers put before every key
_HUB_FILE = "model.safetensors"
_HUB_SECONDS = 10.0  # to reach the hub; a machine without network must say so soon


@dataclass(frozen=True)
class LoadedWeights:
    """Tensors of the full-depth model under the names of transformers' modules, and a digest of them.

    The digest covers names, shapes and values and nothing else, so that one model has one fingerprint whether
    it came as `.pth` or safetensors, in this naming or that.
    """

    tensors: dict[str, torch.Tensor]
    sha256: str


def resolve_weights(
    card: Card, file: str | Path | None = None, *, progress: bool | Progress | None = None
) -> LoadedWeights:
    """The weights of `card`: from `file` if given, else from the card's hub id or package."""
    if file is not None:
        path = Path(file)
        if not path.is_file():
            raise WeightsMissing(f"there is no weights file {path} for {card.name}", more=list_ways_to_get(card))
    else:
        path = _from_hub(card) if card.package is None else get_packaged_weights(card, card.package, progress)
    tensors = to_module_names(read_weights(path), card)
    check_weights({name: tuple(tensor.shape) for name, tensor in tensors.items()}, card, str(path))
    found = LoadedWeights(*as_float32(tensors))
    if file is None and card.package is not None:
        check_numbers(path, found.sha256, card.package.weights)
    return found


def list_ways_to_get(card: Card) -> list[str]:
    """What to do without weights, lines of an error message."""
    hub = f"the hub id {card.hub}, downloaded on first use" if card.hub else "this encoder has no hub id"
    return [
        "three ways to get weights:",
        f"  1. a model hub: {hub}",
        f"  2. a file: --weights FILE, safetensors or .pth of {card.about}, names of facebookresearch or transformers",
        f"  3. no hub at all: tfa weights get {DEFAULT_ENCODER}, then --encoder {DEFAULT_ENCODER}",
    ]


def _from_hub(card: Card) -> Path:
    from huggingface_hub import constants, get_session, hf_hub_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, OfflineModeIsEnabled

    assert card.hub is not None
    with suppress(LocalEntryNotFoundError):
        return Path(hf_hub_download(card.hub, _HUB_FILE, local_files_only=True))
    try:
        # The download itself would try six times in half a minute before it reports that the hub is unreachable.
        get_session().head(constants.ENDPOINT, timeout=_HUB_SECONDS)
        return Path(hf_hub_download(card.hub, _HUB_FILE, etag_timeout=_HUB_SECONDS))
    except GatedRepoError:
        reason = "its licence must be accepted at the hub, and the hub's token set on this machine"
    except OfflineModeIsEnabled:
        reason = "it was never downloaded here, and HF_HUB_OFFLINE forbids downloads"
    except Exception as error:  # network libraries raise trees of their own; all of it means no weights
        reason = f"it was never downloaded here, and the hub cannot be reached ({type(error).__name__})"
    raise WeightsMissing(
        f"no weights for {card.name}; {card.hub} is unavailable: {reason}", more=list_ways_to_get(card)
    )


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint, wherever it nests them and whatever wrappers put before their names."""
    return _without_prefix(_read(path))


def _read(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        return read_safetensors(path, BadWeights)
    if path.suffix not in (".pth", ".pt", ".bin"):
        raise BadWeights(
            f"{path} ends in {path.suffix or 'nothing'}; weights are read from .safetensors, .pth, .pt and .bin"
        )
    content = read_torch(path, BadWeights, "Save the model's state_dict alone, best as safetensors")
    for _ in _NESTS:  # not for ever: a checkpoint can hold itself
        held = content if isinstance(content, Mapping) else {}
        content = next((held[key] for key in _NESTS if isinstance(held.get(key), Mapping)), content)
    if not isinstance(content, Mapping):
        raise BadWeights(f"{path} holds a {type(content).__name__}; it must hold a dict of tensors (a state_dict)")
    for key, value in content.items():
        if not (isinstance(key, str) and isinstance(value, torch.Tensor)):
            raise BadWeights(
                f"{path}: entry {reprlib.repr(key)} is a {type(value).__name__}, must be a tensor; "
                "save the state_dict alone"
            )
    return dict(content)


def _without_prefix(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    for prefix in _PREFIXES:
        if tensors and all(key.startswith(prefix) for key in tensors):
            tensors = {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
    return tensors


def as_float32(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], str]:
    """The tensors in float32, and a digest of their names, shapes and values."""
    digest = hashlib.sha256()
    wide = {name: tensors[name].to(torch.float32).contiguous() for name in sorted(tensors)}
    for name, tensor in wide.items():
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().numpy().data)
    return wide, digest.hexdigest()


def read_safetensors(path: Path, bad: type[TfaError]) -> dict[str, torch.Tensor]:
    """Every tensor of the file by its name; `bad` is the error of a damaged one."""
    try:
        return load_file(path)
    except Exception as error:  # its own error, those of the file system, and torch's for a type it does not have
        raise bad(f"{path} is not a whole safetensors file: {error}; get it again") from None


def read_torch(path: Path, bad: type[TfaError], advice: str, more: Sequence[str] = ()) -> Any:
    """What torch.save wrote, if it is tensors and plain containers; `advice` and `more` say what to save instead."""
    _check_archive(path, bad)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        refused = f"{path} holds more than tensors; it was refused and nothing in it was executed. {advice}"
        raise bad(refused, more=more) from None
    except Exception as error:  # damaged archives raise OSError, RuntimeError, EOFError, KeyError …
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise bad(f"{path} is not a file torch can read: {reason}; get it again") from None


def _check_archive(path: Path, bad: type[TfaError]) -> None:
    """Refuse a program, and an archive that stands for more than it holds; torch.save compresses nothing."""
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
            program = any(name.endswith("/constants.pkl") for name in archive.namelist())
    except Exception:  # another format, or damaged: torch says so
        return
    if program:
        raise bad(f"{path} is a program (TorchScript), which is not run; give a file of the weights alone")
    if unpacked > path.stat().st_size:
        raise bad(f"{path} unpacks to {unpacked:,} bytes, more than it has; torch.save writes no such file")
