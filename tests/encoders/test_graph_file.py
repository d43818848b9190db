"""Cached integer graphs: read completely or rebuilt."""

from __future__ import annotations

import pytest

from tfa.encoders.onnx_encoder import graph_path, read_graph, write_graph

NAME, GRAPH = "f" * 64, b"a graph" * 1000


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path))


def test_a_graph_is_read_as_it_was_kept():
    assert read_graph(NAME) is None
    write_graph(NAME, GRAPH)
    assert read_graph(NAME) == GRAPH
    assert read_graph("e" * 64) is None


@pytest.mark.parametrize("cut", [0, 5, 32, 4000, -1])
def test_a_graph_that_is_cut_or_altered_counts_as_none(cut):
    write_graph(NAME, GRAPH)
    whole = graph_path(NAME).read_bytes()
    graph_path(NAME).write_bytes(whole[:cut])
    assert read_graph(NAME) is None
    graph_path(NAME).write_bytes(whole[:cut] + bytes([whole[cut] ^ 1]) + whole[cut + 1 :] if cut >= 0 else whole + b" ")
    assert read_graph(NAME) is None


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path):
    (tmp_path / "weights").write_text("a file")
    write_graph(NAME, GRAPH)
    assert read_graph(NAME) is None
