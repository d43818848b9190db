"""Options of commands, derived from dataclasses or shared by several commands, and their defaults from `tfa.toml`.

`@takes(options=QueryOptions)` gives a command one option for each field, with the field's description, bounds and
choices, and passes it the dataclass. A new field of `QueryOptions` becomes an option of `tfa query`. Rarely used fields
are set with `--set KEY=VALUE`.

    encoder = "dinov2-b14"      # tfa.toml: an option of several commands
    precision = "float32"

    [query]                     # options of one command, by their long names
    min-confidence = 0.9
    "frames.every" = "2s"       # a key of --set

The command line overrides the environment, the environment overrides the file. `tfa config` shows the settings.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import os
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tfa.cli.console import console, delivered, format_range, open_table, say
from tfa.core.plain import Options, hints, opt
from tfa.errors import BadSpec, TfaError
from tfa.search.store import MapLocation
from tfa.types import ConfigInfo, EncoderOptions, Setting

if TYPE_CHECKING:
    from tfa.maps import PlaceMap
    from tfa.photos.find_positions import PositionSources


_PICTURES = (".png", ".jpg", ".jpeg")
SHARED = ("encoder", "weights", "device", "threads", "precision", "quiet")  # settings of several commands in tfa.toml
_YES_NO = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_SETTINGS = "tfa.settings"  # where a context keeps the keys that were set

# Fields without an option: a command serves one camera, and a cache is an object.
_HIDDEN = frozenset({"camera", "sequence", "loops", "cache"})

# Details of options that a field does not state.
_DETAILS: dict[str, dict[str, Any]] = {
    "k": {"names": ("-k",)},
    "min_confidence": {"metavar": "P"},
    "name": {"metavar": "NAME"},
    "calibration": {"metavar": "NAME|none"},
    "sessions": {"metavar": "NAME"},
    "region": {"metavar": "W,S,E,N"},
    "weights": {"metavar": "FILE", "exists": True},
    "device": {"metavar": "auto|cpu|cuda|mps"},
    "dims": {"metavar": "N"},
}
# Groups of `--help`; other options are in the first group.
ENCODING = ("weights", "device", "threads", "precision")
ENCODER, STREAMS, OUTPUT, POSITIONS, RECORDINGS = "Encoder", "Streams", "Output", "Positions", "Recordings"
_PANELS = {
    **dict.fromkeys(("positions", "gpx", "gpx_offset", "gpx_gap", "utm"), POSITIONS),
    **dict.fromkeys(("topic", "position_topic", "every"), RECORDINGS),
    **dict.fromkeys(ENCODING, ENCODER),
    "rerank": "Reranking", "candidates": "Reranking", "sessions": "Filters", "region": "Filters",
}  # fmt: skip


# Kinds of options that differ in name and help only.
stream_option, output_option = (functools.partial(typer.Option, rich_help_panel=panel) for panel in (STREAMS, OUTPUT))
photos_option = functools.partial(typer.Option, metavar="PHOTO|FOLDER", exists=True)
folder_option = functools.partial(typer.Option, metavar="FOLDER", exists=True, file_okay=False)
file_option = functools.partial(typer.Option, dir_okay=False)
out_option = functools.partial(file_option, "--out", "-o")


def name_variable(option: str) -> str:
    """Return the environment variable of a shared option."""
    return f"TFA_{option.upper()}"


# --- options of a dataclass ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """The fields of a dataclass that a command takes: some as options, others with --set."""

    cls: type[Any]
    typed: Sequence[str] | None = None  # fields that are options; None: all
    keys: str | Mapping[str, str] | None = None  # prefix of the other fields for --set, or the key of each

    @property
    def options(self) -> list[str]:
        """Fields that are options."""
        return [name for name in hints(self.cls) if name not in _HIDDEN and (self.typed is None or name in self.typed)]

    @property
    def settings(self) -> dict[str, str]:
        """Fields that are set with --set, by their keys."""
        if self.keys is None:
            return {}
        rest = [name for name in hints(self.cls) if name not in _HIDDEN and name not in self.options]
        if isinstance(self.keys, str):
            return {f"{self.keys}.{name}" if self.keys else name: name for name in rest}
        return {key: name for name in rest if (key := self.keys.get(name))}

    def parameters(self) -> list[inspect.Parameter]:
        """Return the options as parameters of a function that typer reads."""
        fields = {field.name: field for field in dataclasses.fields(self.cls)}
        return [_parameter(self.cls, fields[name], hints(self.cls)[name]) for name in self.options]

    def make(self, arguments: dict[str, Any], settings: Mapping[str, str]) -> Any:
        """Build the dataclass from settings and from options, which are removed from `arguments`."""
        values: dict[str, Any] = {}
        for name in self.options:
            value = arguments.pop(name)
            values[name] = tuple(value or ()) if _is_repeated(hints(self.cls)[name]) else value
        keys = {name: key for key, name in self.settings.items()}
        for name, key in keys.items():
            if key in settings:
                values[name] = read_value(settings[key], hints(self.cls)[name])
        try:
            return self.cls(**values)
        except BadSpec as error:
            name, _, said = str(error).partition("=")
            if name not in values:
                raise
            hint = f"--set {keys[name]}" if name in keys else spell(name, hints(self.cls)[name])
            raise typer.BadParameter(said, param_hint=hint) from None


def takes(**parts: type[Any] | Part) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the named parameters of a command by options; the command receives dataclasses."""
    chosen = {name: part if isinstance(part, Part) else Part(part) for name, part in parts.items()}
    settable = {key: (part, field) for part in chosen.values() for key, field in part.settings.items()}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for name, parameter in signature.parameters.items():
            parameters += chosen[name].parameters() if name in chosen else [parameter]
        if settable:
            parameters += [_keyword("set", _Set, None)]
            parameters += [] if "context" in signature.parameters else [_keyword("context", typer.Context)]
        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]

        @functools.wraps(command)
        def called(**arguments: Any) -> None:
            settings: dict[str, str] = {}
            if settable:
                context = arguments["context"] if "context" in signature.parameters else arguments.pop("context")
                settings = _read_settings(context, arguments.pop("set") or [], settable)
            for name, part in chosen.items():
                arguments[name] = part.make(arguments, settings)
            command(**arguments)

        called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        called.settable = settable  # type: ignore[attr-defined]
        return called

    return decorate


