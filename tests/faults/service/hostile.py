"""Hostile files and request bodies."""

from __future__ import annotations

import io
import random
import struct
import zlib

from PIL import Image

SCAN = b"\xff\xda"
MUTATED_KINDS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF")


def many_scans(scans: int, size: tuple[int, int] = (64, 48)) -> bytes:
    """A progressive JPEG whose smallest scan comes again and again: small, and slow to decode."""
    written = io.BytesIO()
    Image.new("RGB", size, (90, 120, 60)).save(written, "JPEG", progressive=True)
    content = written.getvalue()
    head, *each = content.split(SCAN)
    smallest = min(range(len(each) - 1), key=lambda number: len(each[number]))
    repeated = [*each[:smallest], *[each[smallest]] * (1 + scans - len(each)), *each[smallest + 1 :]]
    return SCAN.join([head, *repeated])


def long_comment(size: int) -> bytes:
    """A GIF whose header is one comment in small blocks, which its reader joins one by one."""
    block = b"\xff" + bytes(255)
    header = b"GIF89a" + struct.pack("<HHBBB", 8, 8, 0, 0, 0)
    return header + b"!\xfe" + block * (size // 256) + b"\0" + b";"


def png_bomb(width: int, height: int) -> bytes:
    """Return a small PNG that has this many black pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pack = zlib.compressobj(9)
    rows = b"".join(pack.compress(bytes(1 + 3 * width)) for _ in range(height)) + pack.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def saved(kind: str, seed: int) -> bytes:
    """A real image file of that kind."""
    noise = random.Random(seed).randbytes(3 * 40 * 30)
    written = io.BytesIO()
    Image.frombytes("RGB", (40, 30), noise).save(written, kind)
    return written.getvalue()


def mutated(content: bytes, choose: random.Random) -> bytes:
    """The file with some bytes changed, left out, repeated, or cut."""
    changed = bytearray(content)
    for _ in range(choose.randint(1, 12)):
        place = choose.randrange(max(len(changed), 1))
        match choose.randrange(5):
            case 0:
                changed[place : place + 1] = bytes([choose.randrange(256)])
            case 1:
                changed[place : place + 4] = choose.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"))
            case 2:
                del changed[place : place + choose.randint(1, 40)]
            case 3:
                changed[place:place] = changed[place : place + choose.randint(1, 200)] * choose.randint(1, 20)
            case _:
                changed[place : place + 30] = choose.randbytes(30)
    return bytes(changed[: choose.randint(1, len(changed))] if changed and choose.random() < 0.1 else changed)


def deep_json(depth: int) -> str:
    return "[" * depth + "]" * depth


def deep_form(parts: int) -> tuple[bytes, dict[str, str]]:
    """A form within a form within a form, and its headers."""
    body = b"x"
    for number in range(parts):
        boundary = f"b{number}".encode()
        head = b'--%b\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\nContent-Type: ' % boundary
        kind = b"multipart/form-data; boundary=b%d" % (number - 1) if number else b"image/png"
        body = head + kind + b"\r\n\r\n" + body + b"\r\n--" + boundary + b"--\r\n"
    return body, {"Content-Type": f"multipart/form-data; boundary=b{parts - 1}"}
