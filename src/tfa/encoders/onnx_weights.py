"""The weights inside an ONNX file, read without the onnx package.

ONNX is protobuf: a message is a run of (field number, wire type, value). A dozen field numbers of onnx.proto
are enough: ModelProto.graph = 7; GraphProto.node = 1, .initializer = 5; NodeProto.input = 1, .name = 3;
TensorProto.dims = 1, .data_type = 2, .float_data = 4, .name = 8, .raw_data = 9.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tfa.errors import BadWeights

_FLOAT = 1  # TensorProto.DataType
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


@dataclass(frozen=True)
class OnnxGraph:
    """Float initialisers by name, and the inputs of every node by the node's name."""

    tensors: dict[str, np.ndarray]
    inputs: dict[str, list[str]]


def read_onnx(content: bytes) -> OnnxGraph:
    """Initialisers and nodes of a serialised ONNX model. Tensors are read-only views of `content`."""
    tensors: dict[str, np.ndarray] = {}
    inputs: dict[str, list[str]] = {}
    for number, graph in _fields(memoryview(content)):
        if number != 7:
            continue
        for part, message in _fields(_message(graph)):
            if part == 1:
                name, sources = _node(_message(message))
                inputs[name] = sources
            elif part == 5:
                _add_tensor(tensors, _message(message))
    return OnnxGraph(tensors, inputs)


def _node(message: memoryview) -> tuple[str, list[str]]:
    name, sources = "", []
    for number, value in _fields(message):
        if number == 1:
            sources.append(_text(value))
        elif number == 3:
            name = _text(value)
    return name, sources


def _add_tensor(tensors: dict[str, np.ndarray], message: memoryview) -> None:
    name, kind, shape = "", 0, []
    data: np.ndarray | None = None
    for number, value in _fields(message):
        if number == 1:
            shape += [value] if isinstance(value, int) else list(_varints(value))  # packed or not
        elif number == 2:
            kind = int(value) if isinstance(value, int) else 0
        elif number == 8:
            name = _text(value)
        elif number in (4, 9) and isinstance(value, memoryview):  # packed floats and raw data are the same bytes
            data = np.frombuffer(value, dtype="<f4") if len(value) % 4 == 0 else None
    if kind != _FLOAT:
        return  # shapes and indices of the graph's own bookkeeping
    if data is None or data.size != math.prod(shape):
        raise BadWeights(f"the ONNX tensor {name!r} does not hold the {math.prod(shape)} floats of its shape {shape}")
    tensors[name] = data.reshape(shape)


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Field numbers and values of one message, in file order."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        value: int | memoryview
        if wire == _VARINT:
            value, at = _varint(message, at)
        elif wire in (_FIXED64, _FIXED32, _BYTES):
            length = {_FIXED64: 8, _FIXED32: 4}.get(wire, 0)
            if wire == _BYTES:
                length, at = _varint(message, at)
            if length > len(message) - at:
                raise BadWeights(f"the ONNX file is truncated: {length} bytes announced, {len(message) - at} left")
            value, at = message[at : at + length], at + length
        else:
            raise BadWeights(f"the ONNX file has an unknown wire type {wire}; it is damaged or not protobuf")
        yield number, value


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A little-endian base-128 number at `at`, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):  # 64 bits take at most ten bytes
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise BadWeights("the ONNX file is truncated or damaged: a number does not end")


def _varints(message: memoryview) -> Iterator[int]:
    at = 0
    while at < len(message):
        value, at = _varint(message, at)
        yield value


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise BadWeights("the ONNX file has a number where a message belongs; it is damaged or not an ONNX model")
    return value


def _text(value: int | memoryview) -> str:
    return str(_message(value), "utf-8", "replace")
