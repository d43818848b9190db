"""Uploads as an edit: stored in the map's folder, encoded one by one, added; on disk when it returns."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from tfa.core.tokens import Tokens
from tfa.encoders import Encoder
from tfa.errors import BadTokens
from tfa.maps import PlaceMap
from tfa.photos.find_positions import read_photo_position
from tfa.photos.token_cache import EncodedImages
from tfa.service.photo_files import discard_photo, store
from tfa.types import EditReport, Position


@dataclass(frozen=True)
class NewPhoto:
    """An upload that was decoded and may be added."""

    name: str  # of the file it is stored under
    content: bytes
    image: Image.Image
    position: Position | None = None


def add_photos(photos: Sequence[NewPhoto], place_map: PlaceMap, session: str | None = None) -> EditReport:
    """Store the photos in the map's folder and describe them by its frozen head; a photo the map holds is skipped."""
    known = {record.digest: record.id for record in place_map.images}
    fresh: dict[str, NewPhoto] = {}
    skipped: list[tuple[str, str]] = []
    for photo in photos:
        digest = hashlib.sha256(photo.content).hexdigest()
        if digest in known:
            skipped.append((photo.name, f"the map already holds this photo as image {known[digest]}"))
        elif digest in fresh:
            skipped.append((photo.name, f"it is the same photo as {fresh[digest].name}"))
        else:
            fresh[digest] = photo
    report = _add(place_map, fresh, session) if fresh else EditReport()
    return dataclasses.replace(report, skipped=skipped)


def _add(place_map: PlaceMap, fresh: dict[str, NewPhoto], session: str | None) -> EditReport:
    folder, places = place_map.path, dict[Path, Position | None]()
    assert folder is not None
    tokens = encoded_photos([photo.image for photo in fresh.values()], place_map.encoder)
    try:
        for digest, photo in fresh.items():
            path = store(folder, photo.name, digest, photo.content)
            places[path] = photo.position  # before anything that can fail: what is stored is discarded then
            places[path] = photo.position or read_photo_position(path, path.name)
        return place_map.add_encoded(EncodedImages(list(places), list(fresh), tokens, []), places, session)
    except BaseException:
        named = {Path(record.path) for record in place_map.state.images}
        for path in places:
            if path.resolve() not in named:  # an image that was removed may still be kept there
                discard_photo(folder, path)
        raise


def encoded_photos(images: Sequence[Image.Image], encoder: Encoder) -> Tokens:
    """Tokens of the photos, encoded one by one: queries are let in between."""
    encoded = [encoder.encode([image]) for image in images]
    patches = np.concatenate([patches for patches, _ in encoded])
    cls = None if encoded[0][1] is None else np.concatenate([token for _, token in encoded if token is not None])
    if not np.isfinite(patches).all():
        raise BadTokens(f"{encoder.id} gives tokens that are not finite for one of these photos; leave it out")
    return Tokens(patches, cls, grid=encoder.grid)
