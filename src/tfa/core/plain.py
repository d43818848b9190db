"""Frozen dataclasses to and from JSON, checked by their type hints and by the bounds in their field metadata.

A field's metadata holds `description` and, where they apply, `ge`, `le`, `min_length`, `max_length` and `pattern`: the
names that pydantic reads from a standard dataclass, so a service documents and checks the same fields without a copy.
Here `ge`, `le` and `pattern` of a list or an object also hold for its items.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import itertools
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

from tfa.errors import BadSpec

_SHOWN = 60  # characters of a value that an error repeats
_LARGEST_INT = 2**63 - 1
_LARGEST_FLOAT = 1e18  # can be squared, in 32 bits too
T = TypeVar("T")
Reader = Callable[[Any], Any]  # reads a value from JSON or raises BadShape


def _cache(function: T) -> T:
    return functools.cache(function)  # type: ignore[arg-type, return-value]  # types are hashable


class BadShape(ValueError):
    """A value does not fit its field."""

    path = ""  # of the value; lists and objects add their part on the way out

    def __init__(self, problem: str, *value: Any) -> None:
        super().__init__(problem)
        shown = repr(value[0]) if value else ""
        self.problem, self.shown = problem, shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"

    def __str__(self) -> str:
        return f"{self.path} {f'is {self.shown}, which ' if self.shown else ''}{self.problem}".strip()

    def to_spec(self) -> BadSpec:
        """Return the same as an error of an option."""
        self.path = self.path.strip(".")
        return BadSpec(f"{self.path}={self.shown} {self.problem}" if self.shown and self.path else str(self))


def opt(default: Any, description: str, **bounds: Any) -> Any:
    """Declare a dataclass field with a default, a description and its bounds."""
    metadata = {"description": description, **bounds}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def req(description: str, **bounds: Any) -> Any:
    """Declare a required dataclass field with a description and its bounds."""
    return dataclasses.field(metadata={"description": description, **bounds})


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
class Value:
    """Base of values that users give or get, and of values in files. A subclass is a frozen dataclass."""

    OMITTED: ClassVar[frozenset[str]] = frozenset()  # fields that JSON leaves out if they are None
    EXTRAS: ClassVar[bool] = False  # whether JSON may hold other fields, which are checked but not read

    def __init_subclass__(cls, *, kw_only: bool = True, extras: bool = False) -> None:
        dataclasses.dataclass(frozen=True, kw_only=kw_only)(cls)
        cls.EXTRAS = extras

    def to_dict(self) -> dict[str, Any]:
        """Return the value in JSON."""
        items = vars(self).items()
        return {name: to_plain(item) for name, item in items if item is not None or name not in self.OMITTED}

    @classmethod
    def gather(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that JSON holds; a class overrides it if it writes them in another form."""
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read the value from JSON. An unknown key or a wrong type raises BadShape."""
        return from_plain(cls, dict(values), cls.__name__)


class Options(Value):
    """Base of the values that users give: every field is checked when one is made."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}  # read by pydantic in the service

    def __post_init__(self) -> None:
        for name, (read, _) in _fields(type(self)).items():
            try:
                object.__setattr__(self, name, read(getattr(self, name)))
            except BadShape as error:
                error.path = name + error.path
                raise error.to_spec() from None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read the options from JSON; an unknown key raises BadSpec and names the nearest one."""
        try:
            return from_plain(cls, dict(values), "")
        except BadShape as error:
            if not error.path:
                error.path = cls.__name__
            raise error.to_spec() from None


@_cache
def hints(cls: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name."""
    resolved = typing.get_type_hints(cls)
    return {field.name: resolved[field.name] for field in dataclasses.fields(cls)}


def to_plain(value: Any) -> Any:
    """Turn a value into what JSON can hold."""
    if value is None or type(value) in (str, float, int, bool):
        return value
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def from_plain(hint: type[T] | Any, value: Any, where: str) -> T | Any:
    """Read a value of type `hint` from JSON; `where` names it in errors."""
    try:
        return _reader(hint)(value)
    except BadShape as error:
        error.path = where + error.path
        raise


