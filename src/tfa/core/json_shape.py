"""The shape of JSON values from a file: types, ranges, fields. A value that does not fit is a `BadShape` in words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from tfa.core.plain import BadShape

Check = Callable[[Any, str], None]  # a value, and where it stands
_LARGEST = 2**63 - 1
_SHOWN = 60  # characters of a value that an error repeats


def refuse(value: Any, where: str, allowed: str) -> BadShape:
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
    return BadShape(f"{where} is {shown}, must be {allowed}")


def integer(low: int = 0, high: int = _LARGEST) -> Check:
    def check(value: Any, where: str) -> None:
        if type(value) is not int or not low <= value <= high:
            raise refuse(value, where, f"a whole number of {low} to {high}" if high < _LARGEST else f"{low} or more")

    return check


def finite_number(low: float = -1e18, high: float = 1e18) -> Check:
    """A finite number; without limits of its own one that can be squared."""

    def check(value: Any, where: str) -> None:
        if type(value) not in (int, float) or not low <= value <= high or not math.isfinite(value):
            raise refuse(value, where, f"a number of {low:g} to {high:g}")

    return check


def boolean(value: Any, where: str) -> None:
    if type(value) is not bool:
        raise refuse(value, where, "true or false")


def text(pattern: str | None = None) -> Check:
    """A string that can name a file and be shown: without the character 0."""

    def check(value: Any, where: str) -> None:
        if type(value) is not str or "\0" in value:
            raise refuse(value, where, "a string")
        if pattern is not None and not re.fullmatch(pattern, value):
            raise refuse(value, where, f"a string like {pattern}")

    return check


def one_of(*allowed: Any) -> Check:
    def check(value: Any, where: str) -> None:
        if not any(type(value) is type(one) and value == one for one in allowed):
            raise refuse(value, where, " or ".join(map(repr, allowed)))

    return check


def maybe(check: Check) -> Check:
    """null, or what `check` wants."""
    return lambda value, where: None if value is None else check(value, where)


def either(*checks: Check) -> Check:
    def check(value: Any, where: str) -> None:
        objections = []
        for one in checks:
            try:
                return one(value, where)
            except BadShape as error:
                objections.append(str(error))
        raise BadShape("; or ".join(objections))

    return check


def list_of(check: Check, low: int = 0, high: int | None = None) -> Check:
    def checked(value: Any, where: str) -> None:
        if type(value) is not list or len(value) < low or (high is not None and len(value) > high):
            most = "or more" if high is None else f"to {high}"
            raise refuse(value, where, f"a list of {low} {most}")
        for index, one in enumerate(value):
            check(one, f"{where}[{index}]")

    return checked


def mapping_of(check: Check, names: str | None = None) -> Check:
    """An object whose fields may have any name, or names like `names`."""

    def checked(value: Any, where: str) -> None:
        if type(value) is not dict:
            raise refuse(value, where, "an object")
        for name, one in value.items():
            text(names)(name, f"a name in {where}")
            check(one, f"{where}.{name}")

    return checked


def fields(
    required: Mapping[str, Check], optional: Mapping[str, Check] | None = None, others: Check | None = None
) -> Check:
    """An object with these fields and no others, unless `others` says what they may hold."""
    allowed = {**required, **(optional or {})}

    def checked(value: Any, where: str) -> None:
        if type(value) is not dict:
            raise refuse(value, where, "an object")
        for name in required:
            if name not in value:
                raise BadShape(f"{where} has no {name}")
        for name, one in value.items():
            check = allowed.get(name, others)
            if check is None:
                raise refuse(name, f"a field of {where}", " or ".join(allowed))
            check(one, f"{where}.{name}")

    return checked


def anything(value: Any, where: str) -> None:
    """Numbers that are finite, texts, and what is made of them."""
    if isinstance(value, dict):
        mapping_of(anything)(value, where)
    elif isinstance(value, list):
        list_of(anything)(value, where)
    else:
        either(finite_number(), text(), maybe(boolean))(value, where)
