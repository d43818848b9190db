"""Damage files by seed, as disks, networks and attackers do."""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

SIZES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
NUMBERS = ("0", "-1", "1e308", "-1e400", "NaN", "Infinity", "9" * 400, "9" * 19, "0.5", "1_0", "٣", "0x10", "")
WORDS = (b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"[" * 3000, b'{"a":' * 600, b"\\ud800", b"\x1b[31m", b'"', b"\r",
         b",,,,", b"../../", b"\xc3", b"null", b"\n\n", b"'" * 50, b"(" * 200)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 2**63, 10**30, 1e308, "", "x", "\ud800", "\0", "é" * 300, [], {}, [[]], [[[[0]]]],
    {"a": {}}, [0] * 500, [None], "9" * 400,
)  # fmt: skip


def mutated(data: bytes, rng: random.Random, others: Sequence[bytes] = (), *, same_size: bool = False) -> bytes:
    """`data` damaged one to three times; cut or padded to its size again if that is wanted."""
    changed = data
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        changed = rng.choice(KINDS)(changed, rng, others)
    if same_size and len(changed) != len(data):
        changed = changed[: len(data)].ljust(len(data), rng.choice((b" ", b"\0", b"}")))
    return changed


def mutated_json(text: bytes, rng: random.Random) -> bytes:
    """JSON with another value somewhere, a missing key or a new one: whole as JSON, wrong as what it says."""
    value = json.loads(text)
    for _ in range(rng.choice((1, 1, 2))):
        value = _other_value(value, rng)
    return json.dumps(value, allow_nan=True).encode("ascii")


def _other_value(value: Any, rng: random.Random) -> Any:
    if not isinstance(value, dict | list) or not value or rng.random() < 0.08:
        return rng.choice(VALUES)
    if isinstance(value, dict):
        key, changed = rng.choice(list(value)), dict(value)
    else:
        key, changed = rng.randrange(len(value)), list(value)
    way = rng.random()
    if way < 0.1:
        del changed[key]
    elif way < 0.15 and isinstance(changed, dict):
        changed[rng.choice(("", "__metadata__", "new"))] = rng.choice(VALUES)
    elif way < 0.2 and isinstance(changed, list):
        changed += changed[key : key + 1] * rng.choice((1, 50))
    else:
        changed[key] = _other_value(changed[key], rng)
    return changed


# --- kinds of damage: bytes, a source of chance, other files → bytes -----------------------------------------------


def flipped(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def overwritten(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    start, end = _span(data, rng)
    filling = rng.choice((b"\0", b"\xff", bytes([rng.randrange(256)]), rng.randbytes(16)))
    return data[:start] + (filling * (end - start))[: end - start] + data[end:]


def truncated(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    return data[: rng.choice((0, 1, 8, rng.randrange(len(data) + 1), max(len(data) - 1, 0)))]


def duplicated(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    start, end = _span(data, rng)
    return data[:end] + data[start:end] * rng.choice((1, 1, 20)) + data[end:]


def removed(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    start, end = _span(data, rng)
    return data[:start] + data[end:]


def spliced(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others) if others else data
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def swapped(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    return rng.choice(others) if others else data[::-1]


def lying(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """A size of one, two, four or eight bytes, in either order, that is not the right one."""
    code = rng.choice(("<B", "<H", ">H", "<I", ">I", "<Q", ">Q"))
    size = struct.pack(code, rng.choice(SIZES) & (256 ** struct.calcsize(code) - 1))
    # Sizes stand at the start of most formats.
    start = rng.randrange(min(len(data), rng.choice((16, 64, 512, 10**9))) + 1)
    return data[:start] + size + data[start + len(size) :]


def renumbered(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Another number where the text has one."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?", data[:100_000]))
    if not found:
        return flipped(data, rng, others)
    one = rng.choice(found)
    return data[: one.start()] + rng.choice(NUMBERS).encode() + data[one.end() :]


def inserted(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + rng.choice(WORDS) + data[start:]


KINDS: tuple[Callable[[bytes, random.Random, Sequence[bytes]], bytes], ...] = (
    flipped, flipped, overwritten, truncated, duplicated, removed, spliced, swapped, lying, lying, renumbered, inserted,
)  # fmt: skip


def _span(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 4, 16, 64, 1024)))
