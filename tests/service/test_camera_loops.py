"""Loops of a camera's photos: closed in order of arrival, in memory only, and bounded."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.fakes import FakeEncoder
from tests.service.camera_steps import DRIVE
from tests.service.conftest import ask
from tfa.maps.loop_closer import LoopCloser
from tfa.service import cameras as kept
from tfa.types import Loop, LoopPair

LAP, GAP = 60, 15


class EveryThird:
    """A closer that closes a loop with the first photo at every third one."""

    def __init__(self, encoder):
        self.frames = 0

    def step(self, tokens):
        self.frames += 1
        node = self.frames - 1
        if node % 3 != 2:
            return None
        return Loop(query=node, match=0, confidence=0.9, continued=False, chain=[LoopPair(query=node, match=0)])


@pytest.fixture
def simple(monkeypatch):
    monkeypatch.setattr(kept, "LoopCloser", EveryThird)


def nodes(client, camera, count, **options):
    answers = [ask(client, DRIVE[n % 14], camera=camera, loops="true", **options).json() for n in range(count)]
    return [(answer["node"], answer.get("loop", {}).get("match")) for answer in answers]


def test_an_answer_has_the_number_of_its_photo_and_the_loop(client, simple):
    assert nodes(client, "front", 3) == [(0, None), (1, None), (2, 0)]
    assert nodes(client, "back", 1) == [(0, None)]
    plain = ask(client, DRIVE[0], camera="front").json()
    assert not {"node", "loop"} & set(plain)
    assert nodes(client, "front", 3, min_confidence=1) == [(3, None), (4, None), (5, 0)]  # also if hits are withheld


def test_loops_start_over_after_a_reset_and_when_the_stream_is_full(client, simple, monkeypatch):
    monkeypatch.setattr(kept, "LOOP_FRAMES", 4)
    assert [node for node, _ in nodes(client, "front", 6)] == [0, 1, 2, 3, 0, 1]
    client.delete("/v1/cameras/front")
    assert nodes(client, "front", 1) == [(0, None)]


def test_the_least_recent_of_five_cameras_starts_over(client, simple):
    for name in "abcd":
        nodes(client, name, 1)
    assert nodes(client, "a", 1) == [(1, None)]
    nodes(client, "e", 1)
    assert nodes(client, "a", 1) == [(2, 0)]
    assert nodes(client, "b", 1) == [(0, None)]


def test_loops_are_those_of_a_closer(client, monkeypatch):
    monkeypatch.setattr(kept, "LoopCloser", lambda encoder: LoopCloser(encoder, GAP))
    rng = np.random.default_rng(4)
    places = rng.integers(0, 2, (LAP, 8, 8, 3)) * 220
    blocks = [(places[row % LAP] + rng.integers(0, 35, (8, 8, 3))).astype(np.uint8) for row in range(2 * LAP)]
    photos = [Image.fromarray(one).resize((28, 28), Image.Resampling.NEAREST) for one in blocks]
    files = []
    for photo in photos:
        content = io.BytesIO()
        photo.save(content, "PNG")
        files.append(("images", ("frame.png", content.getvalue())))
    answers = []
    for start in range(0, len(files), 50):
        sent = files[start : start + 50]
        done = client.post("/v1/query/batch", files=sent, data={"camera": "front", "loops": "true"})
        assert done.status_code == 200, done.text
        answers += done.json()["answers"]
    closer = LoopCloser(FakeEncoder(), GAP)
    for photo in photos:
        closer.step(photo)
    assert [answer["node"] for answer in answers] == list(range(2 * LAP))
    expected = [replace(loop, query_image="", match_image="").to_dict() for loop in closer.loops]
    assert [answer["loop"] for answer in answers if "loop" in answer] == expected
    assert len(closer.loops) > 10
