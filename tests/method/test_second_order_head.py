"""Second-order heads against the plain formulas: both forms of the PCA, every carrier, calibration, edge cases."""

import contextlib

import numpy as np
import pytest

from tests.worlds import seen_again, world
from tfa import pipeline
from tfa.core.arrays import Spill, backend_for
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec, BadTokens, ChannelMismatch, FewPhotos
from tfa.method.branch import DatabaseSplit
from tfa.method.carriers import CARRIER_KERNELS
from tfa.method.second_order import descriptor_width
from tfa.method.second_order_head import SCORE_FROM, assemble_second_order, decide_carrier
from tfa.method.second_order_space import _by_covariance, _dual
from tfa.reference import database as plain
from tfa.reference import second_order as reference
from tfa.types import HeadSpec

EXACT = 1e-8  # float64: what eigenvectors of near eigenvalues leave
FLOAT32 = 2e-3  # of scores whose terms are divided by small spreads
WIDE, NARROW = 8, 3  # channels: descriptors of 36 numbers (dual form for 24 images) and of 6 (covariance form)


def plain_parts(tokens, construction):
    directions = reference.directions(list(tokens.patches), construction)
    described = np.stack([reference.descriptor(patches, directions) for patches in tokens.patches])
    return directions, described, plain.Pca.fit(described)


@pytest.mark.parametrize("channels", [WIDE, NARROW])
@pytest.mark.parametrize("carrier", CARRIER_KERNELS)
def test_scores_equal_the_plain_formulas(carrier, channels):
    database = world(channels=channels)
    queries = seen_again(database).select(range(7))
    assert (descriptor_width(channels) > len(database)) == (channels == WIDE)  # both forms of the PCA
    head = pipeline.fit_second_order(database, carrier=carrier, dtype="float64")
    parts = [plain_parts(database, s) for s in range(3)]
    c, beta = plain.strengths([part[1] for part in parts], [part[2] for part in parts])
    assert head.decisions.c == pytest.approx(c, abs=1e-7)
    assert head.decisions.beta == pytest.approx(beta, abs=1e-7)
    for s, (directions, described, pca) in enumerate(parts):
        own = np.stack([reference.descriptor(patches, directions) for patches in queries.patches])
        expected = reference.scores(carrier, pca, own, described, c, beta)
        np.testing.assert_allclose(
            head.scores(queries, replica=s), expected, atol=EXACT * max(1, np.abs(expected).max())
        )


@pytest.mark.parametrize("carrier", CARRIER_KERNELS)
def test_float32_is_near_float64(carrier):
    database = world(channels=WIDE)
    queries = seen_again(database)
    exact = pipeline.fit_second_order(database, carrier=carrier, dtype="float64").scores(queries)
    fast = pipeline.fit_second_order(database, carrier=carrier).scores(queries)
    assert fast.dtype == np.float32
    np.testing.assert_allclose(fast, exact, atol=FLOAT32 * max(1, np.abs(exact).max()))


def test_both_forms_of_the_pca_agree():
    rng = np.random.default_rng(0)
    descriptors = rng.normal(size=(40, 30)) @ rng.normal(size=(30, 30))
    descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
    split = DatabaseSplit.of(40, HeadSpec())
    one, other = (f(descriptors, split, 25, backend_for("cpu"), Spill()) for f in (_dual, _by_covariance))
    assert one.eigenvalues.shape == (25,)
    np.testing.assert_allclose(one.eigenvalues, other.eigenvalues, rtol=1e-9)
    signs = np.sign((one.axes * other.axes).sum(axis=1))[:, None]
    np.testing.assert_allclose(one.axes, signs * other.axes, atol=1e-7)
    np.testing.assert_allclose(one.coordinates, other.coordinates * signs.T, atol=1e-7)
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-12)
    assert one.facts.participation == pytest.approx(other.facts.participation)
    assert one.facts.displacement == pytest.approx(other.facts.displacement)


