"""The peers of the speed benchmark are correct, timed alike, and optional."""

from __future__ import annotations

import json

import numpy as np
import pytest

from studies.speed import peers
from studies.speed.fit import synthetic_tokens
from studies.speed.measure import measure, measure_in_turn, resident, same_threads, thread_count
from tfa.core.arrays import l2_normalize
from tfa.errors import BadSpec
from tfa_bench.heads.peers.anyloc import vlad

SMALL = {"images": 12, "patches": 16, "channels": 8, "words": 4}
RNG = np.random.default_rng(0)


def test_a_small_run_reports_every_row():
    pytest.importorskip("fast_pytorch_kmeans")
    pytest.importorskip("faiss")
    pytest.importorskip("sklearn")
    result = peers.run_peers_benchmark(**SMALL, threads=1)
    facts = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert {key: facts[key] for key in SMALL} == SMALL
    rows = {row["what"]: row for row in facts["rows"]}
    assert list(rows) == list(peers.ROWS)
    build = rows[peers.WORDS]["seconds"] + rows[peers.RESIDUALS]["seconds"]
    assert rows[peers.BUILD]["seconds"] == pytest.approx(build)
    assert facts["ratio"] == pytest.approx(rows[peers.FIT]["seconds"] / build)
    assert all(row["of_build"] == pytest.approx(row["seconds"] / build) for row in rows.values())
    own, other = rows[peers.OWN_ALL], rows[peers.FAISS_ALL]
    assert own["of_peer"] == pytest.approx(own["seconds"] / other["seconds"])
    assert facts["same_answers"] > 0.99  # made-up images are far apart
    assert facts["anyloc_iterations"] >= 1
    assert peers.SKLEARN in str(result)


def test_the_fit_is_held_against_the_build_and_a_search_against_its_peer():
    pytest.importorskip("fast_pytorch_kmeans")
    pytest.importorskip("faiss")
    result = peers.run_peers_benchmark(**SMALL)
    lines = {line.what: line for line in result.lines()}
    fit, build = lines[peers.FIT], lines[peers.BUILD]
    assert (fit.floor, fit.ratio) == (pytest.approx(build.seconds), pytest.approx(fit.seconds / build.seconds))
    assert fit.met is (fit.ratio <= 0.5)
    assert lines[peers.OWN_ONE].floor == pytest.approx(lines[peers.FAISS_ONE].seconds)
    assert lines[peers.FAISS_ONE].ratio is None
    assert [line.what for line in lines.values() if line.bar is not None] == [peers.FIT]
    kinder = lines[peers.KINDER].seconds
    assert lines[peers.FIT_KINDER].ratio == pytest.approx(fit.seconds / kinder)


def test_libraries_that_are_not_installed_are_rows_and_no_errors(monkeypatch):
    monkeypatch.setattr(peers, "library", lambda name: None)
    result = peers.run_peers_benchmark(**SMALL)
    missing = [row.what for row in result.rows if row.seconds is None]
    ours = {peers.FIT, *(name for name in peers.PEER_OF if name != peers.FIT_KINDER)}
    assert missing == [name for name in peers.ROWS if name not in ours]
    assert {row.note for row in result.rows if row.seconds is None} == {"not installed: pip install 'tfa-bench[peers]'"}
    assert (result.ratio, result.same_answers, result.anyloc_iterations) == (None, None, None)
    assert all(line.met is None for line in result.lines())
    assert f"{peers.SKLEARN:<48}not installed" in str(result)


def test_a_library_that_is_not_there_is_none():
    assert peers.library("no_such_library_as_this") is None
    assert peers.library("json") is json


def test_one_image_is_refused():
    with pytest.raises(BadSpec, match="1 images; at least 2 are needed"):
        peers.run_peers_benchmark(**{**SMALL, "images": 1})


def test_anylocs_residuals_are_those_of_our_head():
    torch = pytest.importorskip("torch")
    images = [l2_normalize(RNG.normal(size=(20, 8)).astype(np.float32)) for _ in range(3)]
    centers = (0.6 * l2_normalize(RNG.normal(size=(5, 8)))).astype(np.float32)
    centers[4] = [-9, 0, 0, 0, 0, 0, 0, 0]  # not a unit vector, and few choose it
    images.append(images[0][:7])
    expected = [vlad(image, centers) for image in images]
    for reuse in (False, True):
        described = peers.anyloc_descriptors(images, torch.from_numpy(centers), reuse=reuse)
        np.testing.assert_allclose(described, expected, atol=2e-6)


