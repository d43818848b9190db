"""Encoders at about twice the speed on a CPU: linear layers in 8-bit integers, run by onnxruntime.

An encoder and its fast form are one model: they share the name, and a map made with one may be queried with the
other. Their tokens differ by the rounding of 8 bits, so each has its own shelf in the token cache.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tfa.encoders.dino import DinoEncoder
from tfa.encoders.encoder_name import EncoderId
from tfa.encoders.fingerprint import fast_fingerprint
from tfa.encoders.int8.graph_file import PIXELS
from tfa.errors import MissingExtra

if TYPE_CHECKING:
    from PIL import Image


class FastEncoder(DinoEncoder):
    """An `Encoder` over the integer graph of a vision transformer.

    Each image is quantised by itself, so its tokens do not depend on the batch it comes in. A batch is shared out
    among `threads` threads that work on an image each; fewer images than threads are computed by all threads together.
    """

    def __init__(self, identity: EncoderId, weights_sha256: str, graph: bytes, threads: int) -> None:
        super().__init__(identity, weights_sha256, "cpu")
        self.fingerprint = fast_fingerprint(self.model)
        self._threads, self.graph = threads, graph
        self._session = cache(self._new_session)  # by its threads

    @property
    def model_bytes(self) -> int:
        """Size of the integer model."""
        return len(self.graph)

    def encode(self, images: Sequence[Image.Image]) -> tuple[np.ndarray, np.ndarray | None]:
        """float16 patches `b n d` and CLS tokens `b d`."""
        if len(images) < self._threads:
            session = self._session(self._threads)
            return self._patches_and_cls([self._tokens(session, image) for image in images])
        return self._patches_and_cls(list(self._pool.map(partial(self._tokens, self._session(1)), images)))

    def _tokens(self, session: Any, image: Image.Image) -> np.ndarray:
        return session.run(None, {PIXELS: self._pixels(image)[None]})[0][0].astype(np.float16)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads, thread_name_prefix="tfa-encode")

    def _new_session(self, threads: int) -> Any:
        runtime = import_onnxruntime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors; its warnings are about the machine and not about the model
        return runtime.InferenceSession(self.graph, options, providers=["CPUExecutionProvider"])


def import_onnxruntime() -> Any:
    """The package that runs the graph; an error if it is not installed."""
    try:
        return importlib.import_module("onnxruntime")
    except ImportError:
        raise MissingExtra(
            "the fast form of an encoder needs onnxruntime, which is not installed; "
            "install it with pip install 'tfa-vpr[fast]', or leave out --fast (fast=True)"
        ) from None
