"""Bytes per image of a second-order map, without patches."""

import hashlib

import numpy as np
import pytest

from studies.speed.synthetic import DECISIONS, EVIDENCE
from tests.maps.conftest import reopened
from tfa.maps.folder import writer
from tfa.maps.state import DATABASE, MapState, NamedHead
from tfa.maps.stored_head import StoredHead, StoredSpace, StoredSpaces, rebuild_rows
from tfa.method.carriers import SIGMAS, TEMPERED
from tfa.method.decisions import SpectralStrengths
from tfa.method.evidence import Mask
from tfa.method.scorer import Scorer, ScoreTerm, SecondOrderSide
from tfa.search.gallery import Gallery
from tfa.search.quantized import ROW_TOP, SEVEN_TOP, QuantizedRows
from tfa.types import HeadSpec, ImageRecord

CHANNELS, DIRECTIONS = 384, 128
WIDTH = DIRECTIONS * (DIRECTIONS + 1) // 2


def made_up(images: int, rank: int) -> MapState:
    """A second-order map of the default encoder's size, its numbers drawn."""
    rng = np.random.default_rng(0)

    def rows(count: int, width: int, top: int) -> QuantizedRows:
        levels = rng.integers(-top, top + 1, (count, width), np.int8)
        return QuantizedRows(levels, np.full(count, 0.01, np.float32), width, top)

    directions, mean = rng.normal(size=(DIRECTIONS, CHANNELS)), rng.normal(size=WIDTH)
    side = SecondOrderSide(
        directions.astype(np.float32), mean.astype(np.float32), rows(rank, WIDTH, SEVEN_TOP), np.linspace(1, 0.01, rank)
    )
    pseudo = np.arange(min(images, 1000))
    lengths = np.ones(images, np.float32)
    space = StoredSpace(side, Gallery.of(rows(images, rank, ROW_TOP)), lengths, pseudo, Mask(pseudo, pseudo))
    thirds = dict.fromkeys(SIGMAS, (1.0, 1.0, 1.0))
    spaces = StoredSpaces((space,), SpectralStrengths.of([0.5] * 3, [9.0] * 3, [0.5] * 3), thirds, "int7")
    terms = tuple(
        ScoreTerm(1.0, 0, gamma, Gallery.of(np.empty((0, 1), np.float32))) for gamma in (None, "mean", TEMPERED)
    )
    scorer = rebuild_rows(Scorer((side,), terms, np.zeros(images)), spaces)
    head = NamedHead(
        DATABASE, StoredHead(scorer, "int7"), DECISIONS["second-order"], EVIDENCE["second-order"], "database", 0
    )
    digests = [hashlib.sha256(number.to_bytes(8, "little")).hexdigest() for number in range(images)]
    records = [
        ImageRecord(id=n, path=f"/photos/of/a/town/{n:08d}.jpg", digest=digest, fitted=True)
        for n, digest in enumerate(digests)
    ]
    facts = {"id": "made-up", "fingerprint": "0" * 64, "channels": CHANNELS, "global_channels": None}
    facts |= {"grid": [23, 23], "weights": None}
    root, spec = "/photos/of/a/town", HeadSpec().to_dict()
    return MapState(facts, spec, (head,), records, None, "second-order", spaces, photo_root=root, next_id=images)


@pytest.mark.parametrize(
    ("images", "rank", "most"), [(607, 606, 9500), pytest.param(20_000, 2048, 5000, marks=pytest.mark.slow)]
)
def test_rows_are_small(images, rank, most, tmp_path):
    state = writer.write_new(tmp_path / "m.tfa", made_up(images, rank), overwrite=False)
    size = sum(entry["bytes"] for entry in state.files) + (tmp_path / "m.tfa" / "map.json").stat().st_size
    assert most / 2 < size / images < most
    opened = reopened(tmp_path / "m.tfa")
    row = opened.state.head.scorer.terms[-1].gallery.take([images - 1])
    np.testing.assert_array_equal(row, state.head.scorer.terms[-1].gallery.take([images - 1]))
