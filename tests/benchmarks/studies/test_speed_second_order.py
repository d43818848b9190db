"""The benchmarks of second-order fits, of their growth, of their queries and of their maps, in small."""

import json
import math

import numpy as np
import pytest
import torch

from studies.speed import peers, second_order
from studies.speed.fit import synthetic_tokens
from studies.speed.growth import SecondOrderGrowth, SpaceSize, head_of, made_descriptors, run_second_order_growth
from studies.speed.query import ALLOWED_BYTES, SECOND_ORDER, MapSize, run_map_size_benchmark
from studies.speed.second_order import (
    JUDGED,
    PAPER,
    SECOND,
    JudgedQuery,
    StageClock,
    run_default_benchmark,
    run_second_order_benchmark,
    timed_beside_paper,
)
from studies.speed.synthetic import second_order_head, synthetic_spaces, synthetic_state
from tfa.core.arrays import Spill
from tfa.errors import BadSpec
from tfa.maps import PlaceMap
from tfa.maps.storage import MemoryStorage
from tfa.method.carriers import CARRIER_KERNELS

TINY = {"images": 20, "grid": (4, 4), "channels": 6, "target": 16, "words": 4}


def facts_of(result):
    return json.loads(json.dumps(result.to_dict(), allow_nan=False))


@pytest.mark.filterwarnings("ignore::tfa.errors.FewPhotos")
def test_second_order_and_judged_fits_beside_the_papers(monkeypatch):
    monkeypatch.setattr(peers, "library", lambda name: None)
    result = run_second_order_benchmark(**TINY)
    facts = facts_of(result)
    assert set(facts["seconds"]) == {PAPER, SECOND, JUDGED}
    assert list(facts["stages"]) == ["directions", "descriptors", "spectra", "head"]
    assert 0 < sum(facts["stages"].values()) <= 1.01 * facts["seconds"][SECOND]
    assert facts["judged"].split("/")[0] in ("second_order", "hard", "soft")
    lines = result.lines()
    assert lines[0].ratio == pytest.approx(result.seconds[SECOND] / result.seconds[PAPER])
    assert [(line.bar.allowed, line.ratio is None) for line in lines if line.bar] == [
        (0.4, False),
        (0.35, True),
        (1.3, False),
        (1.0, False),
    ]
    assert lines[1].note == peers.INSTALL
    assert lines[-1].ratio == pytest.approx(result.calibration_seconds / 3)
    assert "16 patches × 6 channels" in str(result)
    with pytest.raises(BadSpec, match="target=3"):
        run_second_order_benchmark(images=20, target=3)


@pytest.mark.filterwarnings("ignore::tfa.errors.FewPhotos")
def test_anylocs_build_is_both_of_its_parts(monkeypatch):
    monkeypatch.setattr(peers, "library", lambda name: object())
    monkeypatch.setattr(peers, "anyloc_words", lambda kmeans, patches, words: (patches[:words], 1))
    described = []
    monkeypatch.setattr(peers, "anyloc_descriptors", lambda images, centers, reuse: described.append(len(images)))
    result = run_second_order_benchmark(**TINY)
    parts = [result.seconds[second_order.WORDS], result.seconds[second_order.RESIDUALS]]
    assert result.anyloc_seconds == pytest.approx(sum(parts))
    assert result.lines()[1].ratio == pytest.approx(result.seconds[SECOND] / sum(parts))
    assert described == [12, 20]  # warm-up, then all


@pytest.mark.parametrize("installed", [False, True])
def test_the_default_map_beside_anyloc(installed, monkeypatch):
    """Fit, query and size come with a ratio each, with AnyLoc's k-means library and without it."""
    monkeypatch.setattr(peers, "library", lambda name: object() if installed else None)
    monkeypatch.setattr(peers, "anyloc_words", lambda library, unit, words: (torch.from_numpy(unit[:words].copy()), 1))
    result = run_default_benchmark(images=20, grid=(4, 4), channels=6, words=4)
    facts = facts_of(result)
    assert (facts["kmeans"] == "fast_pytorch_kmeans") == installed
    assert list(facts["stages"]) == ["directions", "descriptors", "spectra", "head"]
    fit, query, bare, whole = [line for line in result.lines() if line.ratio is not None]
    assert fit.ratio == pytest.approx(result.fit_seconds / result.anyloc_seconds)
    assert query.ratio == pytest.approx(result.query_seconds / result.anyloc_query_seconds)
    assert bare.ratio == pytest.approx(20 * 4 * 4 * 6 / result.map_bytes)
    assert whole.disk_bytes > bare.disk_bytes > 0
    with pytest.raises(BadSpec, match="images=3"):
        run_default_benchmark(images=3)


