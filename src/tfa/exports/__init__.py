"""Export maps and answers for other programs: retrieval pairs, descriptors, indexes, ONNX graphs, answer files."""

from tfa.exports.answers import ExportContext, write_answers

__all__ = ["ExportContext", "write_answers"]
