"""Read photos as RGB pixels, from paths, bytes, PIL images and arrays.

Find photos in folders, decode them upright, refuse broken or malicious files, and write photos in memory to files.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import re
import reprlib
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from tfa.core.arrays import count_cores, start_threads
from tfa.core.progress import Progress, track_progress
from tfa.errors import BadImage, BadSpec, NoImages, from_os_error
from tfa.photos.recordings.recording import BAGS, VIDEOS

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Formats of cameras, phones and screenshots. Pillow reads more, but those decoders are less tested against attacks.
EXTENSIONS = {
    "JPEG": ".jpg", "MPO": ".jpg", "PNG": ".png", "WEBP": ".webp", "TIFF": ".tif", "BMP": ".bmp", "GIF": ".gif",
}  # fmt: skip
_ALLOWED_FORMATS = "JPEG, PNG, WebP, TIFF, BMP or GIF"


class UnknownFormat(BadImage):
    """A file is not a photo, or has a format that is not accepted from untrusted sources."""


class TooManyPixels(BadImage):
    """A photo has more pixels than allowed."""


def decode_untrusted(content: bytes, name: str, most_pixels: int, smallest: int = 0) -> tuple[Image.Image, str]:
    """Decode an upload; return the upright RGB photo and Pillow's format name. Pixels are limited before decoding.

    A JPEG may be decoded smaller, with sides of at least `smallest` pixels, which is faster.
    """
    kind = _format(content, name, most_pixels)

    def decode(image: Image.Image) -> Image.Image:
        if smallest:
            image.draft("RGB", (smallest, smallest))
        return _upright_rgb(image)

    try:
        return _opened(content, name, decode), kind
    except BadImage as error:
        raise BadImage(f"{error}; it may be truncated, send the complete file", name) from None


def _format(content: bytes, name: str, most_pixels: int) -> str:
    """Read the format from the header and check the size."""
    image_extensions()  # registers all formats, which Pillow needs to find them by name
    formats = [kind for kind in EXTENSIONS if kind in Image.OPEN]  # the JPEG reader recognizes MPO
    try:
        with Image.open(io.BytesIO(content), formats=formats) as image:
            (width, height), kind = image.size, str(image.format)
    except UnidentifiedImageError:
        raise UnknownFormat(
            f"{name} is not a complete photo in a supported format; send {_ALLOWED_FORMATS}", name
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many(name, "far", most_pixels) from None
    except MemoryError:
        raise
    except Exception:  # decoders of damaged headers may raise anything
        raise BadImage(f"{name} is damaged: its header cannot be read; send the complete file", name) from None
    if width * height > most_pixels:
        raise _too_many(name, f"{width} × {height},", most_pixels)
    return kind


def _too_many(name: str, size: str, most_pixels: int) -> TooManyPixels:
    allowed = f"more than the {most_pixels:,} allowed"
    return TooManyPixels(f"{name} has too many pixels: {size} {allowed}; send a smaller copy", name)


Source = str | os.PathLike[str]
Photo = Source | bytes | Image.Image | np.ndarray[Any, np.dtype[np.uint8]]  # arrays are (h, w, 3) in RGB

ALLOWED_PHOTOS = "a path, the bytes of an image file, a PIL image, or a uint8 RGB array of height × width × 3"
A_FILE = "pass the path of an image file"
EMPTY_FILE = "it is not an image: it is empty; pass the complete file"
_LONGEST_NAME = 200  # maximum characters of a name quoted in an error


def name_photo(photo: Photo) -> str:
    """Return the name of a photo for answers and errors."""
    if isinstance(photo, bytes):
        return "bytes"
    if isinstance(photo, Image.Image):
        return str(getattr(photo, "filename", "")) or "PIL image"
    if isinstance(photo, np.ndarray):
        return "array"
    return os.fspath(photo)


def shorten_photo_name(photo: Photo) -> str:
    """Return the name of a photo for errors, shortened: text that is not a path, such as base64, may be very long."""
    name = name_photo(photo)
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}… ({len(name):,} characters)"


def check_kind(photo: object) -> None:
    """Raise BadSpec if an object has a type that cannot be a photo."""
    if isinstance(photo, np.ndarray):
        check_array(photo)
    elif not isinstance(photo, (str, os.PathLike, bytes, Image.Image)):
        kind = type(photo).__name__
        raise BadSpec(f"a photo must be {ALLOWED_PHOTOS}, got {kind} {reprlib.repr(photo)}; {_suggest_instead(photo)}")


def check_array(array: NDArray[Any]) -> None:
    """Raise BadSpec if an array is not an RGB photo, with advice to convert it."""
    shape = " × ".join(map(str, array.shape)) or "no axes"
    advice = None
    if array.ndim == 2:
        advice = "convert grayscale to RGB: numpy.repeat(array[..., None], 3, axis=2)"
    elif array.ndim == 4:
        advice = "pass the photos of a batch one by one, or a list of them to query_many"
    elif array.ndim != 3:
        advice = "a photo has three axes"
    elif array.shape[0] == 3 != array.shape[2]:
        advice = "move the color axis to the end: array.transpose(1, 2, 0)"
    elif array.shape[2] == 4:
        advice = "remove the alpha channel: array[..., :3]"
    elif array.shape[2] == 1:
        advice = "convert grayscale to RGB: numpy.repeat(array, 3, axis=2)"
    elif array.shape[2] != 3:
        advice = "the last axis must have three colors"
    elif not array.size:
        advice = "it has no pixels"
    elif array.dtype != np.uint8:
        floats = np.issubdtype(array.dtype, np.floating)
        scaled = "if values are from 0 to 1: (array * 255).round().astype('uint8')"
        advice = scaled if floats else "if values are from 0 to 255: array.astype('uint8')"
    if advice is not None:
        raise BadSpec(f"a photo must be {ALLOWED_PHOTOS}, got an array of {array.dtype}, {shape}; {advice}")


def _suggest_instead(photo: object) -> str:
    """Return advice for an object that is almost a photo."""
    if isinstance(photo, (bytearray, memoryview)):
        return "convert it with bytes(…)"
    if hasattr(photo, "read"):
        return "pass its content: file.read()"
    if isinstance(photo, (list, tuple)):
        return "for several photos use query_many"
    if hasattr(photo, "__array__"):
        return "convert it with numpy.asarray(…), colors last"
    return "pass one of these"


MOST_SCANS = 100  # a progressive photo has about ten
SCAN_PIXELS = 10**9  # pixels of all scans together, which take about a second; 20 scans are always allowed
_SOI, _EOI, _SOS = b"\xff\xd8", 0xD9, 0xDA
# A marker after a scan: 0xFF in image data is followed by zero, and restarts (0xD0 to 0xD7) belong to the scan.
_MARKER = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])")
_ALONE = {0x01, *range(0xD0, 0xD9)}  # markers without a length


def limit_scans(size: tuple[int, int]) -> int:
    """Return how many scans a JPEG of this size may have: the larger it is, the fewer."""
    return min(MOST_SCANS, max(20, SCAN_PIXELS // max(1, size[0] * size[1])))


def too_many_scans(content: bytes, size: tuple[int, int] = (1, 1)) -> int:
    """Return the number of scans of a JPEG if it is above the limit; 0 for all other files."""
    # Metadata and appended data may contain these two bytes by chance, so this is an upper bound.
    if not content.startswith(_SOI) or content.count(b"\xff\xda") <= limit_scans(size):
        return 0
    scans = sum(kind == _SOS for kind, _ in _markers(content))
    return scans if scans > limit_scans(size) else 0


def _has_end(content: bytes) -> bool:
    """Return True if a JPEG has the end marker of its main image; one in a preview does not count."""
    start = next((place for kind, place in _markers(content) if kind == _SOS), None)
    return start is not None and content.find(bytes([0xFF, _EOI]), start) >= 0


def _markers(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield kind and end of each marker of a JPEG's main image; previews and second images are left out."""
    place = len(_SOI)
    while (marker := _MARKER.search(content, place)) is not None:
        kind, place = marker[1][0], marker.end()
        yield kind, place
        if kind == _EOI:
            return
        if kind not in _ALONE:
            place += int.from_bytes(content[place : place + 2], "big")


