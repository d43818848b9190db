"""Asking a map: photos or tokens in, ranked places with their confidence out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfa.base.progress import Progress, as_progress
from tfa.base.tokens import Tokens
from tfa.encoders import Encoder, load_encoder, model_of
from tfa.errors import BadImage, BadSpec, BadWeights
from tfa.maps.confidence import confidence_of
from tfa.maps.records import Answer, Hit, ImageRecord
from tfa.maps.state import MapState
from tfa.maps.state_changes import with_duplicates
from tfa.maps.stored_head import INTEGERS, StoredHead
from tfa.maps.verification import Question, Verifier, verifier_for, wanted_candidates
from tfa.photos.images import Photo, as_rgb, name_of
from tfa.photos.token_cache import TokenCache
from tfa.search.bounded import BoundedScorer
from tfa.verification.reranking import UNVERIFIED, rerank

QUERY_BATCH = 8  # photos encoded at a time
COARSE_FROM = 500  # images from which a prepared map of floats answers from coarse scores


def hits_of(
    stored: StoredHead,
    alive: np.ndarray,
    images: Sequence[ImageRecord],
    tokens: Tokens,
    k: int,
    verifier: Verifier | None = None,
    coarse: BoundedScorer | None = None,
) -> list[list[Hit]]:
    """The k best of `images`, which stand in the gallery rows `alive`, for each query; verified where asked."""
    if k < 1:
        raise BadSpec(f"k={k} is out of range: must be at least 1")
    if not len(images):
        return [[] for _ in range(len(tokens))]
    if coarse is None:
        scores = stored.scorer.scores(tokens)[:, alive]
    else:  # exact for the best, and near enough for the mean and spread of the rest
        scores = coarse.scores(tokens, max(k, 0 if verifier is None else verifier.candidates), alive)[:, alive]
    if verifier is None:
        found = rerank(scores, k)
    else:
        duplicates = stored.scorer.duplicates
        # Photos of one content are compared as one, so that the first of them wins here too.
        rows = alive if duplicates is None else duplicates[alive]
        found = rerank(scores, k, verifier.candidates, verifier.pairs(tokens, rows))
    sure = confidence_of(found, stored.peaks)
    best = np.take_along_axis(scores, found.indices, axis=1)
    return [
        [
            Hit(images[i].id, images[i].path, float(score), float(p), images[i].position, _counted(votes))
            for i, score, p, votes in zip(*row, strict=True)
        ]
        for row in zip(found.indices, best, sure, found.matches, strict=True)
    ]


def _counted(votes: int) -> int | None:
    return None if votes == UNVERIFIED else int(votes)


def answers_of(
    photos: Sequence[Photo],
    ask: Callable[[Tokens], list[list[Hit]]],
    encoder: Callable[[], Encoder],
    min_confidence: float,
    strict: bool,
) -> Iterator[Answer]:
    """An answer per photo, in order; a photo that cannot be read is an error if `strict`, else an answer that says so.

    `encoder` is called for one only when a photo could be read.
    """
    if not 0 <= min_confidence <= 1:
        raise BadSpec(f"min_confidence={min_confidence} is out of range: must be between 0 and 1")
    for start in range(0, len(photos), QUERY_BATCH):
        images: list[Any] = []
        errors: dict[int, str] = {}
        batch = photos[start : start + QUERY_BATCH]
        for index, photo in enumerate(batch):
            try:
                images.append(as_rgb(photo))
            except (BadImage, OSError) as error:
                if strict:
                    raise
                errors[index] = str(error)
        # The confidence of the best hit is told also when it is too low to be given.
        found = iter(ask(_encoded(encoder(), images)) if images else [])
        for index, photo in enumerate(batch):
            if index in errors:
                yield Answer(name_of(photo), [], 0.0, errors[index])
                continue
            hits = next(found)
            sure = hits[0].confidence if hits else 0.0
            yield Answer(name_of(photo), hits if sure >= min_confidence else [], sure)


def _encoded(encoder: Encoder, images: list[Any]) -> Tokens:
    return Tokens(*encoder.encode(images), grid=encoder.grid)


class AskableMap:
    """The part of a map that answers: it holds a state and an encoder, and changes nothing."""

    def __init__(self, state: MapState, path: Path | None = None, encoder: Encoder | None = None) -> None:
        self._prepared = False
        self._take(state)
        self.path = path
        self.notes: list[str] = []
        self.skipped: list[tuple[str, str]] = []
        self.cache: TokenCache | None = None
        self._encoder = encoder
        self._encoder_options: dict[str, Any] = {}

    def _take(self, state: MapState) -> None:
        self.state = with_duplicates(state)
        rows = [row for row, record in enumerate(state.images) if record.id not in state.removed]
        self._alive = np.array(rows, dtype=np.int64)
        self.images = [state.images[row] for row in rows]
        self._coarse: dict[str, BoundedScorer] = {}
        if self._prepared:
            self.prepare()

    def prepare(self) -> None:
        """Make ready for many single questions, which takes seconds for a large map and memory for its rows.

        Rows of integers are packed; answers stay as they are. A map of floats, from 500 images on, then answers from
        coarse scores: the same images, and scores to the rounding of a float32. Mean and spread of a row, which
        confidence needs, are then of coarse scores (z-scores to about 0.01).
        """
        self._prepared = True
        for head in self.state.heads:
            if head.stored.storage == INTEGERS:
                head.stored.scorer.prepare()
            elif len(self.state.images) >= COARSE_FROM:
                self._coarse[head.name] = BoundedScorer(head.stored.scorer)
                self._coarse[head.name].prepare()

    def __len__(self) -> int:
        return len(self.images)

    @property
    def calibrations(self) -> list[str]:
        """Names of the calibrations, the newest last."""
        return [head.name for head in self.state.calibrations]

    def use_encoder(
        self,
        weights: str | Path | None = None,
        device: str = "cpu",
        threads: int | None = None,
        progress: bool | Progress | None = None,
        fast: bool = False,
    ) -> None:
        """How queries and additions are encoded; which encoder it is, the map itself says."""
        options = {"weights": weights, "device": device, "threads": threads, "progress": progress, "fast": fast}
        self._encoder, self._encoder_options = None, options

    @property
    def encoder(self) -> Encoder:
        """The map's encoder, loaded when first needed and checked to be the one the map was built with."""
        wanted = self.state.encoder
        if self._encoder is None:
            chosen = {key: value for key, value in self._encoder_options.items() if value is not None}
            self._encoder = load_encoder(wanted["id"], **{"weights": wanted["weights"], **chosen})
        # One model, in whatever arithmetic: what was mapped in float32 may be asked by a robot in integers.
        if model_of(self._encoder) != wanted["fingerprint"]:
            found, self._encoder = self._encoder.id, None
            raise BadWeights(
                f"this map was built with {wanted['id']} (fingerprint {wanted['fingerprint'][:12]}…), but {found} "
                "was loaded with other weights or preprocessing; give the map's own weights with --weights"
            )
        return self._encoder

    def query(
        self,
        photo: Photo,
        k: int = 5,
        min_confidence: float = 0.0,
        calibration: str | None = None,
        *,
        verify: bool | None = None,
        candidates: int | None = None,
    ) -> list[Hit]:
        """The k most likely places of a photo (path, bytes or PIL image); none if the best is below `min_confidence`.

        `calibration` names the one to ask with; None is the map's active one, "none" goes without. `verify` says
        whether the best `candidates` are verified by their patches; None is as was admitted.
        """
        question = Question(k, calibration, verify, candidates)
        return next(self._answers([photo], question, min_confidence, strict=True)).hits

    def query_many(
        self,
        photos: Sequence[Photo],
        k: int = 5,
        min_confidence: float = 0.0,
        progress: bool | Progress | None = None,
        calibration: str | None = None,
        *,
        verify: bool | None = None,
        candidates: int | None = None,
    ) -> list[Answer]:
        """Answers for many photos. One that cannot be read gets an answer that says so."""
        answers, question = [], Question(k, calibration, verify, candidates)
        with as_progress(progress).task("asking", len(photos), "photos") as task:
            for answer in self._answers(photos, question, min_confidence, strict=False):
                answers.append(answer)
                task.advance()
        return answers

    def query_tokens(
        self,
        tokens: Tokens,
        k: int = 5,
        calibration: str | None = None,
        *,
        verify: bool | None = None,
        candidates: int | None = None,
    ) -> list[list[Hit]]:
        """Hits of photos that were encoded elsewhere, with the map's encoder.

        Where it was admitted, photos are verified if the grid of their patches is known or is the map's.
        """
        return self._ask(tokens, Question(k, calibration, verify, candidates))

    def _ask(self, tokens: Tokens, question: Question) -> list[list[Hit]]:
        head = self.state.chosen(question.calibration)
        verifier = verifier_for(tokens, question, head, self.state.compact)
        coarse = self._coarse.get(head.name)
        return hits_of(head.stored, self._alive, self.images, tokens, question.k, verifier, coarse)

    def _answers(
        self, photos: Sequence[Photo], question: Question, min_confidence: float, strict: bool
    ) -> Iterator[Answer]:
        # What cannot be asked is told before photos are read.
        wanted_candidates(question, self.state.chosen(question.calibration), self.state.compact)
        return answers_of(
            photos, lambda tokens: self._ask(tokens, question), lambda: self.encoder, min_confidence, strict
        )
