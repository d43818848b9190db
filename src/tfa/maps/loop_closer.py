"""Close loops in one stream of frames, without a map beforehand.

The first 32 frames wait. Then patch directions and a PCA are fitted on them, both again at 64 frames, and the PCA at
every doubling; the coordinates of all earlier frames are rewritten. A frame's vector is

    y = L2(λ^(−0.425) (z − c))      z: PCA coordinates of its second-order descriptor,  c: mean of the last frames' z

so that a light or season that successive frames share cancels on both sides. `online.loops` decides from y yᵀ.
Frames that look like the last keyframe are ignored: a robot that stands adds no evidence.

Compact patches of all keyframes give a decided pair its inliers, heading and scale. They do not take part in the
decision, because they mislead where a drive repeats itself.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.arrays import Spill, backend_for, l2_normalize, release
from tfa.core.files import BadFile, map_tensors, parse_json, write_tensors
from tfa.core.tokens import Tokens
from tfa.encoders import Encoder, load_encoder
from tfa.encoders.catalogue import DEFAULT_ENCODER
from tfa.errors import BadSpec, BadTokens
from tfa.maps.map import Map
from tfa.method.second_order import describe_second_order, fit_directions
from tfa.method.second_order_space import fit_sample_axes
from tfa.online.loops import SHORTEST_DRIVE, LoopDetector, LoopLine
from tfa.photos.images import Photo, as_rgb, name_photo
from tfa.photos.positions import meters_between
from tfa.search.gallery import take_rows
from tfa.types import HeadSpec, Loop, LoopOptions, LoopPair, Position, RerankSpec
from tfa.verification.matching import fit_similarity
from tfa.verification.patches import CompactTokens, fit_compact_tokens

FIRST_FIT, LAST_DIRECTIONS = 32, 64  # keyframes of the first fit, and of the last one that changes directions
FIT_FRAMES = 512  # keyframes that a PCA uses at most
SAME_VIEW = 0.93  # mean cosine of a frame's patches with the last keyframe's above which it adds nothing
_GAMMA = 0.85  # whitening
_CENTER_DECAY = 1 - 1 / 12  # weight of earlier frames in the center, per frame
_CENTER_COUNTS = 2.0  # weight of the PCA's mean in the center, in frames
_BLOCK = 256  # descriptors per product
_KIND = "tfa loop closer 3"
# Attributes in the file.
_FACTS = ("frames", "length", "session", "backward_steps", "names", "_time", "_seconds", "_meters", "_fitted", "_shape")
_UNITS = {"": ("frames", 1), "s": ("seconds", 1), "min": ("seconds", 60), "h": ("seconds", 3600), "m": ("meters", 1)}


def parse_extent(name: str, text: str | int, *units: str) -> tuple[str, float]:
    """Return the unit and the amount of a gap or a pause."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|min|h|m|)", str(text).strip())
    unit, factor = ("", 0) if match is None else _UNITS[match[2]]
    if match is None or unit not in units or not float(match[1]):
        examples = "60 (frames), 20m, 30s or 2min" if "frames" in units else "30s or 10min"
        raise BadSpec(f"{name}={str(text)[:40]!r} is not allowed; use {examples}")
    return unit, float(match[1]) * factor


