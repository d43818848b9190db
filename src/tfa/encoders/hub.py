"""Encoders outside the catalogue: `hf:ORG/NAME[:REVISION]`, `hf:./folder` and `timm:NAME`, each with `@size/layer`.

transformers or timm builds the model, and tokens are read after one block. Blocks are counted from 0; the default is
at two thirds of the depth, such as block 7 of 12. A plain ViT in timm's layout becomes a card and weights of our ViT.
Remote code is never executed, and weights are read only from safetensors.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from torch import Tensor, nn

from tfa.core.files import hash_file, hash_json, require_json
from tfa.encoders.catalogue import Card, EncoderId, identify_encoder
from tfa.encoders.packaged_weights import HARMLESS, check_weights, to_module_names
from tfa.encoders.vit import TorchEncoder
from tfa.encoders.weights import LoadedWeights, as_float32, download, read_safetensors
from tfa.errors import BadSpec, BadWeights, MissingExtra, UnknownEncoder, WeightsMissing

# --- names and files ------------------------------------------------------------------------------

_SIZE = r"(?P<size>[0-9]{1,4}(?:x[0-9]{1,4})?c?)"
_TAIL = rf"(?:@{_SIZE})?(?:/(?P<choice>[^@/]+))?"
_NAMES = (
    rf"hf:(?P<place>[\w-][\w.-]*/[\w.-]+)(?::(?P<revision>[\w.-]+))?{_TAIL}",
    rf"hf:(?P<folder>[.~/\\].*?|[A-Za-z]:[/\\].*?)(?:@{_SIZE}(?:/(?P<choice>[^@/]+))?)?",
    rf"timm:(?P<timm>[\w.-]+){_TAIL}",
)
_FILES = ["config.json", "*processor_config.json", "model.safetensors*", "model-*.safetensors"]
_UNUSED = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")  # keys of config.json


def parse_hub_name(text: str) -> dict[str, str]:
    """Split a name into `place` (with `revision`), `folder` or `timm`, and `size` and `choice` (empty if absent)."""
    found = next((match for pattern in _NAMES if (match := re.fullmatch(pattern, text, re.ASCII))), None)
    if found is None:
        raise UnknownEncoder(
            f"encoder {text!r} is not a valid name; write hf:ORG/NAME, hf:./folder or timm:NAME, for example "
            "hf:facebook/dinov2-base, hf:facebook/dinov2-base@322/l7 or hf:./folder@224/l7"
        )
    return {"size": "", "choice": "", **{key: value for key, value in found.groupdict().items() if value}}


def find_model(name: dict[str, str], weights: str | Path | None = None) -> tuple[Path, str]:
    """Return the folder of a model, downloaded if needed, and its name with the revision."""
    place, revision = name.get("place"), name.get("revision")
    if weights is not None or place is None:
        folder = Path(weights or name["folder"]).expanduser()
        if not folder.is_dir():
            raise WeightsMissing(f"model folder {folder} not found; pass it with --encoder hf:./folder or --weights")
        return folder, f"hf:{place or name['folder']}" + (f":{revision}" if revision else "")
    got = download(partial(_fetch_model, place, revision))
    if isinstance(got, str):
        way = f"on a machine with the hub: hf download {place} --local-dir folder"
        more = [way, "copy that folder to this machine, and use it with --encoder hf:./folder"]
        raise WeightsMissing(f"{place} is not available: {got}", more=more)
    return got, f"hf:{place}:{got.name}"  # a snapshot is named by its commit


def _fetch_model(place: str, revision: str | None, *, local_files_only: bool = False, **options: Any) -> str:
    from huggingface_hub import errors, snapshot_download

    options |= {"revision": revision, "allow_patterns": _FILES, "local_files_only": local_files_only}
    folder = Path(snapshot_download(place, **options))
    needed = ["config.json", "*.safetensors", *([] if place.startswith("timm/") else ["*processor_config.json"])]
    if local_files_only and not all(any(folder.glob(pattern)) for pattern in needed):
        raise errors.LocalEntryNotFoundError(f"{folder} is incomplete")  # another program downloaded a part
    return str(folder)


def _find_weights(folder: Path) -> list[Path]:
    whole = folder / "model.safetensors"
    files = [whole] if whole.is_file() else sorted(folder.glob("model-*-of-*.safetensors"))
    if not files:
        raise BadWeights(f"{folder} has no model.safetensors; other formats are not read, so save it as safetensors")
    return files


def _read_object(path: Path, hint: str) -> dict[str, Any]:
    values = require_json(path, BadWeights, hint)
    if not isinstance(values, dict):
        raise BadWeights(f"{path} is not a JSON object{hint}")
    return values


def read_preprocessing(folder: Path) -> dict[str, Any]:
    """Read input size, mean, std and resampling of a model; images are resized and not cropped."""
    file, hint = folder / "preprocessor_config.json", "; save the model's image processor in its folder"
    joint = folder / "processor_config.json"
    values = _read_object(joint if joint.is_file() and not file.is_file() else file, hint)
    try:
        values = values.get("image_processor", values)
        # (f x - mean) / std for x from 0 to 255 is (x / 255 - mean / 255f) / (std / 255f).
        factor = 255 * (values.get("rescale_factor", 1 / 255) if values.get("do_rescale", True) else 1.0)
        normed = values.get("do_normalize", True)
        mean, std = (values["image_mean"], values["image_std"]) if normed else ((0, 0, 0), (1, 1, 1))
        size = values["crop_size"] if values.get("do_center_crop") else values["size"]
        if isinstance(size, dict):
            size = next(size[key] for key in ("height", "shortest_edge", "longest_edge") if key in size)
        preprocessing = {"size": int(size), "resample": Image.Resampling(values.get("resample", 2)).name.lower()}
        (r, g, b), (x, y, z) = (tuple(float(value) / factor for value in three) for three in (mean, std))
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration, ZeroDivisionError) as error:
        raise BadWeights(f"{folder}: size, mean or std of the preprocessor is not valid ({error!r}){hint}") from None
    return {**preprocessing, "mean": (r, g, b), "std": (x, y, z)}


# --- networks -------------------------------------------------------------------------------------

_Tokens = tuple[Tensor, tuple[int, int]]  # (b, prefix+n, d), rows and columns of patches
_Read = Callable[[Sequence[int], Tensor], _Tokens]  # tokens after blocks, from normalized pixels (b, 3, h, w)


class _Reached(Exception):
    """The last block that is read has run."""


def find_blocks(model: Any) -> list[Any]:
    """Return the blocks of a model in order, through all of its stages."""
    chains: dict[str, list[Any]] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module):
            chains.setdefault(re.sub(r"\.\d+(?=\.)", ".*", name), []).append(module)
    depths = getattr(model.config, "depths", None) or [getattr(model.config, "num_hidden_layers", 0)]
    stages = [stages for stages in chains.values() if [len(stage) for stage in stages] == list(depths)]
    stages = stages or sorted((s for s in chains.values() if len(s) == 1), key=lambda s: -len(s[0]))
    if not stages:
        raise BadSpec(f"{type(model).__name__} has no sequence of blocks to read tokens from; choose another encoder")
    return [block for stage in stages[0] for block in stage]


def read_transformers(model: Any, blocks: list[Any], patch: int, layers: Sequence[int], pixels: Tensor) -> _Tokens:
    """Run a model of transformers up to the last of these blocks."""
    outputs: list[Any] = []

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        outputs.append(output[0] if isinstance(output, tuple) else output)
        if len(outputs) == len(layers):
            raise _Reached

    with ExitStack() as hooks, suppress(_Reached):
        for layer in layers:
            hooks.enter_context(blocks[layer].register_forward_hook(keep))
        model(**_make_inputs(model, pixels))
    tokens = _join(outputs)
    if tokens.ndim == 4:  # a feature map
        return tokens.flatten(2).transpose(1, 2), (tokens.shape[2], tokens.shape[3])
    rows, columns = (side // patch for side in pixels.shape[2:])
    while rows * columns > tokens.shape[1]:  # hierarchical models merge 2 × 2 patches
        rows, columns = -(-rows // 2), -(-columns // 2)
    return tokens, (rows, columns)


def _join(outputs: Sequence[Tensor]) -> Tensor:
    """Join tokens (b, n, d) or feature maps (b, d, h, w) of blocks along channels."""
    if len({one.shape for one in outputs}) > 1:
        raise BadSpec(f"the blocks have outputs of different shapes, {[tuple(one.shape[1:]) for one in outputs]}")
    return torch.cat(list(outputs), dim=1 if outputs[0].ndim == 4 else 2)


def _make_inputs(model: Any, pixels: Tensor) -> dict[str, Any]:
    accepted = inspect.signature(model.forward).parameters
    if "spatial_shapes" not in accepted:
        resampled = {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in accepted else {}
        return {"pixel_values": pixels, **resampled}
    side = model.config.patch_size  # SigLIP 2 reads patches (b, n, p·p·3) of any grid
    patches = pixels.unflatten(3, (-1, side)).unflatten(2, (-1, side)).permute(0, 2, 4, 3, 5, 1)
    grid = torch.tensor([patches.shape[1:3]] * len(pixels), device=pixels.device)
    patches = patches.flatten(3).flatten(1, 2)
    mask = torch.ones(patches.shape[:2], dtype=torch.int64, device=pixels.device)
    return {"pixel_values": patches, "pixel_attention_mask": mask, "spatial_shapes": grid}


def _shorten(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def load_transformers(folder: Path) -> Any:
    """Load the vision model in a folder in float32."""
    logs, verbosity = transformers.logging, transformers.logging.get_verbosity()
    logs.set_verbosity(logs.CRITICAL)  # unused weights, of text towers and heads, are not worth a warning
    logs.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        model, info = transformers.AutoModel.from_pretrained(
            folder, config=getattr(config, "vision_config", config), dtype=torch.float32, output_loading_info=True,
            use_safetensors=True, trust_remote_code=False, local_files_only=True,
        )  # fmt: skip
    except Exception as error:  # transformers raises many kinds of errors for files that it cannot use
        more = ["models that need code from their repository are not supported; nothing in it is executed"]
        where = f"{folder}: transformers {transformers.__version__}"
        raise BadWeights(f"{where} cannot load this model: {_shorten(error)}", more=more) from None
    finally:
        logs.set_verbosity(verbosity)
        logs.enable_progress_bar()
    missing = [key for key in info["missing_keys"] if not HARMLESS.search(key) and "pooler" not in key]
    if missing:
        raise BadWeights(f"{folder} lacks {len(missing)} weights, such as {missing[0]}; download it again")
    return model


def load_timm(name: str, size: str) -> tuple[Any, dict[str, Any]]:
    """Load a model of timm and its preprocessing."""
    try:
        timm = importlib.import_module("timm")
    except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision of another build
        raise MissingExtra(f"timm:{name} needs timm ({error}); install with: pip install timm") from None
    try:
        model = timm.create_model(name, pretrained=True)
        if size and hasattr(model, "set_input_size"):
            width, _, height = size.removesuffix("c").partition("x")
            model.set_input_size(img_size=(int(height or width), int(width)))
    except Exception as error:  # an unknown name, a size that does not fit, or no network
        raise WeightsMissing(f"timm cannot load {name}: {error}; see timm.list_pretrained()") from None
    return model, _as_preprocessing(timm.data.resolve_model_data_config(model))


def _as_preprocessing(facts: dict[str, Any]) -> dict[str, Any]:
    resample = Image.Resampling[facts["interpolation"].upper()].name.lower()
    (r, g, b), (x, y, z) = (map(float, facts[key]) for key in ("mean", "std"))
    return {"size": int(facts["input_size"][1]), "mean": (r, g, b), "std": (x, y, z), "resample": resample}


def read_timm(model: Any, layers: Sequence[int], pixels: Tensor) -> _Tokens:
    """Run a model of timm up to the last of these blocks, or stages of a convolutional one."""
    accepted = inspect.signature(model.forward_intermediates).parameters
    options = {"return_prefix_tokens": True} if "return_prefix_tokens" in accepted else {}
    read = model.forward_intermediates(pixels, indices=[*layers], stop_early=True, intermediates_only=True, **options)
    tokens = []
    for got in read:
        patches, *prefix = got if isinstance(got, tuple) else (got,)
        tokens.append(torch.cat([*prefix, patches.flatten(2).transpose(1, 2)], dim=1))
    return _join(tokens), patches.shape[2:]


# --- timm's layout --------------------------------------------------------------------------------

_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1536: 24}  # attention heads by width; weights do not show them
_UNSUPPORTED = ("rope", "rpn", "quickgelu", "eva")  # in names of models that differ from a plain ViT only in code
_RENAMED = ((r"^reg_token$", "register_tokens"), (r"\.gamma_([12])$", r".ls\1.gamma"))


def read_timm_layout(folder: Path, config: dict[str, Any], name: str) -> tuple[Card, LoadedWeights]:
    """Read a plain ViT that timm published, as a card and weights of our ViT."""
    architecture = str(config["architecture"])
    parts = [read_safetensors(file, BadWeights) for file in _find_weights(folder)]
    tensors = {key: tensor for part in parts for key, tensor in part.items() if not key.startswith("head")}
    for pattern, replacement in _RENAMED:
        tensors = {re.sub(pattern, replacement, key): tensor for key, tensor in tensors.items()}
    lacks = [key for key in ("cls_token", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight") if key not in tensors]
    if lacks or any(part in architecture for part in _UNSUPPORTED):
        why = f"it has no {lacks[0]}" if lacks else "its positions, norms or activations differ"
        raise BadWeights(f"{folder}: {architecture} is not a plain ViT: {why}; use --encoder timm:{architecture}")
    width, _, patch, _ = tensors["patch_embed.proj.weight"].shape
    heads = (config.get("model_args") or {}).get("num_heads", _HEADS.get(width, 0))
    if not isinstance(heads, int) or heads < 1 or width % heads:
        fix = 'add "model_args": {"num_heads": N} to its config.json'
        raise BadWeights(f"{folder}: the number of attention heads of {architecture} is not known; {fix}")
    positions = tensors.get("pos_embed")
    if positions is not None and round(positions.shape[1] ** 0.5) ** 2 == positions.shape[1]:  # CLS has no position
        tensors["pos_embed"] = positions = np.concatenate([np.zeros_like(positions[:, :1]), positions], axis=1)
    registers = tensors["register_tokens"].shape[1] if "register_tokens" in tensors else 0
    depth = 1 + max(int(key.split(".")[1]) for key in tensors if key.startswith("blocks."))
    gated = _complete_blocks(tensors, depth, width)
    try:
        preprocessing = _as_preprocessing(config["pretrained_cfg"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise BadWeights(
            f"{folder}: pretrained_cfg of config.json is not valid ({error!r}); download it again"
        ) from None
    card = Card(
        name=name, family="dinov3" if positions is None else "dinov2-reg" if registers else "dinov2", hub=None,
        patch=patch, width=width, depth=depth, heads=heads, mlp="swiglu" if gated else "gelu", registers=registers,
        positions=0 if positions is None else round((positions.shape[1] - 1) ** 0.5), layer=choose_block(depth),
        licence="", about=architecture, **preprocessing,
    )  # fmt: skip
    named = to_module_names(tensors, card)
    check_weights({key: tuple(tensor.shape) for key, tensor in named.items()}, card, str(folder))
    wide, digest = as_float32(named)
    return card, LoadedWeights(wide, hash_json({"weights": digest, "heads": heads}))


def _complete_blocks(tensors: dict[str, np.ndarray], depth: int, width: int) -> bool:
    """Add biases and layer scales that blocks of timm may lack, without effect; return whether MLPs are gated."""
    up, down = tensors.get("blocks.0.mlp.fc1.weight"), tensors.get("blocks.0.mlp.fc2.weight")
    gated = up is not None and down is not None and len(up) == 2 * down.shape[1]
    for block in (f"blocks.{i}" for i in range(depth)):
        biases = [tensors.pop(f"{block}.attn.{part}_bias", np.zeros(width, np.float32)) for part in "qkv"]
        tensors.setdefault(f"{block}.attn.qkv.bias", np.concatenate(biases))
        for scale in ("ls1", "ls2"):
            tensors.setdefault(f"{block}.{scale}.gamma", np.ones(width, np.float32))
        for kind in ("weight", "bias") if gated else ():
            tensors[f"{block}.mlp.w12.{kind}"] = tensors.pop(f"{block}.mlp.fc1.{kind}")
            tensors[f"{block}.mlp.w3.{kind}"] = tensors.pop(f"{block}.mlp.fc2.{kind}")
    return gated


# --- encoder --------------------------------------------------------------------------------------


def choose_block(depth: int) -> int:
    """Return the block at two thirds of the depth, counted from 0."""
    return max(2 * depth // 3 - 1, 0)


class HubEncoder(TorchEncoder):
    """An `Encoder` that reads one or two blocks of a model outside the catalogue."""

    def __init__(self, identity: EncoderId, read: _Read, digest: str, device: str) -> None:
        self._read, self.device, self.identity, card = read, device, identity, identity.card
        try:
            tokens, (rows, columns) = self._run(torch.zeros(1, 3, identity.height, identity.width))
        except Exception as error:  # models raise many kinds of errors for sizes that they cannot use
            raise BadSpec(f"{identity} cannot encode this size: {_shorten(error)}; use @{card.size}") from None
        count = tokens.shape[1] - rows * columns
        card = replace(card, width=tokens.shape[2] // identity.depths, has_cls=count > 0, registers=max(count - 1, 0))
        super().__init__(replace(identity, read_card=card), digest, device)
        self.grid = (rows, columns)
        self.global_channels = card.width if count else None

    def compute_tokens(self, pixels: Tensor) -> Tensor:
        return self._run(pixels)[0]

    def _run(self, pixels: Tensor) -> _Tokens:
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # as in `VitEncoder`
            layers = [layer for layer in (self.identity.earlier, self.identity.layer) if layer is not None]
            return self._read(layers, pixels.to(self.device))


def load_hub(
    text: str, weights: str | Path | None, device: str, depths: int | None = None
) -> HubEncoder | tuple[EncoderId, LoadedWeights]:
    """Load an encoder outside the catalogue; of a plain ViT in timm's layout, return identity and weights."""
    name = parse_hub_name(text)
    read: _Read
    if "timm" in name:
        about = name["timm"]
        model, preprocessing = load_timm(about, name["size"])
        written, depth, patch = f"timm:{about}", len(model.feature_info), 1
        read, digest = partial(read_timm, model), as_float32(model.state_dict())[1]
    else:
        folder, written = find_model(name, weights)
        config = _read_object(folder / "config.json", "; a model folder has config.json and model.safetensors")
        if "architecture" in config and "model_type" not in config:
            card, found = read_timm_layout(folder, config, written)
            return _identify(text, card, name, depths), found
        facts = {key: value for key, value in config.items() if key not in _UNUSED}
        digest = hash_json({"weights": [hash_file(file) for file in _find_weights(folder)], "config": facts})
        preprocessing, model = read_preprocessing(folder), load_transformers(folder)
        blocks, about = find_blocks(model), type(model).__name__
        side = getattr(model.config, "patch_size", 1)
        side = side[0] if isinstance(side, list | tuple) else side
        depth, patch = len(blocks), 1 if hasattr(model.config, "depths") else side
        read = partial(read_transformers, model, blocks, side)
    model.eval().requires_grad_(False).to(device)
    card = Card(
        name=written, family="other", hub=None, patch=patch, width=1, depth=depth, heads=1, layer=choose_block(depth),
        licence="", about=about, **preprocessing,
    )  # fmt: skip
    identity = _identify(text, card, name, depths)
    if identity.facet != "token":
        raise UnknownEncoder(f"encoder {text!r}: only tokens can be read from {about}; remove {identity.facet!r}")
    return HubEncoder(identity, read, digest, device)


def _identify(text: str, card: Card, name: dict[str, str], depths: int | None) -> EncoderId:
    identity = identify_encoder(text, card, name["size"], name["choice"])
    return replace(identity, read_card=card).with_depths(depths)
