"""A map for other programs: retrieval pairs, compiled vectors, an index file, the query side as a graph."""

from tfa.exports.index import write_faiss
from tfa.exports.onnx_head import write_onnx_head
from tfa.exports.pairs import retrieval_pairs, write_pairs
from tfa.exports.vectors import CompiledMap, compiled_map, write_npz

__all__ = [
    "CompiledMap",
    "compiled_map",
    "retrieval_pairs",
    "write_faiss",
    "write_npz",
    "write_onnx_head",
    "write_pairs",
]
