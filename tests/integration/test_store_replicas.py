"""Several that ask and change one map in a real store at once: replicas of the service, and versions that change
under those who ask."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.client.conftest import serving
from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo
from tests.maps.store.stores import new_name, place_of
from tests.waiting import wait_until
from tfa.client import Client
from tfa.maps import PlaceMap
from tfa.maps.store import versions
from tfa.service.settings import ServiceSettings

pytestmark = pytest.mark.stores
PLACES, SWITCHES = 14, 10
VISIBLE = versions._LOOK_AGAIN  # seconds after which every query that begins sees an edit


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))


def town_of(folder, places):
    for place in range(places):
        photo(folder / f"@{place}@{place}@.png", place)
    return PlaceMap.build(folder, head="second-order", encoder=FakeEncoder(), spec=SPEC)


def test_edits_are_seen_within_a_second():
    assert VISIBLE <= 1


def test_an_edit_through_one_replica_is_seen_in_the_other(request, tmp_path):
    url = f"{place_of('postgres', request)}/{new_name()}"
    town_of(tmp_path / "town", PLACES).publish(url, dims=64).close()
    asked, new = photo(tmp_path / "q.png", 40, light=0.9), photo(tmp_path / "new.png", 40)
    with ExitStack() as stack:
        maps = [PlaceMap.load(url, encoder=FakeEncoder()) for _ in range(2)]
        served = [stack.enter_context(serving([one], ServiceSettings(port=0)))[0] for one in maps]
        one, other = (stack.enter_context(Client(address)) for address in served)
        before = other.query(asked, k=1)[0].id
        assert before != PLACES
        assert one.add([new]).added == [PLACES]
        wait_until(lambda: other.query(asked, k=1)[0].id == PLACES)
        assert other.remove([PLACES]).removed == [PLACES]
        wait_until(lambda: one.query(asked, k=1)[0].id == before)
        assert (len(one.images()), one.info().to_dict()["images"]) == (PLACES, PLACES)
    for opened in maps:
        opened.close()


class Asker(threading.Thread):
    """Asks until told to stop; remembers when it began to ask, and of which town the answer was."""

    def __init__(self, url: str, dusk: Path, stop: threading.Event) -> None:
        super().__init__()
        self.map, self.dusk, self.stop = PlaceMap.load(url, encoder=FakeEncoder()), dusk, stop
        self.answers: list[tuple[float, set[str], int]] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                began = time.monotonic()
                hits = self.map.query(self.dusk, k=PLACES)
                self.answers.append((began, {Path(hit.image).parent.name for hit in hits}, len(hits)))
        except Exception as error:
            self.error = error
        finally:
            self.map.close()

    def first_after(self, moment: float) -> tuple[set[str], int]:
        """What an answer that began after that moment was of."""

        def later():
            return [one[1:] for one in self.answers if one[0] > moment]

        wait_until(lambda: bool(later()) or self.error is not None)
        assert self.error is None, self.error
        return later()[0]


@pytest.mark.parametrize("kind", ["postgres"])  # LanceDB: tests/benchmarks/test_scale.py
def test_versions_switch_under_those_who_ask_and_no_answer_is_mixed_or_old(kind, request, tmp_path):
    url = f"{place_of(kind, request)}/{new_name()}"
    towns = {"first": town_of(tmp_path / "first", PLACES), "second": town_of(tmp_path / "second", PLACES - 3)}
    sizes = {name: len(town.images) for name, town in towns.items()}
    changed = towns["first"].publish(url, dims=64)
    dusk, stop, now = photo(tmp_path / "dusk.png", 5, light=0.8), threading.Event(), "first"
    askers = [Asker(url, dusk, stop) for _ in range(2)]
    for asker in askers:
        asker.start()
    try:
        for number in range(SWITCHES):
            now = "second" if now == "first" else "first"
            if number % 5:
                changed.storage.rollback()
            else:
                towns[now].publish(url, dims=64).close()
            if number % 5 == 4:
                done = time.monotonic()
                for asker in askers:
                    assert asker.first_after(done + VISIBLE) == ({now}, sizes[now])
    finally:
        stop.set()
        for asker in askers:
            asker.join()
        changed.close()
    assert [asker.error for asker in askers] == [None, None]
    seen = [(folders, count) for asker in askers for _, folders, count in asker.answers]
    assert {frozenset(folders) for folders, _ in seen} == {frozenset({"first"}), frozenset({"second"})}
    assert all(count == sizes[next(iter(folders))] for folders, count in seen)
