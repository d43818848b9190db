"""Text shown to users: escaping of unprintable characters, shell commands in messages, and the rules quoted by help
texts, reports and documents.
"""

from __future__ import annotations

import os
import re
import shlex

# --- printable ------------------------------------------------------------------------------------

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


# --- shell ----------------------------------------------------------------------------------------


def format_command(*words: str | os.PathLike[str] | int) -> str:
    """`tfa query 'my town.tfa' PHOTO` of its words."""
    return shlex.join(os.fspath(word) if isinstance(word, (str, os.PathLike)) else str(word) for word in words)


# --- sentences ------------------------------------------------------------------------------------

CONFIDENCE = "Confidence is the probability, from 0 to 1, that a hit shows the photo's place."
CONFIDENCE_VERIFIED = (
    "Of a verified answer it is estimated from its scores and from how far the evidence of its matching patches leads "
    "that of other places."
)
CONFIDENCE_UNVERIFIED = "Of an answer that was not verified it is estimated from its scores alone."
CONFIDENCE_SEQUENCE = (
    "Of a frame of a sequence it is the filter's probability that the camera is at that place, by this frame and those "
    "before it."
)
LATER_HITS = "A later hit never has more confidence than the hit before it."
SURE = (
    "An answer is sure if it was verified, its confidence is at least 0.9, and its evidence leads that of other places "
    "by at least 0.65; a frame of a sequence must be so confident by itself and by the filter."
)
RELY = "Rely on sure answers: no confidence by itself is a threshold that holds for every map."
CONFIDENCE_RULE = " ".join([CONFIDENCE, CONFIDENCE_VERIFIED, CONFIDENCE_UNVERIFIED, CONFIDENCE_SEQUENCE, LATER_HITS])
SURE_RULE = f"{SURE} {RELY}"

ORDER_VERIFIED = (
    "Hits stand in the order of the answer: those that were verified first, by score and evidence together, then the "
    "others by score."
)
ORDER_UNVERIFIED = "Hits stand in the order of the answer: by score."
ORDER_SEQUENCE = (
    "Hits stand in the order of the answer: by the filter's probability of the image; confidence adds its neighbours'."
)

EXPECTED_RECALL = (
    "Expected recall is the mean confidence of answers, without labels; its interval held the true recall nine times "
    "in ten on public datasets."
)
NEAR_DUPLICATE = (
    "A near duplicate has a cosine of 0.9 or more with the first photo of its group, after what all photos share is "
    "subtracted."
)
HUB = "A hub is among the five best answers of at least four times as many photos as is usual."
LEAST_RECOGNISED = (
    "A photo that nothing else resembles is among nobody's five best answers, and its most similar photo is less so "
    "than is usual by three robust deviations."
)

VERIFICATION = (
    "Answers are verified if more photos than chance explains, by two standard errors, have more evidence among the "
    "images ranked first than among the next."
)
WITHIN_NOISE = "A decision is within noise if it would be another with numbers one standard error away."


def list_rules() -> dict[str, str]:
    """All of them by name, for pages and programs."""
    return {
        "confidence": CONFIDENCE_RULE,
        "sure": SURE_RULE,
        "order_verified": ORDER_VERIFIED,
        "order_unverified": ORDER_UNVERIFIED,
        "order_sequence": ORDER_SEQUENCE,
        "expected_recall": EXPECTED_RECALL,
        "near_duplicate": NEAR_DUPLICATE,
        "hub": HUB,
        "least_recognised": LEAST_RECOGNISED,
        "verification": VERIFICATION,
        "within_noise": WITHIN_NOISE,
    }
