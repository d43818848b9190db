"""Builder of ONNX graphs; values are named by number."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

IR_VERSION = 9  # supported by runtimes since 2023
CONTRIBUTED = "com.microsoft"  # domain of onnxruntime's operators


class Graph:
    """Nodes, constants, inputs and outputs. Values are names of arrays; methods that add one return its name."""

    def __init__(self, opset: int) -> None:
        self._onnx = importlib.import_module("onnx")  # slow to import, so only when needed
        self._opset = opset
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._count = 0

    def input(self, name: str, shape: Sequence[str | int]) -> str:
        """Add a float32 input; named axes may have any length."""
        self._inputs.append(self._described(name, shape))
        return name

    def output(self, value: str, name: str, shape: Sequence[str | int]) -> None:
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name]))
        self._outputs.append(self._described(name, shape))

    def add(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        return self.split(kind, 1, *inputs, domain=domain, **attributes)[0]

    def split(self, kind: str, outputs: int, *inputs: str, domain: str = "", **attributes: Any) -> list[str]:
        """Add a node with several outputs. An empty input name omits that input."""
        names = [self._fresh() for _ in range(outputs)]
        self._nodes.append(self._onnx.helper.make_node(kind, inputs, names, domain=domain, **attributes))
        return names

    def constant(self, array: Any) -> str:
        name = self._fresh()
        self._constants.append(self._onnx.numpy_helper.from_array(np.array(array), name))
        return name

    def wide(self, array: np.ndarray) -> str:
        """Add a constant as float32; float16 stays float16 in the file."""
        if array.dtype == np.float32:
            return self.constant(array)
        kept = array if array.dtype == np.float16 else array.astype(np.float32)
        return self.add("Cast", self.constant(kept), to=self._onnx.TensorProto.FLOAT)

    def axes(self, *axes: int) -> str:
        return self.constant(np.array(axes, np.int64))

    def total(self, value: str, axis: int, *, keep: bool = False) -> str:
        return self.add("ReduceSum", value, self.axes(axis), keepdims=int(keep))

    def norm(self, value: str) -> str:
        """Add the L2 norm along the last axis, which is kept with length one."""
        return self.add("Sqrt", self.total(self.add("Mul", value, value), -1, keep=True))

    def unit(self, value: str, dtype: type[np.floating[Any]] = np.float32) -> str:
        """Add L2 normalization along the last axis; zero vectors stay zero."""
        norm = self.norm(value)
        positive = self.add("Greater", norm, self.constant(dtype(0)))
        return self.add("Div", value, self.add("Where", positive, norm, self.constant(dtype(1))))

    def cast(self, value: str, dtype: type[np.floating[Any]]) -> str:
        return self.add("Cast", value, to=self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def model(self, name: str, metadata: Mapping[str, str] | None = None) -> bytes:
        """Return the checked and serialized model."""
        helper = self._onnx.helper
        graph = helper.make_graph(self._nodes, name, self._inputs, self._outputs, self._constants)
        opsets = [helper.make_opsetid("", self._opset)]
        if any(node.domain == CONTRIBUTED for node in self._nodes):
            opsets.append(helper.make_opsetid(CONTRIBUTED, 1))
        model = helper.make_model(graph, producer_name="tfa", opset_imports=opsets, ir_version=IR_VERSION)
        helper.set_model_props(model, dict(metadata or {}))
        content: bytes = model.SerializeToString()
        self._onnx.checker.check_model(content)
        return content

    def _described(self, name: str, shape: Sequence[str | int]) -> Any:
        return self._onnx.helper.make_tensor_value_info(name, self._onnx.TensorProto.FLOAT, list(shape))

    def _fresh(self) -> str:
        self._count += 1
        return f"t{self._count}"
