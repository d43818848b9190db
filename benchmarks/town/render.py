"""Perspective drawing of textured parallelograms with a pinhole camera and a depth buffer.

The whole scene is parallelograms `origin + a u + b v` with `a, b` in [0, 1]. In camera axes, the ray through a pixel is
`t r` and the point it meets solves `[u v origin] (a, b, 1) = t r`, so with `H = [u v origin]⁻¹`

    q = H r,    a = q₀ / q₂,    b = q₁ / q₂,    1 / depth = q₂.

`q` is linear in the pixel, so one rectangle takes a few numpy lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image

NEAR = 0.3  # meters; nothing closer is drawn
SOLID = 110  # a texel with less alpha than this is a hole
LIT = 128  # the alpha of a fully lit window; 255 is a surface that only reflects


@dataclass(frozen=True)
class Camera:
    """A level camera: position and height in meters, heading counter-clockwise from +x in radians."""

    x: float
    y: float
    height: float
    heading: float
    fov: float = np.deg2rad(75.0)
    horizon: float = 0.56  # height of the horizon as a fraction of the image: a lens shift, not a tilt

    @property
    def center(self) -> np.ndarray:
        return np.array([self.x, self.y, self.height])

    @property
    def axes(self) -> np.ndarray:
        """Rows: right, up, forward."""
        c, s = np.cos(self.heading), np.sin(self.heading)
        return np.array([[s, -c, 0.0], [0.0, 0.0, 1.0], [c, s, 0.0]])

    def focal(self, width: int) -> float:
        return width / 2 / np.tan(self.fov / 2)

    def rays(self, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the right slope of each pixel column and the up slope of each pixel row, at forward depth one."""
        width, height = size
        columns = (np.arange(width) + 0.5 - width / 2) / self.focal(width)
        rows = (self.horizon * height - np.arange(height) - 0.5) / self.focal(width)
        return columns, rows

    def project(self, points: np.ndarray, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Return pixels `(n, 2)` and depths `(n,)` of world points `(n, 3)` by the pinhole formula."""
        right, up, depth = ((points - self.center) @ self.axes.T).T
        focal = self.focal(size[0])
        pixels = np.stack([size[0] / 2 + focal * right / depth, self.horizon * size[1] - focal * up / depth], -1)
        return pixels, depth


class Texture:
    """An RGBA image with its mipmaps, painted on first use."""

    def __init__(self, paint: Callable[[], Image.Image]) -> None:
        self._paint = paint

    @cached_property
    def levels(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return all texels as packed uint32, then start, width and height of each level."""
        image = self._paint().convert("RGBA")
        pictures = [np.asarray(image)]
        holes = bool((pictures[0][..., 3] < SOLID).any())
        while min(image.size) > 1 and len(pictures) < 8:
            image = image.reduce(2)
            picture = np.array(image)
            if holes:  # averaged alpha at the rim of a hole must not count as a lit window
                picture[..., 3] = np.where(picture[..., 3] < SOLID, 0, 255)
            pictures.append(picture)
        texels = np.concatenate([np.ascontiguousarray(p).view(np.uint32).ravel() for p in pictures])
        heights, widths = np.array([p.shape[:2] for p in pictures], np.int32).T
        starts = np.concatenate([[0], np.cumsum(heights * widths)[:-1]]).astype(np.int32)
        return texels, starts, widths, heights

    def sample(self, a: np.ndarray, b: np.ndarray, octave: np.ndarray) -> np.ndarray:
        """Return nearest texels at `a, b` (one unit is one copy of the image) of the level nearest to `octave`."""
        texels, starts, widths, heights = self.levels
        level = np.clip(octave + 0.5, 0, len(starts) - 1).astype(np.int32)
        width, height = widths[level], heights[level]
        column = ((a - np.floor(a)) * width).astype(np.int32)
        row = ((b - np.floor(b)) * height).astype(np.int32)
        # a - floor(a) can round up to 1 in float32
        return texels[starts[level] + np.minimum(row, height - 1) * width + np.minimum(column, width - 1)]


@dataclass(frozen=True)
class Quad:
    """A textured parallelogram. Seen from its front, `origin` is top left, `u` runs right and `v` runs down.

    A billboard turns toward the camera: its origin is the top center and only the length of `u` counts.
    """

    origin: tuple[float, float, float]
    u: tuple[float, float, float]
    v: tuple[float, float, float]
    texture: Texture
    repeat: tuple[float, float] = (1.0, 1.0)
    one_sided: bool = False
    billboard: bool = False


class Scene:
    """Quads stacked for culling, and for light by their direction to the sun."""

    def __init__(self, quads: Sequence[Quad]) -> None:
        self.quads = tuple(quads)
        self.corners = np.array([[q.origin, q.u, q.v] for q in quads], float).reshape(-1, 3, 3)
        self.one_sided = np.array([q.one_sided for q in quads], bool)
        self.billboard = np.array([q.billboard for q in quads], bool)
        normal = np.cross(self.corners[:, 2], self.corners[:, 1])  # down × right points out of the front
        self.normals = normal / np.linalg.norm(normal, axis=1, keepdims=True).clip(1e-12)
        self.ground = (np.abs(self.normals[:, 2]) > 0.99) & (self.corners[:, 0, 2] < 0.1)

    def facing(self, camera: Camera) -> np.ndarray:
        """Return `(n, 3, 3)` origins, u and v in camera axes, billboards turned."""
        spans = self.corners.copy()
        width = np.linalg.norm(spans[:, 1], axis=1, keepdims=True)
        right = camera.axes[0]
        turned = self.billboard[:, None]
        spans[:, 1] = np.where(turned, width * right, spans[:, 1])
        spans[:, 0] -= np.where(turned, width * right / 2, 0)
        spans[:, 0] -= camera.center
        return spans @ camera.axes.T


@dataclass(frozen=True)
class Frame:
    """Packed colors `(h, w, 4)`; the fourth byte is the share of direct sun. Inverse depth 0 is sky."""

    color: np.ndarray
    inverse_depth: np.ndarray


def draw_scene(
    scene: Scene, camera: Camera, size: tuple[int, int], light: np.ndarray, glow: np.ndarray, reach: float = 160.0
) -> Frame:
    """Draw every quad within `reach` meters. `light` `(n, 4)` is RGB gain and sun share per quad, in 0..255."""
    frame = Frame(np.zeros((size[1], size[0], 4), np.uint8), np.zeros((size[1], size[0]), np.float32))
    spans = scene.facing(camera)
    corners = spans[:, :1] + np.stack([0 * spans[:, 1], spans[:, 1], spans[:, 1] + spans[:, 2], spans[:, 2]], 1)
    basis = spans[:, [1, 2, 0]].transpose(0, 2, 1)  # columns u, v, origin
    volume = np.linalg.det(basis)  # zero for a quad seen edge on
    order = _nearest_first(scene, corners)
    # The front has (v × u) · (camera − origin) > 0; in the camera's axes, left-handed, that is −det(u, v, origin).
    seen = (np.abs(volume) > 1e-6) & ((volume < 0) | ~scene.one_sided) & (corners[..., 2].min(1) < reach)
    order = order[seen[order]]
    boxes = pixel_boxes(corners[order], camera, size)
    reached = (boxes[:, 0] < boxes[:, 2]) & (boxes[:, 1] < boxes[:, 3])
    order, boxes = order[reached], boxes[reached]
    for index, box, h in zip(order, boxes.tolist(), np.linalg.inv(basis[order]), strict=True):
        _draw(frame, scene.quads[index], h, box, camera, light[index], glow)
    return frame


def _nearest_first(scene: Scene, corners: np.ndarray) -> np.ndarray:
    """Return an order in which hidden texels are rarely fetched."""
    nearest = corners[..., 2].clip(NEAR).min(1) + 0.25 * np.abs(corners[..., 0]).min(1)
    # Ground is below everything: it comes last, its upper layers before the lower ones.
    return np.argsort(np.where(scene.ground, 1e4 - 1e3 * scene.corners[:, 0, 2], nearest), kind="stable")


def pixel_boxes(corners: np.ndarray, camera: Camera, size: tuple[int, int]) -> np.ndarray:
    """Return `(n, 4)` left, top, right, bottom of the pixels whose centers a quad before the near plane may cover."""
    ahead = np.roll(corners, -1, 1)
    depth, depth_ahead = corners[..., 2], ahead[..., 2]
    crossing = (depth < NEAR) != (depth_ahead < NEAR)
    share = np.where(crossing, (NEAR - depth) / np.where(crossing, depth_ahead - depth, 1), 0)
    points = np.concatenate([corners, corners + share[..., None] * (ahead - corners)], 1)
    valid = np.concatenate([depth >= NEAR, crossing], 1)
    inverse = 1 / np.where(valid, points[..., 2], 1)
    focal = camera.focal(size[0])
    across = size[0] / 2 + focal * points[..., 0] * inverse - 0.5
    down = camera.horizon * size[1] - focal * points[..., 1] * inverse - 0.5
    low = [np.where(valid, p, np.inf).min(1) for p in (across, down)]
    high = [np.where(valid, p, -np.inf).max(1) for p in (across, down)]
    bounds = [np.clip(np.ceil(x - 1e-6), 0, n) for x, n in zip(low, size, strict=True)]
    bounds += [np.clip(np.floor(x + 1e-6) + 1, 0, n) for x, n in zip(high, size, strict=True)]
    return np.stack(bounds, 1).astype(np.int64)


def _draw(
    frame: Frame, quad: Quad, h: np.ndarray, box: list[int], camera: Camera, light: np.ndarray, glow: np.ndarray
) -> None:
    height, width = frame.inverse_depth.shape
    left, top, right, bottom = box
    focal = camera.focal(width)
    x = (np.arange(left, right) + 0.5 - width / 2) / focal
    y = (camera.horizon * height - np.arange(top, bottom) - 0.5) / focal
    down = (h[:, 1:2] * y + h[:, 2:3]).astype(np.float32)[:, :, None]
    along = (h[:, :1] * x).astype(np.float32)[:, None, :]
    q2 = down[2] + along[2]
    depth = frame.inverse_depth[top:bottom, left:right]
    inside = q2 > depth
    if not inside.any():  # two thirds of the quads in view are hidden
        return
    q0, q1 = down[0] + along[0], down[1] + along[1]
    inside &= (q0 >= 0) & (q1 >= 0) & (q0 <= q2) & (q1 <= q2)
    rows, columns = np.nonzero(inside)
    if not len(rows):
        return
    inverse = q2[rows, columns]
    # One pixel covers |det H| / (focal² q₂³) of the parallelogram: half its log2 in texels is the level.
    _, _, widths, heights = quad.texture.levels
    texels = widths[0] * heights[0] * quad.repeat[0] * quad.repeat[1] * abs(np.linalg.det(h)) / focal**2
    octave = np.float32(0.5 * np.log2(texels)) - np.float32(1.5) * np.log2(inverse)
    a = q0[rows, columns] / inverse * np.float32(quad.repeat[0])
    b = q1[rows, columns] / inverse * np.float32(quad.repeat[1])
    # The far edge belongs to the image, not to its next copy.
    a, b = np.minimum(a, np.float32(quad.repeat[0] - 1e-4)), np.minimum(b, np.float32(quad.repeat[1] - 1e-4))
    texel = quad.texture.sample(a, b, octave).view(np.uint8).reshape(-1, 4)
    solid = texel[:, 3] >= SOLID
    if not solid.all():
        rows, columns, inverse, texel = rows[solid], columns[solid], inverse[solid], texel[solid]
    depth[rows, columns] = inverse
    frame.color[top:bottom, left:right].view(np.uint32)[rows, columns, 0] = shade(texel, light, glow)


def shade(texel: np.ndarray, light: np.ndarray, glow: np.ndarray) -> np.ndarray:
    """Return packed lit colors: reflected light plus the glow of lit windows; the fourth byte keeps the sun share."""
    lit = (texel.astype(np.uint16) * light.astype(np.uint16)) >> 8
    lit[:, 3] = light[3]
    windows = np.flatnonzero(texel[:, 3] < 250) if glow.any() else np.empty(0, int)
    if len(windows):
        share = (255 - texel[windows, 3:4].astype(np.float32)) / (255 - LIT)
        lit[windows, :3] = np.minimum(lit[windows, :3] + np.minimum(share, 1) * glow, 255).astype(np.uint16)
    return lit.astype(np.uint8).view(np.uint32)[:, 0]
