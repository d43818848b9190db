"""Encoders at about twice the speed on a CPU: linear layers in 8-bit integers, run by onnxruntime.

An encoder and its fast form are one model: they share the name, and a map made with one may be queried with the
other. Their tokens differ by the rounding of 8 bits, so each has its own shelf in the token cache.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tfa.base.files import sha256_of_json
from tfa.encoders.encoder_name import EncoderId
from tfa.errors import MissingExtra
from tfa.photos.images import resize, to_array

if TYPE_CHECKING:
    from PIL import Image

    from tfa.encoders.weights import Weights

_FAST_VERSION = 1  # raised when the same model comes to give other numbers


class FastEncoder:
    """An `Encoder` over the integer graph of a vision transformer; see `tfa.encoders.protocol`.

    Each image is quantised by itself, so its tokens do not depend on the batch it comes in. A batch is shared out
    among `threads` threads that work on an image each; fewer images than threads are computed by all threads together.
    """

    def __init__(self, identity: EncoderId, weights: Weights, threads: int) -> None:
        from tfa.encoders.int8.graph import int8_graph
        from tfa.encoders.vit import build_model, fingerprint

        self._runtime = onnxruntime()
        self._identity, self._card = identity, identity.card
        self._threads = threads
        self.device = "cpu"
        self.id = str(identity)
        self.notes = identity.notes
        self.grid = identity.grid
        self.channels: int = self._card.width
        self.global_channels: int | None = self._card.width
        self.model = fingerprint(identity, weights.sha256)
        self.fingerprint = sha256_of_json({"version": _FAST_VERSION, "arithmetic": "int8", "model": self.model})
        self._graph = int8_graph(identity, build_model(self._card, identity.layer + 1, weights.tensors))

    @property
    def model_bytes(self) -> int:
        """Size of the integer model."""
        return len(self._graph)

    def prepare(self, image: Image.Image) -> Image.Image:
        """The picture at the encoder's input size."""
        return resize(image, (self._identity.width, self._identity.height), self._card.resample)

    def encode(self, images: Sequence[Image.Image]) -> tuple[np.ndarray, np.ndarray | None]:
        """float16 patches `b n d` and CLS tokens `b d`."""
        tokens = np.empty((len(images), self._card.prefix + self.grid[0] * self.grid[1], self.channels), np.float16)
        session = self._one_thread if len(images) >= self._threads else self._all_threads

        def fill(index: int) -> None:
            tokens[index] = self._tokens(session, images[index])

        if session is self._all_threads:
            for index in range(len(images)):
                fill(index)
        else:
            list(self._pool.map(fill, range(len(images))))
        return np.ascontiguousarray(tokens[:, self._card.prefix :]), np.ascontiguousarray(tokens[:, 0])

    def _tokens(self, session: Any, image: Image.Image) -> np.ndarray:
        card = self._card
        size = (self._identity.width, self._identity.height)
        pixels = to_array(image, size, card.mean, card.std, card.resample)[None]
        return session.run(None, {session.get_inputs()[0].name: pixels})[0][0]

    @cached_property
    def _one_thread(self) -> Any:
        return self._session(1)

    @cached_property
    def _all_threads(self) -> Any:
        return self._one_thread if self._threads == 1 else self._session(self._threads)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads, thread_name_prefix="tfa-encode")

    def _session(self, threads: int) -> Any:
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors; its warnings are about the machine and not about the model
        return self._runtime.InferenceSession(self._graph, options, providers=["CPUExecutionProvider"])


def onnxruntime() -> Any:
    """The package that runs the graph; an error if it, or the one that writes the graph, is not installed."""
    try:
        importlib.import_module("onnx")
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise MissingExtra(
            f"the fast form of an encoder needs {error.name}, which is not installed; "
            "install it with pip install 'tfa-vpr[fast]', or leave out --fast (fast=True)"
        ) from None
