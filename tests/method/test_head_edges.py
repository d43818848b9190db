"""The fitted head on tiny, blank, ragged and wrong input."""

import dataclasses

import numpy as np
import pytest

from tests.method.test_head import SPEC, plain_descriptors, plain_head
from tests.worlds import world
from tfa.core.arrays import backend_for
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec, BadTokens, ChannelMismatch
from tfa.method.head import assemble
from tfa.pipeline import fit
from tfa.reference import database as reference
from tfa.types import HeadSpec


@pytest.mark.parametrize("images", [2, 3])
def test_tiny_databases(images):
    tokens = world(images)
    head = fit(tokens, HeadSpec(words=3))
    assert head.search(tokens, k=1)[0][:, 0].tolist() == list(range(images))
    if images == 2:  # one axis: the energy correlation is undefined, so nothing is shaped
        assert head.decisions.c == 0


def test_a_map_of_identical_images():
    tokens = world(1).select([0] * 5)
    head = fit(tokens, HeadSpec(words=4))
    assert (head.decisions.assignment, head.decisions.carrier, head.decisions.admit_cls) == ("soft", "adaptive", False)
    assert (head.decisions.c, head.decisions.beta) == (0, pytest.approx(0, abs=1e-7))
    indices, scores = head.search(tokens, k=5)
    assert indices[0].tolist() == [0, 1, 2, 3, 4]
    assert np.isfinite(scores).all()


def test_a_blank_image_has_no_residual_and_harms_nobody():
    tokens = world(12)
    centers = [reference.l2(np.random.default_rng(s).normal(size=(4, 6))) for s in range(3)]
    patches = np.asarray(tokens.patches).copy()
    patches[5] = centers[0][1]  # every patch sits on a word of the first construction
    blank = Tokens(patches, tokens.cls)
    head = fit(blank, centers=centers)
    assert not head.branches["hard", 0].described.descriptors[5].any()
    scores = head.scores(blank)
    assert np.isfinite(scores).all()
    others = [i for i in range(12) if i != 5]
    assert scores.argmax(axis=1)[others].tolist() == others


def test_images_of_different_patch_counts():
    rng = np.random.default_rng(0)
    whole = world(14, patches=20)
    ragged = Tokens([np.asarray(p)[: rng.integers(5, 20)] for p in whole.patches], whole.cls)
    head = fit(ragged, SPEC, dtype="float64")
    plain = plain_head(ragged, head)
    assert (head.decisions.assignment, head.decisions.carrier) == (plain.assignment, plain.carrier)
    queries = Tokens([np.asarray(p)[:7] for p in whole.patches], whole.cls)
    v = plain_descriptors(queries, head, plain.assignment, 0)
    np.testing.assert_allclose(head.scores(queries), plain.scores(v, queries.cls, 0), atol=1e-9)


def test_more_words_than_distinct_patches():
    patches = np.repeat(np.eye(4)[:, None, :], 3, axis=1) + 0.0
    head = fit(Tokens(patches), HeadSpec(words=9))
    assert np.isfinite(head.scores(Tokens(patches))).all()


def test_without_a_global_token_fusion_is_off():
    tokens = Tokens(np.asarray(world().patches))
    head = fit(tokens, SPEC)
    assert not head.decisions.admit_cls
    assert head.decisions.sigma_cls == (0, 0, 0)
    assert "no global token" in head.evidence.reasons["admit_cls"]


def test_a_constant_global_token_is_refused():
    tokens = Tokens(np.asarray(world().patches), np.ones((24, 3)))
    assert not fit(tokens, SPEC).decisions.admit_cls


def test_bad_input_is_named():
    head = fit(world(), SPEC)
    with pytest.raises(ChannelMismatch, match="5 channels, this head was fitted on 6"):
        head.scores(Tokens(np.ones((1, 3, 5))))
    with pytest.raises(BadSpec, match="replica 7"):
        head.scores(world(), replica=7)
    with pytest.raises(BadSpec, match="k=0"):
        head.search(world(), k=0)
    with pytest.raises(BadTokens, match="at least 2"):
        fit(world(1), SPEC)
    with pytest.raises(BadTokens, match="wrap it"):
        fit(np.ones((3, 4, 5)), SPEC)
    with pytest.raises(BadSpec, match="float16"):
        fit(world(), SPEC, dtype="float16")
    with pytest.raises(BadSpec, match="device"):
        fit(world(), SPEC, device="abacus")
    broken = np.asarray(world().patches).copy()
    broken[4, 2, 1] = np.inf
    with pytest.raises(BadTokens, match=r"fourth\.jpg.*non-finite"):
        fit(
            Tokens(
                broken, names=[f"{n}.jpg" if i != 4 else "fourth.jpg" for i, n in enumerate("abcdefghijklmnopqrstuvwx")]
            ),
            SPEC,
        )


def test_an_admitted_head_asks_for_the_global_token():
    tokens = world()
    fitted = fit(tokens, SPEC)
    decisions = dataclasses.replace(fitted.decisions, admit_cls=True)
    head = assemble(fitted, decisions, fitted.evidence, backend_for("cpu"))
    with pytest.raises(BadTokens, match="pass cls"):
        head.scores(Tokens(np.asarray(tokens.patches)))
    with pytest.raises(ChannelMismatch, match="must have 6"):
        head.scores(Tokens(np.asarray(tokens.patches), np.ones((24, 2))))
