"""The script full_query_memory.py: peaks of small copies, and the square law that is extrapolated."""

from __future__ import annotations

import pytest

from studies import full_query_memory as study
from tfa.method import evidence, spectrum


def test_each_copy_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(evidence, "DRAWS", 3)
    assert study.main(["--sizes", "80", "120"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" images")[0] for line in lines] == ["80", "120", "27,592", "27,592"]
    assert (spectrum.LARGE, evidence._LARGEST) == (10_000, 512)  # restored


def test_a_square_law_is_extrapolated_exactly():
    found, error = study.extrapolate({n: 3 + 8e-6 * n**2 for n in (100, 200, 400)})
    assert found == pytest.approx(3 + 8e-6 * study.IMAGES**2)
    assert error == pytest.approx(0, abs=1e-9)
