"""Compare the whole fit with one AnyLoc build, faiss and scikit-learn on the same tokens."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import platform
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from studies.speed.fit import synthetic_tokens, tokens_of_photos
from studies.speed.measure import Bar, Line, Measured, measure, measure_in_turn, same_threads, thread_count
from tfa.core.arrays import backend_for, l2_normalize
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec
from tfa.method.residuals import HARD
from tfa.method.spectrum import fit_geometry, gram_matrix
from tfa.method.vocabulary import sample_patches
from tfa.pipeline import fit
from tfa.search.gallery import ExactSearch, Gallery, WeightedGalleries, find_duplicates
from tfa.types import HeadSpec

SEED = 0
_FAISS_ITERATIONS = 25  # faiss's default; its k-means does not stop early
INSTALL = "not installed: pip install 'tfa-bench[peers]'"


def library(name: str) -> Any | None:
    """Import a module; None if it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # raised by generated bindings, about Python itself
        try:
            return importlib.import_module(name)
        except ImportError:
            return None


def anyloc_words(kmeans: Any, patches: np.ndarray, words: int) -> tuple[Any, int]:
    """Return centers `(k, d)` (torch, not normalized) of unit patches `(t, d)`, and the number of iterations."""
    import torch

    class Counted(kmeans.KMeans):
        iterations = 0

        def max_sim(self, a: Any, b: Any) -> Any:
            self.iterations += 1  # it compares once per iteration, and only prints the number
            return super().max_sim(a, b)

    # It starts from random patches of torch's global generator, whose state we restore.
    with torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(io.StringIO()):
        torch.manual_seed(SEED)
        fitted = Counted(n_clusters=words, mode="cosine")
        fitted.fit_predict(torch.from_numpy(patches))
    return fitted.centroids, fitted.iterations


def anyloc_descriptors(images: list[np.ndarray], centers: Any, *, reuse: bool = False) -> np.ndarray:
    """Return descriptors `(b, k·d)` of images of unit patches `(n, d)`, one by one; `reuse` one array of residuals."""
    import torch

    described = np.empty((len(images), centers.numel()), np.float32)
    most = max(map(len, images), default=0)
    with torch.inference_mode():
        buffer = torch.empty((most, *centers.shape), dtype=centers.dtype) if reuse else None
        for row, patches in enumerate(images):
            described[row] = _anyloc_descriptor(torch.from_numpy(patches), centers, buffer).numpy()
    return described


def _anyloc_descriptor(patches: Any, centers: Any, buffer: Any | None) -> Any:
    import torch
    from torch.nn.functional import normalize

    unit = normalize(patches, dim=1)
    into = None if buffer is None else buffer[: len(unit)]
    residuals = torch.sub(unit[:, None, :], centers[None, :, :], out=into)  # (n, k, d)
    labels = (unit @ normalize(centers, dim=1).T).argmax(dim=1)
    blocks = torch.zeros_like(centers)
    for word in labels.unique().tolist():
        blocks[word] = residuals[labels == word, word].sum(dim=0)
    return normalize(normalize(blocks, dim=1).flatten(), dim=0)  # normalize keeps zero blocks zero


def faiss_words(faiss: Any, patches: np.ndarray, words: int) -> np.ndarray:
    """Spherical k-means of all patches `(t, d)` → `(k, d)`; faiss would otherwise sample 256 patches per word."""
    kmeans = faiss.Kmeans(
        patches.shape[1],
        words,
        niter=_FAISS_ITERATIONS,
        spherical=True,
        seed=SEED,
        min_points_per_centroid=1,
        max_points_per_centroid=len(patches),
    )
    kmeans.train(patches)
    return kmeans.centroids


