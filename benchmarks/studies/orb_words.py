"""Bags of ORB words: OpenCV's features and the vocabulary tree that EasyVision 0.0.3 contains (DBoW3, 10⁶ words).

    word     descend the tree: at every level, the child with the nearest center (Hamming distance), the first if equal
    vector   v_i = n_i w_i / Σ_j n_j w_j      n_i: features with word i in the image, w_i: its idf in the vocabulary
    score    s(v, u) = 1 − ½ ‖v − u‖₁ = Σ_i min(v_i, u_i)

The vocabulary was trained on other images than the drives.

Features and threshold were set before any drive was scored. 2000 features, or a threshold of 20, are better on some of
the six drives of `loops.py` and worse on others, and no setting closes loops in all of them.

The file is little-endian. Its nodes are in chunks, each compressed on its own with level 1 of QuickLZ:

    u64 signature, u8 is compressed, u32 nodes, u32 chunks
    chunk    u8 flags (1: compressed, 2: sizes have 4 bytes, else 1), size with this header, size of its content, data
    content  i32 branching, depth, scoring (0: L1), weighting (0: tf-idf); the nodes; the words, which are not needed
    node     u32 id, u32 parent, f64 weight (0 unless it is a word), i32 columns, rows, type, 32 bytes: its center

Children directly follow each other. The root has id 0 and is not in the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tfa.core.files import BadFile
from tfa.core.progress import Progress, track_progress
from tfa.errors import MissingExtra
from tfa.photos.images import as_rgb

FEATURES = 1000  # per image
FAST_THRESHOLD = 7  # contrast of a corner; ORB-SLAM's value for images with few corners
INSTALL = "pip install 'tfa-bench[slam]', then pip install --no-deps EasyVision==0.0.3"

_SIGNATURE = 88877711233
_TABLE = 4096  # positions that a chunk can refer to
_NODE = np.dtype(
    [("id", "<u4"), ("parent", "<u4"), ("weight", "<f8"), ("form", "<i4", 3), ("center", "<u8", 4)]
)  # 60 bytes


# --- vocabulary --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Vocabulary:
    """A tree of binary centers. Node 0 is the root; a node without children is a word."""

    centers: np.ndarray  # (nodes, 4), uint64
    weights: np.ndarray  # (nodes,)
    children: np.ndarray  # (nodes, branching), node 0: none

    def find_words(self, descriptors: np.ndarray) -> np.ndarray:
        """Return the node (n,) of the word of each descriptor (n, 32), uint8."""
        bits = np.ascontiguousarray(descriptors).view("<u8")
        nodes = np.zeros(len(bits), np.int64)
        active = np.arange(len(bits))
        while len(active):
            children = self.children[nodes[active]]
            distances = np.bitwise_count(self.centers[children] ^ bits[active, None]).sum(axis=2, dtype=np.int64)
            distances[children == 0] = 257  # more than any distance of 256 bits
            nodes[active] = children[np.arange(len(active)), distances.argmin(axis=1)]
            active = active[self.children[nodes[active], 0] > 0]
        return nodes

    def weigh(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the distinct words of an image and their values, which sum to 1."""
        distinct, counts = np.unique(words, return_counts=True)
        values = counts * self.weights[distinct]
        used = values > 0
        return distinct[used], values[used] / max(values.sum(), 1e-12)  # 1e-12: an image without words


def find_vocabulary() -> Path:
    """Return the vocabulary file of the package EasyVision, which is not imported: it needs an old OpenCV."""
    package = find_spec("EasyVision")
    folders = [] if package is None else list(package.submodule_search_locations or ())
    files = [file for folder in folders if (file := Path(folder, "engine", "orbvoc.dbow3")).is_file()]
    if not files or find_spec("cv2") is None:
        raise MissingExtra(f"a bag of ORB words needs OpenCV and the vocabulary of EasyVision; install with: {INSTALL}")
    return files[0]


def read_vocabulary(file: Path) -> Vocabulary:
    """Read a DBoW3 vocabulary of ORB words from its compressed binary file."""
    data = file.read_bytes()
    try:
        signature, is_compressed, count, chunks = struct.unpack_from("<QBII", data)
        if (signature, is_compressed) != (_SIGNATURE, 1):
            raise ValueError("another format")
        content = unpack_chunks(data, struct.calcsize("<QBII"), chunks)
        branching, _, *scores = struct.unpack_from("<4i", content)
        if scores != [0, 0] or not 1 < branching <= 64:
            raise ValueError(f"not a vocabulary with tf-idf and L1 scores: {branching=}, scores {scores}")
        return build_tree(np.frombuffer(content, _NODE, count - 1, 16), branching)
    except (struct.error, ValueError, IndexError) as error:
        raise BadFile(f"{file} is not a DBoW3 vocabulary of ORB words: {error}; install with: {INSTALL}") from None


def build_tree(nodes: np.ndarray, branching: int) -> Vocabulary:
    """Build a vocabulary from its node records, root excluded."""
    count = len(nodes) + 1
    ids, parents = nodes["id"].astype(np.int64), nodes["parent"].astype(np.int64)
    if sorted_differs(ids, count) or parents.max(initial=0) >= count or (nodes["form"] != nodes["form"][0]).any():
        raise ValueError("node numbers are not 1 … n, or centers differ in size")
    centers, weights = np.zeros((count, 4), np.uint64), np.zeros(count)
    centers[ids], weights[ids] = nodes["center"], nodes["weight"]
    order = np.argsort(parents, kind="stable")
    starts = np.searchsorted(parents[order], parents[order])
    ranks = np.arange(len(order)) - starts
    if ranks.max(initial=0) >= branching:
        raise ValueError(f"a node has more than {branching} children")
    children = np.zeros((count, branching), np.int32)
    children[parents[order], ranks] = ids[order]
    return Vocabulary(centers, weights, children)


