"""Commands of other distributions, found by the entry point group `tfa.commands` and imported when one runs.

[project.entry-points."tfa.commands"]
bench = "tfa_bench.cli:app"
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import typer
from typer.core import TyperGroup

from tfa.core.plugins import load_plugin, plugin_names, plugin_summary
from tfa.errors import BadPlugin, MissingExtra

GROUP = "tfa.commands"
# Commands of this project's other distributions → how to install the distribution.
_INSTALL = {"bench": "pip install tfa-bench, or from a checkout: pip install -e ./benchmarks"}


class PluginCommands(TyperGroup):
    """A group of commands whose module is imported when its commands are needed, not to list it in the help."""

    def __init__(self, name: str, *, summary: str, installed: bool) -> None:
        self.installed = installed
        self._loaded: TyperGroup | None = None
        super().__init__(name=name, help=summary, hidden=not installed, rich_help_panel="Research")

    @property
    def commands(self) -> Any:
        return self.load().commands if self.installed else {}

    @commands.setter
    def commands(self, _: Any) -> None:
        """Ignore the empty commands of the base class."""

    def load(self) -> TyperGroup:
        """Import the commands."""
        if self._loaded is None:
            assert self.name is not None
            if not self.installed:
                raise MissingExtra(f"tfa {self.name} is not installed; install with: {_INSTALL[self.name]}")
            app = load_plugin(GROUP, self.name)
            if not isinstance(app, typer.Typer):
                raise BadPlugin(f"{self.name!r} of {GROUP} must be a typer.Typer, got {type(app).__name__}")
            group = typer.main.get_group(app)
            group.name = self.name
            self._loaded = group
        return self._loaded


def plugin_commands(taken: Collection[str] = ()) -> list[PluginCommands]:
    """List commands of other distributions, and those that could be installed."""
    here = plugin_names(GROUP, taken)
    commands = [PluginCommands(name, summary=plugin_summary(GROUP, name), installed=True) for name in here]
    commands += [PluginCommands(name, summary="", installed=False) for name in _INSTALL if name not in here]
    return commands
