"""What a study needs of a matcher, and the matchers by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tfa.core.progress import Progress
from tfa.errors import BadSpec

MATCHERS = {"aliked-lightglue": "aliked_lightglue:open_aliked_lightglue"}


class Matched(NamedTuple):
    """Two photos beside each other."""

    matches: int
    inliers: int  # matches that one geometry explains


class Matcher(Protocol):
    """Describes each photo once, and compares two described ones."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def fingerprint(self) -> str:
        """Of all that shapes what it finds: weights, settings, the libraries' versions."""
        ...

    def describe(self, photo: Path) -> Any:
        """Its keypoints and their descriptors; `len` is their number."""
        ...

    def compare(self, query: Any, candidate: Any) -> Matched: ...


def open_matcher(name: str, progress: bool | Progress | None = None) -> Matcher:
    """A matcher with its weights, which are fetched if they are not in the cache yet."""
    if name not in MATCHERS:
        raise BadSpec(f"there is no matcher {name!r}; use {', '.join(MATCHERS)}")
    module, _, function = MATCHERS[name].partition(":")
    opened: Callable[..., Matcher] = getattr(import_module(f"tfa.bench.matchers.{module}"), function)
    return opened(progress)
