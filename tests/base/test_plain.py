"""The JSON codec: accepted and rejected values, and errors that name the field."""

import dataclasses
import json
from typing import Any, Literal

import pytest

import tfa.evaluate.map_evaluation
import tfa.maps.folder.format
import tfa.report.collect  # noqa: F401
import tfa_bench.cli.results  # noqa: F401
from tfa.core.plain import BadShape, Options, Value, from_plain, opt, req
from tfa.errors import BadSpec


class Point(Value):
    x: float = req("Across.", ge=0, le=10)
    name: str | None = opt(None, "Its name.", pattern="[a-z]+")


class Circle(Value):
    radius: float = req("Radius.")


class Drawing(Value):
    OMITTED = frozenset({"title"})

    shapes: list[Circle | Point] = req("What is drawn.", min_length=1, max_length=2)
    counts: dict[Literal["a", "b"], int] = opt({}, "Counts.", ge=1)
    pair: tuple[int, str] | None = opt(None, "A pair.")
    title: str | None = opt(None, "Its title.")


class Loose(Value, extras=True):
    known_field: int = req("A number.")


class Size(Options):
    width: int = opt(1, "Width.", ge=1)
    ratio: float | Literal["auto"] = opt("auto", "Ratio.")


def subclasses(cls: type) -> list[type]:
    return [one for child in cls.__subclasses__() for one in (child, *subclasses(child))]


@pytest.mark.parametrize("cls", subclasses(Value), ids=lambda cls: f"{cls.__module__}.{cls.__qualname__}")
def test_every_field_of_a_value_has_a_description(cls):
    """A second `@dataclass` would drop descriptions and bounds."""
    assert not [field.name for field in dataclasses.fields(cls) if not field.metadata.get("description")]


def test_a_value_returns_from_json_as_it_was():
    drawing = Drawing(shapes=[Circle(radius=2.0), Point(x=1.0, name="p")], counts={"a": 3}, pair=(1, "one"))
    plain = json.loads(json.dumps(drawing.to_dict()))
    assert Drawing.from_dict(plain) == drawing
    assert "title" not in plain
    assert plain["shapes"][1] == {"x": 1.0, "name": "p"}
    assert Drawing.from_dict({"shapes": [{"x": 3}]}).shapes == [Point(x=3.0)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shapes": []}, r"it\.shapes is \[\], which has length 0, must have 1 to 2"),
        ({"shapes": [{"radius": 1}] * 3}, "has length 3"),
        ({"shapes": {"radius": 1}}, "is dict, must be list"),
        ({"shapes": [{"x": 1}, {"x": 11}]}, r"it\.shapes\[1\]\.x is 11\.0, which is out of range: must be betw"),
        ({"shapes": [{"x": True}]}, r"it\.shapes\[0\]\.x is True, which is bool, must be float"),
        ({"shapes": [{"x": 1, "name": "A"}]}, r"\.name is 'A', which is not allowed: must match \[a-z\]\+"),
        ({"shapes": [{"x": 1, "name": "a\0"}]}, "holds the character 0"),
        ({"shapes": [{"radius": float("nan")}]}, r"it\.shapes\[0\]\.radius is nan, which is not finite"),
        ({"shapes": [{"radius": 10**400}]}, "is out of range"),
        ({"shapes": [{"radius": 1, "x": 2}]}, r"it\.shapes\[0\] has no field 'x' \(fields: radius\)"),
        ({"shapes": [{}]}, r"it\.shapes\[0\]\.x is missing"),
        ({"shapes": [7]}, "it.shapes"),
        ({"counts": {"c": 1}}, r"it\.counts\.c is 'c', which is unknown; use a or b"),
        ({"counts": {"a": 0}}, "must be at least 1"),
        ({"counts": {"a": 2**63}}, "is out of range"),
        ({"pair": [1]}, "has 1 items, must have 2"),
        ({"pair": [1, 2]}, r"it\.pair\[1\] is 2, which is int, must be str"),
        ({"tittle": "x"}, r"has no field 'tittle'; did you mean 'title'\?"),
        ({"": 1}, "has no field ''"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_its_place(changes, said):
    with pytest.raises(BadShape, match=said):
        from_plain(Drawing, {"shapes": [{"radius": 1}], **changes}, "it")


@pytest.mark.parametrize("bad", [float("inf"), 1e19, "a\0", {"a\0": 1}, [[{"deep": float("nan")}]]])
def test_other_fields_are_checked_though_they_are_not_read(bad: Any):
    assert Loose.from_dict({"known_field": 1, "more": {"a": [1, 2.5, "x", None, True]}}) == Loose(known_field=1)
    with pytest.raises(BadShape):
        Loose.from_dict({"known_field": 1, "more": bad})


def test_options_are_checked_when_they_are_made_and_say_so_as_they_are_given():
    assert Size(ratio=2).ratio == 2.0
    assert Size.from_dict({"width": 3}) == Size(width=3)
    for make in (lambda: Size(width=0), lambda: Size.from_dict({"width": 0})):
        with pytest.raises(BadSpec, match=r"^width=0 is out of range: must be at least 1$"):
            make()
    with pytest.raises(BadSpec, match="ratio='wide' is unknown; use auto or a number"):
        Size(ratio="wide")
    with pytest.raises(BadSpec, match="Size has no field 'with'; did you mean 'width'"):
        Size.from_dict({"with": 1})