# --- readers of types ----------------------------------------------------------------------------------------------


@_cache
def _reader(hint: Any) -> Reader:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Value):
        return lambda value: _read_fields(hint, value)
    if origin in (typing.Union, types.UnionType):
        return _union_reader(hint, arguments)
    if origin in (list, tuple):
        return _list_reader(hint, origin, arguments)
    if origin in (dict, Mapping):
        return _dict_reader(*map(_reader, arguments))
    return {float: _read_float, int: _read_int, str: _read_str, Any: _read_any}.get(hint) or _simple_reader(hint)


@_cache
def _fields(cls: Any) -> dict[str, tuple[Reader, bool]]:
    """Return the reader of each field, and whether JSON must hold it."""
    found = {}
    for field in dataclasses.fields(cls):
        read = _bounded(_reader(hints(cls)[field.name]), field.metadata)
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        found[field.name] = read, not has_default and field.name not in cls.OMITTED
    return found


def _read_fields(cls: type[Value], value: Any) -> Any:
    if isinstance(value, cls):
        return value
    if not isinstance(value, dict):
        raise BadShape("must be an object", value)
    fields, values, read, name = _fields(cls), cls.gather(value), {}, ""
    if not values.keys() <= fields.keys():
        others = {key: item for key, item in values.items() if key not in fields}
        if not cls.EXTRAS:
            key = str(next(iter(others)))[:_SHOWN]
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise BadShape(f"has no field {key!r}{hint} (fields: {', '.join(fields)})")
        _read_any(others)
    try:
        for name, (reader, required) in fields.items():
            if name in values:
                read[name] = reader(values[name])
            elif required:
                raise BadShape("is missing")
    except BadShape as error:
        error.path = f".{name}{error.path}"
        raise
    return cls(**read)


def _union_reader(hint: Any, parts: tuple[Any, ...]) -> Reader:
    """Read one of several types. The first field of a dataclass tells it from the dataclasses after it."""
    readers = [_reader(part) for part in parts if part is not type(None)]
    values = [part for part in parts if isinstance(part, type) and issubclass(part, Value)]
    optional = type(None) in parts

    def read(value: Any) -> Any:
        if value is None and optional:
            return None
        if isinstance(value, dict) and values:
            named = [one for one in values[:-1] if next(iter(hints(one))) in value]
            return _read_fields([*named, values[-1]][0], value)
        if len(readers) == 1:
            return readers[0](value)
        for one in readers:
            try:
                return one(value)
            except BadShape:
                continue
        raise _refuse(hint, value)

    return read


def _list_reader(hint: Any, origin: type, arguments: tuple[Any, ...]) -> Reader:
    same = origin is list or arguments[1:] == (Ellipsis,)
    readers = [_reader(one) for one in arguments[: 1 if same else None]]

    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _refuse(hint, value)
        if not same and len(value) != len(readers):
            raise BadShape(f"has {len(value)} items, must have {len(readers)}", value)
        items: list[Any] = []
        try:
            for one, item in zip(itertools.repeat(readers[0]) if same else readers, value, strict=False):
                items.append(one(item))
        except BadShape as error:
            error.path = f"[{len(items)}]{error.path}"
            raise
        return items if origin is list else tuple(items)

    return read


