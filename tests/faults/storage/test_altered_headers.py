"""Headers that were altered and signed again: refused as a bad map, or answered; never a raw exception."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeEncoder
from tests.faults.storage.conftest import KINDS
from tests.faults.storage.edits import prepared
from tfa.core.files import hash_json
from tfa.errors import BadMap, TfaError
from tfa.maps import PlaceMap

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 10**9, 10**30, -0.5, 0.5, 1.5, 1e300, "", "none", "mean", "x" * 300, "../x",
    "\0", "\udcff", [], [0], [1, 2], {}, {"a": 1}, [[]], "judged", "paper", "int7", "float16", "ensemble", 3.0,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [place for key, one in inside for place in places(one, (*path, key))]


def altered(header: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """One or two values replaced, removed, doubled, exchanged or nudged."""
    header = copy.deepcopy(header)
    for _ in range(rng.choice((1, 1, 1, 2))):
        path = rng.choice(places(header))
        holder = header
        for key in path[:-1]:
            holder = holder[key]
        key, old = path[-1], holder[path[-1]]
        kind = rng.choice(("replace", "replace", "replace", "remove", "double", "exchange", "nudge"))
        if kind == "remove":
            del holder[key]
        elif kind == "double" and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(old))
        elif kind == "nudge" and isinstance(old, (int, float)) and not isinstance(old, bool):
            holder[key] = old + rng.choice((-1, 1, -0.1, 0.1))
        elif kind == "exchange":
            other = header
            for step in rng.choice(places(header)):
                other = other[step]
            holder[key] = copy.deepcopy(other)
        else:
            holder[key] = rng.choice(VALUES)
    return header


def sign(path: Path, header: dict[str, Any]) -> None:
    content = {key: value for key, value in header.items() if key != "digest"}
    text = json.dumps({**content, "digest": hash_json(content)})
    (path / "map.json").write_text(text, "utf-8")


def use(path: Path, query: Path) -> None:
    opened = PlaceMap.load(path, encoder=FakeEncoder())
    json.dumps(opened.info().to_dict())
    for head in ("none", *opened.calibrations):
        opened.query(query, k=3, calibration=head)
    assert opened.state.map_spec.head in KINDS
    opened.remove([opened.images[0].id])
    PlaceMap.load(path)


@pytest.mark.parametrize("kind", [*KINDS, "calibrated"])
def test_an_altered_header_is_refused_or_makes_sense(world, tmp_path, campaign, kind):
    path = prepared(world, kind, tmp_path) if kind in ("paper", "second-order") else world.map("no-patches", tmp_path)
    if kind == "calibrated":
        world.opened(path).calibrate(world.camera, name="night", score=True)
    header = json.loads((path / "map.json").read_text("utf-8"))
    original = {file.name for file in path.iterdir()}
    rng, attempts, refused, failures = random.Random(kind), campaign.size(25, 800), 0, []
    for _ in range(attempts):
        changed = altered(header, rng)
        sign(path, changed)
        try:
            use(path, world.more[2])
        except TfaError:
            refused += 1
        except Exception as error:
            failures.append((repr(error), [p for p in places(changed) if p not in places(header)][:3]))
        assert original <= {file.name for file in path.iterdir()}
    campaign.count("altered map headers with valid checksums", attempts, len(failures))
    assert failures == []
    assert refused > attempts // 3
    sign(path, header)
    use(path, world.more[2])


@pytest.mark.parametrize("kind", ["paper", "second-order"])
def test_decisions_without_a_part_are_refused_or_described(world, tmp_path, kind):
    path = prepared(world, kind, tmp_path)
    header, refused = json.loads((path / "map.json").read_text("utf-8")), 0
    parts = [place for place in places(header) if {"decisions", "evidence"} & set(place[:-1])]
    for *way, last in parts:
        changed = copy.deepcopy(header)
        holder = changed
        for key in way:
            holder = holder[key]
        del holder[last]
        sign(path, changed)
        try:
            json.dumps(PlaceMap.load(path, encoder=FakeEncoder()).info().to_dict())
        except BadMap:
            refused += 1
    assert 0 < refused < len(parts)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_missed(world, tmp_path, kind):
    path = world.map(kind, tmp_path)
    header = json.loads((path / "map.json").read_text("utf-8"))
    for name in header:
        sign(path, {key: value for key, value in header.items() if key != name})
        if name != "digest":
            with pytest.raises(BadMap):
                PlaceMap.load(path)


def test_headers_that_are_no_json_of_ours(world, tmp_path):
    path = world.map("paper", tmp_path)
    whole = (path / "map.json").read_text("utf-8")
    for text in (whole.replace("0.01", "NaN", 1), "[" * 100_000, whole[:-20], "null", '"x"', "1e999", ""):
        (path / "map.json").write_text(text, "utf-8")
        with pytest.raises(BadMap):
            PlaceMap.load(path)


@pytest.mark.parametrize("role", ["head", "gallery", "images", "map.json"])
def test_a_file_that_is_a_link_out_of_the_map_is_refused(world, tmp_path, campaign, role):
    path = world.map("paper", tmp_path)
    [file] = path.glob(f"{role}*")
    outside = file.rename(tmp_path / file.name)
    file.symlink_to(outside)
    with pytest.raises(BadMap, match="a link to a file outside the map"):
        PlaceMap.load(path)
    file.unlink()
    inside = outside.rename(path / f"kept-{file.name}")
    file.symlink_to(inside.name)
    assert len(PlaceMap.load(path)) == 8  # a link within the folder is the map's own affair
    campaign.count("map files that are links to other folders", 1)
