"""The JSON Schemas in docs/schemas: one per command with `--json`; they reject other JSON.

That the JSON of every other test is as its schema says is checked where the command line is run (tests/conftest.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import tfa.cli.options
from tests.schemas import ENDING, FOLDER, derived, fault, registry, schemas, verbs_with_json
from tfa.types import Answer, Answers, EditResult, ExpectedRecall, Hit, Place, Position, SkippedFile


def test_every_verb_with_json_has_a_schema_and_every_schema_a_verb():
    named = {"-".join(words): f"tfa {' '.join(words)} --json" for words in verbs_with_json()}
    assert named.keys() == schemas().keys()
    assert {f"{name}{ENDING}" for name in named} == {file.name for file in FOLDER.iterdir()}
    assert {name: schemas()[name]["title"] for name in named} == named


@pytest.mark.parametrize("name", sorted(derived()))
def test_a_derived_schema_is_in_the_docs_as_it_was_made(name):
    text = (FOLDER / f"{name}{ENDING}").read_text("utf-8")
    assert text == derived()[name], "run python docs/site/make_schemas.py"


@pytest.mark.parametrize("name", sorted(schemas()))
def test_a_schema_is_valid_and_describes_every_field(name):
    Draft202012Validator.check_schema(schemas()[name])
    look = registry().resolver(f"{name}{ENDING}").lookup
    for part in parts(schemas()[name]):
        if "$ref" in part:
            look(part["$ref"])  # an error if it leads nowhere
        for field, own in part.get("properties", {}).items():
            meant = look(own["$ref"]).contents if "$ref" in own else {}
            assert own.get("description") or meant.get("description"), f"{name}{ENDING}: {field}"


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all schemas in it."""
    if isinstance(schema, dict):
        yield schema
        for word, one in schema.items():
            within = one.values() if word in ("properties", "$defs") else one if isinstance(one, list) else [one]
            for own in within:
                yield from parts(own)


POSITION = Position(x=6.643, y=-0.087)
EXAMPLES = {
    "query": Answers(
        answers=[
            Answer(
                query="photo.jpg",
                confidence=0.94,
                sure=True,
                reranked=True,
                place=Place(position=POSITION, radius=14.2, share=0.97, images=3),
                hits=[
                    Hit(id=1, image="ref.jpg", score=0.87, confidence=0.94, inliers=212, sure=True, position=POSITION)
                ],
            )
        ],
        expected_recall=ExpectedRecall(share=0.94, low=0.5, high=1.0, sure=1.0, photos=1),
    ),
    "add": EditResult(
        added=[16], removed=[], skipped=[SkippedFile(file="torn.jpg", reason="truncated")], notes=[], images=17
    ),
}


def changed(value: Any) -> Iterator[tuple[str, Any]]:
    """A value with one thing wrong: a field missing, one too many, or one of another type, wherever it is."""
    if isinstance(value, list):
        for at, one in enumerate(value):
            yield from ((f"{at}.{what}", [*value[:at], new, *value[at + 1 :]]) for what, new in changed(one))
    if isinstance(value, dict):
        yield "one more", {**value, "unheard_of": 1}
        for name, one in value.items():
            yield f"no {name}", {key: own for key, own in value.items() if key != name}
            yield f"{name} of another type", {**value, name: {"unheard_of": 1}}
            yield from ((f"{name}.{what}", {**value, name: new}) for what, new in changed(one))


@pytest.mark.parametrize("verb", EXAMPLES)
def test_every_field_of_an_example_is_needed_and_typed(verb):
    shown = EXAMPLES[verb].to_dict()
    assert fault(verb, shown) is None
    assert not [what for what, wrong in changed(shown) if fault(verb, wrong) is None]


@pytest.mark.parametrize(
    "wrong", [{}, {"setting": "precision", "value": None, "source": 3, "variable": "TFA_PRECISION"}]
)
def test_a_verb_that_prints_something_else_is_noticed(run, monkeypatch, wrong):
    monkeypatch.setattr(tfa.cli.options, "_row", lambda *_: wrong)
    with pytest.raises(AssertionError, match=r"config\.schema\.json, \$\.settings"):
        run("config", "--json")
