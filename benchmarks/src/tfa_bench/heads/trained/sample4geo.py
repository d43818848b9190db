"""Sample4Geo: ConvNeXt-B, one encoder for the view from above and the view from below."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from tfa_bench.heads.trained.convnext import ConvNext, ConvNextSizes
from tfa_bench.heads.trained.image_model import Architecture, ImageModel, Shapes, numbered, size_of
from tfa_bench.heads.trained.resizing import Resizing


class Sample4Geo(ImageModel):
    def __init__(self, sizes: ConvNextSizes) -> None:
        super().__init__()
        self.model = ConvNext(sizes)
        self.output = sizes.widths[-1]

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        return functional.normalize(self.model(pixels), dim=1), None


def _build(shapes: Shapes) -> Sample4Geo:
    published = ConvNextSizes()
    stages = list(enumerate(zip(published.depths, published.widths, strict=True)))
    first = "model.stages.{}.blocks.0.gamma"
    widths = tuple(size_of(shapes, first.format(i), 0, width) for i, (_, width) in stages)
    depths = tuple(numbered(shapes, f"model.stages.{i}.blocks.", depth) for i, (depth, _) in stages)
    if widths == published.widths:
        depths = published.depths  # what a file lacks of them is missing
    return Sample4Geo(ConvNextSizes(depths=depths, widths=widths))


ARCHITECTURE = Architecture(
    resizing=Resizing(size=384, kind="rounded", antialias=False), build=_build, may_have=("logit_scale",)
)
