"""Very many clients at once, and a kill in the midst of edits."""

from __future__ import annotations

import threading

import pytest

from studies import serve as serving_benchmark
from tests.faults.service.raw import serving
from tests.service.conftest import picture
from tests.service.test_killed import fake_command, fake_map, wait_for_edits
from tests.waiting import PATIENCE
from tfa.client import Client
from tfa.errors import TfaError

pytestmark = pytest.mark.kill
CLIENTS = 200


def test_200_clients_at_once_are_answered_without_an_error(town, tmp_path, campaign):
    requests = campaign.size(200, 24_000)
    errors, wrong, start = [], [], threading.Barrier(CLIENTS)

    def work(url: str, number: int) -> None:
        start.wait(PATIENCE)
        with Client(url, timeout=PATIENCE, retries=0) as client:
            for turn in range(requests // CLIENTS):
                place = (number + turn) % 14
                try:
                    if client.query(picture(place), k=1)[0].id != place:
                        wrong.append(place)
                except TfaError as error:
                    errors.append(str(error))

    with serving(town, tmp_path / "log") as child:
        threads = [threading.Thread(target=work, args=(child.url, number)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
    assert (errors[:3], wrong) == ([], [])
    campaign.count("requests from 200 concurrent clients", requests)


def test_a_kill_in_the_midst_of_edits_loses_none_that_was_answered(monkeypatch, campaign):
    monkeypatch.setattr(serving_benchmark, "QUIET", 2)
    wait_for_edits(monkeypatch)
    rounds, added = campaign.size(1, 10), 0
    for _ in range(rounds):
        result = serving_benchmark.run_serving_benchmark(
            seconds=float(campaign.size(3, 5)), clients=1, editors=2, images=8, build=fake_map, command=fake_command
        )
        assert (result.errors, result.lost) == ([], [])
        added += result.added
    assert added
    campaign.count("services killed during edits", rounds)
