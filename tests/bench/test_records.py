"""Records and datasets on disk: exact, never overwritten, refused when damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bench.synthetic_records import NOTHING, made_record, made_truth, ranking, written
from tfa.bench.array_json import BadRecord, pack, unpack
from tfa.bench.records import TRUTH_FILE, Record, Truth, find_records, record_path, truth_of

TRUTH = made_truth([[0], [], [0, 3]], conditions={"day": [0, 1], "night": [2]})
ROWS = [[[ranking([0])], [[NOTHING] * 4]], [[[NOTHING] * 4], [ranking([1])]], [[ranking([3])], [ranking([2, 0])]]]


def a_record() -> Record:
    confidence = [[[2.5], [np.nan]], [[np.nan], [1.25]], [[0.5], [3.0]]]
    return made_record(TRUTH, ROWS, evaluated=[[0, 2], [1, 2]], confidence=confidence)


def edited(path: Path, change: Any) -> None:
    values = json.loads(path.read_text("utf-8"))
    change(values)
    path.write_text(json.dumps(values), "utf-8")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path, TRUTH, a_record())[0]


def test_a_record_survives_the_disk(file: Path):
    before, after = a_record(), Record.read(file)
    assert after.identity == before.identity
    for name in ("rankings", "confidence"):
        assert getattr(after, name).dtype == getattr(before, name).dtype
        assert np.array_equal(getattr(after, name), getattr(before, name), equal_nan=name == "confidence")
    for name in ("dataset", "encoder", "head", "plan", "versions", "hardware", "replicas", "seeds", "timings"):
        assert getattr(after, name) == getattr(before, name)
    for ours, theirs in zip(after.folds, before.folds, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert all(np.array_equal(one[key], other[key]) for key in ("calibration", "evaluated"))
            assert (one["condition"], one["decisions"]) == (other["condition"], other["decisions"])
    assert np.array_equal(after.sample["scores"], before.sample["scores"])
    assert [after.evaluated(split).tolist() for split in (0, 1)] == [[0, 2], [1, 2]]
    assert (after.nothing, after.depth, after.name) == (NOTHING, 4, "vlad")


def test_a_dataset_survives_the_disk(file: Path):
    after = truth_of(file)
    assert after.fingerprint == TRUTH.fingerprint
    assert (after.name, after.title, after.rule) == (TRUTH.name, TRUTH.title, TRUTH.rule)
    assert (after.database, after.queries) == (TRUTH.database, TRUTH.queries)
    assert [right.tolist() for right in after.positives] == [[0], [], [0, 3]]
    assert {name: own.tolist() for name, own in after.conditions.items()} == {"day": [0, 1], "night": [2]}


def test_the_same_inputs_have_the_same_identity_whatever_the_machine():
    first = a_record()
    later = made_record(TRUTH, ROWS, evaluated=[[0, 2], [1, 2]], confidence=first.confidence, timings={"fit": 9.0},
                        versions={"tfa": "9"}, hardware={"machine": "other"})  # fmt: skip
    assert later.identity == first.identity
    assert made_record(TRUTH, ROWS).identity != first.identity


def test_an_existing_record_is_never_overwritten(file: Path):
    before = file.read_bytes()
    with pytest.raises(BadRecord, match="never overwritten"):
        a_record().write(file)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values["head"].update(title="better"),
        lambda values: values.update(rankings=pack(np.zeros((3, 2, 1, 4), np.uint16))),
        lambda values: values.pop("identity"),
    ],
)
def test_an_edited_record_is_refused(file: Path, change: Any):
    edited(file, change)
    with pytest.raises(BadRecord, match="was edited"):
        Record.read(file)


def test_timings_are_no_part_of_what_a_record_vouches_for(file: Path):
    edited(file, lambda values: values.update(timings={"fit": 2.0}))
    assert Record.read(file).timings == {"fit": 2.0}


def test_an_edited_dataset_is_refused(file: Path):
    truth = file.parents[1] / TRUTH_FILE
    edited(truth, lambda values: values.update(positives=["0", "1", "0 3"]))
    with pytest.raises(BadRecord, match="was edited"):
        truth_of(file)
    edited(truth, lambda values: values.update(positives=["zero"]))
    with pytest.raises(BadRecord, match="is damaged"):
        Truth.read(truth.parent)


def test_a_truncated_file_is_refused(file: Path):
    text = file.read_text("utf-8")
    file.write_text(text[: len(text) // 2], "utf-8")
    with pytest.raises(BadRecord, match="cannot be read"):
        Record.read(file)


def test_a_record_without_a_part_is_refused(file: Path):
    edited(file, lambda values: values.pop("rankings"))
    with pytest.raises(BadRecord, match=r"is damaged.*rankings"):
        Record.read(file)


def test_another_version_or_format_is_refused(file: Path):
    edited(file, lambda values: values.update(version=99))
    with pytest.raises(BadRecord, match="version 99; this release reads version 1"):
        Record.read(file)
    edited(file, lambda values: values.update(format="other"))
    with pytest.raises(BadRecord, match="not a tfa-record file"):
        Record.read(file)
    file.write_text("[]", "utf-8")
    with pytest.raises(BadRecord, match="not a tfa-record file"):
        Record.read(file)


@pytest.mark.parametrize("kind", ["|O", "<c16", "|V8", "<U4"])
def test_a_packed_array_of_a_forbidden_type_is_refused(file: Path, kind: str):
    edited(file, lambda values: values["rankings"].update(type=kind))
    with pytest.raises(BadRecord, match="allowed are"):
        Record.read(file)


@pytest.mark.parametrize(
    "damage", [{"shape": [9, 9]}, {"xz": "AAAA"}, {"xz": 'not base85: "quoted"'}, {"shape": None}, {"shape": ["x"]}]
)
def test_a_damaged_array_is_refused(damage: dict[str, Any]):
    packed = pack(np.arange(6, dtype=np.uint16).reshape(2, 3))
    with pytest.raises(BadRecord, match="damaged"):
        unpack({**packed, **damage})


@pytest.mark.parametrize("dtype", ["bool", "u1", "u2", "u4", "i8", "f2", "f4", "f8", ">f4"])
def test_arrays_are_packed_exactly(dtype: str):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    again = unpack(json.loads(json.dumps(pack(array))))
    assert again.dtype == array.dtype.newbyteorder("<")
    assert np.array_equal(again, array)


def test_empty_arrays_are_packed():
    assert unpack(pack(np.empty((0, 3), np.float32))).shape == (0, 3)


def test_records_are_found_below_a_folder_and_alone(file: Path, tmp_path: Path):
    (tmp_path / "town" / ".vlad.json.x.json").write_text("{}")
    assert find_records(tmp_path) == find_records(tmp_path / "town") == find_records(file) == [file]
    assert file == record_path(tmp_path, "town", "tiny@28", "vlad")
    assert record_path(tmp_path, "town", "org/big", "vlad").parent.parent == tmp_path / "town"
    with pytest.raises(BadRecord, match="tfa bench run"):
        find_records(tmp_path / "nowhere")
