"""Dataset cards are valid and cover the paper's protocols; errors of a bad card name the problem."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest

from tfa.types import HeadSpec
from tfa_bench.datasets.card import DATASET_GROUPS, BadCard, UnknownDataset, cards, collect, find_card, read_card
from tfa_bench.datasets.files import BadDataset
from tfa_bench.datasets.load import card_for, layout_names, load_layout

SEASONS = ("business-campus", "city-loop", "countryside", "office-loop", "old-town", "parking-garage")

# Rows of the paper's table of dataset sources → our names.
SOURCES = {
    "Pitts30k / Pitts250k": ("pitts30k", "pitts250k"),
    "MSLS-val": ("msls-val",),
    "St-Lucia": ("st-lucia",),
    "Eynsham": ("eynsham",),
    "GSV-Brussels": ("gsv-brussels",),
    "Essex3in1": ("essex3in1",),
    "SPED": ("sped",),
    "Nordland": ("nordland",),
    "AmsterTime": ("amstertime",),
    "CrossSeason": ("crossseason",),
    "4Seasons (six maps)": tuple(f"4seasons-{name}" for name in SEASONS),
    "RobotCar (nine conditions)": ("robotcar",),
    "Baidu-Mall": ("baidu-mall",),
    "V4RL shopping": ("v4rl-shopping",),
    "SVOX (five conditions)": ("svox",),
    "UAV-VisLoc": ("uav-visloc",),
    "VPAIR-full": ("vpair",),
    "SUES-200 (four heights)": ("sues-200",),
    "DenseUAV": ("denseuav",),
    "University (both directions)": ("university-d2s", "university-s2d"),
    "Urbanscape": ("urbanscape",),
    "Park": ("park",),
    "Tokyo24/7": ("tokyo247",),
    "Nardo-Air": ("nardo-air",),
    "AnyVisLoc": ("anyvisloc",),
}
# Rows of the paper's tables of results, by heading.
ROWS = {
    "Urban / ground": [
        "Pitts30k", "Pitts250k", "MSLS-val", "St-Lucia", "Eynsham", "GSV-Brussels", "Essex3in1", "V4RL shopping",
    ],
    "Condition shift": ["SPED", "Nordland", "AmsterTime", "CrossSeason"],
    "Driving": [*(f"4Seasons {name.replace('-', ' ').title()}" for name in SEASONS), "RobotCar nine conditions"],
    "Indoor": ["Baidu-Mall"],
    "Aerial / cross-view": [
        "UAV-VisLoc", "VPAIR-full", "SUES-200", "DenseUAV", "Park", "Urbanscape", "University drone→sat.",
        "University sat.→drone",
    ],
    "Other": ["SVOX-5 macro"],
}  # fmt: skip
COUNTS = {
    "pitts30k": (10_000, 6_816),
    "pitts250k": (83_952, 8_280),
    "msls-val": (18_871, 740),
    "msls-val-11084": (18_871, 11_084),
    "st-lucia": (1_549, 1_464),
    "eynsham": (23_935, 23_935),
    "essex3in1": (210, 210),
    "sped": (607, 607),
    "nordland": (27_592, 27_592),
    "nordland-2760": (27_592, 2_760),
    "amstertime": (1_231, 1_231),
    "crossseason": (191, 191),
    "svox": (17_166, 4_356),
    "tokyo247": (75_984, 315),
    "nordland-540": (540, 540),
    "gardens-point": (200, 200),
    "corridor": (111, 111),
    "campus-loop": (100, 100),
    "berlin-kudamm": (201, 222),
    "berlin-a100": (85, 81),
    "aerial-seneca": (76, 76),
    "gsv-brussels": (None, None),
    "v4rl-shopping": (None, None),
}
GOOD = {
    "name": "town", "title": "Town", "layout": "folder", "positives": "same index", "group": "Other",
    "citation": "none", "licence": "unknown", "get": "from the authors",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(cards()))
def test_a_packaged_card_names_a_layout_that_takes_its_options(name):
    card = cards()[name]
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", card.name)
    assert card.layout in layout_names()
    inspect.signature(load_layout(card.layout).load).bind(Path(), **card.options)
    assert isinstance(HeadSpec.from_dict(dict(card.spec)), HeadSpec)
    assert "http" not in card.get  # links die; owners and names are found again


@pytest.mark.parametrize("name", sorted(layout_names()))
def test_a_layout_of_the_catalogue_has_a_loader(name):
    load = load_layout(name).load
    parameters = list(inspect.signature(load).parameters.values())
    assert parameters[0].name == "root"
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters[1:])


@pytest.mark.parametrize("row", SOURCES)
def test_every_dataset_of_the_paper_has_a_card(row):
    assert [name for name in SOURCES[row] if name not in cards()] == []


@pytest.mark.parametrize("group", DATASET_GROUPS)
def test_every_row_of_the_papers_tables_has_one_card_under_its_heading(group):
    rows = sorted(card.paper_row for card in cards().values() if card.group == group and card.paper_row)
    assert rows == sorted(ROWS[group])


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_those_of_the_protocol(name):
    counts = find_card(name).counts
    assert (counts.database, counts.queries) == COUNTS[name]


def test_svox_has_five_conditions_that_make_up_its_queries():
    card = find_card("svox")
    assert (
        sorted(card.counts.conditions)
        == ["night", "overcast", "rain", "snow", "sun"]
        == sorted(card.options["conditions"])
    )
    assert sum(card.counts.conditions.values()) == card.counts.queries
    assert card.conditions_specific


def test_unpublished_protocols_say_so():
    assert {"gsv-brussels", "v4rl-shopping", "park", "urbanscape"} <= {c.name for c in cards().values() if not c.public}


def test_the_pca_is_sampled_for_pitts250k_only():
    specs = {name: (card.counts.database or 0, HeadSpec.from_dict(card.spec)) for name, card in cards().items()}
    assert [name for name, (images, spec) in specs.items() if images > spec.max_pca] == ["pitts250k"]
    unknown = [name for name, card in cards().items() if card.counts.database is None]
    assert [name for name in unknown if specs[name][1].max_pca < HeadSpec.paper().max_pca] == []
    assert HeadSpec.paper().max_pca in range(max(n for n, _ in specs.values() if n != 83_952), 83_952)


def test_a_card_in_the_folder_overrides_a_packaged_one(tmp_path):
    known = find_card("uav-visloc")
    (tmp_path / "card.json").write_text('{"options": {"coverage": false}, "spec": {"max_pca": 9}, "title": "Tiles"}')
    card, notes = card_for("uav-visloc", tmp_path)
    assert card.options == {"radius": 100.0, "coverage": False}
    assert (card.spec, card.title, card.layout) == ({"max_pca": 9}, "Tiles", known.layout)
    assert notes == ("uav-visloc is changed by its card.json",)
    (tmp_path / "card.json").write_text('{"name": "sped"}')
    with pytest.raises(BadDataset, match="describes 'sped', not 'uav-visloc'"):
        card_for("uav-visloc", tmp_path)
    (tmp_path / "card.json").write_text('{"spec": {"max_pcs": 3}}')
    with pytest.raises(BadCard, match=r"card.json: spec: HeadSpec has no field 'max_pcs'"):
        card_for("uav-visloc", tmp_path)


def test_a_card_survives_json():
    for card in cards().values():
        assert read_card(json.dumps(card.to_dict()), "again") == card


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"licnce": "MIT"}, r"town\.json: unknown field 'licnce'; did you mean 'licence'"),
        ({"title": 3}, r"town\.json: title is int, must be str"),
        ({"public": 1}, "public is int, must be bool"),
        ({"options": []}, "options is list, must be dict"),
        ({"licence": ""}, "licence missing"),
        ({"group": "Outdoor"}, "group is 'Outdoor'"),
        ({"counts": {"images": 3}}, "counts has 'images'"),
        ({"counts": {"queries": 0}}, "queries is 0"),
        ({"counts": {"database": True}}, "database is True"),
        ({"counts": {"conditions": {"night": "3"}}}, "night is '3'"),
        ({"counts": {"conditions": 3}}, r"counts\.conditions must map"),
        ({"counts": {"queries": 3, "conditions": {"night": 1}}}, "its conditions have 1 in total"),
        ({"spec": {"max_pcs": 3}}, r"spec: HeadSpec has no field 'max_pcs'; did you mean 'max_pca'"),
        ({"spec": {"max_pca": "3"}}, "spec: max_pca"),
    ],
)
def test_a_bad_card_is_named_with_its_fault(change, message):
    with pytest.raises(BadCard, match=message):
        read_card(json.dumps(GOOD | change), "town.json")


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_what_is_no_card_is_refused(text):
    with pytest.raises(BadCard, match=r"town\.json"):
        read_card(text, "town.json")


def test_conditions_alone_give_the_number_of_queries():
    card = read_card(json.dumps(GOOD | {"counts": {"conditions": {"day": 2, "night": 3}}}), "town.json")
    assert (card.counts.queries, card.counts.database) == (5, None)


def test_two_cards_of_one_name_are_an_error():
    with pytest.raises(BadCard, match=r"b\.json and a\.json both name the dataset 'town'"):
        collect({"a.json": json.dumps(GOOD), "b.json": json.dumps(GOOD)})


def test_a_miss_suggests_the_nearest_name():
    with pytest.raises(UnknownDataset, match="did you mean 'pitts30k'"):
        find_card("pits30k")
    with pytest.raises(UnknownDataset, match="tfa bench datasets"):
        find_card("qqqq")


def test_the_cards_cannot_be_changed_for_others():
    cards().clear()
    assert "sped" in cards()
