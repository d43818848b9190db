"""The part of the suite of stores that is about documents and pieces; `StoreContract` has the fixtures."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np


class DocumentContract:
    """Documents are put, swapped, listed and erased; pieces come many at a time."""

    def test_documents_of_any_size_are_put_read_listed_and_erased(self, store, name):
        large = np.random.default_rng(0).bytes(20_000_000)
        kept = {f"{name}/b/file.npy": large, f"{name}/a": b"", f"{name}/b/é": b"\x00\xff"}
        assert store.read(f"{name}/a") is None
        for key, data in kept.items():
            store.put(key, data)
        assert store.keys(f"{name}/") == sorted(kept)
        assert store.keys(f"{name}/b/") == sorted(kept)[1:]
        for key, data in kept.items():
            assert store.read(key) == data
        store.put(f"{name}/b/file.npy", b"short")
        assert store.read(f"{name}/b/file.npy") == b"short"
        for _ in range(2):
            store.erase(f"{name}/a")
            assert store.read(f"{name}/a") is None
            assert store.keys(f"{name}/") == sorted(kept)[1:]

    def test_pieces_are_put_and_read_many_at_a_time_and_erased_by_what_lists_them(self, store, url, name):
        folder, other = f"{name}/patches/", f"{name}/other/"
        large = np.random.default_rng(0).bytes(100_000)
        kept = {number: large[: 1000 * number] for number in (0, 3, 70, 99)}
        assert store.read_pieces(folder, [3, 4]) == {}
        store.put_pieces(other, {3: b"another folder's"})
        store.put_pieces(folder, dict(list(kept.items())[:3]))
        store.put_pieces(folder, dict(list(kept.items())[1:]))
        store.seal_pieces(folder)
        store.put_pieces(folder, {7: b"added"})
        seen = self.connect(url)
        assert seen.read_pieces(folder, [7, *kept, 5]) == {**kept, 7: b"added"}
        listed = seen.keys(folder)
        assert listed
        assert all(key.startswith(folder) for key in listed)
        for key in listed:
            store.erase(key)
        assert seen.keys(folder) == []
        assert seen.read_pieces(other, [3]) == {3: b"another folder's"}
        seen.close()

    def test_a_swap_happens_only_if_nobody_was_faster(self, store, name):
        key = f"{name}/header"
        assert not store.swap(key, b"old", b"new")
        assert store.read(key) is None
        assert store.swap(key, None, b"one")
        assert not store.swap(key, None, b"other")
        assert not store.swap(key, b"On", b"other")
        assert store.read(key) == b"one"
        assert store.swap(key, b"one", b"two")
        assert store.read(key) == b"two"
        store.erase(key)
        assert store.swap(key, None, b"three")

    def test_of_eight_that_swap_at_once_one_wins(self, store, url, name):
        other, key, old = self.connect(url), f"{name}/header", None
        together = Barrier(8)

        def try_it(turn: int, who: int) -> bytes | None:
            new = f"{turn} {who} ".encode() * 20
            together.wait()
            return new if (store, other)[who % 2].swap(key, old, new) else None

        with ThreadPoolExecutor(8) as threads:
            for turn in range(12):
                won = [new for new in threads.map(try_it, [turn] * 8, range(8)) if new is not None]
                assert len(won) == 1
                assert store.read(key) == other.read(key) == won[0]
                old = won[0]
        other.close()
