"""Failures to write, logged once: a disk that stays full must not fill the log, too."""

from __future__ import annotations

from collections.abc import Sequence
from logging import getLogger

_log = getLogger("tfa.service")


class LogOnce:
    """Logs the first failure of a repeated write, and its recovery in the words of `recovered`."""

    def __init__(self, recovered: str) -> None:
        self._recovered, self._failing = recovered, False

    def note(self, problems: Sequence[str]) -> None:
        """Take the problems of the last attempt to write; none if it succeeded."""
        if problems and not self._failing:
            _log.warning("%s", problems[0])
        elif self._failing and not problems:
            _log.warning("%s", self._recovered)
        self._failing = bool(problems)
