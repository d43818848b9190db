"""Exceptions of this package.

A message states the offending value, what is allowed and what to do; the command line prints it as one block.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import PurePath


class TfaError(Exception):
    """Base class of all errors a user can cause and fix.

    Args:
        message: One line.
        *paths: Local files and folders named in the message, which a service shortens to their names.
        more: Further lines, such as a list of choices.
    """

    def __init__(self, message: str = "", *paths: str | os.PathLike[str], more: Sequence[str] = ()) -> None:
        super().__init__("\n".join([message, *more]))
        self.lines = (message, *more)
        self.paths = tuple(os.fspath(path) for path in paths)

    @property
    def public(self) -> str:
        """The message with paths shortened to file names, for other machines."""
        message = str(self)
        for path in sorted(self.paths, key=len, reverse=True):  # files before their folders
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
    """A folder or list contains no images."""


class UnknownEncoder(TfaError):
    """An encoder name, size, layer or facet is unknown."""


class WeightsMissing(TfaError):
    """No weights were found for an encoder."""


class BadWeights(TfaError):
    """A weights file does not fit the encoder."""


class BadPositions(TfaError):
    """A positions file cannot be read or matches no image."""


class BadRecording(TfaError):
    """A bag or video cannot be read, or has no frames of the requested kind."""


class BadManifest(TfaError):
    """A list of photos cannot be read."""


class BadMap(TfaError):
    """A saved map is damaged, or its version is not supported by this release."""


class UnknownImage(TfaError):
    """An image or place id is not in the map."""


class BadCalibration(TfaError):
    """Photos cannot calibrate the map, or the named calibration does not exist."""


class BadPlugin(TfaError):
    """A plugin cannot be loaded, does not fit its entry point, or has a name that is taken."""


class FewPhotos(UserWarning):
    """A calibration with very few target photos."""


class MissingExtra(TfaError):
    """A required optional dependency is not installed."""


class StoreUnavailable(TfaError):
    """A store, or a part of it, does not respond. No partial answers are returned."""


class StoreConflict(TfaError):
    """A store name is missing, or belongs to data of another shape or owner."""


class DiskFull(TfaError):
    """The disk or quota is full. Existing files are unchanged."""


class OutOfResources(TfaError):
    """The system is out of memory or file handles."""


_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
_OPEN_FILES = (errno.EMFILE, errno.ENFILE)
# Messages that mean "out of memory" but arrive as other exception types.
_NO_MEMORY = (
    "can't start new thread", "can't allocate memory", "cannot allocate memory", "failed to map segment",
    "error return without exception set", "without setting an exception",
)  # fmt: skip


def from_os_error(error: Exception, path: str | os.PathLike[str] | None = None) -> TfaError | None:
    """Convert a system error to DiskFull or OutOfResources; return None for other errors.

    `path` is the file being written, used if the error names none.
    """
    if isinstance(error, MemoryError):
        return _no_memory(error)
    if not isinstance(error, OSError):
        has_type = isinstance(error, RuntimeError | ImportError | SystemError)
        return _no_memory(error) if has_type and any(said in str(error) for said in _NO_MEMORY) else None
    named = [one for one in (error.filename, error.filename2, path) if isinstance(one, (str, os.PathLike))]
    where = "" if not named else f" at {os.fspath(named[0])}"
    said = error.strerror or str(error)
    if error.errno in _FULL:
        return DiskFull(
            f"the disk is full{where} ({said}); existing files are unchanged. Free disk space and try again", *named
        )
    if error.errno in _OPEN_FILES:
        return OutOfResources(
            f"too many open files{where} ({said}); close programs, or raise the limit with: ulimit -n", *named
        )
    return _no_memory(error) if error.errno == errno.ENOMEM else None


def _no_memory(error: Exception) -> OutOfResources:
    said = f" ({error})" if str(error) else ""
    return OutOfResources(
        f"out of memory{said}; existing files are unchanged. Close other programs, or use fewer photos at a time"
    )
