"""What LanceDB raises, in our own words."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from tfa.errors import DiskFull, EngineConflict, EngineUnavailable, TfaError

FAILURES = (ValueError, OSError, RuntimeError)  # what LanceDB raises
ABSENT = ("not found", "no such", "does not exist")
Method = TypeVar("Method", bound=Callable[..., Any])


def is_absent(error: Exception) -> bool:
    """Is it that a table, or a version of it, is not there?"""
    return any(word in str(error).lower() for word in ABSENT)


def in_our_words(method: Method) -> Method:
    """A method of an object that has a `place`: its failures name that."""

    @wraps(method)
    def told(self: Any, *given: Any, **named: Any) -> Any:
        try:
            return method(self, *given, **named)
        except FAILURES as error:
            raise _told(error, self.place) from error

    return told  # type: ignore[return-value]


def _told(error: Exception, place: str) -> TfaError:
    said = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    if "No space left" in said or "os error 28" in said:
        return DiskFull(f"the disk of {place} is full; what was saved before is as it was. Free some room there")
    if "NoSuchBucket" in str(error):
        return EngineUnavailable(f"there is no bucket for {place}; check its name and endpoint=, or create it")
    if "credentials" in str(error).lower():
        return EngineUnavailable(
            f"there are no keys for {place}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
        )
    if is_absent(error):
        return EngineConflict(
            f"LanceDB in {place}: what was opened is not there any more ({said}); build the map again"
        )
    return EngineUnavailable(
        f"LanceDB cannot work in {place} ({said}); check the folder's or the bucket's name, who may write there, and "
        "for a bucket endpoint= and the keys in the environment"
    )
