"""SAM's automatic masks, with a tiny model of random weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from transformers import SamConfig, SamModel

from tests.benchmarks.heads.sam import layouts
from tests.benchmarks.heads.trained.tiny import random_weights
from tests.fakes import random_image
from tfa.errors import BadSpec, BadWeights, WeightsMissing
from tfa_bench.heads.peers.sam import (
    MaskSettings,
    boxes_of,
    draw_masks,
    enlarge,
    grid_points,
    load_sam,
    prepare_square,
    prompt_points,
    read_sam,
    sized_config,
    stability,
    suppress,
)

pytestmark = pytest.mark.slow

EASY = MaskSettings(points_per_side=3, least_iou=-100.0, least_stability=0.0)


def tiny_config() -> SamConfig:
    return SamConfig(
        vision_config={
            "hidden_size": 16,
            "output_channels": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 4,
            "window_size": 2,
            "global_attn_indexes": [1],
            "num_pos_feats": 8,
            "initializer_range": 0.3,
        },
        prompt_encoder_config={"hidden_size": 16, "image_size": 32, "patch_size": 4, "mask_input_channels": 8},
        mask_decoder_config={
            "hidden_size": 16,
            "mlp_dim": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "iou_head_hidden_dim": 8,
        },
        initializer_range=0.3,
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A folder as save_pretrained writes it: the tied tensor is stored once."""
    folder = tmp_path_factory.mktemp("sam")
    torch.manual_seed(0)
    SamModel(tiny_config()).save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_masks_are_boolean_of_at_most_half_the_published_size_and_always_the_same(tiny):
    image = random_image(1, (60, 40))
    masks = read_sam(tiny, prompting=EASY).segment(image)
    assert masks.dtype == bool
    assert masks.shape[1:] == (40, 60)
    assert 0 < len(masks) <= 27
    assert 0 < masks.mean() < 1
    assert np.array_equal(masks, read_sam(tiny, prompting=EASY).segment(image))
    for size in ((1280, 640), (400, 200)):
        assert read_sam(tiny, prompting=EASY).segment(random_image(1, size)).shape[1:] == (160, 320)


def test_a_model_that_is_sure_of_nothing_gives_no_mask(tiny):
    sure = MaskSettings(points_per_side=2, least_iou=100.0)
    assert read_sam(tiny, prompting=sure).segment(random_image(1)).shape == (0, 30, 40)
    unstable = MaskSettings(points_per_side=2, least_iou=-100.0, least_stability=1.1)
    assert read_sam(tiny, prompting=unstable).segment(random_image(1)).shape == (0, 30, 40)


def test_batches_of_points_do_not_change_the_masks(tiny, monkeypatch):
    image = random_image(2)
    masks = read_sam(tiny, prompting=EASY).segment(image)
    monkeypatch.setattr("tfa_bench.heads.peers.sam._POINTS_AT_ONCE", 2)
    assert np.array_equal(masks, read_sam(tiny, prompting=EASY).segment(image))


def test_the_published_numbers_are_the_defaults(tiny):
    settings = read_sam(tiny).settings
    assert (settings["points_per_side"], settings["least_iou"], settings["least_stability"]) == (32, 0.88, 0.95)
    assert (settings["stability_offset"], settings["most_overlap"], settings["longest"]) == (1.0, 0.7, 320)
    assert settings["segmenter"] == "SAM 16x2"
    assert len(settings["weights"]) == 64


