"""Pseudo-query scores in one pass agree with row-by-row scores and with the plain formulas."""

import dataclasses

import numpy as np
import pytest

from tests.worlds import world
from tfa.core.arrays import Spill, backend_for, l2_normalize
from tfa.method import pseudo_queries as pseudo_scores
from tfa.method.branch import DatabaseSplit, fit_branch
from tfa.method.carriers import CARRIER_KERNELS, PAPER_CARRIERS, carrier_terms
from tfa.method.pseudo_queries import every_cosine, every_score, pseudo_facts, pseudo_tops, score_pseudo_queries
from tfa.method.residuals import describe_residuals
from tfa.pipeline import fit
from tfa.reference import database as reference
from tfa.search.gallery import find_duplicates
from tfa.types import HeadSpec
from tfa_bench.heads.admission import global_similarities

WHOLE = HeadSpec(words=5)
SPECS = {
    "every image asks": WHOLE,
    "some directions are left out": HeadSpec(words=5, max_rank=7),
    "some images ask": HeadSpec(words=5, max_pseudo=13),
    "the PCA is sampled": HeadSpec(words=5, max_pca=20, pca_sample=16, max_pseudo=12),
}


def branch_of(spec, assignment="hard", images=30, device="cpu", tokens=None):
    tokens = tokens or world(images, noise=0.4)
    centers = reference.l2(np.random.default_rng(0).normal(size=(spec.words, 6)))
    described = describe_residuals(tokens, [centers], [assignment], 0.01, backend_for("cpu"), dtype="float64")[
        assignment, 0
    ]
    split = DatabaseSplit.of(len(tokens), spec)
    return fit_branch(assignment, 0, centers, described, split, spec, backend_for(device), Spill())


@pytest.mark.parametrize("device", ["cpu", "torch"])
@pytest.mark.parametrize("carrier", CARRIER_KERNELS)
@pytest.mark.parametrize("case", SPECS)
def test_all_rows_at_once_are_the_rows_one_by_one(case, carrier, device, monkeypatch):
    monkeypatch.setattr(pseudo_scores, "_GALLERY_BLOCK", 7)
    backend = backend_for(device)
    branch, terms = branch_of(SPECS[case], device=device), carrier_terms(carrier, 0.6, 0.4)
    count = len(branch.split.pseudo)
    expected = np.concatenate([score_pseudo_queries(branch, terms, backend)(i, i + 1) for i in range(count)])
    block = every_score(branch, terms, backend)
    np.testing.assert_allclose(block(0, count), expected, atol=1e-12)
    np.testing.assert_array_equal(block(3, 9), block(0, count)[3:9])
    block(0, count)[:] = 0  # a block is the caller's
    np.testing.assert_allclose(block(0, count), expected, atol=1e-12)
    np.testing.assert_array_equal(every_score(branch, terms, backend)(0, count), block(0, count))  # every time


@pytest.mark.parametrize("assignment", ["hard", "soft"])
def test_all_rows_at_once_are_the_plain_formula(assignment):
    branch = branch_of(WHOLE, assignment)
    v = np.asarray(branch.described.descriptors)
    for carrier in PAPER_CARRIERS:  # those the plain formulas of residuals know
        expected = reference.Pca.fit(v).carrier(carrier, v, v, 0.6, 0.4)
        scores = every_score(branch, carrier_terms(carrier, 0.6, 0.4), backend_for("cpu"))(0, len(v))
        np.testing.assert_allclose(scores, expected, atol=1e-9)


def test_images_without_any_difference_have_no_spectral_score():
    branch = branch_of(WHOLE, tokens=world(1).select([0] * 6))
    assert branch.geometry.rank == 0
    scores = every_score(branch, carrier_terms("adaptive", 0.6, 0.4), backend_for("cpu"))(0, 6)
    plain = carrier_terms("adaptive", 0.6, 0.4)[0].weight
    np.testing.assert_allclose(scores, plain * branch.products, atol=1e-12)


