"""Every error this package raises on purpose.

A message says what was given, what is allowed and what to do next; the command line prints it as one block.
"""

from __future__ import annotations

import os
from pathlib import PurePath


class TfaError(Exception):
    """Base of all errors a user can cause and fix.

    `paths` are the files and folders of this machine that the message names, so that a service can leave them out.
    """

    def __init__(self, message: str = "", *paths: str | os.PathLike[str]) -> None:
        super().__init__(message)
        self.paths = tuple(os.fspath(path) for path in paths)

    @property
    def public(self) -> str:
        """The message for another machine: of each of its paths the last name alone."""
        message = str(self)
        for path in sorted(self.paths, key=len, reverse=True):  # a file before the folder it lies in
            message = message.replace(path, PurePath(path).name)
        return message


class BadSpec(TfaError):
    """A setting has an unknown name or a value outside its range."""


class BadTokens(TfaError):
    """Patch or global tokens have a wrong shape, a wrong width or non-finite values."""


class ChannelMismatch(BadTokens):
    """Query tokens do not come from the encoder the head was fitted with."""


class BadImage(TfaError):
    """A file is not a readable image."""


class NoImages(TfaError):
    """A folder or a list holds no image to work on."""


class UnknownEncoder(TfaError):
    """An encoder name, size, layer or facet is not in the catalogue."""


class WeightsMissing(TfaError):
    """No weights were found for an encoder."""


class BadWeights(TfaError):
    """A weights file does not fit the encoder."""


class BadPositions(TfaError):
    """A positions file cannot be read or matches no image."""


class BadMap(TfaError):
    """A saved map is truncated, edited, or of a version this release does not read."""


class UnknownImage(TfaError):
    """An image or place id is not in the map."""


class BadCalibration(TfaError):
    """Photos cannot calibrate the map, or it has no calibration of that name."""


class BadPlugin(TfaError):
    """What another distribution brings cannot be loaded, is not what its entry point promises, or has a taken name."""


class FewPhotos(UserWarning):
    """A calibration with very few target photos."""


class MissingExtra(TfaError):
    """An optional dependency is needed and not installed."""
