"""`tfa query` of one photo in a process of its own: how long until the answer, how much memory, where the time goes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfa.bench.speed.encoding import synthetic_photo
from tfa.bench.speed.result_line import Line, compared
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.encoders import DEFAULT_ENCODER, Encoder, load_encoder
from tfa.encoders.catalogue import fast_fingerprint
from tfa.encoders.int8 import graph_path
from tfa.maps import PlaceMap
from tfa.photos.token_cache import EncodedImages
from tfa.pipeline import fit_second_order

PHOTO = (640, 480)
SEEDS = 16  # photos that are encoded; the map's are these, with noise
# The floor: what any program needs that runs this model by onnxruntime on one photo.
FLOOR = """
import sys, numpy, onnxruntime
from PIL import Image
graph = open(sys.argv[1], "rb").read()[32:]
session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
shape = session.get_inputs()[0].shape
pixels = numpy.asarray(Image.open(sys.argv[2]).resize((shape[3], shape[2])), numpy.float32)
session.run(None, {"pixels": pixels.transpose(2, 0, 1)[None] / 255})
"""
# `tfa` as it is called from a shell, and at its end the peak of its memory. What the system counts for a child begins
# with the memory of the process that started it.
VERB = """
import atexit, runpy
def peak():
    with open("/proc/self/status") as status:
        print(next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM")))
atexit.register(peak)
"""
AS_VERB = VERB + 'runpy.run_module("tfa", run_name="__main__")'
# The verb's own steps, with the clock read between them.
STEPS = """
import json, sys, time
def told(what): steps.append((what, time.time() - float(sys.argv[3])))
steps = []
from tfa.core.config import EncoderOptions
from tfa.cli import app
from tfa.maps import PlaceMap
told("Python and imports")
place_map = PlaceMap.load(sys.argv[1])
told("opening the map")
place_map.use_encoder(EncoderOptions(fast=sys.argv[4] == "fast"))
place_map.encoder
told("loading the encoder")
from tfa.core.tokens import Tokens
from tfa.photos.images import as_rgb
tokens = Tokens(*place_map.encoder.encode([as_rgb(sys.argv[2])]), grid=place_map.encoder.grid)
told("encoding the photo")
place_map.query_tokens(tokens)
told("search and verification")
print(json.dumps(steps))
"""


@dataclass(frozen=True)
class ColdQuery:
    """One way to ask: the fastest of several runs."""

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
    """The default encoder on a made-up photo against a made-up map of `images` images, verified."""
    encoder = load_encoder(DEFAULT_ENCODER, fast=True, progress=progress)
    ways = {"tfa query --fast": "fast", "tfa query": "float32"}
    with tempfile.TemporaryDirectory(prefix="tfa-cold-") as folder:
        photo, town = Path(folder, "photo.jpg"), Path(folder, "town.tfa")
        synthetic_photo(0, PHOTO).save(photo)
        with as_progress(progress).task("cold queries", 1 + len(ways)) as task:
            synthetic_map(images, encoder).save(town)
            task.advance()
            made = []
            for what, arithmetic in ways.items():
                made.append(_asked(what, arithmetic, town, photo, encoder, repeats))
                task.advance()
    return ColdBenchmark(images, tuple(made))


def synthetic_map(images: int, encoder: Encoder) -> PlaceMap:
    """A second-order map with compact patches, whose photos are a few that were encoded, with noise."""
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


def _asked(what: str, arithmetic: str, town: Path, photo: Path, encoder: Encoder, repeats: int) -> ColdQuery:
    verb = [sys.executable, "-c", AS_VERB, "query", str(town), str(photo), "--quiet"]
    verb += ["--fast"] if arithmetic == "fast" else []
    runs = [_run(verb) for _ in range(repeats)]
    graph = graph_path(fast_fingerprint(encoder.model))
    floor = min(_run([sys.executable, "-c", VERB + FLOOR, str(graph), str(photo)])[0] for _ in range(repeats))
    steps = [_steps(town, photo, arithmetic) for _ in range(repeats)]
    best = min(steps, key=lambda one: sum(one.values()))
    return ColdQuery(what, min(runs)[0], max(peak for _, peak in runs), floor, best)


def _steps(town: Path, photo: Path, arithmetic: str) -> dict[str, float]:
    command = [sys.executable, "-c", STEPS, str(town), str(photo), repr(time.time()), arithmetic]
    ended = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    starts = [0.0, *(moment for _, moment in ended)]
    return {what: moment - before for (what, moment), before in zip(ended, starts, strict=False)}


def _run(command: Sequence[str]) -> tuple[float, int]:
    """Seconds of a process from its start to its end, and the most memory it had, which it tells at its end itself."""
    started = time.perf_counter()
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return time.perf_counter() - started, int(told.split()[-1])
