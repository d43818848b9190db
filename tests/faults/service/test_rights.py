"""The service as the examples of a container and of a proxy with TLS run it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path

import httpx2
import pytest

from studies.serve import Child
from tests.faults.service.confined import USER, command, given_to_the_user, obstacle
from tests.faults.service.raw import serving
from tests.service.conftest import opened, picture
from tests.waiting import PATIENCE
from tfa.client import Client

pytestmark = pytest.mark.kill
EXAMPLE = Path(__file__).parents[3] / "examples" / "deploy" / "nginx.conf"
SECRET = "e" * 16
PROXIED = ("--read_api_key", '"r"', "--proxies", '["127.0.0.1"]', "--audit_log")


def test_a_service_without_rights_queries_edits_and_calibrates(town, tmp_path):
    if (reason := obstacle()) is not None:
        pytest.skip(reason)
    maps, log = tmp_path / "maps", tmp_path / "log"
    maps.mkdir()
    shutil.move(town, maps)
    shutil.move(tmp_path / "cache", maps)
    (maps / "api_keys").write_text(f"office edit {SECRET}\n")
    (maps / "api_keys").chmod(0o600)
    given_to_the_user(maps)
    options = ("--api-keys", "/mnt/maps/api_keys", "--audit-log", "/mnt/maps/audit.jsonl", "--quiet")
    with Child(maps, lambda _: command(maps, *options), log) as child, Client(child.url, SECRET) as client:
        status = Path(f"/proc/{child._process.pid}/status").read_text()
        facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert facts["Uid"].split() == [str(USER if os.geteuid() == 0 else os.geteuid())] * 4
        assert {facts[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapInh")} == {"0" * 16}
        assert facts["NoNewPrivs"] == "1"
        assert client.query(picture(5), k=1)[0].id == 5
        assert client.add([picture(40)]).added == [14]
        assert client.query(picture(40), k=1, camera="cam0")[0].id == 14
        assert client.remove([3]).removed == [3]
        assert client.calibrate([picture(place, 0.7) for place in range(9)], "night").used == 9
        child._process.send_signal(signal.SIGTERM)
        assert child._process.wait(PATIENCE) in (0, -signal.SIGTERM)
    assert log.read_text() == ""
    edited = opened(maps / "town.tfa")
    assert (len(edited), edited.calibrations) == (14, ["night"])
    lines = [json.loads(line) for line in (maps / "audit.jsonl").read_text().splitlines()]
    assert [line["api_key"] for line in lines] == ["office"] * 4
    assert lines[-1]["action"] == "calibrate done"


@pytest.fixture
def proxied(town, tmp_path):
    """The example of a proxy in front of a service: a client that trusts its certificate, with an edit API key."""
    if shutil.which("nginx") is None or shutil.which("openssl") is None:
        pytest.skip("nginx and openssl are needed to try the example")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    audit = json.dumps(str(tmp_path / "audit.jsonl"))
    with serving(town, tmp_path / "log", "--edit_api_key", json.dumps(SECRET), *PROXIED, audit) as child:
        text = EXAMPLE.read_text()
        for old, new in (
            ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
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
        user = "user root;" if os.geteuid() == 0 else ""
        conf.write_text(f"{user} daemon off; pid {tmp_path}/pid; error_log stderr; events {{}} http {{ {http} }}")
        proxy = subprocess.Popen(["nginx", "-c", conf], stderr=subprocess.DEVNULL)
        url, bearer = f"https://localhost:{port}", {"Authorization": f"Bearer {SECRET}"}
        try:
            with httpx2.Client(base_url=url, verify=trusted(tmp_path), headers=bearer, timeout=PATIENCE) as client:
                _wait_for(client)
                yield client
        finally:
            proxy.terminate()
            proxy.wait(PATIENCE)


def trusted(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=folder / "cert.pem")


def _wait_for(client: httpx2.Client) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            assert client.get("/readyz").status_code == 200
            return
        except httpx2.ConnectError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_the_example_of_a_proxy_states_the_address_of_the_client(proxied, tmp_path):
    assert proxied.delete("/v1/images/99", headers={"X-Forwarded-For": "9.9.9.9"}).status_code == 404
    assert json.loads((tmp_path / "audit.jsonl").read_text())["address"] == "127.0.0.1"  # not what the client sent


def test_the_example_of_a_proxy_passes_on_what_clients_and_browsers_send(proxied):
    assert proxied.get("/v1/map", headers={"Authorization": "Bearer wrong"}).status_code == 401
    page = proxied.get("/")
    assert (page.status_code, page.headers["content-type"].startswith("text/html")) == (200, True)
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    photos = [("images", (f"{place}.png", picture(place))) for place in range(40, 50)]
    ours, other = f"https://{proxied.base_url.netloc.decode()}", "https://elsewhere.example"
    assert proxied.post("/v1/images", files=photos, headers={"Origin": other}).status_code == 403
    added = proxied.post("/v1/images", files=photos, headers={"Origin": ours})
    assert (added.status_code, added.json().get("added")) == (200, list(range(14, 24)))
    answer = proxied.post("/v1/query", files={"image": ("a.png", picture(45))}, data={"k": 1})
    assert answer.json()["hits"][0]["id"] == 19


def test_the_example_of_a_proxy_refuses_what_is_too_large(proxied, tmp_path):
    large = proxied.post("/v1/query", files={"image": ("a.png", bytes(21_000_000))})
    assert (large.status_code, "20 MB" in large.json()["error"]) == (413, True)  # by the service
    head = b"POST /v1/images HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000000\r\n\r\n"
    place = ("127.0.0.1", proxied.base_url.port)
    wrapped = trusted(tmp_path).wrap_socket
    with socket.create_connection(place, 30) as plain, wrapped(plain, server_hostname="localhost") as one:
        one.sendall(head)
        assert one.recv(1000).startswith(b"HTTP/1.1 413")  # by the proxy
    assert proxied.get("/v1/map").status_code == 200
