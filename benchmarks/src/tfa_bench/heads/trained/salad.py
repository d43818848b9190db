"""SALAD, and CliqueMining, which trained the same layout otherwise: DINOv2-B and optimal transport."""

from __future__ import annotations

from torch import Tensor

from tfa_bench.heads.trained.dinov2_backbone import PATCH, BackboneSizes, VisionTransformer, patch_map
from tfa_bench.heads.trained.image_model import Architecture, ImageModel, Shapes, backbone_sizes, size_of
from tfa_bench.heads.trained.optimal_transport import OptimalTransport, TransportSizes
from tfa_bench.heads.trained.resizing import Resizing

SIZE = 322  # pixels of the square input
PATCHES = (SIZE // PATCH) ** 2


class Salad(ImageModel):
    """CLS and patches after the final norm, aggregated."""

    def __init__(self, backbone: BackboneSizes, head: TransportSizes) -> None:
        super().__init__()
        self.backbone = VisionTransformer(backbone)
        self.aggregator = OptimalTransport(head)
        self.output = head.output

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        tokens = self.backbone.norm(self.backbone(pixels))
        return self.aggregator(patch_map(tokens[:, 1:]), tokens[:, 0]), None


def transport_sizes(shapes: Shapes, prefix: str, published: TransportSizes) -> TransportSizes:
    """Sizes that a photo's patches can be shared out to; others are a ValueError."""
    sizes = TransportSizes(
        width=size_of(shapes, "backbone.patch_embed.proj.weight", 0, published.width),
        hidden=size_of(shapes, f"{prefix}score.0.weight", 0, published.hidden),
        clusters=size_of(shapes, f"{prefix}score.3.weight", 0, published.clusters),
        features=size_of(shapes, f"{prefix}cluster_features.3.weight", 0, published.features),
        token=size_of(shapes, f"{prefix}token_features.2.weight", 0, published.token),
    )
    if sizes.clusters >= PATCHES:
        raise ValueError(f"{sizes.clusters} clusters for {PATCHES} patches, of which there must be more")
    return sizes


def _build(shapes: Shapes) -> Salad:
    return Salad(backbone_sizes(shapes, BackboneSizes()), transport_sizes(shapes, "aggregator.", TransportSizes()))


ARCHITECTURE = Architecture(
    resizing=Resizing(size=SIZE, kind="pil"), build=_build, renamed={"backbone.model.": "backbone."}
)
