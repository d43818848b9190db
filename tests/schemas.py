"""JSON Schemas of the commands, generated from types, and checks of printed JSON against them."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import typer
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry, Resource
from typer.testing import Result

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"
ENDING = ".schema.json"


@cache
def derived() -> dict[str, str]:
    """Return the texts of schemas that are made from types, by their names."""
    script = FOLDER.parent / "site" / "make_schemas.py"
    spec = importlib.util.spec_from_file_location("make_schemas", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    texts: dict[str, str] = module.write_schemas()
    return texts


@cache
def schemas() -> dict[str, Any]:
    """Return every schema by its name."""
    return {name: json.loads(text) for name, text in derived().items()}


@cache
def registry() -> Registry[Any]:
    """The schemas by the names of their files, which is how they refer to each other."""
    return Registry().with_resources(
        (f"{name}{ENDING}", Resource.from_contents(schema)) for name, schema in schemas().items()
    )


@cache
def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(schemas()[name], registry=registry())


def fault(name: str, value: Any) -> str | None:
    """What a schema has against a value, the fault that says most; None if nothing."""
    found = best_match(validator(name).iter_errors(value))
    return None if found is None else f"{name}{ENDING}, {found.json_path}: {found.message[:500]}"


@cache
def verbs_with_json() -> frozenset[tuple[str, ...]]:
    """Verbs of the command line that have `--json`, as words."""
    from tfa.cli.app import app

    def under(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for name, own in getattr(command, "commands", {}).items():
            yield from under(own, (*words, name))
        if any("--json" in parameter.opts for parameter in command.params):
            yield words

    return frozenset(under(typer.main.get_command(app), ()))


def check_output(arguments: Sequence[str], result: Result) -> None:
    """The schema of a verb must agree with the JSON it printed, and with that of `--out`, which is the same."""
    words = tuple(one for one in arguments if not one.startswith("-"))
    verb = next((words[:length] for length in (2, 1) if words[:length] in verbs_with_json()), None)
    if verb is None or "--help" in arguments:
        return
    texts = [result.stdout] if "--json" in arguments and result.stdout.strip() else []
    out = Path(arguments[arguments.index("--out") + 1]) if "--out" in arguments[:-1] else Path()
    if out.suffix == ".json" and result.exit_code == 0:
        texts.append(out.read_text("utf-8"))
    for text in texts:
        wrong = fault("-".join(verb), json.loads(text))
        assert wrong is None, wrong
