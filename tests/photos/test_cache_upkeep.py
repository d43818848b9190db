"""Upkeep of the token cache, and the verb for it."""

import json
import os
import shutil
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from studies.scale.engines import MadeUpPlaces
from tests.fakes import FakeEncoder, random_image
from tfa.cli.app import app
from tfa.core.files import cache_folder
from tfa.errors import BadSpec
from tfa.maps.building.work_folder import WorkFolder
from tfa.photos.token_cache import (
    CachedResults,
    TokenCache,
    UnfinishedBuilds,
    clear_cache,
    list_shelves,
    measure_benchmark,
    measure_unfinished_builds,
    prune_cache,
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Four images under one encoder, in two files of which one was used long ago, and one under another."""
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    made = TokenCache()
    for seed in range(4):
        random_image(seed).save(tmp_path / f"{seed}.png")
    files = [tmp_path / f"{seed}.png" for seed in range(4)]
    made.encode(files[:3], FakeEncoder())
    (old,) = made.folder.rglob("*.safetensors")
    made.encode(files, FakeEncoder())
    os.utime(old, (time.time() - 10 * 86_400,) * 2)
    made.encode(files[:1], FakeEncoder(salt="other"))
    return made


def test_what_the_cache_holds_of_each_encoder(cache):
    first, second = list_shelves(cache)
    assert (first.encoder, first.files, first.images) == ("fake@28", 2, 4)
    assert (second.files, second.images) == (1, 1)
    assert first.bytes > second.bytes > 0
    assert first.fingerprint == FakeEncoder().fingerprint[:32]
    next(cache.folder.rglob("*.safetensors")).write_bytes(b"damaged")
    assert sum(facts.files for facts in list_shelves(cache)) == 3


def test_old_tokens_go_first(cache):
    assert prune_cache(older_than=30).files == 0
    assert prune_cache(older_than=5).files == 1
    assert sum(facts.images for facts in list_shelves(cache)) == 2
    newest = max(cache.folder.rglob("*.safetensors"), key=lambda file: file.stat().st_mtime)
    assert prune_cache(max_bytes=newest.stat().st_size).files == 1
    assert list(cache.folder.rglob("*.safetensors")) == [newest]
    assert prune_cache(max_bytes=0).bytes > 0
    assert list_shelves(cache) == []


def age(folder, days):
    for file in folder.rglob("*.safetensors"):
        os.utime(file, (time.time() - days * 86_400,) * 2)


def test_what_was_used_longest_ago_makes_room_by_itself(cache, tmp_path, monkeypatch):
    age(cache.folder, 2)
    monkeypatch.setenv("TFA_CACHE_LIMIT", "0.000001")  # a kilobyte
    files = [tmp_path / f"{seed}.png" for seed in range(3)]
    cache.encode(files, FakeEncoder())  # used, not written: nothing is deleted
    assert sum(facts.files for facts in list_shelves(cache)) == 3
    random_image(9).save(tmp_path / "9.png")
    cache.encode([tmp_path / "9.png"], FakeEncoder())
    kept = list_shelves(cache)
    assert [(facts.encoder, facts.images) for facts in kept] == [("fake@28", 4)]  # three used now, one written now
    age(cache.folder, 2)
    monkeypatch.setenv("TFA_CACHE_LIMIT", "none")
    random_image(10).save(tmp_path / "10.png")
    cache.encode([tmp_path / "10.png"], FakeEncoder())
    assert sum(facts.images for facts in list_shelves(cache)) == 5


@pytest.mark.parametrize("given", ["many", "-1", "nan", "inf"])
def test_a_limit_that_makes_no_sense_is_refused_before_any_work(cache, monkeypatch, given):
    monkeypatch.setenv("TFA_CACHE_LIMIT", given)
    with pytest.raises(BadSpec, match="number of gigabytes, or none"):
        cache.encode([], FakeEncoder())


def test_pruning_without_a_bound_is_refused(cache):
    for given in ({}, {"older_than": -1.0}, {"max_bytes": -1}):
        with pytest.raises(BadSpec, match="at least one of them"):
            prune_cache(**given)


def test_a_cleared_cache_is_filled_again(cache, tmp_path):
    assert clear_cache().files == 3
    assert list_shelves(cache) == []
    encoder = FakeEncoder()
    cache.encode([tmp_path / "0.png"], encoder)
    assert encoder.encoded == 1


@pytest.fixture
def kept(cache):
    """A mask and a match of the benchmark, of one kilobyte each, and a user's own file beside them."""
    folder = cache.folder.parent
    mask = folder / "masks" / ("ab" * 16) / f"{'0f' * 32}.safetensors"
    match = folder / "matches" / "aliked-lightglue" / f"{'1e' * 32}.json"
    own = folder / "masks" / "mine" / "photo.png"
    for file in (mask, match, own):
        file.parent.mkdir(parents=True)
        file.write_bytes(bytes(1000))
    return mask, match, own


def test_masks_and_matches_of_the_benchmark_are_listed_pruned_and_cleared(cache, kept):
    mask, match, own = kept
    assert measure_benchmark() == [CachedResults("masks", 1, 1000), CachedResults("matches", 1, 1000)]
    shutil.rmtree(cache.folder)
    os.utime(match, (time.time() - 10 * 86_400,) * 2)
    assert prune_cache(older_than=5).to_dict() == {"files": 1, "bytes": 1000}
    assert measure_benchmark() == [CachedResults("masks", 1, 1000)]
    shown = CliRunner().invoke(app, ["cache"]).stdout
    assert "benchmark masks: 1 file, 1.0 kB" in shown
    assert "matches of the benchmark" not in shown
    assert clear_cache().to_dict() == {"files": 1, "bytes": 1000}
    assert (measure_benchmark(), mask.exists(), own.exists()) == ([], False, True)


def test_made_up_vectors_and_unfinished_builds_are_listed_and_cleared(cache):
    folder = cache.folder.parent
    vectors = MadeUpPlaces(folder / "bench-scale", dims=4, block=10)
    vectors.vectors(10)
    build = WorkFolder(cache_folder() / "builds" / ("5a" * 16), "5a" * 32)
    build.write("sample-0", {"rows": np.zeros(2)})
    own = folder / "bench-scale" / "mine.txt"
    own.write_text("a user's own")
    assert measure_benchmark() == [CachedResults("vectors", 1, 160)]
    (build.path / "sample.tfa").mkdir()
    (build.path / "sample.tfa" / "map.json").write_text("{}")
    size = (build.path / "sample-0.safetensors").stat().st_size + 2
    assert measure_unfinished_builds() == UnfinishedBuilds(1, 2, size)
    shown = CliRunner().invoke(app, ["cache"]).stdout
    assert "benchmark vectors: 1 file, 160 bytes" in shown
    assert "1 unfinished build: 2 files" in shown
    shutil.rmtree(cache.folder)
    prune_cache(max_bytes=160)
    prune_cache(older_than=1)
    assert build.read("sample-0") is not None  # not left for long
    left = WorkFolder(cache_folder() / "builds" / ("6b" * 16), "6b" * 32)
    left.write("sample-0", {"rows": np.zeros(2)})
    os.utime(left.path / "sample-0.safetensors", (time.time() - 10 * 86_400,) * 2)
    assert prune_cache(older_than=5).files == 1
    assert not left.path.exists()
    assert clear_cache().to_dict() == {"files": 3, "bytes": 160 + size}
    assert (measure_benchmark(), measure_unfinished_builds(), own.exists()) == ([], UnfinishedBuilds(0, 0, 0), True)
    assert not build.path.exists()


def test_the_verb(cache, kept):
    def told(*words):
        result = CliRunner().invoke(app, ["cache", *words, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    before = told()
    assert before["folder"] == str(cache.folder)
    assert before["bytes"] == sum(encoder["bytes"] for encoder in before["encoders"]) > 0
    assert before["deleted"] is None
    assert [one["kind"] for one in before["benchmark"]] == ["masks", "matches"]
    assert told("--prune", "--older-than", "5")["deleted"]["files"] == 1
    emptied = told("--prune", "--max-size", "0")
    assert (emptied["bytes"], emptied["benchmark"], emptied["deleted"]["files"]) == (0, [], 4)
    assert told("--clear")["encoders"] == []
    for words in (["--prune"], ["--max-size", "1"], ["--prune", "--max-size", "1", "--clear"]):
        assert CliRunner().invoke(app, ["cache", *words]).exit_code == 2
    assert "deleted 0 files" in CliRunner().invoke(app, ["cache", "--clear"]).stdout
