"""Sums over fixed groups of shards, at a worker: Σ v vᵀ of descriptors, Σ Ψ Ψᵀ of compiled vectors."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from tfa.maps.sharded.row_passes import head_of, rows_of_shard
from tfa.maps.sharded.work_folder import Result
from tfa.maps.sharded.work_items import Group, KeptPass, named
from tfa.maps.store.rows import second_moment
from tfa.method.principal_axes import add_moments
from tfa.method.scorer import Scorer
from tfa.search.reduced import Moments


@dataclass(frozen=True)
class AddUpDescriptors(KeptPass[Group]):
    """Σ 1, Σ v and Σ v vᵀ of a group's descriptors; of the symmetric sum one triangle is kept."""

    kind = "moments"
    width: int

    def computed(self, group: Group) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        total = Moments.empty(self.width)
        for number in group.shards:
            shard = self.folder.needed(named("descriptors", number))
            if shard.facts["payload"]:
                total = add_moments(total, shard["descriptors"])
        return {"first": total.first, "upper": upper_triangle(total.second)}, {"count": total.count}


def upper_triangle(matrix: np.ndarray) -> np.ndarray:
    """Row after row of a symmetric matrix `D D` from its diagonal on, `D(D+1)/2`."""
    return np.concatenate([matrix[row, row:] for row in range(len(matrix))])


def added_moments(total: Moments, part: Result) -> Moments:
    """`total` with a group's sums, added to its own arrays; below the diagonal of the second it says nothing."""
    start, upper, width = 0, part["upper"], len(total.first)
    for row in range(width):
        total.second[row, row:] += upper[start : start + width - row]
        start += width - row
    np.add(total.first, part["first"], out=total.first)
    return Moments(total.count + part.facts["count"], total.first, total.second)


def mirrored(total: Moments) -> Moments:
    """With the triangle below the diagonal filled in."""
    for row in range(1, len(total.first)):
        total.second[row, :row] = total.second[:row, row]
    return total


def vector_width(head: Scorer) -> int:
    """Numbers of Ψ."""
    return sum(term.gallery.width for term in head.terms)


@dataclass(frozen=True)
class AddUpVectors(KeptPass[Group]):
    """Σ 1, Σ [Ψ, b] and Σ [Ψ, b] [Ψ, b]ᵀ of a group's images."""

    kind = "vectors"
    skeleton: str

    def computed(self, group: Group) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        head = head_of(self.folder, self.skeleton)
        kept = [self.folder.needed(named("rows", number)) for number in group.shards]
        parts = (second_moment(head, rows_of_shard(one)) for one in kept if one.facts["payload"])
        total = Moments.total(chain([Moments.empty(vector_width(head) + 1)], parts))
        return {"first": total.first, "second": total.second}, {"count": total.count}
