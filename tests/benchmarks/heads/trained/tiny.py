"""Small checkpoints with the published tensor names and random weights."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from tests.benchmarks.heads.trained import layouts
from tests.benchmarks.heads.trained.layouts import Layout
from tfa_bench.heads.trained.checkpoints import build_trained_model
from tfa_bench.heads.trained.models import ImageModel
from tfa_bench.heads.trained.systems import SYSTEMS

BACKBONE = {"D": 128, "L": 2, "P": 17}
TRANSPORT = {"H": 8, "M": 4, "F": 3, "Q": 5}
LAYOUTS = {
    "salad": layouts.salad(**BACKBONE, **TRANSPORT),
    "cliquemining": layouts.salad(**BACKBONE, **TRANSPORT),
    "megaloc": layouts.megaloc(**BACKBONE, **TRANSPORT, U=6),
    "boq": layouts.boq(**BACKBONE, C=128, K=2, N=3, R=2),
    "selavpr++-b": layouts.selavpr(two=False, D=64, L=2, P=17, A=2, C=32, U=7),
    "selavpr++-l": layouts.selavpr(two=True, D=64, L=3, P=17, A=2, C=32, U=7, B=9),
    "sample4geo": layouts.sample4geo((1, 1, 2, 1), (4, 6, 8, 10)),
    "cosplace": layouts.cosplace(three=False, depths=(1, 1, 2, 1), output=6, S=4, widths=(4, 6, 8, 10)),
    "eigenplaces": layouts.cosplace(three=True, depths=(1, 2, 1, 1), output=6, S=4, widths=(2, 3, 4, 5)),
}


def random_weights(layout: Layout, seed: int = 0) -> dict[str, torch.Tensor]:
    """Numbers of a size that keeps signals alive: gains about one, powers about three, variances positive."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in layout.items():
        values = rng.standard_normal(shape)
        if name.endswith("num_batches_tracked"):
            made[name] = torch.tensor(7)
            continue
        if name.endswith("running_var"):
            values = 0.5 + values**2
        elif name.endswith(".p"):
            values = 2.5 + 0.5 * np.abs(values)
        elif name.endswith("gamma"):
            values = 0.7 + 0.3 * values
        elif len(shape) >= 2 and "token" not in name.rsplit(".", 1)[-1] and "pos_embed" not in name:
            values = values * (1.5 / math.sqrt(math.prod(shape[1:])))
        elif name.endswith("weight"):
            values = 1 + 0.3 * values
        else:
            values = 0.3 * values
        made[name] = torch.from_numpy(np.asarray(values, np.float32))
    return made


def tensors_of(name: str, seed: int = 0) -> dict[str, torch.Tensor]:
    return random_weights(LAYOUTS[name], seed)


def unwrapped(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix("module."): tensor for name, tensor in tensors.items()}


def model_of(name: str, tensors: dict[str, torch.Tensor] | None = None) -> ImageModel:
    return build_trained_model(SYSTEMS[name], unwrapped(tensors or tensors_of(name)), Path("tiny.pth"))


def arrays(tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.numpy().astype(np.float64) for name, tensor in tensors.items()}
