"""A map remembers by which rule its encoder resampled positions, also one that was built when there was no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import save_file

from tests.encoders.tiny import TINY, random_weights
from tests.fakes import random_image
from tfa.encoders import load_encoder
from tfa.encoders.catalogue import CATALOGUE
from tfa.errors import BadWeights
from tfa.maps import PlaceMap
from tfa.types import EncoderOptions, HeadSpec


def test_a_map_built_before_is_asked_by_its_own_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "tiny-v2", TINY["tiny-v2"])
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    weights = tmp_path / "tiny.safetensors"
    save_file(random_weights(TINY["tiny-v2"]), weights)
    (tmp_path / "photos").mkdir()
    for seed in range(5):
        random_image(seed).save(tmp_path / f"photos/{seed}.png")
    encoder = load_encoder("tiny-v2/hf", weights=weights)
    encoder.id = "tiny-v2@56"  # as it was called when there was no other rule
    options = EncoderOptions(weights=weights)
    spec = HeadSpec(words=3)
    PlaceMap.build(tmp_path / "photos", head="paper", encoder=encoder, spec=spec, options=options).save(
        tmp_path / "t.tfa"
    )
    town = PlaceMap.load(tmp_path / "t.tfa")
    assert town.query(tmp_path / "photos/3.png", k=1)[0].image.endswith("3.png")
    assert town.encoder.id == "tiny-v2@56/hf"
    other = PlaceMap.load(tmp_path / "t.tfa", encoder=load_encoder("tiny-v2", weights=weights))
    with pytest.raises(BadWeights, match=r"with the encoder tiny-v2@56/hf, or rebuild it with --encoder tiny-v2@56$"):
        other.query(tmp_path / "photos/3.png", k=1)
