"""Trained systems: a transformers backbone, the published layers after it, and the published preprocessing.

Published preprocessing of photos. Every resize ignores the aspect ratio.

    pil      Pillow on 8-bit pixels, always antialiased
    rounded  without antialiasing, rounded back to 8 bits
    float    on floats, antialiased or not, neither rounded nor clamped
    native   no resize

Resizing and normalizing floats commute, so their order in a published pipeline does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from tfa.photos.images import resize
from tfa_bench.heads.trained.networks import (
    CONVNEXT_NAMES,
    DINOV2_NAMES,
    PATCH,
    RESNET_NAMES,
    Adapter,
    GeneralizedMean,
    NameRules,
    OptimalTransport,
    ProjectedTransport,
    QueryAggregator,
    Shapes,
    adapt,
    count_numbers,
    make_convnext,
    make_dinov2,
    make_resnet,
    read_size,
    to_map,
)

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet statistics, used by every system here


@dataclass(frozen=True, kw_only=True)
class Resizing:
    """A system's preprocessing. `size` is the side of the square input, 0 for the photo's size."""

    size: int
    kind: str = "float"  # "pil" | "rounded" | "float" | "native"
    kernel: str = "bilinear"  # "bilinear" | "bicubic"
    antialias: bool = True

    @property
    def name(self) -> str:
        return str(self.size) if self.size else "native"

    @property
    def settings(self) -> dict[str, Any]:
        return asdict(self)

    def prepare(self, image: Image.Image) -> Image.Image:
        """Resize if the system resizes 8-bit pixels."""
        if self.kind == "pil":
            return resize(image, (self.size, self.size), self.kernel)
        if self.kind == "rounded" and image.size != (self.size, self.size):
            levels = self._resize(_to_levels(image)).round().to(torch.uint8)
            return Image.fromarray(levels.permute(1, 2, 0).numpy())
        return image

    def pixels(self, image: Image.Image) -> Tensor:
        """Return normalized float32 `(3, h, w)`."""
        levels = _to_levels(self.prepare(image))
        if self.kind == "float":
            levels = self._resize(levels)
        mean, std = (torch.tensor(values, dtype=torch.float32)[:, None, None] for values in (_MEAN, _STD))
        return (levels / 255 - mean) / std

    def _resize(self, levels: Tensor) -> Tensor:
        if levels.shape[1:] == (self.size, self.size):
            return levels
        return functional.interpolate(
            levels[None], (self.size, self.size), mode=self.kernel, align_corners=False, antialias=self.antialias
        )[0]


def _to_levels(image: Image.Image) -> Tensor:
    """Return floats `(3, h, w)` from 0 to 255."""
    return torch.from_numpy(np.asarray(image, np.float32).transpose(2, 0, 1).copy())


def group_by_size(pixels: Sequence[Tensor]) -> list[list[int]]:
    """Return the indices of images that can form a batch: without a resize, photos may differ in size."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, one in enumerate(pixels):
        groups.setdefault(tuple(one.shape), []).append(index)
    return list(groups.values())


# --- models --------------------------------------------------------------------------------------------------------


