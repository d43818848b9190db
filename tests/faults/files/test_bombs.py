"""Small files that expand to huge, endless or executable content: one error each, within bounded memory."""

from __future__ import annotations

import contextlib
import io
import pickle
import resource
import signal
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from tests.benchmarks.datasets.trees import with_npy_header
from tests.benchmarks.synthetic_records import ranking, synthetic_record, synthetic_truth
from tests.benchmarks.zip_members import read_member, replace_member
from tests.encoders.tiny import TINY
from tests.faults.conftest import Campaign
from tests.photos.recordings.made import write_video
from tfa.core.files import BadFile, map_tensors
from tfa.encoders.released_words import load_vocabulary
from tfa.encoders.weights import resolve_weights
from tfa.errors import BadPositions, BadRecording, BadSpec, BadWeights, TfaError
from tfa.evaluate.positives import BadEvaluation, read_positives
from tfa.photos.positions import read_positions_csv
from tfa.photos.recordings import frames as recording_frames
from tfa.photos.recordings import recording
from tfa_bench.datasets.files import BadDataset, read_table
from tfa_bench.datasets.layouts.anyloc import read_positives as read_pairs
from tfa_bench.datasets.safe_pickle import load_object_array
from tfa_bench.records import BadRecord, Record, RecordPath, Truth

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
    return text(npy_bytes(shape, kind, data))


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


def record(change: Callable[[bytes], bytes], method: int = zipfile.ZIP_STORED) -> Write:
    """An archive of records, in which the npz file of one was changed."""

    def write(path: Path) -> None:
        truth = synthetic_truth([[0], [1]])
        synthetic_record(truth, [[[ranking([0])]], [[ranking([1])]]]).write(RecordPath(path, "vlad"))
        content = path.read_bytes()
        path.write_bytes(replace_member(content, "vlad.npz", change(read_member(content, "vlad.npz")), method))

    return write


def read_record(path: Path) -> Record:
    return Record.read(RecordPath(path, "vlad"))


def member(name: str, content: bytes, method: int = zipfile.ZIP_LZMA) -> Callable[[bytes], bytes]:
    return lambda npz: replace_member(npz, name, content, method)


def patched(name: str, patch: Callable[[bytearray, zipfile.ZipInfo], None]) -> Callable[[bytes], bytes]:
    """Change bytes of an npz file, by the directory entry of one of its members."""

    def change(npz: bytes) -> bytes:
        content = bytearray(npz)
        with zipfile.ZipFile(io.BytesIO(npz)) as archive:
            patch(content, archive.getinfo(name))
        return bytes(content)

    return change


def claim_size(size: int) -> Callable[[bytearray, zipfile.ZipInfo], None]:
    """Another uncompressed size in the directory of a zip file."""

    def patch(content: bytearray, info: zipfile.ZipInfo) -> None:
        entry = content.index(b"PK\1\2")
        while content[entry + 46 : entry + 46 + len(info.filename)] != info.filename.encode():
            entry = content.index(b"PK\1\2", entry + 1)
        struct.pack_into("<I", content, entry + 24, size)

    return patch


def claim_dictionary(content: bytearray, info: zipfile.ZipInfo) -> None:
    struct.pack_into("<I", content, info.header_offset + 30 + len(info.filename) + 5, 0xFFFF_FFFF)


def npy_bytes(shape: str, kind: str, data: bytes = b"") -> bytes:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def mcap(content: bytes, claimed: int, listed: int = 1) -> Write:
    """An MCAP file of one zstd chunk, which its index lists several times."""

    def text_of(value: bytes) -> bytes:
        return struct.pack("<I", len(value)) + value

    def make_record(kind: int, *parts: bytes) -> bytes:
        body = b"".join(parts)
        return struct.pack("<BQ", kind, len(body)) + body

    magic = b"\x89MCAP0\r\n"
    data = magic + make_record(0x01, text_of(b"ros2"), text_of(b"tfa"))
    begin, count, kind = len(data), struct.pack("<Q", len(content)), text_of(b"zstd")
    chunk = make_record(0x06, struct.pack("<QQQI", 0, 9, claimed, 0), kind, count, content)
    place = struct.pack("<QQQQ", 0, 9, begin, len(chunk))
    messages = text_of(struct.pack("<HQ", 1, begin + len(chunk))) + bytes(8)
    image = text_of(b"sensor_msgs/msg/CompressedImage"), text_of(b"ros2msg"), text_of(b"")
    summary = make_record(0x03, struct.pack("<H", 1), *image)
    summary += make_record(0x04, struct.pack("<HH", 1, 1), text_of(b"/image"), text_of(b"cdr"), text_of(b""))
    summary += make_record(0x08, place, messages, kind, count, struct.pack("<Q", claimed)) * listed
    counts = text_of(struct.pack("<HQ", 1, 1))
    summary += make_record(0x0B, struct.pack("<QHIIIIQQ", 1, 1, 1, 0, 0, listed, 0, 9), counts)
    data += chunk + make_record(0x0F, bytes(4))
    return text(data + summary + make_record(0x02, struct.pack("<QQI", len(data), 0, 0)) + magic)


