"""TFA: visual place recognition without training.

    head = tfa.fit(tfa.Tokens(patches, cls))                   # researchers: tokens in, a head out
    m = tfa.PlaceMap.build("photos/"); m.save("town.tfa")       # engineers: photos in, a map out

Importing this package is light: a name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tfa.version import __version__

if TYPE_CHECKING:
    from tfa.base.config import CalibrationSpec, EncoderOptions, HeadSpec, MapSpec, VerifySpec
    from tfa.base.tokens import Tokens
    from tfa.client.client import Client
    from tfa.encoders import load_encoder
    from tfa.errors import TfaError
    from tfa.maps import Answer, CalibrationReport, EditReport, Hit, PlaceMap, Verified, verify
    from tfa.method.dual_vocabulary import DualHead
    from tfa.method.head import Head
    from tfa.photos.positions import Position
    from tfa.pipeline import calibrate, encode, fit, fit_dual

_HOMES = {
    "tfa.base.config": ("CalibrationSpec", "EncoderOptions", "HeadSpec", "MapSpec", "VerifySpec"),
    "tfa.base.tokens": ("Tokens",),
    "tfa.client": ("Client",),
    "tfa.encoders": ("load_encoder",),
    "tfa.errors": ("TfaError",),
    "tfa.maps": ("Answer", "CalibrationReport", "EditReport", "Hit", "PlaceMap", "Verified", "verify"),
    "tfa.method.dual_vocabulary": ("DualHead",),
    "tfa.method.head": ("Head",),
    "tfa.photos.positions": ("Position",),
    "tfa.pipeline": ("calibrate", "encode", "fit", "fit_dual"),
}

__all__ = [
    "Answer",
    "CalibrationReport",
    "CalibrationSpec",
    "Client",
    "DualHead",
    "EditReport",
    "EncoderOptions",
    "Head",
    "HeadSpec",
    "Hit",
    "MapSpec",
    "PlaceMap",
    "Position",
    "TfaError",
    "Tokens",
    "Verified",
    "VerifySpec",
    "__version__",
    "calibrate",
    "encode",
    "fit",
    "fit_dual",
    "load_encoder",
    "verify",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'tfa' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
