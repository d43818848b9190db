"""The dual head against the plain formulas; source vocabularies from files, and files that mean harm."""

import os
import pickle

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from tests.worlds import seen_again, world
from tfa.core.tokens import Tokens
from tfa.encoders.released_words import load_vocabulary
from tfa.errors import BadSpec, BadTokens, ChannelMismatch
from tfa.method.scorer import compute_row_bias
from tfa.pipeline import fit, fit_dual
from tfa.reference import database as reference
from tfa.types import HeadSpec

pytestmark = pytest.mark.slow

SPEC = HeadSpec(words=8)
SOURCE = np.random.default_rng(7).normal(size=(5, 6)) * 3


def plain_branch(database, queries, centers):
    """x = S_P / σ of queries and the formulas of one vocabulary."""
    v, q = (
        np.stack([reference.residual_descriptor(p, centers, "soft", 0.01)[0] for p in tokens.patches])
        for tokens in (database, queries)
    )
    pca = reference.Pca.fit(v)
    sigma = reference.median_spread(pca.whitened(v, v, 0.5), reference.allowed(v))
    return pca.whitened(q, v, 0.5) / sigma, sigma


def plain_level(x, robust):
    kept = np.sort(x, axis=0)[: len(x) - int(np.ceil(0.05 * len(x)))] if robust else x
    return np.log(np.exp(kept).mean(axis=0))


def plain_scores(database, queries, head, construction, target=None, robust=False):
    total = 0.0
    for name in ("source", "map"):
        centers = head.vocabularies[name][construction].centers.astype(np.float64)
        x, _ = plain_branch(database, queries, centers)
        if target is not None:
            x = x - plain_level(plain_branch(database, target, centers)[0], robust)
        total = total + x
    return total


@pytest.mark.parametrize("device", ["cpu", pytest.param("torch", marks=pytest.mark.slow)])
@pytest.mark.parametrize("source", [None, SOURCE], ids=["fitted source", "given source"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 5e-4)])
def test_scores_equal_the_plain_formulas(source, dtype, tolerance, device):
    database, target, queries = world(20), seen_again(world(20), 3), seen_again(world(20), 4)
    head = fit_dual(database, source, source_words=4, spec=SPEC, dtype=dtype, device=device)
    heads = [(head, {}), (head.calibrate(target), {"target": target})]
    heads.append((head.calibrate(target, robust=True), {"target": target, "robust": True}))
    for made, given in heads:
        expected = [plain_scores(database, queries, head, s, **given) for s in range(3)]
        for s in range(3):
            assert made.scores(queries, s).dtype == np.dtype(dtype)
            np.testing.assert_allclose(made.scores(queries, s), expected[s], atol=tolerance)
        np.testing.assert_allclose(made.scores(queries, "ensemble"), sum(expected), atol=3 * tolerance)


def test_spreads_are_those_of_partial_whitening():
    database = world(20)
    head = fit_dual(database, SOURCE, spec=SPEC, dtype="float64")
    for name, sigma in (("source", head.decisions.sigma_source), ("map", head.decisions.sigma_map)):
        plain = [plain_branch(database, database, vocabulary.centers)[1] for vocabulary in head.vocabularies[name]]
        np.testing.assert_allclose(sigma, plain, rtol=1e-9)


def test_the_map_vocabulary_is_that_of_fit_and_the_source_has_its_own_words():
    database = world(20)
    head, single = fit_dual(database, source_words=4, spec=SPEC), fit(database, SPEC)
    for one, other in zip(head.vocabularies["map"], single.vocabularies, strict=True):
        np.testing.assert_array_equal(one.centers, other.centers)
    assert [v.seed for v in head.vocabularies["source"]] == [0, 1, 2]
    assert {v.centers.shape for v in head.vocabularies["source"]} == {(4, 6)}
    assert (head.decisions.source, head.decisions.source_words, head.decisions.words) == ("database", 4, 8)
    assert fit_dual(database, source_words=4, words=3, spec=SPEC).decisions.words == 3
    assert fit_dual(world(3, patches=40)).decisions.to_dict()["source_words"] == 32


def test_given_words_become_unit_and_serve_all_constructions():
    head = fit_dual(world(20), SOURCE, spec=SPEC)
    for vocabulary in head.vocabularies["source"]:
        np.testing.assert_allclose(vocabulary.centers, reference.l2(SOURCE))
        assert (vocabulary.data_used, vocabulary.seed) == ("nothing", None)
    assert (head.decisions.source, head.decisions.source_words) == ("given", 5)
    assert len(set(head.decisions.sigma_source)) == 1


