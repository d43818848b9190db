"""Pieces in LanceDB: a table a folder, a row a piece. What is asked for comes in one read, however many there are."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from lancedb.index import BTree

from tfa.search.engines.lance_documents import key_of, stem, table_names
from tfa.search.engines.lance_errors import FAILURES, is_absent

SCHEMA = pa.schema([pa.field("number", pa.int64()), pa.field("data", pa.large_binary())])
AT_ONCE = 1000  # pieces of a write: some 60 MB


class Pieces:
    """Those of one LanceDB connection."""

    def __init__(self, database: Any) -> None:
        self._database, self._lock = database, threading.Lock()
        self._open: dict[str, Any] = {}  # a folder's table is never made again

    def put(self, folder: str, pieces: Mapping[int, bytes]) -> None:
        numbers = sorted(pieces)
        for start in range(0, len(numbers), AT_ONCE):
            part = numbers[start : start + AT_ONCE]
            rows = pa.table({"number": part, "data": [pieces[one] for one in part]}, schema=SCHEMA)
            merge = self._made(folder).merge_insert("number")
            merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def read(self, folder: str, numbers: Sequence[int]) -> dict[int, bytes]:
        table = self._there(folder) if numbers else None
        if table is None:
            return {}
        asked = f"number in ({', '.join(str(int(one)) for one in numbers)})"
        rows = table.search().where(asked).select(["number", "data"]).to_arrow()
        return dict(zip(rows["number"].to_pylist(), rows["data"].to_pylist(), strict=True))

    def seal(self, folder: str) -> None:
        """Gathers the rows of many writes in few files, and sorts their numbers."""
        table = self._there(folder)
        if table is not None:
            table.optimize()
            table.create_index("number", config=BTree(), replace=True)

    def folders(self, prefix: str) -> list[str]:
        return [folder for folder in map(_folder_of, table_names(self._database)) if folder.startswith(prefix)]

    def erase(self, folder: str) -> None:
        self._database.drop_table(stem(folder), ignore_missing=True)
        self._open.pop(folder, None)

    def _there(self, folder: str) -> Any:
        with self._lock:
            if folder not in self._open:
                try:
                    self._open[folder] = self._database.open_table(stem(folder))
                except FAILURES as error:
                    if not is_absent(error):
                        raise
                    return None
            return self._open[folder]

    def _made(self, folder: str) -> Any:
        table = self._there(folder)
        if table is None:
            try:
                self._database.create_table(stem(folder), schema=SCHEMA, mode="create")
            except FAILURES:
                if self._there(folder) is None:  # else somebody else was faster
                    raise
            table = self._there(folder)
        return table


def _folder_of(table: str) -> str:
    return key_of(f"{table}.")
