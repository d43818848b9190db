"""Time queries, a cold start, edits, and the size of a map."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from studies.speed.fit import synthetic_tokens
from studies.speed.measure import COLUMNS, Bar, Line, cells, compared, format_bytes, measure_in_turn, thread_count
from studies.speed.photo import squarest, synthetic_photo
from studies.speed.second_order import CACHES, JudgedQuery, K, timed_beside_paper
from studies.speed.synthetic import (
    SyntheticEncoder,
    arrays_read,
    numbers_read,
    second_order_head,
    synthetic_head,
    synthetic_spaces,
    synthetic_state,
    weight,
)
from tfa.core.arrays import backend_for
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.encoders import DEFAULT_ENCODER, Encoder, load_encoder
from tfa.encoders.catalogue import fast_fingerprint
from tfa.encoders.onnx_encoder import graph_path
from tfa.maps import PlaceMap
from tfa.maps.storage import MemoryStorage
from tfa.maps.stored_head import INTEGERS
from tfa.method.carriers import PAPER_CARRIERS
from tfa.method.described_queries import DescribedQueries
from tfa.method.residuals import describe_residuals
from tfa.method.scorer import Scorer, as_residual_side
from tfa.photos.token_cache import EncodedImages, TokenCache
from tfa.pipeline import fit_second_order
from tfa.search.gallery import top_k
from tfa.types import STORAGES

_SIZE_BAR = Bar(4.0, at_least=True)
SECOND_ORDER = "second-order, tempered"
ALLOWED_BYTES = {607: 9500, 20_000: 5000}  # allowed bytes per image of a judged map, by number of images


@dataclass(frozen=True)
class MapSize:
    """Bytes on disk of one map, without the optional compact tokens."""

    carrier: str
    storage: str
    images: int
    disk_bytes: int
    descriptor_bytes: int  # per image in AnyLoc: 4 · words · channels

    @property
    def bytes_per_image(self) -> float:
        return self.disk_bytes / self.images

    @property
    def ratio(self) -> float:
        return self.descriptor_bytes / self.bytes_per_image

    @property
    def bar(self) -> Bar | None:
        """Required factor between the size of descriptors and of integers."""
        if self.storage != INTEGERS:
            return None
        if self.carrier != SECOND_ORDER:
            return _SIZE_BAR
        allowed = ALLOWED_BYTES.get(self.images)
        return None if allowed is None else Bar(round(self.descriptor_bytes / allowed, 2), at_least=True)


@dataclass(frozen=True)
class MapSizeBenchmark:
    words: int
    channels: int
    sizes: tuple[MapSize, ...]

    def lines(self) -> list[Line]:
        return [
            Line(
                f"{size.carrier}, {size.storage}, {size.images:,} images",
                ratio=size.ratio,
                bar=size.bar,
                disk_bytes=size.disk_bytes,
                note=f"{size.bytes_per_image:,.0f} bytes an image; float32 descriptors {size.descriptor_bytes:,}",
            )
            for size in self.sizes
        ]

    def to_dict(self) -> dict[str, Any]:
        more = [{"bytes_per_image": size.bytes_per_image, "ratio": size.ratio} for size in self.sizes]
        values = asdict(self)
        return {**values, "sizes": [{**size, **extra} for size, extra in zip(values["sizes"], more, strict=True)]}

    def __str__(self) -> str:
        lines = [f"{self.words} words × {self.channels} channels", ""]
        lines.append(f"{'carrier':<24}{'storage':<10}{'images':>8}{'map':>12}{'an image':>12}{'times smaller':>16}")
        for size in self.sizes:
            lines.append(
                f"{size.carrier:<24}{size.storage:<10}{size.images:>8,}{format_bytes(size.disk_bytes):>12}"
                f"{size.bytes_per_image:>12,.0f}{size.ratio:>16.2f}"
            )
        return "\n".join(lines)


def run_map_size_benchmark(
    *,
    sizes: Sequence[int] = (607,),
    carriers: Sequence[str] = PAPER_CARRIERS,
    storages: Sequence[str] = STORAGES,
    second_order_sizes: Sequence[int] = (607,),
    words: int = 64,
    channels: int = 384,
    progress: bool | Progress | None = None,
) -> MapSizeBenchmark:
    """Write synthetic maps and measure their files; maps of a second-order head have their own sizes."""
    paper = [(images, carrier) for images in sizes for carrier in carriers]
    wanted = [*paper, *((images, SECOND_ORDER) for images in second_order_sizes)]
    weighed = []
    with as_progress(progress).task("writing", len(wanted) * len(storages)) as task:
        for images, carrier in wanted:
            for storage in storages:
                if carrier == SECOND_ORDER:
                    spaces = synthetic_spaces(images, channels, storage)
                    state = synthetic_state(second_order_head(spaces), spaces=spaces)
                else:
                    head = synthetic_head(images, carrier, words=words, channels=channels, storage=storage)
                    state = synthetic_state(head)
                weighed.append(MapSize(carrier, storage, images, weight(state), 4 * words * channels))
                task.advance()
    return MapSizeBenchmark(words, channels, tuple(weighed))


ALLOWED = 0.050  # seconds besides encoding


@dataclass(frozen=True)
class IncrementBenchmark:
    """Seconds of one addition, with an encoder that takes no time."""

    carrier: str
    storage: str
    images: int
    threads: int
    seconds: float  # the shortest
    slowest: float
    first_seconds: float  # in a process that has just opened the map
    encode_seconds: float  # part of them for reading the photo and caching its tokens, included in any encoding
    written_bytes: int  # by one addition
    map_bytes: int
    untouched: bool  # True if all existing files are unchanged

    @property
    def tfa_seconds(self) -> float:
        return self.seconds - self.encode_seconds

    def lines(self) -> list[Line]:
        what = f"one photo more in {self.images:,} ({self.carrier}, {self.storage})"
        kept = "no file rewritten but the header" if self.untouched else "files were rewritten"
        note = f"{kept}; the floor is what is allowed"
        return [
            compared(what, self.tfa_seconds, ALLOWED, Bar(1.0), disk_bytes=self.written_bytes, note=note),
            Line("the same, just after opening the map", self.first_seconds - self.encode_seconds),
            Line("the map itself", disk_bytes=self.map_bytes),
        ]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "own_seconds": self.tfa_seconds}

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
    """Save a synthetic map, open it, and add photos one by one."""
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
    """Write a small image with unique content."""
    from PIL import Image

    path = folder / f"{number}.png"
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (48, 64, 3), np.uint8)).save(path)
    return path


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and modification time of each file."""
    return {file.name: (file.stat().st_size, file.stat().st_mtime_ns) for file in folder.iterdir()}


