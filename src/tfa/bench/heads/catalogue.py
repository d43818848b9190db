"""Every head of the benchmark by name, and names for groups of them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tfa.bench.heads import ablations, spectral
from tfa.bench.heads.contract import HeadCard
from tfa.bench.heads.online import online_card
from tfa.bench.heads.own_heads import BUDGETS, retriever_card
from tfa.bench.heads.peers import anyloc, pooled, ria, segvlad, tfvpr
from tfa.bench.heads.second_order import RULES, second_order_card
from tfa.bench.heads.trained.ranking import trained_card
from tfa.bench.heads.trained.systems import CHECKPOINTS, SYSTEMS, TrainedSystem, published_file
from tfa.bench.heads.verified import verified_card
from tfa.bench.heads.verified_peers import verified_peer
from tfa.bench.provenance import ALGORITHM
from tfa.bench.records import LABELS
from tfa.core.plugins import load_plugin, plugin_names, plugin_source
from tfa.errors import BadPlugin, BadSpec
from tfa.method.carriers import CARRIER_KERNELS

PLUGINS = "tfa.heads"


def _of_a_peer(card: HeadCard) -> HeadCard:
    return replace(card, stages=("kmeans", "residuals", "peers"))


_PEERS = tuple(map(_of_a_peer, (*anyloc.CARDS, *pooled.CARDS, *tfvpr.CARDS, *ria.CARDS, *segvlad.CARDS)))
_VERIFIED_PEERS = tuple(verified_peer(card) for card in _PEERS if card.name == "anyloc")
_FIXED = (*_PEERS, *_VERIFIED_PEERS, *spectral.CARDS, *ablations.CARDS)
CARDS: Mapping[str, HeadCard] = {card.name: card for card in _FIXED}
assert len(CARDS) == len(_FIXED), "two heads of one name"

_RETRIEVERS = {
    "calibrated": ["tfa", "tfa-c64", "tfa-fullq", "tfa-crossfit"],
    "budgets": [*(f"tfa-c{n}" for n in BUDGETS), *(f"dual-c{n}" for n in BUDGETS)],
    "dual": ["dual", "dual-c64", "dual-crossfit", "dual-crossfit-contiguous", "dual-fullq"],
    "ours": ["tfa-ensemble", "tfa-c64+", "tfa-c64+-ensemble", "dual-c64+"],
    "verified": [f"{head}-{kind}" for head in ("tfa", "tfa-c64", "tfa-c64+", "dual-c64") for kind in ("v", "v-always")],
    "second-order": [f"second-{carrier}" for carrier in CARRIER_KERNELS],
    "judged-heads": [f"judged{photos}{kind}" for photos in ("", "-c64") for kind in ("", "-v", "-v-always")],
    "online": [
        *("tfa-online", "judged-online", "judged-online-shuffled", "judged-online-v", "judged-online-v-always"),
        "judged-follow",
    ],
    "judge-ablations": [
        *(f"judged-{rule}" for rule in ("no-judge", "support")),
        *(f"judged-c64-{rule}" for rule in RULES if rule),
    ],
}
GROUPS: Mapping[str, tuple[str, ...]] = {
    "peers": tuple(card.name for card in _PEERS),
    "verified-peers": tuple(card.name for card in _VERIFIED_PEERS),
    "spectral": tuple(card.name for card in spectral.CARDS),
    **{name: tuple(members) for name, members in _RETRIEVERS.items()},
    "ablations": tuple(card.name for card in ablations.CARDS),
    "main": (
        *("anyloc", "tfvpr", "ria", "segvlad-superpixels", "tfa", "tfa-c64", "tfa-fullq", "tfa-c64+", "dual-c64"),
        *("tfa-v", "tfa-c64-v", "tfa-c64+-v", "dual-c64-v"),
        *("judged", "judged-v", "judged-online", "judged-online-v", "judged-follow", "judged-c64", "judged-c64-v"),
    ),  # those of the page of results that have recalls down to place 20
}


@dataclass(frozen=True)
class Supplied:
    """Files that some heads need: a released vocabulary, a segmenter's weights, checkpoints by head."""

    vocabulary: Path | None = None
    sam: Path | None = None
    sam_model: str = "vit-h"
    sam_points: int = segvlad.POINTS
    checkpoints: Mapping[str, Path] = field(default_factory=dict)
    antialias: bool = False  # for trained systems of which that is not on record