def test_anylocs_words_repeat_and_leave_torchs_generator_alone(capsys):
    kmeans = pytest.importorskip("fast_pytorch_kmeans")
    torch = pytest.importorskip("torch")
    patches = l2_normalize(RNG.normal(size=(200, 8)).astype(np.float32))
    before = torch.random.get_rng_state()
    first, iterations = peers.anyloc_words(kmeans, patches, 4)
    again, _ = peers.anyloc_words(kmeans, patches, 4)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first, again)
    assert 1 <= iterations <= 100
    labels = (patches @ l2_normalize(first.numpy()).T).argmax(axis=1)
    means = np.stack([patches[labels == word].mean(axis=0) for word in range(4)])
    np.testing.assert_allclose(first.numpy(), means, atol=0.05)  # it stops when centres move by less than 1e-4
    assert capsys.readouterr().out == ""


def test_faiss_words_are_unit_and_of_all_patches():
    faiss = pytest.importorskip("faiss")
    patches = l2_normalize(RNG.normal(size=(300, 8)).astype(np.float32))
    words = peers.faiss_words(faiss, patches, 4)
    np.testing.assert_allclose(np.linalg.norm(words, axis=1), 1, atol=1e-5)


def test_both_searches_give_the_exhaustive_answer():
    descriptors = l2_normalize(RNG.normal(size=(40, 12)).astype(np.float32))
    expected = np.argsort(-(descriptors @ descriptors.T), axis=1)[:, :10]
    np.testing.assert_array_equal(peers.tfa_search(descriptors)(descriptors), expected)
    np.testing.assert_array_equal(peers.tfa_search(descriptors)(descriptors[:1]), expected[:1])
    faiss = pytest.importorskip("faiss")
    np.testing.assert_array_equal(peers.faiss_search(faiss, descriptors, 10)(descriptors), expected)


def test_both_whitenings_give_the_same_products():
    decomposition = pytest.importorskip("sklearn.decomposition")
    rows = RNG.normal(size=(20, 60)).astype(np.float32)
    own, other = peers.tfa_whitened(rows), peers.sklearn_whitened(decomposition, rows)
    assert own.shape == other.shape == (20, 19)
    np.testing.assert_allclose(own @ own.T, other @ other.T, atol=1e-4)


def test_photos_are_used_where_they_are_given(monkeypatch):
    monkeypatch.setattr(peers, "library", lambda name: None)
    monkeypatch.setattr(peers, "tokens_of_photos", lambda photos, progress: synthetic_tokens(5, 9, 6))
    result = peers.run_peers_benchmark(words=4, photos="photos")
    assert (result.images, result.patches, result.channels) == (5, 9, 6)


def test_a_measurement_tells_time_memory_and_result():
    # More than malloc ever keeps to give again (32 MiB): memory this process already holds would not count.
    made = measure(lambda: np.ones(16_000_000), repeats=2)
    assert made.result.shape == (16_000_000,)
    assert made.seconds > 0
    if made.peak_bytes is None:
        pytest.skip("this system does not tell the peak of memory")
    assert 100_000_000 < made.peak_bytes < 160_000_000
    assert resident("VmRSS") > 128_000_000


def test_calls_are_measured_in_turn():
    order = []
    found = measure_in_turn({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert order == ["a", "b", "a", "b"]
    assert list(found) == ["a", "b"]


def test_threads_are_as_they_were_afterwards():
    torch = pytest.importorskip("torch")

    class Library:
        threads = 7

        def omp_get_max_threads(self):
            return self.threads

        def omp_set_num_threads(self, count):
            self.threads = count

    library, before = Library(), (torch.get_num_threads(), thread_count())
    with same_threads(1, library, None):
        assert (torch.get_num_threads(), library.threads) == (1, 1)
    assert (torch.get_num_threads(), thread_count()) == before
    assert library.threads == 7
