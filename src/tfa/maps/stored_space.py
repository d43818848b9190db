"""A stored space: what a map keeps of its second-order representation (ours, beyond the paper), for all its heads.

The query side, and of every image its coordinates as φ_½ with their length n = ‖λ^{-1/4} z‖. Every carrier is made
of them (`second_order_space.rows_of`), so a head adds a few numbers an image at most, and a calibration needs neither
photos nor tokens of the map.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfa.core.arrays import Spill, l2_normalize
from tfa.core.tokens import Tokens
from tfa.maps.stored_rows import Tensors, convert_rows, read_rows, write_rows
from tfa.method.branch import row_blocks
from tfa.method.decisions import SpectralStrengths
from tfa.method.evidence import Mask
from tfa.method.head import ENSEMBLE, ReplicaName
from tfa.method.scorer import SecondOrderSide
from tfa.method.second_order_head import FittedSpaces
from tfa.method.second_order_space import SecondOrderSpace
from tfa.search.gallery import BaseRows, Gallery, ScaledRows
from tfa.types import HeadSpec

SIGMAS = ("sigma_original", "sigma_partial", "sigma_tempered")


@dataclass(frozen=True)
class StoredSpace:
    """One construction."""

    side: SecondOrderSide
    halves: Gallery  # m r: φ_½
    lengths: np.ndarray  # m: n, float32
    pseudo: np.ndarray  # p: fitted images that are pseudo queries
    hidden: Mask  # what they may not answer

    @classmethod
    def of(cls, space: SecondOrderSpace, storage: str) -> StoredSpace:
        """What a map keeps of a space that was just fitted."""
        side = space.side
        axes = convert_rows(side.axes, storage, wide=True)
        stored = SecondOrderSide(
            side.patch_directions.astype(np.float32), side.mean.astype(np.float32), axes, side.eigenvalues
        )
        halves = Spill().empty(space.coordinates.shape, np.float32)  # a large map lies in a file until it is saved
        lengths = np.empty(len(space), np.float32)
        for start, stop in row_blocks(*halves.shape):
            halves[start:stop], lengths[start:stop] = half_whiten_coordinates(
                space.coordinates[start:stop], side.eigenvalues
            )
        # Duplicates have equal tokens; the eigenvectors gave their coordinates unequal last bits.
        first = slice(None) if space.duplicates is None else space.duplicates
        rows = convert_rows(halves[first], storage, wide=False)
        return cls(stored, Gallery.of(rows), lengths[first], space.pseudo, space.mask)

    def __len__(self) -> int:
        return len(self.lengths)

    def chunks(self) -> Iterator[tuple[BaseRows, np.ndarray]]:
        """φ_½ and lengths, chunk by chunk."""
        start = 0
        for rows in self.halves.chunks:
            assert not isinstance(rows, ScaledRows)
            yield rows, self.lengths[start : start + len(rows)]
            start += len(rows)

    def grown(self, tokens: Tokens, storage: str) -> StoredSpace:
        """Add new images, described by the frozen side: one more chunk."""
        view = self.side.describe(tokens, True, "float32")
        assert view.coordinates is not None
        halves, lengths = half_whiten_coordinates(view.coordinates, self.side.eigenvalues)
        rows = self.halves.appended(convert_rows(halves.astype(np.float32), storage, wide=False))
        return replace(self, halves=rows, lengths=np.concatenate([self.lengths, lengths]))

    def fitted(self, count: int) -> SecondOrderSpace:
        """The space of the first `count` images, those it was fitted on, as a calibration needs it."""
        rows = self.halves.between(0, count)
        assert rows is not None, "a map is fitted on two images at least"
        assert not isinstance(rows, ScaledRows)
        coordinates = ScaledRows(rows, self.lengths[:count], self.side.eigenvalues**0.25)
        return SecondOrderSpace(self.side, coordinates, self.pseudo, self.hidden, None)


def half_whiten_coordinates(coordinates: Any, eigenvalues: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """φ_½ `m r` and their lengths `m` of coordinates."""
    scaled = np.asarray(coordinates, np.float64) * eigenvalues**-0.25
    return l2_normalize(scaled), np.linalg.norm(scaled, axis=1).astype(np.float32)


@dataclass(frozen=True)
class StoredSpaces:
    """The spaces of the constructions a map keeps, and what was measured in all three."""

    spaces: tuple[StoredSpace, ...]
    strengths: SpectralStrengths
    sigmas: dict[str, tuple[float, ...]]  # by the names of `FittedSpaces`
    storage: str

    @classmethod
    def of(cls, fitted: FittedSpaces, replica: ReplicaName, storage: str) -> StoredSpaces:
        kept = fitted.spaces if replica == ENSEMBLE else fitted.spaces[replica : replica + 1]
        spaces = tuple(StoredSpace.of(space, storage) for space in kept)
        return cls(spaces, fitted.strengths, {name: getattr(fitted, name) for name in SIGMAS}, storage)

    def __len__(self) -> int:
        """Images."""
        return len(self.spaces[0])

    def grown(self, tokens: Tokens) -> StoredSpaces:
        return replace(self, spaces=tuple(space.grown(tokens, self.storage) for space in self.spaces))

    def starting_with(self, older: StoredSpaces) -> StoredSpaces:
        """The same, the first chunk of each space and its side being those of `older`, which are equal."""
        pairs = zip(self.spaces, older.spaces, strict=True)
        spaces = [replace(own, side=old.side, halves=own.halves.starting_with(old.halves)) for own, old in pairs]
        return replace(self, spaces=tuple(spaces))

    def fitted(self, count: int, spec: HeadSpec, duplicates: np.ndarray | None) -> FittedSpaces:
        """What is fitted to the first `count` images, as a calibration needs it; `duplicates` `m` are equal photos."""
        spaces = [replace(space.fitted(count), duplicates=duplicates) for space in self.spaces]
        return FittedSpaces(spec=spec, spaces=tuple(spaces), strengths=self.strengths, dtype="float32", **self.sigmas)

    # --- files ---------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """What the header says of it."""
        numbers = {name: list(values) for name, values in self.sigmas.items()}
        return {"storage": self.storage, "count": len(self.spaces), "strengths": self.strengths.to_dict(), **numbers}

    def space_tensors(self) -> dict[str, np.ndarray]:
        tensors: dict[str, np.ndarray] = {}
        for index, space in enumerate(self.spaces):
            name, side = f"space{index}", space.side
            tensors |= {f"{name}.patch_directions": side.patch_directions, f"{name}.mean": side.mean}
            tensors |= {f"{name}.eigenvalues": side.eigenvalues, **write_rows(f"{name}.axes", side.axes)}
            hidden = np.stack([space.hidden.rows, space.hidden.columns])
            tensors |= {f"{name}.pseudo": space.pseudo.astype(np.int32), f"{name}.hidden": hidden.astype(np.int32)}
        return tensors

    def coordinate_tensors(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return the tensors of images `start` to `stop`."""
        tensors: dict[str, np.ndarray] = {}
        for index, space in enumerate(self.spaces):
            rows = space.halves.between(start, stop)
            assert rows is not None, "a segment has images"
            tensors |= {**write_rows(f"space{index}", rows), f"space{index}.lengths": space.lengths[start:stop]}
        return tensors

    @classmethod
    def from_tensors(cls, entry: dict[str, Any], space: Tensors, coordinates: Sequence[Tensors]) -> StoredSpaces:
        spaces = [_read_space(f"space{index}", space, coordinates) for index in range(entry["count"])]
        strengths = SpectralStrengths.from_dict(entry["strengths"])
        return cls(tuple(spaces), strengths, {name: tuple(entry[name]) for name in SIGMAS}, entry["storage"])


def _read_space(name: str, tensors: Tensors, coordinates: Sequence[Tensors]) -> StoredSpace:
    mean, eigenvalues = tensors[f"{name}.mean"], np.array(tensors[f"{name}.eigenvalues"])
    axes = read_rows(f"{name}.axes", tensors, len(mean))
    if axes.shape != (len(eigenvalues), len(mean)):
        raise ValueError(f"{name} has axes of shape {axes.shape}, must be {(len(eigenvalues), len(mean))}")
    side = SecondOrderSide(tensors[f"{name}.patch_directions"], mean, axes, eigenvalues)
    chunks = [read_rows(name, one, None) for one in coordinates]
    lengths = np.concatenate([one[f"{name}.lengths"] for one in coordinates])
    if any(chunk.shape[1] != len(eigenvalues) for chunk in chunks) or len(lengths) != sum(map(len, chunks)):
        raise ValueError(f"{name} has coordinates that do not fit its {len(eigenvalues)} axes")
    pseudo, hidden = (np.array(tensors[f"{name}.{key}"], np.int64) for key in ("pseudo", "hidden"))
    return StoredSpace(side, Gallery.of(*chunks), lengths, pseudo, Mask(*hidden))
