"""Which store a URL means: `milvus://`, `postgres://`, `lance://`, `qdrant://`; the last part is the map's name."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from urllib.parse import urlsplit, urlunsplit

from tfa.errors import BadSpec
from tfa.search.store import Store

KINDS = {
    "milvus": "tfa.search.engines.milvus:MilvusStore",
    "postgres": "tfa.search.engines.postgres:PostgresStore",
    "lance": "tfa.search.engines.lance:LanceStore",
    "lance+s3": "tfa.search.engines.lance:LanceStore",
    "qdrant": "tfa.search.engines.qdrant_edge:QdrantEdgeStore",
    "memory": "tfa.search.memory_store:MemoryStore",
}
EXAMPLES = (
    "milvus://HOST:19530/NAME, postgres://USER@HOST:5432/DATABASE/NAME, lance:///FOLDER/NAME, "
    "lance+s3://BUCKET/PREFIX/NAME, qdrant:///FOLDER/NAME"
)
NAME_LETTERS = "letters, digits and underscores, a letter first, 40 at most"


def is_url(path: object) -> bool:
    """Does this name a map in an engine, and not one in a folder?"""
    return isinstance(path, str) and "://" in path


def parsed(url: str) -> tuple[type[Store], str, str]:
    """The kind of store, the URL to connect to and the name of the map in it."""
    parts = urlsplit(url)
    if parts.scheme not in KINDS:
        near = get_close_matches(parts.scheme, KINDS, 1)
        hint = f"; did you mean {near[0]}://?" if near else ""
        raise BadSpec(f"{public(url)} names no engine; give one of {EXAMPLES}{hint}")
    base, _, name = parts.path.rstrip("/").rpartition("/")
    if not (name.isascii() and name.replace("_", "a").isalnum() and name[0].isalpha() and len(name) <= 40):
        raise BadSpec(
            f"{public(url)}: {name!r} cannot be the name of a map; use {NAME_LETTERS}. For example {EXAMPLES}"
        )
    module, _, kind = KINDS[parts.scheme].partition(":")
    store: type[Store] = getattr(import_module(module), kind)
    return store, urlunsplit((parts.scheme, parts.netloc, base, parts.query, "")), name


def public(url: str) -> str:
    """The URL without a password: what may be printed."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, f"{parts.username}:***@{host}", parts.path, parts.query, parts.fragment))
