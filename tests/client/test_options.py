"""Options on their way from the client through a form to the service: every field, also one of a later version."""

from __future__ import annotations

from typing import Literal

import anyio
import pytest
from fastapi import Request

from tfa._http import encode_form
from tfa.client import make_form
from tfa.core.plain import hints, opt
from tfa.service.bodies import body_schema, parse_options, read_photos
from tfa.service.problems import Refused
from tfa.service.settings import ServiceSettings
from tfa.types import CalibrateOptions, QueryOptions


class MoreOptions(QueryOptions):
    """Options of a later version."""

    weather: Literal["dry", "wet"] = opt("dry", "Weather of the photo.")
    floors: tuple[int, ...] = opt((), "Floors that may answer.")
    height: float | None = opt(None, "Height of the camera in meters.", ge=0, le=100)


OPTIONS = [
    QueryOptions(),
    QueryOptions(
        k=7, min_confidence=0.25, sure=True, calibration="night", rerank=False, candidates="auto",
        sessions=("a", "b"), region=(13.0, -52.5, 13.5, 52.25), camera="cam0", sequence=True,
    ),
    QueryOptions(candidates=20, rerank=True, sessions=("Monday, 5 May",)),
    QueryOptions(sessions=("a, b", "[c]", '"d"')),
    CalibrateOptions(name="night", budget=9, score=False),
    MoreOptions(weather="wet", floors=(0, -1), height=1.5, k=3),
]  # fmt: skip


def body_receiver(content):
    async def receive():
        return {"type": "http.request", "body": content}

    return receive


@pytest.mark.parametrize("options", OPTIONS)
def test_a_form_keeps_every_field(options):
    body, kind = encode_form(make_form(options), [("image", ('a "b"\n.png', b"photo"))])
    received = Request({"type": "http", "headers": [(b"content-type", kind.encode())]}, body_receiver(body))
    assert anyio.run(read_photos, received, type(options), ServiceSettings())[1] == options
    assert parse_options(type(options), options.to_dict()) == options  # as JSON


@pytest.mark.parametrize("kind", [QueryOptions, CalibrateOptions, MoreOptions])
def test_openapi_describes_every_field(kind):
    for body in body_schema(kind, "images")["requestBody"]["content"].values():
        properties = body["schema"]["properties"]
        assert list(properties) == ["images", *hints(kind)]
        assert all(one["description"] for name, one in properties.items() if name != "images")
    if kind is MoreOptions:
        assert properties["weather"]["enum"] == ["dry", "wet"]
        assert properties["height"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 100}


def test_numbers_of_a_list_may_be_text_with_commas():
    assert parse_options(QueryOptions, {"region": "1, 2,3,4", "sessions": "1,2"}) == QueryOptions(
        region=(1, 2, 3, 4), sessions=("1,2",)
    )


def test_bounds_and_names_are_checked_as_in_python():
    for fields, words in (
        ({"height": "101"}, "height=101.0 is out of range: must be between 0 and 100"),
        ({"wether": "wet"}, "no field 'wether'; did you mean 'weather'"),
        ({"floors": "1,a"}, "floors.1: input should be a valid integer"),
        ({"k": ["1", "2"]}, "k: input should be a valid integer"),  # a field that was repeated
        ({"min_confidence": "nan"}, "min_confidence=nan is not finite"),
    ):
        with pytest.raises(Refused, match="invalid request") as refusal:
            parse_options(MoreOptions, fields)
        assert words in str(refusal.value)
