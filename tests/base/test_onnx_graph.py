"""Tests of the ONNX graph builder: graphs are checked and run."""

import numpy as np
import onnx
import pytest

from tfa.encoders.onnx_graph import Graph


def test_what_is_written_can_be_read_and_run():
    graph = Graph(20)
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    half = graph.add("Mul", graph.input("x", [2, 3]), graph.constant(np.array(0.5, np.float32)))
    first, second = graph.split("Split", 2, graph.add("Add", half, graph.constant(rows)), axis=-2, num_outputs=2)
    normed = graph.add("LayerNormalization", first, graph.constant(np.ones(3, np.float32)), epsilon=0.5)
    for value, name in ((normed, "first"), (second, "second")):
        graph.output(value, name, [1, 3])
    model = graph.model("two rows")
    weights = map(onnx.numpy_helper.to_array, onnx.load_from_string(model).graph.initializer)
    np.testing.assert_array_equal(next(array for array in weights if array.ndim == 2), rows)
    runtime = pytest.importorskip("onnxruntime")
    outputs = runtime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": 2 * rows})
    np.testing.assert_allclose(outputs[0], (np.array([[0, 2, 4]]) - 2) / np.sqrt(8 / 3 + 0.5), rtol=1e-6)
    np.testing.assert_array_equal(outputs[1], [[6, 8, 10]])


def test_a_graph_that_is_not_valid_is_refused():
    graph = Graph(20)
    graph.output(graph.add("NoSuchOperator", graph.input("x", [1])), "y", [1])
    with pytest.raises(onnx.checker.ValidationError, match="NoSuchOperator"):
        graph.model("broken")
