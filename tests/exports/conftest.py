"""Heads of every carrier and assignment as maps of the fake encoder."""

import dataclasses

import numpy as np
import pytest

from tests.fakes import FakeEncoder, random_image
from tfa.core.arrays import backend_for
from tfa.core.tokens import Tokens
from tfa.maps import PlaceMap
from tfa.method.head import assemble
from tfa.photos.token_cache import TokenCache
from tfa.pipeline import encode, fit
from tfa.types import BuildOptions, HeadSpec

SPEC = HeadSpec(words=5)


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """Photos with their tokens and a fitted head: 10 images of which two are copies."""
    folder = tmp_path_factory.mktemp("exports")
    (folder / "photos" / "north").mkdir(parents=True)
    for number in range(9):
        random_image(number).save(folder / "photos" / "north" / f"{number}.png")
    (folder / "photos" / "copy.png").write_bytes((folder / "photos" / "north" / "4.png").read_bytes())
    encoded = encode(sorted(folder.glob("photos/**/*.png")), FakeEncoder(), cache=TokenCache(folder / "tokens"))
    return folder, encoded, fit(encoded.tokens, SPEC)


@pytest.fixture
def map_of(world):
    """`map_of(carrier, assignment, admit, ensemble, storage)`."""

    def made(carrier="adaptive", assignment="hard", admit=True, ensemble=False, storage="float16"):
        folder, encoded, fitted = world
        decisions = dataclasses.replace(
            fitted.decisions, carrier=carrier, assignment=assignment, admit_cls=admit, c=0.4, beta=0.3
        )
        head = assemble(fitted, decisions, fitted.evidence, backend_for("cpu"))
        map_spec = BuildOptions(storage=storage, ensemble=ensemble, rerank=False)
        built = PlaceMap.from_head(head, encoded, FakeEncoder(), map_spec=map_spec)
        built.cache = TokenCache(folder / "tokens")
        return built

    return made


@pytest.fixture
def queries():
    return Tokens(*FakeEncoder().encode([random_image(number, (64, 48)) for number in range(20)]), grid=(4, 4))


def scores_of(place_map, tokens, calibration=None):
    """`q m` scores of the images that answer, in the order of their ids, through the map itself."""
    order = {record.id: column for column, record in enumerate(place_map.images)}
    scores = np.empty((len(tokens), len(order)), np.float32)
    for row, hits in enumerate(place_map.query_tokens(tokens, k=len(order), calibration=calibration, rerank=False)):
        for hit in hits:
            scores[row, order[hit.id]] = hit.score
    return scores