@pytest.mark.parametrize("carrier", ["tempered", "adaptive", "full"])
def test_the_compiled_form_scores_alike(carrier):
    database = world(channels=WIDE)
    head = pipeline.fit_second_order(database, carrier=carrier)
    queries = seen_again(database)
    for replica in (0, 2, "ensemble"):
        compiled = head.compile(replica)
        again = compiled.query(queries) @ compiled.database.T + compiled.bias
        np.testing.assert_allclose(again, head.scores(queries, replica), atol=1e-4)


def test_scores_do_not_depend_on_the_other_queries():
    database = world(channels=WIDE)
    queries = seen_again(database)
    head = pipeline.fit_second_order(database, carrier="blend")
    every = head.scores(queries)
    for row in (0, 5, 23):
        assert np.array_equal(head.scores(queries.select([row]))[0], every[row])


def test_duplicates_tie_to_the_last_bit():
    patches = np.asarray(world(channels=WIDE).patches)
    twice = Tokens(np.concatenate([patches, patches[[3]]]))
    head = pipeline.fit_second_order(twice, carrier="tempered")
    scores = head.scores(seen_again(twice))
    assert np.array_equal(scores[:, 3], scores[:, -1])
    assert head.search(twice, k=1)[0][-1, 0] == 3
    space = head.fitted.spaces[0]
    assert 3 in space.mask.columns[space.mask.rows == len(patches)]  # its duplicate may not be its answer


@pytest.mark.parametrize("carrier", CARRIER_KERNELS)
@pytest.mark.parametrize(
    "tokens",
    [
        Tokens(np.random.default_rng(0).normal(size=(2, 5, 4))),  # two images
        Tokens(np.random.default_rng(0).normal(size=(9, 1, 4))),  # one patch each: every image is blank
        Tokens(np.ones((5, 6, 4))),  # identical, blank images
        Tokens(np.repeat(np.random.default_rng(0).normal(size=(1, 6, 4)), 5, axis=0)),  # identical images
        Tokens([np.random.default_rng(n).normal(size=(n, 4)) for n in (3, 1, 7, 4)]),  # ragged
    ],
    ids=["two", "one patch", "blank", "identical", "ragged"],
)
def test_odd_databases_answer_finitely(tokens, carrier):
    head = pipeline.fit_second_order(tokens, carrier=carrier)
    for replica in (0, 1, 2, "ensemble"):
        assert np.isfinite(head.scores(tokens, replica)).all()


