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
from tfa.head import Head, Replica
from tfa.scoring import GLOBAL, Part, Scorer, Side, bias_of_rows
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
        parts = []
        for part in scorer.parts:
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
        return [f.astype(self.storage) for f in features]

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
                }
                for p in self.scorer.parts
            ],
        }

    def _shares_anchors(self, part: Part) -> bool:
        return part.side != GLOBAL and part.gallery[0] is self.scorer.sides[part.side].anchors

    def head_tensors(self) -> dict[str, np.ndarray]:
        """The query side."""
        tensors = {"peaks": self.peaks}
        for index, features in enumerate(self.scorer.calibrators or ()):
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

    def gallery_tensors(self, first_row: int) -> dict[str, np.ndarray]:
        """Gallery rows from `first_row` on; rows that are the anchors themselves are in the head's file."""
        tensors = {"bias": self.scorer.bias[first_row:]}
        for index, part in enumerate(self.scorer.parts):
            skip = max(first_row, len(part.gallery[0])) if self._shares_anchors(part) else first_row
            chunks = []
            for chunk in part.gallery:
                if skip < len(chunk):
                    chunks.append(chunk[skip:] if skip else chunk)
                skip = max(skip - len(chunk), 0)
            if chunks:
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
        parts = []
        for index, entry in enumerate(layout["parts"]):
            chunks = [gallery[f"part{index}"] for gallery in galleries if f"part{index}" in gallery]
            if entry["shares_anchors"]:
                chunks.insert(0, head[f"side{entry['side']}.anchors"])
            parts.append(Part(entry["weight"], entry["side"], entry["gamma"], tuple(chunks), entry["member"]))
        bias = np.concatenate([gallery["bias"] for gallery in galleries])
        features = tuple(head[f"calibrators{i}"] for i in range(len(parts)) if f"calibrators{i}" in head)
        scorer = Scorer(tuple(sides), tuple(parts), bias, calibrators=features or None)
        return cls(scorer, head["peaks"], layout["storage"])


def _stored_side(side: Side, storage: str) -> Side:
    if side.geometry is None or side.anchors is None:
        return replace(side, centers=side.centers.astype(np.float32))
    geometry = replace(side.geometry, vectors=side.geometry.vectors.astype(storage))
    return replace(
        side, centers=side.centers.astype(np.float32), geometry=geometry, anchors=side.anchors.astype(storage)
    )


def _all_anchors(side: Side, part: Part) -> bool:
    assert side.anchors is not None
    return len(side.anchors) == len(part.gallery[0])
