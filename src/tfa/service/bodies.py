"""Request and response bodies: photos and options from a multipart form or JSON with base64; replies as JSON."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, TypeVar, cast, get_args, get_origin

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartParser

from tfa.core.plain import Options, hints, to_plain
from tfa.errors import BadSpec
from tfa.photos.images import EXTENSIONS, image_extensions
from tfa.service.middleware import format_megabytes
from tfa.service.problems import Refused, join_problems
from tfa.service.settings import ServiceSettings

LONGEST_NAME = 100


@dataclass(frozen=True)
class Upload:
    """An uploaded photo; `name` is the sender's file name, made safe."""

    name: str
    content: bytes


def make_safe_name(text: str | None) -> str:
    """Return the last part of a path without characters that are special to a path or a shell."""
    name = unicodedata.normalize("NFC", text or "").replace("\\", "/").rsplit("/", 1)[-1]
    name = re.sub(r"[^\w.@+-]+", "_", name).lstrip(".-_")
    # File systems limit names in bytes; keep the extension.
    stem, dot, ending = name.rpartition(".") if "." in name else (name, "", "")
    ending = ending.encode()[:10].decode("utf-8", "ignore")
    stem = stem.encode()[: LONGEST_NAME - len(ending.encode())].decode("utf-8", "ignore")
    return f"{stem}{dot}{ending}" if stem else "photo"


def make_upload(name: str | None, content: bytes, settings: ServiceSettings) -> Upload:
    """Create an upload; refuse empty and too large files."""
    upload, most = Upload(make_safe_name(name), content), settings.max_upload
    if not content:
        raise Refused(422, f"{upload.name} is empty; send the bytes of a photo")
    if len(content) > most:
        size = format_megabytes(most)
        raise Refused(413, f"{upload.name} is larger than {size}, the limit for one photo; send a smaller copy")
    return upload


def from_base64(text: str, number: int, settings: ServiceSettings) -> Upload:
    """Decode a base64 photo, with or without a data URL prefix."""
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        sentence = f"image {number + 1} is not base64; encode the bytes of the photo file, in one line"
        raise Refused(422, sentence) from None
    return make_upload(f"image-{number + 1}", content, settings)


def file_name(upload: Upload, kind: str) -> str:
    """Return the upload's name with an image extension; `kind` is Pillow's format name."""
    known = PurePosixPath(upload.name).suffix.lower() in image_extensions()
    return upload.name if known else f"{upload.name}{EXTENSIONS[kind]}"


OptionsT = TypeVar("OptionsT", bound=Options)
_BOUNDS = {"ge": "minimum", "le": "maximum"}
MultiPartParser.spool_max_size = 2**31  # in memory, within the limit of a body: /tmp may not be writable
MAX_FILES = 2048  # files to parse at most; the settings limit photos further
MAX_FIELDS = 256  # form fields that are not photos; a list has one for each item
FIELD_BYTES = 1_000_000  # text that is not a photo, such as the positions of a batch
PHOTO_KEYS = ("image", "images")
MOST_ITEMS = 1024  # maximum items of a list; the largest batch has as many positions
JSON_MARKS = 20_000  # commas and brackets of a JSON body; base64 has none, a position has four
EXAMPLE = 'send an object such as {"image": "<base64>"}'


def body_schema(options: type[Options], key: str) -> dict[str, Any]:
    """Describe a body with photos for OpenAPI; `key` is `image`, or `images` if several are allowed."""
    fields = simplify_schema(TypeAdapter(options).json_schema())
    properties, required = fields.get("properties", {}), fields.get("required", [])

    def schema(**photo: str) -> dict[str, Any]:
        shown = {"type": "string", **photo}
        taken = {key: shown if key == "image" else {"type": "array", "items": shown}}
        return {"schema": {"type": "object", "properties": {**taken, **properties}, "required": [key, *required]}}

    content = {
        "multipart/form-data": schema(format="binary"),
        "application/json": schema(format="byte", description="base64"),
    }
    return {"requestBody": {"required": True, "content": content}}


