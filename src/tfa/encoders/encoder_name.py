"""An encoder's name in full: `name@size/layer-facet/hf`, the same on the command line, in a map and in a table.

`dinov2-b14@322` is the final tokens at 322 × 322 pixels, `dinov2-g14@640x480/l31-value` the value
projections of block 31 (counted from 0) at 640 pixels wide and 480 high. What a card gives by default may be
left out; when printed, only the size is always there. `dinov2-b14@322/hf` has its learned positions resampled as
transformers does; without `/hf`, as DINOv2's authors do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from tfa.encoders.catalogue import FACETS, Card, find_encoder_card
from tfa.errors import UnknownEncoder

MAX_SIDE = 4096  # pixels; attention over more would not fit any memory, so such a size is a typing error
_EXAMPLES = "for example dinov2-b14, dinov2-b14@322, dinov2-b14@322/l9 or dinov2-g14@640x480/l31-value"
_HF = "hf"  # the ending of a name whose positions are resampled by transformers' rule


@dataclass(frozen=True, kw_only=True)
class EncoderId:
    """A card with its choices made. Width and height fit the patch grid; `notes` says what that changed."""

    name: str
    width: int
    height: int
    layer: int
    facet: str
    hf: bool = False  # positions resampled as transformers does, by the target size
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def card(self) -> Card:
        return find_encoder_card(self.name)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.height // self.card.patch, self.width // self.card.patch

    @property
    def rules(self) -> tuple[EncoderId, ...]:
        """Itself, and the same with its learned positions resampled by the other rule, where there are two."""
        return (self, replace(self, hf=not self.hf)) if self.hf or self.published_rule else (self,)

    @property
    def published_rule(self) -> bool:
        """Whether positions are resampled as DINOv2's authors do; at the table's own size none are."""
        own = (self.card.positions, self.card.positions)
        return self.card.has_two_rules and not self.hf and self.grid != own

    @property
    def final_norm(self) -> bool:
        """Block outputs are normed only where the model itself does: after the last block."""
        return self.facet == "token" and self.layer == self.card.depth - 1

    def __str__(self) -> str:
        size = f"{self.width}" if self.width == self.height else f"{self.width}x{self.height}"
        layer = "" if self.layer == self.card.default_layer else f"l{self.layer}"
        facet = "" if self.facet == "token" else self.facet
        choice = "-".join(part for part in (layer, facet) if part)
        return "/".join(part for part in (f"{self.name}@{size}", choice, _HF if self.hf else "") if part)


def parse_encoder(text: str) -> EncoderId:
    """Read `name[@size][/layer-facet][/hf]`."""
    named, hf = text.removesuffix(f"/{_HF}"), text.endswith(f"/{_HF}")
    head, slash, choice = named.partition("/")
    name, at, size = head.partition("@")
    card = find_encoder_card(name)
    if (at and not size) or (slash and not choice):
        raise UnknownEncoder(
            f"encoder {text!r} ends before its {'layer or facet' if slash else 'size'}; write {_EXAMPLES}"
        )
    width, height = _parse_size(text, size) if size else (card.size, card.size)
    layer, facet = _parse_choice(text, choice, card) if choice else (card.default_layer, "token")
    fitted = _fit(width, card.patch), _fit(height, card.patch)
    notes: tuple[str, ...] = ()
    if fitted != (width, height):
        notes = (
            f"{card.name} reads patches of {card.patch} pixels: images are resized to "
            f"{fitted[0]}x{fitted[1]} instead of {width}x{height}",
        )
    if hf and not card.has_two_rules:
        raise UnknownEncoder(
            f"encoder {text!r}: {card.name} has one rule for its positions, that of transformers; leave out /{_HF}"
        )
    identity = EncoderId(name=name, width=fitted[0], height=fitted[1], layer=layer, facet=facet, notes=notes)
    return replace(identity, hf=hf and identity.published_rule)  # at the table's own size the rules are one


def _parse_size(text: str, size: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,6})(?:x([0-9]{1,6}))?", size)
    if match is None:
        raise UnknownEncoder(
            f"encoder {text!r}: {size!r} is not a valid size; write 322 or 640x480 (width x height), {_EXAMPLES}"
        )
    width = int(match[1])
    height = int(match[2] or match[1])
    if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE):
        raise UnknownEncoder(f"encoder {text!r}: a side of {size} pixels is out of range, must be 1 to {MAX_SIDE}")
    return width, height


def _parse_choice(text: str, choice: str, card: Card) -> tuple[int, str]:
    match = re.fullmatch(r"l([0-9]{1,4})(?:-([a-z]+))?|([a-z]+)", choice)
    if match is None:
        raise UnknownEncoder(
            f"encoder {text!r}: {choice!r} is not a valid layer and facet; write l9, value or l9-value, {_EXAMPLES}"
        )
    layer = card.default_layer if match[1] is None else int(match[1])
    facet = match[2] or match[3] or "token"
    if layer >= card.depth:
        raise UnknownEncoder(f"encoder {text!r}: {card.name} has blocks l0 to l{card.depth - 1}, not l{layer}")
    if facet not in FACETS:
        raise UnknownEncoder(f"encoder {text!r}: {facet!r} is not a valid facet; facets are {', '.join(FACETS)}")
    return layer, facet


def _fit(side: int, patch: int) -> int:
    """The multiple of `patch` nearest to `side`, upwards on a tie, at least one patch, at most MAX_SIDE."""
    return min(max((side + patch // 2) // patch, 1), MAX_SIDE // patch) * patch
