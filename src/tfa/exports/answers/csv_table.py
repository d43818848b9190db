"""Answers as a table: CSV by RFC 4180 in UTF-8, a row for each photo; what is not known is empty."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfa.base.files import write_text
from tfa.exports.answers.export_context import ExportContext, degrees_of
from tfa.exports.answers.record import ANSWER_COLUMNS, flatten_answer
from tfa.maps import Answer


def write_csv(path: Path, answers: Sequence[Answer], context: ExportContext) -> int:
    """All answers; how many they are."""
    assert context.times is not None
    written = io.StringIO(newline="")
    table = csv.writer(written, lineterminator="\r\n")
    table.writerow(ANSWER_COLUMNS)
    degrees = degrees_of(answers, context.utm)
    for answer, time in zip(answers, context.times, strict=True):
        table.writerow([_cell(value) for value in flatten_answer(answer, time, degrees).values()])
    write_text(path, written.getvalue())
    return len(answers)


def _cell(value: Any) -> Any:
    """Truth in lower case, as other programs write it; None is nothing."""
    return str(value).lower() if isinstance(value, bool) else value