def simplify_schema(schema: Any, bounds: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Rewrite a pydantic schema so that more programs can read it.

    Bounds of a union move to its members that are numbers; a tuple of one type becomes a list of a fixed length.
    """
    if not isinstance(schema, dict):
        return [simplify_schema(item) for item in schema] if isinstance(schema, list) else schema
    bounds = {**bounds, **{key: schema[key] for key in _BOUNDS if "anyOf" in schema and key in schema}}
    moved = {key: value for key, value in schema.items() if key not in bounds}
    if "anyOf" in moved:
        moved["anyOf"] = [simplify_schema(member, bounds) for member in moved["anyOf"]]
    elif moved.get("type") in ("integer", "number"):
        moved |= {_BOUNDS[key]: value for key, value in bounds.items()}
    members = moved.get("prefixItems")
    if isinstance(members, list) and all(member == members[0] for member in members):
        moved["items"] = moved.pop("prefixItems")[0]
    return {key: value if key == "anyOf" else simplify_schema(value) for key, value in moved.items()}


@cache
def _readers(options: Any) -> dict[str, tuple[TypeAdapter[Any], Any]]:
    """Return the adapter of each field, and its item type if it is a list."""

    def item_type(hint: Any) -> Any:
        arguments = get_args(hint)
        return arguments[0] if get_origin(hint) is tuple else next(filter(None, map(item_type, arguments)), None)

    return {name: (TypeAdapter(hint), item_type(hint)) for name, hint in hints(options).items()}


def parse_options(options: type[OptionsT], fields: Mapping[str, Any]) -> OptionsT:
    """Read options from a form or JSON: text becomes numbers, and a single item becomes a list.

    A list of numbers may also be comma-separated text; other text may contain commas.
    """
    read, kind = dict(fields), cast(Any, options)  # mypy considers a class unhashable
    for name, (reader, item) in _readers(kind).items():
        if name not in read:
            continue
        value = read[name]
        if item is not None and isinstance(value, str):
            value = [value] if item is str else value.split(",")
        if isinstance(value, list) and len(value) > MOST_ITEMS:  # each may get an error
            raise Refused(413, f"{name} has {len(value):,} items; send at most {MOST_ITEMS:,}")
        try:
            read[name] = reader.validate_python(value)
        except ValidationError as error:
            places = [{**one, "loc": (name, *one["loc"])} for one in error.errors()]
            raise Refused(422, join_problems(places)) from None
    try:
        return options.from_dict(read)
    except BadSpec as error:
        raise Refused(422, f"invalid request: {error.public}. See /openapi.json") from None


def reply(value: Any, status: int = 200) -> JSONResponse:
    """Return a value of `tfa.types`, or several, as a JSON response."""
    return JSONResponse(to_plain(value), status)


async def read_photos(
    request: Request, options: type[OptionsT], settings: ServiceSettings
) -> tuple[list[Upload], OptionsT]:
    """Read the photos and options of a request; refuse too many photos, other body types and unknown fields."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        uploads, fields = await _from_form(request, settings)
    elif kind == "application/json":
        uploads, fields = await asyncio.to_thread(_from_json, await request.body(), settings)
    else:
        problem = f"Content-Type {kind!r} is not supported" if kind else "Content-Type is missing"
        raise Refused(415, f"{problem}; send multipart/form-data with the photo, or application/json")
    if not uploads:
        raise Refused(422, "no photo in the request; send it as the form field 'image' (several: 'images')")
    if not _is_short(fields):
        raise Refused(413, f"fields other than photos have more than {FIELD_BYTES:,} characters; send shorter ones")
    return uploads, parse_options(options, fields)


async def read_photo(request: Request, options: type[OptionsT], settings: ServiceSettings) -> tuple[Upload, OptionsT]:
    """Read the photo and options of a request that takes one photo."""
    uploads, fields = await read_photos(request, options, settings)
    if len(uploads) > 1:
        raise Refused(422, f"{len(uploads)} photos in a request for one; use /v1/query/batch for several")
    return uploads[0], fields


def _is_short(fields: Mapping[str, Any]) -> bool:
    """Count the characters of all names and texts, which errors may repeat."""
    parts, left = list[Any]([fields]), FIELD_BYTES
    while parts and left >= 0:
        match parts.pop():
            case str(text):
                left -= len(text)
            case dict(members):
                parts += [*members, *members.values()]
            case list(items):
                parts += items
    return left >= 0


def _check_count(photos: int, settings: ServiceSettings) -> None:
    if photos > settings.max_batch:
        most = settings.max_batch
        raise Refused(413, f"more than {most} photos in one request; send at most {most}")


async def _from_form(request: Request, settings: ServiceSettings) -> tuple[list[Upload], dict[str, Any]]:
    try:
        form = await request.form(max_files=MAX_FILES, max_fields=MAX_FIELDS, max_part_size=FIELD_BYTES)
    except HTTPException as error:
        raise Refused(400, f"the form cannot be read: {error.detail}; send multipart/form-data") from None
    uploads, texts = list[Upload](), dict[str, list[str]]()
    try:
        for key, value in form.multi_items():
            if isinstance(value, UploadFile):
                if key not in PHOTO_KEYS:
                    raise Refused(422, f"unknown file field {key!r}; send photos as 'image' or 'images'")
                _check_count(len(uploads) + 1, settings)
                # Read one byte more than allowed, to detect a photo that is too large without reading it all.
                uploads.append(make_upload(value.filename, await value.read(settings.max_upload + 1), settings))
            elif key in PHOTO_KEYS:
                raise Refused(422, f"the form field {key!r} must be a file; in JSON it may be base64")
            elif value != "":  # an empty form field means the default
                texts.setdefault(key, []).append(value)
    finally:
        await form.close()
    return uploads, {key: values[0] if len(values) == 1 else values for key, values in texts.items()}


def parse_sent_json(text: str | bytes) -> Any:
    """Parse JSON that a client sent; ValueError if it is not JSON or has too many parts.

    Parsing holds Python's lock, so that another thread does not help. The parts are counted first, which is fast.
    """
    content = text.encode() if isinstance(text, str) else text
    escapes = content.count(b"\\")  # a few programs write every / of base64 as \\/
    if sum(map(content.count, (b",", b"[", b"{"))) > JSON_MARKS or escapes > JSON_MARKS + len(content) // 16:
        raise ValueError(f"it has more than {JSON_MARKS:,} parts")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _from_json(content: bytes, settings: ServiceSettings) -> tuple[list[Upload], dict[str, Any]]:
    try:
        body = parse_sent_json(content)
    except ValueError as error:
        problem = str(error) if type(error) is ValueError else "it is not JSON"
        raise Refused(400, f"the body cannot be read: {problem}; {EXAMPLE}") from None
    if not isinstance(body, dict):
        raise Refused(422, f"the body is a JSON {type(body).__name__}; {EXAMPLE}")
    texts = [body.pop("image")] if "image" in body else []
    many = body.pop("images", [])
    texts += many if isinstance(many, list) else [many]
    if not all(isinstance(text, str) for text in texts):
        raise Refused(422, "photos in JSON must be base64 text")
    _check_count(len(texts), settings)
    return [from_base64(text, number, settings) for number, text in enumerate(texts)], body
