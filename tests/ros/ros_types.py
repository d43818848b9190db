"""ROS message classes, generated from the definitions of ROS 2 Humble and of tfa_msgs.

Like the real ones they have a value for every field and take no other type for it: a float is no int, a byte is one of
`bytes`, pixels are an `array`. The definitions of Humble, and a CDR writer that is not cyclonedds', come from rosbags.
"""

from __future__ import annotations

import array
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

PACKAGE = Path(__file__).parents[2] / "ros" / "tfa_msgs"
BASE, NAME, ARRAY, SEQUENCE = 1, 2, 3, 4  # kinds of fields, as rosbags numbers them
RANGES = {f"{sign}int{bits}": (0 if sign else -(2 ** (bits - 1)), 2 ** (bits - (not sign)) - 1)
          for sign in ("", "u") for bits in (8, 16, 32, 64)}  # fmt: skip
CODES = {"uint8": "B", "float64": "d"}  # of arrays
ZERO: dict[str, Any] = {"bool": False, "byte": b"\0", "string": "", "float64": 0.0, **dict.fromkeys(RANGES, 0)}


@cache
def store() -> Typestore:
    """All definitions: those of Humble, and what lies in ros/tfa_msgs."""
    known = get_typestore(Stores.ROS2_HUMBLE)
    for file in sorted((PACKAGE / "msg").glob("*.msg")):
        known.register(get_types_from_msg(file.read_text("utf-8"), f"tfa_msgs/msg/{file.stem}"))
    for file in sorted((PACKAGE / "srv").glob("*.srv")):
        halves = file.read_text("utf-8").split("\n---\n")
        for half, text in zip(("Request", "Response"), halves, strict=True):
            [definition] = get_types_from_msg(text, f"tfa_msgs/msg/{half}").values()  # rosbags knows no services
            known.register({f"tfa_msgs/srv/{file.stem}_{half}": definition})
    return known


class Message:
    """The base of all; `_type` is such as `std_msgs/msg/Header`."""

    _type = ""

    def __init__(self, **given: Any) -> None:
        for name, kind in fields_of(self._type):
            setattr(self, name, given.pop(name) if name in given else _empty(kind))
        assert not given, f"{self._type} has no {', '.join(given)}"

    @classmethod
    def get_fields_and_field_types(cls) -> dict[str, str]:
        """Types of fields as Python's generator names them; those of messages that are made of plain fields."""
        types = {name: inner[0] for name, (what, inner) in fields_of(cls._type) if what == BASE}
        return {name: PYTHON_TYPES.get(kind, kind) for name, kind in types.items()}

    def __setattr__(self, name: str, value: Any) -> None:
        kind = dict(fields_of(self._type))[name]
        object.__setattr__(self, name, _taken(value, kind, f"{self._type}.{name}"))


# Type names that differ between a definition and Python.
PYTHON_TYPES = {"float64": "double", "bool": "boolean"}


def fields_of(name: str) -> list[tuple[str, Any]]:
    return store().fielddefs[name][1]


@cache
def message_class(name: str) -> type[Message]:
    constants = {
        constant: bytes([value]) if kind == "byte" else value
        for constant, kind, value in store().fielddefs[name][0]
    }  # fmt: skip
    return type(name.rpartition("/")[2], (Message,), {"_type": name, **constants})


def _empty(kind: Any) -> Any:
    what, inner = kind
    if what == BASE:
        return ZERO[inner[0]]
    if what == NAME:
        return message_class(inner)()
    return [_empty(inner[0])] * inner[1] if what == ARRAY else []


def _taken(value: Any, kind: Any, name: str) -> Any:
    what, inner = kind
    if what == NAME:
        assert isinstance(value, message_class(inner)), f"{name} is {value!r}"
        return value
    if what == BASE:
        assert _fits(value, inner[0]), f"{name} is {value!r}, must be {inner[0]}"
        return value
    element, size = inner
    assert not isinstance(value, str), name
    if what == ARRAY:
        assert len(value) == size, name
    if isinstance(value, array.array):  # which only checks its kind, as it is large
        assert value.typecode == CODES[element[1][0]], name
        return value
    taken = [_taken(one, element, name) for one in value]
    return array.array(CODES[element[1][0]], taken) if element[0] == BASE and element[1][0] in CODES else taken


def _fits(value: Any, kind: str) -> bool:
    if kind in RANGES:
        return isinstance(value, int) and RANGES[kind][0] <= value <= RANGES[kind][1]
    return type(value) is type(ZERO[kind]) and (kind != "byte" or len(value) == 1)


def cdr(message: Message) -> bytes:
    """The message in bytes, by rosbags."""
    return bytes(store().serialize_cdr(_of_rosbags(message), message._type))


def _of_rosbags(value: Any) -> Any:
    if isinstance(value, Message):
        fields = {name: _of_rosbags(getattr(value, name)) for name, _ in fields_of(value._type)}
        return store().types[value._type](**fields)
    if isinstance(value, array.array):
        return np.array(value)
    if isinstance(value, list):
        return [_of_rosbags(one) for one in value]
    return value[0] if isinstance(value, bytes) else value


def from_cdr(content: bytes, name: str) -> Message:
    """The other way: what a subscriber is handed."""
    return _of_ros(store().deserialize_cdr(content, name), (NAME, name))


def _of_ros(value: Any, kind: Any) -> Any:
    what, inner = kind
    if what == NAME:
        return message_class(inner)(**{name: _of_ros(getattr(value, name), one) for name, one in fields_of(inner)})
    if what == BASE:
        return bytes([value]) if inner[0] == "byte" else value
    if isinstance(value, np.ndarray):
        return array.array(CODES[inner[0][1][0]], value.tobytes())
    return [_of_ros(one, inner[0]) for one in value]
