"""Finding a browser, and the message without one."""

from __future__ import annotations

import sys

from tests.browser import find_browser as finding


def test_the_browser_that_is_named_counts(monkeypatch, tmp_path):
    named = tmp_path / "my-chromium"
    named.write_text("#!/bin/sh\n")
    named.chmod(0o755)
    monkeypatch.setenv(finding.VARIABLE, str(named))
    assert finding.find_browser() == str(named)
    monkeypatch.setenv(finding.VARIABLE, str(tmp_path / "absent"))
    assert finding.find_browser() is None


def test_without_a_browser_it_is_said_what_to_do(monkeypatch, capsys):
    monkeypatch.setenv(finding.VARIABLE, "no-such-browser")
    monkeypatch.setattr(finding, "install", lambda: "apt-get failed: no network")
    monkeypatch.setattr(sys, "argv", ["find_browser", "--install"])
    finding.main()
    told = capsys.readouterr().out
    assert "the tests of the page will be skipped; install chromium" in told
    assert "no network" in told


def test_a_browser_that_is_there_is_told(monkeypatch, capsys):
    monkeypatch.setenv(finding.VARIABLE, sys.executable)
    monkeypatch.setattr(finding, "install", lambda: 1 / 0)  # nothing to install
    monkeypatch.setattr(sys, "argv", ["find_browser", "--install"])
    finding.main()
    assert capsys.readouterr().out == f"the tests of the page use {sys.executable}\n"
