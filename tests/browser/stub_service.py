"""A small service of made-up answers on loopback; to look at the page: `python -m tests.browser.stub_service`."""

from __future__ import annotations

import json
import re
import threading
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import tfa
from tests.browser.stub_answers import StubMap, street
from tfa.report.page import PLAN_VIEW
from tfa.service.bodies import body_schema
from tfa.types import QueryOptions

PAGE = Path(tfa.__file__).parent / "service" / "page"
KINDS = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# The strictest policy the page must live with: no inline script or style, nothing from elsewhere.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

Form = dict[str, list[tuple[str | None, bytes]]]  # of a field: file names and contents


class Refused(Exception):
    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class StubService:
    """What the stub serves, and what a test may turn: API keys, and how the next calibration ends."""

    def __init__(self) -> None:
        self.maps = {"town": StubMap("town")}
        self.read_api_key = self.edit_api_key = ""
        self.failing_job = ""  # the error of the next job, if it is to fail
        self.polls = 0
        self.most, self.cameras = 64, dict[str, int]()  # cameras by name, and the photos they saw
        self.lost: float | None = None  # of every frame
        self.options: type[QueryOptions] = QueryOptions  # of a query
        self.calls: list[tuple[str, str, dict[str, Any]]] = []  # method, path, fields

    def second_map(self) -> None:
        self.maps["hall"] = StubMap("hall", photos=8, globe=False)

    # --- routes ------------------------------------------------------------------------------------------------

    def handle(self, method: str, path: str, query: dict[str, str], form: Form, body: dict[str, Any]) -> Any:
        texts = {name: [text.decode() for file, text in values if file is None] for name, values in form.items()}
        fields = {name: one[0] if len(one) == 1 else one for name, one in texts.items() if one} | body
        self.calls.append((method, path, {**query, **fields}))
        place = self.maps.get(query.get("map", "town"))
        if place is None:
            raise Refused(404, f"no map is called {query['map']!r}; served are: {', '.join(self.maps)}")
        uploads = [(name or "", data) for values in form.values() for name, data in values if name is not None]
        for name, data in uploads:
            if not data.startswith(b"\xff\xd8"):
                raise Refused(415, f"{name} is not a photo that can be read; send JPEG, PNG or WebP")
        if method == "GET":
            return self.read(place, path, query)
        if path == "/v1/query":
            return self.answer(place, fields)
        if path == "/v1/explain":
            return place.why(int(fields["id"]))
        if path.startswith("/v1/images/") and query.get("revision") != str(place.revision):
            raise Refused(409, "the map has another revision")
        return self.edit(place, method, path, fields, uploads)

    def read(self, place: StubMap, path: str, query: dict[str, str]) -> Any:
        if path == "/v1/maps":
            return [{"name": m.name, "images": len(m.photos), "encoder": "fake@28"} for m in self.maps.values()]
        if path == "/v1/images":
            wanted = [key for key, photo in place.photos.items() if query.get("filter", "") in photo["image"]]
            low = int(query.get("offset", 0))
            shown = wanted[low : low + int(query.get("limit", 100))]
            return {"total": len(wanted), "images": [place.record(key) for key in shown], "revision": place.revision}
        if found := re.fullmatch(r"/v1/images/(\d+)/file", path):
            return street(place.photos[int(found[1])]["seed"])
        if path.startswith("/v1/jobs/"):
            return self.job(place, path.rpartition("/")[2])
        plain = {
            "/openapi.json": lambda: {"paths": {"/v1/query": {"post": body_schema(self.options, "image")}}},
            "/v1/map": place.facts,
            "/v1/positions": place.positions,
            "/v1/report": place.report,
        }
        if path in plain:
            return plain[path]()
        if path == "/v1/cameras":
            return {"most": self.most, "cameras": [self.camera(name) for name in reversed(self.cameras)]}
        raise Refused(404, f"{path} is not here")

    def answer(self, place: StubMap, fields: dict[str, Any]) -> dict[str, Any]:
        camera, least = fields.get("camera"), float(fields.get("min_confidence", 0))
        seen = self.cameras.get(camera, 0)
        if camera is not None:
            self.cameras[camera] = seen + 1
        told = place.answer(int(fields.get("k", 5)), least, camera, seen)
        if self.lost is None or fields.get("sequence") != "true":
            return told
        lost = {"verdict": "not recognized", "reason": "the camera has been lost for 4 frames", "sure": False}
        return {**told, **lost, "hits": [], "place": None, "confidence": 1 - self.lost, "lost": self.lost}

    def camera(self, name: str) -> dict[str, Any]:
        seen = self.cameras[name]
        used = "2025-06-01T12:00:00+00:00"
        return {"name": name, "seen": seen, "counted": (seen + 1) // 2, "calibration": None, "last_used": used}

    def job(self, place: StubMap, name: str) -> dict[str, Any]:
        self.polls += 1
        if self.failing_job and self.polls > 1:
            error, self.failing_job = self.failing_job, ""
            return {"state": "failed", "progress": 0.4, "message": "", "result": None, "error": error}
        if self.polls < 3:
            message = f"{self.polls} of 3 photos encoded"
            return {"state": "running", "progress": self.polls / 3, "message": message, "result": None, "error": None}
        if name not in place.calibrations:
            place.calibrations.append(name)
        place.active = name
        result = {"name": name, "used": 3, "notes": ["3 photos are few, give 64 if you can"]}
        return {"state": "done", "progress": 1.0, "message": "done", "result": result, "error": None}

    def edit(
        self, place: StubMap, method: str, path: str, fields: dict[str, Any], uploads: list[tuple[str, bytes]]
    ) -> Any:
        place.revision += 1
        if path == "/v1/images":
            added = list(range(place.next_id, place.next_id + len(uploads)))
            place.next_id += len(uploads)
            for key, (name, _) in zip(added, uploads, strict=True):
                place.photos[key] = {"image": name, "seed": key, "fitted": False}
            return {"added": added, "removed": [], "skipped": [], "notes": [], "revision": place.revision}
        if found := re.fullmatch(r"/v1/images/(\d+)", path):
            del place.photos[int(found[1])]
            return {"added": [], "removed": [int(found[1])], "skipped": [], "notes": [], "revision": place.revision}
        if path == "/v1/calibrations":
            self.polls = 0
            return {"job": fields["name"]}
        if path == "/v1/calibrations/active":
            place.active = fields["name"]
            return {"active": place.active}
        if found := re.fullmatch("/v1/cameras(?:/(.+))?", path):
            gone = [name for name in self.cameras if found[1] in (None, name)]
            for name in gone:
                del self.cameras[name]
            return {"reset": gone}
        raise Refused(404, f"{method} {path} is not here")

    def check(self, method: str, path: str, given: str) -> None:
        if path == "/openapi.json":
            return
        asks = path in ("/v1/query", "/v1/explain", "/v1/query/batch")
        edits = method != "GET" and not asks
        allowed = ({self.edit_api_key} if edits else {self.read_api_key, self.edit_api_key}) - {""}
        if (self.edit_api_key if edits else self.read_api_key) and given.removeprefix("Bearer ") not in allowed:
            what = "edit" if edits else "read"
            raise Refused(401, f"this needs the {what} API key of the service; send it as Authorization: Bearer …")


class Handler(BaseHTTPRequestHandler):
    service: StubService
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass  # tests are quiet

    def do_GET(self) -> None:
        self.answer()

    do_POST = do_DELETE = do_GET

    def answer(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if parts.path == "/" or parts.path.startswith("/static/"):
            self.page(parts.path.removeprefix("/static").strip("/") or "index.html")
            return
        try:
            self.service.check(self.command, parts.path, self.headers.get("Authorization") or "")
            form, values = self.parsed(body)
            told = self.service.handle(self.command, parts.path, dict(parse_qsl(parts.query)), form, values)
            status = 202 if isinstance(told, dict) and "job" in told else 200
        except Refused as error:
            told, status = {"error": str(error)}, error.status
        if isinstance(told, bytes):
            self.send(status, told, "image/jpeg")
        else:
            self.send(status, json.dumps(told).encode(), "application/json")

    def parsed(self, body: bytes) -> tuple[Form, dict[str, Any]]:
        kind = self.headers.get("Content-Type") or ""
        if kind == "application/json":
            return {}, json.loads(body)
        form: Form = {}
        if kind.startswith("multipart/form-data"):
            message = BytesParser(policy=HTTP).parsebytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body)
            for part in message.iter_parts():  # type: ignore[attr-defined]
                name = str(part.get_param("name", header="content-disposition"))
                form.setdefault(name, []).append((part.get_filename(), part.get_payload(decode=True) or b""))
        return form, {}

    def page(self, name: str) -> None:
        file = PLAN_VIEW if name == PLAN_VIEW.name else PAGE / name
        if "/" in name or not file.is_file():
            self.send(404, b"{}", "application/json")
            return
        self.send(200, file.read_bytes(), KINDS[name.rpartition(".")[2]], policy=True)

    def send(self, status: int, data: bytes, kind: str, policy: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        if policy:
            self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(data)


def serve(service: StubService, port: int = 0) -> ThreadingHTTPServer:
    """Start on loopback in a thread; `shutdown()` and `server_close()` end it."""
    server = ThreadingHTTPServer(("127.0.0.1", port), type("Bound", (Handler,), {"service": service}))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


if __name__ == "__main__":
    shown = StubService()
    shown.second_map()
    shown.cameras = {"cam0": 41, "door": 3}
    print(f"http://127.0.0.1:{serve(shown, 8765).server_address[1]}/")
    threading.Event().wait()
