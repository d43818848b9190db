"""A map that answers without an encoder: the command line is tested apart from what it calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

import tfa.maps
from tfa.errors import BadImage, BadMap
from tfa.maps.records import CalibrationReport
from tfa.photos.positions import Position


@dataclass
class StubHit:
    id: int
    image: str
    score: float
    confidence: float
    position: Position | None
    matches: int | None = None

    @property
    def sure(self) -> bool:
        return self.matches is not None

    def to_dict(self) -> dict[str, Any]:
        position = None if self.position is None else self.position.to_dict()
        return {**vars(self), "position": position}


@dataclass
class StubAnswer:
    query: str
    hits: list[StubHit]
    confidence: float
    error: str | None = None


@dataclass
class StubReport:
    added: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _verification(admitted: bool) -> dict[str, Any]:
    reason = "used: with it 70.0" if admitted else "not used: with it 61.2; it must cover more of the map"
    numbers = {
        "without": {"support": 61.5, "agreement": [0.5] * 3},
        "with": {"support": 61.25, "agreement": [0.75] * 3},
    }
    return {"admitted": admitted, **numbers, "rows": 90, "reason": reason}


class StubMap:
    """Notes the calls a PlaceMap would get; a photo named `bad*` cannot be read, `far*` is no place."""

    calls: list[tuple[str, Any]]
    raises: BaseException | None

    def __init__(self) -> None:
        self.notes = ["2 rows of where.csv match no image (first: x.jpg)"]
        self.skipped = [("photos/[b]roken.jpg", "image file is truncated")]
        self.assignment = "hard"
        self.calibrated = "night"

    @classmethod
    def _call(cls, name: str, /, **given: Any) -> None:
        cls.calls.append((name, given))
        if cls.raises is not None:
            raise cls.raises

    @classmethod
    def build(cls, photos: Any, **given: Any) -> StubMap:
        cls._call("build", photos=photos, **given)
        return cls()

    @classmethod
    def load(cls, path: Any, verify: bool = True, encoder: Any = None) -> StubMap:
        if not Path(path).exists():
            raise BadMap(f"{path} does not exist; build it with: tfa build PHOTOS --out {path}")
        cls._call("load", path=path)
        return cls()

    def save(self, path: Any, overwrite: bool = False) -> None:
        self._call("save", path=path, overwrite=overwrite)
        Path(path).mkdir(exist_ok=overwrite)

    def use_encoder(self, **given: Any) -> None:
        self._call("use_encoder", **given)

    def query_many(
        self, photos: Any, k: int, min_confidence: float, progress: bool, calibration: str | None = None,
        verify: bool | None = None, candidates: int | None = None,
    ) -> list[StubAnswer]:  # fmt: skip
        given = {"min_confidence": min_confidence, "progress": progress, "calibration": calibration}
        self._call("query_many", photos=photos, k=k, **given, verify=verify, candidates=candidates)
        verified = (candidates or 20) if verify else 0
        return [self._answer(Path(photo), k, min_confidence, verified) for photo in photos]

    def _answer(self, photo: Path, k: int, min_confidence: float, verified: int) -> StubAnswer:
        if photo.name.startswith("bad") or not photo.exists():
            return StubAnswer(str(photo), [], 0.0, str(BadImage(f"{photo}: cannot be read")))
        confidence = 0.12 if photo.name.startswith("far") else 0.9
        positions = [Position(lat=52.5163, lon=13.3777), None]
        hits = [
            StubHit(i, f"photos/{i}.jpg", 1.5 - i, confidence, positions[i % 2], 120 - i if i < verified else None)
            for i in range(k)
        ]
        return StubAnswer(str(photo), hits if confidence >= min_confidence else [], confidence)

    def add(self, photos: Any, **given: Any) -> StubReport:
        self._call("add", photos=photos, **given)
        return StubReport(added=[90, 91], skipped=self.skipped, notes=["21 % of the images were not seen"])

    def remove(self, images: Any) -> StubReport:
        self._call("remove", images=images)
        return StubReport(removed=[17])

    def refit(self, device: str = "cpu", progress: bool = False) -> None:
        self._call("refit", device=device, progress=progress)
        self.assignment = "soft"

    def calibrate(self, photos: Any, name: str, **given: Any) -> CalibrationReport:
        self._call("calibrate", photos=photos, name=name, **given)
        self.calibrated = name
        notes = ["70 photos are more than the budget: 64 were drawn"]
        return CalibrationReport(name, 64, 70, self.skipped, notes, {}, {})

    def __len__(self) -> int:
        return 92

    def _calibration(self, name: str, active: bool) -> dict[str, Any]:
        return {
            "name": name,
            "active": active,
            "calibration": {
                "given": 70, "used": 64, "budget": 64, "score": active, "digests": ["ab"] * 64, "revision": 2,
            },
            "decisions": {
                "route": "mixture" if active else "hard", "soft_weight": 0.25, "carrier": "partial",
                "strengths": {"hard": {"c": 0.25, "beta": 0.5}}, "admit_cls": active, "local_weight": 0.625,
                "sigma_local": [0.1] * 3, "sigma_cls": [0.1] * 3, "score_calibrated": active,
            },
            "reasons": {
                "route": "anchor mass speaks for a mixture", "carrier": "more distinct images",
                "admit_cls": "quality 0.8", "strengths": "target and map correlate", "score": "64 photos",
            },
            "evidence": {"target_images": 64},
            "saw": "target",
            "verification": _verification(active),
            "differences": ["the carrier is partial instead of adaptive"] if active else [],
        }  # fmt: skip

    def info(self) -> dict[str, Any]:
        return {
            "name": "town",
            "path": "town.tfa",
            "format_version": 1,
            "encoder": {"id": "dinov2-s14-focus@322", "fingerprint": "abc"},
            "images": 92,
            "fitted_images": 90,
            "unseen_share": 0.02,
            "spec": {"words": 64},
            "decisions": {
                "assignment": self.assignment, "carrier": "adaptive", "admit_cls": True,
                "c": 0.3125, "beta": 0.5, "sigma_local": [0.1, 0.2, 0.3], "sigma_cls": [0.0, 0.0, 0.0],
            },
            "reasons": {
                "assignment": "soft agrees more", "carrier": "widest support",
                "admit_cls": "CLS adds information", "strengths": "from the spectrum",
            },
            "evidence": {
                "pseudo_queries": 90,
                "assignments": {"hard": {"rho": [0.9, 0.8, 0.7], "c": 0.25}, "soft": {"rho": [0.5] * 3}},
                "candidates": {"hard/partial": {"support": 61.25, "agreement": [0.5, 0.75, 1.0]}},
                "reasons": {"carrier": "widest support"},
            },
            "saw": "database",
            "storage": "float16",
            "verification": {
                "spec": {"candidates": 20}, "grid": [23, 23], "bytes_per_image": 67_712, **_verification(False),
            },
            "bytes": 12_345_678,
            "positions": 88,
            "calibrations": [self._calibration("day", False), self._calibration(self.calibrated, True)],
            "notes": list(self.notes),
            "seconds": {"encode": 12.34, "fit": 5.0},
        }  # fmt: skip

    @classmethod
    def given(cls, name: str) -> dict[str, Any]:
        """What the one call of that name was given."""
        [found] = [given for called, given in cls.calls if called == name]
        return found


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> type[StubMap]:
    fresh = type("FreshStub", (StubMap,), {"calls": [], "raises": None})
    monkeypatch.setattr(tfa.maps, "PlaceMap", fresh, raising=False)
    return fresh


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch):
    """`run("build", ...)`: the outcome of a command, without colours and with room for long lines."""
    from tfa.cli.app import app

    for name, value in {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200", "TERMINAL_WIDTH": "200"}.items():
        monkeypatch.setenv(name, value)
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args], prog_name="tfa")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with photos, a map and a positions file."""
    monkeypatch.chdir(tmp_path)
    for name in ("photos/a.jpg", "photos/sub/b.jpg", "near.jpg", "far.jpg", "bad.jpg"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(path)
    (tmp_path / "town.tfa").mkdir()
    (tmp_path / "where.csv").write_text("file,lat,lon\na.jpg,1,2\n")
    return tmp_path
