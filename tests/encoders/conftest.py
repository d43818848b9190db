from __future__ import annotations

import pytest

from tests.encoders.tiny import TINY
from tfa.encoders.catalogue import CATALOGUE


@pytest.fixture(autouse=True)
def tiny_cards(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """The tiny encoders are in the catalogue, and nothing touches the user's cache."""
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    for name, card in TINY.items():
        monkeypatch.setitem(CATALOGUE, name, card)
