"""Frozen dataclasses to and from JSON, checked by their type hints and by the bounds in their field metadata.

A field's metadata holds `description` and, where they apply, `ge`, `le`, `min_length`, `max_length` and `pattern`: the
names that pydantic reads from a standard dataclass, so a service documents and checks the same fields without a copy.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

from tfa.errors import BadSpec

_SHOWN = 60  # characters of a value that an error repeats
T = TypeVar("T")


class BadShape(ValueError):
    """A value does not fit its field."""


def opt(default: Any, description: str, **bounds: Any) -> Any:
    """Declare a dataclass field with a default, a description and its bounds."""
    metadata = {"description": description, **bounds}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def req(description: str, **bounds: Any) -> Any:
    """Declare a required dataclass field with a description and its bounds."""
    return dataclasses.field(metadata={"description": description, **bounds})


class Value:
    """Base of the frozen dataclasses that users give or get."""

    # Fields that JSON leaves out if they are None: they do not apply to this value.
    OMITTED: ClassVar[frozenset[str]] = frozenset()

    def to_dict(self) -> dict[str, Any]:
        """Return the value in JSON."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_dict(cls, values: typing.Mapping[str, Any]) -> Self:
        """Read the value from JSON. An unknown key or a wrong type raises BadShape."""
        return from_plain(cls, dict(values), cls.__name__)


