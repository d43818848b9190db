"""Who may read, who may edit, and which pages may call."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket

import pytest
from fastapi.testclient import TestClient

from tests.service.conftest import add, ask, ids, picture
from tfa.errors import BadSpec
from tfa.service import auth
from tfa.service import settings as service_settings
from tfa.service.server import BoundedServer, bind_socket, run_server
from tfa.service.settings import ServiceSettings, is_loopback

READ, EDIT = {"Authorization": "Bearer read-me"}, {"Authorization": "Bearer edit-me"}
API_KEYS = {"read_api_key": "read-me", "edit_api_key": "edit-me"}


def test_reading_needs_the_read_or_the_edit_api_key(serve):
    client = serve(**API_KEYS)
    for path in ("/v1/maps", "/v1/map", "/v1/images", "/v1/positions", "/v1/images/3/file", "/metrics", "/v1/jobs/x"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert client.get(path, headers={"Authorization": "Basic cmVhZC1tZTo="}).status_code == 401
        for api_key in (READ, EDIT):
            assert client.get(path, headers=api_key).status_code in (200, 404)
    refused = ask(client, picture(5))
    assert refused.headers["www-authenticate"] == "Bearer"
    assert refused.json()["error"].startswith("API key missing: reading needs an API key; send the header")


def test_editing_needs_the_edit_api_key(serve):
    client = serve(**API_KEYS)
    photo = [("images", ("a.png", picture(40)))]
    edits = [
        ("POST", "/v1/images", {"files": photo}),
        ("DELETE", "/v1/images/3", {}),
        ("POST", "/v1/calibrations", {"files": photo}),
        ("POST", "/v1/calibrations/active", {"json": {"name": None}}),
        ("DELETE", "/v1/cameras", {}),
        ("DELETE", "/v1/cameras/cam0", {}),
    ]
    for method, path, sent in edits:
        assert client.request(method, path, **sent).status_code == 401
        forbidden = client.request(method, path, **sent, headers=READ)
        assert forbidden.status_code == 403
        assert forbidden.json()["error"] == "the read API key may not edit; use the edit API key"
    client.headers.update(EDIT)
    assert ids(client) == list(range(14))
    assert add(client, ("a.png", picture(40))).status_code == 200


def test_probes_and_the_page_need_no_token(serve):
    client = serve(**API_KEYS)
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready"}
    assert client.get("/").status_code in (200, 404)
    assert client.get("/openapi.json").status_code == 200


def test_with_a_read_api_key_alone_nobody_edits(serve):
    client = serve(read_api_key="read-me")
    client.headers.update(READ)
    refused = client.delete("/v1/images/3")
    assert refused.status_code == 403
    assert "is read-only" in refused.json()["error"]
    assert client.get("/v1/map").json()["editable"] is False


def test_with_an_edit_api_key_alone_anybody_reads(serve):
    client = serve(edit_api_key="edit-me")
    assert client.get("/v1/map").json()["editable"] is True
    assert client.delete("/v1/images/3").status_code == 401
    assert client.delete("/v1/images/3", headers=EDIT).status_code == 200


def test_tokens_are_compared_in_constant_time(monkeypatch):
    compared = []

    def compare(one, other):
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(service_settings, "hmac", type("H", (), {"compare_digest": staticmethod(compare)}))
    settings = ServiceSettings(**API_KEYS)
    assert not auth.may_read(settings, "r")
    assert not auth.may_edit(settings, "e" * 1000)
    assert auth.may_read(settings, "edit-me")
    assert len(compared) == 6  # with both API keys, even if the first one fits
    assert {len(part) for pair in compared for part in pair} == {32}


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True), ("127.8.9.1", True), ("localhost", True), ("::1", True), ("[::1]", True),
        ("0.0.0.0", False), ("::", False), ("192.168.1.4", False), ("example.org", False), ("", False),
        ("localhost.evil.org", False),
    ],
)  # fmt: skip
def test_which_addresses_only_this_machine_reaches(host, local):
    assert is_loopback(host) is local


def test_other_machines_are_let_in_on_purpose_only():
    with pytest.raises(BadSpec, match="pass --api-keys, or --read-api-key"):
        ServiceSettings(host="0.0.0.0")
    with pytest.raises(BadSpec, match="without a read API key"):
        ServiceSettings(host="0.0.0.0", edit_api_key="x")
    assert ServiceSettings(host="0.0.0.0", no_auth=True).editable
    assert not ServiceSettings(host="0.0.0.0", read_api_key="x").editable


@pytest.mark.parametrize(
    "given", [{"port": -1}, {"max_upload": 0}, {"max_pixels": 10**9}, {"read_api_key": " "}, {"cors": ("example.org",)}]
)
def test_settings_are_checked(given):
    with pytest.raises(BadSpec):
        ServiceSettings(**given)


def test_an_open_service_answers_to_its_own_names_only(serve):
    client = serve()
    for name in ("evil.example", "evil.example:8000", "localhost.evil.example", "", "192.168.1.4"):
        refused = client.get("/v1/map", headers={"Host": name})
        assert refused.status_code == 403
        assert "accepts local host names only" in refused.json()["error"]
    for name in ("localhost", "localhost:8000", "127.0.0.1:9", "[::1]:8000"):
        assert client.get("/v1/map", headers={"Host": name}).status_code == 200
    assert serve(**API_KEYS).get("/v1/map", headers={**READ, "Host": "maps.example"}).status_code == 200


def test_a_page_of_another_origin_changes_nothing(serve):
    client = serve()
    for origin in ("https://evil.example", "null", "http://localhost:1"):
        refused = client.delete("/v1/images/3", headers={"Origin": origin})
        assert refused.status_code == 403
        assert f"pages of {origin} are not allowed" in refused.json()["error"]
    assert client.delete("/v1/images/3", headers={"Origin": "http://localhost"}).status_code == 200


def test_cors_is_off_unless_asked_for(serve):
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    closed = serve()
    assert "access-control-allow-origin" not in closed.get("/v1/map", headers=asked).headers
    assert closed.options("/v1/query", headers=asked).status_code in (400, 405)
    client = serve(cors=("https://a.example",))
    assert client.options("/v1/query", headers=asked).headers["access-control-allow-origin"] == "https://a.example"
    assert client.delete("/v1/images/3", headers=asked).status_code == 200
    assert client.delete("/v1/images/4", headers={"Origin": "https://b.example"}).status_code == 403


@pytest.mark.parametrize("form", ["127.0.0.1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize(
    ("proxies", "is_believed"),
    [((), False), (("10.0.0.1",), False), (("127.0.0.1",), True), (("127.0.0.0/8",), True), (("::1",), False)],
)
def test_a_forwarded_address_is_believed_from_a_named_proxy_only(
    serve, tmp_path, monkeypatch, proxies, is_believed, form
):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    app, started = serve(edit_api_key="e", audit_log=str(tmp_path / "log"), proxies=proxies).app, []
    monkeypatch.setattr(BoundedServer, "run", lambda server, sockets: started.append(server.config))
    run_server(app, None)
    started[0].load()
    as_proxy = TestClient(started[0].loaded_app, base_url="http://localhost", client=(form, 5000))
    refused = as_proxy.delete("/v1/images/3", headers={"X-Forwarded-For": "9.9.9.9", "Authorization": "Bearer guess"})
    assert refused.status_code == 401
    assert json.loads((tmp_path / "log").read_text())["address"] == ("9.9.9.9" if is_believed else form)


def test_a_proxy_is_named_by_its_address():
    with pytest.raises(BadSpec, match=r"'proxy.example' is not a proxy address; use the form 127\.0\.0\.1"):
        ServiceSettings(proxies=("proxy.example",))


def test_small_answers_are_sent_at_once():
    async def run(listening: socket.socket) -> int:
        async def note(reader, writer):
            accepted.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        accepted = asyncio.get_running_loop().create_future()
        async with await asyncio.start_server(note, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname()[:2])
            writer.close()
            return await accepted

    with bind_socket(ServiceSettings(port=0)) as listening:
        assert asyncio.run(run(listening))