_Set = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="Set a rarely used option; repeat for more. An unknown KEY lists all."),
]
with_encoder = takes(encoding=Part(EncoderOptions, ENCODING))


def _keyword(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _parameter(cls: type[Any], field: dataclasses.Field[Any], hint: Any) -> inspect.Parameter:
    details = {**_DETAILS.get(field.name, {}), **field.metadata.get("cli", {})}
    names = details.pop("names", (spell(field.name, hint),))
    kinds, optional = _kinds(hint), type(None) in typing.get_args(hint)
    details["help"] = field.metadata["description"].replace("[", "\\[")
    details["rich_help_panel"] = _PANELS.get(field.name)
    if field.name in SHARED:
        details["envvar"] = name_variable(field.name)
    annotation: Any
    if kinds[0] is bool:
        if optional or field.default is True or field.name in SHARED:
            names = (f"{names[0]}/--no-{names[0].removeprefix('--')}",)
        annotation = bool
    elif _is_repeated(hint):
        return _keyword(field.name, Annotated[list[str] | None, typer.Option(*names, **details)], None)
    elif Path in kinds:
        annotation = Path
    elif len(kinds) == 1 and (kinds[0] in (int, float, str) or typing.get_origin(kinds[0]) is Literal):
        [annotation] = kinds
        if annotation in (int, float):
            limits = format_range(field.metadata.get("ge"), field.metadata.get("le"))
            details["metavar"] = details.get("metavar", "N") + limits
            details["callback"] = _make_check(cls, field.name)
    else:  # a number or a word, or several numbers
        words = [word for kind in kinds if typing.get_origin(kind) is Literal for word in typing.get_args(kind)]
        details.setdefault("metavar", "|".join(["N", *words]))
        annotation, details["parser"] = str, functools.partial(_parse, hint=hint, metavar=details["metavar"])
    annotation = annotation | None if optional else annotation
    return _keyword(field.name, Annotated[annotation, typer.Option(*names, **details)], field.default)


def _make_check(cls: type[Any], name: str) -> Callable[[Any], Any]:
    """Return a callback that checks a number against its field."""

    def check(value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            raise typer.BadParameter(f"{value} is not a finite number")
        if value is not None:
            try:
                cls(**{name: value})
            except BadSpec as error:
                raise typer.BadParameter(str(error).removeprefix(f"{name}=")) from None
        return value

    return check


def spell(name: str, hint: Any) -> str:
    """Return the option of a field; a repeatable one is in the singular."""
    return "--" + (name.removesuffix("s") if _is_repeated(hint) else name).replace("_", "-")


def _kinds(hint: Any) -> list[Any]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return [kind for kind in (typing.get_args(hint) if union else (hint,)) if kind is not type(None)]


def _is_repeated(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple and typing.get_args(hint)[1:] == (Ellipsis,)


def _parse(text: Any, hint: Any, metavar: str) -> Any:
    value = text if isinstance(text, tuple) else read_value(str(text), hint)
    if isinstance(value, str) and any(typing.get_origin(kind) is tuple for kind in _kinds(hint)):
        raise typer.BadParameter(f"{value!r} is not {metavar}; give numbers, such as 13.3,52.4,13.5,52.6")
    return value


def read_value(text: str, hint: Any) -> Any:
    """Read a value of a field's type from text. Text that does not fit is returned, and the field rejects it."""
    for kind in _kinds(hint):
        if typing.get_origin(kind) is Literal and text in typing.get_args(kind):
            return text
        try:
            if kind is bool:
                return _YES_NO[text.lower()]
            if kind in (int, float, Path):
                return kind(text)
            if typing.get_origin(kind) is tuple:
                return tuple(float(one) for one in text.split(","))
        except (KeyError, ValueError):
            continue
    return text


# --- settings ------------------------------------------------------------------------------------------------------


def list_set_keys(context: typer.Context) -> frozenset[str]:
    """Return the keys that were set by --set, the environment or tfa.toml."""
    return frozenset(context.meta.get(_SETTINGS, ()))


def _read_settings(context: typer.Context, typed: Sequence[str], settable: Mapping[str, Any]) -> dict[str, str]:
    """Read tfa.toml, the environment and the command line; each overrides the one before."""
    file, source = (context.default_map or {}).get("set", []), context.get_parameter_source("set")
    settings = dict(split_setting(one, settable, context.info_name) for one in file)
    for key, (_, field) in settable.items():
        value = os.environ.get(name_variable(field)) if field in SHARED else None
        if value:
            settings[key] = value
    if source is not None and source.name == "COMMANDLINE":
        settings |= dict(split_setting(one, settable, context.info_name) for one in typed)
    context.meta[_SETTINGS] = frozenset(settings)
    return settings


def split_setting(text: str, settable: Iterable[str], command: str | None) -> tuple[str, str]:
    """Split KEY=VALUE; the error for an unknown key names the nearest one and lists all."""
    key, equals, value = text.partition("=")
    keys = sorted(settable)
    if key not in keys:
        near = difflib.get_close_matches(key, keys, n=1)
        meant = f"; did you mean {near[0]}?" if near else "."
        raise typer.BadParameter(
            f"{key!r} is not a setting of tfa {command}{meant} Allowed: {', '.join(keys)}", param_hint="--set"
        )
    if not equals:
        raise typer.BadParameter(f"{text!r} has no value; write {key}=VALUE", param_hint="--set")
    return key, value


MapPath = Annotated[
    MapLocation,
    typer.Argument(metavar="MAP|URL", parser=MapLocation, help="Map folder, or the URL of a map in a store."),
]
photos_argument = typer.Argument(metavar="PHOTOS", exists=True, help="Photos, or folders searched for photos.")
PhotosArgument = Annotated[list[Path], photos_argument]
EncoderOption = Annotated[
    str,
    typer.Option(
        envvar=name_variable("encoder"),
        metavar="NAME",
        rich_help_panel=ENCODER,
        help="Encoder: name, name@size/layer-facet, hf:ORG/NAME or hf:./folder; see tfa encoders.",
    ),
]
Lag = Annotated[
    int, stream_option(min=0, max=100, metavar="N", help="With --sequence, use the next N frames for each answer.")
]
CalibrationOption = Annotated[
    str | None, typer.Option(metavar="NAME|none", help="Calibration to use, or 'none'. \\[default: the active one]")
]
Checksum = Annotated[bool, typer.Option("--checksum", help="Compare every byte of the map with its checksums first.")]
AsJson = Annotated[bool, output_option("--json", help="Print only JSON on standard output.")]
JsonFile = Annotated[Path | None, output_option(metavar="FILE", dir_okay=False, help="Also write the result as JSON.")]
Quiet = Annotated[bool, output_option("--quiet", "-q", envvar=name_variable("quiet"), help="Show no progress.")]
_FILE = {"exists": True, "dir_okay": False}


class PositionOptions(Options):
    """Sources of photo positions, in addition to the photos."""

    positions: Path | None = opt(
        None,
        "Positions of the photos: columns file,lat,lon or file,x,y. [default: from names, XMP and EXIF]",
        cli={"metavar": "CSV", **_FILE},
    )
    gpx: Path | None = opt(None, "GPX track; a photo's time gives its position.", cli={"metavar": "TRACK.gpx", **_FILE})
    gpx_offset: float | None = opt(
        None, "Seconds to add to the camera clock to get UTC. [default: 0]", cli={"metavar": "SECONDS"}
    )
    gpx_gap: float | None = opt(
        None, "Do not interpolate across track gaps longer than this. [default: 60]", cli={"metavar": "SECONDS"}
    )
    utm: str | None = opt(None, "UTM zone of x and y, such as 33N; positions become degrees.", cli={"metavar": "ZONE"})

    def read(self) -> PositionSources:
        """Read the files now, so that a bad one is reported before the work."""
        from tfa.photos.find_positions import GPX_GAP, PositionSources
        from tfa.photos.positions import read_gpx, read_positions_csv

        if self.gpx is None and (self.gpx_offset is not None or self.gpx_gap is not None):
            raise typer.BadParameter("an offset or a gap needs a track; pass --gpx TRACK.gpx")
        gap = GPX_GAP if self.gpx_gap is None else self.gpx_gap
        sources = PositionSources(
            csv=self.positions, gpx=self.gpx, gpx_offset=self.gpx_offset or 0.0, gpx_gap=gap, utm=self.utm
        )
        if self.positions is not None:
            read_positions_csv(self.positions)
        if self.gpx is not None:
            read_gpx(self.gpx)
        return sources


# --- work that commands share --------------------------------------------------------------------------------------


def open_map(path: MapLocation, encoding: EncoderOptions, *, quiet: bool) -> tuple[PlaceMap, bool]:
    """Open a map with these encoder options; also return whether progress is shown."""
    from tfa.maps import PlaceMap

    place_map, progress = PlaceMap.load(path), not quiet
    place_map.use_encoder(encoding, progress)
    return place_map, progress


def check_folder(map: MapLocation, verb: str) -> Path:
    """Return the folder of a map; reject a map in a store."""
    if map.in_store:
        raise BadSpec(f"tfa {verb} needs a map in a folder, but {map} is in a store; build one with --out NAME.tfa")
    return map.folder


def check_picture(path: Path | None) -> Path | None:
    """Reject a file that cannot be written or is not an image format."""
    if path is not None:
        if path.suffix.lower() not in _PICTURES:
            raise typer.BadParameter(f"{path} must end in one of {' '.join(_PICTURES)}")
        check_writable(path)
    return path


def check_new(path: Path, *, force: bool) -> None:
    """Reject an existing file or folder, unless --force is set, and a path that cannot be written."""
    if not force and (path.exists() or path.is_symlink()):
        raise TfaError(f"{path} exists already; choose another --out, or replace it with --force")
    check_writable(path)


def check_writable(path: Path) -> None:
    """Reject, before any work, a path whose folder neither exists nor can be created."""
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise TfaError(f"cannot write {path}: {parent} is a file, not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise TfaError(f"cannot write {path}: no permission to write in {parent}")


# --- defaults -------------------------------------------------------------------------------------

FILE_NAME = "tfa.toml"
FILE_VARIABLE = "TFA_CONFIG"  # the environment variable that names the file
OF_THE_CACHE = {"cache": "TFA_CACHE", "cache-limit": "TFA_CACHE_LIMIT"}  # settings without an option
_PLAIN = (str, int, float, bool)
_LARGEST = 1_000_000  # bytes of a settings file
# Options that delete, expose or write data, or widen limits: a tfa.toml of the working folder may be someone else's.
GUARDED = frozenset({
    "activate", "again", "api-keys", "audit-log", "build.patches_at", "build.ray", "build.work", "cache", "cache-limit",
    "calibrate.name", "cameras", "clear", "cors", "drop", "edit-api-key", "force", "frames.folder", "host", "html",
    "max-batch", "max-pixels", "max-size", "max-upload", "montage", "no-auth", "older-than", "out", "patch-cache",
    "proxy", "prune", "rate-limit", "read-api-key", "serve.quiet", "state", "to", "unconfirmed", "yes",
})  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """The settings of a file; empty without one."""

    file: Path | None = None
    shared: dict[str, Any] = dataclasses.field(default_factory=dict)
    verbs: dict[str, Any] = dataclasses.field(default_factory=dict)  # tables by command; those of `bench` are nested
    guards: bool = False  # whether the file was not chosen by the user

    @classmethod
    def find(cls) -> Settings:
        """Read the file named by `$TFA_CONFIG`, else `./tfa.toml`, else the user's."""
        named = os.environ.get(FILE_VARIABLE)
        if named:
            if not Path(named).is_file():
                raise BadSpec(f"{FILE_VARIABLE}={named}: the file does not exist; correct or unset {FILE_VARIABLE}")
            return cls.read(Path(named))
        home = _find_home_file()
        readable = (path for path in (Path(FILE_NAME), home) if os.access(path, os.R_OK) and path.is_file())
        return next((cls.read(one, guards=not (home.is_file() and one.samefile(home))) for one in readable), cls())

    @classmethod
    def read(cls, file: Path, *, guards: bool = False) -> Settings:
        """Read a file; an unknown setting is an error."""
        try:
            with file.open("rb") as opened:
                text = opened.read(_LARGEST + 1)
            if len(text) > _LARGEST:
                raise ValueError(f"it is larger than {_LARGEST:,} bytes")
            content = tomllib.loads(text.decode())
        except (ValueError, RecursionError) as error:  # not TOML, not text, or nested too deeply
            raise BadSpec(f"{file} is not TOML: {error}; correct it, or set {FILE_VARIABLE} to another file") from None
        shared = {key: value for key, value in content.items() if not isinstance(value, dict)}
        unknown = sorted(shared.keys() - {*SHARED, *OF_THE_CACHE})
        if unknown:
            allowed = ", ".join((*SHARED, *OF_THE_CACHE))
            raise BadSpec(
                f"{file}: {unknown[0]} is not a setting for all commands; allowed: {allowed}. Options of one command "
                "belong in its table, such as [query]"
            )
        read = cls(file, shared, {key: value for key, value in content.items() if isinstance(value, dict)}, guards)
        read._guard(shared)
        return read

    def _is_guarded(self, name: str, where: str) -> bool:
        return self.guards and not GUARDED.isdisjoint((name, f"{where}.{name}"))

    def _guard(self, names: Iterable[str], where: str = "") -> None:
        """Reject guarded options of a file that the user did not choose."""
        refused = sorted(name for name in names if self._is_guarded(name, where))
        if refused:
            said = f"{refused[0]} of [{where}]" if where else refused[0]
            raise BadSpec(
                f"{self.file}: {said} may delete, expose or write data or widen a limit, so the working folder may not "
                f"set it; move it to {_find_home_file()}, or set {FILE_VARIABLE}={self.file} if you trust this file"
            )

    def set_environment(self) -> None:
        """Put settings of the cache into the environment."""
        for key, name in OF_THE_CACHE.items():
            if key in self.shared:
                os.environ.setdefault(name, str(self.shared[key]))

    def defaults(
        self, group: Any, context: Any, table: dict[str, Any] | None = None, where: str = ""
    ) -> dict[str, Any]:
        """Return the defaults of each command of a group, as click expects them."""
        table = self.verbs if table is None else table
        unknown = sorted(table.keys() - group.commands.keys())
        if unknown:
            raise BadSpec(
                f"{self.file}: [{where}{unknown[0]}] is not a command; allowed: {', '.join(sorted(group.commands))}"
            )
        made: dict[str, Any] = {}
        for verb, command in group.commands.items():
            named = verb in table or verb == context.invoked_subcommand
            if getattr(command, "is_plugin", False) and not (command.installed and named):
                continue  # reading its options would import it
            own = table.get(verb, {})
            if not isinstance(own, dict):
                raise BadSpec(f"{self.file}: {where}{verb} is a command; set its options in the table [{where}{verb}]")
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
            command = f"tfa {where.replace('.', ' ')}"
            raise BadSpec(f"{self.file}: {unknown[0]} of [{where}] is not an option of {command}; allowed: {allowed}")
        self._guard([name.lstrip("-") for key in values for name in getattr(options.get(key), "opts", [key])], where)
        chosen = {key: self.shared[key] for key in SHARED
                  if key in self.shared and key in options and not self._is_guarded(key, where)}  # fmt: skip
        chosen |= {key: value for key, value in values.items() if key in options}
        made = {options[key].name: self._checked(options[key], context, key, value) for key, value in chosen.items()}
        lines = [self._write_setting(settable, key, self.shared[name]) for key, (_, name) in settable.items()
                 if name in SHARED and name in self.shared]  # fmt: skip
        lines += [self._write_setting(settable, key, value) for key, value in values.items() if key in settable]
        typed = made.get("set", [])
        typed = [str(line) for line in (typed if isinstance(typed, list) else [typed])]
        self._guard([line.partition("=")[0] for line in typed], where)
        for line in typed:
            self._check("set", line, split_setting, line, settable, where)
        return {**made, "set": [*lines, *typed]} if lines or typed else made

    def _write_setting(self, settable: Any, key: str, value: Any) -> str:
        """Write a setting as --set takes it, after its field has checked it."""
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


def _find_home_file() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tfa" / FILE_NAME


def _flatten(values: dict[str, Any]) -> dict[str, Any]:
    """Flatten nested tables to dotted keys."""
    plain: dict[str, Any] = {}
    for key, value in values.items():
        plain |= {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {key: value}
    return plain


# --- config ---------------------------------------------------------------------------------------


def config(json: AsJson = False) -> None:
    """Show each setting and where its value comes from."""
    settings = Settings.find()
    rows = [_row(key, name_variable(key), settings) for key in SHARED]
    rows += [_row(key, name, settings) for key, name in OF_THE_CACHE.items()]
    file = None if settings.file is None else str(settings.file.absolute())
    if delivered(ConfigInfo(file=file, settings=rows, verbs=settings.verbs), json=json):
        return
    say(f"file: {settings.file or f'none (./{FILE_NAME}, ~/.config/tfa/{FILE_NAME} or ${FILE_VARIABLE})'}")
    table = open_table("setting", "value", "from", "variable", fold=("value",))
    for row in rows:
        value = _find_default(row.setting) if row.value is None else row.value
        table.add_row(row.setting, str(value), row.source or "default", row.variable)
    console().print(table)
    for verb, own in settings.verbs.items():
        say(f"[{verb}] " + ", ".join(f"{key} = {value!r}" for key, value in own.items()))


def _find_default(key: str) -> str:
    """Return the default of a setting for display."""
    from tfa.core.files import cache_folder
    from tfa.encoders.catalogue import DEFAULT_ENCODER
    from tfa.photos.token_cache import DEFAULT_GIGABYTES

    fixed = {
        "encoder": DEFAULT_ENCODER, "weights": "the encoder's", "threads": "all cores", "quiet": "no",
        "cache": str(cache_folder()), "cache-limit": f"{DEFAULT_GIGABYTES:g} GB",
    }  # fmt: skip
    value = getattr(EncoderOptions(), key, None)
    return fixed.get(key) or ("no" if value is False else str(value))


def _row(key: str, name: str, settings: Settings) -> Setting:
    # The file's cache settings were put into the environment before this command began.
    if key in settings.shared and os.environ.get(name) in (None, str(settings.shared[key])):
        return Setting(setting=key, value=settings.shared[key], source=str(settings.file), variable=name)
    value = os.environ.get(name)
    return Setting(setting=key, value=value, source=None if value is None else "environment", variable=name)