class Options(Value):
    """Base of the values that users give: every field is checked when one is made."""

    def __post_init__(self) -> None:
        metadata = _metadata(type(self))
        for name, hint in hints(type(self)).items():
            value = getattr(self, name)
            if typing.get_origin(hint) is tuple or any(typing.get_origin(part) is tuple for part in _parts(hint)):
                value = tuple(value) if isinstance(value, list) else value
                object.__setattr__(self, name, value)
            if _takes_float(hint) and type(value) is int:
                object.__setattr__(self, name, float(value))
                value = float(value)
            problem = _problem(value, hint, metadata[name])
            if problem is not None:
                raise BadSpec(f"{name}={_shorten(value)} {problem}")

    @classmethod
    def from_dict(cls, values: typing.Mapping[str, Any]) -> Self:
        """Read the options from JSON; an unknown key raises BadSpec and names the nearest one."""
        names = list(hints(cls))
        for key in values:
            if key not in names:
                near = difflib.get_close_matches(key, names, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise BadSpec(f"{cls.__name__} has no field {key!r}{hint} (fields: {', '.join(names)})")
        try:
            read = {
                key: from_plain(hints(cls)[key], value, key) if isinstance(value, dict) else value
                for key, value in values.items()
            }
        except BadShape as error:
            raise BadSpec(str(error)) from None
        return cls(**read)


_HINTS: dict[type, dict[str, Any]] = {}  # of classes that were looked at: resolving hints is slow


def hints(cls: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name."""
    if cls not in _HINTS:
        resolved = typing.get_type_hints(cls)
        _HINTS[cls] = {field.name: resolved[field.name] for field in dataclasses.fields(cls)}
    return _HINTS[cls]


def _metadata(cls: type) -> dict[str, typing.Mapping[str, Any]]:
    return {field.name: field.metadata for field in dataclasses.fields(cls)}


# --- to JSON -------------------------------------------------------------------------------------------------------


def to_plain(value: Any) -> Any:
    """Turn a value into what JSON can hold."""
    if isinstance(value, Value):
        own = type(value)
        return {
            name: to_plain(item)
            for name in hints(own)
            if (item := getattr(value, name)) is not None or name not in own.OMITTED
        }
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


# --- from JSON -----------------------------------------------------------------------------------------------------


def from_plain(hint: type[T] | Any, value: Any, where: str) -> T | Any:
    """Read a value of type `hint` from JSON; `where` names it in errors."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _read_dataclass(hint, value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _read_union(arguments, value, where)
    if origin in (list, tuple) and isinstance(value, list | tuple):
        return _read_items(origin, arguments, value, where)
    if origin is dict and isinstance(value, dict):
        return {key: from_plain(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if hint is float and type(value) is int:
        value = float(value)
    problem = _problem(value, hint, {})
    if problem is not None:
        raise BadShape(f"{where} is {_shorten(value)}, which {problem}")
    return value


def _read_dataclass(cls: type[T], value: Any, where: str) -> T:
    if isinstance(value, cls):
        return value
    if not isinstance(value, dict):
        raise BadShape(f"{where} is {_shorten(value)}, must be an object")
    if not issubclass(cls, Value):
        return cls.from_dict(value)  # type: ignore[attr-defined]
    fields, metadata = hints(cls), _metadata(cls)
    unknown = [key for key in value if key not in fields]
    if unknown:
        raise BadShape(f"{where} has an unknown field {unknown[0]!r}; fields: {', '.join(fields)}")
    read = {}
    for name, item in value.items():
        read[name] = from_plain(fields[name], item, f"{where}.{name}")
        problem = _bounds(read[name], metadata[name])
        if problem is not None:
            raise BadShape(f"{where}.{name} is {_shorten(item)}, {problem}")
    needs = [
        field.name
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    missing = [name for name in needs if name not in read and name not in cls.OMITTED]
    if missing:
        raise BadShape(f"{where} has no {missing[0]}")
    return cls(**read)


def _read_union(arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in arguments:
        return None
    problems = []
    for hint in arguments:
        if hint is type(None):
            continue
        try:
            return from_plain(hint, value, where)
        except (BadShape, TypeError) as error:
            problems.append(str(error))
    raise BadShape(problems[-1] if len(problems) == 1 else f"{where} is {_shorten(value)}: {'; or '.join(problems)}")


def _read_items(origin: type, arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        if len(value) != len(arguments):
            raise BadShape(f"{where} has {len(value)} items, must have {len(arguments)}")
        pairs = zip(arguments, value, strict=True)
        return tuple(from_plain(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(pairs))
    return origin(from_plain(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))


# --- checks --------------------------------------------------------------------------------------------------------


def _problem(value: Any, hint: Any, metadata: typing.Mapping[str, Any]) -> str | None:
    """Say why a value does not fit a type and its bounds; None if it does."""
    if not _fits(value, hint):
        literals = [part for part in _parts(hint) if typing.get_origin(part) is Literal]
        choices = [choice for part in literals for choice in typing.get_args(part)]
        if choices and isinstance(value, str):
            names = [*map(str, choices), *["a number"] * (int in _parts(hint) or float in _parts(hint))]
            return f"is unknown; use {_join(names)}"
        return f"is {type(value).__name__}, must be {_join([_name(part) for part in _parts(hint)])}"
    return _bounds(value, metadata)


def _bounds(value: Any, metadata: typing.Mapping[str, Any]) -> str | None:
    low, high = metadata.get("ge"), metadata.get("le")
    if type(value) in (int, float) and (low is not None or high is not None):
        outside = math.isnan(value) or (low is not None and value < low) or (high is not None and value > high)
        if outside:
            allowed = f"between {low} and {high}" if None not in (low, high) else f"at least {low}"
            return f"is out of range: must be {allowed if low is not None else f'at most {high}'}"
    if isinstance(value, str):
        pattern = metadata.get("pattern")
        if pattern is not None and not re.fullmatch(pattern.strip("^$"), value):
            return f"is not allowed: must match {pattern.strip('^$')}"
        if "\0" in value:
            return "holds the character 0"
    if isinstance(value, str | list | tuple):
        least, most = metadata.get("min_length"), metadata.get("max_length")
        if (least is not None and len(value) < least) or (most is not None and len(value) > most):
            return f"has length {len(value)}, must have {least or 0} to {most}"
    return None


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if hint is None or hint is type(None):
        return value is None
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in arguments)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if origin in (list, tuple):
        if type(value) is not origin:
            return False
        if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
            return len(value) == len(arguments) and all(map(_fits, value, arguments))
        return all(_fits(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, arguments[1]) for item in value.values())
    if hint is float:
        return (isinstance(value, float) or type(value) is int) and math.isfinite(value)
    if hint in (int, bool, str):
        return type(value) is hint
    return isinstance(value, hint)


def _parts(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _takes_float(hint: Any) -> bool:
    return float in _parts(hint) and int not in _parts(hint)


def _name(hint: Any) -> str:
    if hint is type(None):
        return "nothing"
    if typing.get_origin(hint) is Literal:
        return _join([repr(choice) for choice in typing.get_args(hint)])
    return getattr(hint, "__name__", str(hint)) if typing.get_origin(hint) is None else str(hint)


def _join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _shorten(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
