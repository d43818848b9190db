"""Every error this package raises on purpose.

A message says what was given, what is allowed and what to do next; the command line prints it as one block.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import PurePath


class TfaError(Exception):
    """Base of all errors a user can cause and fix.

    `paths` are the files and folders of this machine that the message names, so that a service can leave them out.
    The message is one line, whatever name it quotes; what takes several lines is in `more`.
    """

    def __init__(self, message: str = "", *paths: str | os.PathLike[str], more: Sequence[str] = ()) -> None:
        super().__init__("\n".join([message, *more]))
        self.lines = (message, *more)
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


class BadRecording(TfaError):
    """A bag or a video cannot be read, or holds no frames of the kind that was asked for."""


class BadManifest(TfaError):
    """A list of photos cannot be read."""


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


class StoreUnavailable(TfaError):
    """A store, or a part of it, does not answer. Nothing is answered in its place."""


class StoreConflict(TfaError):
    """A store holds something else under that name: another shape, another owner, or nothing."""


class DiskFull(TfaError):
    """A disk, or somebody's share of it, has no room left. What was there before is as it was."""


class OutOfResources(TfaError):
    """The system has no memory or no open files left to give."""


_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
_OPEN_FILES = (errno.EMFILE, errno.ENFILE)
# How Python, torch and the loader of libraries say, by errors of other kinds, that there is no memory.
_NO_MEMORY = (
    "can't start new thread", "can't allocate memory", "cannot allocate memory", "failed to map segment",
    "error return without exception set",
)  # fmt: skip


def from_os_error(error: Exception, path: str | os.PathLike[str] | None = None) -> TfaError | None:
    """What ran out, as an error that says so; None if the system objects to something else.

    `path` is what was being written, where the system's error does not name it.
    """
    if isinstance(error, MemoryError):
        return _no_memory(error)
    if not isinstance(error, OSError):
        short = isinstance(error, (RuntimeError, ImportError, SystemError)) and any(
            said in str(error) for said in _NO_MEMORY
        )
        return _no_memory(error) if short else None
    named = [one for one in (error.filename, error.filename2, path) if isinstance(one, (str, os.PathLike))]
    where = "" if not named else f" at {os.fspath(named[0])}"
    said = error.strerror or str(error)
    if error.errno in _FULL:
        return DiskFull(
            f"the disk is full{where} ({said}); what was saved before is as it was. "
            "Free some room there and do it again",
            *named,
        )
    if error.errno in _OPEN_FILES:
        return OutOfResources(
            f"too many files are open{where} ({said}); close some, or allow more with: ulimit -n",
            *named,
        )
    return _no_memory(error) if error.errno == errno.ENOMEM else None


def _no_memory(error: Exception) -> OutOfResources:
    said = f" ({error})" if str(error) else ""
    return OutOfResources(
        f"there is not enough memory{said}; what was saved before is as it was. End other programs, or take fewer "
        "photos at a time"
    )
