"""Tokens: the encoder output for a set of images: `(n, d)` patch tokens per image, and optionally a global token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa.core.arrays import all_finite
from tfa.errors import BadTokens


class Tokens:
    """Patch tokens and global tokens of `b` images.

    Args:
        patches: Array `(b, n, d)`, or a sequence of `b` arrays `(n_i, d)`. A sequence may load lazily, as the token
            cache does, to fit maps larger than memory.
        cls: Global tokens `(b, d_g)`, or None.
        names: Image names for error messages.
        grid: Rows and columns of patches in row-major order. Needed for reranking and for two depths.
        depths: 2 if channels are joined from two blocks of the encoder, the earlier one first.
    """

    def __init__(
        self,
        patches: Any,
        cls: Any | None = None,
        *,
        names: Sequence[str] | None = None,
        grid: tuple[int, int] | None = None,
        depths: int = 1,
    ) -> None:
        self.depths = depths
        try:
            cls = None if cls is None else np.asarray(cls)
            patches = [np.asarray(patch) for patch in patches] if isinstance(patches, (list, tuple)) else patches
        except ValueError as error:  # rows of different lengths
            raise BadTokens(f"tokens are not arrays of numbers: {error}") from None
        if hasattr(patches, "ndim") and patches.ndim != 3:
            raise BadTokens(
                f"patches have shape {tuple(patches.shape)}; "
                "pass (images, patches, channels) or a list of (patches, channels)"
            )
        if hasattr(patches, "ndim"):
            patches = np.asarray(patches)
        for array in [*(patches if isinstance(patches, list) else [patches]), cls]:
            if (kind := getattr(array, "dtype", None)) is not None and getattr(kind, "kind", "f") in "OUSVMmc":
                raise BadTokens(f"tokens have dtype {kind}, must be real numbers; convert them to float32")
        self.patches: Sequence[np.ndarray] = patches
        self.names = None if names is None else list(names)
        if self.names is not None and len(self.names) != len(patches):
            raise BadTokens(f"{len(self.names)} names for {len(patches)} images")
        self.shapes = self._checked_shapes()
        self.grid = None if grid is None else self._checked_grid(*grid)
        self.cls = None if cls is None else self._checked_cls(cls)

    def _checked_shapes(self) -> np.ndarray:
        # A lazy sequence may know its shapes without loading its arrays.
        shapes = getattr(self.patches, "shapes", None)
        if shapes is None:
            shapes = [np.shape(patch) for patch in self.patches]
        for index, shape in enumerate(shapes):
            if len(shape) != 2 or 0 in shape:
                raise BadTokens(
                    f"{self.name(index)}: patch tokens have shape {tuple(shape)}, must be (patches, channels)"
                )
            if shape[1] != shapes[0][1]:
                raise BadTokens(
                    f"{self.name(index)}: {shape[1]} channels, but {self.name(0)} has {shapes[0][1]}; "
                    "encode all images with one encoder"
                )
        return np.array(shapes, dtype=np.int64).reshape(-1, 2)

    def _checked_grid(self, rows: int, columns: int) -> tuple[int, int]:
        other = np.flatnonzero(self.counts != rows * columns)
        if len(other):
            raise BadTokens(
                f"{self.name(other[0])}: {self.counts[other[0]]} patches do not fit a grid of {rows} × {columns}"
            )
        return int(rows), int(columns)

    def _checked_cls(self, cls: np.ndarray) -> np.ndarray:
        if cls.ndim != 2 or len(cls) != len(self):
            raise BadTokens(f"cls has shape {cls.shape}, must be ({len(self)}, channels)")
        bad = np.flatnonzero(~np.isfinite(cls).all(axis=1))
        if len(bad):
            raise BadTokens(f"{self.name(bad[0])}: the global token has non-finite values")
        return cls

    def __len__(self) -> int:
        return len(self.patches)

    @property
    def channels(self) -> int:
        return int(self.shapes[0, 1]) if len(self.shapes) else 0

    @property
    def counts(self) -> np.ndarray:
        """Number of patches per image."""
        return self.shapes[:, 0]

    def name(self, index: int) -> str:
        """Return the name of an image for messages.

        Args:
            index: Position of the image.

        Returns:
            Its name, or "image INDEX".
        """
        return f"image {index}" if self.names is None else self.names[index]

    def select(self, indices: Any) -> Tokens:
        """Select images. Only global tokens are copied.

        Args:
            indices: Positions, a mask or a slice.

        Returns:
            Tokens of these images, in that order.
        """
        indices = np.arange(len(self))[indices]
        return Tokens(
            _Selection(self.patches, indices, self.shapes[indices]),
            None if self.cls is None else self.cls[indices],
            names=None if self.names is None else [self.names[i] for i in indices],
            grid=self.grid,
            depths=self.depths,
        )

    def block(self, depth: int) -> Tokens:
        """Select the channels of one encoder block.

        Args:
            depth: 0 for the earlier of two blocks, -1 for the last one.

        Returns:
            Tokens with the channels of that block.
        """
        if self.depths == 1:
            return self
        return Tokens(_Channels(self, range(self.depths)[depth]), self.cls, names=self.names, grid=self.grid)

    def batches(self, max_patches: int = 8192, max_images: int = 16) -> Iterator[TokenBatch]:
        """Split the images into batches of consecutive images with equal patch counts.

        Args:
            max_patches: Maximum number of patches per batch; a batch has at least one image.
            max_images: Maximum number of images per batch.

        Yields:
            The batches, loaded one by one.
        """
        start = 0
        while start < len(self):
            n = int(self.counts[start])
            stop = start + 1
            most = min(start + max(max_patches // n, 1), start + max_images, len(self))
            while stop < most and self.counts[stop] == n:
                stop += 1
            yield TokenBatch(start, stop, self.load(start, stop))
            start = stop

    def load(self, start: int, stop: int) -> np.ndarray:
        """Load the patches of consecutive images with equal patch counts.

        Args:
            start: Position of the first image.
            stop: Position after the last image.

        Returns:
            Patches `(b, n, d)`.

        Raises:
            BadTokens: A value is not finite.
        """
        if isinstance(self.patches, np.ndarray):
            patches = self.patches[start:stop]
        else:
            patches = np.stack([self.patches[i] for i in range(start, stop)])
        if not (all_finite(patches) if patches.dtype == np.float16 else np.isfinite(patches).all()):
            bad = int(np.flatnonzero(~np.isfinite(patches).all(axis=(1, 2)))[0])
            raise BadTokens(f"{self.name(start + bad)}: patch tokens have non-finite values")
        return patches


@dataclass(frozen=True)
class TokenBatch:
    start: int
    stop: int
    patches: np.ndarray  # (b, n, d)


class _Selection(Sequence):
    def __init__(self, source: Sequence[np.ndarray], indices: np.ndarray, shapes: np.ndarray) -> None:
        self.source, self.indices, self.shapes = source, indices, shapes

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        return self.source[self.indices[index]]


class _Channels(Sequence):
    def __init__(self, tokens: Tokens, depth: int) -> None:
        width = tokens.channels // tokens.depths
        self.source, self.channels = tokens.patches, slice(depth * width, (depth + 1) * width)
        self.shapes = np.stack([tokens.counts, np.full(len(tokens), width)], axis=1)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: Any) -> Any:
        return self.source[index][:, self.channels]
