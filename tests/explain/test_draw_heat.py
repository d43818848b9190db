"""Contributions laid over a photo."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from tfa.explain.draw_matches import ADDS, DIM, STRONGEST, TAKES, choose_color, overlay_heat


def test_a_cell_has_the_colour_of_its_sign_and_the_strength_of_its_size():
    photo = Image.new("RGB", (10, 10), (200, 200, 200))
    heat = np.array([[2.0, -2.0], [1.0, 0.0]])
    drawn = np.asarray(overlay_heat(photo, (20, 20), heat, 2.0), float)
    under = 200 * DIM
    for (row, column), colour, opacity in (
        ((5, 5), ADDS, STRONGEST),
        ((5, 15), TAKES, STRONGEST),
        ((15, 5), ADDS, STRONGEST / 2),
        ((15, 15), ADDS, 0.0),
    ):
        expected = opacity * np.array(colour) + (1 - opacity) * under
        np.testing.assert_allclose(drawn[row, column], expected, atol=2)


def test_the_full_colour_is_near_the_largest_contribution_and_never_zero():
    assert choose_color([np.zeros((2, 2))]) == 1.0
    assert choose_color([]) == 1.0
    many = np.r_[np.linspace(-1, 1, 999), 500.0]
    assert choose_color([many[:500], many[500:]]) == pytest.approx(1.0, abs=0.02)
    assert choose_color([np.r_[np.zeros(999), -3.0]]) == 3.0
