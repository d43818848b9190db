"""A service in a separate process: under load, killed, and shut down."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from studies import serve as serving
from studies.serve import Child, Load, NotServing, synthetic_photo
from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC
from tests.service.conftest import opened
from tests.waiting import PATIENCE, wait_until
from tfa.client import Client
from tfa.maps import PlaceMap
from tfa.photos.token_cache import TokenCache
from tfa.types import EncoderOptions

pytestmark = pytest.mark.kill


def fake_command(place_map: Path) -> list[str]:
    return [sys.executable, "-m", "tests.service.fake_server", str(place_map)]


def fake_map(folder: Path, images: int) -> PlaceMap:
    (folder / "photos").mkdir()
    for seed in range(images):
        (folder / "photos" / f"{seed}.jpg").write_bytes(synthetic_photo(seed))
    built = PlaceMap.build(
        folder / "photos",
        head="paper",
        encoder=FakeEncoder(),
        spec=SPEC,
        options=EncoderOptions(cache=TokenCache(folder / "cache")),
    )
    built.save(folder / "town.tfa")
    return built


def wait_for_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the benchmark's kill come no sooner than a query was answered and an edit accepted."""
    real = Load.run

    def run(self: Load, seconds: float, advance: Callable[[], None], last: Callable[[], None]) -> float:
        def advance_later() -> None:
            wait_until(lambda: bool(self.errors or (self.edits.added and self.query_seconds)))
            advance()

        return real(self, seconds, advance_later, last)

    monkeypatch.setattr(Load, "run", run)


def test_every_accepted_edit_survives_a_kill_under_load(monkeypatch):
    monkeypatch.setattr(serving, "QUIET", 3)
    wait_for_edits(monkeypatch)
    result = serving.run_serving_benchmark(
        seconds=1.0, clients=2, editors=2, images=12, build=fake_map, command=fake_command
    )
    assert result.passed
    assert (result.errors, result.lost) == ([], [])
    assert result.added > 0
    assert result.queries.count > 0
    assert 0 < result.bare.p50 <= result.bare.p99
    table = str(result)
    assert f"{result.added} additions, {result.removed} removals accepted, none lost" in table
    assert result.to_dict()["queries"]["count"] == result.queries.count


def test_what_is_lost_is_told():
    class Forgetful:
        def images(self):
            return opened_records

        def image(self, image_id):
            return b"" if image_id == 3 else b"\xff\xd8"

    opened_records = [type("Record", (), {"id": i}) for i in (1, 3, 5)]
    edits = serving.Edits(added={1, 2, 3, 4}, removed={5}, removal_requested={4, 5})
    assert serving._lost(Forgetful(), edits) == [
        "image 2 was added and is gone",
        "image 5 was removed and is back",
        "the photo of image 3 is gone",
    ]


def test_a_service_that_is_told_to_stop_finishes_and_stops(town, tmp_path):
    with Child(town, fake_command, tmp_path / "log.txt") as child:
        assert Client(child.url).add([synthetic_photo(1)]).added == [14]
        child._process.send_signal(signal.SIGTERM)
        assert child._process.wait(PATIENCE) in (0, -signal.SIGTERM)
    assert (tmp_path / "log.txt").read_text() == ""
    assert len(opened(town)) == 15


def test_a_service_that_does_not_start_is_told(tmp_path):
    code = [sys.executable, "-c", "import sys; sys.exit('no such map')"]
    with pytest.raises(NotServing, match="no such map"), Child(tmp_path, lambda _: code, tmp_path / "log"):
        pass
