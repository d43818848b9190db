"""Black, covered and blurred photos are found by their pixels; other photos are not."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageFilter

from tests.browser.stub_answers import street
from tfa.photos.images import BLACK, BLURRED, COVERED, as_rgb, find_flaw

SIZES = [(96, 72), (322, 322), (640, 480)]


def noisy(level: np.ndarray | float, noise: float, size: tuple[int, int] = (640, 480)) -> Image.Image:
    """Gray levels with the noise of a sensor."""
    levels = np.random.default_rng(0).normal(0, noise, size[::-1]) + level
    return Image.fromarray(levels.clip(0, 255).astype(np.uint8)).convert("RGB")


@pytest.mark.parametrize("noise", [0, 3, 10])
def test_a_covered_lens_gives_a_black_photo(noise):
    assert find_flaw(noisy(0, noise)) == BLACK


def test_a_photo_of_one_color_shows_nothing():
    assert find_flaw(Image.new("RGB", (640, 480), "#c08070")) == COVERED
    assert find_flaw(noisy(120, 6)) == COVERED
    finger = 60 + 100 * np.linspace(0, 1, 640)[None] * np.ones((480, 1))
    assert find_flaw(noisy(finger, 3)) == COVERED
    assert find_flaw(Image.new("RGB", (1, 1), "white")) == COVERED


@pytest.mark.parametrize("size", SIZES)
def test_photos_that_show_something_have_no_flaw(size):
    sharp = as_rgb(street(1)).resize(size, Image.Resampling.LANCZOS)
    assert find_flaw(sharp) is None
    dark = sharp.point(lambda level: level // 8)
    assert find_flaw(dark) is None
    foggy = sharp.point(lambda level: 170 + level // 6)
    assert find_flaw(foggy) is None


def test_a_lamp_at_night_is_something():
    night = noisy(2, 2)
    night.paste((250, 240, 200), (300, 120, 340, 160))
    assert find_flaw(night) is None


@pytest.mark.parametrize("size", SIZES[1:])
def test_a_blurred_photo_is_found_at_any_size_but_the_smallest(size):
    sharp = as_rgb(street(1)).resize(size, Image.Resampling.LANCZOS)
    radius = 4 * max(size) / 322
    for stronger in (1, 2, 5):
        assert find_flaw(sharp.filter(ImageFilter.GaussianBlur(stronger * radius))) == BLURRED
    assert find_flaw(sharp.filter(ImageFilter.GaussianBlur(radius)).resize((40, 30))) is None
