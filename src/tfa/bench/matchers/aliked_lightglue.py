"""ALIKED keypoints matched by LightGlue, and the matches that one fundamental matrix explains: what users of hloc have.

Both networks are kornia's, with their authors' weights and default settings: keypoints above a score of 0.2, matches
above 0.1. The matrix is OpenCV's MAGSAC++. Photos have at most 1,024 pixels a side and are not enlarged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tfa.bench.matchers.aliked_lightglue_weights import ALIKED, LIGHTGLUE, SHA256, get_weights, weights_path
from tfa.bench.matchers.contract import Matched
from tfa.core.files import hash_json
from tfa.core.progress import Progress
from tfa.errors import BadWeights, MissingExtra
from tfa.photos.images import as_rgb, resize

SIDE = 1024  # pixels of the longer side, at most
CHANNELS = 128  # of a descriptor
LEAST = 8  # matches that a fundamental matrix is fitted to; fewer explain nothing
TOLERANCE = 4.0  # pixels from the epipolar line, as COLMAP's own verification allows
SURE, TRIALS = 0.9999, 10_000  # of the search for the matrix
DERIVED = {"dkd.hw_grid", "confidence_thresholds"}  # buffers that kornia computes itself


@dataclass(frozen=True)
class Keypoints:
    """Of one photo, in pixels of the size that it was described in."""

    places: Tensor  # n 2: x, y
    descriptors: Tensor  # n 128
    size: tuple[int, int]  # width, height

    def __len__(self) -> int:
        return len(self.places)

    def as_input(self) -> dict[str, Tensor]:
        size = torch.tensor([self.size], dtype=torch.float32)
        return {"keypoints": self.places[None], "descriptors": self.descriptors[None], "image_size": size}


def open_aliked_lightglue(progress: bool | Progress | None = None) -> AlikedLightGlue:
    try:
        import cv2
        import kornia
        from kornia.feature import ALIKED as Aliked
        from kornia.feature import LightGlue
    except ImportError:
        raise MissingExtra(
            "the matcher aliked-lightglue needs kornia 0.9 or newer and OpenCV; install with pip install "
            "'tfa-vpr[peers]'"
        ) from None
    weights = get_weights(progress)
    detector = _loaded(Aliked("aliked-n16"), weights[ALIKED])
    without_weights: Any = LightGlue  # kornia declares no None, which keeps it from fetching weights itself
    matcher = _loaded(without_weights(None, input_dim=CHANNELS), weights[LIGHTGLUE])
    return AlikedLightGlue(detector, matcher, {"kornia": kornia.__version__, "opencv": cv2.__version__})


def _loaded(network: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    problems = network.load_state_dict(weights, strict=False)
    wrong = sorted({*problems.missing_keys, *problems.unexpected_keys} - DERIVED)
    if wrong:
        raise BadWeights(
            f"{weights_path()} and this kornia's {type(network).__name__} differ in {len(wrong)} tensors, {wrong[0]} "
            "first; install the kornia of constraints.txt",
            weights_path(),
        )
    return network.eval().requires_grad_(False)


class AlikedLightGlue:
    """The matcher on the CPU, in float32."""

    name, title = "aliked-lightglue", "ALIKED + LightGlue"

    def __init__(self, detector: nn.Module, matcher: nn.Module, versions: Mapping[str, str]) -> None:
        self.detector, self.matcher = detector, matcher
        settings = {"side": SIDE, "least": LEAST, "tolerance": TOLERANCE, "sure": SURE, "trials": TRIALS}
        self.fingerprint = hash_json({"weights": SHA256, "settings": settings, "versions": dict(versions)})

    @torch.inference_mode()
    def describe(self, photo: Path) -> Keypoints:
        image = as_rgb(photo)
        scale = min(1.0, SIDE / max(image.size))
        width, height = (max(1, round(side * scale)) for side in image.size)
        pixels = np.array(resize(image, (width, height)), np.float32) / 255
        [found] = self.detector(torch.from_numpy(pixels).permute(2, 0, 1)[None])
        return Keypoints(found.keypoints, found.descriptors, (width, height))

    @torch.inference_mode()
    def compare(self, query: Keypoints, candidate: Keypoints) -> Matched:
        if min(len(query), len(candidate)) == 0:
            return Matched(0, 0)
        found = self.matcher({"image0": query.as_input(), "image1": candidate.as_input()})
        ours, theirs = found["matches"][0].unbind(1)
        return Matched(len(ours), explained(query.places[ours].numpy(), candidate.places[theirs].numpy()))


def explained(ours: np.ndarray, theirs: np.ndarray) -> int:
    """How many pairs of places `n 2` the best fundamental matrix explains; the same for the same pairs."""
    import cv2

    if len(ours) < LEAST:
        return 0
    try:
        found: Any = cv2.findFundamentalMat(ours, theirs, cv2.USAC_MAGSAC, TOLERANCE, SURE, TRIALS)
    except cv2.error:  # OpenCV 5 fails an assertion of its own where no sample of the pairs gives a matrix
        return 0
    return 0 if found[1] is None else int(np.count_nonzero(found[1]))
