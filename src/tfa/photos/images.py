"""Photos of any kind as RGB pixels: paths, bytes, PIL images and arrays.

Finds photos in folders, decodes them upright, refuses broken or hostile files, and writes photos from memory to
files.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import reprlib
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from tfa.core.arrays import count_cores
from tfa.core.progress import Progress, track_progress
from tfa.errors import BadImage, BadSpec, NoImages, from_os_error
from tfa.photos.recordings.recording import BAGS, VIDEOS

if TYPE_CHECKING:
    from numpy.typing import NDArray


# --- untrusted ------------------------------------------------------------------------------------

# What cameras, phones and screens write. Pillow reads many more, whose decoders fewer people have attacked.
EXTENSIONS = {
    "JPEG": ".jpg",
    "MPO": ".jpg",
    "PNG": ".png",
    "WEBP": ".webp",
    "TIFF": ".tif",
    "BMP": ".bmp",
    "GIF": ".gif",
}
_ALLOWED_FORMATS = "JPEG, PNG, WebP, TIFF, BMP or GIF"


class UnknownFormat(BadImage):
    """A file that is no photo, or of a format that is not taken from strangers."""


class TooManyPixels(BadImage):
    """A photo that would take more memory than one may."""


def decode_untrusted(content: bytes, name: str, most_pixels: int) -> tuple[Image.Image, str]:
    """The photo upright and in RGB, and Pillow's name of its format; pixels are counted before they are decoded."""
    kind = _format(content, name, most_pixels)
    try:
        return as_rgb(content, name), kind
    except BadImage as error:
        raise BadImage(f"{error}; it may be truncated, send the whole file", name) from None


def _format(content: bytes, name: str, most_pixels: int) -> str:
    """From the header alone."""
    image_extensions()  # Pillow knows its formats by name only once all of them are registered
    formats = [kind for kind in EXTENSIONS if kind in Image.OPEN]  # the reader of JPEG recognises MPO
    try:
        with Image.open(io.BytesIO(content), formats=formats) as image:
            (width, height), kind = image.size, str(image.format)
    except UnidentifiedImageError:
        raise UnknownFormat(
            f"{name} is no whole photo of a kind this service reads; send {_ALLOWED_FORMATS}", name
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many(name, "far", most_pixels) from None
    except MemoryError:
        raise
    except Exception:  # decoders of damaged headers raise whatever they stumble on
        raise BadImage(f"{name} is damaged: its header cannot be read; send the whole file", name) from None
    if width * height > most_pixels:
        raise _too_many(name, f"{width} × {height},", most_pixels)
    return kind


def _too_many(name: str, size: str, most_pixels: int) -> TooManyPixels:
    allowed = f"more than the {most_pixels:,} allowed"
    return TooManyPixels(f"{name} has too many pixels: {size} {allowed}; send a smaller copy", name)


# --- photo source ---------------------------------------------------------------------------------

Source = str | os.PathLike[str]
Photo = Source | bytes | Image.Image | np.ndarray[Any, np.dtype[np.uint8]]  # an array is H×W×3 in RGB

ALLOWED_PHOTOS = "a path, the bytes of an image file, a PIL image, or a uint8 array of height × width × 3 in RGB"
A_FILE = "give the path of an image file"
EMPTY_FILE = "it is not an image: it has no bytes; give the whole file"
_LONGEST_NAME = 200  # letters of a name that an error quotes


def name_photo(photo: Photo) -> str:
    """What an answer or an error calls a photo."""
    if isinstance(photo, bytes):
        return "bytes"
    if isinstance(photo, Image.Image):
        return str(getattr(photo, "filename", "")) or "PIL image"
    if isinstance(photo, np.ndarray):
        return "array"
    return os.fspath(photo)


def shorten_photo_name(photo: Photo) -> str:
    """The same for an error: what was no path at all, such as a picture in base64, may be very long."""
    name = name_photo(photo)
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}… ({len(name):,} letters)"


def check_kind(photo: object) -> None:
    """Refuse what is no photo, before it is looked into."""
    if isinstance(photo, np.ndarray):
        check_array(photo)
    elif not isinstance(photo, (str, os.PathLike, bytes, Image.Image)):
        kind = type(photo).__name__
        raise BadSpec(f"a photo must be {ALLOWED_PHOTOS}, got {kind} {reprlib.repr(photo)}; {_suggest_instead(photo)}")