def faiss_search(faiss: Any, descriptors: np.ndarray, k: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return an exhaustive inner-product search: queries `(q, D)` → indices `(q, k)`. The index is built here."""
    index = faiss.IndexFlatIP(descriptors.shape[1])
    index.add(descriptors)
    return lambda queries: index.search(queries, k)[1]


def sklearn_whitened(decomposition: Any, descriptors: np.ndarray) -> np.ndarray:
    """Return whitened unit rows `(b, r)` of descriptors `(b, D)`, keeping all directions."""
    pca = decomposition.PCA(n_components=min(len(descriptors) - 1, descriptors.shape[1]), whiten=True)
    return l2_normalize(pca.fit_transform(descriptors))


FIT = "TFA, whole database-only fit"
WORDS, RESIDUALS = "AnyLoc, k-means (fast-pytorch-kmeans)", "AnyLoc, residuals"
BUILD = "AnyLoc, one vocabulary: k-means and residuals"
_REUSED, KINDER = "AnyLoc, residuals in one array", "AnyLoc, one vocabulary, residuals in one array"
FIT_KINDER = "TFA, the same fit"  # compared with the kinder build
_FAISS_WORDS = "faiss, spherical k-means, one vocabulary"
FAISS_ALL, OWN_ALL = "faiss flat, top 10 of every image", "TFA search, top 10 of every image"
FAISS_ONE, OWN_ONE = "faiss flat, top 10 of one image", "TFA search, top 10 of one image"
SKLEARN, _OWN_WHITENING = "scikit-learn, PCA whitening", "TFA, PCA whitening"
PEER_OF = {
    FIT_KINDER: KINDER,
    OWN_ALL: FAISS_ALL,
    OWN_ONE: FAISS_ONE,
    _OWN_WHITENING: SKLEARN,
}  # pairs that do the same work
_NO_BUILDS = (FAISS_ALL, FAISS_ONE, SKLEARN)  # their share of a build is not meaningful
ROWS = (
    FIT, BUILD, WORDS, RESIDUALS, FIT_KINDER, KINDER, _REUSED, _FAISS_WORDS,
    OWN_ALL, FAISS_ALL, OWN_ONE, FAISS_ONE, _OWN_WHITENING, SKLEARN,
)  # fmt: skip
_HALF = Bar(0.5)  # the fit: at most half of an AnyLoc build
TOP = 10
_SEARCHES = 5  # runs per search; the shortest counts


@dataclass(frozen=True)
class PeerRow:
    what: str
    seconds: float | None  # None: the library is not installed
    peak_bytes: int | None = None
    of_build: float | None = None  # over the seconds of the AnyLoc build
    of_peer: float | None = None  # over the seconds of the peer that does the same work
    note: str = ""


@dataclass(frozen=True)
class PeersBenchmark:
    images: int
    patches: int
    channels: int
    words: int
    threads: int
    rows: tuple[PeerRow, ...]
    anyloc_iterations: int | None
    tfa_iterations: list[int]
    same_answers: float | None  # share of the top ten answers that faiss returns too
    machine: str

    @property
    def ratio(self) -> float | None:
        """Time of the whole fit over the AnyLoc build."""
        return next(row.of_build for row in self.rows if row.what == FIT)

    def lines(self) -> list[Line]:
        return [_line(row) for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}

    def __str__(self) -> str:
        shape = f"{self.images} images × {self.patches} patches × {self.channels} channels, {self.words} words"
        lines = [f"{shape}, {self.threads} threads, {self.machine}", ""]
        lines.append(f"{'':<48}{'seconds':>10}{'MiB':>8}{'of AnyLoc':>11}{'of the peer':>13}")
        for row in self.rows:
            if row.seconds is None:
                lines.append(f"{row.what:<48}{row.note}")
                continue
            memory = "" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.0f}"
            build, peer = ("" if one is None else f"{one:.3g}" for one in (row.of_build, row.of_peer))
            lines.append(f"{row.what:<48}{row.seconds:10.4f}{memory:>8}{build:>11}{peer:>13}".rstrip())
        return "\n".join(lines)


def run_peers_benchmark(
    *,
    images: int = 607,
    patches: int = 529,
    channels: int = 384,
    words: int = 64,
    threads: int | None = None,
    repeats: int = 1,
    photos: Path | None = None,
    progress: bool | Progress | None = None,
) -> PeersBenchmark:
    """Time the fit and the peers in this process with the same number of threads, builds alternating.

    AnyLoc and faiss get unit patches: computing them is not counted, their memory is.
    """
    tokens = synthetic_tokens(images, patches, channels) if photos is None else tokens_of_photos(photos, progress)
    if len(tokens) < 2:
        raise BadSpec(f"{len(tokens)} images; at least 2 are needed")
    faiss, count = library("faiss"), threads or thread_count()
    with same_threads(count, faiss), as_progress(progress).task("side by side", 4) as task:
        _warm_up(tokens)
        measured, iterations, head = _builds(tokens, words, repeats)
        task.advance()
        if faiss is not None:
            unit = sample_patches(tokens, int(tokens.counts.sum()))
            measured[_FAISS_WORDS] = _holding(unit, measure(lambda: faiss_words(faiss, unit, words)))
            del unit
        task.advance()
        descriptors = np.array(head.branches[HARD, 0].described.descriptors)
        measured |= (searched := _searches(descriptors, faiss))
        task.advance()
        measured |= _whitenings(descriptors)
        task.advance()
    return PeersBenchmark(
        images=len(tokens),
        patches=int(np.median(tokens.counts)),
        channels=tokens.channels,
        words=words,
        threads=count,
        rows=tuple(_row(name, measured) for name in ROWS),
        anyloc_iterations=iterations,
        tfa_iterations=[vocabulary.iterations for vocabulary in head.vocabularies],
        same_answers=_same(searched[OWN_ALL].result, searched[FAISS_ALL].result) if FAISS_ALL in searched else None,
        machine=f"{os.cpu_count()} cores, {platform.machine()}",
    )


def _warm_up(tokens: Tokens) -> None:
    """Warm up thread pools, page tables and the first import of torch."""
    few = tokens.select(np.arange(8) % len(tokens))
    _builds(few, 4, 1)


def _builds(tokens: Tokens, words: int, repeats: int) -> tuple[dict[str, Measured], int | None, Any]:
    """Time the fit and the AnyLoc build, alternating; the shortest of each part counts."""
    kmeans = library("fast_pytorch_kmeans")
    calls: dict[str, Any] = {FIT: partial(fit, tokens, HeadSpec(words=words))}
    if kmeans is None:
        measured = measure_in_turn(calls, repeats)
        return measured, None, measured[FIT].result
    unit = sample_patches(tokens, int(tokens.counts.sum()))
    separate = np.split(unit, np.cumsum(tokens.counts)[:-1])
    centers: list[Any] = []

    def fitted_words() -> int:
        fitted, iterations = anyloc_words(kmeans, unit, words)
        centers[:] = [fitted]
        return iterations

    calls[WORDS] = fitted_words
    calls[RESIDUALS] = lambda: anyloc_descriptors(separate, centers[0])
    calls[_REUSED] = lambda: anyloc_descriptors(separate, centers[0], reuse=True)
    measured = measure_in_turn(calls, repeats)
    measured |= {name: _holding(unit, measured[name]) for name in (WORDS, RESIDUALS, _REUSED)}
    measured |= {BUILD: _both(measured[WORDS], measured[RESIDUALS]), KINDER: _both(measured[WORDS], measured[_REUSED])}
    measured[FIT_KINDER] = measured[FIT]
    return measured, measured[WORDS].result, measured[FIT].result


def _both(one: Measured, other: Measured) -> Measured:
    """Combine two consecutive measurements."""
    peaks = [part.peak_bytes for part in (one, other) if part.peak_bytes is not None]
    return Measured(one.seconds + other.seconds, max(peaks, default=None), None)


def _holding(patches: np.ndarray, measured: Measured) -> Measured:
    peak = measured.peak_bytes
    return Measured(measured.seconds, None if peak is None else peak + patches.nbytes, measured.result)


def _searches(descriptors: np.ndarray, faiss: Any | None) -> dict[str, Measured]:
    own = tfa_search(descriptors)
    calls: dict[str, Any] = {OWN_ALL: lambda: own(descriptors), OWN_ONE: lambda: own(descriptors[:1])}
    if faiss is not None:
        other = faiss_search(faiss, descriptors, min(TOP, len(descriptors)))
        calls |= {FAISS_ALL: lambda: other(descriptors), FAISS_ONE: lambda: other(descriptors[:1])}
    return measure_in_turn(calls, _SEARCHES)


def tfa_search(descriptors: np.ndarray) -> Any:
    """Return a search with our exact index: queries `(q, D)` → indices `(q, k)`."""
    rows = np.ascontiguousarray(descriptors, np.float32)
    galleries = WeightedGalleries((1.0,), (Gallery.of(rows),), np.zeros(len(rows), np.float32), find_duplicates(rows))
    searcher = ExactSearch(galleries, np.arange(len(rows)))
    return lambda queries: searcher.search(queries, TOP).ids


def _whitenings(descriptors: np.ndarray) -> dict[str, Measured]:
    calls: dict[str, Any] = {_OWN_WHITENING: lambda: tfa_whitened(descriptors)}
    decomposition = library("sklearn.decomposition")
    if decomposition is not None:
        calls[SKLEARN] = lambda: sklearn_whitened(decomposition, descriptors)
    return measure_in_turn(calls)


def tfa_whitened(descriptors: np.ndarray) -> np.ndarray:
    """Return φ_1 of the rows: Gram matrix, spectrum, coordinates divided by √λ, L2."""
    gram = gram_matrix(descriptors, backend_for("cpu"))
    everyone = np.arange(len(descriptors))
    geometry = fit_geometry(gram, descriptors.shape[1], len(descriptors), everyone)
    return geometry.shaped(geometry.anchor_coordinates(), 1.0)


def _same(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.mean([len(np.intersect1d(a, b)) / len(a) for a, b in zip(one, other, strict=True)]))


def _row(name: str, measured: Mapping[str, Measured]) -> PeerRow:
    if name not in measured:
        return PeerRow(name, None, note=INSTALL)
    own, build, peer = measured[name], measured.get(BUILD), measured.get(PEER_OF.get(name, ""))
    of_build = None if build is None else own.seconds / build.seconds
    return PeerRow(name, own.seconds, own.peak_bytes, of_build, None if peer is None else own.seconds / peer.seconds)


def _line(row: PeerRow) -> Line:
    """Compare with a peer that does the same work if there is one, otherwise with the AnyLoc build."""
    ratio = row.of_peer if row.what in PEER_OF else None if row.what in _NO_BUILDS else row.of_build
    floor = None if row.seconds is None or ratio is None else row.seconds / ratio
    bar = _HALF if row.what == FIT else None
    return Line(row.what, row.seconds, floor, ratio, bar, row.peak_bytes, note=row.note)
