"""What is refused: too large, too many, not a photo, damaged."""

from __future__ import annotations

import asyncio
import base64
import struct
import zlib

import pytest
from PIL import Image

from tests.service.conftest import add, ask, picture
from tfa.photos.images import TooManyPixels, decode_untrusted
from tfa.service.bodies import Upload, make_safe_name, make_upload
from tfa.service.middleware import BodyLimit
from tfa.service.problems import Refused
from tfa.service.settings import ServiceSettings

pytestmark = pytest.mark.slow


def bomb(width: int, height: int) -> bytes:
    """A small PNG whose header promises many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("size", [(3000, 3000), (12_000, 12_000), (60_000, 60_000)])
def test_pixels_are_counted_before_they_are_decoded(serve, monkeypatch, size):
    answer = ask(serve(max_pixels=1_000_000), bomb(*size))
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(TooManyPixels, match="1,000,000 allowed"):
        decode_untrusted(bomb(*size), "bomb.png", 1_000_000)
    assert answer.status_code == 413
    assert "too many pixels" in answer.json()["error"]
    assert "1,000,000 allowed" in answer.json()["error"]


def test_a_photo_at_the_limit_is_taken(serve):
    client = serve(max_pixels=64 * 48, max_upload=len(picture(3)))
    assert ask(client, picture(3)).status_code == 200
    larger = ask(client, picture(3) + b"x")
    assert larger.status_code == 413
    assert "is larger than" in larger.json()["error"]


def test_a_request_far_too_large_is_refused_by_its_length(serve):
    client = serve(max_upload=1000)
    answer = ask(client, bytes(200_000))
    assert answer.status_code == 413
    assert answer.json()["error"].startswith("request larger than 0.0669 MB; the limit for one photo is 0.001 MB")


def test_a_request_that_does_not_tell_its_length_is_counted(serve):
    client = serve(max_upload=1000)

    def endless():
        yield b'--b\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
        for _ in range(1000):
            yield bytes(1000)

    answer = client.post("/v1/query", content=endless(), headers={"Content-Type": "multipart/form-data; boundary=b"})
    assert answer.status_code == 413


def test_base64_has_the_same_limit(serve):
    client = serve(max_upload=1000)
    answer = client.post("/v1/query", json={"image": base64.b64encode(bytes(1500)).decode()})
    assert answer.status_code == 413


@pytest.mark.parametrize(
    ("name", "content", "status", "words"),
    [
        ("notes.txt", b"just text", 415, "notes.txt is not a complete photo in a supported format; send JPEG"),
        ("page.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415, "not a complete photo"),
        ("a.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", 415, "not a complete photo"),
        ("a.png", b"", 422, "a.png is empty"),
        ("a.png", b"\x89PNG\r\n\x1a\n", 415, "not a complete photo"),
    ],
)
def test_other_files_are_refused_in_a_sentence(client, name, content, status, words):
    answer = ask(client, content, name)
    assert answer.status_code == status
    assert words in answer.json()["error"]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF"])
def test_a_truncated_photo_is_refused_and_a_whole_one_taken(client, kind):
    whole = picture(5, kind=kind, size=(300, 200))
    assert ask(client, whole).status_code == 200
    answer = ask(client, whole[: len(whole) // 2])
    assert answer.status_code in (415, 422)  # of some formats half a file is no file of that format
    assert "complete" in answer.json()["error"]


def test_too_many_photos_are_refused(serve):
    client = serve(max_batch=2)
    photos = [("images", (f"{n}.png", picture(n))) for n in range(4)]
    for many in (photos[:3], photos):
        answer = client.post("/v1/query/batch", files=many)
        assert answer.status_code == 413
        assert answer.json()["error"] == "more than 2 photos in one request; send at most 2"
    texts = [base64.b64encode(picture(n)).decode() for n in range(3)]
    assert client.post("/v1/query/batch", json={"images": texts}).status_code == 413
    assert add(client, *[one for _, one in photos[:3]]).status_code == 413


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        ({"content": b"{", "headers": {"Content-Type": "application/json"}}, 400, "not JSON"),
        ({"json": [1]}, 422, "JSON list"),
        ({"json": {}}, 422, "no photo in the request"),
        ({"json": {"image": 3}}, 422, "must be base64"),
        ({"json": {"image": "§§"}}, 422, "image 1 is not base64"),
        ({"content": b"abc", "headers": {"Content-Type": "image/png"}}, 415, "'image/png' is not supported"),
        ({}, 415, "Content-Type is missing"),
        ({"data": {"image": "x"}, "files": {"other": b"x"}}, 422, "must be a file"),
        ({"files": {"photo": b"x"}}, 422, "unknown file field 'photo'"),
        ({"content": b"--", "headers": {"Content-Type": "multipart/form-data"}}, 400, "the form cannot be read"),
    ],
)
def test_bodies_of_another_shape_are_refused(client, sent, status, words):
    answer = client.post("/v1/query", **sent)
    assert answer.status_code == status
    assert words in answer.json()["error"]


def test_one_photo_is_asked_for_at_a_time(client):
    photos = [("image", ("a.png", picture(1))), ("image", ("b.png", picture(2)))]
    answer = client.post("/v1/query", files=photos)
    assert answer.status_code == 422
    assert "use /v1/query/batch" in answer.json()["error"]


def test_names_are_made_safe():
    assert make_safe_name("a/../b\\c\0d.png") == "c_d.png"
    assert make_safe_name(None) == make_safe_name("") == make_safe_name("///") == make_safe_name("-..-") == "photo"
    assert len(make_safe_name("é" * 200 + ".jpeg").encode()) <= 101
    assert make_upload("x.png", b"1", ServiceSettings()) == Upload("x.png", b"1")


def test_a_body_that_never_arrives_is_given_up():
    async def never():
        await asyncio.sleep(60)

    async def app(scope, receive, send):
        await receive()

    limited = BodyLimit(app, ServiceSettings(body_seconds=0.1))
    scope = {"type": "http", "path": "/v1/query", "headers": []}
    with pytest.raises(Refused, match=r"not complete after 0\.1 s") as refusal:
        asyncio.run(limited(scope, never, None))
    assert refusal.value.status == 408
