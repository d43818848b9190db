"""Bags of ORB words: the vocabulary file, the tree and the scores."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from PIL import Image

from studies import orb_words
from studies.orb_words import (
    Vocabulary,
    build_tree,
    describe_bags,
    find_vocabulary,
    read_vocabulary,
    score_bags,
    unpack_chunks,
)
from tfa.core.files import BadFile
from tfa.core.progress import as_progress
from tfa.errors import MissingExtra

PARENTS = (0, 0, 1, 1, 2, 2)  # of nodes 1 … 6: two levels of two children
WEIGHTS = (0.0, 0.0, 1.0, 2.0, 0.0, 4.0)


def make_nodes() -> np.ndarray:
    rng = np.random.default_rng(0)
    nodes = np.zeros(len(PARENTS), orb_words._NODE)
    nodes["id"], nodes["parent"], nodes["weight"] = np.arange(1, 7), PARENTS, WEIGHTS
    nodes["form"] = (32, 1, 0)
    nodes["center"] = rng.integers(0, 2**63, (6, 4), np.uint64)
    return nodes


def pack(content: bytes) -> bytes:
    """Return a chunk of literal bytes: a control word of zeros before every 31 of them."""
    parts = [content[start : start + 31] for start in range(0, len(content), 31)]
    data = b"".join(struct.pack("<I", 1 << 31) + part for part in parts)
    return struct.pack("<BII", 0x47, 9 + len(data), len(content)) + data


def write_vocabulary(file, head=(2, 2, 0, 0), signature=88877711233):
    content = struct.pack("<4i", *head) + make_nodes().tobytes()
    chunks = [content[start : start + 100] for start in range(0, len(content), 100)]
    top = struct.pack("<QBII", signature, 1, len(PARENTS) + 1, len(chunks))
    file.write_bytes(top + b"".join(pack(chunk) for chunk in chunks))
    return file


@pytest.fixture
def vocabulary() -> Vocabulary:
    return build_tree(make_nodes(), 2)


def test_copies_repeat_bytes_with_the_same_hash():
    abc = ord("a") | ord("b") << 8 | ord("c") << 16
    spot = ((abc >> 12) ^ abc) & 4095
    short = struct.pack("<H", spot << 4 | 4)  # 6 bytes from the position of "abc", which overlap themselves
    long = struct.pack("<HB", spot << 4, 20)  # 20 bytes from the copy, whose first position was hashed too
    tokens = struct.pack("<I", 1 << 31 | 0b101000) + b"abc" + short + b"d" + long + b"!"
    chunk = struct.pack("<BBB", 0x45, 3 + len(tokens), 31) + tokens
    begun = b"abcabcabcd"
    copied = (begun[3:] * 3)[:20]
    assert unpack_chunks(b"xx" + chunk + pack(b"another"), 2, 2) == begun + copied + b"!" + b"another"


def test_a_vocabulary_file_is_read(tmp_path, vocabulary):
    found = read_vocabulary(write_vocabulary(tmp_path / "words.dbow3"))
    assert found.children.tolist() == [[1, 2], [3, 4], [5, 6], [0, 0], [0, 0], [0, 0], [0, 0]]
    assert found.weights.tolist() == [0.0, *WEIGHTS]
    assert (found.centers == vocabulary.centers).all()


@pytest.mark.parametrize("change", ["signature", "weighting", "cut", "empty"])
def test_another_file_is_an_error_that_names_it(tmp_path, change):
    file = tmp_path / "words.dbow3"
    write_vocabulary(file, (2, 2, 0, int(change == "weighting")), 1 if change == "signature" else 88877711233)
    data = file.read_bytes()
    file.write_bytes({"cut": data[:-40], "empty": b""}.get(change, data))
    with pytest.raises(BadFile, match=r"words\.dbow3 is not a DBoW3 vocabulary"):
        read_vocabulary(file)


def test_a_word_is_found_by_the_nearest_child_at_every_level(vocabulary):
    descriptors = np.random.default_rng(1).integers(0, 256, (50, 32), np.uint8)
    centers = np.unpackbits(vocabulary.centers.astype("<u8").view(np.uint8).reshape(-1, 32), axis=1).astype(int)
    expected = []
    for bits in np.unpackbits(descriptors, axis=1).astype(int):
        node = 0
        while vocabulary.children[node].any():
            node = min(vocabulary.children[node].tolist(), key=lambda child: np.abs(centers[child] - bits).sum())
        expected.append(node)
    assert vocabulary.find_words(descriptors).tolist() == expected
    assert len(set(expected)) == 4


def test_values_are_counts_times_weights_and_sum_to_one(vocabulary):
    words, values = vocabulary.weigh(np.array([4, 3, 6, 3, 5]))
    assert words.tolist() == [3, 4, 6]  # word 5 has no weight
    assert values.tolist() == [2 / 8, 2 / 8, 4 / 8]
    assert [len(part) for part in vocabulary.weigh(np.zeros(0, int))] == [0, 0]


def test_scores_follow_the_formula():
    rng = np.random.default_rng(2)
    dense = rng.random((6, 9)) * (rng.random((6, 9)) < 0.5)
    dense[:, 0] += 0.1  # no empty bag
    dense /= dense.sum(axis=1, keepdims=True)
    bags = [(np.flatnonzero(row), row[row > 0]) for row in dense]
    rows = list(score_bags(bags))
    assert [len(row) for row in rows] == [1, 2, 3, 4, 5]
    for t, row in enumerate(rows, 1):
        np.testing.assert_allclose(row, [1 - np.abs(dense[t] - dense[s]).sum() / 2 for s in range(t)])


def test_equal_photos_have_equal_bags_and_a_blank_one_none(vocabulary, tmp_path):
    pytest.importorskip("cv2")
    noise = np.random.default_rng(3).integers(0, 256, (12, 16), np.uint8).repeat(10, 0).repeat(10, 1)
    photos = [tmp_path / name for name in ("a.png", "b.png", "blank.png")]
    for photo, pixels in zip(photos, (noise, noise, np.zeros_like(noise)), strict=True):
        Image.fromarray(pixels).save(photo)
    bags = describe_bags(photos, vocabulary, as_progress(False))
    assert len(bags[0][0]) > 1
    assert len(bags[2][0]) == 0
    assert [round(float(row[-1]), 9) for row in score_bags(bags)] == [1.0, 0.0]
    assert all(first.tolist() == second.tolist() for first, second in zip(*bags[:2], strict=True))


def test_a_missing_vocabulary_says_what_to_install(monkeypatch):
    monkeypatch.setattr(orb_words, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"tfa-bench\[slam\].*EasyVision==0\.0\.3"):
        find_vocabulary()
