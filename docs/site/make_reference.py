"""Generate the reference pages from the program: `python docs/site/make_reference.py`.

`make docs` writes every page of `PAGES` into the site. This script rewrites the pages in `COMMITTED`, which people also
read in a checkout. The Python page is not committed: only the site shows the docstrings that it names.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import json
import pkgutil
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from write_markdown import (
    default_of,
    list_fields,
    name_schema,
    name_type,
    quote,
    split_default,
    strip_markup,
    unwrap,
    write_bounds,
    write_options_class,
    write_page,
    write_properties,
    write_table,
    write_value_class,
)

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SCHEMA_ENDING = ".schema.json"

# --- commands ------------------------------------------------------------------------------------------------------

_CLI_INTRO = """
Every command with its arguments, options and defaults. `tfa COMMAND --help` prints the same text. `tfa config` shows
the settings of `tfa.toml` and of environment variables.

A map argument is a folder (`town.tfa`) or the URL of a map in a [store](../how-to/scale.md). A photo argument takes
image files, folders that are searched for images, and with `build` and `query` also bags and videos.

Results go to standard output; progress, notes and errors go to standard error. With `--json` standard output holds one
JSON value and nothing else. Its [JSON Schemas](../schemas) describe every field.
"""
_BENCH_INTRO = """
Commands of the distribution `tfa-bench`, which is installed from a checkout with `pip install -e ./benchmarks`. How to
use them: [benchmark your data](../how-to/benchmark-your-data.md).
"""


def read_panel(described: Any) -> str:
    """Return the heading of --help under which a command or a parameter is listed; empty without one."""
    panel = getattr(described, "rich_help_panel", None)
    return panel if isinstance(panel, str) else ""


def list_commands(*, bench: bool) -> dict[str, Any]:
    """Return the commands by name: those of `tfa bench`, or all others."""
    import typer

    from tfa.cli.app import app
    from tfa.cli.console import name_values

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        name_values(command.params)
        if words and (not hasattr(command, "commands") or command.invoke_without_command):
            yield " ".join(words), command
        for name, inner in getattr(command, "commands", {}).items():
            inner.rich_help_panel = read_panel(inner) or read_panel(command)
            yield from walk(inner, (*words, name))

    group: Any = typer.main.get_command(app)
    return {name: command for name, command in walk(group, ()) if name.startswith("bench ") == bench}


def name_value(parameter: Any, hints: Mapping[str, Any]) -> str:
    """Write what a parameter takes: its metavar, its choices, or its type."""
    if getattr(parameter, "is_flag", False):
        return ""
    if parameter.metavar or parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    kinds = [hints.get(parameter.name)]
    while len(kinds) == 1 and typing.get_args(kinds[0]) and typing.get_origin(kinds[0]) is not Literal:
        arguments = typing.get_args(kinds[0])
        if typing.get_origin(kinds[0]) is typing.Annotated:
            arguments = arguments[:1]
        kinds = [one for one in arguments if one is not type(None)]
    kind: Any = kinds[0] if kinds else str
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "|".join(str(one.value) for one in kind)
    if typing.get_origin(kind) is Literal:
        return "|".join(map(str, typing.get_args(kind)))
    return {int: "N", float: "X", Path: "PATH"}.get(kind, "TEXT")


def write_default(parameter: Any, stated: str) -> str:
    """Write the default of a parameter."""
    value = parameter.default() if callable(parameter.default) else parameter.default
    if parameter.required:
        return "required"
    if isinstance(value, bool):
        pair = bool(parameter.secondary_opts)
        return stated or (f"`{(parameter.opts if value else parameter.secondary_opts)[0]}`" if pair else "")
    if isinstance(value, enum.Enum):
        value = value.value
    return stated or quote(value)


def write_parameters(command: Any) -> str:
    """Write the arguments, options and settings of a command."""
    hints = {
        name: one.annotation for name, one in inspect.signature(command.callback, eval_str=True).parameters.items()
    }
    arguments: list[Sequence[str]] = []
    panels: dict[str, list[Sequence[str]]] = {}
    for parameter in command.params:
        if "--help" in parameter.opts or getattr(parameter, "hidden", False):
            continue
        text, stated = split_default(strip_markup(parameter.help or ""))
        value, default = name_value(parameter, hints), write_default(parameter, stated)
        if parameter.param_type_name == "argument":
            arguments.append((f"`{value}`", default, text))
            continue
        names = [*parameter.opts, *parameter.secondary_opts]
        spelled = ", ".join(f"`{name}{f' {value}' if value and not at else ''}`" for at, name in enumerate(names))
        variable = parameter.envvar[0] if isinstance(parameter.envvar, list) else parameter.envvar
        row = (spelled, default, f"{text} Environment: `{variable}`." if variable else text)
        panels.setdefault(read_panel(parameter) or "Options", []).append(row)
    tables = [write_table(("argument", "", "meaning"), arguments)] if arguments else []
    for panel, rows in panels.items():
        tables += [f"{panel}:"] if len(panels) > 1 else []
        tables.append(write_table(("option", "default", "meaning"), rows))
    tables.append(write_settable(command))
    return "\n\n".join(table for table in tables if table)


def write_settable(command: Any) -> str:
    """Write the keys that a command takes with --set."""
    rows = []
    for key, (part, name) in getattr(command.callback, "settable", {}).items():
        field, hint = next(one for one in list_fields(part.cls) if one[0].name == name)
        text, stated = split_default(field.metadata["description"])
        kind = name_type(hint).replace(" or null", "")
        rows.append((f"`{key}`", kind, default_of(field) or stated, write_bounds(field.metadata), text))
    return write_table(("`--set` key", "type", "default", "range", "meaning"), rows) if rows else ""


def write_usage(name: str, command: Any) -> str:
    """Write the usage line of a command."""
    words = [f"tfa {name}"]
    for one in (one for one in command.params if one.param_type_name == "argument"):
        word = (one.metavar or one.name.upper()) + ("..." if one.nargs == -1 else "")
        words.append(word if one.required else f"[{word}]")
    for one in (one for one in command.params if one.param_type_name == "option" and one.required):
        words.append(f"{one.opts[0]} {one.metavar or ''}".strip())
    return " ".join([*words, "[OPTIONS]"])


def write_command(name: str, command: Any, schemas: str) -> str:
    """Write the section of one command."""
    parts = [f"## tfa {name}", unwrap(strip_markup(command.help or "")), f"```text\n{write_usage(name, command)}\n```"]
    parts.append(write_parameters(command))
    schema = f"{name.replace(' ', '-')}{SCHEMA_ENDING}"
    if (DOCS / "schemas" / schema).exists():
        parts.append(f"JSON Schema of `--json`: [{schema}]({schemas}/{schema}).")
    lines = re.findall(r"^\$ .+$", strip_markup(command.epilog or ""), re.MULTILINE)
    parts += ["Examples:", "```console\n" + "\n".join(lines) + "\n```"] if lines else []
    return "\n\n".join(part for part in parts if part)


def write_commands(commands: Mapping[str, Any]) -> list[str]:
    """Write a table of commands and the section of each."""
    rows = []
    for name, command in commands.items():
        purpose = strip_markup(command.help or "").split("\n\n")[0]
        rows.append((f"[`tfa {name}`](#tfa-{name.replace(' ', '-')})", purpose, read_panel(command)))
    sections = [write_command(name, command, "../schemas") for name, command in commands.items()]
    return [write_table(("command", "purpose", "group"), rows), *sections]


def write_exit_codes() -> str:
    """Write the exit codes of all commands."""
    from tfa.cli.app import INTERRUPTED, USAGE
    from tfa.cli.console import PIPE_CLOSED

    rows = [
        (0, "Success. An answer without hits is a success."),
        (1, "Error. Standard error has one message that starts with `error:`."),
        (USAGE, "Unknown command or option, or a missing, invalid or conflicting value; also in `tfa.toml`."),
        (INTERRUPTED, "Interrupted with Ctrl-C. Saved maps are unchanged; encoded photos stay in the cache."),
        (PIPE_CLOSED, "The reader of standard output closed it, as `head -1` does."),
    ]
    partial = (
        "`tfa query` and `tfa pairs` exit with 1 if some photos cannot be read. They still answer the others. Control "
        "characters in file names are printed as escapes."
    )
    return "\n\n".join(["## Exit codes", write_table(("code", "meaning"), rows), partial])


def cli_page() -> str:
    """Write the commands of the package."""
    return write_page("Command line", _CLI_INTRO, *write_commands(list_commands(bench=False)), write_exit_codes())


def bench_page() -> str:
    """Write the commands of the benchmark."""
    exits = "Exit codes: as of the [other commands](cli.md#exit-codes)."
    return write_page("Benchmark commands", _BENCH_INTRO, *write_commands(list_commands(bench=True)), exits)


# --- JSON ----------------------------------------------------------------------------------------------------------


def value_classes() -> dict[str, Any]:
    """Return the classes of `tfa.types` that users get, by name."""
    from tfa import types as values
    from tfa.core.plain import Options, Value

    found = {name: one for name, one in vars(values).items() if isinstance(one, type) and issubclass(one, Value)}
    return {name: one for name, one in found.items() if not issubclass(one, Options) and one is not Value}


def json_page() -> str:
    """Write what commands print with --json, and the values they are made of."""
    classes = value_classes()

    def link(reference: str) -> str:
        file, _, path = reference.partition("#")
        name = path.rsplit("/", 1)[-1] or file.removesuffix(SCHEMA_ENDING)
        anchor = name.lower() if name in classes or path else f"tfa-{name}---json"
        return f"[{name}](#{anchor})"

    commands, definitions = [], dict[str, str]()
    for file in sorted((DOCS / "schemas").glob(f"*{SCHEMA_ENDING}")):
        schema = json.loads(file.read_text("utf-8"))
        for name, one in schema.get("$defs", {}).items():
            if name not in classes:
                body = write_properties(one, link) if "properties" in one else f"Type: {name_schema(one, link)}."
                definitions[name] = f"### {name}\n\n{one.get('description', '')}\n\n{body}"
        if "title" not in schema:
            continue
        body = write_properties(schema, link) if "properties" in schema else f"Value: {name_schema(schema, link)}."
        heading = f"### {schema['title']}" if schema["title"].startswith("tfa ") else ""
        if heading:
            description = schema.get("description", "")
            described = description if description.endswith(".") or not description else f"{description}."
            source = f"Schema: [{file.name}](../schemas/{file.name})."
            commands.append("\n\n".join(part for part in (heading, described, body, source) if part))
    values = [write_value_class(cls) for cls in classes.values()]
    intro = (
        "JSON that commands print with `--json`. The [HTTP service](http.md) returns the same values, and the Python "
        "API returns them as frozen dataclasses of `tfa.types`. A field that may be absent is left out if it does not "
        "apply."
    )
    more = ["## More values", *(definitions[name] for name in sorted(definitions))] if definitions else []
    return write_page("JSON output", intro, "## Commands", *commands, "## Values", *values, *more)


# --- HTTP ----------------------------------------------------------------------------------------------------------


def openapi() -> dict[str, Any]:
    """Return the OpenAPI description of the service without opening a map."""
    from tfa.service import app as service

    app = service._Application(title="TFA", version="any")
    for router in service._ROUTERS:
        app.include_router(router)
    return app.openapi()


def http_page() -> str:
    """Write the routes of the service."""
    schema, classes = openapi(), value_classes()

    def link(reference: str) -> str:
        name = reference.rsplit("/", 1)[-1]
        return f"[{name}](json.md#{name.lower()})" if name in classes else f"[{name}](#{name.lower()})"

    tags: dict[str, list[str]] = {}
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            section = _write_route(f"{method.upper()} {path}", route, link)
            tags.setdefault(route.get("tags", ["other"])[0], []).append(section)
    components = schema["components"]["schemas"]
    others = [
        f"### {name}\n\n{one.get('description', '')}\n\n{write_properties(one, link)}"
        for name, one in components.items()
        if name not in classes
    ]
    intro = (
        "Routes of `tfa serve`, from its OpenAPI description, which a running service returns at `/openapi.json`. How "
        "to run it: [serve a map](../how-to/serve.md). Keys and roles: "
        "[secure a service](../how-to/secure-a-service.md).\n\n"
        "Send photos as `multipart/form-data`, or as JSON with base64. With an API key, send it as "
        "`Authorization: Bearer KEY`. Every error is a [Problem](#problem)."
    )
    parts = [f"## {tag.capitalize()}\n\n" + "\n\n".join(sections) for tag, sections in tags.items()]
    return write_page("HTTP API", intro, *parts, "## Values", *others)


def _write_route(title: str, route: Mapping[str, Any], link: Callable[[str], str]) -> str:
    parts = [f"### {title}", unwrap(route.get("description", ""))]
    rows = []
    for one in route.get("parameters", []):
        default = "required" if one["required"] else quote(one["schema"].get("default"))
        text = one.get("description") or ""
        rows.append(
            (f"`{one['name']}`", one["in"], name_schema(one["schema"], link).replace(" or null", ""), default, text)
        )
    parts += [write_table(("parameter", "in", "type", "default", "meaning"), rows)] if rows else []
    contents = route.get("requestBody", {}).get("content", {})
    if contents:
        kind, body = next(iter(contents.items()))
        named = f": {name_schema(body['schema'], link)}" if "properties" not in body["schema"] else ""
        parts.append(f"Body: {', '.join(f'`{one}`' for one in contents)}{named}.")
        parts += [] if named else [write_properties(body["schema"], link, given=True)]
    returned = []
    for status, answer in route["responses"].items():
        inner = next(iter(answer.get("content", {}).items()), None)
        if status.startswith("2") and inner is not None:
            kind, content = inner
            shown = name_schema(content["schema"], link) if content.get("schema") else f"`{kind}`"
            returned.append(f"{status}: {shown}")
    refused = [status for status in sorted(route["responses"]) if not status.startswith("2")]
    closing = "Returns " + "; ".join(returned) + "." if returned else ""
    closing += f" Errors: {', '.join(refused)}." if refused else ""
    return "\n\n".join(part for part in [*parts, closing.strip()] if part)


# --- settings ------------------------------------------------------------------------------------------------------

_SETTINGS_INTRO = """
The command line overrides environment variables, these override `tfa.toml`, and the file overrides the defaults. The
file is the one that `TFA_CONFIG` names, else `tfa.toml` in the current folder, else `~/.config/tfa/tfa.toml`.
`tfa config` shows each value and its source.

