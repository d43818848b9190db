"""One query from its tokens to its ten best images, over the time of reading the bytes that it must read."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tfa.bench.speed.fit import synthetic_tokens
from tfa.bench.speed.measure import measure_in_turn, thread_count
from tfa.bench.speed.result_line import COLUMNS, Bar, Line, cells, compared, format_bytes
from tfa.bench.speed.second_order_query import CACHES, JudgedQuery, K, timed_beside_paper
from tfa.bench.speed.synthetic_maps import arrays_read, numbers_read, synthetic_head
from tfa.core.arrays import backend_for
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.maps.stored_head import INTEGERS
from tfa.method.carriers import PAPER_CARRIERS
from tfa.method.described_queries import DescribedQueries
from tfa.method.residuals import describe_residuals
from tfa.method.scorer import Scorer, as_residual_side
from tfa.search.gallery import top_k

ROWS = 4096  # rows and columns of the float32 matrix whose products with a batch are timed, for as many numbers
ONE_BAR, BATCH_BAR = Bar(1.5), Bar(8.0, at_least=True)


@dataclass(frozen=True)
class QueryTime:
    """Seconds of one query and of one of a batch, on a map of one carrier and size."""

    carrier: str
    images: int
    bytes_read: int  # rows, geometry, tokens and words
    float32_bytes: int  # of the same arrays
    seconds: float
    rows_seconds: float  # of a query whose descriptor is known: products, scores, the ten best
    describe_seconds: float  # of the descriptor, which reads tokens and words alone
    floor: float  # reading `bytes_read`
    batch: int
    batch_seconds: float  # a query
    batch_products: float  # a query: the products of a batch with as many float32 rows, and nothing else
    peak_bytes: int | None

    def lines(self) -> list[Line]:
        name = f"{self.carrier}, {self.images:,} images"
        note = f"{format_bytes(self.bytes_read)} read; describing {1000 * self.describe_seconds:.2f} ms"
        one = compared(f"{name}, one query", self.seconds, self.floor, ONE_BAR, peak_bytes=self.peak_bytes, note=note)
        rest = compared(f"{name}, its descriptor known", self.rows_seconds, self.floor)
        note = f"the floor is the query alone; bare float32 products take {1000 * self.batch_products:.2f} ms"
        many = compared(f"{name}, a query of {self.batch}", self.batch_seconds, self.seconds, BATCH_BAR, note=note)
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
    """Time made-up maps of integers; the floor reads the same arrays on as many threads, in turn with the query."""
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
        measure_in_turn(calls)  # thread pools and page tables warm up
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
    """The ten best of each query."""
    return top_k(scorer.scores(tokens), K)


def read(arrays: Sequence[np.ndarray], pool: ThreadPoolExecutor) -> int:
    """Touch every byte once: sums of 64-bit words, the arrays shared out among the threads in runs of 4 MB."""
    runs = []
    for array in arrays:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        whole = flat[: len(flat) // 8 * 8].view(np.int64)
        runs += [whole[start : start + (1 << 19)] for start in range(0, len(whole), 1 << 19)]
    return sum(int(total) for total in pool.map(np.add.reduce, runs))