# Formats that Pillow names but cannot decode on every system: a video or data file in a folder must not stop a build.
_NO_PICTURES = {"BUFR", "EPS", "GRIB", "HDF5", "IPTC", "MPEG", "WMF"}

_BLOCK = 1 << 20  # pixels converted at a time
_HEIC = frozenset({".heic", ".heif", ".hif"})  # photos of phones and cameras, which Pillow alone does not read
_HEIC_ADVICE = "pip install 'tfa-vpr[heic]'"
_log = getLogger("tfa.photos")
_SMALLER = 8  # factor by which a JPEG is decoded smaller to check that it is complete
_ORIENTATION = 0x0112
_TURN = Image.Transpose
_UPRIGHT = {
    2: _TURN.FLIP_LEFT_RIGHT, 3: _TURN.ROTATE_180, 4: _TURN.FLIP_TOP_BOTTOM, 5: _TURN.TRANSPOSE, 6: _TURN.ROTATE_270,
    7: _TURN.TRANSVERSE, 8: _TURN.ROTATE_90,
}  # fmt: skip


@cache
def image_extensions() -> frozenset[str]:
    """Return the file extensions that Pillow can decode, with dot and in lower case; HEIC if pillow-heif is there."""
    with suppress(ImportError):
        importlib.import_module("pillow_heif").register_heif_opener()
    registered = Image.registered_extensions()
    return frozenset(ext for ext, kind in registered.items() if kind in Image.OPEN and kind not in _NO_PICTURES)


