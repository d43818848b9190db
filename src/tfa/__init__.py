"""TFA: visual place recognition without training.

    head = tfa.fit(tfa.Tokens(patches, cls))                   # tokens in, head out
    m = tfa.PlaceMap.build("photos/"); m.save("town.tfa")       # photos in, map out

Importing this package is fast: each public name is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tfa.version import __version__ as __version__

if TYPE_CHECKING:
    from tfa.client import Client as Client
    from tfa.core.tokens import Tokens as Tokens
    from tfa.encoders import Encoder as Encoder
    from tfa.encoders import load_encoder as load_encoder
    from tfa.errors import TfaError as TfaError
    from tfa.maps import PlaceMap as PlaceMap
    from tfa.maps import Reranked as Reranked
    from tfa.maps import rerank_candidates as rerank_candidates
    from tfa.maps.loop_closer import LoopCloser as LoopCloser
    from tfa.method.dual_vocabulary import DualHead as DualHead
    from tfa.method.head import Head as Head
    from tfa.method.second_order_head import SecondOrderHead as SecondOrderHead
    from tfa.photos.find_positions import PositionSources as PositionSources
    from tfa.photos.images import Photo as Photo
    from tfa.photos.recordings.frames import FrameSpec as FrameSpec
    from tfa.photos.recordings.frames import extract_frames as extract_frames
    from tfa.pipeline import calibrate as calibrate
    from tfa.pipeline import encode as encode
    from tfa.pipeline import fit as fit
    from tfa.pipeline import fit_dual as fit_dual
    from tfa.pipeline import fit_second_order as fit_second_order
    from tfa.types import Answer as Answer
    from tfa.types import Answers as Answers
    from tfa.types import BuildOptions as BuildOptions
    from tfa.types import CalibrateOptions as CalibrateOptions
    from tfa.types import CalibrationReport as CalibrationReport
    from tfa.types import EditReport as EditReport
    from tfa.types import EncoderOptions as EncoderOptions
    from tfa.types import ExpectedRecall as ExpectedRecall
    from tfa.types import HeadSpec as HeadSpec
    from tfa.types import Hit as Hit
    from tfa.types import ImageRecord as ImageRecord
    from tfa.types import Loop as Loop
    from tfa.types import LoopOptions as LoopOptions
    from tfa.types import MapInfo as MapInfo
    from tfa.types import Place as Place
    from tfa.types import Position as Position
    from tfa.types import QueryOptions as QueryOptions
    from tfa.types import RerankSpec as RerankSpec

# Module of each public name; the imports above are only for type checkers.
_HOMES = {
    "tfa.core.tokens": ("Tokens",),
    "tfa.client": ("Client",),
    "tfa.encoders": ("Encoder", "load_encoder"),
    "tfa.errors": ("TfaError",),
    "tfa.maps": ("PlaceMap", "Reranked", "rerank_candidates"),
    "tfa.maps.loop_closer": ("LoopCloser",),
    "tfa.method.dual_vocabulary": ("DualHead",),
    "tfa.method.head": ("Head",),
    "tfa.method.second_order_head": ("SecondOrderHead",),
    "tfa.photos.find_positions": ("PositionSources",),
    "tfa.photos.images": ("Photo",),
    "tfa.photos.recordings.frames": ("FrameSpec", "extract_frames"),
    "tfa.pipeline": ("calibrate", "encode", "fit", "fit_dual", "fit_second_order"),
    "tfa.types": (
        "Answer", "Answers", "BuildOptions", "CalibrateOptions", "CalibrationReport", "EditReport", "EncoderOptions",
        "ExpectedRecall", "HeadSpec", "Hit", "ImageRecord", "Loop", "LoopOptions", "MapInfo", "Place", "Position",
        "QueryOptions", "RerankSpec",
    ),
}  # fmt: skip

__all__ = sorted(["__version__", *(name for names in _HOMES.values() for name in names)])


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'tfa' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
