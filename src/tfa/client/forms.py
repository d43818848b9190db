"""Photos of a client as files of a form, and answers as hits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tfa.core.config import ONLY_SURE, MinConfidence
from tfa.errors import TfaError
from tfa.photos.images import Photo, PhotoFile, read_photo_file

if TYPE_CHECKING:
    from tfa.maps.records import FrameAnswer, Hits
    from tfa.search.store import Where

_QUERY_BATCH = 16  # photos sent at a time
UPLOAD_BYTES = 100_000_000  # and so many bytes at most


def batches(photos: Iterable[Photo]) -> Iterator[list[PhotoFile | TfaError]]:
    """Photos in pieces that one request can carry; one that cannot be read has its error in its place."""
    piece: list[PhotoFile | TfaError] = []
    size = 0
    for photo in photos:
        file: PhotoFile | TfaError
        try:
            file = read_photo_file(photo)
            more = len(file[1])
        except TfaError as error:
            file, more = error, 0
        if piece and (len(piece) == _QUERY_BATCH or size + more > UPLOAD_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(file)
        size += more
    if piece:
        yield piece


def fields_of(**values: Any) -> dict[str, Any]:
    """Form fields of these values; None is left out, so that the service's defaults hold."""
    return {key: value for key, value in values.items() if value is not None}


def least_fields(min_confidence: MinConfidence) -> dict[str, Any]:
    """Form fields of how doubtful an answer may be."""
    return {"sure": True} if min_confidence == ONLY_SURE else {"min_confidence": min_confidence}


def where_fields(where: Where | None) -> dict[str, str]:
    """Form fields of which images may answer."""
    if where is None:
        return {}
    fields = {"sessions": ",".join(where.sessions)} if where.sessions else {}
    box = where.region
    return fields if box is None else {**fields, "region": f"{box.west},{box.south},{box.east},{box.north}"}


def skipped_of(reply: dict[str, Any]) -> list[tuple[str, str]]:
    """Photos that were left out, and why."""
    return [(one["image"], one["reason"]) for one in reply["skipped"]]


def parse_hits(answer: dict[str, Any]) -> Hits:
    """The hits of one answer, and its place."""
    from tfa.maps.records import Fused, Hit, Hits, Place
    from tfa.photos.positions import Position

    keys = ("id", "image", "score", "confidence", "inliers", "sure")
    hits = [
        Hit(**{key: one[key] for key in keys}, position=one["position"] and Position.from_dict(one["position"]))
        for one in answer["hits"]
    ]
    place = answer.get("place")  # services of earlier versions fuse none
    return Hits(hits, Fused(None if place is None else Place.from_dict(place), answer.get("place_missing")))


def parse_answer(name: str, reply: dict[str, Any]) -> FrameAnswer:
    """The answer to the photo of that name, or why there is none."""
    from tfa.maps.records import FrameAnswer

    if "error" in reply:
        return FrameAnswer(name, [], 0.0, reply["error"])
    hits, told = parse_hits(reply), {key: reply[key] for key in ("sure", "reranked")}
    told |= {"place": hits.place, "place_missing": hits.place_missing}
    return FrameAnswer(name, hits, reply["confidence"], None, reply["lost"], reply["adaptation_photos"], **told)
