"""The place map: a fitted head with its photos, saved, edited and queried. It holds no arithmetic of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from tfa.core.files import OpenFolder
from tfa.core.progress import Progress, as_progress
from tfa.encoders import DEFAULT_ENCODER, Encoder, load_encoder
from tfa.errors import BadMap, NoImages
from tfa.maps.calibrate import calibrate_map, note_dropped
from tfa.maps.fit_map import FittedMap, add_verification, fit_map
from tfa.maps.folder import reader, writer
from tfa.maps.lookup import drop_repeated_files, find_image_records, load_tokens
from tfa.maps.query import ReadOnlyMap
from tfa.maps.state import DATABASE, MapState
from tfa.maps.state_changes import append_images, describe_encoder, make_records, make_state
from tfa.maps.stored_head import AnyHead
from tfa.maps.summary import compute_unseen_share, describe_map
from tfa.photos.find_positions import PositionsLike, find_positions
from tfa.photos.images import PhotosLike, check_photos, find_images, split_nameable
from tfa.photos.token_cache import EncodedImages, TokenCache
from tfa.pipeline import encode
from tfa.search.store import MapLocation
from tfa.types import (
    BuildOptions,
    CalibrateOptions,
    CalibrationReport,
    EditReport,
    EncoderOptions,
    HeadKind,
    HeadSpec,
    MapInfo,
    Position,
)

REFIT_SHARE = 0.2  # share of images not seen at fitting from which a refit is advised


class PlaceMap(ReadOnlyMap):
    """A searchable map of places. Build it from photos, or load it from a `NAME.tfa` folder.

    Once saved or loaded, `add`, `remove`, `refit` and `calibrate` also write to the folder, each in one atomic step.
    """

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
    ) -> PlaceMap:
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
        if not options.skip_bad:
            check_photos(paths, (options.cache or TokenCache()).encoded_before(), progress)
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
        )
        encoded = replace(encoded, skipped=[*unnamed, *encoded.skipped])
        if len(encoded.paths) < 2:
            raise NoImages(f"a map needs at least 2 photos, {photos} gave {len(encoded.paths)}")
        fitted = fit_map(encoded.tokens, map_spec, spec, options.device, progress)
        where = dict(zip(paths, places, strict=True))
        built = cls._new(fitted, encoded, encoder, where, map_spec, options)
        built.cache = options.cache
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
    ) -> PlaceMap:
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
    ) -> PlaceMap:
        records = make_records(encoded, places, first_id=0, fitted=True)
        place_map = cls(
            make_state(fitted, map_spec, records, describe_encoder(encoder, options.weights)), encoder=encoder
        )
        place_map.options, place_map.notes = options, [*encoder.notes, *fitted.notes]
        place_map.skipped = [(str(path), reason) for path, reason in encoded.skipped]
        return place_map

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the map as a folder; from then on edits are written there too."""
        self._take(writer.write_new(Path(path), self.state, overwrite=overwrite))
        self.path = Path(path)

    @classmethod
    def load(
        cls,
        path: str | Path | MapLocation,
        checksum: bool = False,
        encoder: Encoder | None = None,
        patch_cache: int | None = None,
    ) -> PlaceMap:
        """Open a saved map; its arrays are mapped, not read. `encoder` is used instead of loading the map's own.

        The size of every file is checked; `checksum` reads every byte and compares its sha256 too. A URL, such as
        postgres://HOST/DATABASE/NAME, opens a map in a store: an `StoreMap`, with the same methods.
        `patch_cache` is how many bytes of patches that one keeps in memory; a folder's are mapped and need none.
        """
        location = path if isinstance(path, MapLocation) else MapLocation(str(path))
        if location.in_store:
            from tfa.maps.store import StoreMap

            return cast(PlaceMap, StoreMap.open(location.text, encoder, patch_cache))
        return cls(reader.read_map(location.folder, checksum=checksum), location.folder, encoder)

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

        `session` names what they belong to, to choose by; `skip_bad` is that of the map's `options` if not given.
        """
        paths, known = find_images(photos), {record.path for record in self.images}
        fresh = [path for path in drop_repeated_files(paths) if str(path.resolve()) not in known]
        known_before = len(paths) - len(fresh)
        notes = [f"already in the map and left as they are: {known_before}"] if known_before else []
        fresh, unnamed = split_nameable(fresh, skip_bad=self.options.skip_bad if skip_bad is None else skip_bad)
        if not fresh:
            return EditReport(notes=notes)
        places, more = find_positions(fresh, None, positions)
        encoded = self.encode_photos(fresh, skip_bad, progress)
        encoded = replace(encoded, skipped=[*unnamed, *encoded.skipped])
        report = self.add_encoded(encoded, dict(zip(fresh, places, strict=True)), session)
        return replace(report, notes=[*notes, *more, *report.notes])

    def add_encoded(
        self, encoded: EncodedImages, places: Mapping[Path, Position | None], session: str | None = None
    ) -> EditReport:
        """Add photos that were encoded elsewhere, by the map's encoder."""
        records = make_records(encoded, places, first_id=self.state.next_id, fitted=False, session=session)
        self._commit(append_images(self.state, encoded.tokens, records), writer.write_addition)
        skipped = [(str(path), reason) for path, reason in encoded.skipped]
        return EditReport(added=[record.id for record in records], removed=[], skipped=skipped, notes=self._advice())

    def remove(self, photos: Sequence[str | Path | int]) -> EditReport:
        """Take photos (paths or ids) out of the answers.

        Their descriptors stay in the map, where they may carry the fitted geometry; only `refit` forgets them.
        """
        gone = sorted({record.id for record in find_image_records(self.images, photos)})
        # Their rows stay: they may carry the geometry.
        self._commit(self.state.changed(removed=self.state.removed.union(gone)), writer.commit)
        notes = ["removed photos no longer answer; their descriptors stay in the map until tfa refit"] if gone else []
        return EditReport(added=[], removed=gone, skipped=[], notes=[*notes, *self._advice()])

    def refit(self, progress: bool | Progress | None = None) -> None:
        """Fit a new head of the same kind on the photos now in the map, from the token cache; ids and places stay."""
        if len(self) < 2:
            raise NoImages(f"refit needs at least 2 photos, the map has {len(self)}")
        progress, old, device = as_progress(progress), self.state, self.options.device
        tokens = load_tokens(self, self.images, progress, "remove them from the map before refit")
        fitted = fit_map(tokens, old.map_spec, HeadSpec.from_dict(old.spec), device, progress)
        records = [replace(record, fitted=True) for record in self.images]  # they keep their ids
        fresh = make_state(fitted, old.map_spec, records, old.encoder)
        fresh = replace(fresh, next_id=old.next_id, revision=old.revision + 1, photo_root=old.photo_root)
        self._commit(fresh, writer.write_all)  # without calibrations: they were of the old head
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

        The calibration is kept beside the database-only head and answers from now on. `score` also calibrates
        scores, an image's bias each (None: as the judge decides; of the paper's head from 16 photos on). A map of the
        paper's head needs its photos, or their cached tokens; others hold all that it takes.
        """
        fresh, report = calibrate_map(self, photos, name, budget, score, skip_bad, as_progress(progress))
        self._commit(fresh, writer.write_calibration)
        return report

    def activate(self, name: str | None) -> str | None:
        """Let the calibration of that name answer where a query names none; None lets the database-only head answer."""
        state = self.state.with_active(DATABASE if name is None else name)
        if state is not self.state:
            self._commit(state, writer.commit)
        return None if state.active == DATABASE else state.active

    def drop_calibration(self, name: str) -> None:
        """Take a calibration out of the map for good; if it was the active one, the database-only head answers."""
        self._commit(self.state.without_calibration(name), writer.commit)

    def adopt_calibration(self, other: PlaceMap, name: str) -> None:
        """Take over a calibration that was made in a copy of this saved map, at this revision or an earlier one.

        Images that were added since are described by it now.
        """
        head, known = other.state.chosen(name), other.state.images
        pairs = zip(self.state.images, known, strict=False)
        alike = len(known) <= len(self.state.images) and all((a.id, a.digest) == (b.id, b.digest) for a, b in pairs)
        if self.state.head_digest(DATABASE) != other.state.head_digest(DATABASE) or not alike:
            raise BadMap("the map was fitted again while it was calibrated; calibrate it again")
        if head.stored.in_space and self.state.spaces is not None:
            head = head.over(self.state.spaces)
        elif added := self.state.images[len(known) :]:
            head = head.grown(load_tokens(self, added))
        self._commit(self.state.with_calibration(head), writer.write_calibration)

    def _commit(self, state: MapState, write: Callable[[OpenFolder, MapState], MapState]) -> None:
        """Make `state`, the next revision of this map's own, the map's; on disk first if it has a folder.

        `write` is the function of `maps.folder.writer` for what changed. Nothing is written, and the map stays as it
        is, if another process holds the folder or has changed it.
        """
        if self.path is not None:
            with writer.hold_for_edit(self.path, self.state.digest) as folder:
                state = write(folder, writer.number_revision(folder, state))
        self._take(state)

    # --- describe ----------------------------------------------------------------------------------------------

    @property
    def unseen_share(self) -> float:
        """Share of the photos in the map that the head was not fitted on."""
        return compute_unseen_share(self.images)

    def _advice(self) -> list[str]:
        if self.unseen_share <= REFIT_SHARE:
            return []
        share = f"{self.unseen_share:.0%}"
        return [f"{share} of the photos were not seen when the head was fitted; fit again with: tfa refit"]

    def info(self) -> MapInfo:
        """Describe the map: what it holds, what was decided and why."""
        return describe_map(self.state, self.images, self.path, notes=[*self.notes, *self._advice()])
