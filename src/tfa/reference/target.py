"""The target-calibrated controller in plain float64 numpy, not optimized.

For heads that use unlabeled calibration images of the target domain. Vocabulary and PCA are fitted on the database
only; all database images are pseudo queries. `s` counts the three constructions, `q` calibration images, `j` database
images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tfa.reference.database import Pca, allowed, cosine, median_spread, support
from tfa.reference.relation import (
    ASSIGNMENTS,
    CARRIERS,
    EPS,
    Draws,
    Interval,
    Replica,
    Seen,
    Sets,
    as_float64,
    at,
    best,
    capacity_bootstrap,
    capacity_evidence,
    information,
    interval,
    pearson,
    pseudo,
    relation,
    retention,
    soft_minus_hard,
    subsamples,
    unit,
)
from tfa.reference.target_carrier import (
    Local,
    agreement,
    choose_carrier,
    choose_route,
    transfer_strengths,
    weight_of_soft,
)

# --- Global token ----------------------------------------------------------------------------------------


def coverage(top: np.ndarray, gallery: int) -> float:
    """Return H = clip(sqrt((O/M) / (p_max M)), 0, 1), M = min(N_q, N), from the pooled top-1 images (s, q)."""
    _, counts = np.unique(top, return_counts=True)
    largest = min(top.shape[1], gallery)
    return float(np.clip(np.sqrt((len(counts) / largest) / (counts.max() / top.size * largest)), 0, 1))


def top_z(seen: Seen) -> float:
    """Return the mean over rows of (max−mean)/(std+ε), over unmasked entries, with the population std."""
    z = []
    for row, may in zip(seen.scores, seen.unmasked, strict=True):
        x = row[may]
        z.append((x.max() - x.mean()) / (x.std() + EPS))
    return float(np.mean(z))


@dataclass(frozen=True)
class Branch:
    """Evidence about one branch of the fusion, local or global."""

    sigma: list[float]  # median row std of the pseudo queries, per construction
    spread: list[np.ndarray]  # row std of each calibration image, per construction
    B: float = 0.0
    J: float = 0.0
    H: float = 0.0
    Q: float = 0.0
    T: float = 0.0


def weigh(target: list[Seen], reference: list[Seen], draws: Draws) -> Branch:
    gallery = target[0].scores.shape[1]
    top = best(t.scores for t in target)
    i_target = float(information(top, gallery).mean())
    i_database = float(information(best(d.scores for d in reference), gallery).mean())
    b = max(min(i_target, i_database), 0.0)
    j = float(np.median(relation(target, reference, draws)))
    h = coverage(top, gallery)
    # T: top-1 z-score of target photos relative to that of pseudo queries.
    t = float(np.mean([top_z(t) / (top_z(d) + EPS) for t, d in zip(target, reference, strict=True)]))
    sigma = [median_spread(d.scores, d.unmasked) for d in reference]
    return Branch(sigma, [t.scores.std(axis=1) for t in target], b, j, h, (b * j * h) ** (1 / 3), t)


def weigh_local(local: Local, database: Sets, target: Sets, may: list[np.ndarray], draws: Draws) -> Branch:
    """Weigh branch l: the adaptive carrier, mixed on the mixture route."""
    found, reference = [], []
    for s in range(3):
        d, q = at(database, s), at(target, s)
        among = local.scores("adaptive", d, d, s)
        found.append(Seen(local.scores("adaptive", q, d, s), local.scores("adaptive", q, q, s), among))
        reference.append(pseudo(among, may[s]))
    return weigh(found, reference, draws)


def weigh_cls(cls: np.ndarray, target_cls: np.ndarray, may: list[np.ndarray], draws: Draws) -> Branch:
    """Weigh branch g: the cosine of global tokens; only the pseudo queries' mask differs between constructions."""
    among = cosine(cls, cls)
    found = Seen(cosine(target_cls, cls), cosine(target_cls, target_cls), among)
    return weigh([found] * 3, [pseudo(among, m) for m in may], draws)


def retention_ratios(local: Branch, cls: Branch) -> tuple[float, float, float]:
    """Return r_T, r_C, r_J."""
    return (
        cls.T / (local.T + EPS),
        cls.B / (local.B + EPS),
        math.sqrt(cls.B * cls.J) / (math.sqrt(local.B * local.J) + EPS),
    )


def admits(local: Branch, cls: Branch, corr: list[float]) -> bool:
    """Return (Q_g ≥ Q_l ∧ r_T ≥ 1) ∨ (all corr_s < 0 ∧ r_C, r_T, r_J ≥ 1); a zero σ rejects the token."""
    if min(local.sigma + cls.sigma) <= 0:
        return False
    r_t, r_c, r_j = retention_ratios(local, cls)
    better = cls.Q >= local.Q and r_t >= 1
    complementary = all(r < 0 for r in corr) and r_c >= 1 and r_t >= 1 and r_j >= 1
    return better or complementary


def share_of_local(local: Branch, cls: Branch) -> float:
    """Return Q_l / (Q_l+Q_g); one half if both are 0."""
    return local.Q / (local.Q + cls.Q) if local.Q + cls.Q > 0 else 0.5


