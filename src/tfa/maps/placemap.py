"""The place map: a fitted head with its photos, saved, edited and asked. It holds no arithmetic of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfa.cache import EncodedImages, TokenCache
from tfa.config import HeadSpec
from tfa.encoders import DEFAULT_ENCODER, Encoder, load_encoder
from tfa.errors import BadImage, BadSpec, BadWeights, NoImages
from tfa.head import ENSEMBLE, Head, Replica
from tfa.images import find_images, open_image
from tfa.maps import format
from tfa.maps.building import (
    check_storage,
    encoder_facts,
    find_record,
    new_state,
    records_of,
    tokens_of,
    twins_of,
    unique_files,
    with_images,
    without_images,
)
from tfa.maps.format import MapState
from tfa.maps.records import Answer, EditReport, Hit, confidences
from tfa.maps.telling import facts_of, unseen_share
from tfa.pipeline import encode, fit
from tfa.positions import Position, find_positions
from tfa.progress import Progress, as_progress
from tfa.scoring import top_k
from tfa.tokens import Tokens

UNSEEN_LIMIT = 0.2  # share of images not seen at fitting from which a refit is advised
QUERY_BATCH = 8  # photos encoded at a time


class PlaceMap:
    """A searchable map of places. Build it from photos, or load it from a `NAME.tfa` folder.

    Once saved or loaded, `add`, `remove` and `refit` also write to the folder, each in one atomic step.
    """

    def __init__(self, state: MapState, path: Path | None = None, encoder: Encoder | None = None) -> None:
        self._take(state)
        self.path = path
        self.notes: list[str] = []
        self.skipped: list[tuple[str, str]] = []
        self.cache: TokenCache | None = None
        self._encoder = encoder
        self._encoder_options: dict[str, Any] = {}

    # --- build, save, load -------------------------------------------------------------------------------------

    @classmethod
    def build(
        cls,
        photos: Any,
        *,
        encoder: str | Encoder = DEFAULT_ENCODER,
        weights: str | Path | None = None,
        positions: str | Path | None = None,
        skip_bad: bool = False,
        spec: HeadSpec | None = None,
        ensemble: bool = False,
        storage: str = "float16",
        device: str = "cpu",
        threads: int | None = None,
        batch_size: int = QUERY_BATCH,
        cache: TokenCache | None = None,
        progress: bool | Progress | None = None,
    ) -> PlaceMap:
        """Photos → encoder → head → map. `photos` is a folder, a file or a list of them."""
        check_storage(storage)
        progress = as_progress(progress)
        paths = find_images(photos)
        root = Path(photos) if isinstance(photos, (str, Path)) and Path(photos).is_dir() else None
        csv = None if positions is None else Path(positions)
        places, notes = find_positions(paths, root, csv)  # before the long work: a bad CSV should not cost an hour
        if isinstance(encoder, str):
            encoder = load_encoder(encoder, weights=weights, device=device, threads=threads, progress=progress)
        encoded = encode(paths, encoder, cache=cache, skip_bad=skip_bad, batch_size=batch_size, progress=progress)
        if len(encoded.paths) < 2:
            raise NoImages(f"a map needs at least 2 photos, {photos} gave {len(encoded.paths)}")
        head = fit(encoded.tokens, spec, device=device, progress=progress)
        where = dict(zip(paths, places, strict=True))
        built = cls.from_head(head, encoded, encoder, where, weights=weights, ensemble=ensemble, storage=storage)
        built.cache = cache
        built.notes += notes
        return built

    @classmethod
    def from_head(
        cls,
        head: Head,
        encoded: EncodedImages,
        encoder: Encoder,
        places: Mapping[Path, Position | None] | None = None,
        *,
        weights: str | Path | None = None,
        ensemble: bool = False,
        storage: str = "float16",
    ) -> PlaceMap:
        """A map of the images a head was fitted on, with what answering needs of the head."""
        check_storage(storage)
        records = records_of(encoded, places or {}, first_id=0, fitted=True)
        replica: Replica = ENSEMBLE if ensemble else 0
        made = cls(new_state(head, replica, storage, records, encoder_facts(encoder, weights)), encoder=encoder)
        made.notes = list(encoder.notes)
        made.skipped = [(str(path), reason) for path, reason in encoded.skipped]
        return made

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the map as a folder; from then on edits are written there too."""
        self._take(format.write_new(Path(path), self.state, overwrite=overwrite))
        self.path = Path(path)

    @classmethod
    def load(cls, path: str | Path, verify: bool = True, encoder: Encoder | None = None) -> PlaceMap:
        """Open a saved map; its arrays are mapped, not read. `encoder` is used instead of loading the map's own."""
        return cls(format.read(Path(path), verify=verify), Path(path), encoder)

    def use_encoder(
        self,
        weights: str | Path | None = None,
        device: str = "cpu",
        threads: int | None = None,
        progress: bool | Progress | None = None,
    ) -> None:
        """How queries and additions are encoded; which encoder it is, the map itself says."""
        options = {"weights": weights, "device": device, "threads": threads, "progress": progress}
        self._encoder, self._encoder_options = None, options

    @property
    def encoder(self) -> Encoder:
        """The map's encoder, loaded when first needed and checked to be the one the map was built with."""
        wanted = self.state.encoder
        if self._encoder is None:
            chosen = {key: value for key, value in self._encoder_options.items() if value is not None}
            self._encoder = load_encoder(wanted["id"], **{"weights": wanted["weights"], **chosen})
        if self._encoder.fingerprint != wanted["fingerprint"]:
            found, self._encoder = self._encoder.id, None
            raise BadWeights(
                f"this map was built with {wanted['id']} (fingerprint {wanted['fingerprint'][:12]}…), but {found} "
                "was loaded with other weights or preprocessing; give the map's own weights with --weights"
            )
        return self._encoder

    # --- ask ---------------------------------------------------------------------------------------------------

    def query(self, photo: Any, k: int = 5, min_confidence: float = 0.0) -> list[Hit]:
        """The k most likely places of a photo (a path or a PIL image); none when the best is below `min_confidence`."""
        return next(self._answers([photo], k, min_confidence, strict=True)).hits

    def query_many(
        self, photos: Sequence[Any], k: int = 5, min_confidence: float = 0.0, progress: bool | Progress | None = None
    ) -> list[Answer]:
        """Answers for many photos. One that cannot be read gets an answer that says so."""
        answers = []
        with as_progress(progress).task("asking", len(photos), "photos") as task:
            for answer in self._answers(photos, k, min_confidence, strict=False):
                answers.append(answer)
                task.advance()
        return answers

    def query_tokens(self, tokens: Tokens, k: int = 5) -> list[list[Hit]]:
        """Hits of photos that were encoded elsewhere, with the map's encoder."""
        if k < 1:
            raise BadSpec(f"k={k} is out of range: must be at least 1")
        if not len(self):
            return [[] for _ in range(len(tokens))]
        scores = self.state.head.scorer.scores(tokens)[:, self._alive]
        ranked, best = top_k(scores, k)
        sure = confidences(scores, ranked, self.state.head.peaks)
        return [
            [
                Hit(self.images[i].id, self.images[i].path, float(score), float(p), self.images[i].position)
                for i, score, p in zip(row, row_best, row_sure, strict=True)
            ]
            for row, row_best, row_sure in zip(ranked, best, sure, strict=True)
        ]

    def _answers(self, photos: Sequence[Any], k: int, min_confidence: float, strict: bool) -> Iterator[Answer]:
        if not 0 <= min_confidence <= 1:
            raise BadSpec(f"min_confidence={min_confidence} is out of range: must be between 0 and 1")
        for start in range(0, len(photos), QUERY_BATCH):
            images: list[Any] = []
            errors: dict[int, str] = {}
            batch = photos[start : start + QUERY_BATCH]
            for index, photo in enumerate(batch):
                try:
                    images.append(photo.convert("RGB") if hasattr(photo, "convert") else open_image(Path(photo)))
                except (BadImage, OSError) as error:
                    if strict:
                        raise
                    errors[index] = str(error)
            # The confidence of the best hit is told also when it is too low to be given.
            found = iter(self.query_tokens(Tokens(*self.encoder.encode(images)), k) if images else [])
            for index, photo in enumerate(batch):
                if index in errors:
                    yield Answer(str(photo), [], 0.0, errors[index])
                    continue
                hits = next(found)
                sure = hits[0].confidence if hits else 0.0
                yield Answer(str(photo), hits if sure >= min_confidence else [], sure)

    # --- edit --------------------------------------------------------------------------------------------------

    def add(
        self,
        photos: Any,
        *,
        positions: str | Path | None = None,
        skip_bad: bool = False,
        batch_size: int = QUERY_BATCH,
        progress: bool | Progress | None = None,
    ) -> EditReport:
        """Add photos without fitting again: the frozen vocabulary and geometry describe them."""
        paths, known = find_images(photos), {record.path for record in self.images}
        fresh = [path for path in unique_files(paths) if str(path.resolve()) not in known]
        known_before = len(paths) - len(fresh)
        notes = [f"already in the map and left as they are: {known_before}"] if known_before else []
        if not fresh:
            return EditReport(notes=notes)
        places, more = find_positions(fresh, None, None if positions is None else Path(positions))
        encoded = encode(
            fresh, self.encoder, cache=self.cache, skip_bad=skip_bad, batch_size=batch_size, progress=progress
        )
        where = dict(zip(fresh, places, strict=True))
        records = records_of(encoded, where, first_id=self.state.next_id, fitted=False)
        self._commit(with_images(self.state, encoded.tokens, records), format.write_addition)
        skipped = [(str(path), reason) for path, reason in encoded.skipped]
        return EditReport([record.id for record in records], [], skipped, [*notes, *more, *self._advice()])

    def remove(self, photos: Sequence[str | Path | int]) -> EditReport:
        """Take photos (paths or ids) out of the answers.

        Their descriptors stay in the map, where they may carry the fitted geometry; only `refit` forgets them.
        """
        gone = sorted({find_record(self.images, photo).id for photo in photos})
        self._commit(without_images(self.state, frozenset(gone)), format.commit)
        notes = ["removed photos no longer answer; their descriptors stay in the map until tfa refit"] if gone else []
        return EditReport([], gone, [], [*notes, *self._advice()])

    def refit(self, device: str = "cpu", progress: bool | Progress | None = None) -> None:
        """Fit a new head on the photos now in the map, from the token cache; ids and positions stay."""
        if len(self) < 2:
            raise NoImages(f"refit needs at least 2 photos, the map has {len(self)}")
        progress, old = as_progress(progress), self.state
        cache = self.cache or TokenCache()
        tokens = tokens_of(self.images, old.encoder["fingerprint"], cache, lambda: self.encoder, progress)
        head = fit(tokens, HeadSpec.from_dict(old.spec), device=device, progress=progress)
        records = [dataclasses.replace(record, fitted=True) for record in self.images]
        replica: Replica = ENSEMBLE if old.replica == ENSEMBLE else int(old.replica)
        fresh = new_state(head, replica, old.head.storage, records, old.encoder)
        fresh = dataclasses.replace(fresh, next_id=old.next_id, revision=old.revision + 1)
        self._commit(fresh, format.write_all)

    def _commit(self, state: MapState, write: Callable[[Path, MapState], MapState]) -> None:
        """Make `state` the map's, on disk first if it has a folder."""
        if self.path is not None:
            with format.editing(self.path, self.state.revision):
                state = write(self.path, state)
        self._take(state)

    def _take(self, state: MapState) -> None:
        # Photos with the same content tie to the last bit, so that the first of them wins.
        scorer = dataclasses.replace(state.head.scorer, twins=twins_of(state.images))
        self.state = dataclasses.replace(state, head=dataclasses.replace(state.head, scorer=scorer))
        rows = [row for row, record in enumerate(state.images) if record.id not in state.removed]
        self._alive = np.array(rows, dtype=np.int64)
        self.images = [state.images[row] for row in rows]

    # --- tell --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.images)

    @property
    def unseen_share(self) -> float:
        """Share of the photos in the map that the head was not fitted on."""
        return unseen_share(self.images)

    def _advice(self) -> list[str]:
        if self.unseen_share <= UNSEEN_LIMIT:
            return []
        share = f"{self.unseen_share:.0%}"
        return [f"{share} of the photos were not seen when the head was fitted; fit again with: tfa refit"]

    def info(self) -> dict[str, Any]:
        """The map in JSON: what it holds, what was decided and why."""
        return {**facts_of(self.state, self.images, self.path), "notes": [*self.notes, *self._advice()]}
