"""Export maps and answers for other programs: retrieval pairs, descriptors, indexes, ONNX graphs, answer files."""

from tfa.exports.answers import ExportContext, write_answers
from tfa.exports.hloc import (
    query_vectors,
    rank_pairs,
    write_hloc_features,
    write_kapture_pairs,
    write_match_list,
    write_pairs,
    write_view_pairs,
)
from tfa.exports.onnx_head import rows_path, write_onnx_head, write_onnx_place
from tfa.exports.vectors import CompiledMap, compile_map, write_faiss, write_npz

__all__ = [
    "CompiledMap",
    "ExportContext",
    "compile_map",
    "query_vectors",
    "rank_pairs",
    "rows_path",
    "write_answers",
    "write_faiss",
    "write_hloc_features",
    "write_kapture_pairs",
    "write_match_list",
    "write_npz",
    "write_onnx_head",
    "write_onnx_place",
    "write_pairs",
    "write_view_pairs",
]
