"""Plugins of other distributions: objects by name, under the entry points `tfa.encoders`, `tfa.heads`, `tfa.layouts`
and `tfa.stores`.

    [project.entry-points."tfa.heads"]
    brightness = "my_package.heads:BRIGHTNESS"

Listing names imports nothing; an object is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tfa.errors import BadPlugin

_GROUPS = ("tfa.encoders", "tfa.heads", "tfa.layouts", "tfa.stores")


def plugin_names(group: str, taken: Collection[str] = ()) -> list[str]:
    """Names that other distributions bring to a group; one that is `taken` by this package, or given twice, raises."""
    return sorted(_plugins(group, taken))


def load_plugin(group: str, name: str, taken: Collection[str] = ()) -> Any | None:
    """The object of a name; None where no distribution brings it."""
    entry = _plugins(group, taken).get(name)
    if entry is None:
        return None
    try:
        return entry.load()
    except Exception as error:  # whatever another package raises while it is imported
        raise BadPlugin(
            f"{name!r} of {group} cannot be loaded from {_describe_source(entry)} ({entry.value}): "
            f"{type(error).__name__}: {error}; update or uninstall that distribution"
        ) from error


def plugin_source(group: str, name: str) -> str:
    """The distribution that brings a name, and its version."""
    return _describe_source(_plugins(group, ())[name])


def _describe_source(entry: EntryPoint) -> str:
    return "an unnamed distribution" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def _plugins(group: str, taken: Collection[str]) -> dict[str, EntryPoint]:
    assert group in _GROUPS, f"{group} is not a group of this package"
    plugins: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        other = "this package" if entry.name in taken else None
        other = _describe_source(plugins[entry.name]) if entry.name in plugins else other
        if other is not None:
            source = _describe_source(entry)
            raise BadPlugin(f"{source} and {other} both bring {entry.name!r} to {group}; uninstall one or rename it")
        plugins[entry.name] = entry
    return plugins