def zeros(blocks: int) -> bytes:
    """A zstd frame of so many times 128 kB, four bytes each."""
    head = b"\x28\xb5\x2f\xfd\x00\x38"  # magic number, no flags, a window of 128 kB
    return head + (b"\x02\x00\x10\x00" * blocks) + b"\x01\x00\x00"


def read_recording(path: Path, memory: int = 1 << 27) -> None:
    with mock.patch.object(recording, "_MEMORY", memory), recording_frames.open_recording(path) as opened:
        for frame in opened.frames():
            frame.picture()


CASES: dict[str, tuple[str, Write, Read, type[TfaError], str]] = {
    "nested positives": ("p.json", text('{"q": ' + "[" * DEEP), read_positives, BadEvaluation, "nested too deep"),
    "nested truth": ("dataset.json", text("[" * DEEP), lambda p: Truth.read(p.parent), BadRecord, "nested too deep"),
    "infinite number": ("p.json", text('{"q": [1e999]}'), read_positives, BadEvaluation, "is too large"),
    "record of nests": (
        "records.zip", record(member("facts.json", b"[" * DEEP)), read_record, BadRecord, "nested too deep",
    ),
    "array larger than its size": (
        "records.zip", record(patched("confidence.npy", claim_size(16))), read_record, BadRecord, "CRC|not a complete",
    ),
    "array of a shape that lies": (
        "records.zip", record(member("confidence.npy", npy_bytes("(1000000, 1000000, 1)", "<f4"))),
        read_record, BadRecord, "0 follow",
    ),
    "many large arrays": (
        "records.zip", record(patched("rankings.npy", claim_size(4_000_000_000))),
        read_record, BadRecord, "its members take",
    ),
    "array that needs gigabytes to expand": (
        "records.zip", record(patched("rankings.npy", claim_dictionary)), read_record, BadRecord, "to decompress",
    ),
    "array of texts": (
        "records.zip", record(member("rankings.npy", npy_bytes("(1,)", "<U1", bytes(4)))),
        read_record, BadRecord, "allowed are",
    ),
    "array compressed otherwise": (
        "records.zip", record(member("rankings.npy", bytes(5_000_000), zipfile.ZIP_BZIP2)),
        read_record, BadRecord, "not compressed with LZMA",
    ),
    "archive compressed": (
        "records.zip", record(lambda npz: npz + bytes(5_000_000), zipfile.ZIP_DEFLATED),
        read_record, BadRecord, "must be stored",
    ),
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
        load_vocabulary, BadSpec, "more than it stores",
    ),
    "bag of a chunk of gigabytes": (
        "b.mcap", mcap(zeros(1), 2**33), read_recording, BadRecording, "claim to expand to 8,589,934,592",
    ),
    "bag that lists a chunk many times": (
        "b.mcap", mcap(zeros(100), 2**17 * 100, 1000), read_recording, BadRecording, "claim to expand",
    ),
    "bag of a chunk that lies": (
        "b.mcap", mcap(zeros(8000), 2**17), read_recording, BadRecording, "more than 128 MiB of memory",
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
        read_table, BadDataset, "line 2.*not valid CSV",
    ),
    "header of tensors that lies": (
        "w.safetensors", tensors(b"{}", 2**63),
        lambda p: resolve_weights(CARD, p), BadWeights, "not a complete safetensors",
    ),
    "tensors nested": ("w.safetensors", tensors(b"[" * DEEP), map_tensors, BadFile, "nested too deep"),
    "tensors that are a list": ("w.safetensors", tensors(b"[1]"), map_tensors, BadFile, "not an object"),
    "tensor of a shape that lies": (
        "w.safetensors", tensors(b'{"a":{"dtype":"F64","shape":[1000000,1000000],"data_offsets":[0,0]}}'),
        map_tensors, BadFile, "not a tensor",
    ),
    "archive that unpacks to more": (
        "w.pth", zipped,
        lambda p: resolve_weights(CARD, p), BadWeights, "more than its size",
    ),
    "checkpoint that contains itself": (
        "w.pth", endless,
        lambda p: resolve_weights(CARD, p), BadWeights, "must be a tensor",
    ),
    "memo of two billion": (
        "g.npy", pickled(b"\x80\x02]r\xff\xff\xff\x7f."), load_object_array, BadDataset, "too large for 1 objects",
    ),
    "lists that are all one": ("g.npy", pickled(doubled(60)), load_object_array, BadDataset, "represents more than"),
    "list in itself": ("g.npy", pickled(b"\x80\x02]q\0h\0a."), load_object_array, BadDataset, "contains itself"),
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
        lambda p: read_pairs(p, 4, 1), BadDataset, "9 is not the index",
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
    campaign.count("small files that expand to huge or endless data", 1)


