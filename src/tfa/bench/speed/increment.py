"""Adding one photo to a large map on disk: the time beside encoding, and what of the map it writes."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfa.bench.speed.fit import synthetic_tokens
from tfa.bench.speed.measure import thread_count
from tfa.bench.speed.result_line import COLUMNS, Bar, Line, cells, compared
from tfa.bench.speed.synthetic_maps import synthetic_head
from tfa.bench.speed.synthetic_states import SyntheticEncoder, synthetic_state
from tfa.bench.speed.verify import squarest
from tfa.core.progress import Progress, as_progress
from tfa.maps import PlaceMap
from tfa.maps.storage import MemoryStorage
from tfa.maps.stored_head import INTEGERS
from tfa.photos.token_cache import TokenCache

ALLOWED = 0.050  # seconds beside the encode


@dataclass(frozen=True)
class IncrementBenchmark:
    """Seconds of one addition. Its encoder gives tokens at once."""

    carrier: str
    storage: str
    images: int
    threads: int
    seconds: float  # the shortest
    slowest: float
    first_seconds: float  # in a process that has just opened the map
    encode_seconds: float  # of them reading the photo and keeping its tokens: part of any encode
    written_bytes: int  # by one addition
    map_bytes: int
    untouched: bool  # is every file that was there before still the same?

    @property
    def own_seconds(self) -> float:
        return self.seconds - self.encode_seconds

    def lines(self) -> list[Line]:
        what = f"one photo more in {self.images:,} ({self.carrier}, {self.storage})"
        kept = "no file rewritten but the header" if self.untouched else "files were rewritten"
        note = f"{kept}; the floor is what is allowed"
        return [
            compared(what, self.own_seconds, ALLOWED, Bar(1.0), disk_bytes=self.written_bytes, note=note),
            Line("the same, just after the map was opened", self.first_seconds - self.encode_seconds),
            Line("the map itself", disk_bytes=self.map_bytes),
        ]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "own_seconds": self.own_seconds}

    def __str__(self) -> str:
        rows = [COLUMNS, *map(cells, self.lines())]
        return "\n".join(f"{row[0]:<100}{row[1]:>10}{row[2]:>10}{row[3]:>7}{row[7]:>12}" for row in rows)


def run_increment_benchmark(
    *,
    images: int = 10_000,
    carrier: str = "adaptive",
    storage: str = INTEGERS,
    words: int = 64,
    channels: int = 384,
    patches: int = 529,
    additions: int = 6,
    progress: bool | Progress | None = None,
) -> IncrementBenchmark:
    """Save a made-up map, open it, and add photos to it one after the other."""
    encoder = SyntheticEncoder(np.asarray(synthetic_tokens(1, patches, channels).patches[0]), squarest(patches))
    with as_progress(progress).task("adding", additions) as task, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        head = synthetic_head(images, carrier, words=words, channels=channels, storage=storage)
        PlaceMap(MemoryStorage(synthetic_state(head, encoder))).save(folder / "made.tfa")
        del head
        opened = PlaceMap.load(folder / "made.tfa", encoder=encoder)
        opened.cache = TokenCache(folder / "cache")
        before = _files(folder / "made.tfa")
        times, encodes = [], []
        for number in range(additions):
            photo = _photo(folder, number)
            encodes.append(_seconds(lambda photo=photo: opened.cache.encode([photo], encoder)))
            photo = _photo(folder, additions + number)
            times.append(_seconds(lambda photo=photo: opened.add([photo])))
            if number == 0:
                opened.prepare()
            task.advance()
        after = _files(folder / "made.tfa")
        fresh = [size for file, (size, _) in after.items() if file not in before]
        header = after["map.json"][0]
        return IncrementBenchmark(
            carrier=carrier,
            storage=storage,
            images=images,
            threads=thread_count(),
            seconds=min(times[1:] or times),
            slowest=max(times[1:] or times),
            first_seconds=times[0],
            encode_seconds=min(encodes),
            written_bytes=sum(fresh) // additions + header,
            map_bytes=sum(size for size, _ in after.values()),
            untouched=all(after.get(file) == state for file, state in before.items() if file != "map.json"),
        )


def _photo(folder: Path, number: int) -> Path:
    """A small picture of its own content."""
    from PIL import Image

    path = folder / f"{number}.png"
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (48, 64, 3), np.uint8)).save(path)
    return path


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of each file."""
    return {file.name: (file.stat().st_size, file.stat().st_mtime_ns) for file in folder.iterdir()}


def _seconds(call: Any) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
