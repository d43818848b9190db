"""Photos on disk: uploads kept in a folder of the map, and small copies of the map's own photos for looking at."""

from __future__ import annotations

import contextlib
import hashlib
import io
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from tfa.core.files import sync_folder, write_atomically
from tfa.errors import BadImage
from tfa.photos.images import as_rgb
from tfa.service.problems import Refused
from tfa.types import ImageRecord

UPLOADS = "photos"  # folder of uploads in a map
SMALLEST, LARGEST = 32, 2048  # pixels of the longer side of a copy
_COPY_BYTES = 64_000_000  # of copies in memory
_QUALITY = 85


def write_upload(map_folder: Path, name: str, digest: str, content: bytes) -> Path:
    """Write a photo to the map's own folder, under its content and its name; it is safe on disk on return."""
    folder = map_folder / UPLOADS / digest[:16]
    path = folder / name
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        write_atomically(path, lambda temporary: temporary.write_bytes(content))
        for parent in (folder.parent, map_folder):
            sync_folder(parent)
    return path


def discard_upload(map_folder: Path, path: Path) -> None:
    """Take back what `write_upload` wrote for an edit that did not come about."""
    if path.is_relative_to(map_folder / UPLOADS):
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the same content may be there under another name
            path.parent.rmdir()


def read_map_photo(record: ImageRecord, map_folder: Path | None) -> bytes:
    """Read the file a map image was made of. It must be that file still: any other content there is not given out."""
    path = Path(record.path)
    places = [path]
    if map_folder is not None and path.parent.parent.name == UPLOADS:  # an upload moves with its map
        places.append(map_folder / UPLOADS / path.parent.name / path.name)
    for place in places:
        try:
            content = place.read_bytes() if place.is_file() else b""
        except OSError:
            continue
        if hashlib.sha256(content).hexdigest() == record.digest:
            return content
    raise Refused(
        404,
        f"the photo of image {record.id} ({path.name}) is no longer where it was added from; the map answers without",
    )


class Copies:
    """JPEG copies of the map's photos, the last used of them in memory."""

    def __init__(self, max_bytes: int = _COPY_BYTES) -> None:
        self._lock = threading.Lock()
        self._made: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._bytes, self._max_bytes = 0, max_bytes

    def make(self, record: ImageRecord, photo: Callable[[ImageRecord], bytes], size: int) -> bytes:
        """A JPEG whose longer side has at most `size` pixels; `photo` gives the file of an image."""
        key = (record.digest, min(max(size, SMALLEST), LARGEST))
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return self._made[key]
        try:
            picture = as_rgb(photo(record))
        except BadImage:
            raise Refused(404, f"the photo of image {record.id} cannot be opened any more") from None
        picture.thumbnail((key[1], key[1]), Image.Resampling.LANCZOS)
        written = io.BytesIO()
        picture.save(written, "JPEG", quality=_QUALITY)  # pixels alone: no EXIF, no position of the photographer
        self._keep(key, written.getvalue())
        return written.getvalue()

    def _keep(self, key: tuple[str, int], content: bytes) -> None:
        with self._lock:
            self._bytes += len(content) - len(self._made.pop(key, b""))
            self._made[key] = content
            while self._bytes > self._max_bytes and len(self._made) > 1:
                self._bytes -= len(self._made.popitem(last=False)[1])
