"""Matches: which patches of a query and of one photo of its answer are each other's most similar, and move alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfa.base.tokens import Tokens
from tfa.errors import BadMap, BadSpec
from tfa.maps.query import ReadOnlyMap
from tfa.maps.records import Hit
from tfa.photos.images import as_rgb
from tfa.photos.photo_source import Photo, name_photo
from tfa.verification.matching import Matches, compute_displacements

NOT_JUDGED = "not used: it was not judged for this head"


@dataclass(frozen=True)
class Explanation:
    """A hit, and how its patches lie against those of the query."""

    query: str
    rank: int  # of the hit, from 1
    hit: Hit
    matches: Matches
    grid: tuple[int, int]  # of the patches of both photos
    admitted: bool  # whether verification orders the answers of this map
    reason: str
    tokens: Tokens | None = field(default=None, repr=False, compare=False)  # of the query: they are computed once

    @property
    def mutual(self) -> int:
        return len(self.matches.ours)

    @property
    def consistent(self) -> int:
        return self.matches.count

    @property
    def displacement(self) -> tuple[int, int] | None:
        """Cells by which the query looks further down and right: the median of the matches that move alike."""
        if not self.consistent:
            return None
        alike = self.matches.consistent
        down, right = compute_displacements(self.matches.ours[alike], self.matches.theirs[alike], self.grid, self.grid)
        return round(float(np.median(down))), round(float(np.median(right)))

    def to_dict(self) -> dict[str, Any]:
        moved = self.displacement
        return {
            "query": self.query,
            "rank": self.rank,
            "answer": self.hit.to_dict(),
            "consistent": self.consistent,
            "mutual": self.mutual,
            "displacement": None if moved is None else {"down": moved[0], "right": moved[1]},
            "view": describe_view(moved),
            "verification": {"admitted": self.admitted, "reason": self.reason},
            "grid": list(self.grid),
            "matches": self._listed(),
        }

    def _listed(self) -> list[list[Any]]:
        """Each match as [row, column, row, column, consistent]: of the query, of the map's photo."""
        ours, theirs = np.divmod(self.matches.ours, self.grid[1]), np.divmod(self.matches.theirs, self.grid[1])
        places = np.stack([*ours, *theirs], axis=-1).tolist()
        return [[*place, alike] for place, alike in zip(places, self.matches.consistent.tolist(), strict=True)]


def describe_view(displacement: tuple[int, int] | None) -> str:
    """How the query was aimed against the map's photo.

    What stands further right in the map's photo than in the query (a displacement to the right) moved left between
    them: the query looks further right. Likewise down.
    """
    if displacement is None:
        return "no patches move alike"
    down, right = displacement
    aside, height = "right" if right > 0 else "left", "down" if down > 0 else "up"
    if right:
        more = f" and {abs(down)} {height}" if down else ""
        return f"the query looks {_cells(right)} further {aside}{more}"
    return f"the query looks {_cells(down)} further {height}" if down else "the query looks the same way"


def _cells(number: int) -> str:
    return f"{abs(number)} cell{'' if abs(number) == 1 else 's'}"


def explain_match(place_map: ReadOnlyMap, photo: Photo, rank: int = 1, calibration: str | None = None) -> Explanation:
    """Query the map with a photo, and match its patches with those of the hit of that rank."""
    compact, head = place_map.state.compact, place_map.state.chosen(calibration)
    if compact is None:
        raise BadMap(
            "this map holds no compact tokens to compare patches with; build it again with: tfa build --rerank"
        )
    if not 1 <= rank <= len(place_map):
        raise BadSpec(f"rank={rank} is out of range: the map has {len(place_map)} photos, 1 is the best hit")
    tokens = Tokens(*place_map.encoder.encode([as_rgb(photo)]), grid=place_map.encoder.grid)
    hit = place_map.query_tokens(tokens, k=rank, calibration=calibration)[0][rank - 1]
    row = next(row for row, record in enumerate(place_map.state.images) if record.id == hit.id)
    matches = compact.matches(compact.query(tokens)[0], compact.grid, np.array([row]))[0]
    reason = NOT_JUDGED if head.verification is None else head.verification["reason"]
    return Explanation(name_photo(photo), rank, hit, matches, compact.grid, head.verifies, reason, tokens)
