"""A map of places: photos with a fitted head, built, saved, edited, calibrated and queried.

It holds no arithmetic of its own. Where its rows live is a `Storage`: in memory and a folder, or in a store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.encoders import DEFAULT_ENCODER, Encoder, load_encoder
from tfa.errors import BadImage, BadSpec, BadWeights, NoImages, StoreConflict
from tfa.maps.answer import answer_tokens, make_where, resolve_candidates
from tfa.maps.calibrate import note_dropped
from tfa.maps.confidence import DomainShiftMonitor, collect_answers
from tfa.maps.describe import summarize_map
from tfa.maps.fit_map import FittedMap, add_verification, fit_map
from tfa.maps.folder import reader, writer
from tfa.maps.state import DATABASE, MapState, describe_encoder, make_records, make_state
from tfa.maps.storage import MemorySnapshot, MemoryStorage, SearchableHead, Storage
from tfa.maps.stored_head import AnyHead
from tfa.maps.tracker import Tracker
from tfa.maps.upkeep import load_tokens
from tfa.online.sequence_filter import Motion, SequenceSpec
from tfa.photos.find_positions import PositionsLike, find_positions
from tfa.photos.images import (
    HashedPhoto,
    Photo,
    PhotosLike,
    as_rgb,
    check_photos,
    expand_photos,
    find_images,
    name_photo,
    split_nameable,
)
from tfa.photos.token_cache import EncodedImages, TokenCache
from tfa.pipeline import encode
from tfa.search.store import MapLocation
from tfa.types import (
    Answer,
    Answers,
    BuildOptions,
    CalibrateOptions,
    CalibrationReport,
    EditReport,
    EncoderOptions,
    HeadKind,
    HeadSpec,
    ImageRecord,
    MapInfo,
    Position,
    QueryOptions,
)

_QUERY_BATCH = 8  # photos encoded at a time
REFIT_SHARE = 0.2  # share of images that the head was not fitted on from which a refit is advised
_NOT_FOLLOWED = (
    "photos in a row are not followed in a store: that needs the scores of all images, and a store gives "
    "the best; ask each photo by itself (--no-online), or use a map in a folder"
)
_NOT_REFITTED = "a map in a store is not fitted again in place; build it again with: tfa build PHOTOS --out URL"
_NEEDS_ROWS = "this needs every row in one place, and this map is in a store; build one with --out NAME.tfa"


class Map:
    """A searchable map of places (`tfa.PlaceMap`). Build it from photos, or load it from a `NAME.tfa` folder or a URL.

    Once saved or loaded, `add`, `remove`, `refit` and `calibrate` also write to the folder or the store, each in one
    atomic step.
    """

    def __init__(self, storage: Storage, encoder: Encoder | None = None, options: EncoderOptions | None = None) -> None:
        """`encoder` is used instead of loading the map's own; `options` say how photos are encoded."""
        self.storage, self.options = storage, options or EncoderOptions()
        self.notes: list[str] = []
        self.skipped: list[tuple[str, str]] = []
        self._encoder = encoder
        self._progress: bool | Progress | None = None

    def with_storage(self, storage: Storage) -> Map:
        """Another map of the same encoder and options."""
        return Map(storage, self._encoder, self.options)

    # --- build, save, load -------------------------------------------------------------------------------------

    @classmethod
    def build(
        cls,
        photos: Any,
        *,
        head: HeadKind | None = None,
        encoder: str | Encoder = DEFAULT_ENCODER,
        positions: PositionsLike = None,
        spec: HeadSpec | None = None,
        map_spec: BuildOptions | None = None,
        options: EncoderOptions | None = None,
        progress: bool | Progress | None = None,
    ) -> Map:
        """Photos → encoder → head → map. `photos` is a folder, a file or a list of them.

        `head` is "judged" (of several heads the one whose answers bear most evidence), "second-order" or "paper"; if
        not given, that of `map_spec`, which says more of what the map is made of and keeps. `spec` is what the head
        is fitted with, `options` how photos are encoded. `positions` is a CSV file, or `PositionSources`.
        """
        progress, options, map_spec = as_progress(progress), options or EncoderOptions(), map_spec or BuildOptions()
        map_spec = map_spec if head is None else replace(map_spec, head=head)
        paths, unnamed = split_nameable(find_images(photos), skip_bad=options.skip_bad)
        root = Path(photos) if isinstance(photos, (str, Path)) and Path(photos).is_dir() else None
        places, notes = find_positions(
            paths, root, positions
        )  # before the long work: a bad CSV should not cost an hour
        hashed = None
        if not options.skip_bad:
            hashed = check_photos(paths, (options.cache or TokenCache()).encoded_before(), progress)
        if isinstance(encoder, str):
            encoder = load_encoder(
                encoder, weights=options.weights, device=options.device, threads=options.threads, fast=options.fast,
                progress=progress,
            )  # fmt: skip
        encoded = encode(
            paths,
            encoder,
            cache=options.cache,
            skip_bad=options.skip_bad,
            batch_size=options.batch_size,
            progress=progress,
            hashed=hashed,
        )
        encoded = replace(encoded, skipped=[*unnamed, *encoded.skipped])
        if len(encoded.paths) < 2:
            raise NoImages(f"a map needs at least 2 photos, {photos} gave {len(encoded.paths)}")
        fitted = fit_map(encoded.tokens, map_spec, spec, options.device, progress)
        built = cls._new(fitted, encoded, encoder, dict(zip(paths, places, strict=True)), map_spec, options)
        built.notes += notes
        return built

    @classmethod
    def from_head(
        cls,
        head: AnyHead,
        encoded: EncodedImages,
        encoder: Encoder,
        places: Mapping[Path, Position | None] | None = None,
        *,
        map_spec: BuildOptions | None = None,
        options: EncoderOptions | None = None,
        progress: bool | Progress | None = None,
    ) -> Map:
        """A map of the images a head was fitted on, with what answering needs of the head.

        Without a `map_spec` answers are not verified: the map then answers as the head does.
        """
        map_spec, options = map_spec or BuildOptions(rerank=False), options or EncoderOptions()
        fitted = add_verification(head, encoded.tokens, map_spec, options.device, progress)
        return cls._new(fitted, encoded, encoder, places or {}, map_spec, options)

    @classmethod
    def _new(
        cls,
        fitted: FittedMap,
        encoded: EncodedImages,
        encoder: Encoder,
        places: Mapping[Path, Position | None],
        map_spec: BuildOptions,
        options: EncoderOptions,
    ) -> Map:
        records = make_records(encoded, places, first_id=0, fitted=True)
        state = make_state(fitted, map_spec, records, describe_encoder(encoder, options.weights))
        place_map = cls(MemoryStorage(state), encoder, options)
        place_map.notes = [*encoder.notes, *fitted.notes]
        place_map.skipped = [(str(path), reason) for path, reason in encoded.skipped]
        return place_map

    @classmethod
    def load(
        cls,
        path: str | Path | MapLocation,
        checksum: bool = False,
        encoder: Encoder | None = None,
        patch_cache: int | None = None,
    ) -> Map:
        """Open a saved map; its arrays are mapped, not read. `encoder` is used instead of loading the map's own.

        The size of every file is checked; `checksum` reads every byte and compares its sha256 too. A URL, such as
        postgres://HOST/DATABASE/NAME, opens a map in a store. `patch_cache` is how many bytes of patches that one
        keeps in memory; a folder's are mapped and need none.
        """
        location = path if isinstance(path, MapLocation) else MapLocation(str(path))
        if location.in_store:
            from tfa.maps.store.storage import StoreStorage

            return cls(StoreStorage.open(location.text, patch_cache), encoder)
        return cls(MemoryStorage(reader.read_map(location.folder, checksum=checksum), location.folder), encoder)

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the map as a folder; from then on edits are written there too."""
        self._memory_storage.save(Path(path), overwrite)

    def publish(self, url: str, *, progress: bool | Progress | None = None, **how: Any) -> Map:
        """Write the map to a store, in place of an older one of that URL if there is one; returns that map.

        `how` are the parameters of `tfa.maps.store.publish.publish_map`: dims, dtype and index.
        """
        from tfa.maps.store.storage import StoreStorage

        published = self.with_storage(StoreStorage.publish(self, url, progress=progress, **how))
        published.skipped = list(self.skipped)
        return published

    # --- what it is made of ------------------------------------------------------------------------------------

    @property
    def state(self) -> MapState:
        """Heads and encoder; of a map in a store with a sample of the images."""
        return self.storage.snapshot().state

    @property
    def path(self) -> Path | None:
        """Folder of the map, if it has one."""
        return self.storage.path

    @property
    def name(self) -> str | None:
        """Name of the map; None if it is not saved."""
        return self.storage.name

    @property
    def called(self) -> str:
        """The map in advice: its path or its URL."""
        return self.storage.location

    def __len__(self) -> int:
        """Images that answer."""
        return len(self.storage.snapshot())

    def __repr__(self) -> str:
        """As it was last looked at: a debugger that shows it does not query a store."""
        count, state = self.storage.last_seen
        where = "not saved" if self.storage.name is None else self.called
        return summarize_map("PlaceMap", where, count, state)

    @property
    def calibrations(self) -> list[str]:
        """Names of the calibrations, the newest last."""
        return [head.name for head in self.state.calibrations]

    @property
    def images(self) -> list[ImageRecord]:
        """All images that answer, at once; see `records` for a large map in a store."""
        snapshot = self.storage.snapshot()
        return snapshot.images if isinstance(snapshot, MemorySnapshot) else list(self.storage.records())

    def records(self) -> Iterator[ImageRecord]:
        """All images that answer, in the order they came in; of a store they are read page by page."""
        return self.storage.records()

    def prepare(self) -> None:
        """Make ready for many single queries, which takes seconds for a large map and memory for its rows."""
        self.storage.prepare()

    def close(self) -> None:
        """Close connections to a store."""
        self.storage.close()

    # --- rows, of a map that has all of them in this process -----------------------------------------------------

    @property
    def in_memory(self) -> MemorySnapshot:
        """The map as it is now, with every row; raises BadSpec for a map in a store."""
        return self._memory_storage.snapshot()

    @property
    def _memory_storage(self) -> MemoryStorage:
        if not isinstance(self.storage, MemoryStorage):
            raise BadSpec(_NEEDS_ROWS)
        return self.storage

    @property
    def rows(self) -> np.ndarray:
        """Gallery rows of `images`, in their order."""
        return self.in_memory.rows

    def searchable(self, calibration: str | None) -> SearchableHead:
        """The head of that name (None: the active one) with what searches its images."""
        return self.in_memory.searchable(calibration)

    def motion(self, reach: float) -> Motion:
        """How a camera moves along this map; `reach` is that of the filter."""
        return self.in_memory.motion(reach)

    @property
    def reach(self) -> float:
        """Meters between images of one place (`tfa.maps.confidence`)."""
        return self.storage.snapshot().reach

    def scores(self, tokens: Tokens, calibration: str | None = None) -> np.ndarray:
        """Scores `q m` of queries with every image, in the order of `images`: a search for all of them."""
        head = self.searchable(calibration)
        result = head.searcher.search(head.stored.scorer.query_vectors(tokens), max(len(self), 1))
        scores = np.empty_like(result.scores)
        np.put_along_axis(scores, np.searchsorted(head.ids, result.ids), result.scores, axis=1)
        return scores

    def sample(self) -> Map:
        """The images that decisions were judged on, as a map in memory; this map unless it is in a store."""
        return self if self.storage.has_all_rows else self.with_storage(self.storage.make_sample())

    # --- encode --------------------------------------------------------------------------------------------------

    @property
    def cache(self) -> TokenCache | None:
        """The token cache; None for the user's."""
        cache: TokenCache | None = self.options.cache
        return cache

    @cache.setter
    def cache(self, cache: TokenCache | None) -> None:
        self.options = replace(self.options, cache=cache)

    def use_encoder(self, options: EncoderOptions, progress: bool | Progress | None = None) -> None:
        """Encode photos in this way from now on; which encoder it is, the map itself says."""
        cache = options.cache or self.cache
        self._encoder, self.options, self._progress = None, replace(options, cache=cache), progress

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
        self,
        paths: Sequence[Path],
        skip_bad: bool | None,
        progress: bool | Progress | None = None,
        hashed: Mapping[Path, HashedPhoto] | None = None,
    ) -> EncodedImages:
        """Encode photos to add, or to calibrate with; `hashed` holds them if they were hashed and checked before.

        `skip_bad` is that of the map's options if None.
        """
        skip_bad, size = self.options.skip_bad if skip_bad is None else skip_bad, self.options.batch_size
        if hashed is None and not skip_bad:
            hashed = check_photos(paths, (self.cache or TokenCache()).encoded_before(), as_progress(progress))
        return encode(
            paths, self.encoder, cache=self.cache, skip_bad=skip_bad, batch_size=size, progress=progress,
            hashed=hashed,
        )  # fmt: skip

    # --- query ---------------------------------------------------------------------------------------------------

    def query(self, photo: Photo, k: int = 5, **options: Any) -> Answer:
        """Recognize a photo: a path, its bytes, a PIL image, or a uint8 array (H, W, 3) in RGB.

        Args:
            photo: The photo; one that cannot be read raises BadImage.
            k: Hits of the answer.
            options: Other fields of `tfa.types.QueryOptions`.
        """
        chosen = _make_query_options(k, options)
        [answer] = self._answers([photo], chosen, strict=True)
        return answer.withhold(chosen)

    def query_many(
        self, photos: PhotosLike, k: int = 5, progress: bool | Progress | None = None, **options: Any
    ) -> Answers:
        """Recognize many photos or a folder of them, and estimate recall on photos like these.

        One that cannot be read gets an answer that says so. `options` are other fields of `tfa.types.QueryOptions`.
        """
        chosen, answers = _make_query_options(k, options), list[Answer]()
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
        chosen = _make_query_options(k, options)
        return [answer.withhold(chosen) for answer in self.answer_tokens(tokens, chosen)]

    def answer_tokens(
        self, tokens: Tokens, options: QueryOptions, shift: DomainShiftMonitor | None = None
    ) -> list[Answer]:
        """Answer photos by their tokens, doubtful answers too; `shift` observes the photos."""
        try:
            return answer_tokens(self.storage.snapshot(), tokens, options, shift)
        except StoreConflict:  # the version was dropped while it was searched: replaced twice within half a second
            return answer_tokens(self.storage.snapshot(fresh=True), tokens, options, shift)

    def check(self, options: QueryOptions) -> None:
        """Refuse what cannot be answered, before photos are read."""
        snapshot = self.storage.snapshot()
        make_where(options)
        snapshot.check_head(options.calibration)
        resolve_candidates(options, snapshot.state, compact=snapshot.patches)

    def _answers(
        self, photos: Sequence[Photo], options: QueryOptions, strict: bool, shift: DomainShiftMonitor | None = None
    ) -> Iterator[Answer]:
        self.check(options)  # what cannot be answered is refused before photos are read
        for named, tokens in self.encode_batches(photos, strict):
            answers = iter([] if tokens is None else self.answer_tokens(tokens, options, shift))
            for name, error in named:
                yield Answer(query=name, error=error) if error is not None else replace(next(answers), query=name)

    def follow(
        self,
        calibration: str | None = None,
        *,
        online: bool = True,
        sequence: bool = True,
        spec: SequenceSpec | None = None,
        **options: Any,
    ) -> Tracker:
        """Follow one camera: `tracker.step(photo)` answers a photo, adapted by the photos before it.

        `online` says whether photos adapt the scores of later ones, `sequence` whether they are the frames of a drive,
        which a filter follows (`spec`); `options` are other fields of `tfa.types.QueryOptions`. The map stays as it is.
        """
        if not self.storage.has_all_rows:
            raise BadSpec(_NOT_FOLLOWED)
        chosen = QueryOptions(calibration=calibration, **options)
        return Tracker(self, chosen, online=online, sequence=sequence, spec=spec)

    # --- edit --------------------------------------------------------------------------------------------------

    def add(
        self,
        photos: Any,
        *,
        positions: PositionsLike = None,
        session: str | None = None,
        skip_bad: bool | None = None,
        progress: bool | Progress | None = None,
    ) -> EditReport:
        """Add photos without fitting again: the frozen vocabulary and geometry describe them.

        `session` names what they belong to, to choose by; `skip_bad` is that of the map's `options` if not given. If
        an addition to a store is interrupted, some photos may have been added: doing it again adds the others.
        """
        skip_bad = self.options.skip_bad if skip_bad is None else skip_bad
        fresh, repeated = self.storage.select_new_paths(find_images(photos))
        fresh, unnamed = split_nameable(fresh, skip_bad=skip_bad)
        if not fresh:
            return EditReport(skipped=_list_skipped(unnamed), notes=_note_repeated(repeated))
        places, more = find_positions(fresh, None, positions)
        encoded = self.encode_photos(fresh, skip_bad, progress)
        encoded = replace(encoded, skipped=[*unnamed, *encoded.skipped])
        new = self.storage.select_new_photos(encoded)
        repeated += len(encoded.paths) - len(new.paths)
        report = self.add_encoded(new, dict(zip(fresh, places, strict=True)), session)
        return replace(report, notes=[*_note_repeated(repeated), *more, *report.notes])

    def add_encoded(
        self, encoded: EncodedImages, places: Mapping[Path, Position | None], session: str | None = None
    ) -> EditReport:
        """Add photos that were encoded elsewhere, by the map's encoder."""
        records = make_records(encoded, places, first_id=0, fitted=False, session=session)
        return self.add_records(encoded.tokens, records, encoded.skipped)

    def add_records(
        self, tokens: Tokens, records: Sequence[ImageRecord], skipped: Sequence[tuple[Path, str]] = ()
    ) -> EditReport:
        """The same by records, whose ids do not count: they get new ones."""
        added = self.storage.add(tokens, records)
        return EditReport(added=added, skipped=_list_skipped(skipped), notes=self._advice())

    def remove(self, photos: Sequence[str | Path | int]) -> EditReport:
        """Take photos (paths or ids) out of the answers.

        Their descriptors stay in the map, where they may carry the fitted geometry; only `refit` forgets them.
        """
        gone = self.storage.remove(sorted({record.id for record in self.storage.find_records(photos)}))
        notes = [self.storage.removal_note] if gone else []
        return EditReport(removed=gone, notes=[*notes, *self._advice()])

    def refit(self, progress: bool | Progress | None = None) -> None:
        """Fit a new head of the same kind on the photos now in the map, from the token cache; ids and places stay."""
        if not self.storage.has_all_rows:
            raise BadSpec(_NOT_REFITTED)
        if len(self) < 2:
            raise NoImages(f"refit needs at least 2 photos, the map has {len(self)}")
        progress, old, device = as_progress(progress), self.state, self.options.device
        tokens = load_tokens(self, self.images, progress, "remove them from the map before refit")
        fitted = fit_map(tokens, old.map_spec, HeadSpec.from_dict(old.spec), device, progress)
        records = [replace(record, fitted=True) for record in self.images]  # they keep their ids
        fresh = make_state(fitted, old.map_spec, records, old.encoder)
        fresh = replace(fresh, next_id=old.next_id, revision=old.revision + 1, photo_root=old.photo_root)
        # Without calibrations: they were of the old head.
        self._memory_storage.commit(fresh, writer.write_all)
        self.notes += [*fitted.notes, *note_dropped(old, self.path)]

    def calibrate(
        self,
        photos: PhotosLike,
        name: str = "target",
        *,
        budget: int = CalibrateOptions.budget,
        score: bool | None = None,
        skip_bad: bool | None = None,
        progress: bool | Progress | None = None,
    ) -> CalibrationReport:
        """Calibrate the map for a camera, from unlabelled photos of it that the map does not hold: a folder, or photos.

        The calibration is kept beside the database-only head and answers from now on; that of a store is judged on the
        map's sample. `score` also calibrates scores, an image's bias each (None: as the judge decides; of the paper's
        head from 16 photos on). A map of the paper's head needs its photos, or their cached tokens; others hold all
        that it takes.
        """
        options = {"name": name, "budget": budget, "score": score}
        return self.storage.calibrate(self, photos, options, skip_bad, as_progress(progress))

    def activate(self, name: str | None, progress: bool | Progress | None = None) -> str | None:
        """Let the calibration of that name answer where a query names none; None lets the database-only head answer.

        In a store its vectors are written unless the version before holds them; until then the other head answers.
        """
        active = self.storage.activate(DATABASE if name is None else name, as_progress(progress))
        return None if active == DATABASE else active

    def drop_calibration(self, name: str) -> None:
        """Take a calibration out of the map for good; if it was the active one, the database-only head answers."""
        self.storage.drop_calibration(name)

    def adopt_calibration(self, other: Map, name: str) -> None:
        """Take over a calibration that was made in a copy of this saved map, at this revision or an earlier one."""
        self.storage.adopt_calibration(self, other.state, name)

    # --- describe ----------------------------------------------------------------------------------------------

    @property
    def unseen_share(self) -> float:
        """Share of the photos in the map that the head was not fitted on."""
        return self.storage.compute_unseen_share()

    def _advice(self) -> list[str]:
        share = self.unseen_share
        if share <= REFIT_SHARE:
            return []
        return [f"{share:.0%} of the photos were not seen when the head was fitted; {self.storage.refit_advice}"]

    def info(self) -> MapInfo:
        """Describe the map: what it holds, what was decided and why. Photos of a store are not listed (`records`)."""
        return self.storage.describe([*self.notes, *self._advice()])


def _make_query_options(k: int, options: Mapping[str, Any]) -> QueryOptions:
    """Check the options of a query of single photos."""
    chosen = QueryOptions(k=k, **options)
    if chosen.camera is not None or chosen.sequence:
        raise BadSpec("a map in this process follows a camera with follow(); camera and sequence are for a service")
    return chosen


def _note_repeated(count: int) -> list[str]:
    return [f"already in the map and left as they are: {count}"] if count else []


def _list_skipped(skipped: Sequence[tuple[Path, str]]) -> list[tuple[str, str]]:
    return [(str(path), reason) for path, reason in skipped]


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
