"""From paths to pixels: which files are images, their picture upright in RGB, the array an encoder reads."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from tfa.errors import BadImage, BadSpec, NoImages
from tfa.photos.jpeg_scans import MOST_SCANS, too_many_scans
from tfa.photos.photo_source import A_FILE, EMPTY_FILE, Photo, Source, check_kind, shorten_photo_name
from tfa.photos.recordings.kinds import BAGS, VIDEOS

# Pillow names these formats but holds no pixel decoder for them on every system: a folder that also has
# a video or a data file in it must not stop at that file.
_NO_PICTURES = {"BUFR", "EPS", "GRIB", "HDF5", "IPTC", "MPEG", "WMF"}

_BLOCK = 1 << 20  # pixels that are widened at a time
_SMALLER = 8  # times, each side, that a JPEG is decoded smaller where only its being whole matters
_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@cache
def image_extensions() -> frozenset[str]:
    """Extensions, with dot and in lower case, of what Pillow can decode."""
    registered = Image.registered_extensions()
    return frozenset(ext for ext, kind in registered.items() if kind in Image.OPEN and kind not in _NO_PICTURES)


def find_images(source: Source | Sequence[Source]) -> list[Path]:
    """Image files of a folder (recursively, sorted by relative path), of one file, or of a sequence of those.

    Hidden files and folders are left out. A file that is named itself is taken whatever its extension is.
    A sequence keeps its order and its repetitions, so that answers line up with the queries.
    """
    sources = [source] if isinstance(source, (str, os.PathLike)) else _listed(source)
    found: list[Path] = []
    for path in map(Path, sources):
        if path.is_dir():
            inside = sorted(_walk(path), key=lambda file: file.relative_to(path).as_posix())
            if not inside:
                known = ", ".join(ext for ext in (".jpg", ".png", ".webp", ".tif") if ext in image_extensions())
                raise NoImages(
                    f"{path} holds no image; looked for {known} and what else Pillow reads, in all subfolders",
                    path,
                )
            found += inside
        elif path.suffix.lower() in (*BAGS, *VIDEOS) and path.exists():
            raise NoImages(
                f"{path} is a recording, not an image; make photos of it first, with: tfa frames {path.name} "
                "--out FOLDER (tfa.extract_frames)",
                path,
            )
        elif path.exists():
            found.append(path)
        else:
            raise NoImages(f"{path} does not exist; give an image, a folder of images, or several of them", path)
    if not found:
        raise NoImages("no image was given; give an image, a folder of images, or several of them")
    return found


def _listed(source: object) -> list[Source]:
    """Paths of a sequence; photos in memory have no file that a map could name."""
    several = list(source) if isinstance(source, Iterable) and not isinstance(source, (bytes, np.ndarray)) else [source]
    paths = [one for one in several if isinstance(one, (str, os.PathLike))]
    for one in several:
        if not isinstance(one, (str, os.PathLike)):
            raise BadSpec(
                f"photos must be given by their paths here, got {type(one).__name__}: a map names its photos by their "
                "files; save it as a file and give its path"
            )
    return paths


def split_nameable(paths: Sequence[Path], *, skip_bad: bool) -> tuple[list[Path], list[tuple[Path, str]]]:
    """Photos whose paths are UTF-8, as everything that names them later wants it; the others, and why.

    Without `skip_bad` the first of the others is refused: before any work, not when the map is written.
    """
    kept: list[Path] = []
    others: list[tuple[Path, str]] = []
    for path in paths:
        try:
            str(path.resolve()).encode()
            kept.append(path)
        except UnicodeEncodeError:
            shown = os.fsencode(path.resolve()).decode("utf-8", "backslashreplace")
            reason = f"{shown} has a name that is not UTF-8, which a map cannot keep"
            if not skip_bad:
                raise BadImage(
                    f"{reason}; rename it, or use --skip-bad (skip_bad=True) to leave it out", shown
                ) from None
            others.append((path, f"{reason}; rename it"))
    if others and not kept:
        raise NoImages(f"no photo can be named: {others[0][1]} (and {len(others) - 1} more)", others[0][0])
    return kept, others


def _walk(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise NoImages(f"{error.filename} cannot be read: {error.strerror}", error.filename)

    seen = set()  # real folders, because a link may lead back up
    for root, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(root)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            if not name.startswith(".") and Path(name).suffix.lower() in image_extensions():
                yield Path(root, name)


def as_rgb(photo: Photo, name: str | None = None) -> Image.Image:
    """A photo upright by its EXIF orientation, in 8-bit RGB without alpha: the same from its path, bytes, PIL image and
    pixels.

    `name` is what an error calls it.
    """
    return _opened(photo, name, _upright_rgb)


def check_whole(path: Source) -> None:
    """Refuse a photo that `as_rgb` would refuse. A JPEG is decoded smaller, which reads all of it but is quicker."""

    def decode(image: Image.Image) -> Image.Image:
        image.draft("RGB", (max(image.width // _SMALLER, 1), max(image.height // _SMALLER, 1)))
        image.load()
        return image

    _opened(path, None, decode)


def _opened(photo: Photo, name: str | None, decode: Callable[[Image.Image], Image.Image]) -> Image.Image:
    check_kind(photo)
    try:
        if isinstance(photo, np.ndarray):
            return Image.fromarray(np.ascontiguousarray(photo), "RGB")
        if isinstance(photo, Image.Image):
            return _upright_rgb(photo)
        if photo == b"":
            raise ValueError(EMPTY_FILE)
        with Image.open(io.BytesIO(photo) if isinstance(photo, bytes) else photo) as image:
            scans = too_many_scans(_content(image)) if image.format in ("JPEG", "MPO") else 0
            if not scans:
                return decode(image)
            reason = f"it has {scans:,} scans and at most {MOST_SCANS} are allowed; save it again as an ordinary JPEG"
    except UnidentifiedImageError:
        reason = "it is not an image, or of a format Pillow does not read"
    except Image.DecompressionBombError as error:
        reason = f"it is too large: {error}"
    except FileNotFoundError:
        reason = f"it does not exist; {A_FILE}"
    except IsADirectoryError:
        reason = "it is a folder; give one photo of it, or the folder to what takes several"
    except Exception as error:  # decoders of damaged files raise whatever they stumble on
        reason = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.strerror:  # without the name, which may be very long
            reason = f"{error.strerror}; {A_FILE}"
    label = name or shorten_photo_name(photo)
    raise BadImage(f"{label} cannot be opened: {reason}", label)


def _content(image: Image.Image) -> bytes:
    """The whole file of a picture that was opened and not yet decoded."""
    file = image.fp  # type: ignore[attr-defined]
    place = file.tell()
    file.seek(0)
    content: bytes = file.read()
    file.seek(place)
    return content


def _upright_rgb(image: Image.Image) -> Image.Image:
    image.load()
    try:
        turn = _UPRIGHT.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # a damaged EXIF block does not spoil the pixels
        turn = None
    rgb = _rgb(image)
    if turn is not None:
        rgb = rgb.transpose(turn)
        rgb.info = {}  # without the orientation, or the next reader would turn it again
    return rgb


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F" or image.mode.startswith("I"):
        return Image.fromarray(_eight_bits(np.asarray(image), image.mode)).convert("RGB")
    if image.mode in ("RGBa", "La", "PA") or (image.mode == "P" and "transparency" in image.info):
        image = image.convert("RGBA")
    # From RGBA this drops alpha and keeps the colours below it. RGB would be copied for nothing.
    return image if image.mode == "RGB" else image.convert("RGB")


def _eight_bits(grey: np.ndarray, mode: str) -> np.ndarray:
    """Greyscale `h w` of 16 or 32 bits or floats, scaled to bytes (Pillow itself would clip at 255)."""
    # White belongs to the format and not to the picture, or every exposure of a place would look alike.
    whites = [1.0, 255.0, 65535.0] if mode == "F" else [65535.0]
    rows = max(_BLOCK // max(grey.shape[1], 1), 1)
    # In blocks of rows: a picture of the largest size would be gigabytes in float64.
    blocks = [slice(start, start + rows) for start in range(0, len(grey), rows)]
    tops = [float(np.nan_to_num(grey[block].astype(np.float64)).max(initial=0.0)) for block in blocks]
    top = max(tops, default=0.0)
    factor = 255.0 / next((white for white in whites if top <= white), top)
    scaled = np.empty(grey.shape, np.uint8)
    for block in blocks:
        scaled[block] = np.rint(np.nan_to_num(grey[block].astype(np.float64)).clip(min=0) * factor)
    return scaled


def to_array(
    image: Image.Image,
    size: tuple[int, int],
    mean: Sequence[float],
    std: Sequence[float],
    resample: str = "bilinear",
) -> np.ndarray:
    """float32 `3 h w`: resized to `size` (width, height) with antialiasing, then (x/255 - mean) / std."""
    pixels = np.asarray(resize(image, size, resample), dtype=np.float32) / np.float32(255)  # h w 3
    pixels -= np.asarray(mean, np.float32)
    pixels /= np.asarray(std, np.float32)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def resize(image: Image.Image, size: tuple[int, int], resample: str = "bilinear") -> Image.Image:
    """Resized to exactly (width, height): the aspect ratio is not kept, all images share one patch grid."""
    return image if image.size == size else image.resize(size, Image.Resampling[resample.upper()])
