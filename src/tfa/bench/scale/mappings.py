"""What a process holds in memory and in temporary files, mapping by mapping, as Linux tells it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tfa.core.arrays import SPILL_PREFIX

SMAPS = Path("/proc/self/smaps")
_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)")
_FACT = re.compile(r"(Size|Rss): +(\d+) kB")


@dataclass(frozen=True)
class Mapping:
    """A piece of a process's memory; `file` is what lies below it, if anything does."""

    file: str
    size: int = 0  # bytes
    resident: int = 0

    @property
    def spilled(self) -> bool:
        """Is it an array in a temporary file of ours?"""
        return Path(self.file).parent.name.startswith(SPILL_PREFIX)


def mappings(text: str | None = None) -> list[Mapping]:
    """Of this process now; none where the system does not say."""
    if text is None:
        text = SMAPS.read_text("utf-8", "replace") if SMAPS.exists() else ""
    found: list[Mapping] = []
    for line in text.splitlines():
        mapping, fact = _MAPPING.fullmatch(line), _FACT.match(line)
        if mapping is not None:
            found.append(Mapping(mapping[1]))
        elif fact is not None and found:
            last, size = found[-1], 1024 * int(fact[2])
            found[-1] = Mapping(last.file, *((size, last.resident) if fact[1] == "Size" else (last.size, size)))
    return found


def resident_beside(file: Path) -> int:
    """Bytes of this process in memory, pages of files among them, but for those of one file."""
    return sum(one.resident for one in mappings() if one.file != str(file.resolve()))


def spilled_bytes() -> int:
    """Bytes of arrays that this process keeps in temporary files."""
    return sum(one.size for one in mappings() if one.spilled)
