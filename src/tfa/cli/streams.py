"""Standard streams that are closed, full or no longer read: the end is quiet, and the exit code says what happened."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import NoReturn, TextIO

NOT_PRINTED = 1  # the result could not be written: it is not where it was wanted
PIPE_CLOSED = 141  # what shells report for a program whose reader went away, as `head -1` does
NO_MEMORY = b"error: there is not enough memory; what was saved before is as it was. End other programs\n"


def open_missing() -> None:
    """Put the null device where a stream was closed (`>&-`).

    Otherwise the next file that is opened, a map say, takes its number, and whoever prints writes into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


@contextlib.contextmanager
def name_stream(*, stderr: bool = False) -> Iterator[None]:
    """An error says which stream it is of: one of a full disk would else look like that of a file."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard error" if stderr else "standard output") from error


def failure() -> OSError | None:
    """Why what was printed so far cannot be delivered; None if it was."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return error
    return None


def end_without_memory() -> NoReturn:
    """Say so and end, by what takes no memory; the interpreter itself needs some to end."""
    with contextlib.suppress(OSError):
        os.write(2, NO_MEMORY)
    os._exit(NOT_PRINTED)


def discard_output(stream: TextIO | None = None) -> None:
    """Send what a stream still holds nowhere, so that the end of the interpreter does not try it again."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, (stream or sys.stdout).fileno())
    except (OSError, ValueError):  # a stream of a test, without a number
        pass
    finally:
        os.close(null)
