"""A served head: what of a fitted head answering needs, in the dtype it is stored in.

Only the chosen assignment and carrier of one replica (or of three, for the ensemble) are kept. The same object
comes from a head that was just fitted and from files; `tensors` and `from_tensors` are each other's inverse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfa.geometry import Geometry
from tfa.head import Head
from tfa.retriever import Replica
from tfa.score_calibration import bias_of_rows
from tfa.scoring import GLOBAL, Part, Scorer, Side
from tfa.tokens import Tokens

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class ServedHead:
    """Query side and gallery of a map."""

    scorer: Scorer
    peaks: np.ndarray  # sorted top-1 z-scores of the pseudo queries: the scale of confidence
    storage: str  # dtype of the large arrays

    @classmethod
    def of(cls, head: Head, replica: Replica, storage: str) -> ServedHead:
        """Drop from a fitted head what serving does not need."""
        scorer = head.scorer(replica)
        sides = tuple(_stored_side(side, storage) for side in scorer.sides)
        parts: list[Part] = []
        for part, same in zip(scorer.parts, _first_alike(scorer.parts), strict=True):
            if same is not None:
                parts.append(replace(part, gallery=parts[same].gallery))
                continue
            side = None if part.side == GLOBAL else sides[part.side]
            if part.gamma is None and side is not None and side.anchors is not None and _all_anchors(side, part):
                gallery = side.anchors  # every image is an anchor: one copy serves both
            else:
                gallery = part.gallery[0].astype(storage)
            if scorer.twins is not None and part.gamma is not None:
                # Twins have equal tokens; the eigenvectors gave their coordinates unequal last bits.
                gallery = gallery[scorer.twins]
            parts.append(replace(part, gallery=(gallery,)))
        return cls(replace(scorer, sides=sides, parts=tuple(parts), dtype="float32"), head.peaks[replica], storage)

    def rows_of(self, tokens: Tokens) -> list[np.ndarray]:
        """Gallery rows of new images, one array per part: the frozen vocabulary and geometry describe them."""
        features = self.scorer.query_features(tokens) if len(tokens) else []
        rows: list[np.ndarray] = []
        for feature, same in zip(features, _first_alike(self.scorer.parts[: len(features)]), strict=True):
            rows.append(feature.astype(self.storage) if same is None else rows[same])
        return rows

    def grown(self, rows: Sequence[np.ndarray]) -> ServedHead:
        """With one more chunk of gallery rows."""
        parts = [replace(p, gallery=(*p.gallery, r)) for p, r in zip(self.scorer.parts, rows, strict=True)]
        bias = np.concatenate([self.scorer.bias, bias_of_rows(self.scorer, rows)])
        return replace(self, scorer=replace(self.scorer, parts=tuple(parts), bias=bias, twins=None))

    # --- files ---------------------------------------------------------------------------------------------------

    def layout(self) -> dict[str, Any]:
        """What the header says of the tensors."""
        return {
            "storage": self.storage,
            "sides": [
                {
                    "assignment": side.assignment,
                    "temperature": side.temperature,
                    "geometry": None
                    if side.geometry is None
                    else {"grand_mean": side.geometry.grand_mean, "participation": side.geometry.participation},
                }
                for side in self.scorer.sides
            ],
            "parts": [
                {
                    "weight": p.weight,
                    "side": p.side,
                    "gamma": p.gamma,
                    "member": p.member,
                    "shares_anchors": self._shares_anchors(p),
                    "same_as": same,
                }
                for p, same in zip(self.scorer.parts, _first_alike(self.scorer.parts), strict=True)
            ],
        }

    def _shares_anchors(self, part: Part) -> bool:
        return part.side != GLOBAL and part.gallery[0] is self.scorer.sides[part.side].anchors

    def head_tensors(self) -> dict[str, np.ndarray]:
        """The query side."""
        tensors = {"peaks": self.peaks}
        first = _first_alike(self.scorer.parts)
        for index, features in enumerate(self.scorer.calibrators or ()):
            if first[index] is None:
                tensors[f"calibrators{index}"] = features
        for index, side in enumerate(self.scorer.sides):
            tensors[f"side{index}.centers"] = side.centers
            if side.geometry is not None and side.anchors is not None:
                tensors[f"side{index}.anchors"] = side.anchors
                tensors[f"side{index}.anchor_index"] = side.geometry.anchors
                tensors[f"side{index}.vectors"] = side.geometry.vectors
                tensors[f"side{index}.eta"] = side.geometry.eta
                tensors[f"side{index}.anchor_means"] = side.geometry.anchor_means
        return tensors

    def gallery_tensors(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Gallery rows `start` to `stop`; rows that are the anchors themselves are in the head's file."""
        tensors = {"bias": self.scorer.bias[start:stop]}
        for index, (part, same) in enumerate(zip(self.scorer.parts, _first_alike(self.scorer.parts), strict=True)):
            first = max(start, len(part.gallery[0])) if self._shares_anchors(part) else start
            chunks, row = [], 0
            for chunk in part.gallery:
                low, high = max(first - row, 0), min(stop - row, len(chunk))
                if low < high:
                    chunks.append(chunk if (low, high) == (0, len(chunk)) else chunk[low:high])
                row += len(chunk)
            if chunks and same is None:
                tensors[f"part{index}"] = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
        return tensors

    @classmethod
    def from_tensors(cls, layout: dict[str, Any], head: Tensors, galleries: Sequence[Tensors]) -> ServedHead:
        sides = []
        for index, entry in enumerate(layout["sides"]):
            name, geometry = f"side{index}.", None
            if entry["geometry"] is not None:
                geometry = Geometry(
                    anchors=head[name + "anchor_index"],
                    vectors=head[name + "vectors"],
                    eta=head[name + "eta"],
                    anchor_means=head[name + "anchor_means"],
                    **entry["geometry"],
                )
            anchors = head.get(name + "anchors")
            sides.append(Side(entry["assignment"], head[name + "centers"], entry["temperature"], geometry, anchors))
        parts: list[Part] = []
        features: list[np.ndarray] = []
        for index, entry in enumerate(layout["parts"]):
            source = index if entry["same_as"] is None else entry["same_as"]
            chunks = [gallery[f"part{index}"] for gallery in galleries if f"part{index}" in gallery]
            if entry["shares_anchors"]:
                chunks.insert(0, head[f"side{entry['side']}.anchors"])
            gallery_rows = tuple(chunks) if source == index else parts[source].gallery
            parts.append(Part(entry["weight"], entry["side"], entry["gamma"], gallery_rows, entry["member"]))
            if f"calibrators{source}" in head:
                features.append(head[f"calibrators{source}"])
        bias = np.concatenate([gallery["bias"] for gallery in galleries])
        scorer = Scorer(tuple(sides), tuple(parts), bias, calibrators=tuple(features) or None)
        return cls(scorer, head["peaks"], layout["storage"])


def _stored_side(side: Side, storage: str) -> Side:
    if side.geometry is None or side.anchors is None:
        return replace(side, centers=side.centers.astype(np.float32))
    geometry = replace(side.geometry, vectors=side.geometry.vectors.astype(storage))
    return replace(
        side, centers=side.centers.astype(np.float32), geometry=geometry, anchors=side.anchors.astype(storage)
    )


def _first_alike(parts: Sequence[Part]) -> list[int | None]:
    """For each part the earlier one with the same features (in an ensemble: the global token's); None if first."""
    seen: dict[tuple[int, float | None], int] = {}
    first = [seen.setdefault((part.side, part.gamma), index) for index, part in enumerate(parts)]
    return [None if same == index else same for index, same in enumerate(first)]


def _all_anchors(side: Side, part: Part) -> bool:
    assert side.anchors is not None
    return len(side.anchors) == len(part.gallery[0])
