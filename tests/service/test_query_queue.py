"""Concurrent queries share a batch, and a bad photo fails alone."""

from __future__ import annotations

import threading

import pytest

from tests.fakes import FakeEncoder
from tests.service.conftest import opened, picture
from tests.waiting import PATIENCE, wait_until
from tfa.photos.images import as_rgb
from tfa.service.decoders import SharedEncoder
from tfa.service.middleware import Metrics
from tfa.service.problems import Refused
from tfa.service.query_queue import QueryQueue
from tfa.service.settings import ServiceSettings
from tfa.types import QueryOptions


class GatedEncoder(FakeEncoder):
    """Waits in its first batch until it is let go; notes the sizes of batches. A 1 × 1 photo breaks it."""

    def __init__(self):
        super().__init__()
        self.gate, self.entered, self.sizes = threading.Event(), threading.Event(), []

    def encode(self, images):
        self.sizes.append(len(images))
        self.entered.set()
        assert self.gate.wait(PATIENCE)
        if any(image.size == (1, 1) for image in images):
            raise RuntimeError("this photo breaks the encoder")
        return super().encode(images)


@pytest.fixture
def gated(town):
    encoder, metrics = GatedEncoder(), Metrics()
    place_map = opened(town)
    settings = ServiceSettings(max_waiting=8, batch_size=4)
    queries = QueryQueue("town", lambda: place_map, encoder, settings, metrics)
    yield encoder, queries, metrics
    encoder.gate.set()
    queries.close()


def image(place):
    return as_rgb(picture(place, 0.8))


def test_queries_that_wait_are_answered_in_one_batch(gated, town):
    encoder, queries, metrics = gated
    first = queries.submit(image(0), QueryOptions(k=1))
    assert encoder.entered.wait(PATIENCE)
    kinds = [
        QueryOptions(k=3),
        QueryOptions(k=1, rerank=True),
        QueryOptions(k=2),
        QueryOptions(k=1, calibration="night"),
    ]
    later = [queries.submit(image(place), question) for place, question in enumerate(kinds, 1)]
    tokens = queries.submit(image(6))
    encoder.gate.set()
    assert [hit.id for hit in first.result(PATIENCE).hits] == [0]
    assert [len(future.result(PATIENCE).hits) for future in later[:3]] == [3, 1, 2]
    with pytest.raises(Exception, match="calibration 'night' not found"):
        later[3].result(PATIENCE)
    assert len(tokens.result(PATIENCE)) == 1
    assert encoder.sizes == [1, 4, 1]
    for place, (future, question) in enumerate(zip(later[:3], kinds, strict=False), 1):
        alone = opened(town).query(image(place), k=question.k, rerank=question.rerank)
        assert [hit.id for hit in future.result().hits] == [hit.id for hit in alone]
    assert 'tfa_batch_photos_total{map="town"} 6.0' in metrics.text()


def test_a_photo_that_breaks_the_encoder_spoils_no_other(gated):
    encoder, queries, _ = gated
    first = queries.submit(image(0), QueryOptions(k=1))
    assert encoder.entered.wait(PATIENCE)
    bad = queries.submit(image(1).resize((1, 1)), QueryOptions(k=1))
    good = queries.submit(image(2), QueryOptions(k=1))
    encoder.gate.set()
    assert first.result(PATIENCE).hits[0].id == 0
    assert good.result(PATIENCE).hits[0].id == 2
    with pytest.raises(RuntimeError, match="breaks the encoder"):
        bad.result(PATIENCE)


def test_what_waits_is_answered_before_the_end(town):
    queries = QueryQueue("town", lambda: opened(town), FakeEncoder(), ServiceSettings(), Metrics())
    waiting = [queries.submit(image(place), QueryOptions(k=1)) for place in range(3)]
    queries.close()
    assert [future.result(0).hits[0].id for future in waiting] == [0, 1, 2]
    with pytest.raises(Refused, match="stopping"):
        queries.submit(image(0), QueryOptions())


