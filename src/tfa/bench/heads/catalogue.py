"""Every head of the benchmark by name, and names for groups of them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tfa.bench.heads import ablations, spectral
from tfa.bench.heads.contract import HeadCard
from tfa.bench.heads.own_heads import BUDGETS, retriever_card
from tfa.bench.heads.peers import anyloc, pooled, ria, segvlad, tfvpr
from tfa.bench.heads.verified import verified_card
from tfa.errors import BadSpec


def _of_a_peer(card: HeadCard) -> HeadCard:
    return replace(card, stages=("kmeans", "residuals", "peers"))


_PEERS = tuple(map(_of_a_peer, (*anyloc.CARDS, *pooled.CARDS, *tfvpr.CARDS, *ria.CARDS, *segvlad.CARDS)))
_FIXED = (*_PEERS, *spectral.CARDS, *ablations.CARDS)
CARDS: Mapping[str, HeadCard] = {card.name: card for card in _FIXED}
assert len(CARDS) == len(_FIXED), "two heads of one name"

_RETRIEVERS = {
    "calibrated": ["tfa", "tfa-c64", "tfa-fullq", "tfa-crossfit"],
    "budgets": [*(f"tfa-c{n}" for n in BUDGETS), *(f"dual-c{n}" for n in BUDGETS)],
    "dual": ["dual", "dual-c64", "dual-crossfit", "dual-crossfit-contiguous", "dual-fullq"],
    "ours": ["tfa-ensemble", "tfa-c64+", "tfa-c64+-ensemble", "dual-c64+"],
    "verified": [f"{head}-{kind}" for head in ("tfa", "tfa-c64", "tfa-c64+", "dual-c64") for kind in ("v", "v-always")],
}
GROUPS: Mapping[str, tuple[str, ...]] = {
    "peers": tuple(card.name for card in _PEERS),
    "spectral": tuple(card.name for card in spectral.CARDS),
    **{name: tuple(members) for name, members in _RETRIEVERS.items()},
    "ablations": tuple(card.name for card in ablations.CARDS),
    "main": (
        *("anyloc", "tfvpr", "ria", "segvlad-superpixels", "tfa", "tfa-c64", "tfa-fullq", "tfa-c64+", "dual-c64"),
        *("tfa-v", "tfa-c64-v", "tfa-c64+-v", "dual-c64-v"),
    ),  # those of the page of results that have recalls down to place 20
}


@dataclass(frozen=True)
class Supplied:
    """Files that some heads need: a released vocabulary, a segmenter's weights."""

    vocabulary: Path | None = None
    sam: Path | None = None
    sam_model: str = "vit-h"


def head_card(name: str, supplied: Supplied | None = None) -> HeadCard:
    """The card of a head; a miss suggests the nearest name."""
    supplied = supplied or Supplied()
    if name == "anyloc-released":
        if supplied.vocabulary is None:
            raise BadSpec("anyloc-released takes a released vocabulary; give it with --vocabulary FILE")
        return anyloc.anyloc_from_file(supplied.vocabulary)
    if name == "segvlad":
        if supplied.sam is None:
            raise BadSpec("segvlad segments with SAM; give its weights with --sam FILE, or use segvlad-superpixels")
        return segvlad.segvlad_with_sam(supplied.sam, supplied.sam_model)
    card = CARDS.get(name) or retriever_card(name) or _verified(name)
    if card is None:
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise BadSpec(f"there is no head {name!r}{hint} (tfa bench heads lists them)")
    return card


def _verified(name: str) -> HeadCard | None:
    card = verified_card(name)
    return None if card is None else replace(card, stages=(*card.stages, "verification"))


def names() -> list[str]:
    """Every name a list can hold; tfa-cN and dual-cN take any N."""
    retrievers = [name for group in _RETRIEVERS.values() for name in group]
    return [*dict.fromkeys([*CARDS, *retrievers, "anyloc-released", "segvlad"])]


def head_cards(asked: Sequence[str], supplied: Supplied | None = None) -> list[HeadCard]:
    """Cards of names and groups (`all` is every group), each once, in the order asked."""
    wanted: list[str] = []
    for name in asked:
        if name == "all":
            wanted += [member for group in GROUPS.values() for member in group]
        else:
            wanted += GROUPS.get(name, (name,))
    return [head_card(name, supplied) for name in dict.fromkeys(wanted)]