def find_images(source: Source | Sequence[Source]) -> list[Path]:
    """Find the image files of a folder (recursively, sorted by relative path), a file, or a sequence of those.

    Hidden files and folders are skipped. A file that is named explicitly may have any extension.
    A sequence keeps its order and repetitions, so that answers align with queries.
    """
    sources = [source] if isinstance(source, (str, os.PathLike)) else _listed(source)
    found: list[Path] = []
    for path in map(Path, sources):
        if path.is_dir():
            every = sorted(_walk(path), key=lambda file: file.relative_to(path).as_posix())
            inside = [file for file in every if file.suffix.lower() in image_extensions()]
            if len(inside) < len(every):
                _warn_of_heic(path, len(every) - len(inside))
            if not inside:
                known = ", ".join(ext for ext in (".jpg", ".png", ".webp", ".tif") if ext in image_extensions())
                raise NoImages(
                    f"no images found in {path} (searched subfolders for {known} and other Pillow formats)", path
                )
            found += inside
        elif path.suffix.lower() in (*BAGS, *VIDEOS) and path.exists():
            raise NoImages(
                f"{path} is a recording, not an image; extract photos first with: tfa frames {path.name} "
                "--out FOLDER (tfa.extract_frames)",
                path,
            )
        elif path.is_file():
            found.append(path)
        else:
            said = "is not a regular file" if path.exists() else "does not exist"
            raise NoImages(f"{path} {said}; pass images or folders of images", path)
    if not found:
        raise NoImages("no images given; pass images or folders of images")
    return found


@cache
def _warn_of_heic(folder: Path, count: int) -> None:
    """Log, once, that photos of phones are left out."""
    _log.warning("%s: %d HEIC photos are left out; to read them: %s", folder, count, _HEIC_ADVICE)


def _listed(source: object) -> list[Source]:
    """Return the paths of a sequence; raise BadSpec for photos in memory, which a map cannot reference."""
    several: list[Any] = [source]
    if isinstance(source, Iterable) and not isinstance(source, (bytes, np.ndarray)):
        several = list(source)
    for one in several:
        if not isinstance(one, (str, os.PathLike)):
            raise BadSpec(
                f"photos must be paths here, got {type(one).__name__}: a map references its images by file; save the "
                "photo and pass its path"
            )
    return several


