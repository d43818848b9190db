"""Concurrent queries share a batch, and nobody's photo spoils another's answer."""

from __future__ import annotations

import threading

import pytest

from tests.fakes import FakeEncoder
from tests.service.conftest import opened, picture
from tfa.maps.verification import Question
from tfa.photos.images import as_rgb
from tfa.service.metrics import Metrics
from tfa.service.problems import Refused
from tfa.service.query_queue import Batcher
from tfa.service.settings import ServiceSettings
from tfa.service.shared_encoder import FairLock, SharedEncoder


class GatedEncoder(FakeEncoder):
    """Waits in its first batch until it is let go; notes the sizes of batches. A 1 × 1 photo breaks it."""

    def __init__(self):
        super().__init__()
        self.gate, self.entered, self.sizes = threading.Event(), threading.Event(), []

    def encode(self, images):
        self.sizes.append(len(images))
        self.entered.set()
        assert self.gate.wait(10)
        if any(image.size == (1, 1) for image in images):
            raise RuntimeError("this photo breaks the encoder")
        return super().encode(images)


@pytest.fixture
def gated(town):
    encoder, metrics = GatedEncoder(), Metrics()
    place_map = opened(town)
    settings = ServiceSettings(max_waiting=8, batch_size=4)
    batcher = Batcher("town", lambda: place_map, encoder, settings, metrics)
    yield encoder, batcher, metrics
    encoder.gate.set()
    batcher.close()


def image(place):
    return as_rgb(picture(place, 0.8))


def test_queries_that_wait_are_answered_in_one_batch(gated, town):
    encoder, batcher, metrics = gated
    first = batcher.hits(image(0), Question(k=1))
    assert encoder.entered.wait(10)
    kinds = [Question(k=3), Question(k=1, verify=True), Question(k=2), Question(k=1, calibration="night")]
    later = [batcher.hits(image(place), question) for place, question in enumerate(kinds, 1)]
    tokens = batcher.tokens(image(6))
    encoder.gate.set()
    assert [hit.id for hit in first.result(10)] == [0]
    assert [len(future.result(10)) for future in later[:3]] == [3, 1, 2]
    with pytest.raises(Exception, match="no calibration 'night'"):
        later[3].result(10)
    assert len(tokens.result(10)) == 1
    assert encoder.sizes == [1, 4, 1]
    for place, (future, question) in enumerate(zip(later[:3], kinds, strict=False), 1):
        alone = opened(town).query(image(place), k=question.k, verify=question.verify)
        assert [hit.id for hit in future.result()] == [hit.id for hit in alone]
    assert 'tfa_batch_photos_total{map="town"} 6' in metrics.text()


def test_a_photo_that_breaks_the_encoder_spoils_no_other(gated):
    encoder, batcher, _ = gated
    first = batcher.hits(image(0), Question(k=1))
    assert encoder.entered.wait(10)
    bad = batcher.hits(image(1).resize((1, 1)), Question(k=1))
    good = batcher.hits(image(2), Question(k=1))
    encoder.gate.set()
    assert first.result(10)[0].id == 0
    assert good.result(10)[0].id == 2
    with pytest.raises(RuntimeError, match="breaks the encoder"):
        bad.result(10)


def test_a_full_queue_is_told(gated):
    encoder, batcher, _ = gated
    batcher.hits(image(0), Question())
    assert encoder.entered.wait(10)
    waiting = [batcher.hits(image(1), Question()) for _ in range(8)]
    assert len(batcher) == 8
    with pytest.raises(Refused, match="8 queries wait already") as refusal:
        batcher.hits(image(1), Question())
    assert refusal.value.status == 503
    encoder.gate.set()
    assert all(len(future.result(10)) == 5 for future in waiting)


def test_what_waits_is_answered_before_the_end(town):
    batcher = Batcher("town", lambda: opened(town), FakeEncoder(), ServiceSettings(), Metrics())
    waiting = [batcher.hits(image(place), Question(k=1)) for place in range(3)]
    batcher.close()
    assert [future.result(0)[0].id for future in waiting] == [0, 1, 2]
    with pytest.raises(Refused, match="stopping"):
        batcher.hits(image(0), Question())


def test_the_lock_is_given_in_the_order_it_was_asked_for():
    lock, order, threads = FairLock(), [], []

    def work(number):
        with lock:
            order.append(number)

    with lock:
        for number in range(4):
            threads.append(threading.Thread(target=work, args=(number,)))
            threads[-1].start()
            while lock._next < number + 2:  # it has its ticket
                pass
        assert order == []
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3]


def test_a_shared_encoder_is_the_encoder(town):
    inner = FakeEncoder()
    shared = SharedEncoder(inner)
    photo = image(3)
    assert shared.fingerprint == inner.fingerprint
    assert (shared.encode([photo])[0] == inner.encode([photo])[0]).all()
    assert shared.prepare(photo).size == (28, 28)
