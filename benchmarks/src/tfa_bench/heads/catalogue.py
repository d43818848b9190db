"""Catalogue of all heads by name, and of groups. Naming one head imports only its module.

A module provides `CARDS` (a tuple of `HeadCard`), `NEED_FILES` (heads made from a user's file), or a function that
makes the card of a name. The names are listed here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from tfa.core.plugins import load_plugin, plugin_names, plugin_source
from tfa.errors import BadPlugin, BadSpec
from tfa.method.carriers import CARRIER_WORDS
from tfa_bench.heads.contract import HeadCard, NeedsFile, Supplied
from tfa_bench.provenance import ALGORITHM

_PLUGINS = "tfa.heads"
_BUDGETS = (8, 16, 32, 64, 128, 256)  # budgets in `all`; any other number is a head too
_RULES = (
    *("support-only", "agreement-only", "ties-partial", "always-cls", "no-cls", "forced-hard", "forced-soft"),
    *("forced-original", "forced-partial", "forced-adaptive", "support-contraction", "single"),
)
# Default head of maps: uncalibrated and calibrated, with and without reranking, and for the photos of one camera.
_DEFAULT = ("", "-v", "-c64", "-c64-v", "-online", "-online-v", "-follow", "-follow-lag5")

# Module below tfa_bench.heads → heads of its CARDS.
_PEERS: Mapping[str, tuple[str, ...]] = {
    "peers.anyloc": ("anyloc", "anyloc-unit", "anyloc-k32"),
    "peers.pooled": ("anyloc-gem", "cls", "mean", "ria", "ria-power"),
    "peers.tfvpr": ("tfvpr", "tfvpr-transductive"),
    "peers.segvlad": ("segvlad-superpixels",),
}
_SPECTRAL = (
    *(f"{a}-{name}" for a in ("hard", "soft") for name in ("original", "centred", "partial", "full", "adaptive")),
    *(f"fullq-{name}" for name in ("original", "partial", "full", "adaptive")),
)
_ABLATIONS = tuple(f"{head}-{rule}" for head in ("tfa", "tfa-fullq") for rule in _RULES)
_CONTROLS: Mapping[str, tuple[str, ...]] = {"controls": (*_SPECTRAL, *_ABLATIONS)}
# Module → heads of its NEED_FILES.
_FROM_FILES: Mapping[str, tuple[str, ...]] = {
    "peers.anyloc": ("anyloc-released",),
    "peers.segvlad": ("segvlad", "segvlad-mobilesam"),
    "trained_systems": (
        *("salad", "cliquemining", "megaloc", "boq", "selavpr++-b", "selavpr++-l", "sample4geo", "cosplace"),
        "eigenplaces",
    ),
}
# Names with a number or a suffix → function that makes their card; the first match is used.
_FAMILIES: Mapping[str, str] = {
    r"(judged|tfa|second-order(-1|-one-window|-no-pooling)?)-(follow.*|online.*)": "online:online_card",
    r".+-v(-always)?": "verified:verified_card",
    r"(second|judged)(-.+)?": "second_order:second_order_card",
    rf"tfa-c\d+-({'|'.join(_RULES)})": "controls:ablation_card",
    r"dual-(k32|k64|database).*": "controls:dual_part_card",
    r"(tfa|dual)(-.+)?\+?(-.+)?": "tfa_heads:retriever_card",
}
_MODULE_OF = {name: module for table in (_PEERS, _CONTROLS) for module, names in table.items() for name in names}
_FILE_MODULE_OF = {name: module for module, names in _FROM_FILES.items() for name in names}

_RETRIEVERS: Mapping[str, tuple[str, ...]] = {
    "calibrated": ("tfa", "tfa-c64", "tfa-fullq", "tfa-crossfit"),
    "budgets": (*(f"tfa-c{n}" for n in _BUDGETS), *(f"dual-c{n}" for n in _BUDGETS)),
    "dual": ("dual", "dual-c64", "dual-crossfit", "dual-crossfit-contiguous", "dual-fullq"),
    "dual-branches": (
        *(f"dual-{k}{plan}" for k in ("k32", "k64") for plan in ("", "-crossfit", "-crossfit-contiguous")),
        "dual-database",
    ),
    "ours": ("tfa-ensemble", "tfa-c64+", "tfa-c64+-ensemble", "dual-c64+"),
    "verified": tuple(
        f"{head}-{kind}" for head in ("tfa", "tfa-c64", "tfa-c64+", "dual-c64") for kind in ("v", "v-always")
    ),
    "default": tuple(f"second-order{rest}" for rest in _DEFAULT),
    "default-ablations": (
        *(f"second-order-1{rest}" for rest in ("-v", "-c64-v", "-online-v", "-follow")),
        *(f"second-order-one-window{rest}" for rest in ("-v", "-online-v")),
    ),
    "depth-ablations": tuple(
        f"second-order-no-pooling{rest}" for rest in ("", "-v", "-c64", "-c64-v", "-online", "-online-v")
    ),
    "carriers": tuple(f"second-{carrier}" for carrier in CARRIER_WORDS),
    "judged-heads": tuple(f"judged{photos}{kind}" for photos in ("", "-c64") for kind in ("", "-v", "-v-always")),
    "online": (
        *("tfa-online", "judged-online", "judged-online-shuffled", "judged-online-v", "judged-online-v-always"),
        "judged-follow",
    ),
    "judge-ablations": (
        *(f"judged-{rule}" for rule in ("no-judge", "support")),
        *(f"judged-c64-{rule}" for rule in ("no-judge", "support", "no-centring", "no-score")),
    ),
}
GROUPS: Mapping[str, tuple[str, ...]] = {
    "peers": tuple(name for names in _PEERS.values() for name in names),
    "verified-peers": ("anyloc-v",),
    "spectral": _SPECTRAL,
    **_RETRIEVERS,
    "ablations": _ABLATIONS,
    "main": (
        *("anyloc", "tfvpr", "ria", "segvlad-superpixels", "tfa", "tfa-c64", "tfa-fullq", "tfa-c64+", "dual-c64"),
        *(f"second-order{rest}" for rest in _DEFAULT),
    ),  # heads on the results page with recalls down to place 20
}


class _NeedFiles(Mapping[str, NeedsFile]):
    """Heads made from a user's file; each is imported on lookup."""

    def __getitem__(self, name: str) -> NeedsFile:
        return _load(_FILE_MODULE_OF[name]).NEED_FILES[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_FILE_MODULE_OF)

    def __len__(self) -> int:
        return len(_FILE_MODULE_OF)


