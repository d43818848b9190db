"""Write Markdown from values of the program: tables, fields of dataclasses, JSON Schemas."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

Rows = Sequence[Sequence[object]]

# --- Markdown ------------------------------------------------------------------------------------------------------


def escape_cell(value: object) -> str:
    """Write a value as one table cell."""
    return " ".join(str(value).split()).replace("|", "\\|")


def write_table(columns: Sequence[str], rows: Rows) -> str:
    """Write a Markdown table without the columns that are empty in every row."""
    texts = [[escape_cell(value) for value in row] for row in rows]
    shown = [at for at in range(len(columns)) if any(row[at] for row in texts)]
    lines = [[columns[at] for at in shown], ["---"] * len(shown), *([row[at] for at in shown] for row in texts)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def quote(value: object) -> str:
    """Write a value as code; nothing for None and empty values."""
    return "" if value in (None, "", (), []) else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def write_page(title: str, *parts: str) -> str:
    """Join the parts of a page."""
    return "\n\n".join([f"# {title}", *(part.strip() for part in parts if part.strip())]) + "\n"


def strip_markup(text: str) -> str:
    """Remove Rich markup from a help text."""
    return re.sub(r"(?<!\\)\[/?[a-z ]+\]", "", text).replace("\\[", "[")


def unwrap(text: str) -> str:
    """Join the lines of each paragraph; indented blocks keep their lines."""
    parts = re.split(r"\n[ ]*\n", text.strip("\n"))
    return "\n\n".join(part if part.startswith("    ") else " ".join(part.split()) for part in parts)


def split_default(text: str) -> tuple[str, str]:
    """Split a description into the text and the default that it states in brackets."""
    match = re.search(r"\s*\[default: ([^\]]+)\]\.?", text)
    return (text, "") if match is None else (text[: match.start()] + text[match.end() :], match[1])


# --- types and fields of dataclasses -------------------------------------------------------------------------------

_TYPE_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", Path: "path"}


def name_type(hint: Any) -> str:
    """Write a type hint in the words of JSON; classes of `tfa.types` are linked to their section."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(name_type(one) for one in arguments))
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in arguments)
    if origin is tuple and arguments[1:] != (Ellipsis,):
        return f"[{', '.join(name_type(one) for one in arguments)}]"
    if origin in (list, tuple):
        return f"list of {name_type(arguments[0])}"
    if origin is dict:
        return "object"
    if dataclasses.is_dataclass(hint):
        name = getattr(hint, "__name__", "")
        return f"[{name}](#{name.lower()})" if hint.__module__ == "tfa.types" else name
    return _TYPE_NAMES.get(hint, "any")


def write_bounds(metadata: Mapping[str, Any]) -> str:
    """Write the bounds of a number."""
    low, high = metadata.get("ge"), metadata.get("le", metadata.get("lt"))
    if low is None and high is None:
        return ""
    return f"{low}–{high}" if None not in (low, high) else f"≥ {low}" if high is None else f"≤ {high}"


def list_fields(cls: Any) -> list[tuple[dataclasses.Field[Any], Any]]:
    """Return the fields of a dataclass with their types."""
    resolved = typing.get_type_hints(cls)
    return [(field, resolved[field.name]) for field in dataclasses.fields(cls)]


def default_of(field: dataclasses.Field[Any]) -> str:
    """Write the default of a field; empty if it is required, None or an empty collection."""
    missing = dataclasses.MISSING
    value = field.default_factory() if field.default_factory is not missing else field.default
    return "" if value is missing or isinstance(value, dict) else quote(value)


def write_options_class(cls: Any) -> str:
    """Write the fields of a class that users fill in."""
    rows = []
    for field, hint in list_fields(cls):
        text, stated = split_default(field.metadata.get("description", ""))
        kind = name_type(hint).replace(" or null", "")
        rows.append((f"`{field.name}`", kind, default_of(field) or stated, write_bounds(field.metadata), text))
    table = write_table(("field", "type", "default", "range", "meaning"), rows)
    return f"### {cls.__name__}\n\n{inspect.getdoc(cls)}\n\n{table}"


def write_value_class(cls: Any) -> str:
    """Write the fields of a class that users get."""
    rows = []
    for field, hint in list_fields(cls):
        absent = "may be absent" if field.name in cls.OMITTED else ""
        kind = name_type(hint).replace(" or null", "") if absent else name_type(hint)
        rows.append((f"`{field.name}`", kind, absent, field.metadata.get("description", "")))
    summary = (inspect.getdoc(cls) or "").split("\n\n")[0]
    return f"### {cls.__name__}\n\n{summary}\n\n" + write_table(("field", "type", "", "meaning"), rows)


# --- JSON Schema ---------------------------------------------------------------------------------------------------


def name_schema(schema: Mapping[str, Any], link: Callable[[str], str]) -> str:
    """Write the type that a schema allows; `link` writes the name of a referenced one."""
    if "$ref" in schema:
        return link(schema["$ref"])
    several = schema.get("anyOf") or schema.get("oneOf")
    if several and all("required" not in one or "type" in one for one in several):
        return " or ".join(dict.fromkeys(name_schema(one, link) for one in several))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array" and isinstance(schema.get("items"), dict):
        return f"list of {name_schema(schema['items'], link)}"
    if schema.get("format") == "binary":
        return "file"
    return {"array": "list"}.get(kind, kind)


def write_properties(schema: Mapping[str, Any], link: Callable[[str], str], *, given: bool = False) -> str:
    """Write the fields of an object; with `given`, those of a request, with their defaults."""
    rows = []
    required = schema.get("required", [])
    for name, field in schema.get("properties", {}).items():
        text, stated = split_default(field.get("description", ""))
        kind = name_schema(field, link)
        if given:
            state = "required" if name in required else quote(field.get("default")) or stated
            kind = kind.replace(" or null", "")
        else:
            state = "" if name in required else "may be absent"
        rows.append((f"`{name}`", kind, state, text))
    return write_table(("field", "type", "default" if given else "", "meaning"), rows)
