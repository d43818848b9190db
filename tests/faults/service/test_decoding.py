"""Photos that are slow to decode or crash the decoder fail only their own request."""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import re
import signal
import subprocess
import sys
import termios
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image, ImageFile

from tests.faults.service.hostile import many_scans
from tests.service.conftest import ask, picture
from tests.waiting import PATIENCE, wait_until
from tfa.errors import BadImage
from tfa.photos.images import MOST_SCANS, as_rgb, limit_scans, too_many_scans
from tfa.service import decoders
from tfa.service.bodies import Upload
from tfa.service.decoders import DecoderPool, FairTurns, shared_decoders
from tfa.service.problems import Refused
from tfa.service.settings import ServiceSettings

SIZE = (6000, 6000)
EVIL = many_scans(3000, SIZE)  # 350 kB; decoded, it takes minutes


def pause(decoder: decoders.Decoder) -> subprocess.Popen[bytes]:
    """Stop a decoder process that has started up, and wait until it is stopped."""
    process = decoder.start()
    decoder._wait_for_start(process)
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    return process


def unread_bytes(process: subprocess.Popen[bytes]) -> int:
    """Count the bytes that were sent to a process and that it has not read."""
    return int.from_bytes(fcntl.ioctl(process.stdin, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_scans_are_counted_before_they_are_decoded(tmp_path, monkeypatch):
    (tmp_path / "evil.jpg").write_bytes(EVIL)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("it is decoded"))
    with pytest.raises(BadImage, match=r"evil\.jpg cannot be opened: it has 3,000 scans, at most 27 are allowed"):
        as_rgb(tmp_path / "evil.jpg")


def test_as_many_scans_as_are_allowed_are_read():
    assert as_rgb(many_scans(MOST_SCANS)).size == (64, 48)
    with pytest.raises(BadImage, match=f"{MOST_SCANS + 1} scans"):
        as_rgb(many_scans(MOST_SCANS + 1))


def test_a_large_photo_may_have_fewer_scans(monkeypatch):
    assert [limit_scans(size) for size in ((4000, 2500), (7000, 7000), (13_000, 13_000), (1, 1))] == [100, 20, 20, 100]
    monkeypatch.setattr("tfa.photos.images.SCAN_PIXELS", 64 * 48 * 30)
    assert as_rgb(many_scans(30)).size == (64, 48)
    with pytest.raises(BadImage, match="it has 31 scans, at most 30 are allowed"):
        as_rgb(many_scans(31))


def test_bytes_behind_a_picture_and_in_its_metadata_are_no_scans():
    photo = picture(3, kind="JPEG")
    preview = b"\xff\xe1" + (2 + 2 * 200).to_bytes(2, "big") + b"\xff\xda" * 200
    content = photo[:2] + preview + photo[2:] + b"\xff\xda" * 500  # as a video that a phone appends
    assert too_many_scans(content) == 0
    assert as_rgb(content).size == as_rgb(photo).size


def test_a_service_refuses_many_scans_in_a_sentence(client, campaign):
    attempts = campaign.size(1, 20)
    for _ in range(attempts):
        answer = ask(client, EVIL, "evil.jpg")
        assert answer.status_code == 422
        assert answer.json()["error"].startswith("evil.jpg cannot be opened: it has 3,000 scans")
    campaign.count("JPEG photos with thousands of scans", attempts)


def test_a_photo_that_takes_too_long_is_given_up_and_the_next_is_read(serve, campaign):
    patient, client = serve(), serve(decode_seconds=0.1)
    attempts = campaign.size(1, 20)
    for _ in range(attempts):
        answer = ask(client, many_scans(limit_scans(SIZE), SIZE), "slow.jpg")  # as slow as is allowed: about a second
        assert answer.status_code == 422, answer.text
        assert "slow.jpg takes more than 0.1 s to decode; save it again" in answer.json()["error"]
        assert ask(patient, picture(5), k=1).json()["hits"][0]["id"] == 5
    campaign.count("photos that take too long to decode", attempts)


def test_decoders_that_hang_all_at_once_stop_no_queries_for_long(serve, campaign, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)  # so that two callers take three decoders
    hasty, client, attempts = serve(decode_seconds=3, edit_api_key="e"), serve(), campaign.size(1, 20)
    callers = [{"Authorization": f"Bearer {key}"} for key in ("e", "none")]
    for _ in range(attempts):
        for decoder in shared_decoders()._all:
            pause(decoder)
        with ThreadPoolExecutor(5) as senders:
            sent = {"files": {"image": ("dusk.png", picture(4))}}
            refused = [senders.submit(hasty.post, "/v1/query", **sent, headers=callers[n % 2]) for n in range(3)]
            # If this thread gets no time, they may be refused before it sees all decoders busy.
            wait_until(lambda all=refused: shared_decoders()._idle.empty() or any(one.done() for one in all))
            later = [senders.submit(ask, client, picture(4)) for _ in range(2)]  # these wait for the same decoders
            # One that starts seconds after the others may find a decoder that was replaced.
            statuses = {future.result(PATIENCE).status_code for future in refused}
            assert {422} <= statuses <= {422, 200}
            assert [future.result(PATIENCE).status_code for future in later] == [200, 200]
        assert ask(client, picture(5), k=1).json()["hits"][0]["id"] == 5
        assert client.get("/readyz").status_code == 200
    campaign.count("hanging photo decoders", 3 * attempts)


def test_a_caller_with_many_photos_delays_no_other_caller():
    async def run() -> None:
        turns, ended, started, loop = FairTurns(3, 2, 4), asyncio.Event(), list[str](), asyncio.get_running_loop()

        async def decode(name: str) -> None:
            async with turns.take(name[0]):
                started.append(name)
                await ended.wait()

        flood = [loop.create_task(decode(f"f{number}")) for number in range(6)]
        await asyncio.sleep(0)
        assert started == ["f0", "f1"]  # a decoder is left for another caller
        honest = loop.create_task(decode("h0"))
        await asyncio.sleep(0)
        assert started == ["f0", "f1", "h0"]
        later = [loop.create_task(decode("h1"))]
        await asyncio.gather(flood[5], return_exceptions=True)
        assert (flood[5].exception().status, later[0].done()) == (503, False)  # only the caller with most is refused
        with pytest.raises(Refused, match="4 requests are waiting, 3 of them yours"):
            await decode("f6")
        flood[2].cancel()
        await asyncio.gather(flood[2], return_exceptions=True)
        later.append(loop.create_task(decode("g0")))
        await asyncio.sleep(0)
        ended.set()
        await asyncio.gather(*flood[:2], *flood[3:5], honest, *later)
        assert started[3:] == ["f3", "h1", "g0", "f4"]  # they take turns
        assert (turns._free, turns._running, turns._waiting) == (3, {}, {})

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


@pytest.mark.parametrize(("cores", "each"), [(1, 1), (2, 1), (4, 2)])
def test_a_caller_leaves_a_core_to_others(serve, monkeypatch, cores, each):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    turns = serve().app.state.service._turns
    assert (turns._free, turns._each) == (3, each)


# What a decoder sends instead of its reply, as Python expressions.
REPLIES = {
    "a huge photo": """b'{"kind": "PNG", "size": [1000000, 1000000]}'""",
    "a negative size": """b'{"kind": "PNG", "size": [-8, -8]}'""",
    "an unknown format": """b'{"kind": "../x", "size": [8, 8]}'""",
    "an unknown refusal": """b'{"refused": "other", "sentence": "x"}'""",
    "no size": """b'{"kind": "PNG"}'""",
    "a list": "b'[]'",
    "nested lists": "b'[' * 50_000",
    "a long line": "b' ' * 200_000",
}


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
def test_a_decoder_that_answers_anything_else_is_replaced(monkeypatch, reply):
    reader, settings = decoders.Decoder(), ServiceSettings()
    program = """
import json, sys
print('{"confined": []}', flush=True)
while line := sys.stdin.buffer.readline():
    sys.stdin.buffer.read(json.loads(line)["bytes"])
    sys.stdout.buffer.write(REPLY + b"\\n" + bytes(192))
    sys.stdout.buffer.flush()
"""
    sound = decoders.PROGRAM
    monkeypatch.setattr(decoders, "PROGRAM", ("-c", program.replace("REPLY", reply)))
    try:
        with pytest.raises(Refused, match=r"a\.png crashes the decoder"):
            reader.decode(Upload("a.png", picture(4)), settings)
        assert reader._process is None
        monkeypatch.setattr(decoders, "PROGRAM", sound)
        assert reader.decode(Upload("a.png", picture(4)), settings).kind == "PNG"
    finally:
        reader.close()


def test_scans_of_jpegs_in_a_tiff_are_counted(monkeypatch):
    tile = many_scans(40)
    written = io.BytesIO()
    Image.new("YCbCr", (64, 48)).save(written, "TIFF", compression="jpeg")
    with Image.open(written) as image:
        [start], [size] = image.tag_v2[273], image.tag_v2[279]
    content = written.getvalue()
    place = content.index((start).to_bytes(4, "little"), 8), content.index((size).to_bytes(4, "little"), 8)
    assert as_rgb(content).size == (64, 48)
    changed = bytearray(content + tile)
    changed[place[0] : place[0] + 4] = len(content).to_bytes(4, "little")
    changed[place[1] : place[1] + 4] = len(tile).to_bytes(4, "little")
    monkeypatch.setattr("tfa.photos.images.SCAN_PIXELS", 64 * 48 * 30)
    with pytest.raises(BadImage, match="it has 40 scans, at most 30 are allowed"):
        as_rgb(bytes(changed))


def test_a_decoder_that_dies_is_replaced(campaign):
    pool, settings, attempts = DecoderPool(1), ServiceSettings(), campaign.size(2, 50)
    try:
        for _ in range(attempts):
            process = pause(pool._all[0])  # so that it is busy when it dies

            def kill(process=process):
                wait_until(lambda: unread_bytes(process) > 0)
                process.kill()

            dying = threading.Thread(target=kill)
            dying.start()
            assert pool.decode(Upload("a.png", picture(5)), settings).kind == "PNG"
            dying.join()
            pool._all[0].start().kill()  # and one that dies while it is idle
            assert pool.decode(Upload("b.png", picture(5)), settings).kind == "PNG"
    finally:
        pool.close()
    campaign.count("crashed photo decoders", 2 * attempts)


def test_a_photo_that_breaks_every_decoder_is_refused(client, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(decoders, "PROGRAM", ("-c", "import os; os.abort()"))
        shared_decoders().close()
        refused = ask(client, picture(5), "a.png")
    assert refused.status_code == 422
    assert refused.json()["error"].startswith("a.png crashes the decoder; save it again")
    assert ask(client, picture(5), k=1).json()["hits"][0]["id"] == 5


def test_decoders_know_no_api_keys_and_end_with_the_service(monkeypatch):
    monkeypatch.setenv("TFA_EDIT_API_KEY", "secret")
    pool = DecoderPool(1)
    try:
        pool.warm_up()
        process = pool._all[0].start()
        with open(f"/proc/{process.pid}/environ", "rb") as file:
            assert b"secret" not in file.read()
    finally:
        pool.close()
    assert process.poll() is not None
    code = (
        "from tfa.service.decoders import shared_decoders as s; p = s(); p.warm_up();"
        "print(*[d.start().pid for d in p._all])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert all(not os.path.exists(f"/proc/{pid}") for pid in ended.stdout.split())
    assert len(ended.stdout.split()) == decoders.DECODER_COUNT


_HOSTILE = """
import os, resource, socket
from tfa.service.decoder_process import confine
print(*confine(), sep=", ")
tries = {
    "read": lambda: open("/etc/passwd"),
    "write": lambda: open("evil", "w"),
    "delete": lambda: os.unlink(__file__),
    "run": lambda: os.execv("/bin/true", ["true"]),
    "fork": os.fork,
    "connect": lambda: socket.socket(),
    "kill": lambda: os.kill(os.getppid(), 0),
    "limit": lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE),
    "memory": lambda: resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40)),
}
for name, attempt in tries.items():
    try:
        print(name, "allowed", attempt())
    except (OSError, ValueError) as error:
        print(name, "refused")
"""


def test_code_in_a_decoder_reads_writes_runs_and_sends_nothing(tmp_path):
    program = tmp_path / "hostile.py"
    program.write_text(_HOSTILE)
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True, timeout=PATIENCE)
    active, *outcomes = ran.stdout.splitlines()
    assert active.startswith("hard limits")
    if "seccomp" not in active:
        pytest.skip(f"this kernel or architecture has no seccomp: {active}")
    assert len(outcomes) == 9
    assert {outcome.split()[1] for outcome in outcomes} == {"refused"}, outcomes


def test_decoders_get_no_variables_and_say_how_they_are_confined(monkeypatch):
    monkeypatch.setenv("SOME_PASSWORD", "secret")
    pool = DecoderPool(1)
    try:
        assert pool.describe().startswith("hard limits")
        assert b"secret" not in Path(f"/proc/{pool._all[0].start().pid}/environ").read_bytes()
        limits = Path(f"/proc/{pool._all[0].start().pid}/limits").read_text()
        assert re.search(r"Max file size +0 +0 ", limits)
        assert re.search(r"Max cpu time +600 +600 ", limits)
    finally:
        pool.close()


def test_api_keys_leave_the_environment_and_no_other_process_reads_the_service():
    code = (
        "import ctypes, os; from tfa.service.server import hide_secrets as h; h('TFA_EDIT_API_KEY', 'NONE');"
        "c = ctypes.CDLL(None); print(c.prctl(3, 0, 0, 0, 0)); c.prctl(4, 1, 0, 0, 0);"
        "print(os.environ.get('TFA_EDIT_API_KEY'), b'secret' in open('/proc/self/environ', 'rb').read())"
    )
    environment = {**os.environ, "TFA_EDIT_API_KEY": "secret"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout.split() == ["0", "None", "False"]


def test_services_of_a_process_share_their_decoders():
    assert shared_decoders() is shared_decoders()
