"""A map for other programs: retrieval pairs, compiled vectors, an index file, the query side or all of it as a graph.

In: a map. Out: files in formats of others. May see: the map.
"""

from tfa.exports.hloc_pairs import retrieval_pairs, write_pairs
from tfa.exports.onnx_place import rows_path, write_onnx_place
from tfa.exports.onnx_query_side import write_onnx_head
from tfa.exports.vectors import CompiledMap, compiled_map, write_faiss, write_npz

__all__ = [
    "CompiledMap",
    "compiled_map",
    "retrieval_pairs",
    "rows_path",
    "write_faiss",
    "write_npz",
    "write_onnx_head",
    "write_onnx_place",
    "write_pairs",
]