def sorted_differs(ids: np.ndarray, count: int) -> bool:
    """Return whether the sorted numbers are not 1 … count − 1."""
    return not np.array_equal(np.sort(ids), np.arange(1, count))


def unpack_chunks(data: bytes, start: int, count: int) -> bytes:
    """Decompress `count` chunks of QuickLZ level 1, all at once: one byte of each per step.

    A control word of 32 bits precedes the tokens that it describes, lowest bit first; its highest bit only marks its
    end. A token is a literal byte (bit 0), or a copy (bit 1): 4 bits of length − 2 and 12 bits of a hash. Length bits
    of 0 announce another byte with the length. The copy starts at the last position whose three bytes had that hash.
    Positions within copies are not hashed, and a position is hashed as soon as its three bytes are known.
    """
    sources, sizes = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for chunk in range(count):
        header = "<BII" if data[start] & 2 else "<BBB"
        flags, packed, sizes[chunk] = struct.unpack_from(header, data, start)
        if flags & 0b1101 != 0b0101 or packed < struct.calcsize(header):
            raise ValueError(f"chunk {chunk} is not compressed with level 1")
        sources[chunk], start = start + struct.calcsize(header), start + packed
    if start > len(data):
        raise ValueError("the file is truncated")
    packed_bytes = np.frombuffer(data + bytes(8), np.uint8)  # 8: tokens are read as four bytes
    words = np.ndarray(len(packed_bytes) - 3, "<u4", packed_bytes, strides=(1,))  # the four bytes from each position
    longest, chunks = int(sizes.max(initial=0)), np.arange(count)
    content = np.zeros((count, longest + 3), np.uint8)
    table = np.zeros((count, _TABLE), np.int32)
    control, left = np.ones(count, np.int64), np.zeros(count, np.int64)  # left: bytes of a running copy
    distance = np.zeros(count, np.int64)  # how far back a running copy reads
    starts = np.zeros((3, count), bool)  # which of the last three bytes started a token
    for at in range(longest):
        sources = np.minimum(sources, len(words) - 1)
        fresh = left == 0
        reload = fresh & (control == 1)
        control = np.where(reload, words[sources], control)
        sources += 4 * reload
        sources = np.minimum(sources, len(words) - 1)
        token = words[sources].astype(np.int64)
        copies = fresh & (control & 1 == 1)
        literal = fresh & ~copies
        control = np.where(fresh, control >> 1, control)
        begin = np.flatnonzero(copies)
        short = token[begin] & 15
        left[begin] = np.where(short > 0, short + 2, token[begin] >> 16 & 255)
        distance[begin] = at - table[begin, token[begin] >> 4 & 4095]
        sources += literal + copies * np.where(token & 15 > 0, 2, 3)
        content[:, at] = np.where(literal, token, content[chunks, np.maximum(at - distance, 0)])
        left = np.maximum(left - ~literal, 0)
        starts = np.concatenate([starts[1:], fresh[None]])
        if at >= 2:
            three = content[:, at - 2 : at + 1].astype(np.int64) @ (1, 1 << 8, 1 << 16)
            hashed = np.flatnonzero(starts[0])
            table[hashed, ((three >> 12) ^ three)[hashed] & 4095] = at - 2
    return b"".join(content[chunk, : sizes[chunk]].tobytes() for chunk in range(count))


# --- images ------------------------------------------------------------------------------------------------------

Bag = tuple[np.ndarray, np.ndarray]  # words (n,), values (n,)


def describe_bags(photos: Sequence[Path], vocabulary: Vocabulary, progress: Progress) -> list[Bag]:
    """Return the bag of words of every photo."""
    import cv2

    detector = cv2.ORB.create(FEATURES, fastThreshold=FAST_THRESHOLD)
    bags = []
    for photo in track_progress(photos, len(photos), "ORB words", progress, "images"):
        _, descriptors = detector.detectAndCompute(np.asarray(as_rgb(photo).convert("L")), None)
        found = np.zeros((0, 32), np.uint8) if descriptors is None else descriptors
        bags.append(vocabulary.weigh(vocabulary.find_words(found)))
    return bags


def score_bags(bags: Sequence[Bag]) -> Iterator[np.ndarray]:
    """Yield the scores (t,) of each bag against the earlier ones, from the second on."""
    frames = np.repeat(np.arange(len(bags)), [len(words) for words, _ in bags])
    words, values = (np.concatenate(parts) for parts in zip(*bags, strict=True))
    order = np.argsort(words, kind="stable")  # the images of a word in order
    words, values, frames = words[order], values[order], frames[order]
    for t, (own, weights) in enumerate(bags):
        if t:
            low, high = np.searchsorted(words, own), np.searchsorted(words, own, side="right")
            lengths = high - low
            entries = np.arange(lengths.sum()) + np.repeat(low - np.cumsum(lengths) + lengths, lengths)
            shared = np.minimum(values[entries], np.repeat(weights, lengths))
            yield np.bincount(frames[entries], shared, len(bags))[:t]