_SIZE = 322  # pixels per side of the square input of systems with DINOv2
_PATCHES = (_SIZE // PATCH) ** 2
_ADAPTERS = {768: 12, 1024: 16}  # adapters of the published SelaVPR++ by width


class ImageModel(nn.Module):
    """Pixels `(b, 3, h, w)` → unit vectors `(b, output)`, and codes of ±1 `(b, code)` if it has them."""

    output: int
    code: int | None = None
    about: str = ""  # published form of the system in the checkpoint

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A system's model and preprocessing, without weights."""

    resizing: Resizing
    build: Callable[[Shapes], ImageModel]  # makes an empty model in the sizes of these shapes
    names: NameRules  # module names → published names
    prefixes: Mapping[str, str] = field(default_factory=dict)  # prefix in some files → published prefix
    may_have: tuple[str, ...] = ()  # further names in files, unused


class _TransportModel(ImageModel):
    """SALAD and MegaLoc: DINOv2's tokens after the final norm, aggregated by optimal transport."""

    def __init__(self, backbone: Any, aggregator: nn.Module, output: int) -> None:
        super().__init__()
        self.backbone, self.aggregator, self.output = backbone, aggregator, output

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.aggregator(self.backbone(pixels).last_hidden_state), None


def _make_transport(shapes: Shapes, prefix: str, width: int, features: int) -> OptimalTransport:
    clusters = read_size(shapes, f"{prefix}score.3.weight", 0, 64)
    if clusters >= _PATCHES:
        raise ValueError(f"{clusters} clusters for {_PATCHES} patches, but there must be more patches than clusters")
    return OptimalTransport(
        width=width,
        hidden=read_size(shapes, f"{prefix}score.0.weight", 0, 512),
        clusters=clusters,
        features=read_size(shapes, f"{prefix}cluster_features.3.weight", 0, features),
        token=read_size(shapes, f"{prefix}token_features.2.weight", 0, 256),
    )


def _build_salad(shapes: Shapes) -> ImageModel:
    backbone = make_dinov2(shapes)
    aggregator = _make_transport(shapes, "aggregator.", backbone.config.hidden_size, features=128)
    return _TransportModel(backbone, aggregator, aggregator.output)


def _build_megaloc(shapes: Shapes) -> ImageModel:
    backbone = make_dinov2(shapes)
    transport = _make_transport(shapes, "aggregator.agg.", backbone.config.hidden_size, features=256)
    output = read_size(shapes, "aggregator.linear.weight", 0, 8448)
    return _TransportModel(backbone, ProjectedTransport(transport, output), output)


class _QueryModel(ImageModel):
    """BoQ: learned queries attend to DINOv2's patches before the final norm, which the file still contains."""

    def __init__(self, backbone: Any, aggregator: QueryAggregator, output: int) -> None:
        super().__init__()
        self.backbone, self.aggregator, self.output = backbone, aggregator, output

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        state = self.backbone.encoder(self.backbone.embeddings(pixels)).last_hidden_state
        return self.aggregator(to_map(state[:, 1:])), None


def _build_boq(shapes: Shapes) -> ImageModel:
    backbone = make_dinov2(shapes)
    channels = read_size(shapes, "aggregator.norm_input.weight", 0, 384)
    rows = read_size(shapes, "aggregator.fc.weight", 0, 32)
    aggregator = QueryAggregator(
        width=backbone.config.hidden_size,
        channels=channels,
        queries=read_size(shapes, "aggregator.boqs.0.queries", 1, 64),
        blocks=count_numbers(shapes, "aggregator.boqs.", 2),
        hidden=read_size(shapes, "aggregator.boqs.0.encoder.linear1.weight", 0, 1536),
        rows=rows,
    )
    return _QueryModel(backbone, aggregator, channels * rows)


class _AdapterModel(ImageModel):
    """SelaVPR++: a side stream of adapters along a frozen DINOv2, pooled to a vector.

    Files that can rerank also have adapters and layers for a binary code. The class token of the side stream affects
    no patch and is not pooled, so it is left out.
    """

    def __init__(self, backbone: Any, *, adapters: int, hidden: int, output: int, bits: int) -> None:
        super().__init__()
        width = backbone.config.hidden_size
        self.backbone = backbone
        self.adapters = nn.ModuleList(Adapter(width, hidden) for _ in range(adapters))
        self.aggregation = nn.Sequential(nn.Identity(), GeneralizedMean())
        self.linear1, self.linear2 = nn.Linear(width, width), nn.Linear(width, output)
        self.output, self.about = output, "one branch"
        if bits:
            self.adapters_hashing = nn.ModuleList(Adapter(width, hidden) for _ in range(adapters))
            self.aggregation_hashing = nn.Sequential(nn.Identity(), GeneralizedMean())
            self.linear3, self.linear4 = nn.Linear(width, width), nn.Linear(width, bits)
            self.code, self.about = bits, f"two stages, {bits} bits"

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        states = [state[:, 1:] for state in self.backbone(pixels, output_hidden_states=True).hidden_states]
        vector = self.linear2(self.aggregation(self._run_stream(states, self.adapters, self.linear1)))
        vector = functional.normalize(vector, dim=1)
        if self.code is None:
            return vector, None
        code = self.linear4(self.aggregation_hashing(self._run_stream(states, self.adapters_hashing, self.linear3)))
        return vector, torch.where(code >= 0, 1.0, -1.0)  # zero counts as one

    def _run_stream(self, states: Sequence[Tensor], adapters: nn.ModuleList, linear: nn.Linear) -> Tensor:
        """Return the map to pool, `(b, d, g, g)`: the side stream after the final norm and a linear layer."""
        return to_map(linear(self.backbone.layernorm(adapt(states, adapters))))


def _build_selavpr(shapes: Shapes, *, width: int, adapters: int, hidden: int, output: int) -> ImageModel:
    backbone = make_dinov2(shapes, width)
    has_code = any(name.startswith("backbone.adapters_hashing.") for name in shapes)
    adapters = _ADAPTERS.get(backbone.config.hidden_size) or count_numbers(shapes, "backbone.adapters.", adapters)
    if adapters > backbone.config.num_hidden_layers:
        raise ValueError(f"{adapters} adapters for {backbone.config.num_hidden_layers} blocks")
    return _AdapterModel(
        backbone,
        adapters=adapters,
        hidden=read_size(shapes, "backbone.adapters.0.D_fc1.weight", 0, hidden),
        output=read_size(shapes, "linear2.weight", 0, output),
        bits=read_size(shapes, "linear4.weight", 0, 512) if has_code else 0,
    )


class _ConvNextModel(ImageModel):
    """Sample4Geo: ConvNeXt-B, one encoder for aerial and ground views."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.output = model, model.config.hidden_sizes[-1]

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        return functional.normalize(self.model(pixels).pooler_output, dim=1), None


class _ResNetModel(ImageModel):
    """CosPlace and EigenPlaces: a ResNet for photos in original size, pooled by generalized means."""

    def __init__(self, backbone: Any, name: str, output: int) -> None:
        super().__init__()
        self.backbone = backbone
        linear = nn.Linear(backbone.config.hidden_sizes[-1], output)
        self.aggregation = nn.Sequential(nn.Identity(), GeneralizedMean(), nn.Identity(), linear)
        self.output, self.about = output, f"{name}, {output:,} dimensions"

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        return functional.normalize(self.aggregation(self.backbone(pixels).last_hidden_state), dim=1), None


# CliqueMining trained SALAD's layout on other data, EigenPlaces CosPlace's.
SALAD = Architecture(
    resizing=Resizing(size=_SIZE, kind="pil"),
    build=_build_salad,
    names=DINOV2_NAMES,
    prefixes={"backbone.model.": "backbone."},
)
# Files of the first release have the backbone one level deeper.
MEGALOC = Architecture(
    resizing=Resizing(size=_SIZE, kind="float"),
    build=_build_megaloc,
    names=DINOV2_NAMES,
    prefixes={"backbone.model.": "backbone."},
)
BOQ = Architecture(
    resizing=Resizing(size=_SIZE, kind="float", kernel="bicubic"),
    build=_build_boq,
    names=DINOV2_NAMES,
    prefixes={"backbone.dino.": "backbone."},
)
# The published figures were most likely made without antialiasing: the default of the torchvision of their time.
_SELAVPR_RESIZING = Resizing(size=_SIZE, kind="float", antialias=False)
_SELAVPR_NAMES = (*DINOV2_NAMES, (r"^adapters(_hashing)?\.", r"backbone.adapters\1."))
SELAVPR_BASE = Architecture(
    resizing=_SELAVPR_RESIZING,
    build=lambda shapes: _build_selavpr(shapes, width=768, adapters=12, hidden=384, output=2048),
    names=_SELAVPR_NAMES,
)
SELAVPR_LARGE = Architecture(
    resizing=_SELAVPR_RESIZING,
    build=lambda shapes: _build_selavpr(shapes, width=1024, adapters=16, hidden=512, output=4096),
    names=_SELAVPR_NAMES,
)
SAMPLE4GEO = Architecture(
    resizing=Resizing(size=384, kind="rounded", antialias=False),
    build=lambda shapes: _ConvNextModel(make_convnext(shapes)),
    names=CONVNEXT_NAMES,
    may_have=("logit_scale",),
)
COSPLACE = Architecture(
    resizing=Resizing(size=0, kind="native", antialias=False),
    build=lambda shapes: _ResNetModel(*make_resnet(shapes), read_size(shapes, "aggregation.3.weight", 0, 2048)),
    names=RESNET_NAMES,
)
