"""Photos whose names are not UTF-8: refused before any work, or skipped like others that cannot be used."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC
from tfa.errors import BadImage, NoImages
from tfa.maps import PlaceMap
from tfa.photos.token_cache import TokenCache
from tfa.types import EncoderOptions

ODD = b"caf\xe9.png"


@pytest.fixture
def photos(world, tmp_path):
    """Eight photos, one of them with a name in Latin-1."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for path in world.town:
        shutil.copy(path, folder)
    try:
        shutil.copy(world.more[0], Path(os.fsdecode(os.fsencode(folder) + b"/" + ODD)))
    except OSError:
        pytest.skip("this file system has UTF-8 names alone")
    return folder


def build(photos, cache, encoder, skip_bad):
    options = EncoderOptions(cache=cache, skip_bad=skip_bad)
    return PlaceMap.build(photos, head="paper", encoder=encoder, spec=SPEC, options=options)


def test_such_a_photo_is_refused_before_any_work(photos, tmp_path, campaign):
    encoder = FakeEncoder()
    with pytest.raises(BadImage, match=r"caf\\xe9\.png has a name that is not UTF-8.*rename it.*--skip-bad"):
        build(photos, TokenCache(tmp_path / "cache"), encoder, skip_bad=False)
    assert encoder.encoded == 0
    campaign.count("file names that are not UTF-8", 1)


def test_or_skipped_and_listed(photos, tmp_path, campaign):
    built = build(photos, TokenCache(tmp_path / "cache"), FakeEncoder(), skip_bad=True)
    [(path, reason)] = built.skipped
    assert path == os.fsdecode(os.fsencode(photos) + b"/" + ODD)
    assert "not UTF-8" in reason
    built.save(tmp_path / "town.tfa")
    assert len(PlaceMap.load(tmp_path / "town.tfa", checksum=True)) == 8
    campaign.count("file names that are not UTF-8", 1)


def test_adding_such_a_photo(photos, world, tmp_path, campaign):
    path = world.map("paper", tmp_path)
    odd = os.fsdecode(os.fsencode(photos) + b"/" + ODD)
    with pytest.raises(BadImage, match="not UTF-8"):
        world.opened(path).add([world.more[1], odd])
    report = world.opened(path).add([world.more[1], odd], skip_bad=True)
    assert len(report.added) == 1
    [(_, reason)] = report.skipped
    assert "not UTF-8" in reason
    with pytest.raises(NoImages, match="not UTF-8"):
        world.opened(path).add([odd], skip_bad=True)
    assert len(PlaceMap.load(path, checksum=True)) == 9
    campaign.count("file names that are not UTF-8", 3)


def test_a_query_may_have_any_name(photos, world, tmp_path):
    path = world.map("paper", tmp_path)
    assert len(world.opened(path).query(os.fsdecode(os.fsencode(photos) + b"/" + ODD), k=3)) == 3
