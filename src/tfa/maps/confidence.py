"""Confidence of answers, expected recall, position estimates and domain shift.

S(a, ·) are the scores of image a with all map images under the head that answers, without centering or bias. They come
from gallery rows, so no photo is needed, and are known up to a constant per row.

Confidence is the probability that an answer is right. An answer is reliable if the alternatives show its place, too,
and if the photo resembles them as the answer does. Both are measured on the top images c, all reranked ones and at
least 30:

    s_c        = (S(a, c) − mean S(a, ·)) / (max S(a, ·) − mean S(a, ·)), between 0 and 1; s_a = 1
    p          = softmax of the ordering divided by T: z + 5 √M if reranked, else z
    place      = logit of Σ p_c s_c, clipped to 0.01 … 0.9933
    agreement  = correlation, over c ≠ a, of z_c with S(a, c); 0 if one does not vary
    lead       = √M_a − Σ (1 − s_c) √M_c / Σ (1 − s_c), over reranked images: evidence beyond that of other places
    confidence = σ(offset + per_place · place + per_agreement · agreement + per_lead · clip(lead, 0, 2))

a is the answer and z the z-score in the photo's row. A neighboring frame does not lower the confidence; another place
with the same score does. An answer is sure if it is reranked, its confidence is at least 0.92, and its lead at least
0.75. Its verdict is then *recognized*. Other answers are *probable* from a confidence of 0.75 on.

With fewer than 10 images to choose from, other places are too few to compare with: confidence is multiplied by
images / 10, and no answer is sure.

The confidence of a later hit is computed as if it were the answer, but is never above that of the hit before it. One
formula serves all heads; an answer that is not reranked has no lead. The constants were fitted on labeled public
datasets, each left out in turn (docs/explanation/confidence.md), never on a user's map. Frames of a drive have the
probability of the filter instead (`tfa.online.sequence_filter`).

Expected recall on similar photos needs no labels:

    share    = mean confidence of the answers
    interval = share ± 1.645 √(τ² + Σ c (1 − c) / n²), within 0 and 1

τ is the root mean square difference between mean confidence and recall on datasets that the constants were not fitted
on (`benchmarks/studies/confidence.py`); the sum is the sampling variance of n answers of confidence c. 90 % of such
intervals should contain the recall.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tfa.core.arrays import l2_normalize
from tfa.core.text import format_command
from tfa.maps.state import NamedHead
from tfa.method.carriers import MEAN
from tfa.method.scorer import GLOBAL, Scorer, SecondOrderSide
from tfa.online.sequence_filter import EARTH_RADIUS, estimate_step, project_to_meters
from tfa.search.gallery import ExactSearch, QueryVectors
from tfa.types import (
    NOT_RECOGNIZED,
    PROBABLE,
    RECOGNIZED,
    Answer,
    Answers,
    ExpectedRecall,
    ImageRecord,
    Place,
    Position,
)
from tfa.verification.reranking import UNVERIFIED, Reranked

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


NEAREST = 16  # images searched for the nearest one that is not a duplicate
_IMAGES_PER_SEARCH = 64  # images searched at a time


class DatabaseScores:
    """Cached scores between images, given by their gallery `rows`, `(m,)`."""

    def __init__(
        self,
        scorer: Scorer,
        rows: np.ndarray | None = None,
        ids: np.ndarray | None = None,
        searcher: ExactSearch | None = None,
    ) -> None:
        """Score images; `searcher` searches them by their ascending `ids`. [default: exact search]"""
        self.scorer, self.rows = scorer, np.arange(len(scorer.bias)) if rows is None else rows
        self._first = self.rows if scorer.duplicates is None else scorer.duplicates[self.rows]
        self._ids = np.arange(len(self.rows)) if ids is None else ids
        self._searcher = searcher or ExactSearch(scorer.rows, self._ids, self.rows)
        self._mean_best = np.full((2, len(self.rows)), np.nan)

    def between(self, images: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return S(a, c) as float64, `(a, c)`."""
        return score_pairs(self.scorer, self._first[images], self.scorer, self._first[others])

    def mean_and_best(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and maximum of S(a, ·) over other images, `(a,)` each; the maximum also excludes duplicates.

        The maximum is over the NEAREST images that the search returns.
        """
        unknown = np.unique(images[np.isnan(self._mean_best[0, images])])
        for start in range(0, len(unknown), _IMAGES_PER_SEARCH):
            self._look(unknown[start : start + _IMAGES_PER_SEARCH])
        mean, best = self._mean_best[:, images]
        return mean, best

    def _look(self, images: np.ndarray) -> None:
        scorer, first, count = self.scorer, self._first[images], len(self.rows)
        found = self._searcher.search(scorer.image_vectors(first), NEAREST)
        columns = np.searchsorted(self._ids, found.ids)
        bias, other = scorer.bias[self._first], self._first[columns] != first[:, None]
        own = np.array([score_pairs(scorer, one, scorer, one)[0, 0] for one in first[:, None]])
        scores = np.where(other, found.scores - bias[columns], -np.inf)
        mean = found.mean - bias.mean()
        # Exclude the image itself from the mean. If the search found only duplicates, use its score with itself.
        self._mean_best[0, images] = (mean * count - own) / max(count - 1, 1)
        self._mean_best[1, images] = np.where(other.any(axis=1), scores.max(axis=1), own)


def score_pairs(scorer: Scorer, rows: np.ndarray, other: Scorer, others: np.ndarray) -> np.ndarray:
    """Score images of two scorers of one head as float64, `(a, c)`, without centering and bias."""
    vectors, galleries = scorer.image_vectors(rows), other.rows
    total = np.zeros((len(rows), len(others)))
    for weight, gallery, features in zip(galleries.weights, galleries.galleries, vectors.terms, strict=True):
        total += weight * (features.astype(np.float64) @ gallery.take(others).astype(np.float64).T)
    return total


# --- confidence -----------------------------------------------------------------------------------

ALTERNATIVES = 30  # minimum number of images that an answer is compared with
_LOWEST, _HIGHEST = 0.01, 0.9933  # clipping range of Σ p_c s_c
SURE_CONFIDENCE, SURE_LEAD = 0.92, 0.75
PROBABLE_CONFIDENCE = 0.75  # minimum confidence of a probable answer, also of frames
FEW_MAP_IMAGES = 10  # images below which confidence shrinks and no answer is sure
SURE_FRAME = 0.9  # minimum probability of a sure frame, see `DomainShiftMonitor`
_MAX_LEAD = 2.0  # a larger lead does not raise the confidence
_EPSILON = 1e-12


class ImageScores(Protocol):
    """Scores between images, by their indices in `Reranked`."""

    def between(self, images: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return S(a, c), `(a, c)`."""
        ...

    def mean_and_best(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and maximum of S(a, ·) over other images, `(a,)` each."""
        ...


@dataclass(frozen=True)
class Constants:
    """Constants of the confidence formula, for reranked answers or for others."""

    temperature: float
    offset: float
    per_place: float
    per_agreement: float
    per_lead: float = 0.0


# Rounded fit on eight datasets, queried photo by photo, in driving order, and after calibration with 64 photos.
VERIFIED_CONSTANTS = Constants(0.5, -1.4, 0.52, 1.1, 1.5)
UNVERIFIED_CONSTANTS = Constants(0.33, -1.25, 0.6, 1.7)


@dataclass(frozen=True)
class Features:
    """Features of the confidence of hits, `(q, k)` each."""

    place: np.ndarray
    agreement: np.ndarray
    lead: np.ndarray  # 0 if not reranked
    verified: np.ndarray  # bool

    def confidence(
        self, verified: Constants = VERIFIED_CONSTANTS, plain: Constants = UNVERIFIED_CONSTANTS
    ) -> np.ndarray:
        """Compute the confidence, `(q, k)`."""
        logits = (
            by.offset + self.columns() @ (by.per_place, by.per_agreement, by.per_lead) for by in (verified, plain)
        )
        return 1 / (1 + np.exp(-np.where(self.verified, *logits)))

    def sure(self, confidence: np.ndarray) -> np.ndarray:
        """Return which hits of that confidence are sure, bool `(q, k)`."""
        return self.verified & (confidence >= SURE_CONFIDENCE) & (self.lead >= SURE_LEAD)

    def columns(self) -> np.ndarray:
        """Stack place, agreement and clipped lead, `(…, 3)`."""
        return np.stack([self.place, self.agreement, np.clip(self.lead, 0, _MAX_LEAD)], axis=-1)


def compute_confidence(ranked: Reranked, image_scores: ImageScores, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute confidence and sure of the top k images of each query, `(q, k)` each.

    `ranked` must hold all reranked images, and at least 30 images if the map has them.
    """
    features, images = compute_features(ranked, image_scores, k), ranked.indices.shape[1]
    # A later hit is a worse answer, even if more images show its place.
    confidence = np.minimum.accumulate(features.confidence(), axis=1) * shrink_confidence(images)
    return confidence, features.sure(confidence) & (images >= FEW_MAP_IMAGES)


def shrink_confidence(images: int) -> float:
    """Return the factor of confidence with this number of images to choose from, 1 from `FEW_MAP_IMAGES` on."""
    return min(images / FEW_MAP_IMAGES, 1.0)


def note_few_images(images: int) -> list[str]:
    """Warn of a map with too few images to tell places apart."""
    if images >= FEW_MAP_IMAGES:
        return []
    return [f"the map has only {images} images; below {FEW_MAP_IMAGES} no photo is recognized, at most probable"]


def compute_features(ranked: Reranked, image_scores: ImageScores, k: int) -> Features:
    """Compute the features of the top k images of each query."""
    k = min(k, ranked.indices.shape[1])
    shape = (len(ranked.indices), k)
    place, agreement, lead = np.zeros((3, *shape))
    verified = ranked.inliers != UNVERIFIED
    for row, images in enumerate(ranked.indices):
        compared = int(verified[row].sum())
        count = max(compared, ALTERNATIVES)
        others, hits = images[:count], images[:k]
        scores = image_scores.between(hits, others)
        same = hits[:, None] == others
        mean, best = image_scores.mean_and_best(hits)
        s = np.clip((scores - mean[:, None]) / np.maximum(best - mean, _EPSILON)[:, None], 0, 1)
        alike = np.where(same, 1.0, s)
        temperature = (VERIFIED_CONSTANTS if compared else UNVERIFIED_CONSTANTS).temperature
        share = np.clip(alike @ softmax(ranked.ordering[row, :count] / temperature), _LOWEST, _HIGHEST)
        place[row] = np.log(share / (1 - share))
        agreement[row] = _correlation(scores, ranked.standardized[row, :count], ~same)
        if compared:
            roots = np.sqrt(ranked.evidence[row])
            lead[row] = _leads(roots[:k], roots[:compared], 1 - alike[:, :compared])
    return Features(place, agreement, np.where(verified[:, :k], lead, 0.0), verified[:, :k])


def softmax(values: np.ndarray) -> np.ndarray:
    shares = np.exp(values - values.max())
    return shares / shares.sum()


def _correlation(scores: np.ndarray, standardized: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Correlate each row of scores `(k, c)` with `(c,)` over the columns that count; 0 if one does not vary."""
    number = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    ours = np.where(counts, scores, 0.0)
    theirs = np.where(counts, standardized, 0.0)
    ours = np.where(counts, ours - ours.sum(axis=1, keepdims=True) / number, 0.0)
    theirs = np.where(counts, theirs - theirs.sum(axis=1, keepdims=True) / number, 0.0)
    norm = np.sqrt((ours * ours).sum(axis=1) * (theirs * theirs).sum(axis=1))
    return np.where(norm > _EPSILON, (ours * theirs).sum(axis=1) / np.maximum(norm, _EPSILON), 0.0)


def _leads(hits: np.ndarray, roots: np.ndarray, unlike: np.ndarray) -> np.ndarray:
    """Return √M of hits `(k,)` minus the mean √M `(c,)` of other places, weighted by dissimilarity `(k, c)`."""
    total = unlike.sum(axis=1)
    return np.where(total > _EPSILON, hits - (unlike @ roots) / np.maximum(total, _EPSILON), 0.0)


# --- expected recall ------------------------------------------------------------------------------

NINE_IN_TEN = 1.645  # half width of a 90 % interval, in standard deviations
BETWEEN_DATASETS = {True: 0.10, False: 0.11}  # τ of reranked answers and of others


def estimate_recall(confidence: ArrayLike, sure: ArrayLike, *, verified: bool) -> ExpectedRecall | None:
    """Estimate recall from confidence and sure of answers, `(n,)` each; None without answers."""
    confidence, sure = np.asarray(confidence, np.float64), np.asarray(sure, bool)
    if not len(confidence):
        return None
    share, chance = float(confidence.mean()), float((confidence * (1 - confidence)).mean()) / len(confidence)
    half = NINE_IN_TEN * float(np.sqrt(BETWEEN_DATASETS[verified] ** 2 + chance))
    return ExpectedRecall(
        share=share, low=max(share - half, 0.0), high=min(share + half, 1.0), sure=float(sure.mean()),
        photos=len(confidence),
    )  # fmt: skip


def estimate_answer_recall(answers: Iterable[Answer], *, outside: bool = False) -> ExpectedRecall | None:
    """Estimate recall from answers to single photos, without unreadable photos and frames of a drive.

    If the photos may be from outside the map, the interval starts at 0.
    """
    counted = [one for one in answers if one.error is None and one.lost is None]
    verified = bool(counted) and sum(one.reranked for one in counted) * 2 >= len(counted)
    expected = estimate_recall([one.confidence for one in counted], [one.sure for one in counted], verified=verified)
    return replace(expected, low=0.0) if expected is not None and outside else expected


def collect_answers(answers: Sequence[Answer], notice: str | None = None, *, outside: bool = False) -> Answers:
    """Collect answers in order, with the expected recall; photos from outside the map are at most recognized singly."""
    expected = estimate_answer_recall(answers, outside=outside)
    judged = [reject_outside(one) if outside else one for one in answers]
    return Answers(answers=judged, expected_recall=expected, notice=notice)


# --- verdict --------------------------------------------------------------------------------------

PATCHES_LEAD = "its patches match one place far better than others"
FRAMES_AGREE = "this frame and those before it agree on the place"
NOT_CLEARLY = "one place leads, but not clearly"
NOT_RERANKED = "one place leads, but the answer was not reranked"
NONE_STANDS_OUT = "no candidate stands out"
OUTSIDE_MAP = "these photos match the map no better than chance"
LOST_FOR = "the camera has been lost for"
SMALL_MAP = f"there are fewer than {FEW_MAP_IMAGES} map images to compare with"


def judge_answer(answer: Answer, images: int, *, reranked: bool) -> Answer:
    """Add verdict and reason to an answer with hits, by confidence and the number of `images` to choose from."""
    if answer.sure:
        return replace(answer, verdict=RECOGNIZED, reason=PATCHES_LEAD if answer.lost is None else FRAMES_AGREE)
    few = SMALL_MAP if images < FEW_MAP_IMAGES else None
    if answer.hits and answer.confidence >= PROBABLE_CONFIDENCE:
        return replace(answer, verdict=PROBABLE, reason=few or (NOT_CLEARLY if reranked else NOT_RERANKED))
    return replace(answer, reason=few or NONE_STANDS_OUT) if answer.hits else answer


def reject_outside(answer: Answer) -> Answer:
    """Lower a probable answer if its photo is one of many that match no image better than chance."""
    if answer.sure or answer.reason not in (NOT_CLEARLY, NOT_RERANKED, NONE_STANDS_OUT):
        return answer
    return replace(answer, verdict=NOT_RECOGNIZED, reason=OUTSIDE_MAP)


def blame_flaw(answer: Answer, flaw: str | None) -> Answer:
    """Give a flaw of the photo, such as blur, as the reason unless the answer is recognized."""
    return answer if flaw is None or answer.sure else replace(answer, reason=flaw)


# --- place ----------------------------------------------------------------------------------------

REACH = 25.0  # meters within which two photos are commonly said to show one place
MOST_REACH = 1000.0  # maximum reach, in meters
LEAST_SHARE = 0.5
MOST_BELIEVED = 100  # most likely images of a filter that are used

NOT_VERIFIED = "no answer was reranked"
NO_POSITIONS = "the hits have no positions"
TWO_KINDS = "some positions are in degrees and others in meters"
NO_EVIDENCE = "the likeliest place has no more evidence than others"
CAMERA_LOST = "the camera is lost"

Located = tuple[Place | None, str | None]  # a place, or the reason for its absence


def locate_photo(ranked: Reranked, row: int, images: Sequence[ImageRecord], reach: float) -> Located:
    """Locate one query photo; `ranked` refers to `images`."""
    compared = int((ranked.inliers[row] != UNVERIFIED).sum())
    if not compared:
        return None, NOT_VERIFIED
    positions = [images[i].position for i in ranked.indices[row, :compared].tolist()]
    shares = softmax(ranked.ordering[row, :compared] / VERIFIED_CONSTANTS.temperature)
    return fuse_positions(positions, shares, np.sqrt(ranked.evidence[row, :compared]), reach)


def locate_frame(probabilities: np.ndarray, images: Sequence[ImageRecord], reach: float) -> Located:
    """Locate a frame by the filter's probability of each image, `(m,)`."""
    best = np.argsort(-probabilities, kind="stable")[:MOST_BELIEVED]
    return fuse_positions([images[i].position for i in best.tolist()], probabilities[best], None, reach)


def fuse_positions(
    positions: Sequence[Position | None], shares: np.ndarray, roots: np.ndarray | None, reach: float
) -> Located:
    """Fuse positions of images with shares p `(c,)` and √M `(c,)`, best first; without √M, shares are the weights.

        p     = softmax of the ordering z + 5 √M, divided by 0.5, as for the confidence
        place = the images within reach of the one with the largest share around it; none if that is below a half
        b     = mean √M of the reranked images outside it, the evidence of a wrong place; 0 without such images
        w     = max(√M − b, 0)² of the images inside
        x     = Σ w x_c / Σ w,   σ² = Σ w |x_c − x|² / Σ w,   n = (Σ w)² / Σ w²
        r²    = (reach² + n σ²) / (n + 1)

    A wrong image elsewhere lowers the share but does not move the place. The radius of a single image is the reach;
    each image that agrees brings it closer to their spread. The reach is 25 m, or the map's usual step if that is
    longer (up to 1 km). For a frame of a drive, p and w are the filter's probabilities.
    """
    placed = np.array([row for row, position in enumerate(positions) if position is not None], np.int64)
    known = [position for position in positions if position is not None]
    if not known:
        return None, NO_POSITIONS
    if len({position.is_global for position in known}) > 1:
        return None, TWO_KINDS
    plane = _Plane(known[int(shares[placed].argmax())])
    points = plane.points(known)
    near = np.linalg.norm(points[:, None] - points, axis=-1) <= reach
    around = near @ shares[placed]
    middle = int(around.argmax())
    if around[middle] < LEAST_SHARE:
        return None, f"hits disagree: the likeliest place has {100 * around[middle]:.0f} % agreement"
    inside = near[middle]
    if roots is None:
        weights = shares[placed][inside]
    else:
        elsewhere = np.delete(roots, placed[inside])
        wrong = elsewhere.mean() if len(elsewhere) else 0.0
        weights = np.maximum(roots[placed][inside] - wrong, 0.0) ** 2
    if not weights.sum() > 0:
        return None, NO_EVIDENCE
    weights = weights / weights.sum()
    point = weights @ points[inside]
    spread = weights @ ((points[inside] - point) ** 2).sum(axis=1)
    count = 1 / (weights @ weights)
    radius = np.sqrt((reach**2 + count * spread) / (count + 1))
    place = Place(  # a sum of shares may round to more than 1
        position=plane.position(point), radius=float(radius), share=min(float(around[middle]), 1.0),
        images=int((weights > 0).sum()),
    )  # fmt: skip
    return place, None


def measure_reach(images: Sequence[ImageRecord]) -> float:
    """Return 25 m, or the usual step of the map if that is longer, up to 1 km."""
    known = [image.position for image in images if image.position is not None]
    globe = [position.pair for position in known if position.is_global]
    on_globe = 2 * len(globe) >= len(known)  # use the more common kind
    pairs = np.array(globe if on_globe else [one.pair for one in known if not one.is_global])
    if len(pairs) < 3:
        return REACH
    return float(np.clip(estimate_step(project_to_meters(*pairs.T) if on_globe else pairs), REACH, MOST_REACH))


@dataclass(frozen=True)
class _Plane:
    """Local plane: positions as points `(c, 2)` in meters east and north of an origin."""

    origin: Position

    def points(self, positions: Sequence[Position]) -> np.ndarray:
        offsets = np.array([position.pair for position in positions]) - self.origin.pair
        if not self.origin.is_global:
            return offsets
        north, east = offsets.T
        east = (east + 180) % 360 - 180  # the short way, also across the 180th meridian
        return np.radians(np.stack([east * self._narrowing, north], axis=1)) * EARTH_RADIUS

    def position(self, point: np.ndarray) -> Position:
        first, second = self.origin.pair
        if not self.origin.is_global:
            return Position(x=first + float(point[0]), y=second + float(point[1]))
        east, north = np.degrees(point / EARTH_RADIUS)
        lon = (second + float(east) / self._narrowing + 180) % 360 - 180
        return Position(lat=float(np.clip(first + float(north), -90, 90)), lon=lon)

    @property
    def _narrowing(self) -> float:
        """Length of a degree of longitude at this latitude, relative to the equator; never 0, also at the poles."""
        return max(float(np.cos(np.radians(self.origin.pair[0]))), 1e-9)


WINDOW_PHOTOS = 256  # number of most recent photos
MIN_PHOTOS, MIN_PHOTOS_CENTERED = 16, 64
_MAX_ANSWER_SIMILARITY, _MIN_PAIRS = 0.05, 8
COMMON_LIMIT, _EVIDENCE_LIMIT = 0.25, 0.5
STAND_OUT = 0.33  # median excess below which photos may be from outside the map
_FRAMES = 16  # most recent frames of a drive that must stand out


class DomainShiftMonitor:
    """Detect that recent photos differ from those a head was made for, or show other places than the map.

        excess    largest √M of a photo minus the median √M of its candidates, which is its chance level

        common    mean ⟨φ_i, φ_j⟩ over pairs of photos with dissimilar answers: ⟨φ_a, φ_b⟩ ≤ 0.05
        evidence  median over photos of the largest √M among their candidates, divided by that of usual photos

    φ are second-order coordinates, half whitened and centered as in the head. Photos of different places share the
    shift of another camera, season or light; the limit is 0.25. Usual photos are map images, each hidden in turn, or
    those of the active calibration; the limit is half of their evidence. At least 16 photos are needed, or 64 if the
    head is centered on other photos, because frames of a drive share scenery, too.

    Photos of other places match nothing better than chance: their median excess is below 0.33, that of photos of the
    map is above (`benchmarks/studies/confidence.py`, docs/explanation/confidence.md). 16 photos are needed. A frame of
    a drive is sure if the filter's probability is at least 0.9 and the last 16 frames stand out.
    """

    def __init__(self, usual_evidence: float | None = None, *, centered: bool = False) -> None:
        """Start without photos; `centered` if the head is centered on other photos than the map's."""
        self._usual, self._fewest = usual_evidence, MIN_PHOTOS_CENTERED if centered else MIN_PHOTOS
        # φ of the photo, φ of its answer, and the answer
        self._photos: deque[tuple[np.ndarray, np.ndarray, int]] = deque(maxlen=WINDOW_PHOTOS)
        self._evidence: deque[float] = deque(maxlen=WINDOW_PHOTOS)
        self._excess: deque[float] = deque(maxlen=WINDOW_PHOTOS)

    @classmethod
    def for_head(cls, head: NamedHead) -> DomainShiftMonitor:
        """Make a monitor for a head of a map."""
        usual = (head.verification or {}).get("usual_evidence")
        return cls(usual, centered=any(side.shift is not None for side in head.stored.scorer.sides))

    def observe(
        self,
        scorer: Scorer,
        photos: Sequence[QueryVectors],
        ranked: Reranked,
        rows: np.ndarray,
        ids: np.ndarray | None = None,
    ) -> None:
        """Observe answered photos; `rows` are the gallery rows of the images, `ids` stable ids if rows change."""
        first = rows[ranked.indices[:, 0]]
        known_by = first if ids is None else ids[ranked.indices[:, 0]]
        coordinates = [half_whiten(scorer, some) for some in photos]
        theirs = half_whiten(scorer, scorer.image_vectors(first))
        if theirs is not None:
            ours = np.concatenate([some for some in coordinates if some is not None])
            self._photos.extend(zip(ours, theirs, known_by.tolist(), strict=True))
        largest, excess = measure_excess(ranked)
        self._evidence.extend(largest)
        self._excess.extend(excess)

    @property
    def common(self) -> float | None:
        """Mean product of photos with dissimilar answers; None with too few of them."""
        if len(self._photos) < self._fewest:
            return None
        ours, theirs, answers = (np.array(column) for column in zip(*self._photos, strict=True))
        pairs = np.triu(answers[:, None] != answers, 1) & (theirs @ theirs.T <= _MAX_ANSWER_SIMILARITY)
        return float((ours @ ours.T)[pairs].mean()) if pairs.sum() >= _MIN_PAIRS else None

    @property
    def evidence(self) -> float | None:
        """Evidence relative to usual photos; None with too few reranked photos, or if that is unknown."""
        if not self._usual or len(self._evidence) < self._fewest:
            return None
        return float(np.median(self._evidence)) / self._usual

    @property
    def is_outside(self) -> bool:
        """Whether the photos match no map image better than chance; False with too few reranked photos."""
        return len(self._excess) >= MIN_PHOTOS and float(np.median(self._excess)) < STAND_OUT

    @property
    def has_evidence(self) -> bool:
        """Whether a photo was reranked."""
        return bool(self._excess)

    @property
    def stands_out(self) -> bool:
        """Whether the last frames of a drive match map images better than chance."""
        return stand_out(self._excess)

    def warning(self, name: str = "MAP") -> str | None:
        """Return a sentence with advice if a limit is exceeded, or None; `name` is the map."""
        common, evidence, reasons = self.common, self.evidence, []
        advice = f"calibrate the map for their camera: {format_command('tfa', 'calibrate', name, 'PHOTOS')}"
        if self.is_outside:
            return (
                "these photos match the map images no better than chance: either their camera, season or light is very "
                f"different, or they do not show this place. If they show it, {advice}"
            )
        if common is not None and common >= COMMON_LIMIT:
            reasons.append(f"photos of different places share a shift of {common:.2f} (limit {COMMON_LIMIT})")
        if evidence is not None and evidence < _EVIDENCE_LIMIT:
            reasons.append(f"geometric evidence is {evidence:.0%} of the usual (limit {_EVIDENCE_LIMIT:.0%})")
        if not reasons:
            return None
        return (
            "these photos differ from those the map is made for, or they do not show this place: "
            f"{'; '.join(reasons)}. If they show it, {advice}"
        )


def measure_excess(ranked: Reranked) -> tuple[list[float], list[float]]:
    """Return the largest √M of each reranked photo, and its excess over the median √M of the candidates."""
    rows = zip(ranked.evidence, ranked.inliers != UNVERIFIED, strict=True)
    roots = [np.sqrt(evidence[candidate]) for evidence, candidate in rows if candidate.any()]
    return [float(one.max()) for one in roots], [float(one.max() - np.median(one)) for one in roots]


def stand_out(excess: Iterable[float]) -> bool:
    """Return whether the last frames of a drive match map images better than chance."""
    last = list(excess)[-_FRAMES:]
    return bool(last) and float(np.median(last)) >= STAND_OUT


def half_whiten(scorer: Scorer, vectors: QueryVectors) -> np.ndarray | None:
    """Return φ_½ of the first side of a second-order scorer, `(q, r)` float32; None for other scorers."""
    for term, features in zip(scorer.terms, vectors.terms, strict=True):
        side = None if term.side == GLOBAL else scorer.sides[term.side]
        if not isinstance(side, SecondOrderSide) or term.gamma == MEAN:
            continue
        if term.gamma is None:
            coordinates, gamma = features - side.mean_coordinates.astype(features.dtype), 0.0
        else:
            assert isinstance(term.gamma, float)
            coordinates, gamma = features, term.gamma
        return l2_normalize(coordinates * (side.eigenvalues ** (gamma / 2 - 0.25)).astype(features.dtype)).astype(
            np.float32
        )
    return None