def split_nameable(paths: Sequence[Path], *, skip_bad: bool) -> tuple[list[Path], list[tuple[Path, str]]]:
    """Split photos by whether their paths are UTF-8, which maps require; return the others with a reason.

    Without `skip_bad`, raise BadImage for the first of the others, before any work starts.
    """
    kept: list[Path] = []
    others: list[tuple[Path, str]] = []
    for path in paths:
        try:
            str(path.resolve()).encode()
            kept.append(path)
        except UnicodeEncodeError:
            shown = os.fsencode(path.resolve()).decode("utf-8", "backslashreplace")
            reason = f"{shown} has a name that is not UTF-8, which a map cannot store"
            if not skip_bad:
                raise BadImage(f"{reason}; rename it, or skip it with --skip-bad (skip_bad=True)", shown) from None
            others.append((path, f"{reason}; rename it"))
    if others and not kept:
        raise NoImages(f"no photo has a valid name: {others[0][1]} (and {len(others) - 1} more)", others[0][0])
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
            path = Path(root, name)
            if not name.startswith(".") and path.suffix.lower() in image_extensions() | _HEIC and path.is_file():
                yield path


def as_rgb(photo: Photo, name: str | None = None) -> Image.Image:
    """Decode a photo to 8-bit RGB without alpha, upright by its EXIF orientation.

    Path, bytes, PIL image and pixels of a photo give the same result. `name` is used in errors.
    """
    return _opened(photo, name, _upright_rgb)


