"""Text from file names and files, made safe to show: nothing in it moves a cursor, sets a colour or hides a letter."""

from __future__ import annotations

import re

# Control characters of both sets, ends of lines too; marks that turn the direction of writing; halves of a character,
# which is what a file name that is not in the system's encoding consists of.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def make_printable(text: str) -> str:
    """The text in one line, with every such character written out: an escape becomes `\\x1b`, a line break `\\n`."""
    return _UNPRINTABLE.sub(_escape, text)


def make_lines_printable(text: str) -> str:
    """The same for a text that has lines of its own; every name in it should have been made printable before."""
    return "\n".join(map(make_printable, text.split("\n")))


def _escape(match: re.Match[str]) -> str:
    if match[0] in _SHORT:
        return _SHORT[match[0]]
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # how Python holds a byte of a name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
