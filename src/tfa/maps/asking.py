"""Asking a map of any kind: photos or tokens in, answers out. Which images are found, and how, its kind knows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfa.base.config import ONLY_SURE, Candidates, EncoderOptions, LeastConfidence
from tfa.base.progress import Progress, as_progress
from tfa.base.tokens import Tokens
from tfa.encoders import Encoder, load_encoder
from tfa.errors import BadImage, BadSpec, BadWeights
from tfa.maps.expected_recall import Answers
from tfa.maps.likeness import Likeness
from tfa.maps.records import Answer, Fused, Hits, of_all
from tfa.maps.state import MapState
from tfa.maps.verification import Question
from tfa.photos.as_files import Photos, listed
from tfa.photos.check import check_photos
from tfa.photos.given import Photo, name_of
from tfa.photos.images import as_rgb
from tfa.photos.token_cache import EncodedImages, TokenCache
from tfa.pipeline import encode
from tfa.search.store import Where

QUERY_BATCH = 8  # photos encoded at a time


class Asking(ABC):
    """A map with its encoder: what asking it has in common, whatever holds its images."""

    state: MapState  # heads and encoder; what else it holds depends on the kind of map

    def __init__(self, encoder: Encoder | None = None) -> None:
        self.notes: list[str] = []
        self.skipped: list[tuple[str, str]] = []
        self.cache: TokenCache | None = None
        self._encoder = encoder
        self.options = EncoderOptions()
        self._progress: bool | Progress | None = None

    @property
    @abstractmethod
    def called(self) -> str:
        """The map in advice: its path or its URL."""

    @abstractmethod
    def __len__(self) -> int:
        """Images that answer."""

    @abstractmethod
    def check(self, question: Question) -> None:
        """Refuse what cannot be answered, before photos are read."""

    @abstractmethod
    def hits(self, tokens: Tokens, question: Question, likeness: Likeness | None = None) -> list[Hits]:
        """The hits of each photo, verified where the question wants it; `likeness` looks at the photos."""

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
                fast=given.fast, progress=self._progress, model=wanted["fingerprint"],
            )  # fmt: skip
        # One model, in whatever arithmetic: what was mapped in float32 may be queried by a robot in integers.
        if self._encoder.model != wanted["fingerprint"]:
            other, self._encoder = self._encoder, None
            raise BadWeights(_another_encoder(wanted, other))
        return self._encoder

    def query(
        self,
        photo: Photo,
        k: int = 5,
        min_confidence: LeastConfidence = 0.0,
        calibration: str | None = None,
        *,
        rerank: bool | None = None,
        candidates: Candidates | None = None,
        where: Where | None = None,
    ) -> Hits:
        """The k most likely places of a photo: a path, its bytes, a PIL image, or a uint8 array (H, W, 3) in RGB.

        There are none if the best is below `min_confidence`; "sure" asks for sure answers. `calibration` names the
        one to use; None is the map's active one, "none" the database-only head. `rerank` says whether the best
        `candidates` are verified by their patches; None is as was admitted. `where` says which images may answer, by
        session and region; None lets all answer. `hits.place` is where they say together that it was taken.
        """
        question, least = Question(k, calibration, rerank, candidates, where), checked_share(min_confidence)
        [answer] = self._answers([photo], question, strict=True)
        return answer.unless_doubtful(least).as_hits

    def query_many(
        self,
        photos: Photos,
        k: int = 5,
        min_confidence: LeastConfidence = 0.0,
        progress: bool | Progress | None = None,
        calibration: str | None = None,
        *,
        rerank: bool | None = None,
        candidates: Candidates | None = None,
        where: Where | None = None,
    ) -> Answers[Answer]:
        """Answers for many photos or a folder of them, and what they say together (`Answers`).

        One that cannot be read gets an answer that says so.
        """
        answers, question = Answers[Answer](), Question(k, calibration, rerank, candidates, where)
        likeness = Likeness.of(self.state.chosen(calibration))
        several, min_confidence = listed(photos), checked_share(min_confidence)
        with as_progress(progress).task("querying", len(several), "photos") as task:
            for answer in self._answers(several, question, strict=False, likeness=likeness):
                answers.append(answer.unless_doubtful(min_confidence))
                task.advance()
        answers.notice = likeness.notice(self.called)
        return answers

    def query_tokens(
        self,
        tokens: Tokens,
        k: int = 5,
        calibration: str | None = None,
        *,
        rerank: bool | None = None,
        candidates: Candidates | None = None,
        where: Where | None = None,
    ) -> list[Hits]:
        """Hits of photos that were encoded elsewhere, with the map's encoder.

        Where it was admitted, photos are verified if the grid of their patches is known or is the map's.
        """
        return self.hits(tokens, Question(k, calibration, rerank, candidates, where))

    def _answers(
        self,
        photos: Sequence[Photo],
        question: Question,
        strict: bool,
        likeness: Likeness | None = None,
    ) -> Iterator[Answer]:
        self.check(question)  # what cannot be answered is refused before photos are read
        for named, tokens in self.encoded_batches(photos, strict):
            hits_of_readable = iter([] if tokens is None else self.hits(tokens, question, likeness))
            for name, error in named:
                yield answer_of(name, next(hits_of_readable) if error is None else Hits(fused=Fused(None)), error)

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
        if not skip_bad:
            check_photos(paths, (self.cache or TokenCache()).encoded_before(), as_progress(progress))
        return encode(paths, self.encoder, cache=self.cache, skip_bad=skip_bad, batch_size=size, progress=progress)


def _another_encoder(wanted: Mapping[str, Any], other: Encoder) -> str:
    built = (
        f"this map was built with {wanted['id']} (fingerprint {wanted['fingerprint'][:12]}…), but {other.id} was loaded"
    )
    name = getattr(other, "names", {}).get(wanted["fingerprint"])
    if name is None:
        return f"{built} with other weights or preprocessing; give the map's own weights with --weights"
    return (
        f"{built}, which resamples positions by another rule; load the map with the encoder {name}, "
        f"or build it again with --encoder {other.id}"
    )


def answer_of(name: str, hits: Hits, error: str | None = None) -> Answer:
    """The answer of a photo's hits."""
    return Answer(name, hits, hits[0].confidence if hits else 0.0, error, **of_all(hits))


def checked_share(min_confidence: LeastConfidence) -> LeastConfidence:
    if min_confidence == ONLY_SURE or (not isinstance(min_confidence, str) and 0 <= min_confidence <= 1):
        return min_confidence
    raise BadSpec(f"min_confidence={min_confidence!r} is not allowed: must be between 0 and 1, or {ONLY_SURE!r}")
