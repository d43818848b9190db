"""A service that may write the folder of its map and nothing else; and the example of a proxy with TLS."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.faults.service.raw import serving
from tests.service.conftest import opened, picture
from tfa.bench.load_test.child import Child
from tfa.client.client import Client

pytestmark = pytest.mark.kill
READ_ONLY = 'set -e; mount --bind "$1" "$1"; mount -o remount,bind,ro /; ! touch "$2" 2>/dev/null; shift 2; exec "$@"'
EXAMPLE = Path(__file__).parents[3] / "examples" / "deploy" / "nginx.conf"


def read_only(town: Path) -> list[str]:
    """The service in a mount namespace of its own."""
    server = [sys.executable, "-B", "-m", "tests.service.fake_server", str(town)]
    return ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", str(town), str(town.parent / "probe"), *server]


def test_only_the_folder_of_the_map_needs_to_be_written(town, tmp_path):
    possible = subprocess.run(["sh", "-c", f"command -v unshare && {' '.join(['unshare', '--mount', 'true'])}"],
                              capture_output=True, check=False)  # fmt: skip
    if possible.returncode:
        pytest.skip("this user may not make a read-only view of the file system")
    with Child(town, read_only, tmp_path / "log") as child, Client(child.url) as client:
        assert client.query(picture(5), k=1)[0].id == 5
        assert client.add([picture(40)]).added == [14]
        assert client.query(picture(40), k=1, session="cam0")[0].id == 14
    assert (tmp_path / "log").read_text() == ""
    assert not (tmp_path / "probe").exists()
    assert len(opened(town)) == 15


def test_the_example_of_a_proxy_works(town, tmp_path):
    if shutil.which("nginx") is None or shutil.which("openssl") is None:
        pytest.skip("nginx and openssl are needed to try the example")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    with serving(town, tmp_path / "log", "--read_token", '"r"') as child:
        text = EXAMPLE.read_text()
        for old, new in (
            ("listen 443 ssl", "listen 127.0.0.1:18443 ssl"),
            ("/etc/ssl/maps.example/fullchain.pem", str(certificate)),
            ("/etc/ssl/maps.example/privkey.pem", str(key)),
            ("http://127.0.0.1:8000", child.url),
        ):
            assert old in text
            text = text.replace(old, new)
        conf = tmp_path / "nginx.conf"
        folders = "".join(
            f"{name}_temp_path {tmp_path};" for name in ("proxy", "fastcgi", "uwsgi", "scgi", "client_body")
        )
        http = f"access_log off; {folders} {text}"
        conf.write_text(f"user root; daemon off; pid {tmp_path}/pid; error_log stderr; events {{}} http {{ {http} }}")
        proxy = subprocess.Popen(["nginx", "-c", conf], stderr=subprocess.DEVNULL)
        try:
            _asked_through("https://127.0.0.1:18443")
        finally:
            proxy.terminate()
            proxy.wait(10)


def _asked_through(url: str) -> None:
    trusting = ssl._create_unverified_context()
    deadline = time.monotonic() + 20
    while True:
        try:
            with urlopen(f"{url}/readyz", context=trusting, timeout=10) as answer:
                assert answer.status == 200
                break
        except URLError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    with pytest.raises(URLError, match="401"):
        urlopen(f"{url}/v1/map", context=trusting, timeout=10)
