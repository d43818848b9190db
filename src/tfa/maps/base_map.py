"""The base of every map: encodes photos and turns hits into answers; its subclasses find the hits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfa.core.config import ONLY_SURE, Candidates, EncoderOptions, MinConfidence
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.encoders import Encoder, load_encoder
from tfa.errors import BadImage, BadSpec, BadWeights
from tfa.maps.expected_recall import AnswerList
from tfa.maps.records import Answer, Fused, Hits, describe_hits
from tfa.maps.shift import DomainShiftMonitor
from tfa.maps.state import MapState
from tfa.maps.verification import QueryParams
from tfa.photos.images import Photo, PhotosLike, as_rgb, check_photos, expand_photos, name_photo
from tfa.photos.token_cache import EncodedImages, TokenCache
from tfa.pipeline import encode
from tfa.search.store import Where

_QUERY_BATCH = 8  # photos encoded at a time


class BaseMap(ABC):
    """Encodes photos and answers queries; a subclass holds the images and finds the hits."""

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
    def check(self, params: QueryParams) -> None:
        """Refuse what cannot be answered, before photos are read."""

    @abstractmethod
    def hits(self, tokens: Tokens, params: QueryParams, shift_monitor: DomainShiftMonitor | None = None) -> list[Hits]:
        """Find the hits of each photo, verified as `params` says; `shift_monitor` observes the photos."""

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
        expected = self.state.encoder
        if self._encoder is None:
            options = self.options
            self._encoder = load_encoder(
                expected["id"], weights=options.weights or expected["weights"], device=options.device,
                threads=options.threads, fast=options.fast, progress=self._progress, model=expected["fingerprint"],
            )  # fmt: skip
        # One model, in whatever arithmetic: what was mapped in float32 may be queried by a robot in integers.
        if self._encoder.model != expected["fingerprint"]:
            other, self._encoder = self._encoder, None
            raise BadWeights(_explain_other_encoder(expected, other))
        return self._encoder

    def query(
        self,
        photo: Photo,
        k: int = 5,
        min_confidence: MinConfidence = 0.0,
        calibration: str | None = None,
        *,
        rerank: bool | None = None,
        candidates: Candidates | None = None,
        where: Where | None = None,
    ) -> Hits:
        """The k most likely places of a photo: a path, its bytes, a PIL image, or a uint8 array (H, W, 3) in RGB.

        There are none if the best is below `min_confidence`; "sure" admits sure answers only. `calibration` names the
        one to use; None is the map's active one, "none" the database-only head. `rerank` says whether the best
        `candidates` are verified by their patches; None is as was admitted. `where` says which images may answer, by
        session and region; None lets all answer. `hits.place` is where they say together that it was taken.
        """
        params, least = QueryParams(k, calibration, rerank, candidates, where), check_min_confidence(min_confidence)
        [answer] = self._answers([photo], params, strict=True)
        return answer.withhold_below(least).as_hits

    def query_many(
        self,
        photos: PhotosLike,
        k: int = 5,
        min_confidence: MinConfidence = 0.0,
        progress: bool | Progress | None = None,
        calibration: str | None = None,
        *,
        rerank: bool | None = None,
        candidates: Candidates | None = None,
        where: Where | None = None,
    ) -> AnswerList[Answer]:
        """Answers for many photos or a folder of them, and what they say together (`Answers`).

        One that cannot be read gets an answer that says so.
        """
        answers, params = AnswerList[Answer](), QueryParams(k, calibration, rerank, candidates, where)
        shift_monitor = DomainShiftMonitor.for_head(self.state.chosen(calibration))
        several, min_confidence = expand_photos(photos), check_min_confidence(min_confidence)
        with as_progress(progress).task("querying", len(several), "photos") as task:
            for answer in self._answers(several, params, strict=False, shift_monitor=shift_monitor):
                answers.append(answer.withhold_below(min_confidence))
                task.advance()
        answers.notice = shift_monitor.warning(self.called)
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
        return self.hits(tokens, QueryParams(k, calibration, rerank, candidates, where))

    def _answers(
        self,
        photos: Sequence[Photo],
        params: QueryParams,
        strict: bool,
        shift_monitor: DomainShiftMonitor | None = None,
    ) -> Iterator[Answer]:
        self.check(params)  # what cannot be answered is refused before photos are read
        for named, tokens in self.encode_batches(photos, strict):
            hits_of_readable = iter([] if tokens is None else self.hits(tokens, params, shift_monitor))
            for name, error in named:
                yield build_answer(name, next(hits_of_readable) if error is None else Hits(fused=Fused(None)), error)

    def encode_batches(
        self, photos: Sequence[Photo], strict: bool = False
    ) -> Iterator[tuple[list[tuple[str, str | None]], Tokens | None]]:
        """Photos a few at a time: the name of each with why it cannot be read, and the tokens of those that can.

        One that cannot be read is an error if `strict`. The encoder is loaded when the first one could be read.
        """
        for start in range(0, len(photos), _QUERY_BATCH):
            images: list[Any] = []
            named: list[tuple[str, str | None]] = []
            for photo in photos[start : start + _QUERY_BATCH]:
                try:
                    images.append(as_rgb(photo))
                    named.append((name_photo(photo), None))
                except (BadImage, OSError) as error:
                    if strict:
                        raise
                    named.append((name_photo(photo), str(error)))
            yield named, Tokens(*self.encoder.encode(images), grid=self.encoder.grid) if images else None

    def encode_photos(
        self, paths: Sequence[Path], skip_bad: bool | None, progress: bool | Progress | None = None
    ) -> EncodedImages:
        """Photos to take into the map or to calibrate it with; `skip_bad` is that of the map's options if None."""
        skip_bad, size = self.options.skip_bad if skip_bad is None else skip_bad, self.options.batch_size
        if not skip_bad:
            check_photos(paths, (self.cache or TokenCache()).encoded_before(), as_progress(progress))
        return encode(paths, self.encoder, cache=self.cache, skip_bad=skip_bad, batch_size=size, progress=progress)


def _explain_other_encoder(expected: Mapping[str, Any], other: Encoder) -> str:
    built = (
        f"this map was built with {expected['id']} (fingerprint {expected['fingerprint'][:12]}…), "
        f"but {other.id} was loaded"
    )
    name = getattr(other, "names", {}).get(expected["fingerprint"])
    if name is None:
        return f"{built} with other weights or preprocessing; give the map's own weights with --weights"
    return (
        f"{built}, which resamples positions by another rule; load the map with the encoder {name}, "
        f"or build it again with --encoder {other.id}"
    )


def build_answer(name: str, hits: Hits, error: str | None = None) -> Answer:
    """Build the answer to a photo from its hits."""
    return Answer(name, hits, hits[0].confidence if hits else 0.0, error, **describe_hits(hits))


def check_min_confidence(min_confidence: MinConfidence) -> MinConfidence:
    if min_confidence == ONLY_SURE or (not isinstance(min_confidence, str) and 0 <= min_confidence <= 1):
        return min_confidence
    raise BadSpec(f"min_confidence={min_confidence!r} is not allowed: must be between 0 and 1, or {ONLY_SURE!r}")
