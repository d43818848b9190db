"""Made-up answers of a service, in the shapes of its contract: enough for every view of the page."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from tfa.core.text import list_rules
from tfa.types import Answer, Hit, ImageRecord, Place, Position

GRID = (8, 10)  # rows, columns of patches
HOSTILE = '<img src=x onerror="document.title=1">.jpg'  # a name that must stay text


@cache
def street(seed: int, size: tuple[int, int] = (400, 300)) -> bytes:
    """A small JPEG that looks a little like a street, another one for each seed."""
    rng = np.random.default_rng(seed)
    picture = Image.new("RGB", size, tuple(int(value) for value in rng.integers(150, 230, 3)))
    brush = ImageDraw.Draw(picture)
    brush.rectangle((0, 220, 400, 300), fill=(90, 90, 95))
    left = 0
    while left < size[0]:
        width, top = int(rng.integers(40, 90)), int(rng.integers(30, 150))
        brush.rectangle((left, top, left + width, 225), fill=tuple(int(value) for value in rng.integers(50, 200, 3)))
        for row in range(top + 12, 205, 26):
            for column in range(left + 8, left + width - 12, 20):
                brush.rectangle((column, row, column + 9, row + 13), fill=(240, 225, 150))
        left += width
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=80)
    return file.getvalue()


class StubMap:
    """Photos of a made-up town along a loop, and a head that a calibration changes."""

    def __init__(self, name: str, photos: int = 30, globe: bool = True) -> None:
        self.name, self.globe, self.revision = name, globe, 1
        self.photos = {i: {"image": f"street-{i:03d}.jpg", "seed": i, "fitted": True} for i in range(photos)}
        self.photos[3]["image"] = HOSTILE
        self.next_id = photos
        self.calibrations: list[str] = []
        self.active: str | None = None
        self.editable = True
        self.linearised = False  # a second-order head: no words

    def position(self, key: int) -> dict[str, float]:
        turn = 2 * np.pi * key / 30
        east, north = 180 * np.cos(turn) + 9 * np.sin(7 * turn), 110 * np.sin(turn)
        if not self.globe:
            return {"x": float(east), "y": float(north)}
        return {"lat": 52.5 + float(north) / 111_195, "lon": 13.3 + float(east) / 67_690}

    def record(self, key: int) -> dict[str, Any]:
        photo = self.photos[key]
        return ImageRecord(
            id=key, path=photo["image"], digest=f"{key:064x}", fitted=photo["fitted"], image_url=self.address(key),
            position=Position(**self.position(key)),
        ).to_dict()  # fmt: skip

    def address(self, key: int) -> str:
        return f"/v1/images/{key}/file?map={self.name}"

    def shown(self, key: int) -> dict[str, Any]:
        """An image of a report."""
        return {"id": key, "image": self.photos[key]["image"], "image_url": self.address(key)}

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name, "revision": self.revision, "images": len(self.photos), "encoder": {"id": "fake@28"},
            "positions": len(self.photos),
            "decisions": BEFORE, "reasons": REASONS, "editable": self.editable, "rules": list_rules(),
            "decided": DECIDED,
            "calibrations": [
                {"name": n, "active": n == self.active, "decisions": AFTER, "decided": DECIDED_AFTER}
                for n in self.calibrations
            ],
        }  # fmt: skip

    def positions(self) -> dict[str, Any]:
        first, second = ("lon", "lat") if self.globe else ("x", "y")
        where = {key: self.position(key) for key in self.photos}
        points = [[key, place[first], place[second]] for key, place in where.items()]
        return {"kind": "latlon" if self.globe else "xy", "points": points}

    def answer(self, k: int, min_confidence: float, camera: str | None = None, seen: int = 0) -> dict[str, Any]:
        hits = []
        for rank, key in enumerate(list(self.photos)[2 : 2 + k]):
            confidence = 0.97 * 0.62**rank
            hits.append(
                Hit(
                    id=key,
                    image=self.photos[key]["image"],
                    image_url=self.address(key),
                    inliers=max(12 - 4 * rank, 0),
                    score=0.81 - 0.07 * rank,
                    confidence=confidence,
                    sure=confidence > 0.9,
                    position=Position(**self.position(key)),
                )
            )
        answer = Answer(
            hits=hits if hits[0].confidence >= min_confidence else [], confidence=0.97, sure=True, reranked=True,
            verdict="recognized", reason="its patches match one place far better than others",
            place=Place(position=Position(**self.position(hits[0].id)), radius=8.2, share=0.95, images=2),
            calibration=self.active, seconds=0.012, camera=camera, adaptation_photos=None if camera is None else seen,
        )  # fmt: skip
        return answer.to_dict()

    def why(self, key: int) -> dict[str, Any]:
        rows, columns = GRID
        down, right = np.mgrid[0:rows, 0:columns]
        heat = 0.02 * np.exp(-((down - 3) ** 2 + (right - 4) ** 2) / 5) - 0.003 * (down > 6)
        words = [
            {"word": 7 * w + 3, "contribution": 0.12 * 0.7**w * (-1 if w == 4 else 1),
             "query_patches": [20 + w, 31 + w], "image_patches": [21 + w]}
            for w in range(6)
        ]  # fmt: skip
        matches = [[r, c, r, c + 1] for r, c in ((1, 2), (2, 3), (3, 4), (3, 6), (4, 1), (5, 5))]
        terms = [{"name": "local", "contribution": 0.61}, {"name": "global token", "contribution": 0.2}]
        return {
            "id": key, "score": 0.81, "grid": [rows, columns], "query_heat": heat.tolist(),
            "image_heat": np.roll(heat, 1, axis=1).tolist(), "words": [] if self.linearised else words,
            "linearised": self.linearised, "terms": terms, "matches": matches,
            "image_url": self.address(key),
        }  # fmt: skip

    def report(self) -> dict[str, Any]:
        return {
            "headline": "30 photos, 1 near-duplicate group, expected recall 91 %, calibrate for night",
            "advice": ["Calibrate: tfa calibrate town.tfa PHOTOS"], "recall": [], "lonely": [], "rules": list_rules(),
            "duplicates": [{"images": [self.shown(1), self.shown(2)]}],
            "hubs": [{**self.shown(3), "returned_by": 44}], "least_alike": [{**self.shown(5), "cosine": 0.2}],
        }  # fmt: skip


BEFORE = {"assignment": "soft", "carrier": "partial", "admit_cls": True, "c": 0.25, "beta": 0.51}
AFTER = {
    "route": "soft", "carrier": "adaptive", "strengths": {"soft": {"c": 0.31, "beta": 0.18}}, "admit_cls": False,
    "local_weight": 0.57, "score_calibrated": False, "soft_weight": 1.0,
}  # fmt: skip
REASONS = {
    "assignment": "soft: hard reaches 8.3 distinct images, soft 9.0; hard is used only if it covers more of the map",
    "strengths": "spectral shaping c = 0.2500 and centring β = 0.5133: the energy of the halves correlates 0.64",
    "carrier": "partial: it covers as much as the adaptive kernel and agrees more",
    "admit_cls": "used: with it 9.3 distinct images, without 9.0",
}
NEAR = {"standard_errors": 0.6, "within_noise": True, "text": "0.6 standard errors from flipping, within noise (x)"}
DECIDED, DECIDED_AFTER = (
    [
        {"name": name, "choice": choice, "reason": REASONS[key], "margin": NEAR if key == "assignment" else None}
        for key, name, choice in zip(REASONS, ("assignment", "strengths", "carrier", "global token"), made, strict=True)
    ]
    for made in (("soft", "c 0.250, β 0.513", "partial", "used"), ("soft", "c 0.310, β 0.180", "adaptive", "left out"))
)
