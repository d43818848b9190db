"""Querying a map: photos or tokens in, ranked places with their confidence out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfa.base.config import Candidates, EncoderOptions
from tfa.base.progress import Progress, as_progress
from tfa.base.tokens import Tokens
from tfa.encoders import Encoder, load_encoder
from tfa.errors import BadImage, BadSpec, BadWeights
from tfa.maps.expected_recall import Answers
from tfa.maps.hits import SearchableHead
from tfa.maps.likeness import Likeness
from tfa.maps.records import Answer, Hit, of_best
from tfa.maps.state import MapState
from tfa.maps.state_changes import with_duplicates
from tfa.maps.stored_head import INTEGERS
from tfa.maps.tracker import Tracker, motion_along
from tfa.maps.verification import Question, wanted_candidates
from tfa.online.motion import Motion
from tfa.online.sequence_filter import SequenceSpec
from tfa.photos.images import Photo, as_rgb, name_of
from tfa.photos.token_cache import EncodedImages, TokenCache
from tfa.pipeline import encode
from tfa.search.bounded import BoundedEngine
from tfa.search.engine import Engine, find_engine
from tfa.search.exact import ExactEngine
from tfa.search.reduced import ReducedEngine

QUERY_BATCH = 8  # photos encoded at a time
COARSE_FROM = 500  # images from which a prepared map of floats answers from coarse scores


class AskableMap:
    """The part of a map that answers: it holds a state and an encoder, and changes nothing."""

    def __init__(self, state: MapState, path: Path | None = None, encoder: Encoder | None = None) -> None:
        self._prepared = False
        self._engine_class: type[Engine] | None = None
        self._take(state)
        self.path = path
        self.notes: list[str] = []
        self.skipped: list[tuple[str, str]] = []
        self.cache: TokenCache | None = None
        self._encoder = encoder
        self.options = EncoderOptions()
        self._progress: bool | Progress | None = None

    def _take(self, state: MapState) -> None:
        self.state = with_duplicates(state)
        rows = [row for row, record in enumerate(state.images) if record.id not in state.removed]
        self.rows = np.array(rows, dtype=np.int64)  # of the gallery: those of `images`, in their order
        self.images = [state.images[row] for row in rows]
        self._searchable_heads: dict[str, SearchableHead] = {}
        self._motions: dict[float, Motion] = {}
        if self._prepared:
            self.prepare()

    def prepare(self) -> None:
        """Make ready for many single queries, which takes seconds for a large map and memory for its rows.

        Rows of integers are packed; answers stay as they are. Of a map with reduced rows those alone are, and the
        others stay on the disk. A map of floats, from 500 images on, then answers from coarse scores: the same images,
        and scores to the rounding of a float32. Mean and spread of a row, which confidence needs, are then of coarse
        scores (z-scores to about 0.01).
        """
        self._prepared, self._searchable_heads = True, {}
        for head in self.state.heads:
            engine = self.engine(head.name)
            if isinstance(engine, ReducedEngine):
                for side in head.stored.scorer.sides:
                    side.prepare()
            else:
                head.stored.scorer.prepare()
            if isinstance(engine, ExactEngine):
                engine.prepare()

    def use_engine(self, name: str | None) -> None:
        """Search by the engine of that name, one of `tfa.search` or of another distribution; None is our own choice.

        Another distribution's engine is given every image as one compiled vector when it is first needed.
        """
        self._engine_class, self._searchable_heads = None if name is None else find_engine(name), {}

    def engine(self, calibration: str | None = None) -> Engine:
        """What searches the images under the head of that name (None: the active one)."""
        return self.searchable(calibration).engine

    def searchable(self, calibration: str | None) -> SearchableHead:
        """The head of that name (None: the active one) with what searches its images."""
        head = self.state.chosen(calibration)
        if head.name not in self._searchable_heads:
            floats = head.stored.storage != INTEGERS
            bounded = self._prepared and floats and len(self.state.images) >= COARSE_FROM
            own = BoundedEngine if bounded else ExactEngine
            kind = self._engine_class or (own if head.stored.reduced is None else ReducedEngine)
            if kind is BoundedEngine and not floats:
                kind = ExactEngine  # rows of integers need no bounds: their products are exact
            self._searchable_heads[head.name] = SearchableHead.of(head.stored, self.images, self.rows, kind)
        return self._searchable_heads[head.name]

    def scores(self, tokens: Tokens, calibration: str | None = None) -> np.ndarray:
        """Scores `q m` of queries with every image, in the order of `images`: a search for all of them."""
        head = self.searchable(calibration)
        result = head.engine.search(head.stored.scorer.query_vectors(tokens), max(len(self), 1))
        scores = np.empty_like(result.scores)
        np.put_along_axis(scores, np.searchsorted(head.ids, result.ids), result.scores, axis=1)
        return scores

    def __len__(self) -> int:
        return len(self.images)

    @property
    def calibrations(self) -> list[str]:
        """Names of the calibrations, the newest last."""
        return [head.name for head in self.state.calibrations]

    def use_encoder(self, options: EncoderOptions, progress: bool | Progress | None = None) -> None:
        """How photos are encoded from now on; which encoder it is, the map itself says."""
        self._encoder, self.options, self._progress = None, options, progress

    @property
    def encoder(self) -> Encoder:
        """The map's encoder, loaded when first needed and checked to be the one the map was built with."""
        wanted = self.state.encoder
        if self._encoder is None:
            given = self.options
            self._encoder = load_encoder(
                wanted["id"], weights=given.weights or wanted["weights"], device=given.device, threads=given.threads,
                fast=given.fast, progress=self._progress,
            )  # fmt: skip
        # One model, in whatever arithmetic: what was mapped in float32 may be queried by a robot in integers.
        if self._encoder.model != wanted["fingerprint"]:
            other, self._encoder = self._encoder.id, None
            raise BadWeights(
                f"this map was built with {wanted['id']} (fingerprint {wanted['fingerprint'][:12]}…), but {other} "
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
        candidates: Candidates | None = None,
    ) -> list[Hit]:
        """The k most likely places of a photo (path, bytes or PIL image); none if the best is below `min_confidence`.

        `calibration` names the one to use; None is the map's active one, "none" the database-only head. `verify` says
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
        candidates: Candidates | None = None,
    ) -> Answers[Answer]:
        """Answers for many photos, and what they say together (`Answers`).

        One that cannot be read gets an answer that says so.
        """
        answers, question = Answers[Answer](), Question(k, calibration, verify, candidates)
        likeness = Likeness.of(self.state.chosen(calibration))
        with as_progress(progress).task("querying", len(photos), "photos") as task:
            for answer in self._answers(photos, question, min_confidence, strict=False, likeness=likeness):
                answers.append(answer)
                task.advance()
        answers.notice = likeness.notice(str(self.path or "MAP"))
        return answers

    def follow(
        self,
        calibration: str | None = None,
        *,
        k: int = 5,
        verify: bool | None = None,
        candidates: Candidates | None = None,
        online: bool = True,
        sequence: bool = True,
        spec: SequenceSpec | None = None,
    ) -> Tracker:
        """What follows one camera: `tracker.step(photo)` answers a photo, adapted by the photos before it.

        `online` says whether photos adapt the scores of later ones, `sequence` whether they are the frames of a drive,
        which a filter follows (`spec`); the rest is as in `query`. The map stays as it is.
        """
        question = Question(k, calibration, verify, candidates)
        return Tracker(self, question, online=online, sequence=sequence, spec=spec)

    def motion(self, reach: float) -> Motion:
        """How a camera moves along this map; made once for all that are followed. `reach` is that of the filter."""
        if reach not in self._motions:
            self._motions[reach] = motion_along(self.images, reach)
        return self._motions[reach]

    def query_tokens(
        self,
        tokens: Tokens,
        k: int = 5,
        calibration: str | None = None,
        *,
        verify: bool | None = None,
        candidates: Candidates | None = None,
    ) -> list[list[Hit]]:
        """Hits of photos that were encoded elsewhere, with the map's encoder.

        Where it was admitted, photos are verified if the grid of their patches is known or is the map's.
        """
        return self.hits(tokens, Question(k, calibration, verify, candidates))

    def hits(self, tokens: Tokens, question: Question, likeness: Likeness | None = None) -> list[list[Hit]]:
        """The hits of each photo, verified where the question wants it; `likeness` looks at the photos."""
        candidates = wanted_candidates(question, self.state, tokens)
        head = self.searchable(question.calibration)
        return head.hits(tokens, question.k, candidates, self.state.compact, likeness)

    def _answers(
        self,
        photos: Sequence[Photo],
        question: Question,
        min_confidence: float,
        strict: bool,
        likeness: Likeness | None = None,
    ) -> Iterator[Answer]:
        # What cannot be answered is refused before photos are read.
        wanted_candidates(question, self.state)
        checked_share(min_confidence)
        for named, tokens in self.encoded_batches(photos, strict):
            hits_of_readable = iter([] if tokens is None else self.hits(tokens, question, likeness))
            for name, error in named:
                yield answer_of(name, next(hits_of_readable) if error is None else [], min_confidence, error)

    def encoded_batches(
        self, photos: Sequence[Photo], strict: bool = False
    ) -> Iterator[tuple[list[tuple[str, str | None]], Tokens | None]]:
        """Photos a few at a time: the name of each with why it cannot be read, and the tokens of those that can.

        One that cannot be read is an error if `strict`. The encoder is loaded when the first one could be read.
        """
        for start in range(0, len(photos), QUERY_BATCH):
            images: list[Any] = []
            named: list[tuple[str, str | None]] = []
            for photo in photos[start : start + QUERY_BATCH]:
                try:
                    images.append(as_rgb(photo))
                    named.append((name_of(photo), None))
                except (BadImage, OSError) as error:
                    if strict:
                        raise
                    named.append((name_of(photo), str(error)))
            yield named, Tokens(*self.encoder.encode(images), grid=self.encoder.grid) if images else None

    def encoded(
        self, paths: Sequence[Path], skip_bad: bool | None, progress: bool | Progress | None = None
    ) -> EncodedImages:
        """Photos to take into the map or to calibrate it with; `skip_bad` is that of the map's options if None."""
        skip_bad, size = self.options.skip_bad if skip_bad is None else skip_bad, self.options.batch_size
        return encode(paths, self.encoder, cache=self.cache, skip_bad=skip_bad, batch_size=size, progress=progress)


def answer_of(name: str, hits: list[Hit], min_confidence: float, error: str | None = None) -> Answer:
    """The answer of a photo's hits. What is said of the best is said even when it is too doubtful to be given."""
    confidence = hits[0].confidence if hits else 0.0
    return Answer(name, hits if confidence >= min_confidence else [], confidence, error, **of_best(hits))


def checked_share(min_confidence: float) -> None:
    if not 0 <= min_confidence <= 1:
        raise BadSpec(f"min_confidence={min_confidence} is out of range: must be between 0 and 1")
