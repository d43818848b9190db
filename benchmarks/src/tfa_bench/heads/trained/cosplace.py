"""CosPlace, and EigenPlaces, which trained the same layout otherwise: a ResNet, pooled by generalised means."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from tfa_bench.heads.trained.image_model import Architecture, ImageModel, Shapes, numbered, size_of
from tfa_bench.heads.trained.pooling import GeneralisedMean
from tfa_bench.heads.trained.resizing import Resizing
from tfa_bench.heads.trained.resnet import STAGES, ResNetSizes, resnet


class CosPlace(ImageModel):
    """Photos of any size, at their own."""

    def __init__(self, sizes: ResNetSizes, output: int) -> None:
        super().__init__()
        self.backbone = resnet(sizes)
        self.aggregation = nn.Sequential(
            nn.Identity(), GeneralisedMean(), nn.Identity(), nn.Linear(sizes.output, output)
        )
        self.output, self.about = output, f"{sizes.name}, {output:,} dimensions"

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        return functional.normalize(self.aggregation(self.backbone(pixels)), dim=1), None


def _build(shapes: Shapes) -> CosPlace:
    published = ResNetSizes()
    stages = list(zip(STAGES, published.depths, published.widths, strict=True))
    sizes = ResNetSizes(
        stem=size_of(shapes, "backbone.0.weight", 0, published.stem),
        depths=tuple(numbered(shapes, f"backbone.{stage}.", depth) for stage, depth, _ in stages),
        widths=tuple(size_of(shapes, f"backbone.{stage}.0.conv1.weight", 0, width) for stage, _, width in stages),
        bottleneck="backbone.4.0.conv3.weight" in shapes,
    )
    if sizes.widths == published.widths and not sizes.is_known:
        raise ValueError(f"stages of {sizes.depths} blocks, which no published ResNet has")
    return CosPlace(sizes, size_of(shapes, "aggregation.3.weight", 0, 2048))


ARCHITECTURE = Architecture(resizing=Resizing(size=0, kind="native", antialias=False), build=_build)
