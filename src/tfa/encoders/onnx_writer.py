"""A computation written down as an ONNX model, without the onnx package.

The counterpart of `onnx_reader`: a message of protobuf is a run of (field number, wire type, value). Field
numbers are those of onnx.proto; each message below names its own.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

OPSET = 20  # the first with Gelu and LayerNormalization in it
CONTRIBUTED = "com.microsoft"  # onnxruntime's own operators
_IR_VERSION = 9
_DTYPES = {"float32": 1, "uint8": 2, "int8": 3, "int64": 7}  # TensorProto.DataType
_FLOAT, _INT, _INTS = 1, 2, 7  # AttributeProto.AttributeType

Attribute = int | float | Sequence[int]


class OnnxWriter:
    """Constants and nodes in the order they are added; every method returns the name of what it added."""

    def __init__(self) -> None:
        self._constants: list[bytes] = []
        self._nodes: list[bytes] = []
        self._names = 0

    def constant(self, array: np.ndarray) -> str:
        """TensorProto: dims = 1, data_type = 2, name = 8, raw_data = 9."""
        name = self._new_name()
        dims = b"".join(_field(1, side) for side in array.shape)
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        kind = _field(2, _DTYPES[str(array.dtype)])
        self._constants.append(dims + kind + _field(8, name) + _field(9, little.tobytes()))
        return name

    def node(self, operator: str, *inputs: str, domain: str = "", **attributes: Attribute) -> str:
        return self.nodes(operator, 1, *inputs, domain=domain, **attributes)[0]

    def nodes(
        self, operator: str, outputs: int, *inputs: str, domain: str = "", **attributes: Attribute
    ) -> tuple[str, ...]:
        """NodeProto: input = 1, output = 2, op_type = 4, attribute = 5, domain = 7. An empty input is left out."""
        names = tuple(self._new_name() for _ in range(outputs))
        parts = [_field(1, name) for name in inputs] + [_field(2, name) for name in names]
        parts += [_field(4, operator)] + [_field(5, _attribute(*item)) for item in attributes.items()]
        self._nodes.append(b"".join(parts) + _field(7, domain))
        return names

    def model(self, inputs: Mapping[str, Sequence[int]], outputs: Sequence[str]) -> bytes:
        """ModelProto: ir_version = 1, graph = 7, opset_import = 8.

        GraphProto: node = 1, name = 2, initializer = 5, input = 11, output = 12. OperatorSetId: domain = 1,
        version = 2. Inputs are float32 of fixed shapes; shapes of outputs are found out by who runs the model.
        """
        graph = [_field(1, node) for node in self._nodes] + [_field(2, "tfa")]
        graph += [_field(5, constant) for constant in self._constants]
        graph += [_field(11, _float_value(name, shape)) for name, shape in inputs.items()]
        graph += [_field(12, _float_value(name, None)) for name in outputs]
        operators = [_field(8, _field(1, domain) + _field(2, n)) for domain, n in (("", OPSET), (CONTRIBUTED, 1))]
        return _field(1, _IR_VERSION) + b"".join(operators) + _field(7, b"".join(graph))

    def _new_name(self) -> str:
        self._names += 1
        return f"v{self._names}"


def _attribute(name: str, value: Attribute) -> bytes:
    """AttributeProto: name = 1, f = 2, i = 3, ints = 8, type = 20."""
    if isinstance(value, float):
        number, kind = _key(2, 5) + struct.pack("<f", value), _FLOAT
    elif isinstance(value, int):
        number, kind = _field(3, value), _INT
    else:
        number, kind = b"".join(_field(8, item) for item in value), _INTS
    return _field(1, name) + number + _field(20, kind)


def _float_value(name: str, shape: Sequence[int] | None) -> bytes:
    """ValueInfoProto: name = 1, type = 2. TypeProto: tensor_type = 1, in it elem_type = 1, shape = 2, dim = 1."""
    tensor = _field(1, _DTYPES["float32"])
    if shape is not None:
        tensor += _field(2, b"".join(_field(1, _field(1, side)) for side in shape))
    return _field(1, name) + _field(2, _field(1, tensor))


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _key(number, 0) + _varint(value)
    content = value.encode() if isinstance(value, str) else value
    return _key(number, 2) + _varint(len(content)) + content


def _key(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _varint(value: int) -> bytes:
    """Little-endian in base 128; a negative number as its 64-bit two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
