"""Bad days of a sharded build: killed workers and drivers, damaged files, full disks, two builders."""

import os
import signal
import subprocess
import sys

import pytest

from tests.maps.building.builders import (
    AlwaysDyingEncoder,
    DyingEncoder,
    FullDiskEncoder,
    HeldEncoder,
    Published,
    build,
    counted,
    hold,
    same,
)
from tests.waiting import wait_until
from tfa.core import files
from tfa.errors import BadSpec, DiskFull, OutOfResources, StoreConflict, TfaError
from tfa.maps.building import Sharding, list_photos
from tfa.maps.building.executors import ProcessExecutor
from tfa.maps.building.passes import Describe
from tfa.maps.building.work_folder import WorkFolder
from tfa.maps.store.publish import Publisher
from tfa.maps.store.versions import choose_sample
from tfa.search.store import open_map_store

DRIVER = """
import sys
from tests.maps.building.builders import HeldEncoder, build
from tfa.maps.building.executors import ProcessExecutor
if __name__ == "__main__":
    with ProcessExecutor(2) as pool:
        build(sys.argv[1], sys.argv[2], encoder=HeldEncoder, executor=pool, work=sys.argv[3])
"""


@pytest.mark.kill
def test_a_killed_worker_is_replaced_and_every_image_is_there_once(fleet, url, encoded, tmp_path):
    with ProcessExecutor(2) as pool:
        build(fleet, url, encoder=DyingEncoder, executor=pool)
    assert (encoded / "died").exists()
    found = Published(url)
    assert found.ids.tolist() == list(range(75))
    build(fleet, f"sqlite://{tmp_path}/plain.db/places")
    same(found, Published(f"sqlite://{tmp_path}/plain.db/places"))


@pytest.mark.kill
def test_workers_that_die_again_and_again_end_the_build_with_a_sentence(fleet, url, encoded):
    with ProcessExecutor(1) as pool, pytest.raises(OutOfResources, match=r"lower build\.workers"):
        build(fleet, url, encoder=AlwaysDyingEncoder, executor=pool)


@pytest.mark.kill
def test_a_killed_driver_is_followed_by_a_run_that_repeats_only_what_was_under_way(fleet, url, encoded, tmp_path):
    script, work = tmp_path / "driver.py", tmp_path / "work"
    script.write_text(DRIVER)
    hold(encoded, work)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    driver = subprocess.Popen(
        [sys.executable, str(script), str(fleet), url, str(work)], env=environment, start_new_session=True
    )
    try:
        wait_until(lambda: len(list(work.glob("*/descriptors-*"))) >= 3 or driver.poll() is not None)
        assert driver.poll() is None, "the driver ended before it was killed"
    finally:
        os.killpg(driver.pid, signal.SIGKILL)  # its workers too: nothing goes on in secret
        driver.wait()
    done = {path.name for path in work.glob("*/*-0*.safetensors")}
    assert len(done) >= 3
    before = counted(encoded)
    for path in encoded.iterdir():
        path.unlink()
    report = build(fleet, url, encoder=HeldEncoder, work=work)
    finished = [f"descriptors-{number:06d}.safetensors" in done for number in range(8)]
    described = next(one for one in report.passes if one.name == "descriptors")
    assert described.before == sum(finished)
    assert f"resumed: {sum(finished) + 5} of 13 shards were done already" in report.notes  # 5 have photos of the sample
    shards = list_photos(fleet).shards(10, choose_sample(75, 32).tolist())
    left = [len(shard) - len(shard.sample) for shard in shards if not finished[shard.number]]
    assert counted(encoded) == sum(left)
    assert before + counted(encoded) <= 75 + 4 * 10  # once more at most what four items under way had
    assert Published(url).ids.tolist() == list(range(75))


def test_a_damaged_or_foreign_file_is_made_again(fleet, url, tmp_path, encoded, monkeypatch):
    work = tmp_path / "work"
    stopped_before_the_last_shard(fleet, url, work, monkeypatch)
    before = counted(encoded)
    [folder] = work.iterdir()
    first, second, third = (folder / f"descriptors-00000{n}.safetensors" for n in range(3))
    content = bytearray(first.read_bytes())
    content[len(content) // 2] ^= 1
    first.write_bytes(bytes(content))
    second.write_bytes(second.read_bytes()[:-7])
    third.write_bytes((folder / "descriptors-000003.safetensors").read_bytes())
    report = build(fleet, url, work=work)
    described = next(one for one in report.passes if one.name == "descriptors")
    assert described.before == 7 - 3
    assert counted(encoded) > before
    found = Published(url)
    build(fleet, f"sqlite://{tmp_path}/plain.db/places")
    same(found, Published(f"sqlite://{tmp_path}/plain.db/places"))
    assert not folder.exists()  # it is removed once all is published


def stopped_before_the_last_shard(fleet, url, work, monkeypatch):
    """A build that ends in an error with all but one of its shards done."""
    whole = Describe.__call__

    def failing(self, shard):
        if shard.number == 7:
            raise TfaError("the power went out")
        return whole(self, shard)

    monkeypatch.setattr(Describe, "__call__", failing)
    with pytest.raises(TfaError, match="power"):
        build(fleet, url, work=work)
    monkeypatch.setattr(Describe, "__call__", whole)


@pytest.mark.slow
def test_a_full_disk_at_a_worker_is_one_sentence_and_the_build_goes_on_after(fleet, url, encoded, monkeypatch):
    monkeypatch.setattr(files, "_write_parts", files._write_parts)  # restored: this process loads the encoder too
    (encoded / "full").touch()
    with ProcessExecutor(1) as pool:  # which outlives the error
        with pytest.raises(DiskFull, match=r"disk is full at .*descriptors"):
            build(fleet, url, encoder=FullDiskEncoder, executor=pool)
        (encoded / "full").unlink()
        report = build(fleet, url, encoder=FullDiskEncoder, executor=pool)
    assert next(one for one in report.passes if one.name == "sample").before == 5
    assert Published(url).ids.tolist() == list(range(75))


def test_of_two_builders_of_one_map_the_second_is_refused_before_any_work(fleet, url, encoded):
    store, name = open_map_store(url)
    with Publisher(store, name, url).claim(), pytest.raises(StoreConflict, match=f"process {os.getpid()}"):
        build(fleet, url)
    assert counted(encoded) == 0
    build(fleet, url)  # it is free again
    build(fleet, url)
    assert Published(url).header.version == 2


@pytest.mark.parametrize(("given", "allowed"), [
    ({"sample": 15}, r"sample=15 is out of range: must be an integer ≥ 16, .*default 4096"),
    ({"sample": 0}, "sample=0 is out of range"),
    ({"sample": 32.0}, r"sample=32\.0 is out of range"),
    ({"sample": None}, "sample=None is out of range"),
    ({"shard_size": 0}, "shard_size=0 is out of range: must be an integer ≥ 1 .default 1000"),
    ({"shard_size": "10"}, "shard_size='10' is out of range"),
])  # fmt: skip
def test_a_division_that_cannot_be_is_refused_at_once(given, allowed):
    with pytest.raises(BadSpec, match=allowed):
        Sharding(**given)


def test_the_smallest_sample_is_one_block_of_neighbours(fleet, url):
    build(fleet, url, sample=16)
    assert len(Published(url).state.images) == 16


def test_a_folder_that_workers_do_not_share_is_named(tmp_path):
    with pytest.raises(TfaError, match=r"--set build\.work="):
        WorkFolder(tmp_path, "digest").needed("rows-000001")