def check_array(array: NDArray[Any]) -> None:
    """Refuse pixels that would have to be guessed at, and say how they become a photo."""
    shape = " × ".join(map(str, array.shape)) or "no axes"
    advice = None
    if array.ndim == 2:
        advice = "grey becomes RGB by numpy.repeat(array[..., None], 3, axis=2)"
    elif array.ndim == 4:
        advice = "give the photos of a batch one by one, or all of them to query_many"
    elif array.ndim != 3:
        advice = "a photo has three axes"
    elif array.shape[0] == 3 != array.shape[2]:
        advice = "colours come last: array.transpose(1, 2, 0)"
    elif array.shape[2] == 4:
        advice = "leave out alpha: array[..., :3]"
    elif array.shape[2] == 1:
        advice = "grey becomes RGB by numpy.repeat(array, 3, axis=2)"
    elif array.shape[2] != 3:
        advice = "three colours come last"
    elif not array.size:
        advice = "it has no pixels"
    elif array.dtype != np.uint8:
        floats = np.issubdtype(array.dtype, np.floating)
        scaled = "of values from 0 to 1: (array * 255).round().astype('uint8')"
        advice = scaled if floats else "of values from 0 to 255: array.astype('uint8')"
    if advice is not None:
        raise BadSpec(f"a photo must be {ALLOWED_PHOTOS}, got an array of {array.dtype}, {shape}; {advice}")


def _suggest_instead(photo: object) -> str:
    """What to do with something that is nearly a photo."""
    if isinstance(photo, (bytearray, memoryview)):
        return "give bytes(…) of it"
    if hasattr(photo, "read"):
        return "give what it reads: file.read()"
    if isinstance(photo, (list, tuple)):
        return "give several photos to query_many, one by one"
    if hasattr(photo, "__array__"):
        return "give numpy.asarray(…) of it, colours last"
    return "give one of these"


# --- jpeg scans -----------------------------------------------------------------------------------

MOST_SCANS = 100  # a progressive photo has about ten
_SOI, _EOI, _SOS = b"\xff\xd8", 0xD9, 0xDA
# A marker within a scan: 0xFF of the picture itself is followed by zero, restarts (0xD0 to 0xD7) belong to the scan.
_MARKER = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])")
_ALONE = {0x01, *range(0xD0, 0xD9)}  # markers without a length


def too_many_scans(content: bytes) -> int:
    """How many scans a JPEG has, if they are more than allowed; 0 for every other file.

    Counting stops far above what is allowed: a file of scans alone would take long otherwise.
    """
    # Metadata and what cameras append may hold these two bytes by chance, so this is never less than the scans.
    if not content.startswith(_SOI) or content.count(b"\xff\xda") <= MOST_SCANS:
        return 0
    scans = sum(kind == _SOS for kind, _ in _markers(content))
    return scans if scans > MOST_SCANS else 0


def _has_end(content: bytes) -> bool:
    """Tell whether a JPEG has the marker that ends its first picture; one in a preview does not count."""
    start = next((place for kind, place in _markers(content) if kind == _SOS), None)
    return start is not None and content.find(bytes([0xFF, _EOI]), start) >= 0


def _markers(content: bytes) -> Iterator[tuple[int, int]]:
    """Kind and end of each marker of a JPEG's first picture; a preview and a second picture are left out."""
    place = len(_SOI)
    while (marker := _MARKER.search(content, place)) is not None:
        kind, place = marker[1][0], marker.end()
        yield kind, place
        if kind == _EOI:
            return
        if kind not in _ALONE:
            place += int.from_bytes(content[place : place + 2], "big")


# --- images ---------------------------------------------------------------------------------------

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


def check_whole(photo: Photo, name: str | None = None) -> None:
    """Refuse a photo that `as_rgb` would refuse. A JPEG is decoded smaller, which reads all of it but is quicker."""

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


# --- as files -------------------------------------------------------------------------------------

PhotoFile = tuple[str, bytes]  # name and content
PhotosLike = Photo | Sequence[Photo]  # one photo, several, or a folder of them