@dataclass(frozen=True)
class PlainTarget:
    information_target: dict[str, np.ndarray]  # I(q) of every calibration image under S_0
    information_database: dict[str, float]  # mean over pseudo queries
    capacity: dict[str, float]  # C
    capacity_interval: Interval
    relation_median: dict[str, float]  # m_A, m_G
    relation_interval: dict[str, Interval]
    route: str  # hard | soft | mixture
    soft_weight: float
    strengths: dict[str, tuple[float, float]]  # (c, β) of the assignments in use
    rho: dict[str, list[float]]
    alpha: dict[str, list[float]]
    displacement: dict[str, list[float]]
    carrier: str
    candidates: dict[str, tuple[float, tuple[float, float, float]]]  # carrier → support, agreement of PAIRS
    sigma_local: list[float]
    sigma_cls: list[float]
    B: dict[str, float]  # of the branches "l" and "g"; "g" is 0 without global tokens
    J: dict[str, float]
    H: dict[str, float]
    Q: dict[str, float]
    T: dict[str, float]
    r_T: float
    r_C: float
    r_J: float
    corr: list[float]
    admit_cls: bool
    local_weight: float
    local: Local
    database: Sets
    cls: np.ndarray | None

    def scores(self, v: Replica, cls: np.ndarray | None, replica: int) -> np.ndarray:
        """Return final scores of one replica's query descriptors: assignment → (q, k·d)."""
        local = self.local.scores(self.carrier, v, at(self.database, replica), replica)
        if not self.admit_cls or cls is None or self.cls is None:
            return local
        similar = cosine(cls.astype(np.float64), self.cls)
        w = self.local_weight
        return w * local / self.sigma_local[replica] + (1 - w) * similar / self.sigma_cls[replica]


def calibrate(
    database: Sets,
    database_mass: Sets,
    target: Sets,
    target_mass: Sets,
    cls: np.ndarray | None,
    target_cls: np.ndarray | None,
) -> PlainTarget:
    """Make every decision from descriptors (b, k·d), block norms (b, k) and global tokens of database and target."""
    database, target = as_float64(database), as_float64(target)
    masses, target_masses = unit(as_float64(database_mass)), unit(as_float64(target_mass))
    may = {a: [allowed(d) for d in ds] for a, ds in database.items()}
    draws = subsamples(len(target["hard"][0]), len(database["hard"][0]))

    # Route: hard, soft, or both.
    i_target, i_database = capacity_evidence(database, target, may)
    capacity = capacity_bootstrap(i_target, i_database)
    change = {
        "A": soft_minus_hard(target_masses, masses, may, draws),
        "G": soft_minus_hard(target, database, may, draws),
    }
    median, bounds = {r: float(np.median(x)) for r, x in change.items()}, {r: interval(x) for r, x in change.items()}
    route = choose_route(capacity, median, bounds)
    used = ASSIGNMENTS if route == "mixture" else (route,)

    # Strengths and carrier of the assignments in use.
    pcas = {a: [Pca.fit(d) for d in database[a]] for a in used}
    strengths = {a: transfer_strengths(database[a], target[a], pcas[a]) for a in used}
    local = Local(weight_of_soft(route, median["A"]), {a: (x.c, x.beta) for a, x in strengths.items()}, pcas)
    top = {m: best(local.scores(m, at(target, s), at(database, s), s) for s in range(3)) for m in CARRIERS}

    # Global token against the adaptive carrier. An entry is masked if any assignment in use masks it.
    unmasked = [np.logical_and.reduce([may[a][s] for a in used]) for s in range(3)]
    l_branch = weigh_local(local, database, target, unmasked, draws)
    g_branch, corr = Branch([0.0] * 3, []), [0.0] * 3
    if cls is not None and target_cls is not None:
        cls, target_cls = cls.astype(np.float64), target_cls.astype(np.float64)
        g_branch = weigh_cls(cls, target_cls, unmasked, draws)
        corr = [pearson(x, y) for x, y in zip(l_branch.spread, g_branch.spread, strict=True)]
    r_t, r_c, r_j = retention_ratios(l_branch, g_branch)

    return PlainTarget(
        information_target=i_target,
        information_database=i_database,
        capacity={a: retention(float(i_target[a].mean()), i_database[a]) for a in ASSIGNMENTS},
        capacity_interval=capacity,
        relation_median=median,
        relation_interval=bounds,
        route=route,
        soft_weight=local.soft_weight,
        strengths=local.strengths,
        rho={a: x.rho for a, x in strengths.items()},
        alpha={a: x.alpha for a, x in strengths.items()},
        displacement={a: x.displacement for a, x in strengths.items()},
        carrier=choose_carrier(top),
        candidates={m: (support(t), agreement(t)) for m, t in top.items()},
        sigma_local=l_branch.sigma,
        sigma_cls=g_branch.sigma,
        B={"l": l_branch.B, "g": g_branch.B},
        J={"l": l_branch.J, "g": g_branch.J},
        H={"l": l_branch.H, "g": g_branch.H},
        Q={"l": l_branch.Q, "g": g_branch.Q},
        T={"l": l_branch.T, "g": g_branch.T},
        r_T=r_t,
        r_C=r_c,
        r_J=r_j,
        corr=corr,
        admit_cls=admits(l_branch, g_branch, corr),
        local_weight=share_of_local(l_branch, g_branch),
        local=local,
        database=database,
        cls=cls,
    )
