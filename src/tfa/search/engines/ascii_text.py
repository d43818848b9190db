"""Names as the text of every engine can hold them: file names may have NUL or half a surrogate."""

from __future__ import annotations

import json


def ascii_text(value: str | None) -> str | None:
    """As JSON writes it: equal texts stay equal, different ones different."""
    return None if value is None else json.dumps(value)
