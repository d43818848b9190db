"""Suggested commands can be copied into a shell, for any map name."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tfa.core.text import format_command
from tfa.errors import BadMap
from tfa.maps import PlaceMap


@pytest.mark.parametrize("name", ["town.tfa", "my town.tfa", "it's.tfa", "$HOME;rm.tfa", 'a\'b "c".tfa'])
def test_a_command_is_read_back_as_its_words(name):
    words = ["tfa", "query", name, "PHOTO", "--calibration", "none"]
    assert shlex.split(format_command("tfa", "query", Path(name), *words[3:])) == words


def test_an_error_quotes_the_map_it_names(tmp_path):
    with pytest.raises(BadMap, match=r"tfa build PHOTOS --out '.*/my town\.tfa'$"):
        PlaceMap.load(tmp_path / "my town.tfa")