@pytest.mark.parametrize("replica", [0, 2, "ensemble"])
@pytest.mark.parametrize("robust", [None, False, True])
def test_compiled_scores_equal_scores(replica, robust):
    database, target, queries = world(20), seen_again(world(20), 3), seen_again(world(20), 4)
    head = fit_dual(database, source_words=4, spec=SPEC, dtype="float64")
    if robust is not None:
        head = head.calibrate(target, robust=robust)
    compiled = head.compile(replica)
    scores = compiled.query(queries) @ compiled.database.T + compiled.bias
    np.testing.assert_allclose(scores, head.scores(queries, replica), atol=1e-9)
    assert (compiled.bias == 0).all() == (robust is None)
    np.testing.assert_array_equal(
        head.search(queries, 3, replica)[1], np.sort(head.scores(queries, replica))[:, :-4:-1]
    )


def test_images_that_join_a_robust_head_get_the_bias_of_each_branch():
    head = fit_dual(world(20), source_words=4, spec=SPEC, dtype="float64").calibrate(seen_again(world(20)), robust=True)
    for replica in (1, "ensemble"):
        scorer = head.scorer(replica)
        rows = [part.gallery.chunks[0][4:9] for part in scorer.terms]
        np.testing.assert_allclose(compute_row_bias(scorer, rows), scorer.bias[4:9], atol=1e-9)


def test_calibration_replaces_an_earlier_one_and_leaves_the_head_alone():
    one, two, queries = (seen_again(world(20), seed) for seed in (3, 4, 5))
    head = fit_dual(world(20), SOURCE, spec=SPEC)
    before = head.scores(queries)
    first = head.calibrate(one, robust=True)
    again = first.calibrate(two)
    np.testing.assert_array_equal(again.scores(queries), head.calibrate(two).scores(queries))
    np.testing.assert_array_equal(head.scores(queries), before)
    assert (head.data_used, first.data_used) == ("database", "target")
    assert [h.decisions.calibration for h in (head, first, again)] == ["none", "robust", "log mean exp"]
    assert again.decisions.calibration_images == 20
    assert len(again) == 20


def test_the_same_twice_and_queries_in_any_company():
    queries = seen_again(world(20), 5)
    heads = [fit_dual(world(20), source_words=4, spec=SPEC).calibrate(seen_again(world(20))) for _ in range(2)]
    together = heads[0].scores(queries, "ensemble")
    np.testing.assert_array_equal(heads[1].scores(queries, "ensemble"), together)
    order = np.random.default_rng(0).permutation(20)
    np.testing.assert_array_equal(heads[0].scores(queries.select(order), "ensemble"), together[order])
    alone = np.concatenate([heads[0].scores(queries.select([i]), "ensemble") for i in range(20)])
    np.testing.assert_array_equal(alone, together)


def test_identical_images_have_no_spread_and_no_harm():
    same = world(1).select([0] * 5)
    head = fit_dual(same, source_words=2, words=3)
    assert head.decisions.sigma_map == (0, 0, 0)
    assert np.isfinite(head.calibrate(seen_again(world(4))).scores(world(3))).all()


def test_a_sampled_pca():
    database, target = world(30), seen_again(world(30), 3)
    spec = HeadSpec(words=6, max_pca=20, pca_sample=15, max_pseudo=12)
    head = fit_dual(database, SOURCE, spec=spec, dtype="float64").calibrate(target)
    assert head.scorer().sides[0].anchors.shape[0] == 15
    compiled = head.compile()
    scores = compiled.query(target) @ compiled.database.T + compiled.bias
    np.testing.assert_allclose(scores, head.scores(target), atol=1e-9)


def test_bad_input_is_named():
    head = fit_dual(world(), SOURCE, spec=SPEC)
    for call, error, message in [
        (lambda: fit_dual(world(), np.ones((4, 3))), BadSpec, "words of 3 channels, the tokens have 6"),
        (lambda: fit_dual(world(), np.ones(4)), BadSpec, r"shape \(4,\); a vocabulary must be \(words, channels\)"),
        (lambda: fit_dual(world(), np.ones((4, 6), int)), BadSpec, "has dtype int64"),
        (lambda: fit_dual(world(), np.full((4, 6), np.nan)), BadSpec, "non-finite"),
        (lambda: fit_dual(world(), source_words=0), BadSpec, "words=0"),
        (lambda: fit_dual(world(), words=0), BadSpec, "words=0"),
        (lambda: fit_dual(world(), dtype="float16"), BadSpec, "float16"),
        (lambda: fit_dual(world(1)), BadTokens, "at least 2"),
        (lambda: fit_dual(np.ones((3, 4, 5))), BadTokens, "wrap it"),
        (lambda: head.calibrate(world(1)), BadTokens, "at least 2 images, got 1 images"),
        (lambda: head.calibrate(np.ones((4, 4, 6))), BadTokens, "got ndarray"),
        (lambda: head.calibrate(Tokens(np.ones((4, 3, 5)))), ChannelMismatch, "5 channels"),
        (lambda: head.scores(world(), 7), BadSpec, "replica 7"),
        (lambda: head.search(world(), 0), BadSpec, "k=0"),
    ]:
        with pytest.raises(error, match=message):
            call()


