"""What the peers do, each with its own library: AnyLoc's build, faiss words and search, scikit-learn whitening.

AnyLoc, from its definition, with the labels and the centres of `fast_pytorch_kmeans`:

    k(i) = argmax_k cos(p̃_i, c_k)     V_k = Σ_{i: k(i)=k} (p̃_i − c_k)     v = L2 [ V_k / ‖V_k‖ ]_k

image after image, the residuals of every patch to every centre first, as its published code has them: a new array
`n k d` an image (52 MB of 529 patches, 64 words, 384 channels). Where the system is slow to hand out memory that is
most of the time, so the residuals can also be written to one array (ours, kinder to the peer).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tfa.core.arrays import l2_normalize

SEED = 0
FAISS_ITERATIONS = 25  # faiss's own default; its k-means does not stop early
INSTALL = "not installed: pip install 'tfa-vpr[peers]'"


def library(name: str) -> Any | None:
    """The module of that name; None where it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of generated bindings, about Python itself
        try:
            return importlib.import_module(name)
        except ImportError:
            return None


def anyloc_words(kmeans: Any, patches: np.ndarray, words: int) -> tuple[Any, int]:
    """Centres `k d` (torch, not normalised) of unit patches `t d`, and how many iterations they took."""
    import torch

    class Counted(kmeans.KMeans):
        iterations = 0

        def max_sim(self, a: Any, b: Any) -> Any:
            self.iterations += 1  # it compares once an iteration, and reports the number in print only
            return super().max_sim(a, b)

    # It starts from random patches of torch's global generator, whose state is ours to keep.
    with torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(io.StringIO()):
        torch.manual_seed(SEED)
        fitted = Counted(n_clusters=words, mode="cosine")
        fitted.fit_predict(torch.from_numpy(patches))
    return fitted.centroids, fitted.iterations


def anyloc_descriptors(images: list[np.ndarray], centers: Any, *, reuse: bool = False) -> np.ndarray:
    """Descriptors `b k·d` of images of unit patches `n d`, one after the other; `reuse` one array of residuals."""
    import torch

    described = np.empty((len(images), centers.numel()), np.float32)
    most = max(map(len, images), default=0)
    with torch.inference_mode():
        kept = torch.empty((most, *centers.shape), dtype=centers.dtype) if reuse else None
        for row, patches in enumerate(images):
            described[row] = _anyloc_descriptor(torch.from_numpy(patches), centers, kept).numpy()
    return described


def _anyloc_descriptor(patches: Any, centers: Any, kept: Any | None) -> Any:
    import torch
    from torch.nn.functional import normalize

    unit = normalize(patches, dim=1)
    into = None if kept is None else kept[: len(unit)]
    residuals = torch.sub(unit[:, None, :], centers[None, :, :], out=into)  # n k d
    labels = (unit @ normalize(centers, dim=1).T).argmax(dim=1)
    blocks = torch.zeros_like(centers)
    for word in labels.unique().tolist():
        blocks[word] = residuals[labels == word, word].sum(dim=0)
    return normalize(normalize(blocks, dim=1).flatten(), dim=0)  # normalize keeps zero blocks zero


def faiss_words(faiss: Any, patches: np.ndarray, words: int) -> np.ndarray:
    """Spherical k-means of all patches `t d` → `k d`; faiss would take 256 patches a word if it were let."""
    kmeans = faiss.Kmeans(
        patches.shape[1],
        words,
        niter=FAISS_ITERATIONS,
        spherical=True,
        seed=SEED,
        min_points_per_centroid=1,
        max_points_per_centroid=len(patches),
    )
    kmeans.train(patches)
    return kmeans.centroids


def faiss_search(faiss: Any, descriptors: np.ndarray, k: int) -> Callable[[np.ndarray], np.ndarray]:
    """Exhaustive inner-product search: queries `q D` → indices `q k`. The index is made here, not in the search."""
    index = faiss.IndexFlatIP(descriptors.shape[1])
    index.add(descriptors)
    return lambda queries: index.search(queries, k)[1]


def sklearn_whitened(decomposition: Any, descriptors: np.ndarray) -> np.ndarray:
    """Whitened unit rows `b r` of descriptors `b D`, all directions the rows can span kept."""
    pca = decomposition.PCA(n_components=min(len(descriptors) - 1, descriptors.shape[1]), whiten=True)
    return l2_normalize(pca.fit_transform(descriptors))
