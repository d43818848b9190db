"""A process that cannot import torch or transformers builds and queries a map."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import save_file

from tests.encoders.tiny import TINY, random_weights
from tests.fakes import random_image

SCRIPT = """
import dataclasses, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Blocked())
import tfa
from tfa.encoders import CATALOGUE
from tfa.core.arrays import choose_device
from tfa.errors import MissingExtra
from tfa.types import EncoderOptions

folder, name, weights, precision = sys.argv[1:]
plain = CATALOGUE[sys.argv[2].removeprefix("tiny-v").startswith("3") and "dinov3-s16" or "dinov2-s14"]
changed = {"swiglu": {"mlp": "swiglu"}, "reg": {"registers": 4, "family": "dinov2-reg"}}
more = next((value for key, value in changed.items() if name.endswith(key)), {})
positions = {} if name == "tiny-v3" else {"positions": 3}
CATALOGUE[name] = dataclasses.replace(
    plain, name=name, width=24, depth=3, heads=2, size=4 * plain.patch, **positions, **more
)
built = tfa.PlaceMap.build(folder, encoder=name, options=EncoderOptions(weights=weights, precision=precision))
assert built.query(sorted(p for p in __import__("pathlib").Path(folder).iterdir())[3]).hits[0].id == 3
assert choose_device("auto") == "cpu"
pickled = lambda: tfa.load_encoder(name, weights=weights[:-11] + "pth")
for wanted in (lambda: choose_device("cuda"), lambda: tfa.load_encoder("hf:./model"), pickled):
    try:
        wanted()
    except MissingExtra as error:
        assert "needs PyTorch" in str(error) and "tfa-vpr[torch]" in str(error)
    else:
        raise AssertionError
assert not {"torch", "transformers"} & sys.modules.keys()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "precision"), [("tiny-v2", "int8"), ("tiny-v2-reg", "float32"), ("tiny-v3", "int8")])
def test_a_map_is_built_and_queried(name: str, precision: str, tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / "photos").mkdir(exist_ok=True)
        random_image(number, (90, 70)).save(tmp_path / "photos" / f"{number}.png")
    save_file(random_weights(TINY[name]), tmp_path / "w.safetensors")
    (tmp_path / "w.pth").touch()
    words = [str(tmp_path / "photos"), name, str(tmp_path / "w.safetensors"), precision]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