@pytest.mark.parametrize("carrier", ["partial", "tempered", "full"])
def test_a_calibrated_head_equals_the_plain_formulas(carrier):
    database = world(channels=WIDE)
    target, queries = seen_again(database, seed=2), seen_again(database, seed=3)
    fitted = pipeline.fit_second_order(database, dtype="float64").fitted
    directions, described, pca = plain_parts(database, 0)
    describe = lambda tokens: np.stack([reference.descriptor(p, directions) for p in tokens.patches])  # noqa: E731
    mean, gamma = reference.target_mean(pca, describe(target)), {"partial": 0.5, "full": 1.0}.get(carrier)
    decisions = fitted.decisions(carrier, centring=True)
    _, evidence = decide_carrier(fitted, carrier)
    centred = assemble_second_order(fitted, decisions, evidence, target)
    assert centred.data_used == "target"
    if gamma is not None:
        expected = reference.whitened_from(mean, pca, describe(queries), described, gamma)
        np.testing.assert_allclose(centred.scores(queries), expected, atol=EXACT)
    decisions = fitted.decisions(carrier, centring=True, score=True)
    both = assemble_second_order(fitted, decisions, evidence, target)
    rows, plainly = centred.scores(target), centred.scores(queries)
    block = fitted.spaces[0].pseudo_scores(decisions.kernel("second_order", 0))(0, len(database))
    sigma = plain.median_spread(block, plain.allowed(described)) if carrier != "full" else np.median(rows.std(axis=1))
    expected = plainly / sigma - reference.score_bias(rows / sigma)
    np.testing.assert_allclose(both.scores(queries), expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore::tfa.errors.FewPhotos")
@pytest.mark.parametrize("images", [7, 24, 90])
@pytest.mark.parametrize("count", [1, 2])
def test_a_construction_is_the_same_however_many_are_fitted(images, count):
    database = world(images, patches=200)
    every = pipeline.fit_second_order(database, "tempered")
    some = pipeline.fit_second_order(database, "tempered", constructions=count)
    assert len(some.fitted.spaces) == count
    queries = seen_again(database)
    for replica in range(count):
        np.testing.assert_array_equal(some.scores(queries, replica), every.scores(queries, replica))
        ours, theirs = some.fitted.spaces[replica], every.fitted.spaces[replica]
        np.testing.assert_array_equal(ours.side.patch_directions, theirs.side.patch_directions)
        np.testing.assert_array_equal(ours.coordinates, theirs.coordinates)
    assert some.decisions.sigmas["sigma_tempered"] == every.decisions.sigmas["sigma_tempered"][:count]
    photos = seen_again(database, seed=5)
    calibrated = [pipeline.calibrate(head, photos).scores(queries) for head in (some, every)]
    np.testing.assert_array_equal(*calibrated)


def test_a_calibration_is_partial_centered_and_from_eight_photos_on_scored():
    head = pipeline.fit_second_order(world(), "tempered", constructions=1)
    photos = seen_again(world())
    for count, score, name in (
        (SCORE_FROM - 1, None, "second_order/partial+centring"),
        (SCORE_FROM, None, "second_order/partial+centring+score"),
        (SCORE_FROM, False, "second_order/partial+centring"),
        (SCORE_FROM + 1, True, "second_order/partial+centring+score"),
    ):
        with pytest.warns(FewPhotos) if count < 8 else contextlib.nullcontext():
            made = pipeline.calibrate(head, photos.select(range(count)), score=score)
        assert (made.decisions.name, made.data_used) == (name, "target")
        scored = "set by the caller" if score is not None else f"default from 8 photos on; {count} used"
        assert made.evidence.reasons["score"] == scored
    assert made.evidence.reasons["carrier"] == "default with calibration photos: partial whitening"


def test_reasons_name_defaults_and_settings():
    for carrier, how in (("tempered", "default"), ("blend", "set when the head was fitted")):
        reasons = pipeline.fit_second_order(world(), carrier, constructions=1).evidence.reasons
        assert reasons["carrier"].startswith(f"{how}: ")
        assert set(reasons) == {"representation", "carrier", "centring", "score"}


def test_bad_input_is_named():
    database = world()
    for constructions in (0, 4):
        with pytest.raises(BadSpec, match=rf"constructions={constructions} is out of range: must be between 1 and 3"):
            pipeline.fit_second_order(database, constructions=constructions)
    with pytest.raises(BadSpec, match=r"carrier='half' is unknown; use one of original, partial"):
        pipeline.fit_second_order(database, carrier="half")
    with pytest.raises(BadSpec, match="dtype='float16'"):
        pipeline.fit_second_order(database, dtype="float16")
    with pytest.raises(BadTokens, match="1 images are too few"):
        pipeline.fit_second_order(database.select([0]))
    with pytest.raises(ChannelMismatch, match="5 channels"):
        pipeline.fit_second_order(database).scores(world(channels=5))


@pytest.mark.parametrize("images", [20, 60, 90])  # N − 1 directions, or all of 12 · 13 / 2
def test_directions_of_no_image_are_left_out_although_most_of_the_trace_is_the_means(images):
    tokens = world(images=images, patches=40, channels=12, noise=0.6)
    head = pipeline.fit_second_order(tokens, "full")
    assert len(head.fitted.spaces[0].side.eigenvalues) == min(images - 1, 78)
    assert (head.scores(tokens).argmax(axis=1) == np.arange(images)).all()
