"""A map gives the same answers through every engine."""

import numpy as np
import pytest

from tfa.base.tokens import Tokens
from tfa.errors import BadSpec
from tfa.photos.images import as_rgb


@pytest.mark.parametrize("engine", ["exact", "bounded"])
def test_answers_do_not_depend_on_the_engine(place_map, town, dusk, engine):
    photos = [*sorted(town.iterdir()), dusk]
    own = place_map.query_many(photos, k=4)
    place_map.use_engine(engine)
    assert place_map.engine().name == engine
    other = place_map.query_many(photos, k=4)
    place_map.use_engine(None)
    assert [[hit.id for hit in answer.hits] for answer in other] == [[hit.id for hit in answer.hits] for answer in own]
    for one, two in zip(own, other, strict=True):
        assert [hit.score for hit in two.hits] == pytest.approx([hit.score for hit in one.hits], rel=1e-6)
        assert [hit.confidence for hit in two.hits] == pytest.approx([hit.confidence for hit in one.hits], abs=0.03)


def test_an_engine_that_does_not_exist_is_refused(place_map):
    with pytest.raises(BadSpec, match="there is no engine 'faster'"):
        place_map.use_engine("faster")


def test_scores_of_all_images_come_from_the_engine(place_map, dusk):
    tokens = Tokens(*place_map.encoder.encode([as_rgb(dusk)]), grid=place_map.encoder.grid)
    place_map.remove([2])
    expected = place_map.state.head.scorer.scores(tokens)[:, place_map.rows]
    np.testing.assert_array_equal(place_map.scores(tokens), expected)
    place_map.use_engine("bounded")
    np.testing.assert_allclose(place_map.scores(tokens), expected, rtol=1e-6)
