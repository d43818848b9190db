"""Images that a collection found, with their own rows, and what they score with each other.

`CandidateScores` is `maps.own_scores` for a map in a store: its mean comes from moments, its best from a search with
the image's own vector.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tfa.errors import BadMap, BadPositions
from tfa.maps.own_scores import NEAREST
from tfa.maps.records import ImageRecord
from tfa.maps.store.rows import SpaceRows, ranks_of
from tfa.maps.store.versions import Version
from tfa.method.scorer import Scorer
from tfa.photos.positions import Position
from tfa.search.exact import QueryVectors, direct_sum
from tfa.search.gallery import as_multiplied
from tfa.search.store import NO_ID, Payload

REMEMBERED = 100_000  # images whose mean and best scores are kept


@dataclass(frozen=True)
class Found:
    """Images by growing id, and the head over their rows."""

    ids: np.ndarray
    records: Sequence[ImageRecord]
    scorer: Scorer

    def __len__(self) -> int:
        return len(self.ids)


def fetched(version: Version, ids: np.ndarray) -> Found:
    """Those of the ids that are there, read in one request."""
    entries = version.collection.fetch(np.unique(ids))
    order = np.argsort(entries.ids, kind="stable")
    head = version.head.stored.scorer
    rows = SpaceRows.of_bytes([entries.full[i] for i in order], ranks_of(head))
    records = [record_of(int(entries.ids[i]), entries.payload[i]) for i in order]
    return Found(entries.ids[order], records, rows.scorer(head))


def record_of(own: int, payload: Payload) -> ImageRecord:
    """An image by its payload."""
    try:
        position = payload.get("position")
        place = None if position is None else Position.from_dict(position)
        fitted, session = bool(payload["fitted"]), payload.get("session")
        return ImageRecord(own, payload["path"], payload["digest"], fitted, place, session)
    except (KeyError, TypeError, BadPositions) as error:
        raise BadMap(f"image {own} of the store is damaged ({error!r}); build the map again") from None


def payload_of(record: ImageRecord, session: str | None = None) -> dict[str, object]:
    """What is kept beside an image; `session` is its own if not given."""
    position = None if record.position is None else record.position.to_dict()
    return {"path": record.path, "digest": record.digest, "fitted": record.fitted, "position": position,
            "session": record.session if session is None else session}  # fmt: skip


class KnownScores:
    """Mean and best score of images that were looked at, in one collection as it is: an edit changes both."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def get(self, ids: Sequence[int]) -> dict[int, tuple[float, float]]:
        with self._lock:
            return {one: self._known[one] for one in ids if one in self._known}

    def keep(self, found: Mapping[int, tuple[float, float]]) -> None:
        with self._lock:
            self._known.update(found)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)


class CandidateScores:
    """What found images score with each other, by their numbers in `found`."""

    def __init__(self, version: Version, found: Found, known: KnownScores) -> None:
        self.version, self.found, self.known = version, found, known

    def between(self, images: np.ndarray, others: np.ndarray) -> np.ndarray:
        """S(a, c) `a c`, float64."""
        return products(self.found.scorer, images, self.found.scorer, others)

    def mean_and_best(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `OwnScores.mean_and_best`."""
        ids = self.found.ids[images].tolist()
        known = self.known.get(ids)
        unknown = np.array([i for i, own in zip(images.tolist(), ids, strict=True) if own not in known], np.int64)
        if len(unknown):
            fresh = self._look(np.unique(unknown))
            self.known.keep(fresh)
            known |= fresh
        mean, best = np.array([known[own] for own in ids]).T
        return mean, best

    def _look(self, images: np.ndarray) -> dict[int, tuple[float, float]]:
        version, scorer, records = self.version, self.found.scorer, self.found.records
        vectors = scorer.image_vectors(images)
        queries = query_of(version, vectors)
        nearest, _ = version.collection.nearest(queries.astype(np.float32), NEAREST)
        beside = fetched(version, nearest[nearest != NO_ID])
        scores = beside.scorer.rows.scores(vectors) - beside.scorer.bias
        own = np.array([products(scorer, one, scorer, one)[0, 0] for one in images[:, None]])
        # A query without the bias' axis has scores without biases.
        mean, _ = version.moments.mean_and_spread(queries - version.reduction.bias_axis)
        count, digests, found = version.moments.count, [record.digest for record in beside.records], {}
        for row, image in enumerate(images.tolist()):
            near = np.isin(beside.ids, nearest[row])
            other = near & np.array([digest != records[image].digest for digest in digests], bool)
            best = scores[row, other].max() if other.any() else own[row]  # all that was found are copies
            mean_of_others = (mean[row] * count - own[row]) / max(count - 1, 1)
            found[int(self.found.ids[image])] = (float(mean_of_others), float(best))
        return found


def query_of(version: Version, vectors: QueryVectors) -> np.ndarray:
    """y(q) `q dims`, float64, of queries as their products with rows of integers see them: z-scores are then those
    of a map in a folder."""
    pairs = zip(vectors.terms, version.head.stored.scorer.terms, strict=True)
    terms = [as_multiplied(features, term.gallery.chunks[0]) for features, term in pairs]
    return version.reduction.of_queries_in_double(direct_sum(vectors.weights, terms))


def products(scorer: Scorer, rows: np.ndarray, other: Scorer, others: np.ndarray) -> np.ndarray:
    """Scores `a c`, float64, of images under one head, without centring and bias (`own_scores`)."""
    vectors, galleries = scorer.image_vectors(rows), other.rows
    total = np.zeros((len(rows), len(others)))
    for weight, gallery, features in zip(galleries.weights, galleries.galleries, vectors.terms, strict=True):
        total += weight * (features.astype(np.float64) @ gallery.take(others).astype(np.float64).T)
    return total
