"""DINO vision transformers, run by torch and transformers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from logging import getLogger
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from torch import Tensor
from torch.nn import functional

from tfa.core.arrays import choose_device
from tfa.encoders.catalogue import Card, EncoderId, fast_fingerprint
from tfa.encoders.dino import DinoEncoder
from tfa.encoders.packaged_weights import block_name
from tfa.encoders.positions import SCALE_OFFSET
from tfa.encoders.weights import LoadedWeights
from tfa.errors import MissingExtra, OutOfResources

HALF = torch.float16  # rounds eight times as finely as bfloat16; activations of these models fit its range
_log = getLogger("tfa.encoders")


def resample_positions(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """Resample positions `(1, 1+p², d)` to `(1, 1+rows·columns, d)` in float32; CLS is unchanged."""
    side = math.isqrt(table.shape[1] - 1)
    if grid == (side, side):
        return table
    square = table[:, 1:].float().reshape(1, side, side, -1).permute(0, 3, 1, 2)
    rows, columns = ((patches + SCALE_OFFSET) / side for patches in grid)
    square = functional.interpolate(
        square, scale_factor=(rows, columns), mode="bicubic", align_corners=False, antialias=False
    )
    return torch.cat([table[:, :1].float(), square.flatten(2).transpose(1, 2)], dim=1)


class TorchEncoder(DinoEncoder):
    """An `Encoder` that runs on a device of torch."""

    _batch: int | None = None  # images per batch, after the device ran out of memory

    def compute_tokens(self, pixels: Tensor) -> Tensor:
        """Return the tokens `(b, prefix+n, d)` of normalized pixels `(b, 3, h, w)`, on the device."""
        raise NotImplementedError

    def encode(self, images: Sequence[Image.Image]) -> tuple[np.ndarray, np.ndarray | None]:
        """Return float16 patches `(b, n, d)` and CLS tokens `(b, d)`; the batch changes only float rounding.

        A batch that does not fit into the memory of the device is halved, and so are later ones.
        """
        tokens: list[np.ndarray] = []
        while len(tokens) < len(images):
            some = images[len(tokens) :][: self._batch]
            pixels = np.stack([self._pixels(image) for image in some])  # (b, 3, h, w)
            try:
                tokens.extend(self.compute_tokens(torch.from_numpy(pixels)).to(torch.float16).cpu().numpy())
                continue
            except RuntimeError as error:  # Metal has no exception for this
                if not isinstance(error, torch.cuda.OutOfMemoryError) and "out of memory" not in str(error):
                    raise
            self._halve_batch(len(some))  # the error, which held arrays of the device, is gone
        return self._patches_and_cls(tokens)

    def _halve_batch(self, size: int) -> None:
        if size == 1:
            raise OutOfResources(
                f"{self.device} has too little memory to encode one photo; use a smaller encoder, or --device cpu"
            )
        self._batch = size // 2
        if self.device != "cpu":
            getattr(torch, self.device.split(":")[0]).empty_cache()
        _log.warning("%s is out of memory; encoding %d photos at a time instead of %d", self.device, self._batch, size)


class VitEncoder(TorchEncoder):
    """An `Encoder` that runs a transformers model, in float32 or in half precision."""

    def __init__(self, identity: EncoderId, weights: LoadedWeights, device: str = "cpu", *, half: bool = False) -> None:
        super().__init__(identity, weights.sha256, choose_device(device))
        self._dtype = HALF if half else torch.float32
        self.weights = weights.tensors
        self.network = load_vit(identity, weights.tensors).to(self.device)
        if half:
            self.precision = str(HALF).removeprefix("torch.")
            self.fingerprint = fast_fingerprint(self.model, self.precision)
            for name, part in self.network.named_children():
                part.to(torch.float32 if name == "rope_embeddings" else HALF)  # rounded angles would shift patches
        self._sources = [self.network.get_submodule(name) for name in _module_names(identity)]

    def compute_tokens(self, pixels: Tensor) -> Tensor:
        # By default CUDA rounds the patch projection to TF32 on hardware that supports it.
        full_float32 = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
        with torch.inference_mode(), full_float32, _captured(self._sources) as outputs:
            self.network(pixels.to(self.device, self._dtype))
        return torch.cat(outputs, dim=2) if len(outputs) > 1 else outputs[0]


def load_vit(identity: EncoderId, tensors: Mapping[str, np.ndarray]) -> Any:
    """Build the blocks that an encoder needs, with resampled positions."""
    model = build_vit(identity.card, identity.layer + 1, tensors)
    if identity.published_rule:
        embeddings = model.embeddings
        table = resample_positions(embeddings.position_embeddings, identity.grid)
        embeddings.position_embeddings = torch.nn.Parameter(table, requires_grad=False)
        embeddings.interpolate_pos_encoding = lambda *_sizes: embeddings.position_embeddings
    return model


def build_vit(card: Card, blocks: int, tensors: Mapping[str, np.ndarray]) -> Any:
    """Build the first `blocks` blocks of a model with its weights, in eval mode."""
    with torch.device("meta"):  # no memory and no random initialization for weights that are replaced
        model = _empty_model(card, blocks)
    if card.names.rotary:  # rotary frequencies are computed, not loaded, so they need real memory
        model.rope_embeddings = type(model.rope_embeddings)(model.config)
    wanted = {name: parameter.shape for name, parameter in model.state_dict().items()}
    # Part of the module, but unused at inference.
    given = {name: torch.zeros(shape) for name, shape in wanted.items() if name.endswith("mask_token")}
    given |= {name: torch.from_numpy(array) for name, array in tensors.items() if name in wanted}
    if given.keys() != wanted.keys():
        odd = sorted(wanted.keys() - given.keys())
        raise MissingExtra(
            f"transformers {transformers.__version__} uses unknown weight names in {type(model).__name__} "
            f"({', '.join(odd[:3])}); install the version in constraints.txt"
        )
    model.load_state_dict(given, strict=True, assign=True)
    return model.eval().requires_grad_(False)


def _empty_model(card: Card, blocks: int) -> Any:
    options: dict[str, Any] = {"hidden_size": card.width, "patch_size": card.patch}
    options |= {"num_hidden_layers": blocks, "num_attention_heads": card.heads}
    if card.registers:
        options["num_register_tokens"] = card.registers
    if card.positions:
        options |= {"image_size": card.positions * card.patch, "mlp_ratio": 4, "use_swiglu_ffn": card.mlp == "swiglu"}
    else:
        options["intermediate_size"] = card.mlp_width
    config = getattr(transformers, f"{card.names.model}Config")(**options)
    return getattr(transformers, f"{card.names.model}Model")(config)


def _module_names(identity: EncoderId) -> list[str]:
    """Return the modules whose outputs are the chosen layers and facet, in the order in which they run."""
    earlier = [] if identity.earlier is None else [block_name(identity.card, identity.earlier)]
    if identity.final_norm:
        return [*earlier, identity.card.names.norm]
    block = block_name(identity.card, identity.layer)
    return [*earlier, block if identity.facet == "token" else f"{block}.attention.{identity.facet[0]}_proj"]


@contextmanager
def _captured(modules: Sequence[Any]) -> Iterator[list[Tensor]]:
    outputs: list[Tensor] = []
    with ExitStack() as hooks:
        for one in modules:
            hooks.enter_context(one.register_forward_hook(lambda _module, _inputs, output: outputs.append(output)))
        yield outputs