def read_photo_file(photo: Photo) -> PhotoFile:
    """Name and content of a photo; pixels are written as PNG, which loses nothing."""
    check_kind(photo)
    if isinstance(photo, bytes):
        if not photo:
            raise BadImage(f"{shorten_photo_name(photo)} cannot be sent: {EMPTY_FILE}")
        return "photo", photo
    if isinstance(photo, (Image.Image, np.ndarray)):
        written = io.BytesIO()
        as_rgb(photo).save(written, "PNG")
        return "photo.png", written.getvalue()
    path = Path(photo)
    try:
        return path.name, path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: no path has a zero byte in it
        reason = getattr(error, "strerror", None) or error
        name = shorten_photo_name(photo)
        raise BadImage(f"{name} cannot be read: {reason}; {A_FILE}", name) from None


def expand_photos(photos: PhotosLike) -> list[Photo]:
    """Several photos one by one: a photo is a list of one, a folder is the photos in it."""
    one_alone = isinstance(photos, (str, os.PathLike, bytes, Image.Image, np.ndarray)) or hasattr(photos, "read")
    several: list[Any] = [photos] if one_alone or not isinstance(photos, Iterable) else list(photos)
    found: list[Photo] = []
    for one in several:
        is_folder = isinstance(one, (str, os.PathLike)) and os.path.isdir(one)
        found += find_images(one) if is_folder else [one]
    return found


@contextmanager
def photo_paths(photos: PhotosLike) -> Iterator[list[Path]]:
    """Their paths; of photos in memory those of files that are there as long as the context is."""
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


# --- check ----------------------------------------------------------------------------------------

MAX_LISTED_PHOTOS = 20  # broken photos that an error lists
_ADVICE = "or use --skip-bad (skip_bad=True) to leave such images out"


@dataclass(frozen=True)
class HashedPhoto:
    """A photo file and its sha256, which holds as long as the file's size and time stay the same."""

    path: Path
    digest: str
    stamp: tuple[int, int]  # size in bytes, time of the last change in nanoseconds

    @classmethod
    def read(cls, path: Path) -> tuple[HashedPhoto, bytes]:
        """Read and hash a file; also return its content."""
        content, stamp = _read_stamped(path)
        return cls(path, hashlib.sha256(content).hexdigest(), stamp), content

    def read_again(self) -> bytes:
        """Read the content that was hashed; it is hashed again only if the file looks changed."""
        content, stamp = _read_stamped(self.path)
        if stamp != self.stamp and hashlib.sha256(content).hexdigest() != self.digest:
            raise BadImage(f"{self.path} changed while it was being read")
        return content


def _read_stamped(path: Path) -> tuple[bytes, tuple[int, int]]:
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())  # before the content: a change while it is read changes the stamp, too
        return file.read(), (status.st_size, status.st_mtime_ns)


def check_photos(paths: Sequence[Path], decoded_before: Container[str], progress: Progress) -> dict[Path, HashedPhoto]:
    """Hash photos, and refuse them if some are broken: all are named before any is encoded.

    Those whose digest is in `decoded_before` were decoded before.
    """
    with ThreadPoolExecutor(count_cores(), thread_name_prefix="tfa-check") as pool:
        results = pool.map(lambda path: inspect_photo(path, decoded_before), paths)
        tracked = track_progress(results, len(paths), "looking at photos", progress, "images")
        checked = dict(zip(paths, tracked, strict=True))
    refuse_broken({path: result for path, result in checked.items() if isinstance(result, str)}, len(paths))
    return {path: result for path, result in checked.items() if isinstance(result, HashedPhoto)}


def refuse_broken(broken: Mapping[Path, str], count: int) -> None:
    """Raise an error that names the broken photos of `count`; each value says why a photo is broken."""
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
    """Hash a photo, or say in a sentence why it is broken.

    A photo whose container is whole is not decoded here: encoding decodes it, and finds what is left to find.
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
    """Tell whether a file is whole by its headers, checksums and end; if not, decoding may still succeed."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.format in ("JPEG", "MPO"):
                return _has_end(content) and not too_many_scans(content)
            image.verify()  # checksums of a PNG; nothing for formats that have none
    except Exception:  # readers of damaged headers raise whatever they stumble on
        return False
    return True