@pytest.mark.parametrize("case", SPECS)
def test_cosines_of_global_tokens(case, monkeypatch):
    monkeypatch.setattr(pseudo_scores, "_GALLERY_BLOCK", 7)
    cls, split = world(30).cls, DatabaseSplit.of(30, SPECS[case])
    count = len(split.pseudo)
    expected = l2_normalize(cls)[split.pseudo] @ l2_normalize(cls).T
    np.testing.assert_allclose(every_cosine(cls, split)(0, count), expected, atol=1e-14)
    np.testing.assert_allclose(global_similarities(cls, split.pseudo)(0, count), expected, atol=1e-14)


def test_tops_are_those_of_the_facts_whatever_the_block():
    branch = branch_of(WHOLE)
    block = every_score(branch, carrier_terms("partial"), backend_for("cpu"))
    tops = pseudo_tops(block, branch.mask, 30, 30)
    np.testing.assert_array_equal(tops, pseudo_facts(block, 30, branch.mask).top)
    np.testing.assert_array_equal(tops, pseudo_tops(block, branch.mask, 30, 1 << 19))  # a row at a time
    assert (tops != np.arange(30)).all()


@pytest.mark.parametrize("case", SPECS)
def test_energies_of_the_halves_are_means_of_squared_coordinates(case):
    branch = branch_of(SPECS[case])
    v = np.asarray(branch.described.descriptors)
    plain = reference.Pca.fit(v[branch.split.anchors])
    rank = branch.geometry.rank
    for half, energies in zip(branch.split.halves, branch.half_energies(), strict=True):
        expected = (plain.coordinates(v[half]) ** 2).mean(axis=0)[:rank]
        np.testing.assert_allclose(energies, expected, rtol=1e-9, atol=1e-12)


def test_a_kernel_among_the_same_images_is_that_among_copies_of_them():
    branch, some = branch_of(WHOLE), np.array([4, 1, 9])
    terms = carrier_terms("adaptive", 0.6, 0.4)
    one = branch.kernel_among(terms, some, some, backend_for("cpu"))
    np.testing.assert_allclose(one, branch.kernel_among(terms, some, some.copy(), backend_for("cpu")), atol=1e-14)


def test_duplicates_are_known_without_reading_every_number():
    rng = np.random.default_rng(0)
    v = rng.normal(size=(40, 2000)).astype(np.float32)
    v[[9, 31]], v[20] = v[4], v[11]
    v[25] = v[5]
    v[25, 1] += 1  # differs in an entry that is not compared first
    other = rng.normal(size=(40, 3))
    other[[9, 20]] = other[[4, 11]]
    assert find_duplicates(v)[[4, 9, 31, 20, 5, 25]].tolist() == [4, 4, 4, 11, 5, 25]
    assert find_duplicates(v, None, other)[[4, 9, 31, 20, 5, 25]].tolist() == [4, 4, 31, 11, 5, 25]
    assert find_duplicates(v[:4]) is None
    assert find_duplicates(np.array([[0.0, 1.0], [2.0, 1.0], [-0.0, 1.0]])).tolist() == [0, 1, 0]  # blank is blank
    read = []

    class Watched(np.ndarray):
        def __getitem__(self, key):
            if isinstance(key, int):
                read.append(key)
            return super().__getitem__(key)

    find_duplicates(v[:30].view(Watched))
    assert sorted(read) == [4, 5, 9, 11, 20, 25]


def test_fitting_again_gives_the_same_bits():
    tokens = world(30, noise=0.4)
    one, other = fit(tokens, WHOLE), fit(tokens, WHOLE)
    assert one.decisions == other.decisions
    assert dataclasses.asdict(one.evidence) == dataclasses.asdict(other.evidence)
    for replica in (0, 1, 2, "ensemble"):
        np.testing.assert_array_equal(one.scores(tokens, replica), other.scores(tokens, replica))
