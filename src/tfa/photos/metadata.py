"""Photo metadata: position (drone XMP before EXIF GPS) and time (EXIF)."""

from __future__ import annotations

import io
import math
import struct
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from tfa.core.files import parse_xml
from tfa.photos.positions import parse_number
from tfa.types import POSITION_LIMITS, Position

XMP_BYTES = 1_000_000  # maximum size; drones write a few thousand bytes
_PNG = b"\x89PNG\r\n\x1a\n"  # the first bytes of a PNG
_EXIF_IFD, _GPS_IFD, _XMP_TAG = 0x8769, 0x8825, 700
_LAT_REF, _LAT, _LON_REF, _LON, _ALT_REF, _ALT, _DIRECTION = 1, 2, 3, 4, 5, 6, 17  # tags inside the GPS directory
_ORIGINAL, _SUBSECONDS, _OFFSET = 0x9003, 0x9291, 0x9011  # DateTimeOriginal, its fraction and UTC offset
# XMP names used by drones, preferred name first; some misspell the longitude. RelativeAltitude is the height above the
# take-off point and is ignored.
XMP_NAMES = {
    "lat": ("GpsLatitude",),
    "lon": ("GpsLongitude", "GpsLongtitude"),
    "alt": ("AbsoluteAltitude",),
    "heading": ("GimbalYawDegree", "FlightYawDegree"),  # camera before aircraft
}


@dataclass(frozen=True)
class PhotoTime:
    """Time at which a photo was taken."""

    utc: float  # seconds since 1970
    zoned: bool  # whether the photo has a UTC offset; otherwise UTC is assumed


def read_embedded_position(photo: Path | bytes) -> Position | None:
    """Read the position from photo metadata, each value from XMP before EXIF; None without one.

    Latitude and longitude come from the same source. Zero for both means no GPS fix, so no position.
    """
    exif, xmp = _read(photo)
    drone, gps = _read_xmp(xmp), _read_gps(exif.get(_GPS_IFD, {}))
    pair = next((one for one in (drone, gps) if one.get("lat") or one.get("lon")), None)
    if pair is None:
        return None
    more = {name: drone.get(name, gps.get(name)) for name in ("alt", "heading")}
    return Position(lat=pair["lat"], lon=pair["lon"], **more)


