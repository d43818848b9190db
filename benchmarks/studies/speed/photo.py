"""Time the work per photo: encoding, and reranking its candidates.

Encoding in integers is compared with torch in float32, and reading files with Pillow. Reranking is everything that a
map does for a query after its head: compacting the query's patches, reading and restoring the candidates' patches,
comparing and voting. Its floor is one matrix product for compacting and one per candidate.
"""

from __future__ import annotations

import itertools
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from studies.speed.fit import seen_again, synthetic_tokens
from studies.speed.measure import Bar, Line, Measured, cells, compared, measure_in_turn, same_threads
from tfa.core.files import hash_json
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.encoders import Encoder, parse_encoder
from tfa.photos.images import resize
from tfa.photos.token_cache import TokenCache
from tfa.types import RerankSpec
from tfa.verification.patches import CompactTokens
from tfa_bench.provenance import processor

if TYPE_CHECKING:
    from tfa.encoders.weights import LoadedWeights

_ARCHITECTURES = ("dinov2-s14@322", "dinov2-b14@322")
_GAIN = Bar(1.8, at_least=True)
_FED = 150.0  # images per second that the input must provide
PHOTO = (640, 480)


@dataclass(frozen=True)
class ArchitectureSpeed:
    """Seconds per image of one architecture with random weights: in float32 by torch, and in integers."""

    encoder: str
    batch: int  # images per batch
    float32_seconds: float
    fast_seconds: float
    float32_peak_bytes: int | None
    fast_peak_bytes: int | None
    float32_bytes: int  # size of the weights
    fast_bytes: int  # size of the integer model
    cosine: float  # mean cosine of the patch tokens of both

    @property
    def ratio(self) -> float:
        return self.float32_seconds / self.fast_seconds


@dataclass(frozen=True)
class InputSpeed:
    """Seconds per photo from file to cached tokens, with an encoder that takes no time."""

    photos: int
    seconds: float
    floor_seconds: float  # only Pillow: decode and resize, in two threads
    peak_bytes: int | None
    disk_bytes: int  # size of a photo's tokens


@dataclass(frozen=True)
class EncodingBenchmark:
    architectures: tuple[ArchitectureSpeed, ...]
    input: InputSpeed
    threads: int
    machine: str

    def lines(self) -> list[Line]:
        lines = []
        for speed in self.architectures:
            what = f"{speed.encoder}, an image of {'a batch of ' if speed.batch > 1 else ''}{speed.batch}"
            note = f"float32 {speed.float32_bytes / 1e6:.0f} MB, tokens' cosine {speed.cosine:.4f}"
            # Maps are built in batches, so the target applies to batches.
            bar = _GAIN if speed.batch > 1 else None
            lines.append(
                Line(
                    what, speed.fast_seconds, speed.float32_seconds, speed.ratio, bar,
                    speed.fast_peak_bytes, speed.fast_bytes, note,
                )
            )  # fmt: skip
        put, rate = self.input, f"{1 / self.input.seconds:.0f} images/s"
        size = f"{PHOTO[0]}×{PHOTO[1]} JPEG"
        lines.append(
            compared(
                f"a {size} to the cache, null encoder", put.seconds, put.floor_seconds,
                peak_bytes=put.peak_bytes, disk_bytes=put.disk_bytes, note=rate,
            )
        )  # fmt: skip
        lines.append(compared(f"the same, compared with {_FED:.0f} images/s", put.seconds, 1 / _FED, Bar(1.0)))
        return lines

    def to_dict(self) -> dict[str, Any]:
        return {
            "architectures": [
                {**asdict(speed), "ratio": speed.ratio, "images_per_second": 1 / speed.fast_seconds}
                for speed in self.architectures
            ],
            "input": {
                **asdict(self.input),
                "images_per_second": 1 / self.input.seconds,
                "floor_images_per_second": 1 / self.input.floor_seconds,
            },
            "threads": self.threads,
            "machine": self.machine,
        }

    def __str__(self) -> str:
        rows = [f"{self.threads} threads, {self.machine}", ""]
        for line in self.lines():
            name, *numbers = cells(line)
            rows.append(f"{name:<84}" + "".join(f"{number:>11}" for number in numbers))
        return "\n".join(rows)


def run_encoding_benchmark(
    *,
    encoders: Sequence[str] = _ARCHITECTURES,
    batches: Sequence[int] = (1, 8),
    photos: int = 200,
    threads: int = 2,
    repeats: int = 3,
    progress: bool | Progress | None = None,
) -> EncodingBenchmark:
    """Use random weights and generated photos: speed depends only on shapes, so this runs anywhere."""
    with as_progress(progress).task("timing", len(encoders) + 1) as task, same_threads(threads):
        speeds: list[ArchitectureSpeed] = []
        for name in encoders:
            speeds += _architecture(name, batches, threads, repeats)
            task.advance()
        fed = _input(photos, repeats)
        task.advance()
    return EncodingBenchmark(tuple(speeds), fed, threads, processor())


