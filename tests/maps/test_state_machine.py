"""Any order of edits: answers come from the images of the map, no id is given twice, the folder holds the same map."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.fakes import FakeEncoder
from tests.maps.conftest import photo
from tfa.errors import BadCalibration, BadImage, NoImages, UnknownImage
from tfa.maps import PlaceMap
from tfa.maps.folder import writer
from tfa.photos.token_cache import TokenCache
from tfa.types import EncoderOptions, HeadKind, HeadSpec

FIRST, MORE = 6, 6  # photos of the map at first, photos that may be added
CALIBRATIONS = ("night", "fog")


class EditedMap(RuleBasedStateMachine):
    """A saved map under edits, beside a plain account of what it must hold."""

    made: Path  # photos and a map of the first of them, made once
    folder: Path  # of this run's own
    name = "town.tfa"  # of the map in that folder
    head = "paper"

    @initialize()
    def open_a_copy(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.made / "town.tfa", self.folder / "town.tfa")
        self.map = self.opened()
        self.paths = {number: self.made / f"{number}.png" for number in range(FIRST)}  # by id
        self.given = set(self.paths)  # every id there ever was
        self.calibrations: list[str] = []

    def opened(self) -> PlaceMap:
        opened = PlaceMap.load(self.folder / self.name, encoder=FakeEncoder())
        opened.cache = TokenCache(self.made / "cache")
        return opened

    def answers(self, place_map: PlaceMap) -> list[list[dict[str, Any]]]:
        """All hits of a query, with each head of the map."""
        heads = ("none", *self.calibrations, None)
        return [
            [hit.to_dict() for hit in place_map.query(self.made / "dusk.png", 99, min_confidence=0.0, calibration=head)]
            for head in heads
        ]

    # --- edits ---------------------------------------------------------------------------------------------------

    @rule(number=st.integers(0, FIRST + MORE - 1))
    def add(self, number: int) -> None:
        path = self.made / f"{number}.png"
        added = self.map.add([path]).added
        assert len(added) == (path not in self.paths.values())
        assert self.given.isdisjoint(added)
        self.given.update(added)
        self.paths.update(dict.fromkeys(added, path))

    @precondition(lambda self: len(self.paths) > 2)
    @rule(choice=st.randoms(use_true_random=False), by_path=st.booleans())
    def remove(self, choice: Any, by_path: bool) -> None:
        gone = choice.choice(sorted(self.paths))
        assert self.map.remove([self.paths[gone] if by_path else gone]).removed == [gone]
        del self.paths[gone]

    @rule(name=st.sampled_from(CALIBRATIONS), score=st.booleans())
    def calibrate(self, name: str, score: bool) -> None:
        score = score or self.head == "paper-dual"  # which calibrates only scores
        self.map.calibrate(self.made / "camera", name=name, score=score)
        self.calibrations = [*(other for other in self.calibrations if other != name), name]

    @rule()
    def refit(self) -> None:
        self.map.refit()
        self.calibrations = []
        assert self.map.unseen_share == 0

    @rule()
    def reload(self) -> None:
        self.map = self.opened()

    # --- edits that fail -----------------------------------------------------------------------------------------

    @rule(kind=st.sampled_from(["unknown", "broken", "own", "nothing", "full disk"]))
    def fail(self, kind: str) -> None:
        before = self.answers(self.map), self.map.info().to_dict()
        with pytest.MonkeyPatch.context() as patch:
            if kind == "unknown":
                with pytest.raises(UnknownImage):
                    self.map.remove([min(self.paths), max(self.given) + 1])
            elif kind == "broken":
                with pytest.raises(BadImage):
                    self.map.add([self.made / "new.png", self.made / "broken.png"])
            elif kind == "own":
                with pytest.raises(BadCalibration):
                    self.map.calibrate(list(self.paths.values()))
            elif kind == "nothing":
                with pytest.raises(NoImages):
                    self.map.calibrate([])
            else:
                patch.setattr(writer, "write_json", full_disk)
                with pytest.raises(OSError, match="disk full"):
                    self.map.remove([min(self.paths)])
        assert (self.answers(self.map), self.map.info().to_dict()) == before

    # --- what always holds ---------------------------------------------------------------------------------------

    @invariant()
    def answers_come_from_the_images_of_the_map(self) -> None:
        paths = {number: str(path.resolve()) for number, path in self.paths.items()}
        assert {record.id: record.path for record in self.map.images} == paths
        assert self.map.calibrations == self.calibrations
        for hits in self.answers(self.map):
            assert {hit["id"]: hit["image"] for hit in hits} == paths
            assert len(hits) == len(paths)

    @invariant()
    def the_folder_holds_the_same_map(self) -> None:
        again = self.opened()
        # To rounding: a calibration holds its rows in one block here, in a block for each addition once it is read.
        for ours, theirs in zip(self.answers(self.map), self.answers(again), strict=True):
            assert [hit["id"] for hit in theirs] == [hit["id"] for hit in ours]
            for one, other in zip(ours, theirs, strict=True):
                assert other == {**one, "score": approx(one["score"]), "confidence": approx(one["confidence"])}
        assert again.info().to_dict()["revision"] == self.map.info().to_dict()["revision"]


def approx(value: float) -> Any:
    return pytest.approx(value, rel=1e-5, abs=1e-6)


def full_disk(*_: Any) -> None:
    raise OSError("disk full")


def made_world(tmp_path: Path, head: HeadKind = "paper") -> Path:
    """Photos, and a map of the first of them."""
    made = tmp_path / "made"
    for place in range(FIRST + MORE):
        photo(made / f"{place}.png", place)
    for place in range(8):
        photo(made / "camera" / f"{place}.png", place, light=0.7)
    photo(made / "dusk.png", 3, light=0.8)
    photo(made / "new.png", 77)
    (made / "broken.png").write_bytes(b"no picture")
    first = [made / f"{number}.png" for number in range(FIRST)]
    PlaceMap.build(
        first,
        head=head,
        encoder=FakeEncoder(),
        spec=HeadSpec(words=4),
        options=EncoderOptions(cache=TokenCache(made / "cache")),
    ).save(made / "town.tfa")
    return made


@pytest.mark.slow
@pytest.mark.parametrize("head", ["paper", "paper-dual"])
def test_any_order_of_edits(tmp_path: Path, head: HeadKind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EditedMap, "head", head)
    EditedMap.made, EditedMap.folder = made_world(tmp_path, head), tmp_path / "edited"
    bounds = settings(
        max_examples=10,
        stateful_step_count=10,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.reuse, Phase.generate],  # shrinking takes minutes; a sequence of ten edits can be read
    )
    run_state_machine_as_test(EditedMap, settings=bounds)