@dataclass(frozen=True)
class NeedsFile:
    """A head whose card can be made only from a file of the user's."""

    title: str
    sees: str
    option: str  # of tfa bench run, with its value
    why: str
    instead: str  # what does without
    make: Callable[[Supplied], HeadCard | None]  # None where the file was not given

    def card(self, name: str, supplied: Supplied) -> HeadCard:
        card = self.make(supplied)
        if card is None:
            raise BadSpec(f"{name} {self.why}; give {self.option}{self.instead}")
        return card


def _of_a_checkpoint(system: TrainedSystem) -> NeedsFile:
    def make(given: Supplied) -> HeadCard | None:
        file = given.checkpoints.get(system.name) or published_file(system)
        return None if file is None else trained_card(system, file, antialias=given.antialias)

    return NeedsFile(
        system.title,
        LABELS,
        f"--checkpoint {system.name}=FILE",
        f"is a trained system and takes its published checkpoint ({system.published}; licence: {system.licence})",
        f", or put it as {' or '.join(system.files)} into the folder that ${CHECKPOINTS} names",
        make,
    )


NEED_FILES: Mapping[str, NeedsFile] = {
    "anyloc-released": NeedsFile(
        "AnyLoc, released vocabulary",
        "nothing",
        "--vocabulary FILE",
        "takes a released vocabulary",
        "",
        lambda given: None if given.vocabulary is None else _of_a_peer(anyloc.anyloc_from_file(given.vocabulary)),
    ),
    "segvlad": NeedsFile(
        "SegVLAD-PreT",
        "database",
        "--sam FILE",
        "segments with the weights of SAM",
        ", or use segvlad-superpixels",
        lambda given: (
            None
            if given.sam is None
            else _of_a_peer(segvlad.segvlad_with_sam(given.sam, given.sam_model, given.sam_points))
        ),
    ),
    "segvlad-mobilesam": NeedsFile(
        "SegVLAD-PreT (MobileSAM)",
        "database",
        "the weights of MobileSAM: tfa weights get mobilesam, or fetched on first use",
        "segments with the weights of MobileSAM",
        ", or use segvlad-superpixels",
        lambda given: _of_a_peer(segvlad.segvlad_with_mobile_sam(given.sam_points)),
    ),
    **{name: _of_a_checkpoint(system) for name, system in SYSTEMS.items()},
}


_FAMILIES = (retriever_card, second_order_card, verified_card, online_card)


def head_card(name: str, supplied: Supplied | None = None) -> HeadCard:
    """The card of a head; a miss suggests the nearest name."""
    if name in NEED_FILES:
        return NEED_FILES[name].card(name, supplied or Supplied())
    card = CARDS.get(name) or next(filter(None, (family(name) for family in _FAMILIES)), None) or _brought(name)
    if card is None:
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise BadSpec(f"there is no head {name!r}{hint} (tfa bench heads lists them)")
    return card


def _brought(name: str) -> HeadCard | None:
    """The card that another distribution brings under the entry point `tfa.heads`."""
    card = load_plugin(PLUGINS, name, _own_names())
    if card is None:
        return None
    source = plugin_source(PLUGINS, name)
    if not isinstance(card, HeadCard) or card.name != name:
        raise BadPlugin(f"the head {name!r} of {source} must be a HeadCard of that name, is {card!r}")
    if not card.stages or set(card.stages) - set(ALGORITHM):
        raise BadPlugin(
            f"the head {name!r} of {source} names the stages {card.stages}; stages are {', '.join(ALGORITHM)} "
            "(peers for a head that shares nothing with this package)"
        )
    # The version is part of the record's key: another version may answer otherwise.
    return replace(card, settings={**card.settings, "distribution": source})


def _own_names() -> list[str]:
    retrievers = [name for group in _RETRIEVERS.values() for name in group]
    return [*dict.fromkeys([*CARDS, *retrievers, *NEED_FILES])]


def names() -> list[str]:
    """Every name a list can hold; tfa-cN, dual-cN and judged-cN take any N."""
    own = _own_names()
    return [*own, *plugin_names(PLUGINS, own)]


def head_cards(names: Sequence[str], supplied: Supplied | None = None) -> list[HeadCard]:
    """Cards of names and groups (`all` is every group), each once, in the order given."""
    wanted: list[str] = []
    for name in names:
        if name == "all":
            wanted += [member for group in GROUPS.values() for member in group]
        else:
            wanted += GROUPS.get(name, (name,))
    return [head_card(name, supplied) for name in dict.fromkeys(wanted)]
