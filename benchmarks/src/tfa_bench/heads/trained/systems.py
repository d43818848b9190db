"""Catalogue of trained systems: file names, marks in their checkpoints and where to download them. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

CHECKPOINTS = "TFA_CHECKPOINTS"  # folder that is searched for files with their published names


@dataclass(frozen=True, kw_only=True)
class TrainedSystem:
    """A system of another paper, whose weights the user provides."""

    name: str  # name of the head
    title: str
    architecture: str  # name in `models`, which imports torch
    files: tuple[str, ...]  # published file names, preferred first
    marks: tuple[str, ...]  # tensors that identify the system
    published: str  # where it is published
    licence: str
    width: int = 0  # backbone width, if two systems differ only in it
    called: str = ""  # part of the file name, if two systems have the same tensors
    may_antialias: bool = False  # unknown whether its photos were resized with antialiasing

    def matches(self, width: int, file: Path) -> bool:
        """Distinguish systems of the same layout by backbone width or file name."""
        return width == self.width != 0 or (self.called != "" and self.called in file.name.lower())


_SELAVPR = "backbone.adapters.0.D_fc1.weight"
_SELAVPR_PUBLISHED = (
    'Hugging Face fenglu96/SelaVPRplusplus, or release "SelaVPR++" of Lu-Feng/SelaVPRplusplus on GitHub'
)
_GEM = ("backbone.0.weight", "aggregation.1.p", "aggregation.3.weight")

_ALL = (
    TrainedSystem(
        name="salad",
        title="SALAD",
        architecture="SALAD",
        files=("dino_salad.ckpt",),
        marks=("aggregator.dust_bin",),
        published="release v1.0.0 of serizba/salad on GitHub",
        licence="GPL-3.0 (repository); none stated for the weights",
        called="salad",
    ),
    TrainedSystem(
        name="cliquemining",
        title="CliqueMining",
        architecture="SALAD",
        files=("cliquemining.ckpt",),
        marks=("aggregator.dust_bin",),
        published="a Google Drive file that gmberton/VPR-methods-evaluation on GitHub names",
        licence="not known to us",
        called="clique",
    ),
    TrainedSystem(
        name="megaloc",
        title="MegaLoc",
        architecture="MEGALOC",
        files=("megaloc.safetensors", "megaloc.torch"),
        marks=("aggregator.agg.dust_bin", "aggregator.linear.weight"),
        published="Hugging Face gberton/MegaLoc (model.safetensors), or release v1.0 of gmberton/MegaLoc on GitHub",
        licence="MIT (repository); none seen for the weights",
    ),
    TrainedSystem(
        name="boq",
        title="BoQ",
        architecture="BOQ",
        files=("dinov2_12288.pth",),
        marks=("aggregator.boqs.0.queries",),
        published="release v1.0 of amaralibey/Bag-of-Queries on GitHub",
        licence="MIT (repository); none stated for the weights",
    ),
    TrainedSystem(
        name="selavpr++-b",
        title="SelaVPR++-B",
        architecture="SELAVPR_BASE",
        files=("SelaVPRplusplus_base.pth", "SelaVPRplusplus_base_rerank.pth"),
        marks=(_SELAVPR,),
        published=_SELAVPR_PUBLISHED,
        licence="MIT (repository); none seen for the weights",
        width=768,
        may_antialias=True,
    ),
    TrainedSystem(
        name="selavpr++-l",
        title="SelaVPR++-L",
        architecture="SELAVPR_LARGE",
        files=("SelaVPRplusplus_large_rerank.pth", "SelaVPRplusplus_large.pth"),
        marks=(_SELAVPR,),
        published=_SELAVPR_PUBLISHED,
        licence="MIT (repository); none seen for the weights",
        width=1024,
        may_antialias=True,
    ),
    TrainedSystem(
        name="sample4geo",
        title="Sample4Geo",
        architecture="SAMPLE4GEO",
        files=("weights_e1_0.9515.pth",),
        marks=("model.stem.0.weight",),
        published="a Google Drive folder that the README of Skyy93/Sample4Geo on GitHub links, one file a dataset",
        licence="none stated, so all rights reserved",
    ),
    TrainedSystem(
        name="cosplace",
        title="CosPlace",
        architecture="COSPLACE",
        files=("ResNet50_2048_cosplace.pth", "ResNet18_512_cosplace.pth"),
        marks=_GEM,
        published="release v1.0 of gmberton/CosPlace on GitHub",
        licence="MIT",
        called="cosplace",
    ),
    TrainedSystem(
        name="eigenplaces",
        title="EigenPlaces",
        architecture="COSPLACE",
        files=("ResNet50_2048_eigenplaces.pth", "ResNet18_512_eigenplaces.pth"),
        marks=_GEM,
        published="release v1.0 of gmberton/EigenPlaces on GitHub",
        licence="MIT",
        called="eigenplaces",
    ),
)
SYSTEMS: Mapping[str, TrainedSystem] = {system.name: system for system in _ALL}

# Systems that users may try but no head supports.
_UNSUPPORTED = {
    "CricaVPR": "backbone.blocks.0.adapter.D_fc1.weight",
    "MixVPR": "aggregator.mix.0.mix.0.weight",
    "SelaVPR++'s hashing branch alone": "backbone.adapters_hashing.0.D_fc1.weight",
}
_BACKBONE = ("pos_embed", "embeddings.position_embeddings")


def recognize(names: Iterable[str], width: int, file: Path) -> TrainedSystem | str | None:
    """Recognize a checkpoint by its tensors: a system, the title of an unsupported one, or None.

    Systems of one layout differ by backbone width or file name.
    """
    present = set(names)
    candidates = [system for system in _ALL if present.issuperset(system.marks)]
    if candidates:
        return next((system for system in candidates if system.matches(width, file)), candidates[0])
    for title, mark in _UNSUPPORTED.items():
        if mark in present:
            return title
    return "a backbone without a head" if present & set(_BACKBONE) else None


def published_file(system: TrainedSystem) -> Path | None:
    """Find the system's file by its published names in `$TFA_CHECKPOINTS`."""
    folder = os.environ.get(CHECKPOINTS)
    paths = (Path(folder, name) for name in system.files) if folder else ()
    return next((path for path in paths if path.is_file()), None)
