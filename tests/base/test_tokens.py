import numpy as np
import pytest

from tfa.core.tokens import Tokens
from tfa.errors import BadTokens


def test_dense_ragged_and_empty():
    assert Tokens(np.ones((3, 4, 5))).channels == 5
    ragged = Tokens([np.ones((2, 5)), np.ones((7, 5))])
    assert ragged.counts.tolist() == [2, 7]
    assert len(Tokens([])) == 0


@pytest.mark.parametrize(
    ("patches", "cls", "message"),
    [
        (np.ones((3, 4)), None, "shape"),
        ([np.ones((2, 5)), np.ones((2, 4))], None, "image 1: 4 channels, but image 0 has 5"),
        ([np.ones(5)], None, "image 0"),
        ([np.ones((0, 5))], None, "image 0"),
        (np.ones((3, 4, 5)), np.ones((2, 5)), "cls has shape"),
        (np.ones((2, 4, 5)), np.array([[1.0], [np.nan]]), "image 1.*non-finite"),
    ],
)
def test_wrong_shapes_are_named(patches, cls, message):
    with pytest.raises(BadTokens, match=message):
        Tokens(patches, cls)


def test_batches_hold_equal_counts_within_the_limit():
    tokens = Tokens([np.full((n, 2), float(i)) for i, n in enumerate([3, 3, 3, 5, 3, 20])])
    spans = [(b.start, b.stop, b.patches.shape) for b in tokens.batches(max_patches=7)]
    assert spans == [(0, 2, (2, 3, 2)), (2, 3, (1, 3, 2)), (3, 4, (1, 5, 2)), (4, 5, (1, 3, 2)), (5, 6, (1, 20, 2))]


def test_selection_keeps_order_names_and_global_tokens():
    tokens = Tokens(np.arange(24.0).reshape(4, 3, 2), np.arange(4.0)[:, None], names=list("abcd"))
    some = tokens.select([2, 0])
    assert some.names == ["c", "a"]
    assert some.cls.ravel().tolist() == [2, 0]
    np.testing.assert_array_equal(some.load(0, 1)[0], tokens.patches[2])


def test_non_finite_patches_are_found_when_loaded():
    patches = np.ones((3, 2, 2))
    patches[1, 0, 0] = np.nan
    with pytest.raises(BadTokens, match="image 1"):
        list(Tokens(patches).batches())


@pytest.mark.parametrize("kind", [object, "U1", "complex64", "datetime64[s]"])
def test_tokens_are_real_numbers(kind):
    wrong = np.zeros((2, 3, 4), kind)
    for make in (lambda: Tokens(wrong), lambda: Tokens(list(wrong)), lambda: Tokens(np.ones((2, 3, 4)), wrong[:, 0])):
        with pytest.raises(BadTokens, match=r"tokens have dtype .*, must be real numbers"):
            make()


@pytest.mark.parametrize("cls", [[[None, 1.0]], [["a", "b"]], np.zeros((1, 2), "i4,f8")])
def test_lists_that_are_not_numbers_are_refused(cls):
    with pytest.raises(BadTokens, match=r"tokens have dtype .*, must be real numbers"):
        Tokens(np.ones((1, 3, 4)), cls)


def test_rows_of_different_lengths_are_refused():
    for make in (lambda: Tokens([[[1.0, 2.0], [3.0]]]), lambda: Tokens(np.ones((2, 3, 4)), [[1.0, 2.0], [3.0]])):
        with pytest.raises(BadTokens, match="tokens are not arrays of numbers"):
            make()
