"""The script cnn_encoders.py: weights of two networks under other names, on networks written out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from studies import cnn_encoders
from tests.fakes import random_image
from tfa.core.files import write_json
from tfa.encoders import load_encoder


def unit(
    inside: int, outside: int, kernel: int = 1, stride: int = 1, *, last: bool = False, **options: Any
) -> list[Any]:
    convolution = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=False, **options)
    return [convolution, nn.BatchNorm2d(outside)] + ([] if last else [nn.ReLU6()])


class Bottleneck(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int, factor: int) -> None:
        super().__init__()
        wide = inside * factor
        expand = unit(inside, wide) if factor > 1 else []
        deep = unit(wide, wide, 3, stride, groups=wide)
        self.conv = nn.Sequential(*expand, *deep, *unit(wide, outside, last=True))
        self.adds = stride == 1 and inside == outside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x) if self.adds else self.conv(x)


def plain_mobilenet() -> nn.Module:
    """MobileNetV2 with the weight names of its PyTorch releases."""
    layers: list[nn.Module] = [nn.Sequential(*unit(3, 32, 3, 2))]
    inside = 32
    for factor, outside, count, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for number in range(count):
            layers.append(Bottleneck(inside, outside, stride if number == 0 else 1, factor))
            inside = outside
    layers.append(nn.Sequential(*unit(320, 1280)))
    return nn.ModuleDict({"features": nn.Sequential(*layers)})


def randomize(model: nn.Module) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    for name, tensor in model.state_dict().items():
        if name.endswith("running_var"):
            tensor.copy_(torch.rand_like(tensor) + 0.5)
        elif tensor.is_floating_point():
            tensor.copy_(torch.randn_like(tensor) * (0.3 if tensor.ndim < 4 else (2 / tensor[0].numel()) ** 0.5))
    return model.eval().state_dict()


def test_mobilenet_equals_the_network_its_weights_are_from() -> None:
    plain = plain_mobilenet()
    built = cnn_encoders.build_mobilenet(randomize(plain))
    pixels = torch.randn(1, 3, 64, 96)
    with torch.inference_mode():
        np.testing.assert_allclose(built(pixels).last_hidden_state, plain["features"](pixels), rtol=1e-3, atol=1e-4)


def test_efficientnet_has_open_gates_and_is_an_encoder(tmp_path) -> None:
    """Its names are written by hand from those of transformers, since no other network here has them."""
    back = {
        "embeddings.convolution": "_conv_stem", "embeddings.batchnorm": "_bn0", "encoder.top_conv": "_conv_head",
        "encoder.top_bn": "_bn1", "encoder.blocks": "_blocks", "expansion.expand_conv": "_expand_conv",
        "expansion.expand_bn": "_bn0", "depthwise_conv.depthwise_conv": "_depthwise_conv",
        "depthwise_conv.depthwise_norm": "_bn1", "projection.project_conv": "_project_conv",
        "projection.project_bn": "_bn2",
    }  # fmt: skip
    config = cnn_encoders.transformers.EfficientNetConfig(width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280)
    weights = {"_fc.weight": torch.zeros(3, 1280)}
    for name, tensor in randomize(cnn_encoders.transformers.EfficientNetModel(config)).items():
        for new, old in back.items():
            name = name.replace(new, old)
        if "squeeze_excite" not in name:
            weights[name] = tensor
    built = cnn_encoders.build_efficientnet(weights)
    wide = torch.randn(1, 96, 4, 4)
    with torch.inference_mode():
        torch.testing.assert_close(built.encoder.blocks[1].squeeze_excite(wide), wide)
    built.save_pretrained(tmp_path)
    write_json(tmp_path / "preprocessor_config.json", {**cnn_encoders.PREPROCESSING["efficientnet-lite0"], "size": 64})
    encoder = load_encoder(f"hf:{tmp_path}@96x64")
    assert (encoder.id, encoder.grid, encoder.channels) == (f"hf:{tmp_path}@96x64/l9", (4, 6), 112)
    assert encoder.encode([random_image(1)])[0].shape == (1, 24, 112)


def test_scores_are_shown_as_means_and_for_each_dataset(script, tmp_path) -> None:
    scores = [
        {"encoder": "a", "dataset": name, "head": "ria", "recalls": {"1": {"mean": recall}}}
        for name, recall in (("x", 0.5), ("y", 0.75))
    ]
    write_json(tmp_path / "scores.json", scores)
    done = script(cnn_encoders.main, "--show", tmp_path / "scores.json")
    assert done.stdout.splitlines()[2] == "| `a` | 62.5 |"
    assert done.stdout.splitlines()[-1] == "| `a` | y | 75.0 |"