```toml
encoder = "dinov2-b14"      # an option of several commands
fast = true

[query]                     # options of one command, by their long names
min-confidence = 0.9
"frames.every" = "2s"       # a key of --set
```

Each command names the file on standard error. A `tfa.toml` in the current folder may come from someone else, so it
may not set options that delete, expose or write data, or that widen limits: {guarded}.
To use them, move them to your own file, or name the file in `TFA_CONFIG`.
"""


def settings_page() -> str:
    """Write settings of all commands, options as Python classes, and settings of the service."""
    from tfa import types as values
    from tfa.cli.options import FILE_VARIABLE, GUARDED, OF_THE_CACHE, SHARED, name_variable
    from tfa.core.plain import Options

    commands = list_commands(bench=False)
    helps = {
        spelled.lstrip("-"): split_default(strip_markup(one.help or ""))
        for command in reversed(commands.values())
        for one in command.params
        for spelled in one.opts
    }
    fields = dataclasses.fields(values.EncoderOptions)
    helps = {field.name: split_default(field.metadata["description"]) for field in fields} | helps
    rows = [(f"`{key}`", f"`{name_variable(key)}`", *helps[key]) for key in SHARED]
    cache = {"cache": "Folder of the cache.", "cache-limit": "Maximum size of the cache in GB."}
    rows += [(f"`{key}`", f"`{name}`", cache[key], "") for key, name in OF_THE_CACHE.items()]
    rows += [("", f"`{FILE_VARIABLE}`", "Settings file.", "")]
    shared = write_table(("setting", "variable", "meaning", "default"), rows)
    listed: dict[str, list[str]] = {}
    for name, command in commands.items():
        for key in getattr(command.callback, "settable", {}):
            listed.setdefault(key, []).append(f"[{name}](cli.md#tfa-{name.replace(' ', '-')})")
    keys = write_table(("key", "commands"), [(f"`{key}`", ", ".join(used)) for key, used in sorted(listed.items())])
    classes = [one for one in vars(values).values() if isinstance(one, type) and issubclass(one, Options)]
    service = importlib.import_module("tfa.service.settings").ServiceSettings
    intro = _SETTINGS_INTRO.format(guarded=", ".join(f"`{name}`" for name in sorted(GUARDED)))
    return write_page(
        "Settings", intro, "## Settings of several commands", shared, "## Keys of --set",
        "Rarely used options are set with `--set KEY=VALUE` or as a key of the command's table.", keys,
        "## Options in Python", "Classes of the Python API, defined in [`types.py`](../../src/tfa/types.py).",
        *(write_options_class(cls) for cls in classes if cls is not Options),
        "## Service", "Settings of `tfa.service`; `tfa serve` has an option for the common ones.",
        write_options_class(service),
    )  # fmt: skip


# --- catalogues ----------------------------------------------------------------------------------------------------


def encoders_page() -> str:
    """Write the catalogue of encoders."""
    from tfa.cli.tools import summarize_encoder
    from tfa.encoders.catalogue import CATALOGUE, DEFAULT_ENCODER, FACETS

    rows = []
    for card in CATALOGUE.values():
        source = f"`{card.hub}`" if card.package is None else f"package `{card.package.name}` {card.package.version}"
        layer = "last, normed" if card.layer is None else str(card.layer)
        millions = f"{summarize_encoder(card).parameters / 1e6:.1f} M"
        shape = (card.patch, card.width, card.depth, card.registers, card.size, layer)
        rows.append((f"`{card.name}`", millions, *shape, source, card.licence, card.about))
    columns = (
        "name", "parameters", "patch", "channels", "blocks", "registers", "input size", "layer", "weights", "license",
        "about",
    )  # fmt: skip
    facets = ", ".join(f"`{one}`" for one in FACETS)
    intro = (
        f"The default is `{DEFAULT_ENCODER}`. Choose another with `--encoder`: `name`, `name@size` or "
        f"`name@size/layer-facet`, where a facet is one of {facets}. `tfa encoders` shows which weights are on this "
        "machine. Models outside this table: `hf:ORG/NAME`, `hf:./folder` or `timm:NAME`, each with `@size/layer`. "
        "Which one to use: [choose an encoder](../how-to/choose-an-encoder.md)."
    )
    return write_page("Encoders", intro, write_table(columns, rows))


def run_command(*words: str) -> str:
    """Run a `tfa` command in this process and return what it prints."""
    from typer.testing import CliRunner

    from tfa.cli.app import app

    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200", "NO_COLOR": "1"})
    if result.exit_code != 0:
        raise RuntimeError(f"tfa {' '.join(words)} exited with {result.exit_code}: {result.output}")
    return result.stdout


def heads_page() -> str:
    """Write the catalogue of benchmark heads."""
    listed = json.loads(run_command("bench", "heads", "--json"))
    rows = [
        (f"`{one['name']}`", one["title"], one.get("data_used", one.get("sees", "")), one["plan"]["name"], one["note"])
        for one in listed["heads"]
    ]
    files = [(f"`{one['name']}`", one["title"], one["needs"], one["why"]) for one in listed["need_files"]]
    groups = [(f"`{name}`", ", ".join(f"`{one}`" for one in members)) for name, members in listed["groups"].items()]
    intro = (
        "Heads that `tfa bench run --heads NAME,…` runs. `tfa bench heads` prints this list. Data used: what a head is "
        "fitted on (nothing, the database, unlabeled target photos, or labels)."
    )
    return write_page(
        "Benchmark heads", intro, write_table(("head", "title", "data used", "protocol", "note"), rows),
        "## Heads that need a file", write_table(("head", "title", "needs", "note"), files),
        "## Groups", "A group name stands for its heads.", write_table(("group", "heads"), groups),
    )  # fmt: skip


def datasets_page() -> str:
    """Write the dataset cards and layouts of the benchmark."""
    cards = json.loads(run_command("bench", "datasets", "--json"))
    groups = importlib.import_module("tfa_bench.datasets.card").DATASET_GROUPS
    cards.sort(key=lambda card: (groups.index(card["group"]), card["name"]))
    rows, notes = [], []
    for card in cards:
        counts = [f"{card['counts'][key]:,}" if key in card["counts"] else "?" for key in ("database", "queries")]
        state = "public" if card["public"] else "not public"
        name = f"[`{card['name']}`](#{card['name']})"
        rows.append((name, card["group"], *counts, f"`{card['layout']}`", card["positives"], state))
        facts = [f"Citation: {card['citation']}. License: {card['licence']}. Source: {card['get']}", card["note"]]
        notes.append("\n\n".join([f"### {card['name']}", *(one.replace("..", ".") for one in facts if one)]))
    columns = ("name", "group", "database", "queries", "layout", "a positive is", "protocol")
    intro = (
        "Datasets whose protocol the benchmark knows, from `tfa bench datasets --json`. No dataset is part of the "
        "package and none is downloaded. `?` is a number that is not published. A protocol is not public if the paper "
        "does not publish its images or positives. A `card.json` in a dataset's folder overrides fields of its card, "
        'such as `{"options": {"radius": 50}}` or `{"spec": {"max_pca": 30000}}`. Use your own data: '
        "[benchmark your data](../how-to/benchmark-your-data.md)."
    )
    package = importlib.import_module("tfa_bench.datasets.layouts")
    layouts = []
    for module in sorted(one.name for one in pkgutil.iter_modules(package.__path__)):
        text = importlib.import_module(f"{package.__name__}.{module}").__doc__ or ""
        layouts.append(f"### Layout {module}\n\n{unwrap(text)}")
    return write_page(
        "Datasets", intro, write_table(columns, rows), "## Layouts",
        "How a folder becomes a database, queries and positives. Images are sorted by name.", *layouts,
        "## Sources", *notes,
    )  # fmt: skip


def python_page() -> str:
    """Write the directives from which mkdocstrings makes the Python reference."""
    import tfa

    homes = {name: home for home, names in tfa._HOMES.items() for name in names}
    entries = [f"::: {homes[name]}.{name}" for name in sorted(homes, key=lambda name: (name[0].islower(), name))]
    return write_page("Python API", "Every public name of `import tfa`.", *entries)


# --- pages ---------------------------------------------------------------------------------------------------------

# Page below docs/ → the function that writes it.
PAGES: dict[str, Callable[[], str]] = {
    "reference/cli.md": cli_page,
    "reference/bench-cli.md": bench_page,
    "reference/python.md": python_page,
    "reference/http.md": http_page,
    "reference/json.md": json_page,
    "reference/settings.md": settings_page,
    "reference/encoders.md": encoders_page,
    "reference/datasets.md": datasets_page,
    "reference/heads.md": heads_page,
}
COMMITTED = tuple(name for name in PAGES if name != "reference/python.md")


def main() -> None:
    """Rewrite the committed pages."""
    for name in COMMITTED:
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(PAGES[name](), "utf-8")


if __name__ == "__main__":
    main()