def _seconds(call: Any) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


PHOTO = (640, 480)
SEEDS = 16  # photos that are encoded; the map contains these with noise
# Floor: the least work of any program that runs this model with onnxruntime on one photo.
_FLOOR = """
import sys, numpy, onnxruntime
from PIL import Image
graph = open(sys.argv[1], "rb").read()[32:]
session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
shape = session.get_inputs()[0].shape
pixels = numpy.asarray(Image.open(sys.argv[2]).resize((shape[3], shape[2])), numpy.float32)
session.run(None, {"pixels": pixels.transpose(2, 0, 1)[None] / 255})
"""
# `tfa` as called from a shell, reporting its peak memory at the end. The system's count for a child starts
# with the memory of the process that started it.
VERB = """
import atexit, runpy
def peak():
    with open("/proc/self/status") as status:
        print(next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM")))
atexit.register(peak)
"""
_AS_VERB = VERB + 'runpy.run_module("tfa", run_name="__main__")'
# The steps of the command, timed separately.
STEPS = """
import json, sys, time
def done(what): steps.append((what, time.time() - float(sys.argv[3])))
steps = []
from tfa.types import EncoderOptions
from tfa.cli import app
from tfa.maps import PlaceMap
done("Python and imports")
place_map = PlaceMap.load(sys.argv[1])
done("opening the map")
place_map.use_encoder(EncoderOptions(precision=sys.argv[4]))
place_map.encoder
done("loading the encoder")
from tfa.core.tokens import Tokens
from tfa.photos.images import as_rgb
tokens = Tokens(*place_map.encoder.encode([as_rgb(sys.argv[2])]), grid=place_map.encoder.grid)
done("encoding the photo")
place_map.query_tokens(tokens)
done("search and verification")
print(json.dumps(steps))
"""


@dataclass(frozen=True)
class ColdQuery:
    """One way to query: the fastest of several runs."""

    what: str
    seconds: float
    peak_bytes: int
    floor: float
    steps: dict[str, float]  # seconds each


