"""The vocabulary benchmark on small data: times, report and output."""

import json
from dataclasses import replace

import numpy as np

from studies.speed import fit as benchmark
from tfa.core.arrays import backend_for
from tfa.core.progress import SilentProgress
from tfa.method.vocabulary import ProductThreads, fit_vocabularies

SMALL = {"patches": 300, "channels": 6, "words": 4}


def test_a_small_run_reports_time_floor_and_ratio():
    result = benchmark.run_vocabulary_benchmark(**SMALL, repeats=2)
    facts = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert {key: facts[key] for key in SMALL} == SMALL
    assert replace(result, seconds=3.0, floor=2.0).to_dict()["ratio"] == 1.5
    assert facts["patch_bytes"] == 300 * 6 * 4
    assert len(facts["iterations"]) == 3
    assert min(facts["iterations"]) >= 1
    (line,) = result.lines()
    assert (line.seconds, line.floor, line.bar.allowed) == (result.seconds, result.floor, 1.3)
    assert "three vocabularies of 4 words, 300 × 6 patches" in str(result)
    assert "products of as many iterations" in str(result)


def test_every_iteration_has_its_bare_product(monkeypatch):
    products, real = [], benchmark._product

    def counted(sample, words, threads):
        products.append(len(words))
        real(sample, words, threads)

    monkeypatch.setattr(benchmark, "_product", counted)
    sample = benchmark.synthetic_patches(300, 6)
    seconds, floor, iterations = benchmark._in_turn(sample, 4, SilentProgress())
    assert iterations == [one.iterations for one in fit_vocabularies(sample, 4, backend_for("cpu"))]
    assert products == [4 * sum(count > at for count in iterations) for at in range(max(iterations))]
    assert seconds > 0
    assert floor > 0


def test_the_bare_product_has_every_patch(monkeypatch):
    rows, real = [], np.matmul
    monkeypatch.setattr(benchmark.np, "matmul", lambda a, b, out: rows.append(len(a)) or real(a, b, out=out))
    with ProductThreads(2) as threads:
        benchmark._product(np.ones((2500, 3), np.float32), np.ones((6, 3), np.float32), threads)
    assert sum(rows) == 2500


def test_made_up_patches_are_unit_vectors_that_fade_along_the_channels():
    patches = benchmark.synthetic_patches(3000, 32)
    np.testing.assert_allclose(np.linalg.norm(patches, axis=1), 1, rtol=1e-5)
    assert (patches[:, :4] ** 2).mean() > 3 * (patches[:, -4:] ** 2).mean()
    np.testing.assert_array_equal(patches, benchmark.synthetic_patches(3000, 32))
