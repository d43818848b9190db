"""The base of every map: encodes photos and turns hits into answers; its subclasses find the hits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.encoders import Encoder, load_encoder
from tfa.errors import BadImage, BadSpec, BadWeights
from tfa.maps.expected_recall import collect_answers
from tfa.maps.shift import DomainShiftMonitor
from tfa.maps.state import MapState
from tfa.photos.images import Photo, PhotosLike, as_rgb, check_photos, expand_photos, name_photo
from tfa.photos.token_cache import EncodedImages, TokenCache
from tfa.pipeline import encode
from tfa.types import Answer, Answers, EncoderOptions, QueryOptions

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
    def check(self, options: QueryOptions) -> None:
        """Refuse what cannot be answered, before photos are read."""

    @abstractmethod
    def answer_tokens(
        self, tokens: Tokens, options: QueryOptions, shift: DomainShiftMonitor | None = None
    ) -> list[Answer]:
        """Answer photos by their tokens, doubtful answers too; `shift` observes the photos."""

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

    def query(self, photo: Photo, k: int = 5, **options: Any) -> Answer:
        """Recognize a photo: a path, its bytes, a PIL image, or a uint8 array (H, W, 3) in RGB.

        Args:
            photo: The photo; one that cannot be read raises BadImage.
            k: Hits of the answer.
            options: Other fields of `tfa.types.QueryOptions`.
        """
        chosen = make_query_options(k, options)
        [answer] = self._answers([photo], chosen, strict=True)
        return answer.withhold(chosen)

    def query_many(
        self, photos: PhotosLike, k: int = 5, progress: bool | Progress | None = None, **options: Any
    ) -> Answers:
        """Recognize many photos or a folder of them, and estimate recall on photos like these.

        One that cannot be read gets an answer that says so. `options` are other fields of `tfa.types.QueryOptions`.
        """
        chosen, answers = make_query_options(k, options), list[Answer]()
        shift = DomainShiftMonitor.for_head(self.state.chosen(chosen.calibration))
        several = expand_photos(photos)
        with as_progress(progress).task("querying", len(several), "photos") as task:
            for answer in self._answers(several, chosen, strict=False, shift=shift):
                answers.append(answer.withhold(chosen))
                task.advance()
        return collect_answers(answers, shift.warning(self.called))

    def query_tokens(self, tokens: Tokens, k: int = 5, **options: Any) -> list[Answer]:
        """Recognize photos that were encoded elsewhere, with the map's encoder.

        If reranking was admitted, photos are reranked if the grid of their patches is known or is the map's.
        """
        chosen = make_query_options(k, options)
        return [answer.withhold(chosen) for answer in self.answer_tokens(tokens, chosen)]

    def _answers(
        self, photos: Sequence[Photo], options: QueryOptions, strict: bool, shift: DomainShiftMonitor | None = None
    ) -> Iterator[Answer]:
        self.check(options)  # what cannot be answered is refused before photos are read
        for named, tokens in self.encode_batches(photos, strict):
            answers = iter([] if tokens is None else self.answer_tokens(tokens, options, shift))
            for name, error in named:
                yield Answer(query=name, error=error) if error is not None else replace(next(answers), query=name)

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


def make_query_options(k: int, options: Mapping[str, Any]) -> QueryOptions:
    """Check the options of a query of single photos."""
    chosen = QueryOptions(k=k, **options)
    if chosen.camera is not None or chosen.sequence:
        raise BadSpec("a map in this process follows a camera with follow(); camera and sequence are for a service")
    return chosen
