"""Records and datasets on disk: exact, never overwritten, refused when damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.synthetic_records import NOTHING, ranking, synthetic_record, synthetic_truth, written
from tfa.evaluate.judgement import Z_SCORE
from tfa_bench.array_json import BadRecord, pack, read_packed, unpack, write_packed
from tfa_bench.ranking_codes import pack_rankings, unpack_rankings
from tfa_bench.records import TRUTH_FILE, Record, ScoreSample, Truth, find_records, record_path, truth_of

TRUTH = synthetic_truth([[0], [], [0, 3]], conditions={"day": [0, 1], "night": [2]})
ROWS = [[[ranking([0])], [[NOTHING] * 4]], [[[NOTHING] * 4], [ranking([1])]], [[ranking([3])], [ranking([2, 0])]]]


def a_record() -> Record:
    confidence = [[[2.5], [np.nan]], [[np.nan], [1.25]], [[0.5], [3.0]]]
    return synthetic_record(TRUTH, ROWS, evaluated=[[0, 2], [1, 2]], confidence=confidence)


def edited(path: Path, change: Any) -> None:
    values = json.loads(path.read_text("utf-8")) if path.name == TRUTH_FILE else read_packed(path)
    change(values)
    if path.name == TRUTH_FILE:
        path.write_text(json.dumps(values), "utf-8")
    else:
        write_packed(path, values)


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
    assert np.array_equal(after.sample.scores, before.sample.scores)
    assert after.confidence_kinds == (Z_SCORE,)
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
    later = synthetic_record(TRUTH, ROWS, evaluated=[[0, 2], [1, 2]], confidence=first.confidence, timings={"fit": 9.0},
                        versions={"tfa": "9"}, hardware={"machine": "other"})  # fmt: skip
    assert later.identity == first.identity
    assert synthetic_record(TRUTH, ROWS).identity != first.identity


def test_an_existing_record_is_never_overwritten(file: Path):
    before = file.read_bytes()
    with pytest.raises(BadRecord, match="never overwritten"):
        a_record().write(file)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values["head"].update(title="better"),
        lambda values: values.update(rankings=pack_rankings(np.tile(np.arange(4, dtype=np.uint16), (3, 2, 1, 1)))),
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
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
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
    edited(file, lambda values: values.clear())
    with pytest.raises(BadRecord, match="not a tfa-record file"):
        Record.read(file)


@pytest.mark.parametrize("kind", ["|O", "<c16", "|V8", "<U4"])
def test_a_packed_array_of_a_forbidden_type_is_refused(file: Path, kind: str):
    edited(file, lambda values: values["confidence"].update(type=kind))
    with pytest.raises(BadRecord, match="allowed are"):
        Record.read(file)


@pytest.mark.parametrize(
    "damage", [{"shape": [9, 9]}, {"lzma": "AAAA"}, {"lzma": 'not base85: "quoted"'}, {"shape": None}, {"shape": ["x"]}]
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
    (tmp_path / "town" / ".vlad.json.xz.x.json.xz").write_text("{}")
    assert find_records(tmp_path) == find_records(tmp_path / "town") == find_records(file) == [file]
    assert file == record_path(tmp_path, "town", "tiny@28", "vlad")
    assert record_path(tmp_path, "town", "org/big", "vlad").parent.parent == tmp_path / "town"
    with pytest.raises(BadRecord, match="tfa bench run"):
        find_records(tmp_path / "nowhere")


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 30))
def test_rankings_are_packed_exactly(seed: int, depth: int, images: int):
    generator = np.random.default_rng(seed)
    queries, splits, replicas = generator.integers(1, 5, 3)
    depth, kind = min(depth, images), generator.choice([np.uint8, np.uint16, np.uint32])
    rankings = np.full((queries, splits, replicas, depth), np.iinfo(kind).max, kind)
    for place in np.ndindex(queries, splits, replicas):
        if generator.random() < 0.8:  # the others were not evaluated
            rankings[place] = generator.permutation(images)[:depth]
    again = unpack_rankings(json.loads(json.dumps(pack_rankings(rankings))))
    assert again.dtype == rankings.dtype
    assert np.array_equal(again, rankings)


def test_a_ranking_in_its_querys_usual_order_takes_no_room():
    images = np.stack([np.random.default_rng(query).permutation(900)[:20] for query in range(50)])
    rankings = np.tile(images[:, None, None], (1, 10, 3, 1)).astype(np.uint16)
    packed = pack_rankings(rankings)
    assert not unpack(packed["codes"]).any()
    assert len(json.dumps(packed)) < 1.3 * len(json.dumps(pack(images.astype(np.uint16))))


def test_a_ranking_that_names_an_image_twice_is_refused():
    with pytest.raises(BadRecord, match="names an image twice"):
        pack_rankings(np.zeros((1, 1, 1, 2), np.uint8))


@pytest.mark.parametrize("damage", [{"shape": [3, 3]}, {"codes": None}, {"type": "<f4"}, {"counts": "orders"}])
def test_damaged_rankings_are_refused(damage: dict[str, Any]):
    packed = pack_rankings(np.arange(24, dtype=np.uint16).reshape(2, 2, 1, 6))
    if damage == {"counts": "orders"}:
        damage = {"counts": packed["orders"]}
    with pytest.raises(BadRecord, match="packed"):
        unpack_rankings({**packed, **damage})


def test_a_sample_keeps_256_steps_and_no_more():
    scores = np.array([[0.0, 0.5, np.nan], [1.0, -np.inf, np.inf]])
    sample = ScoreSample.of(np.arange(2), np.arange(3), scores)
    assert np.abs(sample.scores - [[0, 0.5, 0], [1, 0, 1]]).max() < 1 / 255
    assert ScoreSample.of(np.arange(1), np.arange(2), np.ones((1, 2))).scores.tolist() == [[1, 1]]
    assert ScoreSample.of(np.arange(0), np.arange(0), np.ones((0, 0))).scores.size == 0