NEED_FILES: Mapping[str, NeedsFile] = _NeedFiles()


def head_card(name: str, supplied: Supplied | None = None) -> HeadCard:
    """Look up the card of a head; an error suggests the nearest name."""
    if name in _FILE_MODULE_OF:
        return NEED_FILES[name].card(name, supplied or Supplied())
    card = _listed_card(name) or _family_card(name, supplied or Supplied()) or _plugin_card(name)
    if card is None:
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise BadSpec(f"unknown head {name!r}{hint}; list them with: tfa bench heads")
    return card


def _load(module: str) -> Any:
    return import_module(f"tfa_bench.heads.{module}")


def _listed_card(name: str) -> HeadCard | None:
    if name not in _MODULE_OF:
        return None
    cards: Sequence[HeadCard] = _load(_MODULE_OF[name]).CARDS
    return next(card for card in cards if card.name == name)


def _family_card(name: str, supplied: Supplied) -> HeadCard | None:
    for pattern, place in _FAMILIES.items():
        if re.fullmatch(pattern, name):
            module, _, function = place.partition(":")
            make: Callable[..., HeadCard | None] = getattr(_load(module), function)
            return make(name, supplied.vocabulary) if name.startswith("dual") else make(name)
    return None


def _plugin_card(name: str) -> HeadCard | None:
    """Load the card that another distribution provides under the entry point `tfa.heads`."""
    card = load_plugin(_PLUGINS, name, _listed_names())
    if card is None:
        return None
    source = plugin_source(_PLUGINS, name)
    if not isinstance(card, HeadCard) or card.name != name:
        raise BadPlugin(f"the head {name!r} of {source} must be a HeadCard of that name, is {card!r}")
    if not card.stages or set(card.stages) - set(ALGORITHM):
        raise BadPlugin(
            f"the head {name!r} of {source} names the stages {card.stages}; stages are {', '.join(ALGORITHM)} "
            "(peers for a head that shares nothing with this package)"
        )
    # The version is part of the record's key: another version may answer differently.
    return replace(card, settings={**card.settings, "distribution": source})


def _listed_names() -> list[str]:
    groups = ("peers", "verified-peers", "spectral", "ablations", *_RETRIEVERS)
    return [*dict.fromkeys([*(name for group in groups for name in GROUPS[group]), *_FILE_MODULE_OF])]


def names() -> list[str]:
    """List every name that a run accepts; tfa-cN, tfa-cN-RULE, dual-cN, second-order-cN and judged-cN accept any N."""
    listed = _listed_names()
    return [*listed, *plugin_names(_PLUGINS, listed)]


def head_cards(names: Sequence[str], supplied: Supplied | None = None) -> list[HeadCard]:
    """Look up the cards of names and groups (`all` is every group), each once, in this order."""
    listed: list[str] = []
    for name in names:
        if name == "all":
            listed += [member for group in GROUPS.values() for member in group]
        else:
            listed += GROUPS.get(name, (name,))
    return [head_card(name, supplied) for name in dict.fromkeys(listed)]
