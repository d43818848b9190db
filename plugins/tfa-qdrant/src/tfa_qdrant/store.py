"""A store in a folder with Qdrant's core (qdrant-edge-py): a shard per collection, documents as files.

One process uses the folder at a time; all its connections share it. Qdrant servers (`qdrant://HOST`) are not supported.
"""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import qdrant_edge

from tfa.core.files import make_folder, parse_json, sync_folder, write_json
from tfa.errors import BadSpec, StoreConflict, StoreUnavailable
from tfa.search.store import Store
from tfa_qdrant.collection import DTYPES, QdrantEdgeCollection, config_of
from tfa_qdrant.documents import FolderDocuments, HeldFolder

LARGEST = 65_535  # maximum dimensions in Qdrant
ABOUT = "tfa.json"  # file next to a shard with dimensions, dtype and index


class _Folder:
    """State that all connections of this process to a folder share."""

    def __init__(self, path: Path) -> None:
        self.path, self.users = path, 0
        self.lock = threading.RLock()
        self.held = HeldFolder(path)
        self.open: dict[str, QdrantEdgeCollection] = {}
        self.documents = FolderDocuments(path / "documents", self.lock)

    def close(self) -> None:
        for collection in self.open.values():
            collection.close()
        self.held.release()


_FOLDERS: dict[Path, _Folder] = {}
_LOCK = threading.Lock()


class QdrantEdgeStore(Store):
    """A store at `qdrant:///FOLDER`."""

    scheme = "qdrant"
    one_process = True

    def __init__(self, folder: _Folder) -> None:
        self._folder, self._closed = folder, False

    @classmethod
    def connect(cls, url: str) -> QdrantEdgeStore:
        parts = urlsplit(url)
        if parts.netloc or not parts.path.strip("/"):
            raise BadSpec(
                f"qdrant://{parts.netloc.rpartition('@')[2]}{parts.path} is not a folder; use qdrant:///FOLDER/NAME "
                "with three slashes"
            )
        path = Path(unquote(parts.path)).resolve()
        with _LOCK:
            if path not in _FOLDERS:
                make_folder(path)
                _FOLDERS[path] = _Folder(path)
            _FOLDERS[path].users += 1
            return cls(_FOLDERS[path])

    def _home(self, name: str) -> Path:
        return self._folder.path / "collections" / name

    def create(self, name: str, dimensions: int, dtype: str = "float32") -> QdrantEdgeCollection:
        if dtype not in DTYPES:
            raise BadSpec(f"dtype {dtype} is not supported by Qdrant; use {' or '.join(DTYPES)}")
        if not 1 <= dimensions <= LARGEST:
            raise BadSpec(f"{dimensions} dimensions are out of range for Qdrant: 1 to {LARGEST}; reduce with --dims")
        home = self._home(name)
        with self._folder.lock:
            if home.exists():
                raise StoreConflict(f"collection {name!r} already exists in {home.parent}; drop it first", home)
            temporary = home.parent / f".{name}.{uuid4().hex}"
            make_folder(temporary / "shard")
            library = qdrant_edge
            library.EdgeShard.create(str(temporary / "shard"), config_of(library, dimensions, dtype, None)).close()
            write_json(temporary / ABOUT, {"dimensions": dimensions, "dtype": dtype, "index": None})
            os.rename(temporary, home)
            sync_folder(home.parent)
            return self.open(name)

    def open(self, name: str) -> QdrantEdgeCollection:
        home = self._home(name)
        with self._folder.lock:
            if name in self._folder.open:
                return self._folder.open[name]
            if not home.is_dir():
                raise StoreConflict(f"collection {name!r} not found in {home.parent}; rebuild the map", home)
            try:
                about = parse_json((home / ABOUT).read_bytes())
                collection = QdrantEdgeCollection(qdrant_edge, home, about, lambda now: write_json(home / ABOUT, now))
            except OSError as error:
                why = f"{home} was not created by tfa ({error.strerror}); choose another name"
                raise StoreConflict(why, home) from None
            except Exception as error:  # the library raises no specific type
                raise StoreUnavailable(f"Qdrant cannot open {home}: {error}", home) from error
            self._folder.open[name] = collection
            return collection

    def drop(self, name: str) -> None:
        home = self._home(name)
        with self._folder.lock:
            collection = self._folder.open.pop(name, None)
            if collection is not None:
                collection.close()
            if home.exists():
                gone = home.parent / f".{name}.{uuid4().hex}"
                os.rename(home, gone)
                sync_folder(home.parent)
                shutil.rmtree(gone, ignore_errors=True)

    def names(self, prefix: str = "") -> list[str]:
        home = self._folder.path / "collections"
        found = (one.name for one in home.iterdir()) if home.is_dir() else iter(())
        return sorted(name for name in found if name.startswith(prefix) and not name.startswith("."))

    def read(self, key: str) -> bytes | None:
        return self._folder.documents.read(key)

    def put(self, key: str, data: bytes) -> None:
        self._folder.documents.put(key, data)

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        return self._folder.documents.swap(key, old, new)

    def keys(self, prefix: str = "") -> list[str]:
        return self._folder.documents.keys(prefix)

    def erase(self, key: str) -> None:
        self._folder.documents.erase(key)

    def close(self) -> None:
        """Close the connection; the last one of this process releases the folder."""
        with _LOCK:
            if self._closed:
                return
            self._closed = True
            self._folder.users -= 1
            if self._folder.users == 0:
                del _FOLDERS[self._folder.path]
                self._folder.close()
