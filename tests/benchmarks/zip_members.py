"""Zip files with a member replaced, for tests of damaged records."""

from __future__ import annotations

import io
import zipfile


def replace_member(content: bytes, name: str, data: bytes, method: int | None = None) -> bytes:
    """Return the zip file with another content of one member; the others keep theirs."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w") as new:
        for member in old.infolist():
            replaced = member.filename == name
            kind = method if replaced and method is not None else member.compress_type
            new.writestr(member.filename, data if replaced else old.read(member), kind)
    return buffer.getvalue()


def read_member(content: bytes, name: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.read(name)
