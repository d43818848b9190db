"""Every error this package raises on purpose.

A message says what was given, what is allowed and what to do next; the command line prints it as one block.
"""


class TfaError(Exception):
    """Base of all errors a user can cause and fix."""


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
