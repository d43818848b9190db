"""Commands of other distributions: listed without an import, imported when they run, missed with a hint."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import typer
from typer.testing import CliRunner

from tfa.cli.app import GROUP, Shell


def root() -> typer.Typer:
    app = typer.Typer(cls=Shell, no_args_is_help=True)

    @app.callback()
    def main() -> None:
        """Do nothing."""

    return app


def installed(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    entries = [EntryPoint(name, value, GROUP) for name, value in values.items()]
    monkeypatch.setattr("tfa.core.plugins.entry_points", lambda group: entries)


def test_the_help_lists_the_benchmark_and_does_not_import_it():
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom tfa.cli.app import app\n"
        "said = CliRunner().invoke(app, ['--help'])\n"
        "assert 'bench ' in said.stdout, said.stdout\n"
        "print(sorted(name for name in sys.modules if name.startswith('tfa_bench')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_its_distribution_a_command_says_how_to_install_it(monkeypatch):
    installed(monkeypatch)
    said = CliRunner().invoke(root(), ["bench", "run", "--dataset", "sped=x"])
    assert said.exit_code == 1
    assert "tfa bench is not installed" in said.stderr
    assert "pip install tfa-bench" in said.stderr
    assert "bench" not in CliRunner().invoke(root(), ["--help"]).stdout


def test_a_plugin_that_is_no_group_of_commands_is_named(monkeypatch):
    installed(monkeypatch, odd="json:loads")
    said = CliRunner().invoke(root(), ["odd"])
    assert said.exit_code == 1
    assert "'odd' of tfa.commands must be a typer.Typer" in said.stderr
