"""Commands in messages, as a shell takes them: a name with a blank or a quote in it can be copied as it stands."""

from __future__ import annotations

import os
import shlex


def format_command(*words: str | os.PathLike[str] | int) -> str:
    """`tfa query 'my town.tfa' PHOTO` of its words."""
    return shlex.join(os.fspath(word) if isinstance(word, (str, os.PathLike)) else str(word) for word in words)
