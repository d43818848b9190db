"""What every speed benchmark comes to: lines of seconds, of the floor they are compared with, and of their ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

COLUMNS = ("", "time", "floor", "ratio", "bar", "met", "peak memory", "on disk")
UNKNOWN = "–"


@dataclass(frozen=True)
class Bar:
    """The ratio that is required: at most `allowed`, or at least that where the ratio says how much is gained."""

    allowed: float
    at_least: bool = False

    def met(self, ratio: float) -> bool:
        return ratio >= self.allowed if self.at_least else ratio <= self.allowed

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.allowed:g}"


@dataclass(frozen=True)
class Line:
    """One measurement. What does not apply is None; `note` says why, or what else there is to know."""

    what: str
    seconds: float | None = None
    floor: float | None = None  # seconds
    ratio: float | None = None
    bar: Bar | None = None
    peak_bytes: int | None = None
    disk_bytes: int | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """None where nothing is required or nothing measured."""
        return None if self.bar is None or self.ratio is None else self.bar.met(self.ratio)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Line:
        given = {name: value for name, value in values.items() if name != "met"}
        bar = given.get("bar")
        return cls(**{**given, "bar": None if bar is None else Bar(**bar)})


@dataclass(frozen=True, kw_only=True)
class OverFloor:
    """A result that is one time beside its floor."""

    seconds: float
    floor: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.floor

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


class HasLines(Protocol):
    """A result of a benchmark that makes its own lines."""

    def lines(self) -> Sequence[Line]: ...

    def to_dict(self) -> dict[str, Any]: ...


def compared(
    what: str,
    seconds: float,
    floor: float,
    bar: Bar | None = None,
    *,
    peak_bytes: int | None = None,
    disk_bytes: int | None = None,
    note: str = "",
) -> Line:
    """A line whose ratio is time over floor; floor over time, which is the gain, where the bar is `at_least`."""
    gain = bar is not None and bar.at_least
    over, under = (floor, seconds) if gain else (seconds, floor)
    return Line(what, seconds, floor, over / under if under > 0 else None, bar, peak_bytes, disk_bytes, note)


def cells(line: Line) -> tuple[str, ...]:
    """The line under `COLUMNS`; its note goes with the name."""
    met = {True: "yes", False: "no", None: ""}[line.met]
    return (
        f"{line.what} ({line.note})" if line.note else line.what,
        format_seconds(line.seconds),
        format_seconds(line.floor),
        UNKNOWN if line.ratio is None else f"{line.ratio:.2f}",
        "" if line.bar is None else str(line.bar),
        met,
        format_bytes(line.peak_bytes),
        format_bytes(line.disk_bytes),
    )


def listed(what: str, rows: Sequence[tuple[str, str]]) -> str:
    """Names and values under a heading."""
    return "\n".join([what, "", *(f"{name:<44}{value:>20}" for name, value in rows)])


def format_seconds(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    for least, factor, unit in ((1.0, 1.0, "s"), (1e-3, 1e3, "ms")):
        if seconds >= least:
            return f"{seconds * factor:.3g} {unit}" if seconds * factor < 100 else f"{seconds * factor:.0f} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def format_bytes(count: int | None) -> str:
    if count is None:
        return UNKNOWN
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"