class LoopCloser:
    """Decide for each frame of a drive whether it shows an earlier place.

    Args:
        encoder: Encoder name, or a loaded encoder. [default: the map's, else dinov2-s14-focus]
        gap: How far back a frame must be to count as a loop: frames (60), time ("30s") or path ("20m").
        session_breaks: Pause after which another session starts ("10min"); earlier sessions then answer without
            competition from the running one.
        false_loops: Expected number of false loops in a drive; see `tfa.online.loops`.
        fov: Horizontal field of view of the camera in degrees, for headings.
        length: Number of frames of the drive, if known; `false_loops` then bounds the whole drive.
        start: Map whose images are the first nodes.
    """

    def __init__(
        self, encoder: str | Encoder | None = None, gap: str | int = LoopOptions.gap, *,
        session_breaks: str | None = None, false_loops: float = LoopOptions.false_loops,
        fov: float = LoopOptions.fov, length: int | None = None, start: Map | None = None,
    ) -> None:  # fmt: skip
        self.options = LoopOptions(gap=str(gap), session_breaks=session_breaks, false_loops=false_loops, fov=fov)
        self._gap = parse_extent("gap", gap, "frames", "meters", "seconds")
        self._break = None if session_breaks is None else parse_extent("session_breaks", session_breaks, "seconds")
        self.length = length
        self.needs_time = self._gap[0] == "seconds" or self._break is not None
        encoder = encoder or (DEFAULT_ENCODER if start is None else start.encoder)
        self.encoder: Encoder = load_encoder(encoder) if isinstance(encoder, str) else encoder
        self.frames = self.session = self.backward_steps = 0  # nodes, sessions before this one, clock jumps
        self.names: list[str] = []  # of each node
        self.loops: list[Loop] = []
        # Columns of the keyframes: node, session, seconds and meters since the start.
        self._keyframes = np.zeros((0, 4))
        self._time: float | None = None
        self._position: Position | None = None
        self._seconds = self._meters = 0.0
        self._waiting: list[np.ndarray] = []  # patches of the first keyframes
        self._shape: dict[str, Any] = {}  # grid, depths and number of patches of a frame
        self._last_view: np.ndarray | None = None
        self._directions: np.ndarray | None = None
        self._fitted = 0  # keyframes of the last PCA
        self._spill = Spill()
        self._descriptors = np.empty((0, 1), np.float16)  # (capacity, D)
        self._compact: CompactTokens | None = None  # projection of patches
        self._patches = np.empty((0, 1, 1), np.uint8)  # (capacity, n, bytes)
        self._within = LoopDetector()  # loops of the running session
        self._across = LoopDetector(self._within.law, self._within.links)  # matches in earlier sessions
        if start is not None:
            self._start_from(start)

    def __len__(self) -> int:
        """Return the number of keyframes."""
        return len(self._keyframes)

    def step(
        self,
        frame: Photo | Tokens,
        time: float | None = None,
        position: Position | None = None,
        *,
        session: bool = False,
    ) -> Loop | None:
        """Add the next frame as a node.

        Args:
            frame: A photo as for `PlaceMap.query`, or its tokens. One that cannot be read raises BadImage.
            time: Seconds, for a gap or session breaks in time. A clock that jumps back adds no time.
            position: Odometry or GPS, for a gap in meters.
            session: True if another session starts with this frame.

        Returns:
            The loop that the frame closes, or None.
        """
        self.check(time, position)
        tokens = frame
        if not isinstance(tokens, Tokens):
            names = [name_photo(tokens)]
            tokens = Tokens(*self.encoder.encode([as_rgb(tokens)]), grid=self.encoder.grid, names=names)
        if len(tokens) != 1:
            raise BadSpec(f"a frame is one photo, got tokens of {len(tokens)}; pass one at a time")
        tokens.load(0, 1)  # raises if they are not finite
        shape = {"grid": tokens.grid and [*tokens.grid], "depths": tokens.depths, "patches": int(tokens.counts[0])}
        if self._shape and self._shape != shape:
            raise BadTokens(f"{tokens.name(0)}: other patches than the frames before; encode all with one encoder")
        self._shape = shape
        self._move(time, position, session)
        self.names.append("" if tokens.names is None else tokens.names[0])
        self.frames += 1
        return self._add_keyframe(tokens) if self._is_new(tokens) else None

    def check(self, time: float | None, position: Position | None) -> None:
        """Raise if a frame lacks the time or position that the gap needs."""
        if time is None and self.needs_time:
            raise BadSpec(
                "a gap or break in time needs the time of every frame (EXIF, file name, time=); or use gap 60"
            )
        if position is None and self._gap[0] == "meters":
            raise BadSpec("a gap in meters needs the position of every frame (--positions, position=); or use gap 60")
        if time is not None and not math.isfinite(time):
            raise BadSpec(f"time={time} is not a finite number")

    def _move(self, time: float | None, position: Position | None, session: bool) -> None:
        """Count elapsed time, path and sessions."""
        passed = 0.0 if time is None or self._time is None else time - self._time
        self.backward_steps += passed < 0
        self._seconds += max(passed, 0.0)
        if position is not None and self._position is not None:
            self._meters += meters_between(self._position, position)
        if len(self) and (session or (self._break is not None and passed > self._break[1])):
            self.session += 1
            self._last_view = None
            self._within.restart()
            self._across.restart()
        self._time = self._time if time is None else time
        self._position = self._position if position is None else position

    def _is_new(self, tokens: Tokens) -> bool:
        view = l2_normalize(np.asarray(tokens.patches[0], np.float32))
        last, self._last_view = self._last_view, view
        if last is None or last.shape != view.shape:
            return True
        # Patches of a covered lens may be 0 and have no direction: equal ones count as the same.
        is_new = (view * last).sum(axis=1).mean() <= SAME_VIEW and not np.array_equal(view, last)
        self._last_view = view if is_new else last
        return bool(is_new)

    def _add_keyframe(self, tokens: Tokens) -> Loop | None:
        fitted = self._directions
        descriptor = None if fitted is None else describe_second_order(tokens, [fitted])[0][0]
        packed = None
        if self._compact is not None:
            packed = self._compact.compaction.pack(self._compact.query(tokens)[0])
        if len(self) < LAST_DIRECTIONS and (self._directions is None or self._waiting):
            self._waiting.append(np.asarray(tokens.patches[0], np.float16))
        return self._add_descriptor(descriptor, packed)

    def _add_descriptor(self, descriptor: np.ndarray | None, packed: np.ndarray | None) -> Loop | None:
        """Add a keyframe, decide it by the geometry so far, and refit the geometry if it is due."""
        mark = (self.frames - 1, self.session, self._seconds, self._meters)
        self._keyframes = np.concatenate([self._keyframes, [mark]])
        count, line = len(self), None
        if descriptor is not None:
            self._write(count - 1, descriptor[None], None if packed is None else packed[None])
        if self._fitted:
            line = self._decide(self._vectors.add(self._descriptors[count - 1 : count]))
        if count >= FIRST_FIT and count >= 2 * self._fitted:
            self._refit()
        return None if line is None else self._make_loop(line)

    def _decide(self, scores: np.ndarray) -> LoopLine | None:
        """Decide the last keyframe by its scores against all before it."""
        ages, same = self._keyframes[-1] - self._keyframes[:-1], self._keyframes[:-1, 1] == self.session
        old = same & (ages[:, {"frames": 0, "seconds": 2, "meters": 3}[self._gap[0]]] >= self._gap[1])
        allowed = self.options.false_loops * (1.0 if same.all() else 0.5)
        # A known length counts the keyframes to come by their share so far.
        total = SHORTEST_DRIVE if self.length is None else self.length * len(self) // self.frames
        length = max(total, len(self))
        lines = [self._within.step(scores, old, length, allowed, int((same & ~old).sum()))]
        if not same.all():
            lines.append(self._across.step(scores, ~same, length, allowed))
        return min((line for line in lines if line is not None), key=lambda line: line.false_loops, default=None)

    def _make_loop(self, line: LoopLine) -> Loop:
        last = len(self) - 1
        self._within.links.add([(last - back, column) for back, column in line.chain])
        chain = [self._compare(last - back, column) for back, column in line.chain]
        loop = Loop(
            **vars(chain[0]), query_image=self.names[chain[0].query], match_image=self.names[chain[0].match],
            confidence=1 / (1 + line.false_loops), continued=line.is_continued, chain=chain,
        )  # fmt: skip
        self.loops.append(loop)
        return loop

    def _compare(self, query: int, match: int) -> LoopPair:
        """Match the patches of two keyframes."""
        nodes = {"query": int(self._keyframes[query, 0]), "match": int(self._keyframes[match, 0])}
        if self._compact is None:
            return LoopPair(**nodes)
        compact = replace(self._compact, chunks=(self._patches[: len(self)],))
        [matches] = compact.matches(compact.rows([query])[0], compact.grid, np.array([match]))
        fit = fit_similarity(matches, compact.grid, compact.grid)
        if fit is None:
            return LoopPair(**nodes, inliers=matches.count)
        shift, scale = fit
        turned = math.atan(2 * shift * math.tan(math.radians(self.options.fov) / 2))
        return LoopPair(**nodes, inliers=matches.count, heading=math.degrees(turned), scale=scale)

    def _write(self, start: int, descriptors: np.ndarray, packed: np.ndarray | None) -> None:
        """Write descriptors (b, D) and packed patches (b, n, g) of keyframes."""
        stop = start + len(descriptors)
        self._descriptors = self._widen(self._descriptors, stop, descriptors[0].shape, np.float16)
        self._descriptors[start:stop] = descriptors
        if packed is not None:
            self._patches = self._widen(self._patches, stop, packed[0].shape, packed.dtype)
            self._patches[start:stop] = packed

    def _widen(self, rows: np.ndarray, count: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return the rows with room for `count`; large ones are in a temporary file."""
        if count <= len(rows):
            return rows
        wider = self._spill.empty((max(2 * len(rows), count, 256), *shape), dtype)
        wider[: len(rows)] = rows
        return wider

    def _refit(self) -> None:
        """Fit the geometry on all keyframes and rewrite their vectors."""
        if self._waiting:
            waiting = Tokens(np.stack(self._waiting), grid=self._shape["grid"], depths=self._shape["depths"])
            [self._directions] = fit_directions(waiting, HeadSpec.max_patches, constructions=1)
            compact = fit_compact_tokens(waiting, RerankSpec(patches="small"))
            packed = None if compact is None else compact.chunks[0]
            self._compact = None if compact is None else replace(compact, chunks=())
            self._write(0, describe_second_order(waiting, [self._directions])[0], packed)
            if len(waiting) >= LAST_DIRECTIONS:
                self._waiting = []
        self._fitted = len(self)
        self._fit_vectors()

    def _fit_vectors(self) -> None:
        chosen = np.unique(np.linspace(0, self._fitted - 1, min(self._fitted, FIT_FRAMES)).astype(np.int64))
        axes = fit_sample_axes(self._descriptors[chosen].astype(np.float32), FIT_FRAMES, backend_for("cpu"))
        self._vectors = _Vectors(axes.mean, axes.vectors, axes.eigenvalues)
        for start in range(0, len(self), _BLOCK):
            self._vectors.add(self._descriptors[start : min(start + _BLOCK, len(self))])
        release(self._descriptors)

    def _start_from(self, place_map: Map) -> None:
        """Take the images of a map as the nodes of the first session."""
        spaces = place_map.state.spaces
        if spaces is None or len(place_map) < 2:
            raise BadSpec("a closer starts from a second-order map in a folder; build one with: tfa build")
        side, rows = spaces.spaces[0].side, place_map.rows
        coordinates = np.asarray(spaces.spaces[0].fitted(len(spaces)).coordinates[:], np.float32)[rows]
        self._directions = np.asarray(side.patch_directions)
        descriptors = side.mean + coordinates @ np.asarray(side.axes, np.float32)  # v = μ + U z
        compact, packed = place_map.state.compact, None
        if compact is not None:
            packed = take_rows(compact.chunks, rows, compact.compaction.dtype)
            self._compact = replace(compact, chunks=(), sums=None)
        # The images pass as a drive, so that they teach the law; the gap is that of a drive of 60 images.
        for row, descriptor in enumerate(descriptors):
            self._seconds = self._meters = row * self._gap[1] / 60
            self.frames += 1
            self.names.append(place_map.images[row].path)
            self._add_descriptor(descriptor, None if packed is None else packed[row])
        self.loops.clear()
        self.session = 1
        self._within.restart()

    def to_map(self, **settings: Any) -> Map:
        """Build a map of the keyframes, which must be files; `settings` are those of `PlaceMap.build`."""
        paths = [Path(self.names[node]) for node in self._keyframes[:, 0].astype(int)]
        missing = [path for path in paths if not path.is_file()]
        if missing:
            raise BadSpec(f"{str(missing[0])!r} is not a file; a map needs frames that were passed as files")
        return Map.build(paths, encoder=self.encoder, **settings)

    def save(self, path: str | Path) -> None:
        """Write the state to a file, completely or not at all."""
        shared = self._within
        tensors = dict[str, np.ndarray](keyframes=self._keyframes, law=shared.law.table, links=shared.links.pairs)
        for name, detector in (("within", self._within), ("across", self._across)):
            tensors |= {f"{name}.{key}": value for key, value in detector.tensors().items()}
        if self._directions is not None:
            tensors |= {"directions": self._directions, "descriptors": self._descriptors[: len(self)]}
        if self._compact is not None:
            tensors |= {**self._compact.compaction_tensors(), "patches": self._patches[: len(self)]}
        if self._last_view is not None:
            tensors["last_view"] = self._last_view
        if self._waiting:
            tensors["waiting"] = np.stack(self._waiting)
        facts = {name: getattr(self, name) for name in _FACTS}
        facts |= {"loops": [loop.to_dict() for loop in self.loops], "options": self.options.to_dict()}
        facts |= {"position": None if self._position is None else self._position.to_dict()}
        facts |= {"compact": None if self._compact is None else self._compact.to_dict()}
        about = {"kind": _KIND, "encoder": self.encoder.fingerprint, "facts": json.dumps(facts)}
        write_tensors(Path(path), tensors, {**about, "sha256": _hash_state(about["facts"], tensors)})

    @classmethod
    def load(cls, path: str | Path, encoder: str | Encoder | None = None) -> LoopCloser:
        """Resume from a file that `save` wrote with the same encoder."""
        tensors, about = map_tensors(Path(path))
        try:
            if about.get("kind") != _KIND:
                raise ValueError(f"its kind is {about.get('kind')!r}")
            if about["sha256"] != _hash_state(about["facts"], tensors):
                raise ValueError("it was damaged or changed after it was written")
            facts = parse_json(about["facts"])
            closer = cls(encoder, **facts["options"])
            if about["encoder"] != closer.encoder.fingerprint:
                raise BadFile(f"{path} was written with another encoder than {closer.encoder.id}; delete it")
            closer._restore(facts, tensors)
            return closer
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise BadFile(f"{path} is not a loop closer of this release ({error}); delete it") from None

    def _restore(self, facts: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        for name in _FACTS:
            setattr(self, name, facts[name])
        self.loops = [Loop.from_dict(loop) for loop in facts["loops"]]
        self._position = None if facts["position"] is None else Position.from_dict(facts["position"])
        self._keyframes = np.array(tensors["keyframes"])
        self._within.law.table[:], self._within.links.pairs = tensors["law"], np.array(tensors["links"])
        for name, detector in (("within", self._within), ("across", self._across)):
            detector.load_tensors({key: tensors[f"{name}.{key}"] for key in detector.tensors()})
        self._last_view = np.array(tensors["last_view"]) if "last_view" in tensors else None
        self._waiting = [np.array(one) for one in tensors["waiting"]] if "waiting" in tensors else []
        if "directions" in tensors:
            self._directions = np.array(tensors["directions"])
            if facts["compact"] is not None:
                self._compact = replace(CompactTokens.from_tensors(facts["compact"], tensors, [tensors]), chunks=())
            self._write(0, tensors["descriptors"], tensors.get("patches"))
            self._fit_vectors()


def _hash_state(facts: str, tensors: Mapping[str, np.ndarray]) -> str:
    hashed = hashlib.sha256(facts.encode())
    for name, array in sorted(tensors.items()):
        hashed.update(f"{name} {array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).data)
    return hashed.hexdigest()


class _Vectors:
    """Whitened, centered unit vectors of the keyframes in one geometry."""

    def __init__(self, mean: np.ndarray, axes: np.ndarray, eigenvalues: np.ndarray) -> None:
        self._mean, self._axes = mean.astype(np.float32), np.ascontiguousarray(axes.T, np.float32)
        self._scale = (eigenvalues ** (-_GAMMA / 2)).astype(np.float32)
        self._rows = np.empty((256, len(eigenvalues)), np.float32)
        self._sum, self._weight, self._count = np.zeros(len(eigenvalues), np.float32), 0.0, 0

    def add(self, descriptors: np.ndarray) -> np.ndarray:
        """Add the next keyframes (b, D); return the scores of the last one against all earlier ones."""
        for z in (descriptors.astype(np.float32) - self._mean) @ self._axes.T:
            row = l2_normalize(((z - self._sum / (self._weight + _CENTER_COUNTS)) * self._scale)[None])[0]
            self._sum, self._weight = _CENTER_DECAY * self._sum + z, _CENTER_DECAY * self._weight + 1
            if self._count == len(self._rows):
                self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
            self._rows[self._count] = row
            self._count += 1
        return self._rows[: self._count - 1] @ row