def test_a_file_and_a_folder_of_one_model_are_the_same(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("tfa_bench.heads.peers.sam.sized_config", lambda model: tiny_config())
    state = load_sam(tiny_config(), tiny, "tiny")[0].state_dict()
    save_file({key: tensor.clone() for key, tensor in state.items()}, tmp_path / "sam.safetensors")
    torch.save({"model": state}, tmp_path / "sam.pth")
    digests = {read_sam(path).sha256 for path in (tiny, tmp_path / "sam.safetensors", tmp_path / "sam.pth")}
    assert len(digests) == 1


def published_config() -> SamConfig:
    """A SAM whose image encoder is small; the rest has its published sizes."""
    vision = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 64, "window_size": 3}
    config = sized_config("vit-b")
    return SamConfig(
        vision_config={**vision, "global_attn_indexes": [1]},
        prompt_encoder_config={"image_size": 64},
        mask_decoder_config={"layer_norm_eps": config.mask_decoder_config.layer_norm_eps},
    )


def test_a_checkpoint_under_its_authors_names_is_the_model_they_mean(tmp_path, monkeypatch):
    monkeypatch.setattr("tfa_bench.heads.peers.sam.sized_config", lambda model: published_config())
    weights = random_weights(layouts.sam(12, 2, 2, (1,), side=4, window=3))
    torch.save(weights, tmp_path / "sam_vit.pth")
    segmenter = read_sam(tmp_path / "sam_vit.pth", "vit-b", prompting=EASY)
    # A few that are easily mixed up, by where they act; test_mobile_sam.py compares all names and shapes.
    sam = segmenter._sam
    for found, name in (
        (sam.vision_encoder.layers[1].attn.rel_pos_w, "image_encoder.blocks.1.attn.rel_pos_w"),
        (sam.vision_encoder.layers[0].layer_norm2.bias, "image_encoder.blocks.0.norm2.bias"),
        (sam.vision_encoder.neck.layer_norm2.weight, "image_encoder.neck.3.weight"),
        (sam.prompt_encoder.point_embed[1].weight, "prompt_encoder.point_embeddings.1.weight"),
        (
            sam.shared_image_embedding.positional_embedding,
            "prompt_encoder.pe_layer.positional_encoding_gaussian_matrix",
        ),
        (sam.mask_decoder.transformer.layers[1].layer_norm4.weight, "mask_decoder.transformer.layers.1.norm4.weight"),
        (sam.mask_decoder.upscale_conv2.weight, "mask_decoder.output_upscaling.3.weight"),
        (
            sam.mask_decoder.output_hypernetworks_mlps[2].proj_out.bias,
            "mask_decoder.output_hypernetworks_mlps.2.layers.2.bias",
        ),
    ):
        assert torch.equal(found, weights[name]), name
    assert segmenter.segment(random_image(3, (40, 30))).shape[1:] == (30, 40)
    del weights["image_encoder.blocks.1.mlp.lin2.bias"]
    torch.save(weights, tmp_path / "short.pth")
    with pytest.raises(BadWeights, match=r"1 missing: vision_encoder\.layers\.1\.mlp\.lin2\.bias"):
        read_sam(tmp_path / "short.pth", "vit-b")


def test_wrong_weights_are_refused_by_the_names_of_their_keys(tiny, tmp_path):
    file = tmp_path / "other.safetensors"
    save_file({"image_encoder.pos_embed": torch.zeros(1)}, file)
    with pytest.raises(BadWeights, match=r"missing: shared_image_embedding[\s\S]*shape: vision_encoder\.pos_embed"):
        read_sam(file, "vit-b")
    with pytest.raises(BadWeights, match=r"of another shape: .*vision_encoder"):
        read_sam(tiny / "model.safetensors", "vit-b")


def test_a_folder_of_another_model_or_of_none_is_refused(tmp_path):
    with pytest.raises(BadWeights, match="does not describe a SAM model"):
        read_sam(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}), "utf-8")
    with pytest.raises(BadWeights, match="'bert'"):
        read_sam(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "sam"}), "utf-8")
    with pytest.raises(WeightsMissing, match="Nothing is downloaded"):
        read_sam(tmp_path)


def test_an_unknown_size_and_a_missing_file_say_what_is_allowed(tmp_path):
    with pytest.raises(BadSpec, match="vit-b, vit-l, vit-h"):
        read_sam(tmp_path / "sam.pth", "vit-x")
    with pytest.raises(WeightsMissing, match=r"sam\.pth"):
        read_sam(tmp_path / "sam.pth", "vit-b")


