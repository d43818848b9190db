"""The names of encoders: catalogue, parsing, printing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfa.encoders import CATALOGUE, EncoderId, find_encoder_card, parse_encoder
from tfa.encoders.catalogue import FACETS, MAX_SIDE, fingerprint_encoder
from tfa.errors import UnknownEncoder


def test_importing_encoders_is_light() -> None:
    heavy = {"torch", "transformers", "huggingface_hub"}
    code = f"import sys, tfa.encoders, tfa.photos.token_cache; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_cards_are_what_their_names_say() -> None:
    for name, card in CATALOGUE.items():
        assert card.name == name
        assert card.size % card.patch == 0
        assert card.width % card.heads == 0
        assert (card.hub is None) == (card.package is not None)
    assert find_encoder_card("dinov2-g14").mlp_width == 4096
    assert find_encoder_card("dinov2-s14-focus").default_layer == 7
    assert find_encoder_card("dinov3-l16").prefix == 5


@pytest.mark.parametrize(
    ("text", "printed", "layer", "facet", "grid"),
    [
        ("dinov2-b14", "dinov2-b14@322", 11, "token", (23, 23)),
        ("dinov2-b14@322/l11-token", "dinov2-b14@322", 11, "token", (23, 23)),
        ("dinov2-g14@644x476/l31-value", "dinov2-g14@644x476/l31-value", 31, "value", (34, 46)),
        ("dinov2-g14@640x480c/l31-value", "dinov2-g14@640x480c/l31-value", 31, "value", (34, 45)),
        ("dinov2-b14@322c", "dinov2-b14@322", 11, "token", (23, 23)),  # nothing to crop
        ("dinov2-b14@500c", "dinov2-b14@500c", 11, "token", (35, 35)),
        ("dinov2-l14@224/key", "dinov2-l14@224/key", 23, "key", (16, 16)),
        ("dinov3-b16", "dinov3-b16@336", 11, "token", (21, 21)),
        ("dinov2-s14-focus", "dinov2-s14-focus@322", 7, "token", (23, 23)),
        ("dinov2-s14-focus@322/l7-token", "dinov2-s14-focus@322", 7, "token", (23, 23)),
        ("dinov2-s14-focus@322/l11", "dinov2-s14-focus@322/l11", 11, "token", (23, 23)),
        ("dinov2-s14-focus/l5+7", "dinov2-s14-focus@322/l5+7", 7, "token", (23, 23)),
        ("dinov2-s14-focus@308x308/l7-query", "dinov2-s14-focus@308/query", 7, "query", (22, 22)),
    ],
)
def test_parsing(text: str, printed: str, layer: int, facet: str, grid: tuple[int, int]) -> None:
    identity = parse_encoder(text)
    assert (str(identity), identity.layer, identity.facet, identity.grid) == (printed, layer, facet, grid)
    assert identity.notes == ()


def test_the_final_norm_belongs_to_the_last_block_alone() -> None:
    assert parse_encoder("dinov2-b14").final_norm
    assert not parse_encoder("dinov2-b14/l10").final_norm
    assert not parse_encoder("dinov2-b14/value").final_norm
    assert not parse_encoder("dinov2-s14-focus").final_norm
    assert parse_encoder("dinov2-s14-focus/l11").final_norm


@pytest.mark.parametrize(
    ("asked", "size"),
    [("640x480", (644, 476)), ("1", (14, 14)), ("20", (14, 14)), ("21", (28, 28)), ("4096", (4088, 4088))],
)
def test_sizes_are_fitted_to_the_patch_grid_and_reported(asked: str, size: tuple[int, int]) -> None:
    identity = parse_encoder(f"dinov2-b14@{asked}")
    assert (identity.width, identity.height) == size
    assert len(identity.notes) == 1
    assert f"{size[0]}x{size[1]}" in identity.notes[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dinov2-b41", "did you mean 'dinov2-b14'"),
        ("dino3-b16", "did you mean 'dinov3-b16'"),
        ("", "available: dinov2-s14"),
        ("dinov2-b14@", "for example"),
        ("dinov2-b14/", "for example"),
        ("dinov2-b14@0", "1 to 4096"),
        ("dinov2-b14@9999", "1 to 4096"),
        ("dinov2-b14@3x", "640x480"),
        ("dinov2-b14@-3", "640x480"),
        ("dinov2-b14@²", "640x480"),
        ("dinov2-b14@c", "640x480"),
        ("dinov2-b14@640cx480c", "640x480"),
        ("dinov2-b14@640x13c", "640x13 is smaller than a patch of 14 pixels"),
        ("dinov2-b14/l12", "l0 to l11"),
        ("dinov2-b14/l3value", "l9-value"),
        ("dinov2-b14/l3-", "l9-value"),
        ("dinov2-b14/values", "token, query, key, value"),
        ("dinov2-b14/l3/value", "l9-value"),
        ("dinov2-b14/l7+5", "an earlier and a later block, such as l5+7"),
        ("dinov2-b14/l5+7-value", "an earlier and a later block, such as l5+7"),
    ],
)
def test_bad_names_are_explained(text: str, says: str) -> None:
    with pytest.raises(UnknownEncoder) as caught:
        parse_encoder(text)
    assert says in str(caught.value)


@st.composite
def identities(draw: st.DrawFn) -> EncoderId:
    card = CATALOGUE[draw(st.sampled_from(sorted(CATALOGUE)))]
    side = st.integers(1, MAX_SIDE // card.patch).map(lambda patches: patches * card.patch)
    layer = draw(st.integers(0, card.depth - 1))
    earlier = draw(st.none() | st.integers(0, layer - 1)) if layer else None
    facet = "token" if earlier is not None else draw(st.sampled_from(FACETS))
    return EncoderId(name=card.name, width=draw(side), height=draw(side), layer=layer, facet=facet, earlier=earlier)


@given(identities())
def test_what_is_printed_is_read_back(identity: EncoderId) -> None:
    assert parse_encoder(str(identity)) == identity


@given(st.integers(1, 4000), st.integers(1, 4000), st.sampled_from(["dinov2-b14", "dinov3-b16"]))
def test_a_cropped_size_is_its_own_identity(width: int, height: int, name: str) -> None:
    patch = parse_encoder(name).card.patch
    width, height = width + patch, height + patch - 1
    identity = parse_encoder(f"{name}@{width}x{height}c")
    assert (identity.width, identity.height) == (width // patch * patch, height // patch * patch)
    assert parse_encoder(str(identity)) == identity
    plain = parse_encoder(f"{name}@{identity.width}x{identity.height}")
    cropped = (identity.width, identity.height) != (width, height)
    assert (fingerprint_encoder(identity, "0") != fingerprint_encoder(plain, "0")) == cropped


@given(st.integers(1, 4000), st.integers(1, 4000), st.sampled_from(["dinov2-b14", "dinov3-b16"]))
def test_a_fitted_size_is_near_and_stays(width: int, height: int, name: str) -> None:
    identity = parse_encoder(f"{name}@{width}x{height}")
    patch = identity.card.patch
    for asked, given_side in ((width, identity.width), (height, identity.height)):
        assert given_side % patch == 0
        assert abs(given_side - asked) <= max(patch // 2, patch - asked)
    assert parse_encoder(str(identity)).notes == ()
    assert bool(identity.notes) == ((identity.width, identity.height) != (width, height))


@given(st.text(max_size=20))
def test_any_other_text_is_refused_politely(text: str) -> None:
    with pytest.raises(UnknownEncoder):
        parse_encoder("dinov2-b14@322/l99" + text)


@pytest.mark.parametrize(
    ("text", "depths", "printed"),
    [
        ("dinov2-s14-focus", 2, "dinov2-s14-focus@322/l5+7"),
        ("dinov2-s14-focus", "auto", "dinov2-s14-focus@322/l5+7"),
        ("dinov2-g14", 2, "dinov2-g14@322/l19+39"),
        ("dinov2-s14-focus/l4", "auto", "dinov2-s14-focus@322/l4"),  # not after half of the depth
        ("dinov2-s14-focus/value", "auto", "dinov2-s14-focus@322/value"),
        ("dinov2-s14-focus/l3+9", None, "dinov2-s14-focus@322/l3+9"),
        ("dinov2-s14-focus/l3+9", 1, "dinov2-s14-focus@322/l9"),
    ],
)
def test_the_second_block_is_at_half_of_the_depth(text, depths, printed) -> None:
    assert str(parse_encoder(text).with_depths(depths)) == printed


def test_two_depths_need_a_later_block() -> None:
    with pytest.raises(UnknownEncoder, match="a block after l5"):
        parse_encoder("dinov2-s14-focus/l4").with_depths(2)