def _architecture(name: str, batches: Sequence[int], threads: int, repeats: int) -> list[ArchitectureSpeed]:
    from tfa.encoders.onnx_encoder import OnnxEncoder, vit_graph
    from tfa.encoders.vit import VitEncoder

    identity = parse_encoder(name)
    weights = random_weights(name)
    graph = vit_graph(identity, weights.tensors, integers=True)
    plain = VitEncoder(identity, weights)
    fast = OnnxEncoder(identity, weights.sha256, graph, threads, lambda: weights, integers=True)
    size = (identity.width, identity.height)
    images = [synthetic_photo(seed, size) for seed in range(max(batches))]
    speeds = []
    for batch in batches:
        calls = {"float32": _encoding(plain, images[:batch]), "fast": _encoding(fast, images[:batch])}
        timed = _in_turn(calls, repeats)
        tokens = {key: measured.result[0].astype(np.float32) for key, measured in timed.items()}
        speeds.append(
            ArchitectureSpeed(
                encoder=str(identity),
                batch=batch,
                float32_seconds=timed["float32"].seconds / batch,
                fast_seconds=timed["fast"].seconds / batch,
                float32_peak_bytes=timed["float32"].peak_bytes,
                fast_peak_bytes=timed["fast"].peak_bytes,
                float32_bytes=sum(tensor.nbytes for tensor in weights.tensors.values()),
                fast_bytes=len(fast.graph),
                cosine=_cosine(tokens["float32"], tokens["fast"]),
            )
        )
    return speeds


def _encoding(encoder: Encoder, images: list[Image.Image]) -> Callable[[], Any]:
    return lambda: encoder.encode(images)


def _in_turn(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, Measured]:
    for call in calls.values():
        call()  # warm up thread pools and page tables
    return measure_in_turn(calls, repeats)


def _cosine(one: np.ndarray, other: np.ndarray) -> float:
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return float(((one * other).sum(axis=-1) / lengths).mean())


def _input(photos: int, repeats: int) -> InputSpeed:
    encoder = NullEncoder()
    with tempfile.TemporaryDirectory(prefix="tfa-bench-") as folder:
        paths = [Path(folder, f"{seed}.jpg") for seed in range(photos)]
        for seed, path in enumerate(paths):
            synthetic_photo(seed, PHOTO).save(path, quality=90)
        fresh = (Path(folder, f"cache-{n}") for n in itertools.count())
        calls = {
            "whole": lambda: TokenCache(next(fresh)).encode(paths, encoder).digests,
            "floor": lambda: _pillow_alone(paths, encoder),
        }
        timed = _in_turn(calls, repeats)
        written = sum(file.stat().st_size for file in Path(folder, "cache-0").rglob("*.safetensors"))
    seconds = {name: measured.seconds / photos for name, measured in timed.items()}
    return InputSpeed(photos, seconds["whole"], seconds["floor"], timed["whole"].peak_bytes, written // photos)


def _pillow_alone(paths: Sequence[Path], encoder: NullEncoder) -> None:
    def opened(path: Path) -> None:
        with Image.open(path) as image:
            encoder.prepare(image)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(opened, paths))


class NullEncoder:
    """An encoder that takes no time: constant tokens of the default encoder's shape."""

    id = "null@322"
    fingerprint = model = hash_json("an encoder that takes no time")
    channels = 384
    global_channels: int | None = 384
    grid = (23, 23)
    notes: tuple[str, ...] = ()
    device = "cpu"

    def prepare(self, image: Image.Image) -> Image.Image:
        return resize(image, (322, 322))

    def encode(self, images: Sequence[Image.Image]) -> tuple[np.ndarray, np.ndarray | None]:
        return np.ones((len(images), 529, 384), np.float16), np.ones((len(images), 384), np.float16)


def random_weights(name: str) -> LoadedWeights:
    """Return weights of an encoder's shapes that keep numbers in range: norms near 1, linear layers small."""
    import torch

    from tfa.encoders.packaged_weights import expected_shapes
    from tfa.encoders.weights import LoadedWeights

    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for key, shape in expected_shapes(parse_encoder(name).card).items():
        noise = 0.02 * torch.randn(shape, generator=generator)
        tensors[key] = noise + 1 if "norm" in key and key.endswith("weight") else noise
        if key.endswith("lambda1"):
            tensors[key] = noise.abs() + 0.1
    return LoadedWeights({key: one.numpy() for key, one in tensors.items()}, hash_json([name, "random"]))


