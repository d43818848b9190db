"""The script merge.py: two sessions of one route, alone and merged."""

from __future__ import annotations

import json

import pytest

from studies import merge
from tests.maps.conftest import photo

FRAMES = 16


def write_route(root, frames: int = FRAMES, apart: int = 1):
    """A place for every two frames: the odd frame shows that of the even one before it. The second day is darker."""
    for frame in range(frames):
        for day, light in (("database", 1.0), ("queries", 0.6)):
            photo(root / day / f"{frame:02}.png", frame // 2, light=light - 0.02 * (frame % 2))
    listed = {f"{i:02}.png": [f"{j:02}.png" for j in range(frames) if abs(i - j) < apart + 1] for i in range(frames)}
    (root / "positives.json").write_text(json.dumps(listed))
    return root


def test_each_session_is_asked_of_each_map(script, fake_encoder):
    write_route(fake_encoder / "route")
    done = script(merge.main, "--dataset=route=route", "--out", "merged.json")
    assert done.exit_code == 0, done.output
    [told] = json.loads((fake_encoder / "merged.json").read_text("utf-8"))
    assert told["images"] == {"first": FRAMES // 2, "second": FRAMES // 2, "merged": FRAMES}
    assert told["queries"] == {"first": FRAMES // 2, "second": FRAMES // 2}
    for session in ("first", "second"):
        own = told["recalls"][session]
        assert own[session]["recall"] == 1.0  # the frame before it differs by nearly nothing
        assert own["merged"]["recall"] == 1.0
        assert all(one["low"] <= one["recall"] <= one["high"] for one in own.values())
        assert all(one["sure_right"] <= one["sure"] <= FRAMES // 2 for one in own.values())
    assert told["overlap"]["right"] <= told["overlap"]["matched"] <= told["overlap"]["queries"] == FRAMES // 2
    assert "| route | second | 8 |" in done.stdout
    assert "route, fake@28: maps of 8, 8 and 16 photos" in done.stdout


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda root: (root / "database" / "15.png").unlink(), "has 15 database images and 16 queries"),
        (lambda root: (root / "positives.json").write_text(
            json.dumps({f"{i:02}.png": [f"{(i + 1) % 16:02}.png"] for i in range(16)})), "query 0 does not show"),
    ],
)  # fmt: skip
def test_what_is_not_seen_frame_by_frame_is_refused(script, fake_encoder, broken, message):
    root = write_route(fake_encoder / "route")
    listed = {f"{i:02}.png": ["00.png"] for i in range(FRAMES)}
    (root / "positives.json").write_text(json.dumps(listed))
    broken(root)
    done = script(merge.main, "--dataset=route=route")
    assert done.exit_code != 0
    assert message in " ".join(done.stderr.split())
    assert not (fake_encoder / "cache").exists()
