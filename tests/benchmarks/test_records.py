"""Records and datasets on disk: exact, never overwritten, refused when damaged, written by several at once."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from tests.benchmarks.synthetic_records import NOTHING, named, ranking, synthetic_record, synthetic_truth, written
from tests.benchmarks.zip_members import replace_member
from tfa.evaluate.judgement import Z_SCORE
from tfa_bench.records import (
    TRUTH_FILE,
    BadRecord,
    Record,
    RecordPath,
    ScoreSample,
    Truth,
    decode_npz,
    encode_npz,
    find_records,
    record_path,
    truth_of,
)

TRUTH = synthetic_truth([[0], [], [0, 3]], conditions={"day": [0, 1], "night": [2]})
ROWS = [[[ranking([0])], [[NOTHING] * 4]], [[[NOTHING] * 4], [ranking([1])]], [[ranking([3])], [ranking([2, 0])]]]


def a_record(head: str = "vlad") -> Record:
    confidence = [[[2.5], [np.nan]], [[np.nan], [1.25]], [[0.5], [3.0]]]
    return synthetic_record(TRUTH, ROWS, evaluated=[[0, 2], [1, 2]], confidence=confidence, head=named(head))


def edit(path: RecordPath, change: Callable[[dict[str, Any], dict[str, np.ndarray]], object]) -> None:
    facts, arrays = decode_npz(path.read_bytes())
    change(facts, arrays)
    path.write_bytes(encode_npz(facts, arrays), replace=True)


def edit_truth(folder: Path, **changed: Any) -> None:
    values = json.loads((folder / TRUTH_FILE).read_text("utf-8"))
    (folder / TRUTH_FILE).write_text(json.dumps({**values, **changed}), "utf-8")


@pytest.fixture
def file(tmp_path: Path) -> RecordPath:
    return written(tmp_path, TRUTH, a_record())[0]


def test_a_record_survives_the_disk(file: RecordPath):
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
    assert np.array_equal(after.sample.scores, before.sample.scores)
    assert after.confidence_kinds == (Z_SCORE,)
    assert [after.evaluated(split).tolist() for split in (0, 1)] == [[0, 2], [1, 2]]
    assert (after.nothing, after.depth, after.name) == (NOTHING, 4, "vlad")


def test_a_dataset_survives_the_disk(file: RecordPath):
    after = truth_of(file)
    assert after.fingerprint == TRUTH.fingerprint
    assert (after.name, after.title, after.rule) == (TRUTH.name, TRUTH.title, TRUTH.rule)
    assert (after.database, after.queries) == (TRUTH.database, TRUTH.queries)
    assert [right.tolist() for right in after.positives] == [[0], [], [0, 3]]
    assert {name: own.tolist() for name, own in after.conditions.items()} == {"day": [0, 1], "night": [2]}


def test_the_same_inputs_have_the_same_identity_whatever_the_machine():
    first = a_record()
    later = synthetic_record(TRUTH, ROWS, evaluated=[[0, 2], [1, 2]], confidence=first.confidence, timings={"fit": 9.0},
                        versions={"tfa": "9"}, hardware={"machine": "other"})  # fmt: skip
    assert later.identity == first.identity
    assert synthetic_record(TRUTH, ROWS).identity != first.identity


def test_an_existing_record_is_never_overwritten(file: RecordPath):
    before = file.read_bytes()
    with pytest.raises(BadRecord, match="never overwritten"):
        a_record().write(file)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda facts, arrays: facts["head"].update(title="better"),
        lambda facts, arrays: facts["folds"][0][0].update(evaluated=[0, 1]),
        lambda facts, arrays: arrays.update(rankings=np.tile(np.arange(4, dtype=np.uint16), (3, 2, 1, 1))),
        lambda facts, arrays: facts.pop("identity"),
    ],
)
def test_an_edited_record_is_refused(file: RecordPath, change: Any):
    edit(file, change)
    with pytest.raises(BadRecord, match="was edited"):
        Record.read(file)


def test_timings_are_no_part_of_what_a_record_vouches_for(file: RecordPath):
    edit(file, lambda facts, arrays: facts.update(timings={"fit": 2.0}))
    assert Record.read(file).timings == {"fit": 2.0}


def test_an_edited_dataset_is_refused(file: RecordPath):
    edit_truth(file.dataset_folder, positives=["0", "1", "0 3"])
    with pytest.raises(BadRecord, match="was edited"):
        truth_of(file)
    edit_truth(file.dataset_folder, positives=["zero"])
    with pytest.raises(BadRecord, match="is damaged"):
        Truth.read(file.dataset_folder)


def test_a_truncated_file_is_refused(file: RecordPath):
    archive, content = file.archive.read_bytes(), file.read_bytes()
    file.write_bytes(content[: len(content) // 2], replace=True)
    with pytest.raises(BadRecord, match=r"vlad\.npz cannot be read"):
        Record.read(file)
    for size in (len(archive) // 2, len(archive) - 30, archive.rindex(b"PK\1\2")):  # the last: ends as its record does
        file.archive.write_bytes(archive[:size])
        with pytest.raises(BadRecord, match=r"records\.zip cannot be read"):
            Record.read(file)
        with pytest.raises(BadRecord, match=r"records\.zip cannot be read"):
            find_records(file.archive.parent)
    file.archive.unlink()
    with pytest.raises(BadRecord, match="does not exist"):
        Record.read(file)


def test_a_record_without_a_part_is_refused(file: RecordPath):
    edit(file, lambda facts, arrays: arrays.pop("rankings"))
    with pytest.raises(BadRecord, match=r"is damaged.*rankings"):
        Record.read(file)


def test_another_version_or_format_is_refused(file: RecordPath):
    edit(file, lambda facts, arrays: facts.update(version=99))
    with pytest.raises(BadRecord, match="version 99; this release reads version 1"):
        Record.read(file)
    edit(file, lambda facts, arrays: facts.update(format="other"))
    with pytest.raises(BadRecord, match="not a tfa-record file"):
        Record.read(file)
    edit(file, lambda facts, arrays: facts.clear())
    with pytest.raises(BadRecord, match="not a tfa-record file"):
        Record.read(file)


@pytest.mark.parametrize("kind", ["|O", "<c16", "|V8", "<U4", ">f4"])
def test_an_array_of_a_forbidden_type_is_refused(file: RecordPath, kind: str):
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((3, 2, 1), kind))
    file.write_bytes(replace_member(file.read_bytes(), "confidence.npy", buffer.getvalue()), replace=True)
    with pytest.raises(BadRecord, match="allowed are"):
        Record.read(file)


@pytest.mark.parametrize(
    "change",
    [
        lambda facts, arrays: arrays.update(rankings=arrays["rankings"][0]),
        lambda facts, arrays: arrays.update(rankings=arrays["rankings"].astype(np.int64)),
        lambda facts, arrays: arrays.update(confidence=arrays["rankings"]),
        lambda facts, arrays: arrays.update(sample=arrays["sample"][0]),
        lambda facts, arrays: facts["folds"][0][0].update(evaluated=[0.5]),
        lambda facts, arrays: facts["folds"][0][0].update(evaluated="02"),
        lambda facts, arrays: facts["folds"][0][0].update(calibration=[-1]),
        lambda facts, arrays: facts["folds"][0][0].update(calibration=[10**30]),
        lambda facts, arrays: facts.update(folds=3),
    ],
)
def test_a_damaged_record_is_refused(file: RecordPath, change: Any):
    edit(file, change)
    with pytest.raises(BadRecord, match=r"vlad\.npz is damaged"):
        Record.read(file)


@pytest.mark.parametrize("dtype", ["bool", "u1", "u2", "u4", "i8", "f2", "f4", "f8", ">f4"])
def test_facts_and_arrays_are_encoded_exactly(dtype: str):
    array, facts = np.arange(6).reshape(2, 3).T.astype(dtype), {"text": "ü", "list": [1, 0.1, None]}
    content = encode_npz(facts, {"one": array, "none": np.empty((0, 3), np.float32)})
    again, arrays = decode_npz(content)
    assert again == facts
    assert arrays["one"].dtype == array.dtype.newbyteorder("<")
    assert np.array_equal(arrays["one"], array)
    assert arrays["none"].shape == (0, 3)
    assert content == encode_npz(facts, {"none": np.empty((0, 3), np.float32), "one": array})


def test_numpy_reads_a_record(file: RecordPath):
    with zipfile.ZipFile(file.archive) as archive, np.load(archive.open("vlad.npz"), allow_pickle=False) as arrays:
        assert np.array_equal(arrays["rankings"], a_record().rankings)
        assert json.loads(arrays["facts.json"])["head"]["name"] == "vlad"


def test_heads_of_one_archive_do_not_disturb_each_other(file: RecordPath, tmp_path: Path):
    before = file.read_bytes()
    [other] = written(tmp_path, TRUTH, a_record("gem"))
    assert other.archive == file.archive
    assert [path.head for path in find_records(tmp_path)] == ["gem", "vlad"]
    assert file.read_bytes() == before
    edit(other, lambda facts, arrays: facts.update(timings={}))
    assert [Record.read(path).timings for path in find_records(tmp_path)] == [{}, {"fit": 1.5}]
    assert file.read_bytes() == before


def test_an_archive_depends_on_its_records_only(tmp_path: Path):
    one, other = (written(tmp_path / str(n), TRUTH, *map(a_record, n))[0] for n in (("gem", "vlad"), ("vlad", "gem")))
    assert one.archive.read_bytes() == other.archive.read_bytes()


def test_writers_of_one_archive_wait_for_each_other(tmp_path: Path):
    heads, start = [f"head-{number}" for number in range(8)], Barrier(8)

    def write(head: str) -> None:
        start.wait()
        a_record(head).write(record_path(tmp_path, "town", "tiny@28", head))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, heads))
    assert [path.head for path in find_records(tmp_path)] == heads
    assert [Record.read(path).name for path in find_records(tmp_path)] == heads
    assert [path.name for path in tmp_path.glob("town/tiny@28/*")] == ["records.zip"]


def test_records_are_found_below_a_folder_and_alone(file: RecordPath, tmp_path: Path):
    (tmp_path / "town" / "tiny@28" / ".records.zip.0123.tmp").write_text("unfinished")
    assert find_records(tmp_path) == find_records(tmp_path / "town") == find_records(file.archive) == [file]
    assert file == record_path(tmp_path, "town", "tiny@28", "vlad")
    assert record_path(tmp_path, "town", "org/big", "vlad").dataset_folder == tmp_path / "town"
    with pytest.raises(BadRecord, match="tfa bench run"):
        find_records(tmp_path / "nowhere")


def test_a_sample_keeps_256_steps_and_no_more():
    scores = np.array([[0.0, 0.5, np.nan], [1.0, -np.inf, np.inf]])
    sample = ScoreSample.of(np.arange(2), np.arange(3), scores)
    assert np.abs(sample.scores - [[0, 0.5, 0], [1, 0, 1]]).max() < 1 / 255
    assert ScoreSample.of(np.arange(1), np.arange(2), np.ones((1, 2))).scores.tolist() == [[1, 1]]
    assert ScoreSample.of(np.arange(0), np.arange(0), np.ones((0, 0))).scores.size == 0