def synthetic_photo(seed: int, size: tuple[int, int]) -> Image.Image:
    """Return smooth colors with grain, so that a JPEG of it takes as long to decode as a photo."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), np.int16)
    grain = rng.integers(-12, 13, (size[1], size[0], 1), dtype=np.int16)
    return Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8))


REPEATS = 5  # runs per measurement; the shortest counts, the others were disturbed


@dataclass(frozen=True)
class VerifyBenchmark:
    """Seconds per query, single and in a batch, each with the bare products of the same shapes."""

    candidates: int
    patches: int
    dimensions: int
    bytes_per_image: int  # read per candidate
    queries: int  # batch size
    threads: int  # threads that share the batch
    seconds: float
    products_seconds: float
    batch_seconds: float
    batch_products_seconds: float
    machine: str

    @property
    def ratio(self) -> float:
        return self.seconds / self.products_seconds

    @property
    def batch_ratio(self) -> float:
        return self.batch_seconds / self.batch_products_seconds

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "ms_per_query": 1000 * self.seconds,
            "batch_ms_per_query": 1000 * self.batch_seconds,
            "ratio": self.ratio,
            "batch_ratio": self.batch_ratio,
        }

    def __str__(self) -> str:
        shape = f"{self.candidates} candidates × {self.patches} patches × {self.dimensions} dimensions"
        shape += f" in {self.bytes_per_image:,} bytes"
        batch = f"in a batch of {self.queries} queries, {self.threads} threads"
        alone = (self.seconds, self.products_seconds, self.ratio)
        together = (self.batch_seconds, self.batch_products_seconds, self.batch_ratio)
        lines = [f"{shape}, {self.machine}", "", f"{'ms a query':<44}{'evidence':>10}{'products':>10}{'ratio':>8}"]
        for name, (whole, floor, ratio) in (("one query", alone), (batch, together)):
            lines.append(f"{name:<44}{1000 * whole:10.2f}{1000 * floor:10.2f}{ratio:8.2f}")
        return "\n".join(lines)


def run_verify_benchmark(
    *,
    candidates: int = 20,
    patches: int = 529,
    channels: int = 384,
    dimensions: int = 128,
    small: bool = False,
    queries: int = 16,
    threads: int = 2,
    progress: bool | Progress | None = None,
) -> VerifyBenchmark:
    """Time reranking of synthetic photos: queries are the candidates with other noise.

    Products are numpy's, which divides each among the threads.
    """
    grid = squarest(patches)
    images = synthetic_tokens(candidates, patches, channels)
    spec = RerankSpec(dimensions=dimensions, patches="small" if small else "full")
    known = CompactTokens.fit(Tokens(images.patches, grid=grid), spec)
    tokens = seen_again(images, queries)
    photos = [tokens.load(index, index + 1) for index in range(queries)]
    rows, floor = np.arange(candidates), known.rows(range(candidates))

    def verify(some: Sequence[np.ndarray]) -> None:
        compact = [known.compaction.compact(photo)[0] for photo in some]
        known.match_each(compact, grid, [rows] * len(some), threads)

    def multiply(some: Sequence[np.ndarray]) -> None:
        for photo in some:
            query = photo[0].astype(np.float32) @ known.compaction.projection
            for candidate in floor:
                query @ candidate.T

    with as_progress(progress).task("timing", 2 * REPEATS) as task:
        alone, together = (
            _shortest({"whole": lambda: verify(some), "floor": lambda: multiply(some)}, task.advance)  # noqa: B023
            for some in (photos[:1], photos)
        )
    return VerifyBenchmark(
        candidates=candidates,
        patches=patches,
        dimensions=known.compaction.dimensions,
        bytes_per_image=known.bytes_per_image,
        queries=queries,
        threads=threads,
        seconds=alone["whole"],
        products_seconds=alone["floor"],
        batch_seconds=together["whole"] / queries,
        batch_products_seconds=together["floor"] / queries,
        machine=f"{os.cpu_count()} cores, {platform.machine()}",
    )


def squarest(patches: int) -> tuple[int, int]:
    """Return rows and columns of a grid of `patches` patches, as square as possible."""
    rows = next(rows for rows in range(math.isqrt(patches), 0, -1) if patches % rows == 0)
    return rows, patches // rows


def _shortest(calls: dict[str, Callable[[], Any]], advance: Callable[[], None]) -> dict[str, float]:
    """Return the shortest of several alternating runs of each call, so that a busy machine slows all."""
    shortest = dict.fromkeys(calls, math.inf)
    for call in calls.values():
        call()  # warm up thread pools and page tables
    for _ in range(REPEATS):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            shortest[name] = min(shortest[name], time.perf_counter() - started)
        advance()
    return shortest
