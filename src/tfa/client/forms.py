"""Photos of a client as files of a form, and answers as hits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tfa.errors import TfaError
from tfa.photos.images import Photo, PhotoFile, read_photo_file
from tfa.types import Answer, QueryOptions

if TYPE_CHECKING:
    from tfa.types import Answer

_ANSWER_FIELDS = ("confidence", "sure", "reranked", "place", "place_missing", "calibration", "lost")
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


def query_fields(**options: Any) -> dict[str, Any]:
    """Form fields of the options of a query that differ from the defaults."""
    chosen, default = QueryOptions(**options).to_dict(), QueryOptions().to_dict()
    fields = {name: value for name, value in chosen.items() if value != default[name]}
    joined = {name: ",".join(map(str, value)) for name, value in fields.items() if isinstance(value, list)}
    return {**fields, **joined}


def skipped_of(reply: dict[str, Any]) -> list[tuple[str, str]]:
    """Photos that were left out, and why."""
    return [(one["image"], one["reason"]) for one in reply["skipped"]]


def parse_answer(name: str, reply: dict[str, Any]) -> Answer:
    """The answer to the photo of that name, or why there is none."""
    if "error" in reply:
        return Answer(query=name, error=reply["error"])
    fields = {field: reply[field] for field in _ANSWER_FIELDS if field in reply}
    hits = [{key: value for key, value in hit.items() if key != "image_url"} for hit in reply["hits"]]
    adapted = None if reply["camera"] is None else reply["adaptation_photos"]
    return Answer.from_dict({**fields, "query": name, "hits": hits, "adaptation_photos": adapted})