def test_a_batch_that_fails_fails_its_own_queries_only(town, caplog):
    place_map, broken = opened(town), [OSError(5, "Input/output error")]

    def current():
        if broken:
            raise broken.pop()
        return place_map

    queries = QueryQueue("town", current, FakeEncoder(), ServiceSettings(), Metrics())
    with pytest.raises(OSError, match="Input/output error"):
        queries.submit(image(0), QueryOptions()).result(PATIENCE)
    assert queries.submit(image(3), QueryOptions(k=1)).result(PATIENCE).hits[0].id == 3
    assert queries.state == "ready"
    assert "batch of 1 queries of town failed" in caplog.text
    queries.close()


class EndingEncoder(GatedEncoder):
    """Ends the thread it runs in once, as nothing we know of does."""

    ended = False

    def encode(self, images):
        encoded = super().encode(images)
        if not self.ended:
            self.ended = True
            raise SystemExit
        return encoded


def test_a_thread_that_fails_goes_on(town, caplog):
    encoder, place_map = EndingEncoder(), opened(town)
    queries = QueryQueue("town", lambda: place_map, encoder, ServiceSettings(batch_size=1), Metrics())
    first, states = queries.submit(image(0), QueryOptions()), []
    first.add_done_callback(lambda _: states.append(queries.state))
    assert encoder.entered.wait(PATIENCE)
    waiting = [queries.submit(image(place), QueryOptions(k=1)) for place in range(3)]
    encoder.gate.set()
    with pytest.raises(Refused, match="the service failed on this query") as refusal:
        first.result(PATIENCE)
    assert (refusal.value.status, refusal.value.headers) == (503, {"Retry-After": "1"})
    assert [future.result(PATIENCE).hits[0].id for future in waiting] == [0, 1, 2]
    assert states == ["failed"]  # a caller with an error never sees a service that is ready
    assert "the query thread of town failed on a batch and continues" in caplog.text
    wait_until(lambda: queries.state == "ready")
    queries.close()


def test_a_batch_that_hangs_is_told_and_queries_are_refused(town):
    encoder, place_map = GatedEncoder(), opened(town)
    queries = QueryQueue("town", lambda: place_map, encoder, ServiceSettings(stall_seconds=0.1), Metrics())
    first = queries.submit(image(0), QueryOptions(k=1))
    wait_until(lambda: queries.state == "stalled")
    with pytest.raises(Refused, match=r"running for more than 0\.1 s"):
        queries.submit(image(0), QueryOptions())
    encoder.gate.set()
    assert first.result(PATIENCE).hits[0].id == 0
    wait_until(lambda: queries.state == "ready")
    assert queries.submit(image(1), QueryOptions(k=1)).result(PATIENCE).hits[0].id == 1
    queries.close()


def test_every_query_that_is_taken_is_answered_also_while_the_queue_closes(town):
    place_map = opened(town)
    queries = QueryQueue("town", lambda: place_map, FakeEncoder(), ServiceSettings(), Metrics())
    taken, refused = [], []
    photo, start = image(0), threading.Barrier(5)

    def send():
        start.wait(PATIENCE)
        while not refused:
            try:
                taken.append(queries.submit(photo, QueryOptions(k=1)))
            except Refused as refusal:
                if "stopping" in str(refusal):
                    refused.append(refusal)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    start.wait(PATIENCE)
    taken.append(queries.submit(photo, QueryOptions(k=1)))
    queries.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert taken
    assert all(future.result(PATIENCE).hits[0].id == 0 for future in taken)


def test_a_shared_encoder_runs_one_batch_at_a_time_in_their_order():
    encoder, threads = GatedEncoder(), []
    shared = SharedEncoder(encoder)
    for number in range(1, 5):
        threads.append(threading.Thread(target=shared.encode, args=([image(0)] * number,)))
        threads[-1].start()
        wait_until(lambda number=number: shared._thread._work_queue.qsize() == number - 1)
        assert encoder.entered.wait(PATIENCE)
    assert encoder.sizes == [1]
    encoder.gate.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert encoder.sizes == [1, 2, 3, 4]


def test_a_shared_encoder_is_the_encoder(town):
    inner = FakeEncoder()
    shared = SharedEncoder(inner)
    photo = image(3)
    assert (shared.fingerprint, shared.model, shared.fail_after) == (inner.fingerprint, inner.model, None)
    assert (shared.encode([photo])[0] == inner.encode([photo])[0]).all()
    assert shared.prepare(photo).size == (28, 28)
