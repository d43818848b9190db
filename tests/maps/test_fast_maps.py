"""Maps built with and without --fast answer queries of both kinds, and tokens are never mixed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import FakeEncoder, random_image
from tfa.core.files import hash_json
from tfa.errors import BadWeights
from tfa.maps import PlaceMap
from tfa.photos.token_cache import TokenCache
from tfa.types import EncoderOptions, HeadSpec


class OtherArithmetic(FakeEncoder):
    """The fake encoder, as if it rounded in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.fingerprint = hash_json("other arithmetic")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    for seed in range(6):
        random_image(seed).save(tmp_path / f"photos/{seed}.png")
    return tmp_path / "photos"


@pytest.mark.parametrize(("made", "asked"), [(FakeEncoder, OtherArithmetic), (OtherArithmetic, FakeEncoder)])
def test_a_map_is_asked_and_refitted_in_the_other_arithmetic(made, asked, photos: Path, tmp_path: Path) -> None:
    cache = TokenCache(tmp_path / "tokens")
    PlaceMap.build(
        photos, head="paper", encoder=made(), spec=HeadSpec(words=3), options=EncoderOptions(cache=cache)
    ).save(tmp_path / "town.tfa")
    town = PlaceMap.load(tmp_path / "town.tfa", encoder=asked())
    town.cache = cache
    assert town.state.encoder["fingerprint"] == asked().model == made().model
    assert town.query(photos / "3.png", k=1)[0].image.endswith("3.png")
    town.refit()
    digests = [image.digest for image in town.images]
    # float32 tokens are taken where they are there; else all are made in the arithmetic that is asked with.
    assert cache.missing(FakeEncoder().fingerprint, digests) == []


def test_a_map_in_integers_is_refitted_from_its_own_tokens(photos: Path, tmp_path: Path) -> None:
    cache, encoder = TokenCache(tmp_path / "tokens"), OtherArithmetic()
    town = PlaceMap.build(
        photos, head="paper", encoder=encoder, spec=HeadSpec(words=3), options=EncoderOptions(cache=cache)
    )
    for photo in photos.iterdir():
        photo.unlink()
    town.refit()
    assert encoder.encoded == 6


def test_another_model_is_still_refused(photos: Path, tmp_path: Path) -> None:
    cache = TokenCache(tmp_path / "tokens")
    PlaceMap.build(
        photos, head="paper", encoder=FakeEncoder(), spec=HeadSpec(words=3), options=EncoderOptions(cache=cache)
    ).save(tmp_path / "town.tfa")
    town = PlaceMap.load(tmp_path / "town.tfa", encoder=FakeEncoder(salt="other weights"))
    with pytest.raises(BadWeights, match="other weights"):
        town.query(photos / "3.png")
