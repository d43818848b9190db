"""Scans of a JPEG: a decoder passes over the whole picture for each, and a small file can hold thousands."""

from __future__ import annotations

import re

MOST_SCANS = 100  # a progressive photo has about ten
_SOI, _EOI, _SOS = b"\xff\xd8", 0xD9, 0xDA
# A marker within a scan: 0xFF of the picture itself is followed by zero, restarts (0xD0 to 0xD7) belong to the scan.
_MARKER = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])")
_ALONE = {0x01, *range(0xD0, 0xD9)}  # markers without a length


def too_many_scans(content: bytes) -> int:
    """How many scans a JPEG has, if they are more than allowed; 0 for every other file.

    Counting stops far above what is allowed: a file of scans alone would take long otherwise.
    """
    # Metadata and what cameras append may hold these two bytes by chance, so this is never less than the scans.
    if not content.startswith(_SOI) or content.count(b"\xff\xda") <= MOST_SCANS:
        return 0
    scans = _scans(content)
    return scans if scans > MOST_SCANS else 0


def _scans(content: bytes) -> int:
    """Scans of the first picture of the file, by its markers: those of a preview or a second picture do not count."""
    scans, place = 0, len(_SOI)
    while (marker := _MARKER.search(content, place)) is not None:
        kind, place = marker[1][0], marker.end()
        if kind == _EOI:
            break
        if kind == _SOS:
            scans += 1
        if kind not in _ALONE:
            place += int.from_bytes(content[place : place + 2], "big")
    return scans