@dataclass(frozen=True)
class ColdBenchmark:
    images: int
    ways: tuple[ColdQuery, ...]

    def lines(self) -> list[Line]:
        made = []
        for way in self.ways:
            made.append(compared(way.what, way.seconds, way.floor, peak_bytes=way.peak_bytes))
            made += [Line(f"{way.what}: {step}", seconds) for step, seconds in way.steps.items()]
        return made

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_cold_benchmark(
    *, images: int = 1000, repeats: int = 5, progress: bool | Progress | None = None
) -> ColdBenchmark:
    """Query a synthetic map of `images` images with a synthetic photo and the default encoder, with reranking."""
    encoder = load_encoder(DEFAULT_ENCODER, precision="int8", progress=progress)
    ways = {"tfa query": "int8", "tfa query --precision float32": "float32"}
    with tempfile.TemporaryDirectory(prefix="tfa-cold-") as folder:
        photo, town = Path(folder, "photo.jpg"), Path(folder, "town.tfa")
        synthetic_photo(0, PHOTO).save(photo)
        with as_progress(progress).task("cold queries", 1 + len(ways)) as task:
            synthetic_map(images, encoder).save(town)
            task.advance()
            made = []
            for what, arithmetic in ways.items():
                made.append(_time_query(what, arithmetic, town, photo, encoder, repeats))
                task.advance()
    return ColdBenchmark(images, tuple(made))


def synthetic_map(images: int, encoder: Encoder) -> PlaceMap:
    """Return a second-order map with compact patches, whose photos are a few encoded ones with noise."""
    patches, cls = encoder.encode([synthetic_photo(seed, PHOTO) for seed in range(SEEDS)])
    assert cls is not None
    rng, chosen = np.random.default_rng(0), np.arange(images) % SEEDS
    noisy = np.empty((images, *patches.shape[1:]), np.float16)
    for row, seed in enumerate(chosen):
        noisy[row] = patches[seed] + 0.3 * rng.standard_normal(patches.shape[1:], np.float32)
    names = [Path(f"/photos/of/a/town/{number:08d}.jpg") for number in range(images)]
    digests = [hashlib.sha256(str(name).encode()).hexdigest() for name in names]
    tokens = Tokens(noisy, cls[chosen], names=[str(name) for name in names], grid=encoder.grid)
    return PlaceMap.from_head(fit_second_order(tokens), EncodedImages(names, digests, tokens, []), encoder)


def _time_query(what: str, arithmetic: str, town: Path, photo: Path, encoder: Encoder, repeats: int) -> ColdQuery:
    verb = [sys.executable, "-c", _AS_VERB, "query", str(town), str(photo), "--quiet"]
    verb += ["--precision", arithmetic]
    runs = [_run(verb) for _ in range(repeats)]
    graph = graph_path(fast_fingerprint(encoder.model))
    floor = min(_run([sys.executable, "-c", VERB + _FLOOR, str(graph), str(photo)])[0] for _ in range(repeats))
    steps = [_steps(town, photo, arithmetic) for _ in range(repeats)]
    best = min(steps, key=lambda one: sum(one.values()))
    return ColdQuery(what, min(runs)[0], max(peak for _, peak in runs), floor, best)


def _steps(town: Path, photo: Path, arithmetic: str) -> dict[str, float]:
    command = [sys.executable, "-c", STEPS, str(town), str(photo), repr(time.time()), arithmetic]
    ended = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    starts = [0.0, *(moment for _, moment in ended)]
    return {what: moment - before for (what, moment), before in zip(ended, starts, strict=False)}


def _run(command: Sequence[str]) -> tuple[float, int]:
    """Return seconds of a process from start to end, and its peak memory, which it prints at its end."""
    started = time.perf_counter()
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return time.perf_counter() - started, int(told.split()[-1])


ROWS = 4096  # rows and columns of the float32 matrix whose products with a batch are timed
_ONE_BAR, _BATCH_BAR = Bar(1.5), Bar(8.0, at_least=True)


@dataclass(frozen=True)
class QueryTime:
    """Seconds of one query and of one of a batch, on a map of one carrier and size."""

    carrier: str
    images: int
    bytes_read: int  # rows, geometry, tokens and words
    float32_bytes: int  # of the same arrays
    seconds: float
    rows_seconds: float  # of a query with known descriptor: products, scores, the ten best
    describe_seconds: float  # of the descriptor, which reads only tokens and words
    floor: float  # reading `bytes_read`
    batch: int
    batch_seconds: float  # per query
    batch_products: float  # per query: only the products of a batch with as many float32 rows
    peak_bytes: int | None

    def lines(self) -> list[Line]:
        name = f"{self.carrier}, {self.images:,} images"
        note = f"{format_bytes(self.bytes_read)} read; describing {1000 * self.describe_seconds:.2f} ms"
        one = compared(f"{name}, one query", self.seconds, self.floor, _ONE_BAR, peak_bytes=self.peak_bytes, note=note)
        rest = compared(f"{name}, its descriptor known", self.rows_seconds, self.floor)
        note = f"the floor is the query alone; bare float32 products take {1000 * self.batch_products:.2f} ms"
        many = compared(f"{name}, a query of {self.batch}", self.batch_seconds, self.seconds, _BATCH_BAR, note=note)
        return [one, rest, many]


