"""Driver of a sharded build, pass by pass.

    sample       tokens of blocks of neighboring photos → head, directions, compaction, decisions (`fit_map`)
    descriptors  every photo → second-order descriptor and compact patches
    covariance   Σ v, Σ v vᵀ over fixed groups of shards, added in order → the space of all images
    rows         stored coordinates of every image
    vectors      Σ Ψ Ψᵀ over the same groups → the reduction, and the moments of the reduced vectors
    entries      write every image to the store, then publish the version

If the sample contains all photos, its space is final, and descriptors, covariance and rows are skipped. Sums have a
fixed order, so the map depends neither on the number of workers nor on the order in which they finish.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.arrays import Spill, backend_for
from tfa.core.files import cache_folder, hash_json
from tfa.core.plain import to_plain
from tfa.core.progress import Progress, as_progress
from tfa.encoders import DEFAULT_ENCODER, Encoder
from tfa.errors import BadMap, BadSpec, NoImages
from tfa.maps.building.executors import Executor, PassRunner, SerialExecutor
from tfa.maps.building.passes import (
    AddUpDescriptors,
    AddUpVectors,
    Describe,
    EncodeSample,
    Encoding,
    Project,
    WriteEntries,
    add_triangle,
    axes_tensors,
    join_tokens,
    mirror_triangle,
    read_axes,
    row_tensors,
)
from tfa.maps.building.photo_list import SHARD_SIZE, PhotoList, Shard, list_photos
from tfa.maps.building.work_folder import Group, ItemReport, WorkFolder, WorkResult, name_result
from tfa.maps.confidence import measure_reach, note_few_images
from tfa.maps.fit_map import fit_map
from tfa.maps.folder import reader
from tfa.maps.state import DATABASE, MapState, describe_encoder, find_common_folder, make_state
from tfa.maps.store.header import StoreHeader
from tfa.maps.store.publish import STORE_DIMS, Publisher, VersionFacts
from tfa.maps.store.rows import SpaceRows, begin_patches, check_elsewhere, fit_reduction_to_moments, seal_patches
from tfa.maps.store.versions import SAMPLE_BLOCK, SKELETON_IMAGES, choose_sample, write_skeleton
from tfa.maps.stored_head import StoredHead, StoredSpaces
from tfa.method.branch import DatabaseSplit
from tfa.method.decisions import SpectralStrengths
from tfa.method.second_order_head import (
    FittedSpaces,
    assemble_second_order,
    decide_carrier,
    limit_pseudo_queries,
    measure_spaces,
)
from tfa.method.second_order_space import MAX_COVARIANCE, MAX_RANK, fit_sample_axes, sample_space
from tfa.method.spectrum import PrincipalAxes, fit_principal_axes
from tfa.search.reduced import Moments
from tfa.search.store import find_opener, hide_password, split_map_url
from tfa.types import BuildOptions, BuildPass, EncoderOptions, HeadSpec, ImageRecord, Position
from tfa.verification.patches import CompactTokens


@dataclass(frozen=True)
class BuildReport:
    """Result of a sharded build."""

    url: str
    header: StoreHeader
    skipped: list[tuple[str, str]]
    notes: list[str]
    passes: list[BuildPass]

    def to_dict(self) -> dict[str, Any]:
        facts = {"url": self.url, "images": self.header.count, "revision": self.header.revision}
        return {**facts, "notes": self.notes, "passes": to_plain(self.passes)}


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """How a build is divided into shards, and how its store searches."""

    executor: Executor = field(default_factory=SerialExecutor)
    shard_size: int = SHARD_SIZE
    sample: int = SKELETON_IMAGES  # maximum number of photos that the head is fitted on
    work: str | Path | None = None  # work folder that all workers share; None is in the user's cache folder
    dims: int = STORE_DIMS
    index: str | None = None  # index of the store; None searches exactly
    patches_at: str | None = None  # URL of another store for the patches; None is the map's store

    def __post_init__(self) -> None:
        if type(self.shard_size) is not int or self.shard_size < 1:
            raise BadSpec(
                f"shard_size={self.shard_size!r} is out of range: must be an integer ≥ 1 (default {SHARD_SIZE})"
            )
        if type(self.sample) is not int or self.sample < SAMPLE_BLOCK:
            raise BadSpec(
                f"sample={self.sample!r} is out of range: must be an integer ≥ {SAMPLE_BLOCK}, the size of a block of "
                f"neighboring photos (default {SKELETON_IMAGES})"
            )


# --- the driver ----------------------------------------------------------------------------------------------------


# Maps in the work folder, without patches: the fitted sample, and the same images in the space of all images.
_SAMPLE_MAP, _SKELETON = "sample.tfa", "skeleton.tfa"


def build_sharded(
    photos: Any,
    url: str,
    *,
    encoder: str | Callable[[], Encoder] = DEFAULT_ENCODER,
    spec: HeadSpec | None = None,
    map_spec: BuildOptions | None = None,
    options: EncoderOptions | None = None,
    sharding: Sharding | None = None,
    progress: bool | Progress | None = None,
) -> BuildReport:
    """Build a map in a store. Rerun with the same arguments to resume an interrupted build."""
    map_spec, options, sharding = map_spec or BuildOptions(), options or EncoderOptions(), sharding or Sharding()
    _check_storable(map_spec)
    base, name = split_map_url(url)
    if sharding.patches_at is not None:
        check_elsewhere(sharding.patches_at)
    if not isinstance(photos, PhotoList):
        photos = list_photos(photos, skip_bad=options.skip_bad)
    if len(photos) < 2:
        raise NoImages(f"a map needs at least 2 photos, {len(photos)} were listed")
    opener = find_opener(base)
    store = opener(base)
    publisher = Publisher(store, name, hide_password(url))
    with publisher.claim():  # first, so that a concurrent build fails at once
        cache = None if options.cache is None else options.cache.folder
        encoding = Encoding(encoder, replace(options, cache=None), cache, map_spec.chosen_depths)
        runner = PassRunner(sharding.executor, as_progress(progress))
        build = _Build(photos, publisher, encoding, spec or HeadSpec(), map_spec, sharding, runner)
        writes = SerialExecutor() if store.one_process else sharding.executor
        return build.run(partial(WriteEntries, build.folder, build.skeleton, opener, base, name), writes)


@dataclass
class _Build:
    photos: PhotoList
    publisher: Publisher
    encoding: Encoding
    spec: HeadSpec
    map_spec: BuildOptions
    sharding: Sharding
    runner: PassRunner
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.encoder = self.encoding.load()
        self.shards = self.photos.shards(
            self.sharding.shard_size, choose_sample(len(self.photos), self.sharding.sample).tolist()
        )
        settings = [self.spec.to_dict(), self.map_spec.to_dict(), self.sharding.shard_size, self.sharding.sample]
        digest = hash_json([self.photos.digest, self.encoder.fingerprint, *settings, self.encoding.options.skip_bad])
        parent = cache_folder() / "builds" if self.sharding.work is None else Path(self.sharding.work)
        self.folder = WorkFolder(parent.absolute() / digest[:32], digest)
        self.whole = len(self.photos) <= self.sharding.sample  # whether the sample contains all photos
        self.skeleton = _SAMPLE_MAP if self.whole else _SKELETON  # the map that is published
        self.notes += [*self.photos.notes, *self.encoder.notes]

    # --- passes --------------------------------------------------------------------------------------------------

    def run(self, writing: Callable[..., WriteEntries], writes: Executor) -> BuildReport:
        """Run all passes; `writing` makes the last one."""
        chosen = [shard for shard in self.shards if shard.sample]
        sizes = [len(shard.sample) for shard in chosen]
        results = self.runner.run("sample", EncodeSample(self.folder, self.encoding), chosen, sizes)
        state = self.runner.timed("fit", self._fitted_sample)
        if self.whole:
            self._final_rows(state)
        else:
            results = self._descriptors(state)
            self._space_of_all(state, results)
            self.runner.run("rows", Project(self.folder), self.shards, _sizes(results, self.shards))
        total = self._vectors(_sizes(results, self.shards))
        reduction = fit_reduction_to_moments(total, self.sharding.dims)
        ids = _first_ids(results, self.shards)
        publisher = self.publisher
        collection, version = publisher.begin(reduction.dims), publisher.version
        patches = begin_patches(publisher.store, publisher.name, version, state.compact, self.sharding.patches_at)
        work = writing(version=version, reduction=reduction, ids=ids, patches=patches)
        self.runner.run("entries", work, self.shards, _sizes(results, self.shards), writes)
        collection.seal(self.sharding.index)
        if patches is not None:
            seal_patches(publisher.store, patches)
        self.notes += [*self.runner.notes(), *note_few_images(ids[-1])]
        facts = VersionFacts(
            next_id=ids[-1], placed=sum(done.placed for done in results.values()), encoder=state.encoder,
            reach=measure_reach(state.images),
            heads=[DATABASE], active=DATABASE, index=self.sharding.index, patches=patches, notes=self.notes,
        )  # fmt: skip
        header = publisher.finish(self.folder.path / self.skeleton, reduction, reduction.moments(total), facts)
        self.folder.remove()
        skipped = [*self.photos.skipped, *(one for done in results.values() for one in done.skipped)]
        return BuildReport(publisher.url, header, skipped, self.notes, self.runner.passes)

    # --- on the sample -------------------------------------------------------------------------------------------

    def _fitted_sample(self) -> MapState:
        """Fit the map of the sample, or read it from an earlier run."""
        path = self.folder.path / _SAMPLE_MAP
        known = self.folder.read("fit")
        if known is not None:
            try:
                state = replace(reader.read_map(path, checksum=True), compact=self._read_compact(known))
                self.notes += known.facts["notes"]
                return state
            except (BadMap, OSError, KeyError):
                pass  # damaged, or from an earlier release
        results = [self.folder.needed(name_result("sample", shard.number)) for shard in self.shards if shard.sample]
        payload = [one for result in results for one in result.facts["payload"]]
        if len(payload) < 2:
            raise NoImages(f"a map needs at least 2 photos; {len(payload)} of the sample can be read")
        tokens, options = join_tokens(results, self.encoder), self.encoding.options
        records = _make_records(payload, range(len(payload)))
        fitted = fit_map(tokens, self.map_spec, self.spec, options.device, self.runner.progress)
        state = make_state(fitted, self.map_spec, records, describe_encoder(self.encoder, options.weights))
        notes = list(fitted.notes)
        shutil.rmtree(path, ignore_errors=True)  # left by an interrupted run, or damaged
        write_skeleton(path, state)
        compact, tensors = state.compact, {}
        if compact is not None:
            patches = compact.patch_tensors(0, len(compact)) if self.whole else {}  # `Describe` makes all patches
            tensors = {**compact.compaction_tensors(), **patches}
        self.folder.write("fit", tensors, {"notes": notes, "compact": None if compact is None else compact.to_dict()})
        self.notes += notes
        return state

    def _read_compact(self, fit: WorkResult) -> CompactTokens | None:
        """Read the compaction of an earlier run, and the patches if the sample contains all photos."""
        entry = fit.facts["compact"]
        return None if entry is None else CompactTokens.from_tensors(entry, fit.tensors, [fit.tensors] * self.whole)

    def _final_rows(self, state: MapState) -> None:
        """Write the rows of the fitted map, which contains all photos."""
        assert state.spaces is not None
        start = 0
        for shard in self.shards:
            payload = self.folder.needed(name_result("sample", shard.number)).facts["payload"]
            rows = SpaceRows.of(state.spaces, start, start + len(payload)) if payload else None
            tensors = {} if rows is None else row_tensors(rows)
            if state.compact is not None:
                own = state.compact.patch_tensors(start, start + len(payload)) if payload else {}
                self.folder.write(name_result("patches", shard.number), own)
            self.folder.write(name_result("rows", shard.number), tensors, {"payload": payload})
            start += len(payload)

    # --- on all images -------------------------------------------------------------------------------------------

    def _descriptors(self, state: MapState) -> dict[int, ItemReport]:
        assert state.spaces is not None
        compaction = None if state.compact is None else state.compact.compaction
        directions = np.array(state.spaces.spaces[0].side.patch_directions)
        work = Describe(self.folder, self.encoding, directions, compaction)
        return self.runner.run("descriptors", work, self.shards, [len(shard) for shard in self.shards])

    def _space_of_all(self, state: MapState, results: dict[int, ItemReport]) -> None:
        groups = Group.all_of(len(self.shards))
        if self.folder.read("axes") is None:
            assert state.spaces is not None
            side = state.spaces.spaces[0].side
            if side.width > MAX_COVARIANCE:
                self.runner.timed("axes", self._fit_sample_axes)
            else:
                images = [sum(results[one].images for one in group.shards) for group in groups]
                self.runner.run("covariance", AddUpDescriptors(self.folder, side.width), groups, images)
                self.runner.timed("axes", lambda: self._fit_axes(side.width, len(groups)))
        for group in groups:
            self.folder.erase(name_result("moments", group.number))  # no longer needed, and the largest files
        self.runner.timed("skeleton", lambda: self._sample_in_space(state, results))

    def _fit_axes(self, width: int, groups: int) -> None:
        total = Moments.empty(width)
        for number in range(groups):
            total = add_triangle(total, self.folder.needed(name_result("moments", number)))
        self._write_axes(fit_principal_axes(mirror_triangle(total), min(self.spec.max_rank, MAX_RANK)))

    def _fit_sample_axes(self) -> None:
        """Fit the axes of two depths to the sample: the covariance of all images would need 2.2 GB."""
        descriptors = np.concatenate([rows for _, rows, _ in self._sample_descriptors()])
        self._write_axes(fit_sample_axes(descriptors, self.spec.max_rank, backend_for(self.encoding.options.device)))

    def _write_axes(self, axes: PrincipalAxes) -> None:
        self.folder.write("axes", axes_tensors(axes), {"participation": axes.participation})

    def _sample_descriptors(self) -> Iterator[tuple[int, np.ndarray, list[tuple[int, dict[str, Any]]]]]:
        """Yield shard, descriptors `(m, D)`, and rows with payload, of the photos of the sample."""
        for shard in self.shards:
            if shard.sample:
                kept, chosen = self.folder.needed(name_result("descriptors", shard.number)), set(shard.sample)
                rows = [row for row, place in enumerate(kept.facts["places"]) if place in chosen]
                own = [(row, kept.facts["payload"][row]) for row in rows]
                if rows:
                    yield shard.number, np.array(kept["descriptors"][rows]), own

    def _sample_in_space(self, state: MapState, results: dict[int, ItemReport]) -> None:
        path = self.folder.path / _SKELETON
        if path.exists():  # complete, because it is renamed into place
            return
        first = _first_ids(results, self.shards)
        descriptors, payload, ids = [], [], list[int]()
        for shard, rows, own in self._sample_descriptors():
            descriptors.append(rows)
            payload += [one for _, one in own]
            ids += [first[shard] + row for row, _ in own]
        records = _make_records(payload, ids)
        device = self.encoding.options.device
        axes = read_axes(self.folder)
        final = _move_to_full_space(state, axes, np.concatenate(descriptors), records, first[-1], device)
        write_skeleton(path, final)

    def _vectors(self, sizes: Sequence[int]) -> Moments:
        """Sum [Ψ, b] and [Ψ, b] [Ψ, b]ᵀ over all images."""
        groups = Group.all_of(len(self.shards))
        images = [sum(sizes[shard] for shard in group.shards) for group in groups]
        self.runner.run("vectors", AddUpVectors(self.folder, self.skeleton), groups, images)
        parts = (self.folder.needed(name_result("vectors", group.number)) for group in groups)
        return Moments.total(Moments(part.facts["count"], part["first"], part["second"]) for part in parts)


def _sizes(results: dict[int, ItemReport], shards: Sequence[Shard]) -> list[int]:
    return [results[shard.number].images for shard in shards]


def _first_ids(results: dict[int, ItemReport], shards: Sequence[Shard]) -> list[int]:
    """Return the id of the first image of each shard, then the id after the last image."""
    return np.cumsum([0, *_sizes(results, shards)]).tolist()


# --- the map of the sample -----------------------------------------------------------------------------------------


_STRENGTHS = ("rho", "participation", "displacement")


def _check_storable(map_spec: BuildOptions) -> None:
    """Raise BadSpec for options that a map in a store does not support."""
    if map_spec.head != "second-order":
        needs = f"--head {map_spec.head} needs a map in a folder (--out NAME.tfa)"
        raise BadSpec(f"{needs}; a store supports --head second-order")
    if map_spec.ensemble:
        raise BadSpec("map.ensemble needs a map in a folder (--out NAME.tfa); a store holds one row per image")
    if map_spec.storage != "int7":
        raise BadSpec(f"map.storage={map_spec.storage} needs a map in a folder (--out NAME.tfa); a store uses int7")


def _make_records(payload: Sequence[dict[str, Any]], ids: Sequence[int]) -> list[ImageRecord]:
    place = lambda one: None if one["position"] is None else Position.from_dict(one["position"])  # noqa: E731
    return [
        ImageRecord(id=int(own), path=one["path"], digest=one["digest"], fitted=True, position=place(one))
        for own, one in zip(ids, payload, strict=True)
    ]


def _move_to_full_space(
    state: MapState, axes: PrincipalAxes, descriptors: np.ndarray, records: list[ImageRecord], next_id: int, device: str
) -> MapState:
    """Move the sample's map to the PCA of all images; `descriptors` `(m, D)` are those of the sample.

    Decisions stay; strengths and spreads are measured again for the stored construction.
    """
    assert state.spaces is not None
    spec, [old] = HeadSpec.from_dict(state.spec), state.spaces.spaces
    split = DatabaseSplit.of(len(descriptors), limit_pseudo_queries(spec))
    space = sample_space(axes, descriptors, old.side, split, backend_for(device), Spill())
    fitted = _with_others(measure_spaces(spec, (space,), "float32"), state.spaces)
    decisions, evidence = decide_carrier(fitted, state.database.decisions["carrier"])
    head = assemble_second_order(fitted, decisions, evidence)
    spaces = StoredSpaces.of(fitted, 0, state.head.storage)
    stored = StoredHead.of(head, 0, state.head.storage, spaces)
    named = replace(state.database, stored=stored, decisions=decisions.to_dict())
    root = find_common_folder([record.path for record in records])
    return replace(state, heads=(named,), spaces=spaces, images=records, next_id=next_id, photo_root=root, compact=None)


def _with_others(fitted: FittedSpaces, sample: StoredSpaces) -> FittedSpaces:
    """Combine statistics of the stored construction with the sample's statistics of the other two."""
    facts = [[getattr(fitted.strengths, name)[0], *getattr(sample.strengths, name)[1:]] for name in _STRENGTHS]
    sigmas = {name: (own[0], *sample.sigmas.get(name, ())[1:]) for name, own in fitted.sigmas.items()}
    return replace(fitted, strengths=SpectralStrengths.of(*facts), sigmas=sigmas)
