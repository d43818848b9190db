"""Study scripts, run in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.cli.conftest import fake_encoder  # noqa: F401


class Outcome(NamedTuple):
    """How a script ended."""

    exit_code: int
    stdout: str
    stderr: str


Script = Callable[..., Outcome]


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Script:
    """`script(main, "--out", path)`: the outcome of a script's main."""
    for name, value in {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}.items():
        monkeypatch.setenv(name, value)

    def run(main: Callable[[list[str]], int], *arguments: object) -> Outcome:
        capsys.readouterr()
        try:
            code = main([str(one) for one in arguments])
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        return Outcome(code, *capsys.readouterr())

    return run
