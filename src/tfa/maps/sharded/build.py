"""A sharded build, pass by pass: what the driver does.

    sample       tokens of blocks of neighbouring photos → head, directions, compaction, decisions (`fit_map`)
    descriptors  every photo → second-order descriptor and compact patches
    covariance   Σ v, Σ v vᵀ over fixed groups of shards, added up in their order → the space of all images
    rows         coordinates of every image, as a map keeps them
    vectors      Σ Ψ Ψᵀ over the same groups → the reduction, and the moments of the reduced vectors
    entries      every image into the store; then the version is published

If the sample is all photos the space it was fitted in is final, and the passes between fall away. Sums are over fixed
groups in a fixed order, so the map depends neither on the number of workers nor on who is done first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfa.base.config import EncoderOptions, HeadSpec, MapSpec
from tfa.base.files import cache_folder, sha256_of_json
from tfa.base.progress import Progress, as_progress
from tfa.encoders import DEFAULT_ENCODER, Encoder
from tfa.errors import BadMap, NoImages
from tfa.maps.folder import reader, writer
from tfa.maps.sharded.describe_passes import Describe, EncodeSample, sample_tokens
from tfa.maps.sharded.encoding import Encoding
from tfa.maps.sharded.executors import Executor, SerialExecutor
from tfa.maps.sharded.pass_runner import PassRunner
from tfa.maps.sharded.photo_list import PhotoList, Shard, list_photos
from tfa.maps.sharded.row_passes import Project, WriteEntries, axes_of, axes_tensors, row_tensors
from tfa.maps.sharded.sample_fit import check_kept, fit_sample, in_space_of_all, records_from
from tfa.maps.sharded.settings import BuildReport, Sharding
from tfa.maps.sharded.sum_passes import AddUpDescriptors, AddUpVectors, added_moments, mirrored
from tfa.maps.sharded.work_folder import WorkFolder
from tfa.maps.sharded.work_items import Done, Group, named
from tfa.maps.state import DATABASE, MapState
from tfa.maps.state_changes import encoder_facts
from tfa.maps.store.patches import begin_patches, check_elsewhere, seal_patches
from tfa.maps.store.publish import Publisher, VersionFacts
from tfa.maps.store.rows import SpaceRows, reduction_from
from tfa.maps.store.skeleton import sampled, write_skeleton
from tfa.method.principal_axes import principal_axes
from tfa.method.second_order_space import MAX_RANK
from tfa.search.reduced import Moments
from tfa.search.store import find_opener, hide_password, split_map_url

SAMPLE_MAP, SKELETON = "sample.tfa", "skeleton.tfa"  # maps in the work folder


def build_sharded(
    photos: Any,
    url: str,
    *,
    encoder: str | Callable[[], Encoder] = DEFAULT_ENCODER,
    spec: HeadSpec | None = None,
    map_spec: MapSpec | None = None,
    options: EncoderOptions | None = None,
    sharding: Sharding | None = None,
    progress: bool | Progress | None = None,
) -> BuildReport:
    """Photos → a map in the store of `url`. `photos` is what `list_photos` takes, or what it gave.

    `encoder` is a name, or a function that workers can import and that gives one. If the build is killed, another one
    with the same photos and settings goes on where it was.
    """
    map_spec, options, sharding = map_spec or MapSpec(), options or EncoderOptions(), sharding or Sharding()
    check_kept(map_spec)
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
    with publisher.claim():  # before the work: another builder is refused at once
        cache = None if options.cache is None else options.cache.folder
        encoding = Encoding(encoder, replace(options, cache=None), cache)
        runner = PassRunner(sharding.executor, as_progress(progress))
        build = _Build(photos, publisher, encoding, spec or HeadSpec(), map_spec, sharding, runner)
        writes = SerialExecutor() if store.one_process else sharding.executor
        return build.run(partial(WriteEntries, build.folder, SKELETON, opener, base, name), writes)


@dataclass
class _Build:
    photos: PhotoList
    publisher: Publisher
    encoding: Encoding
    spec: HeadSpec
    map_spec: MapSpec
    sharding: Sharding
    runner: PassRunner
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.encoder = self.encoding.load()
        self.shards = self.photos.shards(
            self.sharding.shard_size, sampled(len(self.photos), self.sharding.sample).tolist()
        )
        self.folder = self._folder()
        self.whole = len(self.photos) <= self.sharding.sample  # is the sample all there is?
        self.notes += [*self.photos.notes, *self.encoder.notes]

    def _folder(self) -> WorkFolder:
        settings = [self.spec.to_dict(), self.map_spec.to_dict(), self.sharding.shard_size, self.sharding.sample]
        digest = sha256_of_json(
            [self.photos.digest, self.encoder.fingerprint, *settings, self.encoding.options.skip_bad]
        )
        parent = cache_folder() / "builds" if self.sharding.work is None else Path(self.sharding.work)
        return WorkFolder(parent.absolute() / digest[:32], digest)

    # --- the order of things -------------------------------------------------------------------------------------

    def run(self, writing: Callable[..., WriteEntries], writes: Executor) -> BuildReport:
        """All passes; `writing` is the last one without what is known only then."""
        chosen = [shard for shard in self.shards if shard.sample]
        sizes = [len(shard.sample) for shard in chosen]
        known = self.runner.run("sample", EncodeSample(self.folder, self.encoding), chosen, sizes)
        state = self.runner.timed("fit", self._fitted_sample)
        if self.whole:
            self._final_rows(state)
        else:
            known = self._descriptors(state)
            self._space_of_all(state, known)
            self.runner.run("rows", Project(self.folder), self.shards, _sizes(known, self.shards))
        total = self._vectors(_sizes(known, self.shards))
        reduction = reduction_from(total, self.sharding.dims)
        ids = _first_ids(known, self.shards)
        collection = self.publisher.begin(reduction.dims)
        version = self.publisher.version
        patches = begin_patches(
            self.publisher.store, self.publisher.name, version, state.compact, self.sharding.patches_at
        )
        work = writing(version=version, reduction=reduction, ids=ids, patches=patches)
        self.runner.run("entries", work, self.shards, _sizes(known, self.shards), writes)
        collection.seal(self.sharding.index)
        if patches is not None:
            seal_patches(self.publisher.store, patches)
        self.notes += self.runner.notes()
        facts = VersionFacts(
            next_id=ids[-1], placed=sum(done.placed for done in known.values()), encoder=state.encoder,
            heads=[DATABASE], active=DATABASE, index=self.sharding.index, patches=patches, notes=self.notes,
        )  # fmt: skip
        header = self.publisher.finish(self.folder.path / SKELETON, reduction, reduction.moments(total), facts)
        self.folder.remove()
        skipped = [*self.photos.skipped, *(one for done in known.values() for one in done.skipped)]
        return BuildReport(self.publisher.url, header, skipped, self.notes, self.runner.passes)

    # --- on the sample -------------------------------------------------------------------------------------------

    def _fitted_sample(self) -> MapState:
        """The map of the sample: as an earlier run left it, or fitted now."""
        path = self.folder.path / SAMPLE_MAP
        known = self.folder.read("fit")
        if known is not None:
            try:
                state = reader.read(path, checksum=True)
                self.notes += known.facts["notes"]
                return state
            except (BadMap, OSError):
                pass  # damaged: fitted again
        results = [self.folder.needed(named("sample", shard.number)) for shard in self.shards if shard.sample]
        payload = [one for result in results for one in result.facts["payload"]]
        if len(payload) < 2:
            raise NoImages(f"a map needs at least 2 photos, of the sample {len(payload)} can be read")
        tokens = sample_tokens(results, self.encoder.grid)
        facts = encoder_facts(self.encoder, self.encoding.options.weights)
        records = records_from(payload, range(len(payload)))
        state, notes = fit_sample(
            tokens, records, facts, self.map_spec, self.spec, self.encoding.options.device, self.runner.progress
        )
        state = writer.write_new(path, state, overwrite=path.exists())
        self.folder.write("fit", {}, {"notes": notes})
        self.notes += notes
        return state

    def _final_rows(self, state: MapState) -> None:
        """All photos were fitted on: their rows are those of the fitted map."""
        assert state.spaces is not None
        start = 0
        for shard in self.shards:
            payload = self.folder.needed(named("sample", shard.number)).facts["payload"]
            rows = SpaceRows.of(state.spaces, start, start + len(payload)) if payload else None
            tensors = {} if rows is None else row_tensors(rows)
            if state.compact is not None:
                own = state.compact.patch_tensors(start, start + len(payload)) if payload else {}
                self.folder.write(named("patches", shard.number), own)
            self.folder.write(named("rows", shard.number), tensors, {"payload": payload})
            start += len(payload)
        self._keep_skeleton(state)

    def _keep_skeleton(self, state: MapState) -> None:
        path = self.folder.path / SKELETON
        if not path.exists():  # it is renamed into place
            write_skeleton(path, state)

    # --- on all images -------------------------------------------------------------------------------------------

    def _descriptors(self, state: MapState) -> dict[int, Done]:
        assert state.spaces is not None
        compaction = None if state.compact is None else state.compact.compaction
        directions = np.array(state.spaces.spaces[0].side.patch_directions)
        work = Describe(self.folder, self.encoding, directions, compaction)
        return self.runner.run("descriptors", work, self.shards, [len(shard) for shard in self.shards])

    def _space_of_all(self, state: MapState, known: dict[int, Done]) -> None:
        groups = Group.all_of(len(self.shards))
        if self.folder.read("axes") is None:
            assert state.spaces is not None
            width = state.spaces.spaces[0].side.width
            images = [sum(known[one].images for one in group.shards) for group in groups]
            self.runner.run("covariance", AddUpDescriptors(self.folder, width), groups, images)
            self.runner.timed("axes", lambda: self._fit_axes(width, len(groups)))
        for group in groups:
            self.folder.erase(named("moments", group.number))  # the axes say all; these are the largest files
        self.runner.timed("skeleton", lambda: self._sample_in_space(state, known))

    def _fit_axes(self, width: int, groups: int) -> None:
        total = Moments.empty(width)
        for number in range(groups):
            total = added_moments(total, self.folder.needed(named("moments", number)))
        axes = principal_axes(mirrored(total), min(self.spec.max_rank, MAX_RANK))
        self.folder.write("axes", axes_tensors(axes), {"participation": axes.participation})

    def _sample_in_space(self, state: MapState, known: dict[int, Done]) -> None:
        first = _first_ids(known, self.shards)
        descriptors, payload, ids = [], [], list[int]()
        for shard in self.shards:
            if not shard.sample:
                continue
            kept, chosen = self.folder.needed(named("descriptors", shard.number)), set(shard.sample)
            rows = [row for row, place in enumerate(kept.facts["places"]) if place in chosen]
            if rows:
                descriptors.append(np.array(kept["descriptors"][rows]))
            payload += [kept.facts["payload"][row] for row in rows]
            ids += [first[shard.number] + row for row in rows]
        records = records_from(payload, ids)
        device = self.encoding.options.device
        final = in_space_of_all(state, axes_of(self.folder), np.concatenate(descriptors), records, first[-1], device)
        self._keep_skeleton(final)

    def _vectors(self, sizes: Sequence[int]) -> Moments:
        """Σ [Ψ, b] and Σ [Ψ, b] [Ψ, b]ᵀ of all images."""
        groups = Group.all_of(len(self.shards))
        images = [sum(sizes[shard] for shard in group.shards) for group in groups]
        self.runner.run("vectors", AddUpVectors(self.folder, SKELETON), groups, images)
        parts = (self.folder.needed(named("vectors", group.number)) for group in groups)
        return Moments.total(Moments(part.facts["count"], part["first"], part["second"]) for part in parts)


def _sizes(known: dict[int, Done], shards: Sequence[Shard]) -> list[int]:
    return [known[shard.number].images for shard in shards]


def _first_ids(known: dict[int, Done], shards: Sequence[Shard]) -> list[int]:
    """The id of the first image of each shard, and the one after all images."""
    ids: list[int] = np.cumsum([0, *_sizes(known, shards)]).tolist()
    return ids
