"""Position embeddings at another grid size: the published rule, the transformers rule (`/hf`), and encoder names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.encoders.plain_positions import plain_positions
from tests.encoders.tiny import TINY, as_arrays, random_weights
from tests.fakes import random_image
from tfa.encoders import EncoderId, load_encoder, parse_encoder
from tfa.encoders.catalogue import CATALOGUE, fast_fingerprint, fingerprint_encoder, use_current_name
from tfa.encoders.positions import resample_table
from tfa.encoders.vit import load_vit, resample_positions
from tfa.errors import UnknownEncoder

WEIGHTS = CATALOGUE["dinov2-s14-focus"].package.weights
BEFORE = "eea5eb71"  # how the fingerprint of dinov2-s14-focus@322 began while transformers' rule was the only one


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    save_file(random_weights(TINY["tiny-v2"]), tmp_path / "tiny.safetensors")
    return tmp_path / "tiny.safetensors"


@pytest.mark.parametrize(("side", "grid"), [(4, (3, 3)), (37, (23, 23)), (37, (34, 46)), (3, (5, 2))])
def test_the_table_is_resampled_by_the_published_rule(side: int, grid: tuple[int, int]) -> None:
    table = np.random.default_rng(1).standard_normal((1, 1 + side * side, 2)).astype(np.float32)
    found = resample_positions(torch.from_numpy(table), grid)[0].numpy()
    # Torch keeps the places it samples at in float32, which costs 1e-6 of the table's 37 rows.
    np.testing.assert_allclose(found, plain_positions(table, grid), atol=3e-5)
    assert np.abs(found - plain_positions(table, grid, offset=0)).max() > 1e-3  # the other rule is another


@pytest.mark.parametrize("size", ["@84", "@98x70", "@28"])
@pytest.mark.parametrize(("name", "ending"), [("tiny-v2", ""), ("tiny-v2", "/hf"), ("tiny-v2-reg", "")])
def test_numpy_resamples_as_torch(name: str, size: str, ending: str) -> None:
    identity, tensors = parse_encoder(f"{name}{size}{ending}"), random_weights(TINY[name])
    table = tensors["embeddings.position_embeddings"]
    model = load_vit(identity, as_arrays(tensors))
    rows, columns = identity.grid
    with torch.inference_mode():
        found = model.embeddings(torch.zeros(1, 3, 14 * rows, 14 * columns))[:, identity.card.prefix :].numpy()
    still = tensors["embeddings.patch_embeddings.projection.bias"].numpy()
    np.testing.assert_allclose(resample_table(table.numpy(), identity)[:, 1:] + still, found, atol=3e-5)


def test_a_table_of_the_grid_is_left_alone() -> None:
    table = torch.randn(1, 10, 4)
    assert resample_positions(table, (3, 3)) is table


@pytest.mark.parametrize("size", ["", "@56x70", "@42"])
@pytest.mark.parametrize(("ending", "offset"), [("", 0.1), ("/hf", 0.0)])
def test_a_black_picture_shows_which_table_is_added(size: str, ending: str, offset: float, weights: Path) -> None:
    encoder = load_encoder(f"tiny-v2{size}{ending}", weights=weights)
    rows, columns = encoder.grid
    embeddings, tensors = encoder.network.embeddings, random_weights(TINY["tiny-v2"])  # type: ignore[attr-defined]
    with torch.inference_mode():
        found = embeddings(torch.zeros(1, 3, 14 * rows, 14 * columns))[0].numpy()
    still = np.repeat(tensors["embeddings.patch_embeddings.projection.bias"][None].numpy(), rows * columns, axis=0)
    still = np.concatenate([tensors["embeddings.cls_token"][0].numpy(), still])
    table = plain_positions(tensors["embeddings.position_embeddings"].numpy(), (rows, columns), offset)
    np.testing.assert_allclose(found, still + table, atol=1e-5)


def test_integers_take_the_same_table(weights: Path) -> None:
    images = [random_image(seed) for seed in range(2)]
    plain, other = (load_encoder(name, weights=weights).encode(images)[0] for name in ("tiny-v2", "tiny-v2/hf"))
    fast = [
        load_encoder(name, weights=weights, precision="int8").encode(images)[0] for name in ("tiny-v2", "tiny-v2/hf")
    ]
    apart = [[np.abs(a.astype(float) - b).mean() for b in (plain, other)] for a in fast]
    assert apart[0][0] < apart[0][1]
    assert apart[1][1] < apart[1][0]


@pytest.mark.parametrize(
    ("text", "printed", "hf"),
    [
        ("dinov2-b14/hf", "dinov2-b14@322/hf", True),
        ("dinov2-s14-focus@322/l7-token/hf", "dinov2-s14-focus@322/hf", True),
        ("dinov2-g14@640x480/l31-value/hf", "dinov2-g14@644x476/l31-value/hf", True),
        ("dinov2-b14@518/hf", "dinov2-b14@518", False),  # the table's own size: nothing is resampled
        ("dinov2-b14@518x322/hf", "dinov2-b14@518x322/hf", True),
    ],
)
def test_names(text: str, printed: str, hf: bool) -> None:
    identity = parse_encoder(text)
    assert (str(identity), identity.hf) == (printed, hf)
    assert parse_encoder(str(identity)) == identity


@pytest.mark.parametrize("text", ["dinov2-b14-reg/hf", "dinov3-b16/l3/hf", "dinov2-s14-reg-mri/hf"])
def test_other_families_have_one_rule(text: str) -> None:
    with pytest.raises(UnknownEncoder, match="remove /hf"):
        parse_encoder(text)
    assert len(parse_encoder(text.removesuffix("/hf")).rules) == 1


@pytest.mark.parametrize("text", ["dinov2-b14/hf/", "dinov2-b14//hf", "dinov2-b14/hf/hf", "dinov2-b14/l3-hf"])
def test_misspelt_rules_are_refused(text: str) -> None:
    with pytest.raises(UnknownEncoder):
        parse_encoder(text)


def of(name: str) -> str:
    return fingerprint_encoder(parse_encoder(name), WEIGHTS)


def test_what_was_made_before_keeps_its_fingerprint_under_the_longer_name() -> None:
    assert of("dinov2-s14-focus/hf").startswith(BEFORE)
    assert not of("dinov2-s14-focus").startswith(BEFORE)
    assert of("dinov2-s14-focus@518") == of("dinov2-s14-focus@518/hf")
    for model in (of("dinov2-s14-focus/hf"), fast_fingerprint(of("dinov2-s14-focus/hf"))):
        record = {"id": "dinov2-s14-focus@322", "fingerprint": model, "grid": [23, 23]}
        assert use_current_name(record) == {**record, "id": "dinov2-s14-focus@322/hf"}
    for record in (
        {"id": "dinov2-s14-focus@322", "fingerprint": of("dinov2-s14-focus")},
        {"id": "dinov2-s14-focus@322", "fingerprint": "of other weights"},
        {"id": "dinov2-b14@322", "fingerprint": of("dinov2-s14-focus/hf")},
        {"id": "somebody's own", "fingerprint": "its own"},
    ):
        assert use_current_name(record) == record


def test_a_map_made_before_is_loaded_as_hf(weights: Path) -> None:
    """It remembers the name without the rule, and the fingerprint."""
    old = load_encoder("tiny-v2/hf", weights=weights)
    for precision in ("float32", "int8"):
        assert load_encoder("tiny-v2", weights=weights, model=old.model, precision=precision).id == "tiny-v2@56/hf"
    new = load_encoder("tiny-v2", weights=weights, model="of something else")
    assert new.id == "tiny-v2@56"
    assert isinstance(new.names[old.model], EncoderId)  # type: ignore[attr-defined]