def test_the_image_is_scaled_normalised_and_padded():
    colour = (10, 20, 30)
    pixels, inside = prepare_square(Image.new("RGB", (40, 20), colour), 64)
    assert inside == (64, 32)
    mean, std = np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.12, 57.375])  # ImageNet's
    assert np.allclose(pixels[:, 31, 63], (np.array(colour) - mean) / std)
    assert (pixels[:, 32:] == 0).all()


def test_points_are_the_middles_of_a_grid():
    assert grid_points(2, (8, 4)).tolist() == [[2, 1], [6, 1], [2, 3], [6, 3]]


@torch.inference_mode()
def test_prompts_and_drawings_are_those_of_transformers(tiny):
    sam, _ = load_sam(tiny_config(), tiny, "tiny")
    image = torch.randn(1, 16, 8, 8, generator=torch.Generator().manual_seed(1))
    points = torch.rand(5, 2, generator=torch.Generator().manual_seed(2)) * 32
    expected = sam(image_embeddings=image, input_points=points[None, :, None], multimask_output=True)
    iou, tokens, images = prompt_points(sam, image, points)
    torch.testing.assert_close(iou, expected.iou_scores[0], atol=1e-6, rtol=1e-5)
    chosen = torch.tensor([[1, 1, 1], [0, 0, 0], [0, 1, 0], [1, 0, 1], [0, 0, 1]], dtype=torch.bool)
    logits = draw_masks(sam, tokens, images, chosen)
    torch.testing.assert_close(logits, expected.pred_masks[0][chosen], atol=1e-5, rtol=1e-4)
    assert (logits[0] - logits[1]).abs().max() > 1e-3  # masks differ


def test_masks_are_enlarged_to_the_padded_image_and_the_image_in_it():
    ramp = torch.arange(16.0).expand(1, 16, 16)  # along x
    enlarged = enlarge(ramp, 16, (32, 48), (16, 12))
    # Pixel x of the image lies at 2x + 1 of the square's edges, which is (2x + 1) / 4 − 1/2 of the logits.
    assert enlarged.shape == (1, 12, 16)
    np.testing.assert_allclose(enlarged[0, 5, 1:], (2 * np.arange(1, 16) + 1) / 4 - 0.5, atol=1e-5)
    np.testing.assert_allclose(enlarge(ramp.mT, 16, (32, 48), (16, 12))[0, 1:, 3], np.arange(1, 12) + 0.0, atol=1e-5)


def test_stability_compares_two_thresholds():
    logits = np.array([[[2.0, 2.0, 0.0, -2.0]], [[-2.0, -2.0, -2.0, -2.0]]])
    assert stability(logits, 1.0).tolist() == [2 / 3, 0.0]


def test_boxes_are_first_and_last_pixels():
    masks = np.zeros((2, 4, 6), dtype=bool)
    masks[0, 1:3, 2:5] = True
    assert boxes_of(masks).tolist() == [[2, 1, 4, 2], [0, 0, 0, 0]]


def test_a_box_that_overlaps_a_better_one_is_suppressed():
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9], [20, 0, 30, 10], [0, 0, 10, 5], [20, 0, 30, 10]], float)
    # Against box 1 (the best) box 0 overlaps by 0.9 and box 3 by 5/9; boxes 2 and 4 are equal.
    scores = np.array([0.8, 0.9, 0.7, 0.6, 0.7])
    assert suppress(boxes, scores, 0.7).tolist() == [1, 2, 3]
    assert suppress(boxes, scores, 0.95).tolist() == [1, 0, 2, 3]


def test_boxes_without_area_do_not_suppress_each_other():
    assert suppress(np.zeros((2, 4)), np.array([0.5, 0.6]), 0.7).tolist() == [1, 0]
