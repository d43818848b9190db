"""A served head: what of a fitted head answering needs, in the dtype it is stored in.

Only the chosen assignment and carrier of one replica (or of three, for the ensemble) are kept. The same object
comes from a head that was just fitted and from files; `tensors` and `from_tensors` are each other's inverse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfa.base.tokens import Tokens
from tfa.method.head import Head, Replica
from tfa.method.score_calibration import bias_of_rows
from tfa.method.scorer import GLOBAL, Part, Scorer, Side
from tfa.method.spectrum import Geometry
from tfa.search.gallery import Rows
from tfa.search.quantised_rows import SEVEN_TOP, TOP, Levels, joined_levels, rounded

Tensors = Mapping[str, np.ndarray]
STORAGES = ("float16", "float32", "int7")
INTEGERS = "int7"  # descriptors in seven bits a number, the rest of a row in eight


@dataclass(frozen=True)
class ServedHead:
    """Query side and gallery of a map."""

    scorer: Scorer
    peaks: np.ndarray  # sorted top-1 z-scores of the pseudo queries: the scale of confidence
    storage: str  # how the large arrays are kept, one of STORAGES

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
                gallery = _stored_rows(part.gallery[0], storage, descriptors=_describes(part))
            if scorer.twins is not None and part.gamma is not None:
                # Twins have equal tokens; the eigenvectors gave their coordinates unequal last bits.
                gallery = gallery[scorer.twins]
            parts.append(replace(part, gallery=(gallery,)))
        return cls(replace(scorer, sides=sides, parts=tuple(parts), dtype="float32"), head.peaks[replica], storage)

    def rows_of(self, tokens: Tokens) -> list[Rows]:
        """Gallery rows of new images, one array per part: the frozen vocabulary and geometry describe them."""
        features = self.scorer.query_features(tokens) if len(tokens) else []
        parts, rows = self.scorer.parts[: len(features)], list[Rows]()
        for feature, part, same in zip(features, parts, _first_alike(parts), strict=True):
            fresh = _stored_rows(feature, self.storage, descriptors=_describes(part)) if same is None else rows[same]
            rows.append(fresh)
        return rows

    def grown(self, rows: Sequence[Any]) -> ServedHead:
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
                tensors |= _written(f"side{index}.anchors", side.anchors)
                tensors[f"side{index}.anchor_index"] = side.geometry.anchors
                tensors |= _written(f"side{index}.vectors", side.directions or side.geometry.vectors)
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
                tensors |= _written(f"part{index}", _joined_rows(chunks))
        return tensors

    @classmethod
    def from_tensors(cls, layout: dict[str, Any], head: Tensors, galleries: Sequence[Tensors]) -> ServedHead:
        sides = [_read_side(f"side{index}.", entry, head) for index, entry in enumerate(layout["sides"])]
        parts: list[Part] = []
        features: list[np.ndarray] = []
        for index, entry in enumerate(layout["parts"]):
            source = index if entry["same_as"] is None else entry["same_as"]
            width = sides[entry["side"]].centers.size if entry["side"] != GLOBAL and entry["gamma"] is None else None
            chunks = [_read(f"part{index}", gallery, width) for gallery in galleries if f"part{index}" in gallery]
            if entry["shares_anchors"]:
                chunks.insert(0, sides[entry["side"]].anchors)
            gallery_rows = tuple(chunks) if source == index else parts[source].gallery
            parts.append(Part(entry["weight"], entry["side"], entry["gamma"], gallery_rows, entry["member"]))
            if f"calibrators{source}" in head:
                features.append(head[f"calibrators{source}"])
        bias = np.concatenate([gallery["bias"] for gallery in galleries])
        scorer = Scorer(tuple(sides), tuple(parts), bias, calibrators=tuple(features) or None)
        return cls(scorer, head["peaks"], layout["storage"])


def _stored_side(side: Side, storage: str) -> Side:
    centers = side.centers.astype(np.float32)
    if side.geometry is None or side.anchors is None:
        return replace(side, centers=centers)
    anchors = _stored_rows(side.anchors, storage, descriptors=True)
    if storage != INTEGERS:
        geometry = replace(side.geometry, vectors=side.geometry.vectors.astype(storage))
        return replace(side, centers=centers, geometry=geometry, anchors=anchors)
    # 1/√η enlarges the rounding of E in the last directions: two bytes a number, where rows have one.
    directions = rounded(side.geometry.vectors.T, fine=True)
    return replace(
        side, centers=centers, geometry=_without_vectors(side.geometry), anchors=anchors, directions=directions
    )


def _without_vectors(geometry: Geometry) -> Geometry:
    return replace(geometry, vectors=np.empty((len(geometry.anchors), 0), np.float32))


def _stored_rows(rows: Rows, storage: str, *, descriptors: bool) -> Rows:
    """Rows as they are kept. Of integers the wide descriptors have seven bits a number, other rows eight."""
    if storage != INTEGERS:
        return np.asarray(rows).astype(storage)
    return rounded(np.asarray(rows), SEVEN_TOP if descriptors else TOP)


def _describes(part: Part) -> bool:
    return part.gamma is None and part.side != GLOBAL


def _joined_rows(chunks: Sequence[Rows]) -> Rows:
    levels = [chunk for chunk in chunks if isinstance(chunk, Levels)]
    if levels:
        return joined_levels(levels)
    return chunks[0] if len(chunks) == 1 else np.concatenate([np.asarray(chunk) for chunk in chunks])


def _written(name: str, rows: Rows) -> dict[str, np.ndarray]:
    """The tensors of rows; integers have their steps beside them."""
    if not isinstance(rows, Levels):
        return {name: rows}
    tensors = {name: rows.packed, f"{name}.step": rows.step}
    return tensors if rows.fine is None else {**tensors, f"{name}.fine": rows.fine}


def _read(name: str, tensors: Tensors, width: int | None) -> Rows:
    """The inverse. `width` is that of descriptors, whose levels are stored in fewer bytes."""
    rows, step = tensors[name], tensors.get(f"{name}.step")
    if step is None:
        return rows
    if rows.dtype == np.uint8 and width is not None:
        if rows.shape[1] != (7 * width + 7) // 8:
            raise ValueError(f"{name} has {rows.shape[1]} bytes a row, {width} numbers need {(7 * width + 7) // 8}")
        return Levels(rows, step, width, SEVEN_TOP)
    return Levels(rows, step, rows.shape[1], TOP, tensors.get(f"{name}.fine"))


def _read_side(name: str, entry: dict[str, Any], head: Tensors) -> Side:
    side = Side(entry["assignment"], head[name + "centers"], entry["temperature"])
    if entry["geometry"] is None:
        return side
    vectors = _read(name + "vectors", head, None)
    geometry = Geometry(
        anchors=head[name + "anchor_index"],
        vectors=vectors if isinstance(vectors, np.ndarray) else np.empty((0, 0), np.float32),
        eta=head[name + "eta"],
        anchor_means=head[name + "anchor_means"],
        **entry["geometry"],
    )
    anchors = _read(name + "anchors", head, side.centers.size)
    if isinstance(vectors, np.ndarray):
        return replace(side, geometry=geometry, anchors=anchors)
    return replace(side, geometry=_without_vectors(geometry), anchors=anchors, directions=vectors)


def _first_alike(parts: Sequence[Part]) -> list[int | None]:
    """For each part the earlier one with the same features (in an ensemble: the global token's); None if first."""
    seen: dict[tuple[int, float | None], int] = {}
    first = [seen.setdefault((part.side, part.gamma), index) for index, part in enumerate(parts)]
    return [None if same == index else same for index, same in enumerate(first)]


def _all_anchors(side: Side, part: Part) -> bool:
    assert side.anchors is not None
    return len(side.anchors) == len(part.gallery[0])
