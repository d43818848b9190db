"""Photos are looked at before a model is loaded, and all broken ones are named."""

from __future__ import annotations

import hashlib
import io
import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.fakes import FakeEncoder, random_image
from tfa.core.progress import SilentProgress
from tfa.errors import BadImage
from tfa.maps import PlaceMap
from tfa.maps import map as map_module
from tfa.photos.images import MAX_LISTED_PHOTOS, HashedPhoto, as_rgb, check_photos, check_whole
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
    with pytest.raises(
        BadImage, match="2 of 8 photos cannot be used; fix or remove them, or skip such images with --skip-bad"
    ) as told:
        PlaceMap.build(photos)
    assert [name in str(told.value) for name in ("cut.jpg", "text.png", "0.jpg", "1.png")] == [True, True, False, False]
    assert "is truncated" in str(told.value)


def test_one_broken_photo_is_one_sentence(photos):
    (photos / "cut.jpg").unlink()
    with pytest.raises(BadImage, match=r"text\.png cannot be opened: it is not an image.*; fix or remove it, or skip"):
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


class Counts:
    """How often photo files are opened and hashed, and how many pictures are decoded."""

    def __init__(self) -> None:
        self.names: set[str] = set()  # of the photos
        self.contents: set[bytes] = set()
        self.clear()

    def watch(self, photos: list[Path]) -> None:
        self.names, self.contents = {str(path) for path in photos}, {path.read_bytes() for path in photos}
        self.clear()

    def clear(self) -> None:
        self.opened: Counter[str] = Counter()
        self.hashed: Counter[bytes] = Counter()
        self.decoded = 0


COUNTS = Counts()


def note_open(event: str, given: tuple) -> None:
    if event == "open" and COUNTS.names and str(given[0]) in COUNTS.names:
        COUNTS.opened[str(given[0])] += 1


sys.addaudithook(note_open)


@pytest.fixture
def counts(monkeypatch):
    sha256, get_decoder, file_digest = hashlib.sha256, Image._getdecoder, hashlib.file_digest

    def note_hash(content=b"", **named):
        if bytes(content) in COUNTS.contents:
            COUNTS.hashed[bytes(content)] += 1
        return sha256(content, **named)

    def note_file(file, *more, **named):
        COUNTS.hashed.update([Path(file.name).read_bytes()] if file.name in COUNTS.names else [])
        return file_digest(file, *more, **named)

    def note_decoder(*given, **named):
        COUNTS.decoded += 1
        return get_decoder(*given, **named)

    monkeypatch.setattr(hashlib, "sha256", note_hash)
    monkeypatch.setattr(hashlib, "file_digest", note_file)
    monkeypatch.setattr(Image, "_getdecoder", note_decoder)
    yield COUNTS
    COUNTS.watch([])


def make_photos(folder: Path, seeds: range) -> list[Path]:
    """Photos in JPEG and in PNG, some with a position."""
    folder.mkdir()
    for seed in seeds:
        name = f"@{seed}@0@.jpg" if seed % 3 == 0 else f"{seed:02d}.{'png' if seed % 2 else 'jpg'}"
        random_image(seed, (90, 60)).save(folder / name)
    return sorted(folder.iterdir())


@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_new_photo_is_decoded_once_and_hashed_once(tmp_path, monkeypatch, counts, skip_bad):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    town, more, camera = (
        make_photos(tmp_path / name, range(start, start + 12))
        for name, start in (("town", 0), ("more", 100), ("camera", 200))
    )
    options = EncoderOptions(skip_bad=skip_bad)

    def check(photos: list[Path], most_opened: int) -> None:
        assert counts.decoded == len(photos)
        assert set(counts.hashed.values()) == {1}
        assert len(counts.hashed) == len(counts.opened) == len(photos)
        assert max(counts.opened.values()) <= most_opened

    counts.watch(town)
    built = PlaceMap.build(town, encoder=FakeEncoder(), options=options, head="second-order")
    check(town, most_opened=3)  # for its position, for its hash, and for its pixels
    counts.watch(more)
    built.add(more)
    check(more, most_opened=3)
    counts.watch(camera)
    built.calibrate(camera)
    check(camera, most_opened=2)
    [query] = make_photos(tmp_path / "queries", range(301, 302))
    counts.watch([query])
    built.query(query)
    assert (counts.decoded, max(counts.opened.values())) == (1, 1)
    counts.watch(town)
    PlaceMap.build(town, encoder=FakeEncoder(), options=options, head="second-order")
    assert counts.decoded == 0  # the tokens are in the cache


def test_photos_drawn_for_a_calibration_are_decoded_once_and_broken_ones_replaced(tmp_path, monkeypatch, counts):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    town, camera = make_photos(tmp_path / "town", range(12)), make_photos(tmp_path / "camera", range(200, 230))
    built = PlaceMap.build(town, encoder=FakeEncoder(), head="second-order")
    first = camera[np.random.default_rng(0).permutation(len(camera))[0]]
    first.write_bytes(make_bad_bitmap())
    counts.watch(camera)
    report = built.calibrate(camera, budget=9, skip_bad=True)
    assert (report.used, [name for name, _ in report.skipped]) == (9, [str(first)])
    assert (counts.decoded, set(counts.hashed.values())) == (10, {1})
    assert len(counts.opened) == 10


def make_bad_bitmap() -> bytes:
    """A photo that is found to be cut only when it is decoded: its format has no checksums and no end."""
    written = io.BytesIO()
    random_image(0, (90, 60)).save(written, "BMP")
    return written.getvalue()[:-500]


def test_a_file_with_a_damaged_container_is_used_if_it_can_be_decoded(tmp_path, counts):
    path = tmp_path / "a.png"
    random_image(0, (90, 60)).save(path)
    content = bytearray(path.read_bytes())
    content[-13] ^= 1  # the checksum of the pixels, which decoding does not compare
    path.write_bytes(content)
    assert as_rgb(path).size == (90, 60)
    counts.watch([path])
    assert list(check_photos([path], (), SilentProgress())) == [path]
    assert counts.decoded == 1


def test_a_changed_photo_is_refused_and_a_touched_one_is_not(tmp_path):
    path = tmp_path / "a.png"
    random_image(0, (9, 6)).save(path)
    photo, content = HashedPhoto.read(path)
    os.utime(path, ns=(1, 1))
    assert photo.read_again() == content
    random_image(1, (9, 6)).save(path)
    with pytest.raises(BadImage, match="changed while it was being read"):
        photo.read_again()


def test_a_list_of_broken_photos_ends(tmp_path):
    files = [tmp_path / f"{number}.jpg" for number in range(MAX_LISTED_PHOTOS + 5)]
    with pytest.raises(BadImage, match="25 of 25 photos cannot be used") as told:
        check_photos(files, (), SilentProgress())
    assert told.value.lines[-1] == "… and 5 more"
    assert len(told.value.lines) == MAX_LISTED_PHOTOS + 2
