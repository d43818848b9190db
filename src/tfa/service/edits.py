"""The edits of a served map: each takes the map it may change and is on disk when it returns."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tfa.base.progress import SilentProgress
from tfa.base.tokens import Tokens
from tfa.errors import BadMap, BadSpec, BadTokens
from tfa.maps import EditReport, PlaceMap
from tfa.maps.calibrate import LOST
from tfa.maps.folder import writer
from tfa.maps.lookup import tokens_of
from tfa.maps.place_map import UNSEEN_LIMIT
from tfa.maps.state import DATABASE, MapState, NamedHead
from tfa.maps.state_changes import records_of, with_images
from tfa.photos.positions import Position, position_from_exif, position_from_name
from tfa.photos.token_cache import EncodedImages, TokenCache
from tfa.service.photo_files import discard, store


@dataclass(frozen=True)
class NewPhoto:
    """An upload that was decoded and may be added."""

    name: str  # of the file it is stored under
    content: bytes
    image: Image.Image
    position: Position | None = None


def add_photos(photos: Sequence[NewPhoto]) -> Callable[[PlaceMap], EditReport]:
    """Store the photos in the map's folder and describe them by its frozen head; a photo the map holds is skipped."""

    def change(place_map: PlaceMap) -> EditReport:
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
        if not fresh:
            return EditReport(skipped=skipped)
        added = _add(place_map, fresh)
        return EditReport(added, [], skipped, _advice(place_map))

    return change


def _add(place_map: PlaceMap, fresh: dict[str, NewPhoto]) -> list[int]:
    folder, stored = place_map.path, list[Path]()
    assert folder is not None
    tokens = _encoded([photo.image for photo in fresh.values()], place_map)
    try:
        places: dict[Path, Position | None] = {}
        for digest, photo in fresh.items():
            path = store(folder, photo.name, digest, photo.content)
            stored.append(path)
            places[path] = photo.position or position_from_name(path.name) or position_from_exif(path)
        encoded = EncodedImages(stored, list(fresh), tokens, [])
        records = records_of(encoded, places, first_id=place_map.state.next_id, fitted=False)
        place_map.commit(with_images(place_map.state, tokens, records), writer.write_addition)
    except BaseException:
        named = {Path(record.path) for record in place_map.state.images}
        for path in stored:
            if path.resolve() not in named:  # an image that was removed may still be kept there
                discard(folder, path)
        raise
    return [record.id for record in records]


def _encoded(images: Sequence[Image.Image], place_map: PlaceMap) -> Tokens:
    """Tokens of the photos, encoded one by one: queries are let in between."""
    encoder = place_map.encoder
    found = [encoder.encode([image]) for image in images]
    patches = np.concatenate([patches for patches, _ in found])
    cls = None if found[0][1] is None else np.concatenate([token for _, token in found if token is not None])
    if not np.isfinite(patches).all():
        raise BadTokens(f"{encoder.id} gives tokens that are not finite for one of these photos; leave it out")
    return Tokens(patches, cls, grid=encoder.grid)


def _advice(place_map: PlaceMap) -> list[str]:
    if place_map.unseen_share <= UNSEEN_LIMIT:
        return []
    return [f"{place_map.unseen_share:.0%} of the photos were not seen when the head was fitted; advised: tfa refit"]


def remove_images(ids: Sequence[int]) -> Callable[[PlaceMap], EditReport]:
    return lambda place_map: place_map.remove(list(ids))


def activate(name: str | None) -> Callable[[PlaceMap], str | None]:
    """Let the calibration of that name answer when none is asked for; None lets the map answer without."""

    def change(place_map: PlaceMap) -> str | None:
        if name == "":
            raise BadSpec("name is empty; give the name of a calibration, or null for none")
        chosen = place_map.state.chosen(DATABASE if name is None else name).name
        if chosen != place_map.state.active:
            state = dataclasses.replace(place_map.state, active=chosen, revision=place_map.state.revision + 1)
            place_map.commit(state, writer.commit)
        return None if chosen == DATABASE else chosen

    return change


def install_calibration(head: NamedHead, base: MapState) -> Callable[[PlaceMap], None]:
    """Put in a head that was calibrated on `base`, an earlier state of the map.

    Images that were added meanwhile are described by it now, so that no edit has to wait for a calibration.
    """

    def change(place_map: PlaceMap) -> None:
        state, grown = place_map.state, head
        if state.images[: len(base.images)] != base.images:
            raise BadMap("the map was fitted again while it was calibrated; calibrate it again")
        missing = state.images[len(base.images) :]
        if missing:
            cache, fingerprint = place_map.cache or TokenCache(), state.encoder["fingerprint"]
            tokens = tokens_of(missing, fingerprint, cache, lambda: place_map.encoder, SilentProgress(), LOST)
            grown = dataclasses.replace(head, served=head.served.grown(head.served.rows_of(tokens)))
        facts: dict[str, Any] = {**(head.calibration or {}), "revision": state.revision + 1}
        grown = dataclasses.replace(grown, calibration=facts)
        place_map.commit(state.with_calibration(grown), writer.write_calibration)

    return change
