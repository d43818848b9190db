"""The published method in plain float64 numpy, not optimized.

The fast stages are tested against this module, which is also the shortest full statement of the method. Symbols follow
docs/explanation/method.md. Functions take whole arrays and loop where the formula says "for each".
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

SAME = 1 - 5e-13
PAIRS = ((0, 1), (0, 2), (1, 2))


def l2(x: np.ndarray) -> np.ndarray:
    """Normalize along the last axis, L2(0) = 0."""
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.divide(x, norm, out=np.zeros_like(x), where=norm > 0)


def tied(scores: np.ndarray, q: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Return scores (q, m) in which equal vectors have equal scores, whatever the rounding: those of the first."""

    def first_equal(v: np.ndarray) -> np.ndarray:
        _, first, inverse = np.unique(v, axis=0, return_index=True, return_inverse=True)
        return first[inverse.reshape(-1)]

    return scores[np.ix_(first_equal(q), first_equal(d))]


def cosine(q: np.ndarray, d: np.ndarray) -> np.ndarray:
    return tied(l2(q) @ l2(d).T, q, d)


def kmeans(x: np.ndarray, words: int, seed: int) -> np.ndarray:
    """Return unit centers (k, d) of Lloyd's k-means with a k-means++ start.

    Patches, and the centers they are compared with, are multiples of 1/2048, so every sum below is exact.
    """
    x = np.rint(x * 2048) / 2048
    rng = np.random.default_rng(seed)
    chosen = [int(rng.integers(len(x)))]
    nearest = np.full(len(x), np.inf)
    for _ in range(words - 1):
        nearest = np.minimum(nearest, ((x - x[chosen[-1]]) ** 2).sum(axis=1))
        mass = np.cumsum(nearest)
        drawn = np.searchsorted(mass, rng.random() * mass[-1], side="right") if mass[-1] > 0 else chosen[-1]
        chosen.append(min(int(drawn), len(x) - 1))
    centers, before = x[chosen].copy(), np.inf
    for _ in range(100):
        squared = ((x[:, None, :] - np.rint(centers * 2048)[None] / 2048) ** 2).sum(axis=2)
        label, distance = squared.argmin(axis=1), squared.min(axis=1)
        farthest = iter(np.argsort(-distance, kind="stable"))
        for k in range(words):
            members = x[label == k]
            centers[k] = members.mean(axis=0) if len(members) else x[next(farthest)]
        after = distance.mean()
        if np.isfinite(before) and before - after <= 1e-4 * before:
            break
        before = after
    return l2(centers)


