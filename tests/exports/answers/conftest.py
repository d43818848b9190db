"""Answers of every kind to real files: sure, doubtful, without a position, lost, not readable."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.fakes import random_image
from tfa.types import Answer, Hit, Place, Position

TAKEN = 1_748_772_000_250_000_000  # 2025-06-01T10:00:00.25Z
DEGREES = Position(lat=52.5, lon=13.25, alt=34.5, heading=120.0)
METRES = Position(x=381_000.25, y=5_818_000.5, alt=34.5, heading=120.0)
ODD = 'ä, "b"\n.png'  # a name with everything that separates


def exif(clock: str) -> Image.Exif:
    """Of a camera two hours ahead of UTC, a quarter of a second after that."""
    made = Image.Exif()
    made.get_ifd(0x8769).update({0x9003: clock, 0x9291: "25", 0x9011: "+02:00"})
    return made


def answers_in(folder: Path, position: Position) -> list[Answer]:
    """Five answers; the first and the last are sure, and all positions are near this one."""
    random_image(1).save(folder / "a.jpg", exif=exif("2025:06:01 12:00:00"))
    random_image(2).save(folder / ODD)
    random_image(3).save(folder / "d.webp")
    random_image(4).save(folder / "e.jpg", exif=exif("2025:06:01 12:00:07"))
    (folder / "c.jpg").write_bytes(b"\xff\xd8\xff nonsense")
    first, second = position.pair
    pair = ("lat", "lon") if position.is_global else ("x", "y")
    there = Position(**dict(zip(pair, (first + 1e-5, second - 1e-5), strict=True)))
    hits = [
        Hit(id=3, image="map/3.png", score=1.5, confidence=0.97, position=position, inliers=12, sure=True),
        Hit(id=4, image="map/4.png", score=0.25, confidence=0.5, position=None, inliers=3),
    ]
    verdict = {"verdict": "recognized", "reason": "its patches match"}
    sure = {**verdict, "sure": True, "reranked": True, "place": Place(position=there, radius=12.5, share=0.9, images=3)}
    return [
        Answer(query=str(folder / "a.jpg"), hits=hits, confidence=0.97, **sure),
        Answer(
            query=str(folder / ODD), confidence=0.4, place_missing="no answer was reranked",
            hits=[Hit(id=5, image="map/5.png", score=0.5, confidence=0.4, position=position)],
        ),
        Answer(query=str(folder / "c.jpg"), hits=[], confidence=0.0, error="c.jpg cannot be opened"),
        Answer(query=str(folder / "d.webp"), hits=[], confidence=0.2, lost=0.75, place_missing="the camera is lost"),
        Answer(query=str(folder / "e.jpg"), hits=hits, confidence=0.97, **sure),
    ]  # fmt: skip


@pytest.fixture
def answers(tmp_path):
    return answers_in(tmp_path, DEGREES)


@pytest.fixture
def in_metres(tmp_path):
    return answers_in(tmp_path, METRES)
