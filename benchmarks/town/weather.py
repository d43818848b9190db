"""Light and weather of a traverse: light of sun and sky, and the camera's development."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from town.render import Camera, Frame, Scene
from town.textures import Color, smooth_noise

Triple = tuple[float, float, float]
SKY_HEIGHT = 1.3  # slope up to which the sky image reaches


@dataclass(frozen=True, kw_only=True)
class Weather:
    """One condition. Light is RGB gain; `sun` points to the sun and is not seen on overcast days."""

    name: str
    sun: Triple
    sunlight: Triple
    skylight: Triple
    zenith: Color
    low_sky: Color
    cloud: Color
    cover: float  # share of the sky under cloud
    glow: Triple  # light of lit windows, added
    wet: float  # strength of reflections in the road
    mist: float  # meters until the air hides two thirds of a color
    leaves: tuple[Color, ...]
    lawn: Color
    gain: Triple  # white balance and exposure of the camera
    noise: float  # sensor noise, gray levels
    quality: int  # of the JPEG file
    parked: float  # share of occupied parking bays


CLEAR_DAY = Weather(
    name="clear day", sun=(-0.42, -0.62, 0.66), sunlight=(0.62, 0.56, 0.46), skylight=(0.52, 0.56, 0.64),
    zenith=(74, 124, 196), low_sky=(184, 208, 230), cloud=(244, 244, 246), cover=0.38, glow=(0, 0, 0),
    wet=0.0, mist=420.0,
    leaves=((86, 122, 48), (74, 108, 44), (104, 130, 56), (66, 96, 52)), lawn=(96, 122, 62),
    gain=(1.12, 1.12, 1.1), noise=2.0, quality=90, parked=0.5,
)  # fmt: skip
WET_DUSK = Weather(
    name="wet dusk", sun=(0.5, 0.6, 0.3), sunlight=(0.0, 0.0, 0.0), skylight=(0.66, 0.66, 0.74),
    zenith=(86, 96, 124), low_sky=(196, 170, 158), cloud=(118, 118, 132), cover=0.72, glow=(190, 140, 70),
    wet=0.42, mist=150.0,
    leaves=((142, 100, 44), (120, 88, 46), (150, 78, 40), (96, 84, 48)), lawn=(96, 98, 62),
    gain=(1.04, 0.97, 1.0), noise=5.0, quality=72, parked=0.4,
)  # fmt: skip


def light_table(scene: Scene, camera: Camera, weather: Weather) -> np.ndarray:
    """Return `(n, 4)` in 0..255 per quad: RGB gain, and the share of light directly from the sun."""
    toward = np.asarray(weather.sun) / np.linalg.norm(weather.sun)
    away = np.einsum("ni,ni->n", scene.normals, camera.center - scene.corners[:, 0]) < 0
    normals = np.where((away & ~scene.one_sided)[:, None], -scene.normals, scene.normals)  # the visible side
    cosine = np.where(scene.billboard, 0.55, (normals @ toward).clip(0))
    # The sky lights surfaces that face up; walls see half of it, and the light of the street.
    open_sky = np.where(scene.billboard, 0.85, 0.78 + 0.22 * normals[:, 2])
    direct = cosine[:, None] * np.asarray(weather.sunlight)
    total = direct + open_sky[:, None] * np.asarray(weather.skylight)
    share = direct.sum(1) / total.sum(1)
    return np.clip(np.column_stack([total, share]) * 255, 0, 255).astype(np.uint8)


@dataclass(frozen=True)
class Shadows:
    """Height below which the sun is hidden, for each cell of the plan."""

    corner: tuple[float, float]
    cell: float
    height: np.ndarray

    def at(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        column = np.clip((x - self.corner[0]) / self.cell, 0, self.height.shape[1] - 1).astype(np.int32)
        row = np.clip((y - self.corner[1]) / self.cell, 0, self.height.shape[0] - 1).astype(np.int32)
        return self.height[row, column]


def cast_shadows(heights: np.ndarray, corner: tuple[float, float], cell: float, sun: Triple) -> Shadows:
    """Move the plan's heights away from the sun, lowering them by the sun's slope at each step."""
    run = np.asarray(sun[:2]) / np.hypot(sun[0], sun[1])
    fall = sun[2] / np.hypot(sun[0], sun[1]) * cell
    shaded = np.zeros_like(heights)
    for step in range(1, int(heights.max() / fall) + 1):
        dx, dy = np.rint(run * step).astype(int)
        shifted = np.roll(heights, (-dy, -dx), (0, 1)) - fall * step
        np.maximum(shaded, shifted, out=shaded)
    return Shadows(corner, cell, shaded)


def paint_sky(
    weather: Weather, rng: np.random.Generator, hills: np.random.Generator, relief: float = 0.05
) -> np.ndarray:
    """Return a panorama of the sky `(h, w, 3)`: columns are headings, rows are slopes.

    `hills` draws the distant hills, whose slope is about `relief`.
    """
    height, width = 384, 2048
    slope = np.linspace(SKY_HEIGHT, 0, height, dtype=np.float32)[:, None]
    blend = np.exp(-3.0 * slope)[..., None]
    sky = np.asarray(weather.zenith) * (1 - blend) + np.asarray(weather.low_sky) * blend
    # Clouds are flatter and denser toward the horizon, like a level layer seen from below.
    noise = smooth_noise(rng, (height, width), (7, 14), 6)
    rows = (height * (0.35 / (slope[:, 0] + 0.35)) * 0.999).astype(int)
    cloud = np.clip((noise[rows] + 2 * weather.cover - 1.1) * 3.0, 0, 1)[..., None]
    tone = 0.86 + 0.22 * smooth_noise(rng, (height, width), (9, 28), 5)[rows][..., None]
    sky = sky * (1 - cloud) + np.asarray(weather.cloud) * tone * cloud
    ridge = relief + 0.7 * relief * smooth_noise(hills, (1, width), (1, 9), 5)[0]
    hill = np.asarray(weather.lawn) * 0.4 + np.asarray(weather.low_sky) * 0.38
    under = np.clip((ridge - slope) * height / SKY_HEIGHT, 0, 1)[..., None]  # a ridge without steps
    sky = sky * (1 - under) + hill * under
    return np.clip(sky, 0, 255).astype(np.uint8)


def fill_sky(frame: Frame, camera: Camera, sky: np.ndarray) -> None:
    """Paint the pixels that no quad covers."""
    rows, columns = np.nonzero(frame.inverse_depth == 0)
    height, width = frame.inverse_depth.shape
    right, up = camera.rays((width, height))
    azimuth = camera.heading - np.arctan(right)
    across = ((azimuth / (2 * np.pi)) % 1 * sky.shape[1]).astype(np.int32) % sky.shape[1]
    rise = (up[rows] * np.cos(np.arctan(right))[columns]) / SKY_HEIGHT
    down = np.clip((1 - rise) * sky.shape[0], 0, sky.shape[0] - 1).astype(np.int32)
    frame.color[rows, columns, :3] = sky[down, across[columns]]


def develop(
    frame: Frame, camera: Camera, weather: Weather, shadows: Shadows | None, oversample: int, rng: np.random.Generator
) -> Image.Image:
    """Develop the drawn frame into a photo: shadows, reflections, mist, exposure, noise."""
    height, width = (n // oversample for n in frame.inverse_depth.shape)
    mean = np.zeros((height, width, 4), np.float32)
    for row, column in np.ndindex(oversample, oversample):  # far faster than a mean over two short axes
        mean += frame.color[row::oversample, column::oversample] * np.float32(oversample**-2)
    color, share = mean[..., :3], mean[..., 3:] / 255
    inverse = frame.inverse_depth[::oversample, ::oversample]
    depth = 1 / np.maximum(inverse, 1e-4)
    right, up = camera.rays((width, height))
    level = camera.height + up[:, None] * depth
    if shadows is not None:
        color = color * (1 - share * _shadow(shadows, camera, right, depth, level)[..., None])
    if weather.wet:
        color = _reflect(color, level, inverse, weather, rng)
    veil = np.where(inverse > 0, 1 - np.exp(-depth / weather.mist), 0.0)[..., None]
    color = color * (1 - veil) + np.asarray(weather.low_sky, np.float32) * veil
    return _expose(color, weather, rng)


def _shadow(shadows: Shadows, camera: Camera, right: np.ndarray, depth: np.ndarray, level: np.ndarray) -> np.ndarray:
    # A wall is on the rim of its own cell, so look up a point a little nearer to the camera.
    nearer = np.maximum(depth - 0.9, 0)
    ahead, across = camera.axes[2], camera.axes[0]
    x = camera.x + nearer * (ahead[0] + right * across[0])
    y = camera.y + nearer * (ahead[1] + right * across[1])
    hidden = np.clip((shadows.at(x, y) - level) / 0.8, 0, 1)
    soft = Image.fromarray((hidden * 255).astype(np.uint8)).filter(ImageFilter.BoxBlur(1))
    return np.asarray(soft, np.float32) / 255 * 0.92


def _reflect(
    color: np.ndarray, level: np.ndarray, inverse: np.ndarray, weather: Weather, rng: np.random.Generator
) -> np.ndarray:
    """Mirror each column about the row where its ground ends: exact for upright objects on that row."""
    height, width = level.shape
    ground = (level < 0.2) & (inverse > 0)
    foot = np.where(ground.any(0), ground.argmax(0), height)
    rows = np.arange(height)[:, None]
    ripple = smooth_noise(rng, (height, width), (max(height // 8, 2), max(width // 24, 2)), 2)
    source = np.clip(2 * foot - rows + ripple * height * 0.012, 0, height - 1).astype(int)
    blurred = Image.fromarray(color.astype(np.uint8)).filter(ImageFilter.BoxBlur((1, height // 60)))
    mirrored = np.asarray(blurred)[source, np.arange(width)]
    puddles = 0.65 + 0.5 * smooth_noise(rng, (height, width), (14, 4), 2)
    # Wet ground mirrors more at grazing angles in the distance; it is darker elsewhere.
    grazing = np.clip((rows - foot) / height, 0, 1)
    strength = np.where(ground, weather.wet * (1 - 0.6 * grazing) * np.clip(puddles, 0, 1), 0)[..., None]
    return color * (1 - strength) * np.where(ground, 0.88, 1)[..., None] + mirrored * strength


def _expose(color: np.ndarray, weather: Weather, rng: np.random.Generator) -> Image.Image:
    height, width = color.shape[:2]
    y, x = np.linspace(-1, 1, height)[:, None], np.linspace(-1, 1, width)[None, :]
    vignette = 1 - 0.12 * (x**2 + y**2)
    exposure = np.asarray(weather.gain) * 2 ** rng.uniform(-0.15, 0.15) * 1.2
    values = color * exposure * vignette[..., None]
    values += rng.standard_normal(values.shape, np.float32) * weather.noise
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


def save_options(weather: Weather) -> dict[str, Any]:
    return {"format": "JPEG", "quality": weather.quality}