def write_npy(path):
    np.save(path, SOURCE)


def write_tensor(path):
    torch.save(torch.from_numpy(SOURCE), path)


def write_safetensors(path):
    save_file({"words": SOURCE}, path)


def write_named(path):
    save_file({"other": SOURCE[:2], "centers": SOURCE, "seed": np.zeros(1)}, path)


FORMATS = [("v.npy", write_npy), ("v.pt", write_tensor), ("v.PTH", write_tensor), ("v.safetensors", write_safetensors)]


@pytest.mark.parametrize(("name", "write"), [*FORMATS, ("named.safetensors", write_named)])
def test_a_released_file_serves_as_source(tmp_path, name, write):
    write(tmp_path / name)
    np.testing.assert_array_equal(load_vocabulary(tmp_path / name), SOURCE)
    of_file, of_array = (fit_dual(world(12), given, spec=SPEC) for given in (str(tmp_path / name), SOURCE))
    np.testing.assert_array_equal(of_file.scores(world(12)), of_array.scores(world(12)))


def test_the_file_of_another_encoder_is_named(tmp_path):
    np.save(tmp_path / "b14.npy", np.ones((32, 768)))
    with pytest.raises(BadSpec, match=r"b14\.npy has words of 768 channels, the tokens have 6"):
        fit_dual(world(), tmp_path / "b14.npy")


def test_half_precision_is_widened(tmp_path):
    torch.save(torch.ones(3, 4, dtype=torch.bfloat16, requires_grad=True), tmp_path / "v.pt")
    save_file({"v": np.ones((3, 4), np.float16)}, tmp_path / "v.safetensors")
    for name in ("v.pt", "v.safetensors"):
        assert load_vocabulary(tmp_path / name).dtype == np.float64


class Harm:
    """Unpickling this makes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def write_pickle(path, harm):
    path.write_bytes(pickle.dumps(harm))


def write_pickle_in_zip(path, harm):
    torch.save({"centers": harm}, path)


def write_object_array(path, harm):
    np.save(path, np.array([harm, harm], dtype=object), allow_pickle=True)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("v.pt", write_pickle),
        ("v.pth", write_pickle_in_zip),
        ("v.npy", write_object_array),
        ("w.npy", write_pickle),
        ("v.safetensors", write_pickle),
    ],
)
def test_nothing_pickled_is_executed(tmp_path, name, write):
    path, trace = tmp_path / name, tmp_path / "harm"
    write(path, Harm(trace))
    with pytest.raises(BadSpec, match=name):
        load_vocabulary(path)
    assert not trace.exists()


def test_what_else_a_file_may_hold_is_said(tmp_path):
    torch.save({"centers": torch.ones(3, 4)}, tmp_path / "dict.pt")
    torch.save(torch.ones(3, 4, dtype=torch.int64), tmp_path / "int.pt")
    torch.save(torch.ones(3), tmp_path / "flat.pt")
    save_file({"a": np.ones((2, 2)), "b": np.ones((2, 2))}, tmp_path / "two.safetensors")
    save_file({"a": np.ones(2)}, tmp_path / "flat.safetensors")
    save_file({"centers": np.ones((2, 2), np.int64)}, tmp_path / "int.safetensors")
    save_file({}, tmp_path / "none.safetensors")
    np.save(tmp_path / "empty.npy", np.ones((0, 4)))
    np.savez(tmp_path / "zip.npz", np.ones((2, 2)))
    (tmp_path / "zip.npz").rename(tmp_path / "zip.npy")
    for name in ("cut.npy", "cut.pt", "cut.safetensors"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "folder.npy").mkdir()
    for name, message in {
        "dict.pt": "contains a dict with the keys 'centers'; it must be one tensor",
        "int.pt": "tensor of torch.int64",
        "flat.pt": r"shape \(3,\)",
        "two.safetensors": r"contains 'a' \(2, 2\), 'b' \(2, 2\); a vocabulary file needs one 2-D tensor",
        "flat.safetensors": r"contains 'a' \(2,\)",
        "int.safetensors": "tensor of int64",
        "none.safetensors": "contains no tensor",
        "empty.npy": r"shape \(0, 4\)",
        "zip.npy": "not an array of numbers",
        "cut.npy": "not an array of numbers",
        "cut.pt": "cannot be read by torch",
        "cut.safetensors": "not a complete safetensors file",
        "folder.npy": "is a folder",
        "absent.npy": "does not exist",
        "words.txt": r"is not a vocabulary file; use \.safetensors, \.pt, \.pth, \.npy",
        "words": "is not a vocabulary file",
    }.items():
        with pytest.raises(BadSpec, match=f"{name}.*{message}"):
            load_vocabulary(tmp_path / name)
