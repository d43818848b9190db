"""MegaLoc: DINOv2-B, optimal transport with wider clusters, and a linear layer to the published length."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from tfa_bench.heads.trained.dinov2_backbone import BackboneSizes, VisionTransformer, patch_map
from tfa_bench.heads.trained.image_model import Architecture, ImageModel, Shapes, backbone_sizes, size_of
from tfa_bench.heads.trained.optimal_transport import OptimalTransport, TransportSizes
from tfa_bench.heads.trained.resizing import Resizing
from tfa_bench.heads.trained.salad import SIZE, transport_sizes


class MegaLoc(ImageModel):
    """As SALAD, then a linear layer with bias, then unit length again."""

    def __init__(self, backbone: BackboneSizes, head: TransportSizes, output: int) -> None:
        super().__init__()
        self.backbone = VisionTransformer(backbone)
        self.aggregator = _Aggregator(head, output)
        self.output = output

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        tokens = self.backbone.norm(self.backbone(pixels))
        return self.aggregator(patch_map(tokens[:, 1:]), tokens[:, 0]), None


class _Aggregator(nn.Module):
    def __init__(self, head: TransportSizes, output: int) -> None:
        super().__init__()
        self.agg = OptimalTransport(head)
        self.linear = nn.Linear(head.output, output)

    def forward(self, patches: Tensor, cls: Tensor) -> Tensor:
        return functional.normalize(self.linear(self.agg(patches, cls)), dim=1)


def _build(shapes: Shapes) -> MegaLoc:
    head = transport_sizes(shapes, "aggregator.agg.", TransportSizes(features=256))
    output = size_of(shapes, "aggregator.linear.weight", 0, 8448)
    return MegaLoc(backbone_sizes(shapes, BackboneSizes(mask_token=False)), head, output)


# Files of the first release have the backbone one level deeper; those of today have it as it is here.
ARCHITECTURE = Architecture(
    resizing=Resizing(size=SIZE, kind="float"), build=_build, renamed={"backbone.model.": "backbone."}
)
