"""What a service could not write down, said once: a disk that stays full would fill the log, too."""

from __future__ import annotations

from collections.abc import Sequence
from logging import getLogger

log = getLogger("tfa.service")


class Troubles:
    """Of one thing that is kept. Logged when they begin and when they are over; `over` says that."""

    def __init__(self, over: str) -> None:
        self._over, self._there = over, False

    def tell(self, problems: Sequence[str]) -> None:
        """What went wrong with the last attempt to write; nothing if all went well."""
        if problems and not self._there:
            log.warning("%s", problems[0])
        elif self._there and not problems:
            log.warning("%s", self._over)
        self._there = bool(problems)
