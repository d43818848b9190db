"""The size of the package: the limits are lowered as it shrinks, and never raised without a reason in the commit."""

from __future__ import annotations

from tests.architecture.test_layout import MODULES

MOST_FILES = 200
MOST_LINES = 42_000


def test_the_package_has_no_more_files_than_the_limit():
    assert len(MODULES) <= MOST_FILES


def test_the_package_has_no_more_lines_than_the_limit():
    assert sum(len(file.read_text("utf-8").splitlines()) for file in MODULES) <= MOST_LINES
