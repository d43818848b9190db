"""A map as a faiss index file."""

from __future__ import annotations

from pathlib import Path

from tfa.base.files import write_atomically
from tfa.errors import MissingExtra
from tfa.exports.vectors import CompiledMap


def write_faiss(path: Path, compiled: CompiledMap) -> None:
    """An exact inner-product index (IndexFlatIP) whose answers are ids of the map.

    The bias is one more dimension: search with Ψ(q) and a 1 at its end.
    """
    try:
        import faiss
    except ImportError:
        raise MissingExtra("a faiss index needs faiss; install with: pip install 'tfa-vpr[export]'") from None
    vectors = compiled.with_bias
    index = faiss.IndexIDMap2(faiss.IndexFlatIP(vectors.shape[1]))
    index.add_with_ids(vectors, compiled.ids)
    write_atomically(Path(path), lambda temporary: faiss.write_index(index, str(temporary)))