def read_photo_time(photo: Path) -> PhotoTime | None:
    """Read the time from EXIF DateTimeOriginal with its fraction and UTC offset; None without one."""
    own = _read(photo)[0].get(_EXIF_IFD, {})
    try:
        taken = datetime.strptime(_text(own[_ORIGINAL])[:19], "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC)
        fraction = _text(own.get(_SUBSECONDS, ""))
        seconds = taken.timestamp() + (float(f"0.{fraction}") if fraction.isdecimal() else 0.0)
        offset = _offset(_text(own.get(_OFFSET, "")))
        return PhotoTime(seconds - (offset or 0.0), offset is not None)
    except (KeyError, ValueError, OverflowError):  # missing, or never set: 0000:00:00
        return None


def _offset(text: str) -> float | None:
    """Convert an offset such as +02:00 to seconds; None if it is missing or invalid."""
    try:
        offset = datetime.strptime(text, "%z").utcoffset()
    except ValueError:
        return None
    return None if offset is None else offset.total_seconds()


def _read(photo: Path | bytes) -> tuple[dict[int, dict[int, Any]], bytes]:
    """Return EXIF directories and the XMP packet, both empty on errors: bad metadata never rejects a photo."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of damaged EXIF, which counts as missing here
            with (
                io.BytesIO(photo) if isinstance(photo, bytes) else open(photo, "rb") as file,
                Image.open(_skip_png_pixels(file)) as image,
            ):
                exif = Image.Image.getexif(image)  # PngImageFile.getexif would decode the pixels
                packet = image.info.get("xmp") or image.info.get("XML:com.adobe.xmp") or exif.get(_XMP_TAG) or b""
                directories = {number: dict(exif.get_ifd(number)) for number in (_EXIF_IFD, _GPS_IFD)}
        return directories, packet.encode() if isinstance(packet, str) else bytes(packet)
    except Exception:  # Pillow may raise anything for damaged files
        return {}, b""


def _skip_png_pixels(file: BinaryIO) -> BinaryIO:
    """Return a PNG without its pixels, and other files unchanged: Pillow decodes a PNG to read later chunks."""
    kept = [file.read(len(_PNG))]
    if kept != [_PNG]:
        file.seek(0)
        return file
    while len(start := file.read(8)) == 8:
        length, kind = struct.unpack(">I4s", start)
        if kind in (b"IDAT", b"fdAT"):
            file.seek(length + 4, io.SEEK_CUR)  # the checksum has four bytes
        else:
            kept += [start, file.read(length + 4)]
    return io.BytesIO(b"".join(kept))


def _read_xmp(packet: bytes) -> dict[str, float]:
    """Read position values from drone XMP attributes or elements; latitude and longitude both or neither."""
    if not packet or len(packet) > XMP_BYTES:
        return {}
    try:
        root = parse_xml(packet.strip(b"\0 \r\n\t"))
    except ValueError:
        return {}
    texts: dict[str, str] = {}
    for element in root.iter():
        texts |= {element.tag: element.text or "", **element.attrib}
    values: dict[str, float] = {}
    for name, spellings in XMP_NAMES.items():
        numbers = (parse_number(texts[one].strip()) for one in spellings if one in texts)
        number = next((one for one in numbers if one is not None and abs(one) <= POSITION_LIMITS[name][0]), None)
        if number is not None:
            values[name] = number
    return _plausible(values)


def _read_gps(gps: Mapping[int, Any]) -> dict[str, float]:
    """Read position values from the EXIF GPS directory; latitude and longitude both or neither."""
    values: dict[str, float] = {}
    readers = {
        "lat": lambda: _degrees(gps[_LAT], gps[_LAT_REF], "NS"),
        "lon": lambda: _degrees(gps[_LON], gps[_LON_REF], "EW"),
        "alt": lambda: float(gps[_ALT]) * (-1 if gps.get(_ALT_REF, b"\0") in (b"\1", 1) else 1),  # 1: below sea level
        "heading": lambda: float(gps[_DIRECTION]),
    }
    for name, read in readers.items():
        try:
            number = read()
        except Exception:  # cameras write rationals without denominators, text for numbers and more
            continue
        if math.isfinite(number) and abs(number) <= POSITION_LIMITS[name][0]:
            values[name] = number
    return _plausible(values)


def _plausible(values: dict[str, float]) -> dict[str, float]:
    """Drop a latitude without longitude and vice versa; wrap the heading to 0–360."""
    if "heading" in values:
        values["heading"] %= 360.0
    if "lat" in values and "lon" in values:
        return values
    return {name: value for name, value in values.items() if name not in ("lat", "lon")}


def _degrees(parts: Any, reference: str | bytes, signs: str) -> float:
    """Convert degrees, minutes, seconds and N, S, E or W to a signed number; raise ValueError if invalid."""
    letter = _text(reference).upper()
    # Pillow returns a tuple, or a bare number if there is only one; a rational with denominator 0 becomes nan.
    values = [float(part) for part in (parts if isinstance(parts, tuple) else (parts,))]
    if letter not in tuple(signs) or not 1 <= len(values) <= 3 or not all(value >= 0 for value in values):
        raise ValueError(f"{parts} {reference!r} is not an angle")
    angle = sum(value / 60**power for power, value in enumerate(values))
    return -angle if letter == signs[1] else angle


def _text(value: str | bytes) -> str:
    text = value.decode("ascii") if isinstance(value, bytes) else value
    return text.strip("\0 ")
