"""Small files that stand for something huge, endless or executable: one error each, within a bounded memory."""

from __future__ import annotations

import contextlib
import json
import lzma
import pickle
import resource
import signal
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.benchmarks.datasets.trees import with_npy_header
from tests.benchmarks.synthetic_records import ranking, synthetic_record, synthetic_truth
from tests.encoders.tiny import TINY
from tests.faults.conftest import Campaign
from tfa.base.files import BadFile, map_tensors
from tfa.encoders.released_words import load_vocabulary
from tfa.encoders.weights import resolve_weights
from tfa.errors import BadPositions, BadSpec, BadWeights, TfaError
from tfa.evaluate.positives import BadEvaluation, read_positives
from tfa.photos.positions import read_positions_csv
from tfa_bench import array_json
from tfa_bench.array_json import BadRecord, pack, read_packed
from tfa_bench.datasets.files import BadDataset
from tfa_bench.datasets.layouts.gt_npy import read_positives as read_pairs
from tfa_bench.datasets.safe_pickle import load_object_array
from tfa_bench.datasets.text_tables import read_table
from tfa_bench.records import Record, Truth

MEMORY, SECONDS = 1 << 30, 60
DEEP = 20_000
Write, Read = Callable[[Path], object], Callable[[Path], object]
CARD = TINY["tiny-v2"]


@contextlib.contextmanager
def within_bounds() -> Iterator[None]:
    """A gigabyte more than the process has, and a minute."""
    used = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, before)


class Trap:
    """Leaves a mark if it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def text(content: str | bytes) -> Write:
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode())


def npy(shape: str, kind: str = "<f8", data: bytes = b"") -> Write:
    """A .npy file with any header, in Python's words."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return text(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data)


def tensors(header: bytes, length: int | None = None) -> Write:
    return text(struct.pack("<Q", len(header) if length is None else length) + header)


def pickled(content: bytes, shape: tuple[int, ...] = (1,)) -> Write:
    return text(with_npy_header(content, shape))


def doubled(times: int) -> bytes:
    """A list of two that are both the list before: 2^times values in a few bytes a time."""
    places = [bytes([place]) for place in range(times)]
    return b"\x80\x02]" + b"".join(b"q" + place + b"](h" + place + b"h" + place + b"e" for place in places) + b"."


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, 2))
        archive.writestr("archive/data/0", bytes(5_000_000))


def endless(path: Path) -> None:
    """A checkpoint that holds itself under the name of its weights."""
    state: dict[str, Any] = {}
    state["model"] = state
    torch.save(state, path)


def record(change: Callable[[dict[str, Any]], object]) -> Write:
    def write(path: Path) -> None:
        truth = synthetic_truth([[0], [1]])
        synthetic_record(truth, [[[ranking([0])]], [[ranking([1])]]]).write(path)
        values = read_packed(path)
        change(values)
        path.write_bytes(lzma.compress(json.dumps(values).encode()))

    return write


def deep_rankings(values: dict[str, Any]) -> None:
    depth = 2_000_000
    one, codes = np.zeros(1, np.uint8), np.zeros((depth, 1), np.uint8)
    values["rankings"] |= {"shape": [1, 1, 1, depth], "asked": pack(np.packbits([True])), "codes": pack(codes)}
    values["rankings"] |= {"counts": pack(one + 1), "orders": pack(one)}


