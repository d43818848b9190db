import errno
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tfa.core import files as storage
from tfa.errors import BadSpec, DiskFull, OutOfResources
from tfa.types import HeadSpec


def test_spec_checks_and_round_trips():
    spec = HeadSpec(words=32, temperature=1)
    assert HeadSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert spec.temperature == 1.0
    assert HeadSpec.paper().max_pca == 80_000
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
    assert storage.hash_json({"a": 1, "b": 2}) == storage.hash_json({"b": 2, "a": 1})
    assert storage.hash_json({"a": 1}) != storage.hash_json({"a": 2})


def test_tensors_are_written_as_the_safetensors_library_writes_them(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        f"{code}.{n}": (rng.normal(size=(n, 3)) * 9).astype(dtype)
        for code, dtype in storage.TENSOR_TYPES.items()
        for n in (0, 2)
    }
    arrays |= {
        "a.z": np.float32(3.5).reshape(()),
        "transposed": np.arange(6.0).reshape(2, 3).T,
        "ünïcode": np.ones(2, np.int8),
    }
    storage.write_tensors(tmp_path / "ours", arrays, {"who": "me"})
    save_file(
        {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()},
        tmp_path / "theirs",
        {"who": "me"},
    )
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [-2, 2], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [2.0, 2], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": None, "data_offsets": [0, 16]},
        {"dtype": "F32", "data_offsets": [0, 16]},
        {"dtype": "F31", "shape": [4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]},
        [],
    ],
)
def test_a_header_that_makes_no_sense_is_refused(tmp_path, entry):
    text = json.dumps({"a": entry}).encode()
    (tmp_path / "t.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    with pytest.raises(storage.BadFile, match=r"t\.safetensors"):
        storage.map_tensors(tmp_path / "t.safetensors")


def test_names_that_are_not_utf8_survive_json(tmp_path):
    name = os.fsdecode(b"caf\xe9.jpg")
    storage.write_json(tmp_path / "a.json", [name, "é"])
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == [name, "é"]
    assert storage.hash_json(name) != storage.hash_json("caf\\udce9.jpg")


def test_files_follow_the_umask(tmp_path):
    code = f"from tfa.core.files import *; write_json(Path({str(tmp_path / 'a.json')!r}), 1)"
    for mask, mode in ((0o022, 0o644), (0o077, 0o600), (0o002, 0o664)):
        subprocess.run([sys.executable, "-c", code], check=True, umask=mask)
        assert (tmp_path / "a.json").stat().st_mode & 0o777 == mode


def test_a_header_of_very_many_tensors_is_refused(tmp_path, monkeypatch):
    entries = {f"t{n}": np.zeros(0, np.float32) for n in range(4)}
    storage.write_tensors(tmp_path / "t.safetensors", entries, {"a": "b"})
    monkeypatch.setattr(storage, "MOST_TENSORS", 4)
    assert len(storage.map_tensors(tmp_path / "t.safetensors")[0]) == 4
    monkeypatch.setattr(storage, "MOST_TENSORS", 3)
    with pytest.raises(storage.BadFile, match=r"t\.safetensors has an unreadable .* more than 3 tensors"):
        storage.map_tensors(tmp_path / "t.safetensors")


@pytest.mark.parametrize("failing", ["fsync", "chmod", "replace"])
def test_a_full_disk_is_said_with_the_path(tmp_path, monkeypatch, failing):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    storage.write_json(tmp_path / "a.json", 1)
    monkeypatch.setattr(os, failing, full)
    with pytest.raises(DiskFull, match=r"the disk is full at .*a\.json"):
        storage.write_json(tmp_path / "a.json", 2)
    assert json.loads((tmp_path / "a.json").read_text()) == 1
    assert os.listdir(tmp_path) == ["a.json"]


def test_without_open_files_nothing_is_renamed(tmp_path, monkeypatch):
    storage.write_json(tmp_path / "a.json", 1)
    real = os.open

    def refused(path, flags, *more, **kwargs):
        if Path(path) == tmp_path:
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return real(path, flags, *more, **kwargs)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(OutOfResources, match="too many open files"):
        storage.write_json(tmp_path / "a.json", 2)
    assert json.loads((tmp_path / "a.json").read_text()) == 1


def test_folders_that_are_made_are_synced_from_the_top(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(storage, "sync_folder", made.append)
    storage.make_folder(tmp_path / "a" / "b")
    assert made == [tmp_path, tmp_path / "a"]
