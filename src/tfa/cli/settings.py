"""Defaults of options from `tfa.toml` and environment variables; `tfa config` shows them.

    encoder = "dinov2-b14"      # an option of several commands
    fast = true

    [query]                     # options of one command, by their long names
    min-confidence = 0.9
    "frames.every" = "2s"       # and what --set sets

The command line comes before the environment, the environment before the file, the file before the default.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfa.cli import options
from tfa.cli.commands import PluginCommands
from tfa.cli.console import console, open_table, print_json, say
from tfa.cli.options import SHARED, Part, name_variable, split_setting
from tfa.errors import BadSpec
from tfa.types import ConfigInfo, Setting

# --- settings -------------------------------------------------------------------------------------

FILE_NAME = "tfa.toml"
FILE_VARIABLE = "TFA_CONFIG"  # the environment variable that names the file
OF_THE_CACHE = {"cache": "TFA_CACHE", "cache-limit": "TFA_CACHE_LIMIT"}  # settings without an option
_PLAIN = (str, int, float, bool)


def _is_there(path: Path) -> bool:
    """Say whether a file exists that this user may read."""
    return os.access(path, os.R_OK) and path.is_file()


@dataclass(frozen=True)
class Settings:
    """What a file says; nothing if there is none."""

    file: Path | None = None
    shared: dict[str, Any] = field(default_factory=dict)
    verbs: dict[str, Any] = field(default_factory=dict)  # tables by verb, tables of `bench` within

    @classmethod
    def find(cls) -> Settings:
        """Read the file named by `$TFA_CONFIG`, else that of this folder, else that of the user."""
        named = os.environ.get(FILE_VARIABLE)
        if named:
            if not Path(named).is_file():
                raise BadSpec(f"{FILE_VARIABLE}={named}: there is no such file; name one, or unset {FILE_VARIABLE}")
            return cls.read(Path(named))
        home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tfa" / FILE_NAME
        return next((cls.read(path) for path in (Path(FILE_NAME), home) if _is_there(path)), cls())

    @classmethod
    def read(cls, file: Path) -> Settings:
        """Read a file; an unknown setting is refused."""
        try:
            with file.open("rb") as opened:
                content = tomllib.load(opened)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BadSpec(f"{file} is not TOML: {error}; correct it, or name another file by {FILE_VARIABLE}") from None
        shared = {key: value for key, value in content.items() if not isinstance(value, dict)}
        unknown = sorted(shared.keys() - {*SHARED, *OF_THE_CACHE})
        if unknown:
            allowed = ", ".join((*SHARED, *OF_THE_CACHE))
            raise BadSpec(
                f"{file}: {unknown[0]} is not a setting for all commands; there are {allowed}; an option of one "
                "command belongs in a table of its name, such as [query]"
            )
        return cls(file, shared, {key: value for key, value in content.items() if isinstance(value, dict)})

    def set_environment(self) -> None:
        """Put settings of the cache into the environment."""
        for key, name in OF_THE_CACHE.items():
            if key in self.shared:
                os.environ.setdefault(name, str(self.shared[key]))

    def defaults(
        self, group: Any, context: Any, table: dict[str, Any] | None = None, where: str = ""
    ) -> dict[str, Any]:
        """Return the defaults of each command of a group, as click takes them."""
        table = self.verbs if table is None else table
        unknown = sorted(table.keys() - group.commands.keys())
        if unknown:
            raise BadSpec(
                f"{self.file}: [{where}{unknown[0]}] is not a command; there are {', '.join(sorted(group.commands))}"
            )
        made: dict[str, Any] = {}
        for verb, command in group.commands.items():
            named = verb in table or verb == context.invoked_subcommand
            if isinstance(command, PluginCommands) and not (command.installed and named):
                continue  # looking at its options would import it
            own = table.get(verb, {})
            if hasattr(command, "commands"):
                made[verb] = self.defaults(command, context, own, f"{where}{verb}.")
            else:
                made[verb] = self._of_verb(command, context, own, f"{where}{verb}")
        return made

    def _of_verb(self, command: Any, context: Any, values: dict[str, Any], where: str) -> dict[str, Any]:
        options = {
            spelt.lstrip("-"): parameter
            for parameter in command.params
            for spelt in getattr(parameter, "opts", ())
            if spelt.startswith("-") and "--help" not in parameter.opts
        }
        settable = getattr(command.callback, "settable", {})
        values = _flatten(values)
        unknown = sorted(values.keys() - options.keys() - settable.keys())
        if unknown:
            allowed = ", ".join(sorted(options)) + (f"; and {', '.join(sorted(settable))}" if settable else "")
            raise BadSpec(
                f"{self.file}: {unknown[0]} of [{where}] is not an option of tfa {where.replace('.', ' ')}; there are "
                f"{allowed}"
            )
        chosen = {key: self.shared[key] for key in SHARED if key in self.shared and key in options}
        chosen |= {key: value for key, value in values.items() if key in options}
        made = {options[key].name: self._checked(options[key], context, key, value) for key, value in chosen.items()}
        lines = [self._write_setting(settable, key, self.shared[name]) for key, (_, name) in settable.items()
                 if name in SHARED and name in self.shared]  # fmt: skip
        lines += [self._write_setting(settable, key, value) for key, value in values.items() if key in settable]
        typed = [made["set"]] if isinstance(made.get("set"), str) else made.get("set", [])
        for line in typed:
            self._check("set", line, split_setting, line, settable, where)
        return {**made, "set": [*lines, *typed]} if lines or typed else made

    def _write_setting(self, settable: Any, key: str, value: Any) -> str:
        """Write a setting as --set takes it; refuse one that its field refuses."""
        part, field = settable[key]
        if not isinstance(value, _PLAIN):
            raise BadSpec(f"{self.file}: {key} = {value!r} must be a text, a number, true or false")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        self._check(key, value, Part(part.cls, (), {field: key}).make, {}, {key: text})
        return f"{key}={text}"

    def _check(self, key: str, value: Any, check: Callable[..., Any], *arguments: Any) -> None:
        """Name the file and the setting in an error of a check."""
        try:
            check(*arguments)
        except Exception as error:
            raise BadSpec(f"{self.file}: {key} = {value!r}: {getattr(error, 'message', error)}") from None

    def _checked(self, parameter: Any, context: Any, key: str, value: Any) -> Any:
        several = isinstance(value, list) and all(isinstance(one, _PLAIN) for one in value)
        if not (several or isinstance(value, _PLAIN)):
            raise BadSpec(f"{self.file}: {key} = {value!r} must be a text, a number, true, false, or a list of these")
        self._check(key, value, parameter.process_value, context, value)
        return value


def _flatten(values: dict[str, Any]) -> dict[str, Any]:
    """Write tables within a table as dotted keys."""
    plain: dict[str, Any] = {}
    for key, value in values.items():
        plain |= {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {key: value}
    return plain


# --- config ---------------------------------------------------------------------------------------


def config(json: options.AsJson = False) -> None:
    """Show settings and where they come from: environment, tfa.toml or default."""
    settings = Settings.find()
    rows = [_row(key, name_variable(key), settings) for key in SHARED]
    rows += [_row(key, name, settings) for key, name in OF_THE_CACHE.items()]
    if json:
        file = None if settings.file is None else str(settings.file.absolute())
        print_json(ConfigInfo(file=file, settings=rows, verbs=settings.verbs))
        return
    say(f"file: {settings.file or f'none (./{FILE_NAME}, ~/.config/tfa/{FILE_NAME} or ${FILE_VARIABLE})'}")
    table = open_table("setting", "value", "from", "variable", fold=("value",))
    for row in rows:
        value = "" if row.value is None else str(row.value)
        table.add_row(row.setting, value, row.source or "default", row.variable)
    console().print(table)
    for verb, own in settings.verbs.items():
        say(f"[{verb}] " + ", ".join(f"{key} = {value!r}" for key, value in own.items()))


def _row(key: str, name: str, settings: Settings) -> Setting:
    # The file's settings of the cache were put into the environment before this verb began.
    if key in settings.shared and os.environ.get(name) in (None, str(settings.shared[key])):
        return Setting(setting=key, value=settings.shared[key], source=str(settings.file), variable=name)
    value = os.environ.get(name)
    return Setting(setting=key, value=value, source=None if value is None else "environment", variable=name)