def _dict_reader(read_key: Reader, read_item: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise BadShape("must be an object", value)
        items, key = {}, ""
        try:
            for key, item in value.items():
                items[read_key(key)] = read_item(item)
        except BadShape as error:
            error.path = f".{key}{error.path}"
            raise
        return items

    return read


def _simple_reader(hint: Any) -> Reader:
    choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else None

    def read(value: Any) -> Any:
        if choices is None:
            fits = isinstance(value, hint)
        else:
            fits = any(type(value) is type(choice) and value == choice for choice in choices)
        if not fits:
            raise _refuse(hint, value)
        return value

    return read


def _read_float(value: Any) -> float:
    if type(value) is not int and not isinstance(value, float):
        raise _refuse(float, value)
    if not -_LARGEST_FLOAT <= value <= _LARGEST_FLOAT:  # NaN is not, either
        finite = type(value) is int or math.isfinite(value)
        limits = f"is out of range: must be between -{_LARGEST_FLOAT:g} and {_LARGEST_FLOAT:g}"
        raise BadShape(limits if finite else "is not finite", value)
    return float(value) if type(value) is int else value


def _read_int(value: Any) -> int:
    if type(value) is not int:
        raise _refuse(int, value)
    if not -_LARGEST_INT <= value <= _LARGEST_INT:
        raise BadShape(f"is out of range: must be at most {_LARGEST_INT}", value)
    return value


def _read_str(value: Any) -> str:
    if type(value) is not str:
        raise _refuse(str, value)
    if "\0" in value:  # it can neither name a file nor be shown
        raise BadShape("holds the character 0", value)
    return value


def _read_any(value: Any) -> Any:
    """Accept any value, but no number or string that is refused elsewhere."""
    if isinstance(value, dict):
        for key, item in value.items():
            _read_str(key)
            _read_any(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _read_any(item)
    elif type(value) in (int, float):
        _read_float(value)
    elif type(value) is str:
        _read_str(value)
    return value


# --- bounds and errors ---------------------------------------------------------------------------------------------


def _bounded(read: Reader, metadata: Mapping[str, Any]) -> Reader:
    """Add the bounds of a field to the reader of its type."""
    low, high, pattern = metadata.get("ge"), metadata.get("le"), metadata.get("pattern")
    least, most = metadata.get("min_length"), metadata.get("max_length")
    sized = (least, most) != (None, None)
    if not sized and (low, high, pattern) == (None, None, None):
        return read
    allowed = f"at most {high}" if low is None else f"at least {low}" if high is None else f"between {low} and {high}"
    lowest, highest = -math.inf if low is None else low, math.inf if high is None else high
    pattern = None if pattern is None else re.compile(pattern.strip("^$"))

    def check(value: Any) -> None:
        if type(value) in (int, float):
            if not lowest <= value <= highest:
                raise BadShape(f"is out of range: must be {allowed}", value)
        elif isinstance(value, str):
            if pattern is not None and not pattern.fullmatch(value):
                raise BadShape(f"is not allowed: must match {pattern.pattern}", value)
        elif isinstance(value, list | tuple | dict):
            for item in value.values() if isinstance(value, dict) else value:
                check(item)

    def read_bounded(value: Any) -> Any:
        value = read(value)
        check(value)
        if sized and isinstance(value, str | list | tuple) and not (least or 0) <= len(value) <= (most or len(value)):
            raise BadShape(f"has length {len(value)}, must have {least or 0} to {most or 'any number'}", value)
        return value

    return read_bounded


def _refuse(hint: Any, value: Any) -> BadShape:
    """Say which types a field takes."""
    if isinstance(value, float) and not math.isfinite(value):
        return BadShape("is not finite", value)
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    parts = typing.get_args(hint) if union else (hint,)
    choices = [one for part in parts if typing.get_origin(part) is Literal for one in typing.get_args(part)]
    if choices and isinstance(value, str):
        names = [*map(str, choices), *["a number"] * (int in parts or float in parts)]
        return BadShape(f"is unknown; use {_join(names)}", value)
    return BadShape(f"is {type(value).__name__}, must be {_join(map(_name, parts))}", value)


def _name(hint: Any) -> str:
    if hint is type(None):
        return "nothing"
    if typing.get_origin(hint) is Literal:
        return _join(map(repr, typing.get_args(hint)))
    return getattr(hint, "__name__", str(hint)) if typing.get_origin(hint) is None else str(hint)


def _join(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last
