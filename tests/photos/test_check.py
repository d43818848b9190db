"""Photos are looked at before a model is loaded, and all broken ones are named."""

from __future__ import annotations

import pytest

from tests.fakes import FakeEncoder, random_image
from tfa.core.files import hash_file
from tfa.core.progress import SilentProgress
from tfa.errors import BadImage
from tfa.maps import PlaceMap
from tfa.maps import map as map_module
from tfa.photos.images import MAX_LISTED_PHOTOS, as_rgb, check_photos, check_whole
from tfa.photos.token_cache import TokenCache
from tfa.types import EncoderOptions


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Six whole photos, one cut, one that is text."""
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(6):
        random_image(number, (400, 300)).save(folder / f"{number}.{'png' if number % 2 else 'jpg'}")
    whole = (folder / "0.jpg").read_bytes()
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "text.png").write_text("no picture")
    return folder


def test_a_small_or_narrow_photo_is_whole(tmp_path):
    for size in ((4, 4), (1, 300), (7, 9)):
        random_image(0, size).save(tmp_path / "small.jpg")
        check_whole(tmp_path / "small.jpg")
        assert as_rgb(tmp_path / "small.jpg").size == size


def never(*_given, **_named):
    raise AssertionError("the model was loaded")


def test_all_broken_photos_are_named_before_the_model_is_loaded(photos, monkeypatch):
    monkeypatch.setattr(map_module, "load_encoder", never)
    with pytest.raises(BadImage, match="2 of 8 photos cannot be used; fix or remove them, or use --skip-bad") as told:
        PlaceMap.build(photos)
    assert [name in str(told.value) for name in ("cut.jpg", "text.png", "0.jpg", "1.png")] == [True, True, False, False]
    assert "is truncated" in str(told.value)


def test_one_broken_photo_is_one_sentence(photos):
    (photos / "cut.jpg").unlink()
    with pytest.raises(BadImage, match=r"text\.png cannot be opened: it is not an image.*; fix or remove it, or use"):
        check_photos(sorted(photos.iterdir()), (), SilentProgress())


def test_those_that_are_left_out_need_no_look(photos):
    built = PlaceMap.build(photos, encoder=FakeEncoder(), options=EncoderOptions(skip_bad=True), head="second-order")
    assert len(built.images) == 6


def test_a_photo_whose_tokens_are_there_is_not_decoded_again(photos, monkeypatch):
    whole = sorted(photos.glob("[0-9]*"))
    TokenCache().encode(whole, FakeEncoder())
    known = TokenCache().encoded_before()
    assert len(known) == 6
    monkeypatch.setattr("tfa.photos.images.check_whole", never)
    check_photos(whole, known, SilentProgress())


def test_a_photo_is_hashed_once_before_it_is_encoded(photos, monkeypatch):
    (photos / "broken.jpg").unlink(missing_ok=True)
    whole, hashed = sorted(photos.glob("[0-9]*")), []
    for module in ("tfa.photos.images", "tfa.photos.token_cache"):
        monkeypatch.setattr(f"{module}.hash_file", lambda path: (hashed.append(path), hash_file(path))[1])
    PlaceMap.build(whole, encoder=FakeEncoder(), head="second-order")
    assert sorted(hashed) == whole


def test_a_list_of_broken_photos_ends(tmp_path):
    files = [tmp_path / f"{number}.jpg" for number in range(MAX_LISTED_PHOTOS + 5)]
    with pytest.raises(BadImage, match="25 of 25 photos cannot be used") as told:
        check_photos(files, (), SilentProgress())
    assert told.value.lines[-1] == "… and 5 more"
    assert len(told.value.lines) == MAX_LISTED_PHOTOS + 2