def residual_descriptor(
    patches: np.ndarray, centers: np.ndarray, assignment: str, temperature: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return v, (k·d,), and block norms (k,) of one image's patches (n, d)."""
    patches = l2(patches.astype(np.float64))
    similarity = patches @ centers.T
    if assignment == "hard":
        weights = np.eye(len(centers))[similarity.argmax(axis=1)]
    else:
        weights = np.exp((similarity - similarity.max(axis=1, keepdims=True)) / temperature)
        weights /= weights.sum(axis=1, keepdims=True)
    blocks = np.stack([(weights[:, k, None] * (patches - centers[k])).sum(axis=0) for k in range(len(centers))])
    norms = np.linalg.norm(blocks, axis=1)
    return l2(l2(blocks).reshape(-1)), norms


@dataclass(frozen=True)
class Pca:
    mean: np.ndarray  # μ
    basis: np.ndarray  # U, (d_v, r)
    eigenvalues: np.ndarray  # λ, (r,)

    @classmethod
    def fit(cls, v: np.ndarray, max_rank: int = 4096) -> Pca:
        mean = v.mean(axis=0)
        eigenvalues, basis = np.linalg.eigh((v - mean).T @ (v - mean) / len(v))
        eigenvalues, basis = eigenvalues[::-1], basis[:, ::-1]
        kept = eigenvalues > eigenvalues[0] * max(v.shape) * np.finfo(np.float64).eps
        rank = min(int(kept.sum()), max_rank)
        return cls(mean, basis[:, :rank], eigenvalues[:rank])

    def coordinates(self, v: np.ndarray) -> np.ndarray:
        return (v - self.mean) @ self.basis

    def phi(self, v: np.ndarray, gamma: float) -> np.ndarray:
        return l2(self.coordinates(v) * self.eigenvalues ** (-gamma / 2))

    def whitened(self, q: np.ndarray, d: np.ndarray, gamma: float) -> np.ndarray:
        """Return S_w(γ); S_c is S_w(0), S_P is S_w(1/2)."""
        return self.phi(q, gamma) @ self.phi(d, gamma).T

    def adaptive(self, q: np.ndarray, d: np.ndarray, c: float, beta: float) -> np.ndarray:
        """Return S_A = (1−ℓ(c)) [(1−ℓ(β)) S_0 + ℓ(β) S_c] + ℓ(c) S_w(c)."""
        shaping, centering = np.sin(np.pi * c / 2) ** 2, np.sin(np.pi * beta / 2) ** 2
        inner = (1 - centering) * (q @ d.T) + centering * self.whitened(q, d, 0.0)
        return (1 - shaping) * inner + shaping * self.whitened(q, d, c)

    def carrier(self, name: str, q: np.ndarray, d: np.ndarray, c: float, beta: float) -> np.ndarray:
        if name == "original":
            return tied(q @ d.T, q, d)
        return tied(self.whitened(q, d, 0.5) if name == "partial" else self.adaptive(q, d, c, beta), q, d)


def dispersion_penalized(x: np.ndarray) -> float:
    """Return L(x)."""
    mad = np.median(np.abs(x - np.median(x)))
    normal = NormalDist()
    return float(np.clip(np.median(x) - normal.inv_cdf(0.975) * mad / (normal.inv_cdf(0.75) * np.sqrt(3)), 0, 1))


def strengths(vs: list[np.ndarray], pcas: list[Pca]) -> tuple[float, float]:
    """Return c and β of one assignment from its three descriptor sets."""
    order = np.random.default_rng(0).permutation(len(vs[0]))
    one, two = order[0::2], order[1::2]
    rho, alpha, moved = [], [], []
    for v, pca in zip(vs, pcas, strict=True):
        energy = pca.coordinates(v) ** 2
        with np.errstate(invalid="ignore", divide="ignore"):
            r = np.corrcoef(energy[one].mean(axis=0), energy[two].mean(axis=0))[0, 1] if energy.shape[1] > 1 else 0.0
        rho.append(float(r) if np.isfinite(r) else 0.0)
        nu = np.linalg.eigvalsh(v @ v.T)
        alpha.append(np.clip(rho[-1], 0, 1) ** (2 * nu.sum() ** 2 / (nu**2).sum()))
        moved.append(
            np.linalg.norm(v[one].mean(axis=0) - v[two].mean(axis=0))
            / max(float(np.linalg.norm(v.mean(axis=0))), 1e-30)
        )
    beta = np.clip(np.median(moved) * (1 - dispersion_penalized(np.array(rho))), 0, 1)
    return dispersion_penalized(np.array(alpha)), float(beta)


# --- Evidence and decisions ------------------------------------------------------------------------------


def allowed(v: np.ndarray) -> np.ndarray:
    """Return the unmasked gallery entries of each pseudo query: not itself, not its numerical duplicates."""
    unit = l2(v.astype(np.float64))
    return (unit @ unit.T < SAME) & ~np.eye(len(v), dtype=bool)


def tops(scores: list[np.ndarray], may: list[np.ndarray]) -> np.ndarray:
    return np.stack([np.where(m, s, -np.inf).argmax(axis=1) for s, m in zip(scores, may, strict=True)])


def support(top: np.ndarray) -> float:
    return float(np.mean([len(set(row.tolist())) for row in top]))


def gain(one: np.ndarray, other: np.ndarray) -> float:
    """Return D: the largest change of agreement over the construction pairs."""
    return max(float((one[s] == one[t]).mean() - (other[s] == other[t]).mean()) for s, t in PAIRS)


def beats(one: np.ndarray, other: np.ndarray) -> bool:
    return support(one) > support(other) and gain(one, other) >= 0


def median_spread(scores: np.ndarray, may: np.ndarray) -> float:
    return float(np.median([row[m].std() for row, m in zip(scores, may, strict=True)]))


@dataclass(frozen=True)
class PlainHead:
    assignment: str
    carrier: str
    admit_cls: bool
    c: float
    beta: float
    sigma_local: list[float]
    sigma_cls: list[float]
    vs: list[np.ndarray]
    pcas: list[Pca]
    cls: np.ndarray | None

    def scores(self, v: np.ndarray, cls: np.ndarray | None, replica: int) -> np.ndarray:
        """Return scores of query descriptors of the chosen assignment."""
        local = self.pcas[replica].carrier(self.carrier, v, self.vs[replica], self.c, self.beta)
        if not self.admit_cls or cls is None or self.cls is None:
            return local
        return (local / self.sigma_local[replica] + cosine(cls, self.cls) / self.sigma_cls[replica]) / 2


def decide(descriptors: dict[str, list[np.ndarray]], cls: np.ndarray | None) -> PlainHead:
    """Decide, as in section 4 of the method, from the descriptors of both assignments in three constructions."""
    pcas = {a: [Pca.fit(v) for v in vs] for a, vs in descriptors.items()}
    strength = {a: strengths(vs, pcas[a]) for a, vs in descriptors.items()}
    may = {a: [allowed(v) for v in vs] for a, vs in descriptors.items()}

    def scored(a: str, carrier: str) -> list[np.ndarray]:
        return [p.carrier(carrier, v, v, *strength[a]) for p, v in zip(pcas[a], descriptors[a], strict=True)]

    adaptive = {a: tops(scored(a, "adaptive"), may[a]) for a in descriptors}
    a = "hard" if beats(adaptive["hard"], adaptive["soft"]) else "soft"
    sigma_local = [median_spread(s, m) for s, m in zip(scored(a, "adaptive"), may[a], strict=True)]
    sigma_cls, admit = [0.0] * 3, False
    if cls is not None:
        similar = cosine(cls, cls)
        sigma_cls = [median_spread(similar, m) for m in may[a]]
        fused = [
            (s / x + similar / y) / 2 for s, x, y in zip(scored(a, "adaptive"), sigma_local, sigma_cls, strict=True)
        ]
        admit = beats(tops(fused, may[a]), adaptive[a])
    original, partial = tops(scored(a, "original"), may[a]), tops(scored(a, "partial"), may[a])
    if support(partial) <= support(original) and gain(partial, original) < 0:
        carrier = "original"
    elif support(partial) > support(adaptive[a]) or (
        support(adaptive[a]) > support(partial) and gain(adaptive[a], partial) < 0
    ):
        carrier = "partial"
    else:
        carrier = "adaptive"
    return PlainHead(a, carrier, admit, *strength[a], sigma_local, sigma_cls, descriptors[a], pcas[a], cls)
