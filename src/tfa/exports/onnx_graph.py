"""A graph under construction: nodes are added by what they do, and named by number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

OPSET = 18  # the first where every reduction takes its axes as an input
IR_VERSION = 9  # old enough for runtimes of 2023


class Graph:
    """Nodes, constants, inputs and outputs of an ONNX graph. Values are the names of arrays."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._count = 0

    def input(self, name: str, shape: Sequence[str | int]) -> str:
        """A float32 input; axes with a name may have any length."""
        from onnx import TensorProto, helper

        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))
        return name

    def output(self, value: str, name: str, shape: Sequence[str | int]) -> None:
        from onnx import TensorProto, helper

        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        name = self._fresh()
        self._nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, array: Any) -> str:
        from onnx import numpy_helper

        name = self._fresh()
        self._constants.append(numpy_helper.from_array(np.array(array), name))
        return name

    def wide(self, array: np.ndarray) -> str:
        """A float16 or float32 constant as float32; the file keeps it as it is stored."""
        from onnx import TensorProto

        if array.dtype == np.float32:
            return self.constant(array)
        kept = array if array.dtype == np.float16 else array.astype(np.float32)
        return self.add("Cast", self.constant(kept), to=TensorProto.FLOAT)

    def axes(self, *axes: int) -> str:
        return self.constant(np.array(axes, np.int64))

    def total(self, value: str, axis: int, *, keep: bool = False) -> str:
        return self.add("ReduceSum", value, self.axes(axis), keepdims=int(keep))

    def norm(self, value: str) -> str:
        """Along the last axis, which stays with length one."""
        return self.add("Sqrt", self.total(self.add("Mul", value, value), -1, keep=True))

    def unit(self, value: str) -> str:
        """L2 along the last axis; L2(0) = 0."""
        norm = self.norm(value)
        positive = self.add("Greater", norm, self.constant(np.float32(0)))
        return self.add("Div", value, self.add("Where", positive, norm, self.constant(np.float32(1))))

    def model(self, name: str, metadata: Mapping[str, str]) -> Any:
        """The whole, checked."""
        from onnx import checker, helper

        graph = helper.make_graph(self._nodes, name, self._inputs, self._outputs, self._constants)
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, producer_name="tfa", opset_imports=opset, ir_version=IR_VERSION)
        helper.set_model_props(model, dict(metadata))
        checker.check_model(model)
        return model

    def _fresh(self) -> str:
        self._count += 1
        return f"t{self._count}"