def check_whole(photo: Photo, name: str | None = None) -> None:
    """Raise BadImage if `as_rgb` would. A JPEG is decoded smaller, which reads the whole file but is faster."""

    def decode(image: Image.Image) -> Image.Image:
        image.draft("RGB", (max(image.width // _SMALLER, 1), max(image.height // _SMALLER, 1)))
        image.load()
        return image

    _opened(photo, name, decode)


def _opened(photo: Photo, name: str | None, decode: Callable[[Image.Image], Image.Image]) -> Image.Image:
    check_kind(photo)
    try:
        if isinstance(photo, np.ndarray):
            return Image.fromarray(np.ascontiguousarray(photo), "RGB")
        if isinstance(photo, Image.Image):
            return _upright_rgb(photo)
        if photo == b"":
            raise ValueError(EMPTY_FILE)
        if not isinstance(photo, bytes) and Path(photo).is_fifo():  # it would wait for a writer
            raise ValueError(f"it is a pipe; {A_FILE}")
        with Image.open(io.BytesIO(photo) if isinstance(photo, bytes) else photo) as image:
            scans = max((too_many_scans(jpeg, image.size) for jpeg in _jpegs(image)), default=0)
            if not scans:
                return decode(image)
            most = f"at most {limit_scans(image.size)} are allowed"
            reason = f"it has {scans:,} scans, {most}; save it as an ordinary JPEG"
    except UnidentifiedImageError:
        reason = "it is not an image, or Pillow does not support its format"
        if Path(name or shorten_photo_name(photo)).suffix.lower() in _HEIC - image_extensions():
            reason = f"it is a HEIC photo; to read it: {_HEIC_ADVICE}"
    except Image.DecompressionBombError:
        reason = f"it has more than {2 * (Image.MAX_IMAGE_PIXELS or 0) / 1e6:.0f} megapixels; save it smaller"
    except FileNotFoundError:
        reason = f"it does not exist; {A_FILE}"
    except IsADirectoryError:
        reason = "it is a folder; pass one photo, or use query_many for a folder"
    except Exception as error:  # decoders of damaged files may raise anything
        reason = str(error) or type(error).__name__
        if isinstance(error, OSError):  # `strerror` omits the name, which may be very long
            reason = f"{error.strerror}; {A_FILE}" if error.strerror else f"the file is damaged ({reason})"
    label = name or shorten_photo_name(photo)
    raise BadImage(f"{label} cannot be opened: {reason}", label)


def _jpegs(image: Any) -> Iterator[bytes]:
    """Yield the JPEG of an image that is open but not decoded, or the JPEGs in the strips or tiles of a TIFF."""
    in_tiff = image.format == "TIFF" and "jpeg" in str(image.info.get("compression"))
    if image.format in ("JPEG", "MPO") or in_tiff:
        place = image.fp.tell()
        image.fp.seek(0)
        content: bytes = image.fp.read()
        image.fp.seek(place)
        tags = image.tag_v2 if in_tiff else {273: [0], 279: [len(content)]}
        starts, sizes = (tags.get(tile, tags.get(strip, ())) for tile, strip in ((324, 273), (325, 279)))
        yield from (content[start : start + size] for start, size in zip(starts, sizes, strict=False))


def _upright_rgb(image: Image.Image) -> Image.Image:
    image.load()
    try:
        turn = _UPRIGHT.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # a damaged EXIF block does not affect the pixels
        turn = None
    rgb = _rgb(image)
    if turn is not None:
        rgb = rgb.transpose(turn)
        rgb.info = {}  # removes the orientation, or the next reader would rotate it again
    return rgb


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F" or image.mode.startswith("I"):
        return Image.fromarray(_eight_bits(np.asarray(image), image.mode)).convert("RGB")
    if image.mode in ("RGBa", "La", "PA") or (image.mode == "P" and "transparency" in image.info):
        image = image.convert("RGBA")
    # From RGBA this drops alpha and keeps the colors below it. RGB needs no copy.
    return image if image.mode == "RGB" else image.convert("RGB")


def _eight_bits(gray: np.ndarray, mode: str) -> np.ndarray:
    """Scale grayscale `(h, w)` of 16 or 32 bits or floats to bytes; Pillow would clip at 255."""
    # White depends on the format, not the image, or every exposure of a place would look alike.
    whites = [1.0, 255.0, 65535.0] if mode == "F" else [4095.0, 65535.0]  # many sensors have 12 bits
    rows = max(_BLOCK // max(gray.shape[1], 1), 1)
    # Blocks of rows limit memory: the largest images would take gigabytes in float64.
    blocks = [slice(start, start + rows) for start in range(0, len(gray), rows)]
    tops = [float(np.nan_to_num(gray[block].astype(np.float64)).max(initial=0.0)) for block in blocks]
    top = max(tops, default=0.0)
    factor = 255.0 / next((white for white in whites if top <= white), top)
    scaled = np.empty(gray.shape, np.uint8)
    for block in blocks:
        scaled[block] = np.rint(np.nan_to_num(gray[block].astype(np.float64)).clip(min=0) * factor)
    return scaled


def to_array(
    image: Image.Image, size: tuple[int, int], mean: Sequence[float], std: Sequence[float], resample: str = "bilinear"
) -> np.ndarray:
    """Return float32 `(3, h, w)`: resized to `size` (width, height) with antialiasing, then (x/255 - mean) / std."""
    pixels = np.asarray(resize(image, size, resample), dtype=np.float32) / np.float32(255)  # h w 3
    pixels -= np.asarray(mean, np.float32)
    pixels /= np.asarray(std, np.float32)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def resize(image: Image.Image, size: tuple[int, int], resample: str = "bilinear") -> Image.Image:
    """Resize to exactly (width, height). The aspect ratio changes, since all images share one patch grid."""
    return image if image.size == size else image.resize(size, Image.Resampling[resample.upper()])


BLACK = "the photo is black; the lens may be covered"
COVERED = "the photo shows nothing but one color; the lens may be covered"
BLURRED = "the photo is blurred"
NOTHING_SHOWN = (BLACK, COVERED)  # flaws of photos that are not searched
_COARSE, _FINE, _STEP = 64, 322, 8  # sides in pixels at which flaws are measured; distance of the wider difference
_LEAST_CONTRAST = 6  # gray levels between neighboring pixels of the coarse photo
_DARK = 32  # gray level of a black photo's brightest parts
_LEAST_SHARPNESS = 0.2  # differences between neighbors, relative to those between pixels eight apart
_LEAST_EDGE = 13  # largest difference of neighbors in strong blur; at least 27 in every photo of eight public datasets


def find_flaw(image: Image.Image) -> str | None:
    """Return what keeps an RGB photo from being recognized: BLACK, COVERED or BLURRED; None if nothing does.

    The sharpest edge of a photo is a few pixels wide, so neighbors differ there nearly as much as pixels eight apart.
    The limits fire on no photo of eight public datasets (docs/explanation/confidence.md).
    """
    fine = _shrink(image, _FINE).convert("L")
    coarse = _shrink(fine, _COARSE)
    if _measure_edges(coarse, 1) < _LEAST_CONTRAST:
        return BLACK if coarse.getextrema()[1] < _DARK else COVERED  # type: ignore[operator]
    if min(fine.size) < _COARSE:  # too small to tell
        return None
    near, far = (_measure_edges(fine, step) for step in (1, _STEP))
    return BLURRED if near < max(_LEAST_SHARPNESS * far, _LEAST_EDGE) else None


def _shrink(image: Image.Image, side: int) -> Image.Image:
    scale = min(side / max(image.size), 1.0)
    size = (max(round(image.width * scale), 1), max(round(image.height * scale), 1))
    return image.resize(size, Image.Resampling.BOX, reducing_gap=1.0)


def _measure_edges(gray: Image.Image, step: int) -> float:
    """Return the largest difference between pixels that are `step` apart; 0 for a single pixel."""
    levels = np.asarray(gray, np.int16)
    across, down = np.abs(levels[:, step:] - levels[:, :-step]), np.abs(levels[step:] - levels[:-step])
    return float(max(across.max(initial=0), down.max(initial=0)))


PhotoFile = tuple[str, bytes]  # name and content
PhotosLike = Photo | Sequence[Photo]  # photos or folders


def read_photo_file(photo: Photo) -> PhotoFile:
    """Return name and content of a photo; pixels are written as PNG, which is lossless."""
    check_kind(photo)
    if isinstance(photo, bytes):
        if not photo:
            raise BadImage(f"{shorten_photo_name(photo)} cannot be read: {EMPTY_FILE}")
        return "photo", photo
    if isinstance(photo, (Image.Image, np.ndarray)):
        written = io.BytesIO()
        as_rgb(photo).save(written, "PNG")
        return "photo.png", written.getvalue()
    path = Path(photo)
    try:
        return path.name, path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in a path
        reason = getattr(error, "strerror", None) or error
        name = shorten_photo_name(photo)
        raise BadImage(f"{name} cannot be read: {reason}; {A_FILE}", name) from None


def expand_photos(photos: PhotosLike) -> list[Photo]:
    """Return a list of photos; folders are replaced by their photos."""
    one_alone = isinstance(photos, (str, os.PathLike, bytes, Image.Image, np.ndarray)) or hasattr(photos, "read")
    several: list[Any] = [photos] if one_alone or not isinstance(photos, Iterable) else list(photos)
    found: list[Photo] = []
    for one in several:
        is_folder = isinstance(one, (str, os.PathLike)) and os.path.isdir(one)
        found += find_images(one) if is_folder else [one]
    return found


@contextmanager
def photo_paths(photos: PhotosLike) -> Iterator[list[Path]]:
    """Yield the paths of photos; photos in memory are written to temporary files."""
    given = expand_photos(photos)
    for one in given:
        check_kind(one)
    if all(isinstance(one, (str, os.PathLike)) for one in given):
        yield find_images([Path(one) for one in given if isinstance(one, (str, os.PathLike))])
        return
    try:
        with tempfile.TemporaryDirectory(prefix="tfa-photos-") as folder:
            yield find_images([_as_path(photo, number, folder) for number, photo in enumerate(given)])
    except OSError as error:
        raise from_os_error(error) or error from None


def _as_path(photo: Photo, number: int, folder: str) -> Path:
    if isinstance(photo, (str, os.PathLike)):
        return Path(photo)
    name, content = read_photo_file(photo)
    path = Path(folder, f"{number:06d}-{name}")
    path.write_bytes(content)
    return path


MAX_LISTED_PHOTOS = 20  # maximum number of broken photos listed in an error
_ADVICE = "or skip such images with --skip-bad (skip_bad=True)"


@dataclass(frozen=True)
class HashedPhoto:
    """A photo file and its sha256, valid while size and modification time of the file stay the same."""

    path: Path
    digest: str
    stamp: tuple[int, int]  # size in bytes, modification time in nanoseconds

    @classmethod
    def read(cls, path: Path) -> tuple[HashedPhoto, bytes]:
        """Read and hash a file; also return its content."""
        content, stamp = _read_stamped(path)
        return cls(path, hashlib.sha256(content).hexdigest(), stamp), content

    def read_again(self) -> bytes:
        """Read the hashed content; raise BadImage if it changed. Hashes again only if the stamp changed."""
        content, stamp = _read_stamped(self.path)
        if stamp != self.stamp and hashlib.sha256(content).hexdigest() != self.digest:
            raise BadImage(f"{self.path} changed while it was being read")
        return content


def _read_stamped(path: Path) -> tuple[bytes, tuple[int, int]]:
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())  # before reading, so that a change while reading changes the stamp
        return file.read(), (status.st_size, status.st_mtime_ns)


def check_photos(paths: Sequence[Path], decoded_before: Container[str], progress: Progress) -> dict[Path, HashedPhoto]:
    """Hash photos and raise BadImage with all broken ones, before any photo is encoded.

    Photos with a digest in `decoded_before` are known to be good.
    """
    with start_threads(count_cores(), "tfa-check") as pool:
        results = pool.map(lambda path: inspect_photo(path, decoded_before), paths)
        tracked = track_progress(results, len(paths), "checking photos", progress, "images")
        checked = dict(zip(paths, tracked, strict=True))
    refuse_broken({path: result for path, result in checked.items() if isinstance(result, str)}, len(paths))
    return {path: result for path, result in checked.items() if isinstance(result, HashedPhoto)}


def refuse_broken(broken: Mapping[Path, str], count: int) -> None:
    """Raise BadImage with the broken photos of `count` and their reasons, if there are any."""
    if len(broken) == 1:
        [(path, reason)] = broken.items()
        raise BadImage(f"{reason}; fix or remove it, {_ADVICE}", path)
    if broken:
        more = list(broken.values())[:MAX_LISTED_PHOTOS]
        more += [f"… and {len(broken) - MAX_LISTED_PHOTOS:,} more"] if len(broken) > MAX_LISTED_PHOTOS else []
        raise BadImage(
            f"{len(broken):,} of {count:,} photos cannot be used; fix or remove them, {_ADVICE}:", *broken, more=more
        )


def inspect_photo(path: Path, decoded_before: Container[str]) -> HashedPhoto | str:
    """Hash a photo, or return why it is broken.

    A photo with an intact container is not decoded here; encoding finds the remaining errors.
    """
    try:
        photo, content = HashedPhoto.read(path)
        if photo.digest not in decoded_before and not _has_whole_container(content):
            check_whole(content, str(path))
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    except BadImage as error:
        return str(error)
    return photo


def _has_whole_container(content: bytes) -> bool:
    """Return True if headers, checksums and end of a file are intact; if not, decoding may still succeed."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.format in ("JPEG", "MPO"):
                return _has_end(content) and not too_many_scans(content, image.size)
            image.verify()  # checks the checksums of a PNG; no effect for most formats
    except Exception:  # readers of damaged headers may raise anything
        return False
    return True