@dataclass(frozen=True)
class QueryBenchmark:
    words: int
    channels: int
    patches: int
    threads: int
    times: tuple[QueryTime, ...]
    judged: tuple[JudgedQuery, ...]

    def lines(self) -> list[Line]:
        times = [line for time in self.times for line in time.lines()]
        return times + [line for judged in self.judged for line in judged.lines()]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        shape = f"{self.patches} patches × {self.channels} channels, {self.words} words, {self.threads} threads"
        rows = [COLUMNS, *map(cells, self.lines())]
        return "\n".join([shape, "", *(f"{row[0]:<86}{row[1]:>10}{row[2]:>10}{row[3]:>7}{row[4]:>7}" for row in rows)])


def run_query_benchmark(
    *,
    sizes: Sequence[int] = (1000, 10_000),
    words: int = 64,
    channels: int = 384,
    patches: int = 529,
    batch: int = 64,
    repeats: int = 7,
    progress: bool | Progress | None = None,
) -> QueryBenchmark:
    """Time synthetic maps of integers; the floor reads the same arrays with as many threads, alternating with the
    query.
    """
    tokens = synthetic_tokens(batch, patches, channels)
    times = []
    judged = []
    with as_progress(progress).task("timing", len(sizes) * (len(PAPER_CARRIERS) + 1)) as task:
        for images in sizes:
            for carrier in PAPER_CARRIERS:
                times.append(_timed(images, carrier, words, tokens, repeats))
                task.advance()
            judged.append(timed_beside_paper(images, tokens, words, repeats))
            task.advance()
    return QueryBenchmark(words, channels, patches, thread_count(), tuple(times), tuple(judged))


def _timed(images: int, carrier: str, words: int, tokens: Tokens, repeats: int) -> QueryTime:
    head = synthetic_head(images, carrier, words=words, channels=tokens.channels, storage=INTEGERS)
    scorer, one = head.scorer, tokens.select([0])
    known = DescribedQueries(one)
    scorer.prepare()
    arrays = [*arrays_read(head), np.asarray(tokens.patches[0]), as_residual_side(scorer.sides[0]).centers]
    side, backend = as_residual_side(scorer.sides[0]), backend_for("cpu")

    def descriptor() -> None:
        describe_residuals(one, [side.centers], [side.assignment], side.temperature, backend)

    with ThreadPoolExecutor(thread_count()) as pool:
        calls = {
            "one": lambda: answered(scorer, one),
            "floor": lambda: read(arrays, pool),
            "describe": descriptor,
            "rows": lambda: answered(scorer, known),
        }
        measure_in_turn(calls)  # warm up thread pools and page tables
        measured = measure_in_turn(calls, repeats, before_each=np.ones(CACHES, np.uint8).sum)
        left, rows = np.ones((len(tokens), ROWS), np.float32), np.ones((ROWS, ROWS), np.float32)
        calls = {"many": lambda: answered(scorer, tokens), "products": lambda: left @ rows}
        many = measure_in_turn(calls, max(repeats // 3, 1))
    size = sum(array.nbytes for array in arrays)
    return QueryTime(
        carrier=carrier,
        images=images,
        bytes_read=size,
        float32_bytes=sum(4 * array.size for array in arrays),
        seconds=measured["one"].seconds,
        rows_seconds=measured["rows"].seconds,
        describe_seconds=measured["describe"].seconds,
        floor=measured["floor"].seconds,
        batch=len(tokens),
        batch_seconds=many["many"].seconds / len(tokens),
        batch_products=many["products"].seconds / len(tokens) * numbers_read(head) / ROWS**2,
        peak_bytes=measured["one"].peak_bytes,
    )


def answered(scorer: Scorer, tokens: Tokens) -> tuple[np.ndarray, np.ndarray]:
    """Return the ten best of each query."""
    return top_k(scorer.scores(tokens), K)


def read(arrays: Sequence[np.ndarray], pool: ThreadPoolExecutor) -> int:
    """Read every byte once: sums of 64-bit words, arrays divided among the threads in runs of 4 MB."""
    runs = []
    for array in arrays:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        whole = flat[: len(flat) // 8 * 8].view(np.int64)
        runs += [whole[start : start + (1 << 19)] for start in range(0, len(whole), 1 << 19)]
    return sum(int(total) for total in pool.map(np.add.reduce, runs))
