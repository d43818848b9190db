"""Pickled arrays are read; any other pickled object is refused without executing it."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

from tests.benchmarks.datasets.trees import python2_pairs, ragged, save_objects, with_npy_header
from tfa_bench.datasets.files import BadDataset
from tfa_bench.datasets.safe_pickle import load_object_array


class Runs:
    """What an attacker pickles: a call of the system's shell."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def objects(*items: object) -> np.ndarray:
    array = np.empty(len(items), object)
    for index, item in enumerate(items):
        array[index] = item
    return array


def test_ragged_rows_come_back(tmp_path):
    path = save_objects(tmp_path / "gt.npy", ragged([[0, 3], [], [7]]))
    assert [row.tolist() for row in load_object_array(path)] == [[0, 3], [], [7]]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_every_protocol_up_to_numpys_own_is_read(tmp_path, protocol):
    path = tmp_path / "gt.npy"
    array = objects(np.array([1, 2]), np.float32(2.5), "name", b"bytes", [1, (2, 3)], np.array(["a", "bc"]))
    path.write_bytes(with_npy_header(pickle.dumps(array, protocol=protocol), (6,)))
    numbers, number, text, raw, nested, names = load_object_array(path)
    assert numbers.tolist() == [1, 2]
    assert number == np.float32(2.5)
    assert (text, raw, nested) == ("name", b"bytes", [1, (2, 3)])
    assert names.tolist() == ["a", "bc"]


def test_a_pickle_of_python_2_is_read(tmp_path):
    path = tmp_path / "ground_truth_new.npy"
    path.write_bytes(with_npy_header(python2_pairs([(0, [200, 1000]), (1, [5])]), (2, 2)))
    array = load_object_array(path)
    assert array.shape == (2, 2)
    assert array[0, 1].tolist() == [200, 1000]  # bytes above 127 survive
    assert (array[1, 0], array[1, 1].tolist()) == (1, [5])


def test_the_hand_made_pickle_of_python_2_is_what_numpy_reads(tmp_path):
    path = tmp_path / "gt.npy"
    path.write_bytes(with_npy_header(python2_pairs([(0, [2, 3])]), (1, 2)))
    assert np.load(path, allow_pickle=True, encoding="latin1")[0, 1].tolist() == [2, 3]


def test_plain_and_column_major_arrays_are_read(tmp_path):
    grid = np.asfortranarray(np.arange(6).reshape(2, 3))
    np.save(tmp_path / "plain.npy", grid)
    save_objects(tmp_path / "inside.npy", objects(grid))
    assert np.array_equal(load_object_array(tmp_path / "plain.npy"), grid)
    assert np.array_equal(load_object_array(tmp_path / "inside.npy")[0], grid)


def test_a_pickle_that_runs_a_command_is_refused_and_not_run(tmp_path):
    mark = tmp_path / "was-run"
    path = save_objects(tmp_path / "gt.npy", objects(Runs(f"touch {mark}")))
    with pytest.raises(BadDataset, match=r"system.*nothing was executed"):
        load_object_array(path)
    assert not mark.exists()


@pytest.mark.parametrize(
    "name",
    [b"builtins\neval", b"builtins\ngetattr", b"numpy\nload", b"numpy.core.multiarray\nfromstring", b"os\nsystem"],
)
def test_names_no_array_needs_are_refused_by_name(tmp_path, name):
    path = tmp_path / "gt.npy"
    path.write_bytes(with_npy_header(b"c" + name + b"\nX\x01\x00\x00\x001\x85R.", (1,)))
    with pytest.raises(BadDataset, match=name.decode().replace("\n", r"\.")):
        load_object_array(path)


@pytest.mark.parametrize(
    "body",
    [
        b"cnumpy\nndarray\nK\x05\x85R.",  # numpy.ndarray called
        b"cnumpy\ndtype\nX\x02\x00\x00\x00i8\x85R.",  # a dtype where an array should be
        b"cnumpy\nndarray\n}(X\x01\x00\x00\x00aK\x01ub.",  # attributes set on a class
        b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.",  # another codec
        b"N.",  # no array
        b"\x80\x02",  # cut short
        b"",
    ],
)
def test_odd_pickles_are_errors_that_name_the_file(tmp_path, body):
    path = tmp_path / "gt.npy"
    path.write_bytes(with_npy_header(body, (1,)))
    with pytest.raises(BadDataset, match=r"gt\.npy"):
        load_object_array(path)


def test_an_array_within_itself_is_refused(tmp_path):
    array = np.empty(1, object)
    array[0] = array
    path = save_objects(tmp_path / "gt.npy", array)
    array[0] = None  # let it go
    with pytest.raises(BadDataset, match="not a readable array"):
        load_object_array(path)


def test_a_structured_array_inside_is_refused(tmp_path):
    path = save_objects(tmp_path / "gt.npy", objects(np.zeros(2, [("a", "i4")])))
    with pytest.raises(BadDataset, match=r"structured|type"):
        load_object_array(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadDataset, match=r"absent\.npy is missing"):
        load_object_array(tmp_path / "absent.npy")
