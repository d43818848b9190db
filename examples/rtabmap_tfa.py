"""Python descriptor for RTAB-Map from a TFA map: copy this file next to `place.onnx` of `tfa export --format onnx`.

    rtabmap --Mem/GlobalDescriptorStrategy 1 --Kp/TfIdfLikelihoodUsed false --Mem/RehearsalSimilarity 1 \
            --PyDescriptor/Dim 512 --PyDescriptor/Path ~/town/rtabmap_tfa.py

It needs numpy, Pillow and onnxruntime, not tfa. The interface is that of `PyDescriptor.cpp` in commit 1a841e8 of
introlab/rtabmap: `init(dim)` once, `extract(image)` per frame. Descriptors are padded with zeros to `dim`.
"""

from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

_graph, _dim = None, 0


def init(dim: int) -> None:
    global _graph, _dim
    _graph, _dim = onnxruntime.InferenceSession(str(Path(__file__).with_name("place.onnx"))), dim
    width = _graph.get_outputs()[1].shape[1]
    if width > dim:
        raise ValueError(f"place.onnx has {width} descriptor dimensions; set PyDescriptor/Dim to at least {width}")


def extract(image: np.ndarray) -> np.ndarray:
    """Return float32 `(1, dim)` for a frame `(h, w, c)` in grayscale or BGR, which RTAB-Map passes as signed bytes."""
    pixels = np.ascontiguousarray(image).view(np.uint8)
    rgb = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels[:, :, 2::-1]
    _, _, height, width = _graph.get_inputs()[0].shape
    resized = Image.fromarray(np.ascontiguousarray(rgb)).resize((width, height), Image.Resampling.BILINEAR)
    planes = np.asarray(resized, np.float32).transpose(2, 0, 1)[None] / 255
    [descriptor] = _graph.run(["descriptor"], {"images": planes})
    return np.pad(descriptor, ((0, 0), (0, _dim - descriptor.shape[1])))
