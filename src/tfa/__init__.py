"""TFA: visual place recognition without training.

    head = tfa.fit(tfa.Tokens(patches, cls))                   # researchers: tokens in, a head out
    m = tfa.PlaceMap.build("photos/"); m.save("town.tfa")       # engineers: photos in, a map out

Importing this package is light: a name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tfa.version import __version__ as __version__

if TYPE_CHECKING:
    from tfa.client import Client as Client
    from tfa.core.config import CalibrationSpec as CalibrationSpec
    from tfa.core.config import EncoderOptions as EncoderOptions
    from tfa.core.config import HeadSpec as HeadSpec
    from tfa.core.config import MapSpec as MapSpec
    from tfa.core.config import RerankSpec as RerankSpec
    from tfa.core.tokens import Tokens as Tokens
    from tfa.encoders import load_encoder as load_encoder
    from tfa.errors import TfaError as TfaError
    from tfa.maps import Answer as Answer
    from tfa.maps import CalibrationReport as CalibrationReport
    from tfa.maps import EditReport as EditReport
    from tfa.maps import Hit as Hit
    from tfa.maps import PlaceMap as PlaceMap
    from tfa.maps import Reranked as Reranked
    from tfa.maps import rerank_candidates as rerank_candidates
    from tfa.method.dual_vocabulary import DualHead as DualHead
    from tfa.method.head import Head as Head
    from tfa.method.second_order_head import SecondOrderHead as SecondOrderHead
    from tfa.photos.find_positions import PositionSources as PositionSources
    from tfa.photos.images import Photo as Photo
    from tfa.photos.positions import Position as Position
    from tfa.photos.recordings.frames import FrameSpec as FrameSpec
    from tfa.photos.recordings.frames import extract_frames as extract_frames
    from tfa.pipeline import calibrate as calibrate
    from tfa.pipeline import encode as encode
    from tfa.pipeline import fit as fit
    from tfa.pipeline import fit_dual as fit_dual
    from tfa.pipeline import fit_judged as fit_judged
    from tfa.pipeline import fit_second_order as fit_second_order
    from tfa.search.store import Region as Region
    from tfa.search.store import Where as Where

# Where each public name lives; the imports above are for type checkers alone.
_HOMES = {
    "tfa.core.config": ("CalibrationSpec", "EncoderOptions", "HeadSpec", "MapSpec", "RerankSpec"),
    "tfa.core.tokens": ("Tokens",),
    "tfa.client": ("Client",),
    "tfa.encoders": ("load_encoder",),
    "tfa.errors": ("TfaError",),
    "tfa.maps": ("Answer", "CalibrationReport", "EditReport", "Hit", "PlaceMap", "Reranked", "rerank_candidates"),
    "tfa.method.dual_vocabulary": ("DualHead",),
    "tfa.method.head": ("Head",),
    "tfa.method.second_order_head": ("SecondOrderHead",),
    "tfa.photos.find_positions": ("PositionSources",),
    "tfa.photos.images": ("Photo",),
    "tfa.photos.positions": ("Position",),
    "tfa.photos.recordings.frames": ("FrameSpec", "extract_frames"),
    "tfa.pipeline": ("calibrate", "encode", "fit", "fit_dual", "fit_judged", "fit_second_order"),
    "tfa.search.store": ("Region", "Where"),
}

__all__ = sorted(["__version__", *(name for names in _HOMES.values() for name in names)])


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'tfa' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
