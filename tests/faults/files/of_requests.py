"""HTTP requests, answered by the service in this process without a network."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import os
import shutil
import tempfile
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote

import h11

from tests.fakes import FakeEncoder, random_image
from tests.faults.files.targets import Layer, Target
from tests.maps.conftest import SPEC, photo
from tfa.errors import TfaError
from tfa.maps import PlaceMap
from tfa.photos.images import decode_untrusted
from tfa.service.app import create_app
from tfa.service.bodies import Upload
from tfa.service.decoders import Decoded, Decoder
from tfa.service.settings import ServiceSettings
from tfa.types import BuildOptions

MOST_EDITS = 200  # POST requests, until the service restarts with the original map
KEY = "edit-key-of-the-tests"
SETTINGS = ServiceSettings(read_api_key="read-key", edit_api_key=KEY, rate_limit=0, cors=("https://a.example",))
OPTIONS = {"k": 3, "min_confidence": 0.2, "region": [52.5, 13.3, 500.0], "sessions": ["north"], "calibration": "none"}
CAMERA = {"camera": "cam0", "sequence": True, "k": 1, "answer_all": True}


def requests(name: str, folder: Path) -> Target:
    written = io.BytesIO()
    random_image(1, (12, 9)).save(written, "PNG")
    photo_bytes, text = written.getvalue(), base64.b64encode(written.getvalue()).decode()
    add = {"images": [text], "positions": [{"lat": 52.5, "lon": 13.4}], "session": "north"}
    files = {
        "query.json": _as_json("POST /v1/query?map=town", {"image": text, **OPTIONS}),
        "query.form": _as_form("POST /v1/query", "image", photo_bytes, {"k": 2, "region": "52.5,13.3,500"}),
        "camera.json": _as_json("POST /v1/query", {"image": text, **CAMERA}),
        "batch.json": _as_json("POST /v1/query/batch", {"images": [text, text], "k": 1}),
        "explain.json": _as_json("POST /v1/explain", {"image": text, "id": 2}),
        "add.json": _as_json("POST /v1/images", add),
        "add.form": _as_form("POST /v1/images", "images", photo_bytes, {"positions": '[{"x": 1, "y": 2}]'}),
        "calibrate.json": _as_json("POST /v1/calibrations", {"images": [text], "name": "night"}),
        "activate.json": _as_json("POST /v1/calibrations/active", {"name": None}),
        "list": _request("GET /v1/images?offset=2&limit=5&filter=0&map=town"),
        "file": _request("GET /v1/images/3/file?size=64", "If-None-Match: x", "Range: bytes=0-9"),
        "remove": _request("DELETE /v1/images/5?revision=1", "If-Match: 1", "Origin: https://a.example"),
        "positions": _request("GET /v1/positions"),
    }
    for file, content in files.items():
        (folder / file).write_bytes(content)
    place_map = Path(tempfile.mkdtemp(dir=folder)) / "town.tfa"
    for place in range(6):
        photo(folder / "photos" / f"{place}.png", place)
    options = BuildOptions(head="paper", storage="float16")
    with mock.patch.dict(os.environ, TFA_CACHE=str(folder / "cache")):
        PlaceMap.build(folder / "photos", encoder=FakeEncoder(), spec=SPEC, map_spec=options).save(place_map)
    layers = {file: Layer(_body, _with_body, json=file.endswith(".json")) for file in files if "." in file}
    return Target(name, files, _Service(place_map).read, layers)


def _request(line: str, *headers: str, body: bytes = b"") -> bytes:
    fixed = (f"{line} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {KEY}", f"Content-Length: {len(body)}")
    return "\r\n".join([*fixed, *headers, "", ""]).encode() + body


def _as_json(line: str, value: dict[str, Any]) -> bytes:
    return _request(line, "Content-Type: application/json", body=json.dumps(value).encode())


def _as_form(line: str, key: str, content: bytes, fields: dict[str, Any]) -> bytes:
    part = '--b\r\nContent-Disposition: form-data; name="{}"'
    texts = "".join(f"{part.format(name)}\r\n\r\n{value}\r\n" for name, value in fields.items())
    head = f'{texts}{part.format(key)}; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
    body = head.encode() + content + b"\r\n--b--\r\n"
    return _request(line, "Content-Type: multipart/form-data; boundary=b", body=body)


def _body(data: bytes) -> bytes:
    return data.partition(b"\r\n\r\n")[2]


def _with_body(body: bytes, data: bytes) -> bytes:
    """Replace the body, and state its length."""
    head, length, rest = data.partition(b"\r\n\r\n")[0].partition(b"Content-Length: ")
    return head + length + str(len(body)).encode() + rest.lstrip(b"0123456789") + b"\r\n\r\n" + body


def _decode(self: Decoder, upload: Upload, settings: ServiceSettings, reads: object = None) -> Decoded:
    """Decode in this process; the photo targets damage photos."""
    return Decoded(*decode_untrusted(upload.content, upload.name, settings.max_pixels))


class _Service:
    """A service of a copy of a map, in one thread's event loop; it restarts after many edits."""

    def __init__(self, place_map: Path) -> None:
        self.place_map, self.open, self.edits = place_map, ExitStack(), 0
        self.app: Any = None

    def start(self) -> None:
        logging.getLogger("tfa.service").setLevel(logging.CRITICAL)
        copy = Path(self.open.enter_context(tempfile.TemporaryDirectory())) / self.place_map.name
        shutil.copytree(self.place_map, copy)
        self.open.enter_context(mock.patch.multiple(Decoder, decode=_decode, start=lambda _: None))
        self.runner = self.open.enter_context(asyncio.Runner())
        self.app = create_app([PlaceMap.load(copy, encoder=FakeEncoder())], SETTINGS)
        stack = AsyncExitStack()
        self.runner.run(stack.enter_async_context(self.app.router.lifespan_context(self.app)))
        self.open.callback(lambda: self.runner.run(stack.aclose()))
        self.app.state.service.warm_up()

    def stop(self) -> None:
        self.app, self.edits = None, 0
        self.open.close()

    def read(self, folder: Path, victim: str, changed: bool) -> None:
        """Send a request. Stop afterwards if it is not changed, so that the process may fork."""
        if self.app is None:
            self.start()
        self.edits += self.runner.run(self._send((folder / victim).read_bytes()))
        if self.edits >= MOST_EDITS or not changed:
            self.stop()

    async def _send(self, content: bytes) -> int:
        """Send a request as uvicorn would, and check the response; return how many edits it counts for."""
        head, _, body = content.partition(b"\r\n\r\n")
        connection = h11.Connection(h11.SERVER)
        try:
            connection.receive_data(head + b"\r\n\r\n")
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            raise TfaError(f"not HTTP: {error}") from None
        if not isinstance(event, h11.Request):
            raise TfaError("not a whole HTTP request")
        path, _, query = event.target.partition(b"?")
        method, http = event.method.decode("ascii"), {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1"}
        scope = {**http, "method": method, "scheme": "http", "path": unquote(path.decode("ascii")), "raw_path": path,
                 "root_path": "", "query_string": query, "headers": list(event.headers),
                 "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 80)}  # fmt: skip
        messages, sent = [{"type": "http.request", "body": body, "more_body": False}], list[Any]()

        async def receive() -> Any:
            return messages.pop() if messages else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        status, headers = sent[0]["status"], dict(sent[0]["headers"])
        answer = b"".join(message.get("body", b"") for message in sent[1:])
        assert 200 <= status < 500, f"{status} {answer!r}"
        if headers.get(b"content-type") == b"application/json" and method != "HEAD":
            json.loads(answer, parse_constant=int)  # NaN and Infinity raise ValueError
        return {"POST": 1, "DELETE": MOST_EDITS // 3}.get(method, 0) if status < 300 else 0
