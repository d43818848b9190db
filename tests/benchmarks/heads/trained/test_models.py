"""Each trained system agrees with its plain implementation; properties of any descriptor."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.benchmarks.heads.trained import plain
from tests.benchmarks.heads.trained.tiny import LAYOUTS, arrays, model_of, tensors_of
from tfa_bench.heads.trained.models import ImageModel
from tfa_bench.heads.trained.networks import OptimalTransport, adapt, transport

PLAIN = {
    "salad": plain.salad,
    "megaloc": plain.megaloc,
    "boq": plain.boq,
    "sample4geo": plain.sample4geo,
    "cosplace": plain.cosplace,
    "eigenplaces": plain.cosplace,
}
SIDES = {"sample4geo": (64, 64), "cosplace": (66, 70), "eigenplaces": (70, 66)}


def pixels_for(name: str, count: int = 1, seed: int = 3) -> torch.Tensor:
    sides = SIDES.get(name, (42, 42))
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((count, 3, *sides)).astype(np.float32))


def patch_states(model: ImageModel, pixels: torch.Tensor) -> list[torch.Tensor]:
    return [state[:, 1:] for state in model.backbone(pixels, output_hidden_states=True).hidden_states]


@pytest.mark.parametrize("name", PLAIN)
def test_a_descriptor_is_what_the_plain_formulas_give(name):
    tensors, pixels = tensors_of(name), pixels_for(name)
    with torch.inference_mode():
        found, code = model_of(name, tensors)(pixels)
    wanted = PLAIN[name](arrays(tensors), pixels[0].numpy().astype(np.float64))
    assert code is None
    np.testing.assert_allclose(found[0].numpy(), wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["selavpr++-b", "selavpr++-l"])
def test_the_side_stream_and_its_branches_are_what_the_plain_formulas_give(name):
    tensors, pixels = tensors_of(name), pixels_for(name)
    model = model_of(name, tensors)
    with torch.inference_mode():
        found, code = model(pixels)
        stream = adapt(patch_states(model, pixels), model.adapters)
    wide = pixels[0].numpy().astype(np.float64)
    vector, bits = plain.selavpr(arrays(tensors), wide)
    np.testing.assert_allclose(found[0].numpy(), vector, atol=1e-5)
    wanted = plain.side_stream(arrays(tensors), wide, "adapters")[1:]
    np.testing.assert_allclose(stream[0].numpy(), wanted, rtol=0, atol=1e-5 * float(np.abs(wanted).max()))
    assert (code is None) == (bits is None) == (name == "selavpr++-b")
    if code is not None:
        assert code[0].tolist() == bits.tolist()


def test_bits_of_zero_count_as_one():
    tensors = tensors_of("selavpr++-l")
    tensors |= {name: torch.zeros_like(tensors[name]) for name in ("module.linear4.weight", "module.linear4.bias")}
    with torch.inference_mode():
        _, code = model_of("selavpr++-l", tensors)(pixels_for("selavpr++-l"))
    assert code[0].tolist() == [1.0] * 9


@pytest.mark.parametrize(("name", "skipped"), [("selavpr++-b", 0), ("selavpr++-l", 1)])
def test_adapters_that_add_nothing_leave_the_state_they_start_from(name, skipped):
    tensors = tensors_of(name)
    tensors |= {key: torch.zeros_like(value) for key, value in tensors.items() if ".D_fc2." in key}
    model = model_of(name, tensors)
    with torch.inference_mode():
        states = patch_states(model, pixels_for(name))
        assert torch.equal(adapt(states, model.adapters), states[skipped])


def test_shares_of_a_patch_and_the_dustbin_sum_to_one():
    scores = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 4, 9)))
    wanted = [plain.sinkhorn(one.numpy(), 0.4) for one in scores]
    shares = transport(scores, torch.tensor(0.4))
    for found, whole in zip(shares.numpy(), wanted, strict=True):
        np.testing.assert_allclose(whole.sum(axis=0), 1)
        np.testing.assert_allclose(found, whole[:-1], atol=1e-6)


def test_of_an_aggregated_photo_the_token_is_first_and_the_channel_major():
    head = OptimalTransport(width=4, hidden=4, clusters=3, features=2, token=2).requires_grad_(False)
    for parameter in head.parameters():
        parameter.zero_()
    head.token_features[2].bias.copy_(torch.tensor([3.0, 4.0]))
    head.cluster_features[3].bias.copy_(torch.tensor([1.0, 0.0]))  # every patch: channel 0 alone
    found = head.eval()(torch.zeros(1, 1 + 9, 4))[0]
    # |token| = 1 and three unit clusters: all divided by 2. Channel 0 of clusters 0, 1, 2, then channel 1.
    np.testing.assert_allclose(found.numpy(), np.array([0.6, 0.8, 1, 1, 1, 0, 0, 0]) / 2, atol=1e-6)


def test_of_bagged_queries_the_channel_is_major():
    tensors = tensors_of("boq")
    tensors["aggregator.fc.weight"].zero_()
    tensors["aggregator.fc.bias"].copy_(torch.tensor([1.0, 0.0]))  # row 0 of every channel
    with torch.inference_mode():
        found, _ = model_of("boq", tensors)(pixels_for("boq"))
    assert (found[0, 0::2] > 0).all()
    assert (found[0, 1::2] == 0).all()


def test_bagged_queries_see_patches_before_the_final_norm():
    tensors = tensors_of("boq")
    pixels = pixels_for("boq")
    with torch.inference_mode():
        before, _ = model_of("boq", tensors)(pixels)
        tensors["backbone.dino.norm.weight"] = 5 * tensors["backbone.dino.norm.weight"]
        after, _ = model_of("boq", tensors)(pixels)
        assert torch.equal(before, after)


@pytest.mark.parametrize(
    ("name", "part", "kind", "eps"),
    [
        ("salad", "backbone", torch.nn.LayerNorm, 1e-6),
        ("boq", "backbone", torch.nn.LayerNorm, 1e-6),
        ("boq", "aggregator", torch.nn.LayerNorm, 1e-5),
        ("selavpr++-l", "backbone", torch.nn.LayerNorm, 1e-6),
        ("selavpr++-l", "adapters_hashing", torch.nn.BatchNorm2d, 1e-3),
        ("sample4geo", "model", torch.nn.LayerNorm, 1e-6),
        ("cosplace", "backbone", torch.nn.BatchNorm2d, 1e-5),
    ],
)
def test_every_norm_has_the_published_epsilon(name, part, kind, eps):
    modules = model_of(name).get_submodule(part).modules()
    assert {module.eps for module in modules if isinstance(module, kind)} == {eps}


@pytest.mark.parametrize("name", LAYOUTS)
def test_vectors_are_unit_and_do_not_depend_on_their_batch(name):
    pixels = pixels_for(name, 3)
    model = model_of(name)
    with torch.inference_mode():
        together, codes = model(pixels)
        alone = [model(one[None]) for one in pixels]
    np.testing.assert_allclose(together.norm(dim=1).numpy(), 1, atol=1e-5)
    np.testing.assert_allclose(together.numpy(), torch.cat([vector for vector, _ in alone]).numpy(), atol=1e-5)
    assert codes is None or torch.equal(codes, torch.cat([code for _, code in alone]))
    assert float((together[0] - together[1]).abs().max()) > 1e-3  # and other photos have other vectors
