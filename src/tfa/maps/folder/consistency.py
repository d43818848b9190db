"""Whether the files of a map fit each other: image records and rows, galleries and the sides they are compared with.

The header is checked by itself before (`schema`). A shape that fits nothing would be seen at the first query otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfa.core.json_shape import BadShape, boolean, fields, finite_number, integer, list_of, mapping_of, maybe, text
from tfa.maps.state import MapState, NamedHead
from tfa.method.scorer import GLOBAL, ResidualSide
from tfa.types import ImageRecord

RECORD = fields(
    {
        "id": integer(),
        "path": text(),
        "digest": text(),
        "fitted": boolean,
        "position": maybe(mapping_of(finite_number())),
    },
    {"session": text()},
)
RECORDS = list_of(RECORD, 1)


def check_records(records: Any, where: str, rows: int) -> None:
    """One image list, as it was read from JSON; `rows` is what the header says of its segment."""
    RECORDS(records, where)
    if len(records) != rows:
        raise BadShape(f"{where} has {len(records)} images, its segment {rows}")


def check_state(state: MapState) -> None:
    """Raises BadShape."""
    images, channels = len(state.images), state.head.scorer.sides[0].channels
    _check_ids(state.images, state.next_id)
    if state.compact is not None:
        _same("compact tokens", len(state.compact), images)
        _same("channels of the compaction", len(state.compact.compaction.mean), channels)
    if state.spaces is not None:
        for place, space in enumerate(state.spaces.spaces):
            _same(f"coordinates of space {place}", len(space), images)
            _same(f"channels of space {place}", space.side.channels, channels)
    if state.vocabularies is not None:
        _same("channels of the words", state.vocabularies.shape[2], channels)
    for head in state.heads:
        _check_head(head, images, channels)


def _check_ids(images: Sequence[ImageRecord], next_id: int) -> None:
    ids = [record.id for record in images]
    if ids != sorted({*ids}) or any(one >= next_id for one in ids):
        raise BadShape(f"ids of images are given twice, out of order, or not below next_id, {next_id}")
    fitted = [record.fitted for record in images]
    if fitted != sorted(fitted, reverse=True):
        raise BadShape("images that the head was fitted on do not come first")


def _check_head(head: NamedHead, images: int, channels: int) -> None:
    scorer = head.stored.scorer
    _same(f"biases of head {head.name}", scorer.bias.shape, (images,))
    reduced = head.stored.reduced
    if reduced is not None:
        _same(f"reduced rows of head {head.name}", len(reduced), images)
        _same(f"width of the reduction of head {head.name}", reduced.reduction.width, sum(scorer.rows.widths))
    for index, term in enumerate(scorer.terms):
        where = f"head {head.name}, term {index}"
        _same(f"rows of {where}", len(term.gallery), images)
        if term.side == GLOBAL:
            continue
        side = scorer.sides[term.side]
        _same(f"channels of {where}", side.channels, channels)
        if isinstance(side, ResidualSide):
            _same(f"width of {where}", term.gallery.width, side.width if term.gamma is None else len(side.eigenvalues))


def _same(what: str, actual: Any, expected: Any) -> None:
    if actual != expected:
        raise BadShape(f"{what}: {actual}, must be {expected}")
