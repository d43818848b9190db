import json
import os
from pathlib import Path

import numpy as np
import pytest

from tfa.base import files as storage
from tfa.base.config import HeadSpec
from tfa.errors import BadSpec


def test_spec_checks_and_round_trips():
    spec = HeadSpec(words=32, temperature=1)
    assert HeadSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert spec.temperature == 1.0
    assert HeadSpec.paper().max_pca == 30_000
    assert HeadSpec().words == 64
    with pytest.raises(BadSpec, match="did you mean 'words'"):
        HeadSpec.from_dict({"word": 3})
    with pytest.raises(BadSpec, match="words=0 is out of range"):
        HeadSpec(words=0)
    with pytest.raises(BadSpec, match="must be int"):
        HeadSpec(words=3.5)


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    target = tmp_path / "a.json"
    storage.write_json(target, {"x": 1})

    def explode(path: Path) -> None:
        path.write_text("half")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        storage.write_atomically(target, explode)
    assert json.loads(target.read_text()) == {"x": 1}
    assert os.listdir(tmp_path) == ["a.json"]


def test_mapped_tensors_are_what_was_written(tmp_path):
    path = tmp_path / "t.safetensors"
    arrays = {"a": np.arange(6, dtype=np.float16).reshape(2, 3), "empty": np.empty((0, 4)), "i": np.arange(3)}
    storage.write_tensors(path, arrays, {"who": "me"})
    mapped, metadata = storage.map_tensors(path)
    assert metadata == {"who": "me"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(mapped[name], array)
        assert mapped[name].dtype == array.dtype
    assert isinstance(mapped["a"], np.memmap)


@pytest.mark.parametrize("keep", [0, 5, 40, -3])
def test_a_truncated_file_is_refused(tmp_path, keep):
    path = tmp_path / "t.safetensors"
    storage.write_tensors(path, {"a": np.ones((4, 4))})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(storage.BadFile, match=r"t\.safetensors"):
        storage.map_tensors(path)


def test_json_digest_ignores_key_order():
    assert storage.sha256_of_json({"a": 1, "b": 2}) == storage.sha256_of_json({"b": 2, "a": 1})
    assert storage.sha256_of_json({"a": 1}) != storage.sha256_of_json({"a": 2})
