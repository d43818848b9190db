"""Plugins: named objects from other distributions, registered under the entry points `tfa.encoders`, `tfa.heads`,
`tfa.layouts`, `tfa.stores`, `tfa.commands` and `tfa.weights`.

    [project.entry-points."tfa.heads"]
    brightness = "my_package.heads:BRIGHTNESS"

Listing names imports nothing; an object is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tfa.errors import BadPlugin


def plugin_names(group: str, taken: Collection[str] = ()) -> list[str]:
    """List the plugin names of a group; raise BadPlugin if a name is in `taken` or defined twice."""
    return sorted(_plugins(group, taken))


def load_plugin(group: str, name: str, taken: Collection[str] = ()) -> Any | None:
    """Import a plugin; return None if no distribution provides it."""
    entry = _plugins(group, taken).get(name)
    if entry is None:
        return None
    try:
        return entry.load()
    except Exception as error:  # importing another package may raise anything
        raise BadPlugin(
            f"plugin {name!r} ({group}) cannot be loaded from {_describe_source(entry)} ({entry.value}): "
            f"{type(error).__name__}: {error}; update or uninstall that distribution"
        ) from error


def plugin_source(group: str, name: str) -> str:
    """Return name and version of the distribution that provides a plugin."""
    return _describe_source(_plugins(group, ())[name])


def plugin_summary(group: str, name: str) -> str:
    """Return the one-line summary of the distribution that provides a plugin."""
    dist = _plugins(group, ())[name].dist
    return "" if dist is None else str(dist.metadata["Summary"] or "")


def _describe_source(entry: EntryPoint) -> str:
    return "an unnamed distribution" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def _plugins(group: str, taken: Collection[str]) -> dict[str, EntryPoint]:
    plugins: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        other = "this package" if entry.name in taken else None
        other = _describe_source(plugins[entry.name]) if entry.name in plugins else other
        if other is not None:
            source = _describe_source(entry)
            raise BadPlugin(
                f"{source} and {other} both provide {entry.name!r} ({group}); uninstall one or rename the plugin"
            )
        plugins[entry.name] = entry
    return plugins