CASES: dict[str, tuple[str, Write, Read, type[TfaError], str]] = {
    "nested positives": ("p.json", text('{"q": ' + "[" * DEEP), read_positives, BadEvaluation, "nested too deep"),
    "nested truth": ("dataset.json", text("[" * DEEP), lambda p: Truth.read(p.parent), BadRecord, "nested too deep"),
    "infinite number": ("p.json", text('{"q": [1e999]}'), read_positives, BadEvaluation, "too large a number"),
    "record of nests": (
        "r.json.xz", lambda p: p.write_bytes(lzma.compress(b"[" * DEEP)), Record.read, BadRecord, "nested too deep",
    ),
    "array larger than its shape": (
        "r.json.xz", record(lambda v: v["confidence"].update(pack(np.zeros(100_000)) | {"shape": [2, 1, 1]})),
        Record.read, BadRecord, "more than 16 bytes",
    ),
    "array of a shape that lies": (
        "r.json.xz", record(lambda v: v["confidence"].update(shape=[10**6, 10**6])),
        Record.read, BadRecord, "that are read",
    ),
    "many large arrays": (
        "r.json.xz", record(lambda v: v.update(folds=[[v["confidence"] | {"shape": [10**7]}] * 9])),
        Record.read, BadRecord, "its arrays take",
    ),
    "rankings too deep to unpack": ("r.json.xz", record(deep_rankings), Record.read, BadRecord, "codes of shape"),
    "words of a shape that lies": ("w.npy", npy("(1000000, 1000000)"), load_vocabulary, BadSpec, "0 follow"),
    "words without content": ("w.npy", npy("(1000000000000, 0)"), load_vocabulary, BadSpec, "rows without content"),
    "header of gigabytes": (
        "w.npy", text(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{"), load_vocabulary, BadSpec, "its header claims",
    ),
    "header of parentheses": ("w.npy", npy("(" * 3000), load_vocabulary, BadSpec, "npy format"),
    "words of a negative shape": ("w.npy", npy("(-1, 4)"), load_vocabulary, BadSpec, "npy format"),
    "words that are objects": (
        "w.npy", lambda p: np.save(p, np.array([{}], object), allow_pickle=True),
        load_vocabulary, BadSpec, "pickled objects",
    ),
    "words that are all one": (
        "w.pt", lambda p: torch.save(torch.ones(1).expand(10**6, 10**6), p),
        load_vocabulary, BadSpec, "more than it holds",
    ),
    "number of 400 digits": (
        "p.csv", text(f"file,x,y\na.jpg,{'9' * 400},0\n"),
        read_positions_csv, BadPositions, "must be a number",
    ),
    "number of 300 digits": (
        "p.csv", text(f"file,x,y\na.jpg,{'9' * 300},0\n"),
        read_positions_csv, BadPositions, "must be between",
    ),
    "NUL in positions": ("p.csv", text("file,x,y\na\0.jpg,1,0\n"), read_positions_csv, BadPositions, "NUL byte"),
    "endless line": (
        "p.csv", text("file,x,y\n" + "a" * 3_000_000),
        read_positions_csv, BadPositions, "line 2 has 3,000,000",
    ),
    "positions in UTF-16": (
        "p.csv", text("file,x,y\na,1,0\n".encode("utf-16")),
        read_positions_csv, BadPositions, "NUL|UTF-8",
    ),
    "positions in Latin-1": (
        "p.csv", text("file,x,y\né,1,0\n".encode("latin1")),
        read_positions_csv, BadPositions, "UTF-8",
    ),
    "field larger than a table's": (
        "t.csv", text("a,b\n" + "x" * 200_000 + ",1\n"),
        read_table, BadDataset, "line 2.*not CSV",
    ),
    "header of tensors that lies": (
        "w.safetensors", tensors(b"{}", 2**63),
        lambda p: resolve_weights(CARD, p), BadWeights, "not a whole safetensors",
    ),
    "tensors nested": ("w.safetensors", tensors(b"[" * DEEP), map_tensors, BadFile, "nested too deep"),
    "tensors that are a list": ("w.safetensors", tensors(b"[1]"), map_tensors, BadFile, "not an object"),
    "tensor of a shape that lies": (
        "w.safetensors", tensors(b'{"a":{"dtype":"F64","shape":[1000000,1000000],"data_offsets":[0,0]}}'),
        map_tensors, BadFile, "not a tensor",
    ),
    "archive that unpacks to more": (
        "w.pth", zipped,
        lambda p: resolve_weights(CARD, p), BadWeights, "more than it has",
    ),
    "checkpoint that holds itself": (
        "w.pth", endless,
        lambda p: resolve_weights(CARD, p), BadWeights, "must be a tensor",
    ),
    "memo of two billion": (
        "g.npy", pickled(b"\x80\x02]r\xff\xff\xff\x7f."), load_object_array, BadDataset, "numbers its 1. object",
    ),
    "lists that are all one": ("g.npy", pickled(doubled(60)), load_object_array, BadDataset, "stands for more than"),
    "list that holds itself": ("g.npy", pickled(b"\x80\x02]q\0h\0a."), load_object_array, BadDataset, "holds itself"),
    "pickle of nests": (
        "g.npy", pickled(b"\x80\x02" + b"]" * DEEP + b"a" * (DEEP - 1) + b"."),
        load_object_array, BadDataset, "not a readable",
    ),
    "truth of one number": (
        "g.npy", lambda p: np.save(p, np.array(3)),
        lambda p: read_pairs(p, 4, 1), BadDataset, "one value",
    ),
    "truth of huge numbers": (
        "g.npy", lambda p: np.save(p, np.array([[0, [10**400]]], object), allow_pickle=True),
        lambda p: read_pairs(p, 4, 1), BadDataset, "not a list of image numbers",
    ),
    "truth of infinite queries": (
        "g.npy", lambda p: np.save(p, np.array([[np.inf, [9]]], object), allow_pickle=True),
        lambda p: read_pairs(p, 4, 1), BadDataset, "9 is not the number",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_error_within_bounds(name: str, tmp_path: Path, campaign: Campaign) -> None:
    file, write, read, error, message = CASES[name]
    write(tmp_path / file)
    with within_bounds(), pytest.raises(error, match=message) as caught:
        read(tmp_path / file)
    assert file in str(caught.value)
    assert len(str(caught.value)) < 1000
    campaign.count("files that stand for something huge or endless", 1)


@pytest.mark.parametrize(
    ("file", "read"),
    [
        ("w.pth", lambda path: resolve_weights(CARD, path)),
        ("w.pt", load_vocabulary),
        ("g.npy", load_object_array),
        ("w.npy", load_vocabulary),
    ],
    ids=["weights", "words", "truth", "words in npy"],
)
def test_what_a_pickle_would_run_is_not_run(file: str, read: Read, tmp_path: Path, campaign: Campaign) -> None:
    mark, path = tmp_path / "executed", tmp_path / file
    if path.suffix == ".npy":
        path.write_bytes(with_npy_header(pickle.dumps(Trap(mark)), (1,)))
    else:
        torch.save({"model": Trap(mark)}, path)
    with within_bounds(), pytest.raises(TfaError, match=file):
        read(path)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Trap(mark)))
    assert mark.exists()  # the trap works
    campaign.count("files that would run a program", 1)


def test_a_compressed_record_is_not_expanded_beyond_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_json, "JSON_BYTES", 100_000)
    path = tmp_path / "r.json.xz"
    path.write_bytes(lzma.compress(b" " * 30_000_000, preset=0))
    with pytest.raises(BadRecord, match=r"r\.json\.xz.*more than 100,000 bytes"):
        Record.read(path)


def test_a_file_larger_than_its_bound_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "p.json", "wb") as file:
        file.truncate(10**12)  # a hole, which takes no room
    with within_bounds(), pytest.raises(BadEvaluation, match=r"p\.json.*larger than the 128,000,000 bytes"):
        read_positives(tmp_path / "p.json")
