"""Text shown to users: escaped names, shell commands in messages, and definitions for the command line and pages."""

from __future__ import annotations

import os
import re
import shlex

# Control characters including line breaks, marks of text direction, and lone surrogates, which Python uses for file
# names that are not in the system's encoding.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def make_printable(text: str) -> str:
    """Escape unprintable characters: an escape becomes `\\x1b`, a line break `\\n`."""
    return _UNPRINTABLE.sub(_escape, text)


def make_lines_printable(text: str) -> str:
    """Escape unprintable characters except line breaks; escape the names in a text first."""
    return "\n".join(map(make_printable, text.split("\n")))


def _escape(match: re.Match[str]) -> str:
    if match[0] in _SHORT:
        return _SHORT[match[0]]
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # Python's form of a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def format_command(*words: str | os.PathLike[str] | int) -> str:
    """Join and quote words of a shell command, such as `tfa query 'my town.tfa' PHOTO`."""
    return shlex.join(os.fspath(word) if isinstance(word, (str, os.PathLike)) else str(word) for word in words)


def format_count(number: int, noun: str) -> str:
    """Write a number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


WITHIN_NOISE = "A decision is within noise if it would change with values one standard error away."


def list_rules() -> dict[str, str]:
    """Return the definitions of terms by name, for pages and programs."""
    return {
        "confidence": "Confidence is the probability, from 0 to 1, that a hit shows the query's place. It is estimated "
        "from scores, from patch matches after reranking, and from earlier frames in a sequence.",
        "sure": "A photo is recognized (sure) if its best hit was reranked, has a confidence of at least 0.92, and its "
        "patch evidence is ahead of other places by at least 0.75. Rely on these answers: no confidence threshold "
        "works for every map.",
        "probable": "Other photos are probable from a confidence of 0.75 on, else not recognized.",
        "expected_recall": "Expected recall is the mean confidence of the answers and needs no labels. Its interval "
        "contained the true recall nine times out of ten on public datasets.",
        "near_duplicate": "Near duplicates have a cosine of 0.9 or more with the first photo of their group, after the "
        "mean of the map is subtracted.",
        "hub": "A hub is in the top five of at least four times as many photos as usual.",
        "least_recognised": "An isolated photo is in no other photo's top five, and its best match is weaker than "
        "usual by three robust deviations.",
    }
