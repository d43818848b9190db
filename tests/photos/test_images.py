"""Which files are images, and their decoded pixels."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.awkward_photos import KINDS, awkward_photo, forms_of
from tests.fakes import random_image
from tfa.errors import BadImage, BadSpec, NoImages
from tfa.photos import images
from tfa.photos.images import (
    ALLOWED_PHOTOS,
    as_rgb,
    expand_photos,
    find_images,
    image_extensions,
    photo_paths,
    read_photo_file,
    to_array,
)


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_a_folder_is_walked_in_order(tmp_path: Path) -> None:
    touch(tmp_path, "b.JPG", "a/z.png", "a/.hidden.png", ".git/x.png", "a.jpg", "notes.txt", "a/clip.mpg", "c/d/e.webp")
    found = [path.relative_to(tmp_path).as_posix() for path in find_images(tmp_path)]
    assert found == ["a.jpg", "a/z.png", "b.JPG", "c/d/e.webp"]
    assert find_images(str(tmp_path)) == find_images(tmp_path)


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    touch(tmp_path, "photos/a.png", "far/b.png")
    os.symlink(tmp_path / "far", tmp_path / "photos/near")
    os.symlink(tmp_path / "photos", tmp_path / "far/back")
    found = [path.relative_to(tmp_path).as_posix() for path in find_images(tmp_path / "photos")]
    assert found == ["photos/a.png", "photos/near/b.png"]


def test_files_that_are_named_are_taken(tmp_path: Path) -> None:
    touch(tmp_path, "photo.upload", "more/b.png", "more/a.png")
    named = tmp_path / "photo.upload"
    assert find_images(named) == [named]
    assert find_images([named, tmp_path / "more", named]) == [
        named, tmp_path / "more/a.png", tmp_path / "more/b.png", named,
    ]  # fmt: skip


def test_nothing_to_work_on_is_an_error(tmp_path: Path) -> None:
    touch(tmp_path, "empty/notes.txt")
    for source, says in (
        (tmp_path / "none", "does not exist"),
        (tmp_path / "empty", "no images found in"),
        ([], "no image"),
    ):
        with pytest.raises(NoImages, match=says):
            find_images(source)
    with pytest.raises(NoImages, match="no images found in"):
        find_images([tmp_path / "empty"])


def test_extensions_are_those_of_pictures() -> None:
    assert {".jpg", ".jpeg", ".png", ".webp", ".tif", ".bmp", ".ppm"} <= image_extensions()
    assert not {".mpg", ".h5", ".pdf", ".eps", ".txt"} & image_extensions()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif"])
def test_exif_orientation_is_applied(orientation: int, suffix: str, tmp_path: Path) -> None:
    upright = np.zeros((32, 48, 3), np.uint8)
    upright[:16, :24] = (255, 0, 0)
    upright[:16, 24:] = (0, 255, 0)
    upright[16:, :24] = (0, 0, 255)
    stored = {  # how a camera stores the upright picture, by the definition of the tag
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1],
        5: upright.swapaxes(0, 1), 6: np.rot90(upright), 7: np.rot90(upright, 2).swapaxes(0, 1),
        8: np.rot90(upright, -1),
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"photo{suffix}"
    Image.fromarray(np.ascontiguousarray(stored)).save(path, exif=exif, **({"quality": 95} if suffix == ".jpg" else {}))
    seen = np.asarray(as_rgb(path)).astype(int)
    assert seen.shape == upright.shape
    for y, x in ((8, 12), (8, 36), (24, 12), (24, 36)):
        assert np.abs(seen[y, x] - upright[y, x]).max() < 40


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_sixteen_bits_are_scaled(suffix: str, tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 256).round().astype(np.uint16).reshape(16, 16)
    Image.fromarray(ramp).save(tmp_path / f"deep{suffix}")
    seen = np.asarray(as_rgb(tmp_path / f"deep{suffix}"))
    np.testing.assert_array_equal(seen, np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, axis=2))
    Image.fromarray(ramp // 10).save(tmp_path / f"dark{suffix}")  # a dark picture stays dark
    assert np.asarray(as_rgb(tmp_path / f"dark{suffix}")).max() == 25
    Image.fromarray(ramp // 16).save(tmp_path / f"twelve{suffix}")  # twelve bits of a sensor
    assert np.abs(np.asarray(as_rgb(tmp_path / f"twelve{suffix}")).astype(int) - seen).max() <= 1


def test_heic_photos_are_read(tmp_path: Path) -> None:
    pytest.importorskip("pillow_heif")
    assert {".heic", ".heif"} <= image_extensions()
    random_image(3, (64, 48)).save(tmp_path / "phone.heic", quality=95)
    [path] = find_images(tmp_path)
    seen = np.asarray(as_rgb(path)).astype(int)
    assert np.abs(seen - np.asarray(random_image(3, (64, 48)))).mean() < 8


def test_heic_photos_are_counted_where_they_cannot_be_read(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(images, "image_extensions", lambda: frozenset({".png"}))
    random_image(0).save(tmp_path / "a.png")
    for name in ("b.heic", "c.HEIC"):
        (tmp_path / name).write_bytes(b"\0\0\0\x18ftypheic")
    for _ in range(2):
        assert [path.name for path in find_images(tmp_path)] == ["a.png"]
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}: 2 HEIC photos are left out; to read them: pip install 'tfa-vpr[heic]'"
    ]
    with pytest.raises(BadImage, match=r"it is a HEIC photo; to read it: pip install 'tfa-vpr\[heic\]'"):
        as_rgb(tmp_path / "b.heic")


def test_floats_are_scaled_by_their_range(tmp_path: Path) -> None:
    for top, brightest in ((1.0, 255), (0.5, 128), (255.0, 255), (1000.0, 4), (1e6, 255)):
        grey = np.linspace(0, top, 64, dtype=np.float32).reshape(8, 8)
        Image.fromarray(grey).save(tmp_path / "f.tif")
        assert np.asarray(as_rgb(tmp_path / "f.tif")).max() == brightest


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "YCbCr"])
def test_every_mode_becomes_rgb(mode: str, tmp_path: Path) -> None:
    path = tmp_path / ("x.tif" if mode in ("CMYK", "YCbCr", "LA") else "x.png")
    random_image(0).convert(mode).save(path)
    image = as_rgb(path)
    assert image.mode == "RGB"
    assert image.size == (40, 30)


def test_alpha_is_dropped_not_painted(tmp_path: Path) -> None:
    picture = Image.new("RGBA", (8, 8), (10, 200, 30, 0))
    picture.save(tmp_path / "clear.png")
    assert as_rgb(tmp_path / "clear.png").getpixel((3, 3)) == (10, 200, 30)
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 10, 200, 30])
    palette.save(tmp_path / "palette.png", transparency=bytes([255, 0]))
    assert as_rgb(tmp_path / "palette.png").getpixel((3, 3)) == (10, 200, 30)


@pytest.mark.parametrize("kind", KINDS)
def test_every_form_of_a_photo_is_the_same_picture(kind: str, tmp_path: Path) -> None:
    random_image(0).save(tmp_path / "plain.png")
    path = awkward_photo(kind, tmp_path / "plain.png", tmp_path)
    expected = as_rgb(path)
    assert expected.size == (40, 30)
    for given in (*forms_of(path).values(), expected):  # and a second time changes nothing
        np.testing.assert_array_equal(np.asarray(as_rgb(given)), np.asarray(expected))
    with Image.open(path) as picture:
        before = picture.copy()
        as_rgb(picture)
        assert (picture.mode, picture.info, picture.tobytes()) == (before.mode, before.info, before.tobytes())


PIXELS = np.zeros((4, 6, 3), np.uint8)


@pytest.mark.parametrize(
    ("given", "named", "advice"),
    [
        (None, "NoneType", "pass one of these"),
        (3, "int 3", "pass one of these"),
        (io.BytesIO(b""), "BytesIO", "file.read()"),
        (bytearray(b"x"), "bytearray", "bytes(…)"),
        ([PIXELS], "list", "query_many"),
        (PIXELS / 255, "an array of float64, 4 × 6 × 3", "(array * 255).round().astype('uint8')"),
        (PIXELS.astype(int), "an array of int64, 4 × 6 × 3", "array.astype('uint8')"),
        (PIXELS[..., 0], "an array of uint8, 4 × 6", "numpy.repeat(array[..., None], 3, axis=2)"),
        (PIXELS[..., :1], "an array of uint8, 4 × 6 × 1", "numpy.repeat(array, 3, axis=2)"),
        (np.zeros((4, 6, 4), np.uint8), "an array of uint8, 4 × 6 × 4", "array[..., :3]"),
        (PIXELS.transpose(2, 0, 1), "an array of uint8, 3 × 4 × 6", "array.transpose(1, 2, 0)"),
        (PIXELS[None], "an array of uint8, 1 × 4 × 6 × 3", "one by one"),
        (PIXELS[:0], "an array of uint8, 0 × 6 × 3", "no pixels"),
        (np.zeros((4, 6, 5), np.uint8), "an array of uint8, 4 × 6 × 5", "the last axis must have three colors"),
        (np.uint8(3) * np.ones(5, np.uint8), "an array of uint8, 5", "three axes"),
    ],
)
def test_what_is_no_photo_is_refused_with_advice(given: object, named: str, advice: str) -> None:
    for take in (as_rgb, read_photo_file):
        with pytest.raises(BadSpec) as refused:
            take(given)  # type: ignore[operator]
        allowed, _, told = str(refused.value).partition(", got ")
        assert allowed == f"a photo must be {ALLOWED_PHOTOS}"
        assert told.startswith(named)
        assert advice in told


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nowhere.jpg", r"nowhere\.jpg cannot be \w+: .*; pass the path of an image file"),
        ("iVBORw0KGgo" * 500, r"^iVB.{197}… \(5,500 characters\) cannot be \w+: .*; pass the path of an image file"),
        ("a\0b.jpg", "null"),
        (b"", r"bytes cannot be \w+: it is not an image: it is empty; pass the complete file"),
    ],
)
def test_text_that_is_no_file_and_no_bytes_at_all_are_refused(given: str | bytes, message: str) -> None:
    for take in (as_rgb, read_photo_file):
        with pytest.raises(BadImage, match=message):
            take(given)  # type: ignore[operator]


def test_a_map_takes_files_where_it_names_them_and_photos_in_memory_elsewhere(tmp_path: Path) -> None:
    random_image(1).save(tmp_path / "one.png")
    content = (tmp_path / "one.png").read_bytes()
    for given in (PIXELS, content, [PIXELS], 3):
        with pytest.raises(BadSpec, match=r"got .*save the photo and pass its path"):
            find_images(given)  # type: ignore[arg-type]
    assert (
        expand_photos(tmp_path)
        == expand_photos([tmp_path])
        == expand_photos(tmp_path / "one.png")
        == [tmp_path / "one.png"]
    )
    assert expand_photos(content) == [content]
    with photo_paths([tmp_path, content, PIXELS]) as paths:
        assert paths[0] == tmp_path / "one.png"
        assert paths[1].read_bytes() == content
        np.testing.assert_array_equal(np.asarray(Image.open(paths[2])), PIXELS)
    assert not paths[2].exists()
    for wrong in ([PIXELS / 255], 3, [None]):
        with pytest.raises(BadSpec, match="a photo must be"), photo_paths(wrong):  # type: ignore[arg-type]
            pass


def jpeg() -> bytes:
    content = io.BytesIO()
    random_image(0, (200, 150)).save(content, "jpeg")
    return content.getvalue()


def bomb() -> bytes:
    """A PNG that promises 40,000 × 40,000 pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "not an image"), (b"just text", "not an image"), (jpeg()[:-2000], "truncated"), (bomb(), "179 megapixels")],
)
def test_broken_files_are_named_with_the_reason(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.jpg"
    path.write_bytes(content)
    with pytest.raises(BadImage, match=says) as caught:
        as_rgb(path)
    assert str(path) in str(caught.value)
    with pytest.raises(BadImage, match=says):
        as_rgb(content)


def test_a_missing_file_or_a_folder_is_no_image(tmp_path: Path) -> None:
    with pytest.raises(BadImage, match=r"none\.png cannot be opened: it does not exist"):
        as_rgb(tmp_path / "none.png")
    with pytest.raises(BadImage, match=str(tmp_path)):
        as_rgb(tmp_path)


def test_bytes_are_read() -> None:
    assert as_rgb(jpeg()).size == (200, 150)


def test_arrays_are_normalised_channels_first() -> None:
    image = Image.new("RGB", (10, 20), (255, 0, 51))
    array = to_array(image, (6, 4), (0.5, 0.5, 0.0), (0.5, 0.25, 0.2))
    assert array.shape == (3, 4, 6)
    assert array.dtype == np.float32
    assert array.flags.c_contiguous
    np.testing.assert_allclose(array[:, 2, 3], [1.0, -2.0, 1.0], rtol=1e-6)


def test_shrinking_does_not_alias() -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    array = to_array(Image.fromarray(stripes), (8, 8), (0, 0, 0), (1, 1, 1))
    assert np.abs(array - 0.5).max() < 0.05


@pytest.mark.parametrize("mode", ["F", "I;16"])
def test_deep_greys_are_the_same_whatever_is_widened_at_a_time(mode, monkeypatch):
    grey = np.random.default_rng(0).uniform(0, 60_000, (31, 17))
    grey = grey.astype(np.float32 if mode == "F" else np.uint16)
    picture = Image.fromarray(grey)
    whole = np.asarray(as_rgb(picture))
    assert whole.max() > 200
    monkeypatch.setattr(images, "_BLOCK", 50)
    assert np.array_equal(np.asarray(as_rgb(picture)), whole)
