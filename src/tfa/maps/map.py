"""`tfa.PlaceMap`: build, save, load, edit, calibrate and query a map of places.

No numeric code lives here. A `Storage` holds the rows: in memory and a folder, or in a store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.arrays import backend_for
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.encoders import DEFAULT_ENCODER, Encoder, count_depths, describe_device, load_encoder
from tfa.errors import BadImage, BadSpec, BadWeights, NoImages, StoreConflict, UnknownEncoder, WeightsMissing
from tfa.maps.answer import answer_tokens, make_where, resolve_candidates
from tfa.maps.calibrate import note_dropped
from tfa.maps.confidence import DomainShiftMonitor, blame_flaw, collect_answers, note_few_images
from tfa.maps.describe import note_close_decisions, summarize_map
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
    NOTHING_SHOWN,
    HashedPhoto,
    Photo,
    PhotosLike,
    as_rgb,
    check_photos,
    expand_photos,
    find_flaw,
    find_images,
    name_photo,
    split_nameable,
)
from tfa.photos.token_cache import EncodedImages, EncodedPhoto, TokenCache
from tfa.pipeline import encode, read_source
from tfa.search.store import MapLocation
from tfa.types import (
    PAPER_ENCODER,
    UNREADABLE,
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
REFIT_SHARE = 0.2  # share of images outside the fit above which a refit is advised
_NOT_FOLLOWED = (
    "a map in a store cannot follow a camera: that needs the scores of all images. "
    "Query photos independently (--no-online), or use a map in a folder"
)
_NOT_REFITTED = "a map in a store cannot be refitted in place; rebuild it with: tfa build PHOTOS --out URL"
_YOUR_ENCODER = (
    "this map was built with an encoder of your own, {}: "
    "use PlaceMap.load(path, encoder=…), or install the plugin that provides it"
)
_WITH_FILE = "pass the map's weights with --weights FILE, or --set encoder.weights=FILE"
_NEEDS_ROWS = "this needs all rows in memory, but the map is in a store; build a folder with --out NAME.tfa"


class Map:
    """A searchable map of places (`tfa.PlaceMap`).

    Build it from photos, or load it from a `NAME.tfa` folder or a URL. Once saved or loaded, `add`, `remove`, `refit`
    and `calibrate` also write to the folder or the store, each in one atomic step.

    Example:
        >>> town = tfa.PlaceMap.build("photos/")
        >>> town.save("town.tfa")
        >>> answer = tfa.PlaceMap.load("town.tfa").query("query.jpg")
        >>> answer.sure, answer.place
    """

    def __init__(self, storage: Storage, encoder: Encoder | None = None, options: EncoderOptions | None = None) -> None:
        self.storage, self.options = storage, options or EncoderOptions()
        self.notes: list[str] = []
        self.skipped: list[tuple[str, str]] = []
        self._encoder = encoder
        self._progress: bool | Progress | None = None
        self.storage.use_device(self.options.device)

    def with_storage(self, storage: Storage) -> Map:
        """Make a map over another storage with the same encoder and options.

        Args:
            storage: Storage with rows of this map's encoder.

        Returns:
            The new map; this one is unchanged.
        """
        return Map(storage, self._encoder, self.options)

    # --- build, save, load -------------------------------------------------------------------------------------

    @classmethod
    def build(
        cls,
        photos: Any,
        *,
        head: HeadKind | None = None,
        encoder: str | Encoder | None = None,
        positions: PositionsLike = None,
        spec: HeadSpec | None = None,
        map_spec: BuildOptions | None = None,
        options: EncoderOptions | None = None,
        progress: bool | Progress | None = None,
    ) -> Map:
        """Build a map in memory: encode the photos and fit a head on them.

        Args:
            photos: A folder, a file, or a list of them.
            head: Kind of head: "second-order", "paper" or "paper-dual". [default: `map_spec.head`]
            encoder: Encoder name, or a loaded encoder. [default: dinov2-s14-focus; as published dinov2-b14@322]
            positions: CSV file with positions, or `PositionSources`. [default: names and metadata of the photos]
            spec: Settings the head is fitted with.
            map_spec: Which head the map has, and what it stores; `BuildOptions.paper()` builds TFA as published.
            options: How photos are read and encoded.
            progress: True draws progress bars.

        Returns:
            The map, not saved yet.

        Raises:
            BadImage: A photo cannot be read, and `options.skip_bad` is off.
            NoImages: Fewer than two photos can be read.
        """
        progress, options = as_progress(progress), options or EncoderOptions()
        map_spec = map_spec or BuildOptions()
        published = map_spec == BuildOptions.paper()
        encoder = encoder or (PAPER_ENCODER if published else DEFAULT_ENCODER)
        if published:
            if head or spec or options.precision not in ("auto", "float32"):
                raise BadSpec("BuildOptions.paper() builds TFA as published; remove head, spec and precision")
            spec, options = HeadSpec.paper(), replace(options, precision="float32")
        map_spec = map_spec if head is None else replace(map_spec, head=head)
        if map_spec.vocabulary is not None and map_spec.head != "paper-dual":
            raise BadSpec(f"--vocabulary is for --head paper-dual, not {map_spec.head}; remove one of them")
        paths, unnamed = split_nameable(find_images(photos), skip_bad=options.skip_bad)
        root = Path(photos) if isinstance(photos, (str, Path)) and Path(photos).is_dir() else None
        places, notes = find_positions(paths, root, positions)  # first: a bad CSV must not fail after an hour
        hashed = None
        if not options.skip_bad:
            hashed = check_photos(paths, (options.cache or TokenCache()).encoded_before(), progress)
        if isinstance(encoder, str):
            encoder = load_encoder(
                encoder, weights=options.weights, device=options.device, threads=options.threads,
                precision=options.precision, progress=progress, depths=map_spec.chosen_depths,
            )  # fmt: skip
        if map_spec.depths not in (None, count_depths(encoder)):
            raise BadSpec(f"map.depths={map_spec.depths}, but {encoder.id} reads {count_depths(encoder)}")
        if count_depths(encoder) > 1 and map_spec.head != "second-order":  # before an hour of encoding
            raise BadSpec(f"--head {map_spec.head} uses one depth; name one block of {encoder.id}, such as /l7")
        source = read_source(map_spec.vocabulary, encoder.channels)
        encoded = encode(
            paths, encoder, cache=options.cache, skip_bad=options.skip_bad, batch_size=options.batch_size,
            progress=progress, hashed=hashed,
        )  # fmt: skip
        encoded = replace(encoded, skipped=[*unnamed, *encoded.skipped])
        if len(encoded.paths) < 2:
            raise NoImages(f"a map needs at least 2 photos, {photos} gave {len(encoded.paths)}")
        fitted = fit_map(encoded.tokens, map_spec, spec, options.device, progress, source)
        built = cls._new(fitted, encoded, encoder, dict(zip(paths, places, strict=True)), map_spec, options)
        built.notes += [*notes, *built.note_devices("fit", backend_for(options.device).device)]
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
        """Make a map of a fitted head and the images it was fitted on.

        Args:
            head: Fitted head.
            encoded: Images and tokens the head was fitted on.
            encoder: Encoder of the tokens.
            places: Positions by image path.
            map_spec: What the map stores. [default: no patches, so no reranking]
            options: How photos are read and encoded.
            progress: True draws progress bars.

        Returns:
            The map, not saved yet.
        """
        map_spec, options = map_spec or BuildOptions(rerank=False), options or EncoderOptions()
        fitted = add_verification(head, encoded.tokens, map_spec, progress)
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
        place_map.notes = [*encoder.notes, *fitted.notes, *note_few_images(len(records))]
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
        """Open a saved map. Arrays are memory-mapped, not read.

        Args:
            path: Folder `NAME.tfa`, or the URL of a map in a store such as postgres://HOST/DATABASE/NAME.
            checksum: Compare the sha256 of every file, not only its size.
            encoder: Loaded encoder to use instead of loading the map's encoder.
            patch_cache: Bytes of patches that a map in a store caches. [default: 256 MB]

        Returns:
            The map. The encoder is loaded by the first query.

        Raises:
            BadMap: There is no map, or it is damaged.
        """
        location = path if isinstance(path, MapLocation) else MapLocation(str(path))
        if location.in_store:
            from tfa.maps.store.storage import StoreStorage

            return cls(StoreStorage.open(location.text, patch_cache), encoder)
        return cls(MemoryStorage(reader.read_map(location.folder, checksum=checksum), location.folder), encoder)

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the map to a folder. Later edits are written there, too.

        Args:
            path: Folder to write, by convention `NAME.tfa`.
            overwrite: Replace a map that exists there.

        Raises:
            BadMap: The folder exists and is not a map, or `overwrite` is off.
        """
        self._memory_storage.save(Path(path), overwrite)

    def publish(self, url: str, *, progress: bool | Progress | None = None, **how: Any) -> Map:
        """Write the map to a store, replacing a map of that URL.

        Args:
            url: URL of the map, such as postgres://HOST/DATABASE/NAME.
            progress: True draws progress bars.
            how: dims, dtype and index of `tfa.maps.store.publish.publish_map`.

        Returns:
            The map in the store.
        """
        from tfa.maps.store.storage import StoreStorage

        published = self.with_storage(StoreStorage.publish(self, url, progress=progress, **how))
        published.skipped = list(self.skipped)
        return published

    # --- contents ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> MapState:
        """Heads, encoder and images; a map in a store has a sample of its images here."""
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
        """Path or URL of the map, for messages."""
        return self.storage.location

    def __len__(self) -> int:
        """Return the number of searchable images."""
        return len(self.storage.snapshot())

    def __repr__(self) -> str:
        """Describe the last snapshot, so that repr() makes no request."""
        count, state = self.storage.last_seen
        where = "not saved" if self.storage.name is None else self.called
        return summarize_map("PlaceMap", where, count, state)

    @property
    def calibrations(self) -> list[str]:
        """Names of the calibrations, the newest last."""
        return [head.name for head in self.state.calibrations]

    @property
    def images(self) -> list[ImageRecord]:
        """All searchable images as a list; use `records` for a large map in a store."""
        snapshot = self.storage.snapshot()
        return snapshot.images if isinstance(snapshot, MemorySnapshot) else list(self.storage.records())

    def records(self) -> Iterator[ImageRecord]:
        """Iterate over the searchable images in the order they were added; a store is read page by page."""
        return self.storage.records()

    def prepare(self) -> None:
        """Load and pack rows for fast single queries. Takes seconds for a large map."""
        self.storage.prepare()

    def close(self) -> None:
        """Close connections to a store."""
        self.storage.close()

    # --- rows of a map in memory ---------------------------------------------------------------------------------

    @property
    def in_memory(self) -> MemorySnapshot:
        """Current snapshot with all rows; raises BadSpec for a map in a store."""
        return self._memory_storage.snapshot()

    @property
    def _memory_storage(self) -> MemoryStorage:
        if not isinstance(self.storage, MemoryStorage):
            raise BadSpec(_NEEDS_ROWS)
        return self.storage

    @property
    def rows(self) -> np.ndarray:
        """Gallery rows of `images`, `(m,)`."""
        return self.in_memory.rows

    def searchable(self, calibration: str | None) -> SearchableHead:
        """Return a head with its search index.

        Args:
            calibration: Name of a calibration; None for the active head.

        Returns:
            The head and its index.

        Raises:
            BadSpec: The map is in a store.
        """
        return self.in_memory.searchable(calibration)

    def motion(self, reach: float) -> Motion:
        """Return the motion model of a camera in this map.

        Args:
            reach: Reach of the sequence filter, `SequenceSpec.reach`.

        Returns:
            The motion model.
        """
        return self.in_memory.motion(reach)

    @property
    def reach(self) -> float:
        """Meters between images of one place (`tfa.maps.confidence`)."""
        return self.storage.snapshot().reach

    def scores(self, tokens: Tokens, calibration: str | None = None) -> np.ndarray:
        """Score queries against every image.

        Args:
            tokens: Tokens of the queries.
            calibration: Name of a calibration; None for the active head.

        Returns:
            Scores `(q, m)`, in the order of `images`.
        """
        head = self.searchable(calibration)
        vectors = (head.on_device or head.stored.scorer).query_vectors(tokens)
        result = head.searcher.search(vectors, max(len(self), 1))
        scores = np.empty_like(result.scores)
        np.put_along_axis(scores, np.searchsorted(head.ids, result.ids), result.scores, axis=1)
        return scores

    def sample(self) -> Map:
        """Return this map, or if it is in a store, its fitted sample as a map in memory."""
        return self if self.storage.has_all_rows else self.with_storage(self.storage.make_sample())

    # --- encode --------------------------------------------------------------------------------------------------

    @property
    def cache(self) -> TokenCache | None:
        """Token cache; None is the user's."""
        cache: TokenCache | None = self.options.cache
        return cache

    @cache.setter
    def cache(self, cache: TokenCache | None) -> None:
        self.options = replace(self.options, cache=cache)

    def use_encoder(self, options: EncoderOptions, progress: bool | Progress | None = None) -> None:
        """Set encoding options for later queries. The map determines the encoder.

        Args:
            options: How photos are read and encoded.
            progress: True draws progress bars while the encoder loads.
        """
        cache = options.cache or self.cache
        self._encoder, self.options, self._progress = None, replace(options, cache=cache), progress
        self.storage.use_device(options.device)

    @property
    def encoder(self) -> Encoder:
        """The map's encoder, loaded on first use and compared with the one the map was built with."""
        expected = self.state.encoder
        if self._encoder is None:
            options = self.options
            try:
                self._encoder = load_encoder(
                    expected["id"], weights=options.weights or expected["weights"], device=options.device,
                    threads=options.threads, precision=options.precision, progress=self._progress,
                    model=expected["fingerprint"],
                )  # fmt: skip
            except UnknownEncoder:
                raise UnknownEncoder(_YOUR_ENCODER.format(expected["id"])) from None
            except WeightsMissing as error:  # only the map's encoder fits, so ways that name another one do not help
                ways = [line for line in error.lines[1:] if "--encoder" not in line]
                raise WeightsMissing(error.lines[0], *error.paths, more=[*ways, _WITH_FILE]) from error
        # The model must match, not its arithmetic: a map built in float32 may be queried in int8.
        if self._encoder.model != expected["fingerprint"]:
            other, self._encoder = self._encoder, None
            raise BadWeights(_explain_other_encoder(expected, other))
        return self._encoder

    def note_devices(self, step: str, device: str) -> list[str]:
        """Say where the encoder and another step computed.

        Args:
            step: Name of the other step.
            device: Device of that step.

        Returns:
            One note; none if no device was chosen.
        """
        if self.options.device == "cpu" or self._encoder is None:
            return []
        return [f"{describe_device(self._encoder)}, {step} on {device}"]

    def encode_batches(
        self, photos: Sequence[Photo], strict: bool = False
    ) -> Iterator[tuple[list[tuple[str, str | None, str | None]], Tokens | None]]:
        """Encode photos in batches. The encoder is loaded with the first readable photo.

        Args:
            photos: Photos as for `query`, or only photos that are encoded already (`EncodedImages.as_photos`).
            strict: Raise if a photo cannot be read.

        Yields:
            Batches: each photo's name, error and flaw (`find_flaw`), and the tokens of photos that show something.
        """
        for start in range(0, len(photos), _QUERY_BATCH):
            images: list[Any] = []
            named: list[tuple[str, str | None, str | None]] = []
            some: Sequence[Any] = photos[start : start + _QUERY_BATCH]
            encoded = [photo for photo in some if isinstance(photo, EncodedPhoto)]
            if encoded:
                rows = [one.row for one in encoded if one.row is not None]
                named = [(str(one.path), one.error, None) for one in encoded]
                yield named, encoded[0].tokens.select(rows) if rows else None
                continue
            for photo in some:
                try:
                    image = as_rgb(photo)
                    flaw = find_flaw(image)
                    images += [] if flaw in NOTHING_SHOWN else [image]
                    named.append((name_photo(photo), None, flaw))
                except (BadImage, OSError) as error:
                    if strict:
                        raise
                    named.append((name_photo(photo), str(error), None))
            yield named, Tokens(*self.encoder.encode(images), grid=self.encoder.grid) if images else None

    def encode_photos(
        self,
        paths: Sequence[Path],
        skip_bad: bool | None,
        progress: bool | Progress | None = None,
        hashed: Mapping[Path, HashedPhoto] | None = None,
    ) -> EncodedImages:
        """Encode photos to add, or to calibrate with.

        Args:
            paths: Files of the photos.
            skip_bad: Skip unreadable photos; None uses the map's `options`.
            progress: True draws progress bars.
            hashed: Photos that are hashed and checked already.

        Returns:
            Tokens and hashes of the readable photos, and the skipped ones.
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
        """Find where a photo was taken.

        Args:
            photo: A path, file content as bytes, a PIL image, or a uint8 array (H, W, 3) in RGB.
            k: Number of hits.
            options: Other fields of `tfa.types.QueryOptions`, such as `sure=True`.

        Returns:
            Hits, best first, with confidence and a position estimate.

        Raises:
            BadImage: The photo cannot be read.
        """
        chosen = _make_query_options(k, options)
        [answer] = self._answers([photo], chosen, strict=True)
        return answer.withhold(chosen)

    def query_many(
        self, photos: PhotosLike, k: int = 5, progress: bool | Progress | None = None, **options: Any
    ) -> Answers:
        """Find where each of several photos was taken, and estimate recall on similar photos.

        Args:
            photos: A folder, or a list of photos as for `query`.
            k: Number of hits per photo.
            progress: True draws progress bars.
            options: Other fields of `tfa.types.QueryOptions`.

        Returns:
            An answer per photo, in order, with `error` set for unreadable photos; expected recall; and a notice if
            the photos differ from those the map was made for.
        """
        chosen, answers = _make_query_options(k, options), list[Answer]()
        shift = DomainShiftMonitor.for_head(self.state.chosen(chosen.calibration))
        several = expand_photos(photos)
        with as_progress(progress).task("querying", len(several), "photos") as task:
            for answer in self._answers(several, chosen, strict=False, shift=shift):
                answers.append(answer.withhold(chosen))
                task.advance()
        return collect_answers(answers, shift.warning(self.called), outside=shift.is_outside)

    def query_tokens(self, tokens: Tokens, k: int = 5, **options: Any) -> list[Answer]:
        """Query the map with tokens of its encoder. Reranking needs their patch grid, or the map's number of patches.

        Args:
            tokens: Tokens of the photos.
            k: Number of hits per photo.
            options: Other fields of `tfa.types.QueryOptions`.

        Returns:
            An answer per photo, in order.
        """
        chosen = _make_query_options(k, options)
        return [answer.withhold(chosen) for answer in self.answer_tokens(tokens, chosen)]

    def answer_tokens(
        self, tokens: Tokens, options: QueryOptions, shift: DomainShiftMonitor | None = None
    ) -> list[Answer]:
        """Answer photos by their tokens, including answers that `options` would withhold.

        Args:
            tokens: Tokens of the photos.
            options: Options of the query.
            shift: Monitor that also sees the photos.

        Returns:
            An answer per photo, in order.
        """
        try:
            return answer_tokens(self.storage.snapshot(), tokens, options, shift)
        except StoreConflict:  # the version was replaced twice within half a second and dropped
            return answer_tokens(self.storage.snapshot(fresh=True), tokens, options, shift)

    def check(self, options: QueryOptions) -> None:
        """Check that this map can answer queries with these options.

        Args:
            options: Options of the query.

        Raises:
            TfaError: It cannot.
        """
        snapshot = self.storage.snapshot()
        make_where(options)
        snapshot.check_head(options.calibration)
        resolve_candidates(options, snapshot.state, compact=snapshot.patches)

    def _answers(
        self, photos: Sequence[Photo], options: QueryOptions, strict: bool, shift: DomainShiftMonitor | None = None
    ) -> Iterator[Answer]:
        self.check(options)  # before photos are read
        for named, tokens in self.encode_batches(photos, strict):
            answers = iter([] if tokens is None else self.answer_tokens(tokens, options, shift))
            for name, error, flaw in named:
                if error is not None or flaw in NOTHING_SHOWN:
                    yield Answer(query=name, error=error, reason=flaw or UNREADABLE, place_missing=flaw)
                else:
                    yield blame_flaw(replace(next(answers), query=name), flaw)

    def follow(
        self,
        calibration: str | None = None,
        *,
        online: bool = True,
        sequence: bool = True,
        spec: SequenceSpec | None = None,
        lag: int = 0,
        **options: Any,
    ) -> Tracker:
        """Follow one camera, whose photos adapt later answers. The map does not change.

        Args:
            calibration: Calibration to use; "none" for none. [default: the active one]
            online: Adapt scores to the camera's earlier photos.
            sequence: Treat photos as frames of one drive and filter positions over time.
            spec: Settings of that filter.
            lag: Answer this many frames late, using the frames in between.
            options: Other fields of `tfa.types.QueryOptions`.

        Returns:
            A tracker; `tracker.step(photo)` answers the next photo.

        Raises:
            BadSpec: The map is in a store, or the options name sessions or a region.
        """
        if not self.storage.has_all_rows:
            raise BadSpec(_NOT_FOLLOWED)
        chosen = QueryOptions(calibration=calibration, **options)
        return Tracker(self, chosen, online=online, sequence=sequence, spec=spec, lag=lag)

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
        """Add photos without refitting the head.

        Photos that the map holds already are left out. Rerun an interrupted addition to a store to add the rest.

        Args:
            photos: A folder, a file, or a list of them.
            positions: CSV file with positions, or `PositionSources`.
            session: Name of the drive the photos belong to, for filters.
            skip_bad: Skip unreadable photos. [default: the map's `options`]
            progress: True draws progress bars.

        Returns:
            Ids of the added images, skipped photos and notes.
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
        """Add photos that are encoded by the map's encoder.

        Args:
            encoded: The encoded photos.
            places: Positions by image path.
            session: Name of the drive the photos belong to.

        Returns:
            Ids of the added images, skipped photos and notes.
        """
        records = make_records(encoded, places, first_id=0, fitted=False, session=session)
        return self.add_records(encoded.tokens, records, encoded.skipped)

    def add_records(
        self, tokens: Tokens, records: Sequence[ImageRecord], skipped: Sequence[tuple[Path, str]] = ()
    ) -> EditReport:
        """Add images by their records, which get new ids.

        Args:
            tokens: Tokens of the images.
            records: A record per image.
            skipped: Photos that could not be read, for the report.

        Returns:
            Ids of the added images, skipped photos and notes.
        """
        added = self.storage.add(tokens, records)
        notes = [*_note_repeated(len(records) - len(added)), *self._advice()]  # another editor was faster
        return EditReport(added=added, skipped=_list_skipped(skipped), notes=notes)

    def remove(self, photos: Sequence[str | Path | int], *, revision: int | str | None = None) -> EditReport:
        """Remove photos from the answers. Their descriptors stay until `refit`: the fitted head may depend on them.

        Args:
            photos: Paths, unambiguous ends of paths, or ids.
            revision: Revision that the ids are from. [default: any]

        Returns:
            Ids of the removed images, and notes.

        Raises:
            UnknownImage: A photo is not in the map, or a path is ambiguous.
            StoreConflict: The map has another revision.
        """
        records = sorted(set(self.storage.find_records(photos)), key=lambda record: record.id)
        # Compare after finding: if the map is rebuilt from here on, the edit sees that the images differ.
        there = None if revision is None else self.storage.snapshot(fresh=True).state.revision
        if revision is not None and str(revision) != str(there):
            said = f"{self.storage.name} has revision {there}, not {str(revision)[:20]}; nothing was removed"
            raise StoreConflict(f"{said}. List the images again, since ids may name other photos")
        gone = self.storage.remove(records)
        notes = [self.storage.removal_note] if gone else []
        return EditReport(removed=gone, notes=[*notes, *self._advice()])

    def refit(self, progress: bool | Progress | None = None) -> None:
        """Fit a new head of the same kind on the current photos. Drops calibrations; keeps ids and positions.

        Args:
            progress: True draws progress bars.

        Raises:
            BadMap: Photos are neither in the token cache nor on disk.
            BadSpec: The map is in a store.
            NoImages: The map has fewer than two photos.
        """
        if not self.storage.has_all_rows:
            raise BadSpec(_NOT_REFITTED)
        if len(self) < 2:
            raise NoImages(f"refit needs at least 2 photos, the map has {len(self)}")
        progress, old, device = as_progress(progress), self.state, self.options.device
        tokens = load_tokens(self, self.images, progress, "remove them from the map before refit")
        fitted = fit_map(tokens, old.map_spec, HeadSpec.from_dict(old.spec), device, progress, old.source)
        records = [replace(record, fitted=True) for record in self.images]
        fresh = make_state(fitted, old.map_spec, records, old.encoder)
        fresh = replace(fresh, next_id=old.next_id, revision=old.revision + 1, photo_root=old.photo_root)
        # Calibrations belong to the old head and are dropped.
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
        """Calibrate the map for a camera or season from unlabeled photos, and make that calibration active.

        A map of the paper's head also needs its own photos, or their cached tokens.

        Args:
            photos: A folder, or photos as for `query`, none of which is in the map.
            name: Name of the calibration; replaces one of the same name.
            budget: Use at most this many photos, sampled with a fixed seed.
            score: Also subtract each image's mean score on these photos. [default: yes with enough photos]
            skip_bad: Skip unreadable photos. [default: the map's `options`]
            progress: True draws progress bars.

        Returns:
            Photos used, decisions with reasons, and expected recall on similar photos.

        Raises:
            BadCalibration: Photos are in the map.
            NoImages: Fewer than two photos can be used.
        """
        options = {"name": name, "budget": budget, "score": score}
        return self.storage.calibrate(self, photos, options, skip_bad, as_progress(progress))

    def activate(self, name: str | None, progress: bool | Progress | None = None) -> str | None:
        """Choose the head for queries that name no calibration. A store rewrites its vectors for that.

        Args:
            name: Name of a calibration; None for the uncalibrated head.
            progress: True draws progress bars.

        Returns:
            Name of the active calibration; None for the uncalibrated head.

        Raises:
            BadCalibration: There is no such calibration.
        """
        active = self.storage.activate(DATABASE if name is None else name, as_progress(progress))
        return None if active == DATABASE else active

    def drop_calibration(self, name: str) -> None:
        """Delete a calibration. If it was active, the uncalibrated head answers.

        Args:
            name: Name of the calibration.

        Raises:
            BadCalibration: There is no such calibration.
        """
        self.storage.drop_calibration(name)

    def adopt_calibration(self, other: Map, name: str) -> None:
        """Copy a calibration from a branch of this map.

        Args:
            other: Branch made at this revision or an earlier one.
            name: Name of the calibration.
        """
        self.storage.adopt_calibration(self, other.state, name)

    # --- describe ----------------------------------------------------------------------------------------------

    @property
    def unseen_share(self) -> float:
        """Share of the images that the head was not fitted on."""
        return self.storage.compute_unseen_share()

    def _advice(self) -> list[str]:
        share = self.unseen_share
        if share <= REFIT_SHARE:
            return []
        return [f"the head was not fitted on {share:.0%} of the photos; {self.storage.refit_advice}"]

    def info(self) -> MapInfo:
        """Describe the map.

        Returns:
            Images, encoder, decisions with reasons, and calibrations. Images of a store are not listed (`records`).
        """
        return self.storage.describe([*self.notes, *self._advice(), *note_close_decisions(self.state.chosen())])


def _make_query_options(k: int, options: Mapping[str, Any]) -> QueryOptions:
    """Check the options of a query of single photos."""
    chosen = QueryOptions(k=k, **options)
    if chosen.camera is not None or chosen.sequence or chosen.loops:
        raise BadSpec("camera, sequence and loops are for a service; to follow a camera in this process, use follow()")
    return chosen


def _note_repeated(count: int) -> list[str]:
    return [f"photos already in the map: {count}"] if count else []


def _list_skipped(skipped: Sequence[tuple[Path, str]]) -> list[tuple[str, str]]:
    return [(str(path), reason) for path, reason in skipped]


def _explain_other_encoder(expected: Mapping[str, Any], other: Encoder) -> str:
    built = (
        f"this map was built with {expected['id']} (fingerprint {expected['fingerprint'][:12]}…), "
        f"but {other.id} was loaded"
    )
    name = getattr(other, "names", {}).get(expected["fingerprint"])
    if name is None:
        return f"{built} with other weights or preprocessing; {_WITH_FILE}"
    return (
        f"{built}, which resamples position embeddings differently; load the map with the encoder {name}, "
        f"or rebuild it with --encoder {other.id}"
    )
