"""The script full_query_memory.py: peaks of small copies, and the square law that is extrapolated."""

from __future__ import annotations

import pytest

from studies import full_query_memory as study
from tfa.core import arrays
from tfa.method import evidence, spectrum


def test_each_copy_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(evidence, "DRAWS", 3)
    assert study.main(["--sizes", "80", "120"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" images")[0] for line in lines] == ["80", "120", "27,592", "27,592"]
    assert (spectrum.LARGE, evidence._LARGEST, arrays.SPILL_BYTES) == (10_000, 512, 4 << 20)  # restored


@pytest.mark.slow
def test_all_queries_of_nordland_fit_into_8_gb(monkeypatch):
    monkeypatch.setattr(evidence, "DRAWS", 3)  # one after the other, so the peak does not depend on their number
    study.measure(60)  # load modules
    measured = {images: study.measure(images) for images in (400, 800, 1200)}
    fit, error = study.extrapolate({images: peaks["fit"] for images, peaks in measured.items()})
    gram = 8e-6 * study.IMAGES**2  # MB of the Gram matrix in float64
    assert gram < fit < 8_000
    assert error < 0.02
    assert study.extrapolate({images: peaks["calibrate"] for images, peaks in measured.items()})[0] < 8_000


def test_a_square_law_is_extrapolated_exactly():
    found, error = study.extrapolate({n: 3 + 8e-6 * n**2 for n in (100, 200, 400)})
    assert found == pytest.approx(3 + 8e-6 * study.IMAGES**2)
    assert error == pytest.approx(0, abs=1e-9)