def test_a_stage_is_all_the_time_since_the_last_one():
    clock = StageClock()
    with clock.task("descriptors", 3):
        pass
    clock.stage("head")
    assert list(clock.seconds) == ["directions", "descriptors", "head"]
    assert all(seconds >= 0 for seconds in clock.seconds.values())


def test_growth_tells_time_memory_and_exponent():
    result = run_second_order_growth(sizes=(40, 20, 60), directions=8)
    facts = facts_of(result)
    assert [(size["images"], size["form"]) for size in facts["sizes"]] == [
        (20, "dual"),
        (40, "covariance"),
        (60, "covariance"),
    ]
    assert [size["rank"] for size in facts["sizes"]] == [19, 36, 36]
    assert facts["sizes"][0]["descriptor_bytes"] == 20 * 36 * 4
    assert "N^" in str(result)
    sizes = tuple(SpaceSize(n, "covariance", 9, s, None, 4) for n, s in ((30, 1.0), (40, 4.0), (80, 8.0)))
    by_hand = SecondOrderGrowth(8, 1, sizes, "x")
    assert [value for _, _, value in by_hand.exponents] == pytest.approx([math.log(4) / math.log(4 / 3), 1.0])
    assert [line.met for line in by_hand.lines()[3:]] == [None, True]  # the first is from 30 images on: dual
    with pytest.raises(BadSpec, match="at least 3"):
        run_second_order_growth(sizes=(2,))


def test_made_descriptors_are_unit_rows_and_spilled():
    rows = made_descriptors(30, 36, Spill(0))
    assert isinstance(rows, np.memmap)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    space, scorer = head_of(np.asarray(rows), np.eye(8))
    assert len(space) == len(scorer.bias) == 30
    assert [term.gamma for term in scorer.terms] == [None, "mean", 0.625]


@pytest.mark.parametrize("carrier", CARRIER_KERNELS)
@pytest.mark.parametrize("storage", ["int7", "float16"])
def test_made_up_second_order_maps_answer(carrier, storage, tmp_path):
    spaces = synthetic_spaces(40, 16, storage)
    head = second_order_head(spaces, carrier)
    tokens = synthetic_tokens(3, 9, 16)
    scores = head.scorer.scores(tokens)
    assert np.isfinite(scores).all()
    assert scores.std() > 0
    PlaceMap(MemoryStorage(synthetic_state(head, spaces=spaces))).save(tmp_path / "made.tfa")
    again = PlaceMap.load(tmp_path / "made.tfa").state.head
    np.testing.assert_array_equal(again.scorer.scores(tokens), scores)


def test_a_query_is_timed_beside_the_papers_head():
    result = timed_beside_paper(30, synthetic_tokens(2, 9, 16), 4, 2)
    assert set(result.paper_seconds) == {"original", "partial", "adaptive"}
    assert result.describe_seconds > 0
    by_hand = JudgedQuery(30, "tempered", 3.0, 2.0, {"original": 4.0, "partial": 5.0, "adaptive": 6.0})
    assert [line.ratio for line in by_hand.lines()] == pytest.approx([0.75, 0.6, 0.5])
    assert [line.met for line in by_hand.lines()] == [None, None, True]


def test_second_order_maps_are_weighed():
    result = run_map_size_benchmark(sizes=(), second_order_sizes=(40,), words=4, channels=16)
    sizes = {size.storage: size.bytes_per_image for size in result.sizes}
    assert sizes["int7"] < sizes["float16"] < sizes["float32"]
    assert all(line.bar is None for line in result.lines())  # of so small a map nothing is required
    for images, allowed in ALLOWED_BYTES.items():
        size = MapSize(SECOND_ORDER, "int7", images, allowed * images, 98_304)
        assert size.bar.met(size.ratio * 1.001)
        assert not size.bar.met(size.ratio * 0.99)
