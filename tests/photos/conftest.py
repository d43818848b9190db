"""Photos, and a token cache whose files hold few of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import tfa.photos.token_cache
from tests.fakes import random_image


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tfa.photos.token_cache, "SHARD_IMAGES", 4)


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "photos"
    folder.mkdir()
    for index in range(10):
        random_image(index).save(folder / f"{index}.png")
    return sorted(folder.iterdir())


def shards(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache/tokens").rglob("*.safetensors"))
