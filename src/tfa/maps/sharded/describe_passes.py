"""The passes over photos, at a worker: tokens of the sample, then descriptors and compact patches of every photo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa.base.tokens import Tokens
from tfa.maps.sharded.encoding import EncodedPhotos, Encoding, Skipped, encoded
from tfa.maps.sharded.photo_list import Shard
from tfa.maps.sharded.work_folder import Result
from tfa.maps.sharded.work_items import KeptPass, named
from tfa.method.second_order import describe_second_order
from tfa.verification.compaction import Compaction
from tfa.verification.patch_store import CompactTokens

Part = tuple[list[int], list[dict[str, Any]], np.ndarray, np.ndarray | None]  # places, payload, descriptors, patches


@dataclass(frozen=True)
class EncodeSample(KeptPass[Shard]):
    """Tokens of those photos of a shard that the map is fitted on."""

    kind = "sample"
    encoding: Encoding

    def computed(self, shard: Shard) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        with encoded([shard.photos[place] for place in shard.sample], self.encoding) as photos:
            places = [shard.sample[place] for place in photos.places]
            facts = {"places": places, "payload": photos.payload, "skipped": photos.skipped}
            return _token_tensors(photos), facts


def _token_tensors(photos: EncodedPhotos) -> dict[str, np.ndarray]:
    """Copies: the photos' own may lie in a folder that goes."""
    if photos.tokens is None:
        return {}
    tensors = {"patches": np.stack([np.asarray(one) for one in photos.tokens.patches])}
    return tensors if photos.tokens.cls is None else {**tensors, "cls": np.array(photos.tokens.cls)}


def sample_tokens(results: Sequence[Result], grid: tuple[int, int]) -> Tokens:
    """The tokens of whole samples, mapped from their files, and their photos' names."""
    kept = [one for one in results if one.facts["payload"]]
    patches = [patch for one in kept for patch in one["patches"]]
    cls = np.concatenate([one["cls"] for one in kept]) if kept and "cls" in kept[0].tensors else None
    names = [payload["path"] for one in kept for payload in one.facts["payload"]]
    return Tokens(patches, cls, names=names, grid=grid)


@dataclass(frozen=True)
class Describe(KeptPass[Shard]):
    """Second-order descriptors of every photo of a shard, and its compact patches; the sample is not encoded again."""

    kind = "descriptors"
    encoding: Encoding
    directions: np.ndarray  # m d
    compaction: Compaction | None

    def known(self, number: int) -> Mapping[str, Any] | None:
        whole = self.compaction is None or self.folder.read(named("patches", number)) is not None
        return super().known(number) if whole else None

    def computed(self, shard: Shard) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        parts: list[Part] = []
        skipped: Skipped = []
        grid = self.encoding.load().grid
        if shard.sample:
            sample = self.folder.needed(named("sample", shard.number))
            skipped += sample.facts["skipped"]
            if sample.facts["payload"]:
                described = self._described(sample_tokens([sample], grid))
                parts.append((sample.facts["places"], sample.facts["payload"], *described))
        others = [place for place in range(len(shard)) if place not in set(shard.sample)]
        if others:
            with encoded([shard.photos[place] for place in others], self.encoding) as photos:
                skipped += photos.skipped
                if photos.tokens is not None:
                    places = [others[place] for place in photos.places]
                    parts.append((places, photos.payload, *self._described(photos.tokens)))
        return self._in_order(shard.number, parts, sorted((uri, reason) for uri, reason in skipped))

    def _described(self, tokens: Tokens) -> tuple[np.ndarray, np.ndarray | None]:
        [descriptors] = describe_second_order(tokens, [self.directions])
        if self.compaction is None:
            return descriptors, None
        return descriptors, CompactTokens.of(tokens, self.compaction).chunks[0]

    def _in_order(
        self, number: int, parts: list[Part], skipped: Skipped
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Photos in the order of the shard. Patches are written first: the descriptors are the proof."""
        places = [place for part in parts for place in part[0]]
        order = np.argsort(places)
        payload = [one for part in parts for one in part[1]]
        facts = {"places": sorted(places), "payload": [payload[row] for row in order], "skipped": skipped}
        tensors = {"descriptors": np.concatenate([part[2] for part in parts])[order]} if parts else {}
        if self.compaction is not None:
            patches = [part[3] for part in parts if part[3] is not None]
            self.folder.write(named("patches", number), {"patches": np.concatenate(patches)[order]} if patches else {})
        return tensors, facts
