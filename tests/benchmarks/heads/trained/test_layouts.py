"""Published sizes: models built without memory have exactly the tensors that published checkpoints hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.benchmarks.heads.trained import layouts
from tests.benchmarks.heads.trained.layouts import LARGE, Layout, parameters
from tfa_bench.heads.trained import models
from tfa_bench.heads.trained.checkpoints import get_architecture, list_weights
from tfa_bench.heads.trained.models import Architecture, ImageModel
from tfa_bench.heads.trained.systems import SYSTEMS

# System, its layout, tensors in the file, learned numbers, output.
PUBLISHED = {
    "salad": (models.SALAD, layouts.salad(), 188, 87_991_489, 8448),
    "megaloc": (models.MEGALOC, layouts.megaloc(), 189, 228_639_553, 8448),
    "megaloc, first release": (models.MEGALOC, layouts.megaloc(old=True), 190, 228_640_321, 8448),
    "boq": (models.BOQ, layouts.boq(), 231, 95_206_560, 12288),
    "selavpr++-b": (models.SELAVPR_BASE, layouts.selavpr(two=False), 648, 97_899_201, 2048),
    "selavpr++-b, two stages": (models.SELAVPR_BASE, layouts.selavpr(two=True), 1121, 108_036_738, 2048),
    "selavpr++-l": (models.SELAVPR_LARGE, layouts.selavpr(two=False, **LARGE), 972, 331_295_745, 4096),
    "selavpr++-l, two stages": (models.SELAVPR_LARGE, layouts.selavpr(two=True, **LARGE), 1601, 354_549_250, 4096),
    "sample4geo": (models.SAMPLE4GEO, layouts.sample4geo(), 343, 87_566_465, 1024),  # logit_scale is one
    # torchvision's own counts of ResNet-18 and -50 without their classifier, then p and the linear layer.
    "cosplace, ResNet-18": (
        models.COSPLACE,
        layouts.cosplace(three=False, depths=(2, 2, 2, 2), output=512),
        120 + 3,
        11_176_512 + 1 + 512 * 513,
        512,
    ),
    "cosplace, ResNet-50": (
        models.COSPLACE,
        layouts.cosplace(three=True, depths=(3, 4, 6, 3), output=2048),
        318 + 3,
        23_508_032 + 1 + 2048 * 2049,
        2048,
    ),
}


def without_prefixes(layout: Layout, architecture: Architecture) -> Layout:
    found = {}
    for name, shape in layout.items():
        name = name.removeprefix("module.")
        for before, after in architecture.prefixes.items():
            if name.startswith(before):
                name = after + name.removeprefix(before)
        if name not in architecture.may_have:
            found[name] = shape
    return found


def weights(model: ImageModel, architecture: Architecture) -> Layout:
    return {name: weight.shape for name, weight in list_weights(model, architecture).items()}


@pytest.mark.parametrize("which", PUBLISHED)
def test_a_model_has_the_tensors_of_the_published_checkpoint(which):
    architecture, layout, tensors, learned, output = PUBLISHED[which]
    assert len(layout) == tensors
    assert parameters(layout) == learned
    wanted = without_prefixes(layout, architecture)
    with torch.device("meta"):
        model = architecture.build(wanted)
    assert weights(model, architecture) == wanted
    assert model.output == output
    assert model.code == (512 if "two stages" in which else None)


@pytest.mark.parametrize("which", ["salad", "megaloc", "boq", "selavpr++-b", "selavpr++-l", "sample4geo"])
def test_without_a_checkpoint_sizes_are_the_published_ones(which):
    architecture, layout, *_ = PUBLISHED[which]
    wanted = without_prefixes(layout, architecture)
    wanted.pop("backbone.mask_token", None)
    with torch.device("meta"):
        model = architecture.build({})
    assert weights(model, architecture) == wanted


def test_every_system_has_an_architecture_and_says_where_it_is_published():
    for name, system in SYSTEMS.items():
        assert isinstance(get_architecture(system), Architecture)
        assert system.name == name
        assert system.files
        assert system.published
        assert system.licence


def test_the_table_expands_ranges_and_words():
    found = layouts.expanded("a.{L}.{x,y} 2*D D\nb", "p.", L=2, D=3)
    assert found == {"p.a.0.x": (6, 3), "p.a.0.y": (6, 3), "p.a.1.x": (6, 3), "p.a.1.y": (6, 3), "p.b": ()}


def test_the_page_names_every_system():
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "compare-trained-models.md").read_text("utf-8")
    assert [name for name in SYSTEMS if f"`{name}`" not in page] == []