@pytest.mark.parametrize(
    ("file", "read"),
    [
        ("w.pth", lambda path: resolve_weights(CARD, path)),
        ("w.pt", load_vocabulary),
        ("g.npy", load_object_array),
        ("w.npy", load_vocabulary),
        ("records.zip", read_record),
    ],
    ids=["weights", "words", "truth", "words in npy", "records"],
)
def test_what_a_pickle_would_run_is_not_run(file: str, read: Read, tmp_path: Path, campaign: Campaign) -> None:
    mark, path = tmp_path / "executed", tmp_path / file
    objects = with_npy_header(pickle.dumps(Trap(mark)), (1,))
    if path.suffix == ".npy":
        path.write_bytes(objects)
    elif path.suffix == ".zip":
        record(member("rankings.npy", objects))(path)
    else:
        torch.save({"model": Trap(mark)}, path)
    with within_bounds(), pytest.raises(TfaError, match=file):
        read(path)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Trap(mark)))
    assert mark.exists()  # the trap works
    campaign.count("files that contain executable code", 1)


def test_a_compressed_record_is_not_expanded_beyond_its_size(tmp_path: Path) -> None:
    change = patched("rankings.npy", claim_size(100_000))
    record(lambda npz: change(member("rankings.npy", bytes(200_000_000))(npz)))(tmp_path / "records.zip")
    tracemalloc.start()
    with pytest.raises(BadRecord, match=r"records\.zip"):
        read_record(tmp_path / "records.zip")
    assert tracemalloc.get_traced_memory()[1] < 100_000_000
    tracemalloc.stop()


def test_an_archive_larger_than_its_bound_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "records.zip", "wb") as file:
        file.truncate(10**12)
    with within_bounds(), pytest.raises(BadRecord, match=r"records\.zip.*larger than the limit of 500,000,000 bytes"):
        read_record(tmp_path / "records.zip")


def test_a_file_larger_than_its_bound_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "p.json", "wb") as file:
        file.truncate(10**12)  # a hole, which takes no room
    with within_bounds(), pytest.raises(BadEvaluation, match=r"p\.json.*larger than the limit of 128,000,000 bytes"):
        read_positives(tmp_path / "p.json")


def test_a_video_is_read_within_its_limit_of_memory(tmp_path: Path) -> None:
    path = write_video(tmp_path / "v.mp4", frames=2)
    before = resource.getrlimit(resource.RLIMIT_AS)
    # Each thread of the decoder reserves 64 MiB.
    with mock.patch.object(recording, "_MEMORY", 1 << 29), recording_frames.open_recording(path) as opened:
        assert len(list(opened.frames())) == 2
        assert resource.getrlimit(resource.RLIMIT_AS) == before
        sizes = (1 << 20, 1 << 30)
        decoder = SimpleNamespace(
            decode=lambda _: (SimpleNamespace(width=8, height=8, pts=None, data=bytes(size)) for size in sizes)
        )
        with mock.patch.object(opened, "_container", decoder), pytest.raises(BadRecording, match="512 MiB of memory"):
            list(opened.frames())
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_recording_is_read_within_its_limit_of_processor_time(tmp_path: Path) -> None:
    (tmp_path / "b.mcap").write_bytes(b"")

    def loop() -> Iterator[int]:
        yield 1
        while True:
            pass

    with mock.patch.object(recording, "_SECONDS", 0.05):
        items = recording.iterate_limited(tmp_path / "b.mcap", loop())
        assert next(items) == 1
        with pytest.raises(BadRecording, match=r"b\.mcap takes more than 0\.05 s of processor time"):
            next(items)
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)
