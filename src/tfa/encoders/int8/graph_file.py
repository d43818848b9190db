"""Integer graphs in the user's cache: made once by torch and transformers, read by onnxruntime alone ever after.

A file is the sha256 of the graph, 32 bytes, and the graph. Its name is the fingerprint of the tokens it gives, so
whatever would change them makes another file. One that is damaged counts as none.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from tfa.base.files import cache_folder, write_atomically

PIXELS = "pixels"  # the graph's input, float32 `1 3 h w`; its output is `1 prefix+n d`
_DIGEST = 32  # bytes


def graph_path(fingerprint: str) -> Path:
    return cache_folder() / "weights" / f"int8-{fingerprint[:32]}.graph"


def read_graph(fingerprint: str) -> bytes | None:
    """The graph of an encoder in integers; None if it was not made yet, or its file is damaged."""
    try:
        content = graph_path(fingerprint).read_bytes()
    except OSError:
        return None
    digest, graph = content[:_DIGEST], content[_DIGEST:]
    return graph if hashlib.sha256(graph).digest() == digest else None


def write_graph(fingerprint: str, graph: bytes) -> None:
    """For the next process. Where nothing can be written, the graph is made again each time."""
    content = hashlib.sha256(graph).digest() + graph
    with contextlib.suppress(OSError):
        write_atomically(graph_path(fingerprint), lambda temporary: temporary.write_bytes(content))
