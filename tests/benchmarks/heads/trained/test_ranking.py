"""Heads of trained systems: descriptors through the cache, ranked by cosine or by bits first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.benchmarks.heads.trained.tiny import LAYOUTS, tensors_of
from tests.fakes import random_image
from tfa.core.tokens import Tokens
from tfa.encoders import Encoder
from tfa.errors import BadTokens, BadWeights
from tfa.photos.token_cache import TokenCache
from tfa.types import EncoderOptions
from tfa_bench.heads import trained_systems
from tfa_bench.heads.contract import Photos, Shared
from tfa_bench.heads.trained.image_encoder import ImageEncoder, join_halves, split_halves
from tfa_bench.heads.trained.systems import SYSTEMS
from tfa_bench.heads.trained_systems import fit_vectors, trained_card
from tfa_bench.rank import ranked
from tfa_bench.run import DEPTH


def checkpoint(folder: Path, name: str, seed: int = 0) -> Path:
    torch.save(tensors_of(name, seed), folder / "file.pth")
    return folder / "file.pth"


def unit_rows(count: int, width: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_two_halves_keep_a_descriptor_to_float32():
    rows = unit_rows(5, 8448, 0)
    tokens = Tokens(split_halves(rows), grid=(2, 1))
    np.testing.assert_allclose(join_halves(tokens), rows, atol=1e-8, rtol=1e-6)
    assert np.abs(rows.astype(np.float16).astype(np.float32) - rows).max() > 1e-6  # one half would not


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_system_is_an_encoder_for_photos_of_both_orientations(name, tmp_path):
    encoder = ImageEncoder(SYSTEMS[name], checkpoint(tmp_path, name))
    assert isinstance(encoder, Encoder)
    images = [random_image(0, (90, 60)), random_image(1, (60, 90)), random_image(2, (90, 60))]
    halves, codes = encoder.encode(images)
    assert halves.shape == (3, 2, encoder.channels)
    assert (codes is None) == (encoder.global_channels is None)
    together = join_halves(Tokens(halves))
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    alone = [join_halves(Tokens(encoder.encode([encoder.prepare(image)])[0])) for image in images]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-5)


def test_the_cache_keeps_descriptors_by_content_and_checkpoint(tmp_path):
    for number in range(3):
        random_image(number).save(tmp_path / f"{number}.png")
    paths = sorted(tmp_path.glob("*.png"))
    cache = TokenCache(tmp_path / "cache")
    encoder = ImageEncoder(SYSTEMS["cosplace"], checkpoint(tmp_path, "cosplace"))
    first = cache.encode(paths, encoder)
    assert cache.missing(encoder.fingerprint, first.digests) == []
    other = ImageEncoder(SYSTEMS["cosplace"], checkpoint(tmp_path, "cosplace", seed=1))
    assert other.fingerprint != encoder.fingerprint
    assert cache.missing(other.fingerprint, first.digests) == [0, 1, 2]
    # The name of the file is not part of it.
    (tmp_path / "file.pth").rename(tmp_path / "renamed.pth")
    assert ImageEncoder(SYSTEMS["cosplace"], tmp_path / "renamed.pth").fingerprint == other.fingerprint


def photos(vectors: np.ndarray, codes: np.ndarray | None) -> Photos:
    return Photos(Tokens(split_halves(vectors), codes, grid=(2, 1)))


def test_one_stage_is_the_cosine():
    database, queries = unit_rows(30, 6, 1), unit_rows(4, 6, 2)
    head = fit_vectors(photos(database, None), Shared())
    assert (head.data_used, head.replicas) == ("labels", ("only",))
    np.testing.assert_allclose(head.scores(photos(queries, None), "only"), queries @ database.T, atol=1e-6)


def test_bits_choose_a_hundred_and_vectors_order_them():
    rng = np.random.default_rng(5)
    bits = rng.choice([-1.0, 1.0], (260, 8))  # few bits: many ties, at the hundredth place too
    asked = rng.choice([-1.0, 1.0], (7, 8))
    database, queries = unit_rows(260, 6, 3), unit_rows(7, 6, 4)
    head = fit_vectors(photos(database, bits.astype(np.float16)), Shared())
    scores = head.scores(photos(queries, asked.astype(np.float16)), "only")
    for query in range(7):
        distances = [int((bits[image] != asked[query]).sum()) for image in range(260)]
        nearest = sorted(range(260), key=lambda image: (distances[image], image))[:100]
        wanted = sorted(nearest, key=lambda image: -float(database[image] @ queries[query]))
        found = np.argsort(-scores[query], kind="stable")
        assert found[:100].tolist() == wanted
        rest = [distances[image] for image in found[100:]]
        assert rest == sorted(rest)
    assert trained_systems.RERANKED == DEPTH == 100


def test_the_confidence_of_two_stages_follows_the_cosine_of_the_answer():
    """However many images the bits leave out, the same answer is surer the further it is from the others."""
    bits, asked = np.random.default_rng(6).choice([-1.0, 1.0], (2_000, 32)), np.ones((3, 32))
    bits[0] = 1  # nearest to every query
    database = unit_rows(2_000, 64, 7)
    queries = np.stack([database[0] * weight + database[-1] * (1 - weight) for weight in (1.0, 0.7, 0.5)])
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    head = fit_vectors(photos(database, bits.astype(np.float16)), Shared())
    scores = head.scores(photos(queries, asked.astype(np.float16)), "only")
    answers, confidence = ranked(scores, 1, np.dtype(np.uint16))
    assert answers[:, 0].tolist() == [0, 0, 0]
    assert confidence[0] > 1.05 * confidence[1] > 1.05**2 * confidence[2]


def test_a_small_database_is_reranked_whole():
    database, codes = unit_rows(5, 6, 3), np.ones((5, 8), np.float16)
    head = fit_vectors(photos(database, codes), Shared())
    scores = head.scores(photos(database[:2], codes[:2]), "only")
    assert scores.argmax(axis=1).tolist() == [0, 1]


def test_tokens_of_another_encoder_are_refused():
    tokens = Tokens(np.zeros((2, 16, 12), np.float16), grid=(4, 4))
    with pytest.raises(BadTokens, match="does not accept other tokens"):
        fit_vectors(Photos(tokens), Shared())
    head = fit_vectors(photos(unit_rows(3, 6, 0), np.ones((3, 8), np.float16)), Shared())
    with pytest.raises(BadTokens, match="one checkpoint"):
        head.scores(photos(unit_rows(1, 6, 0), None), "only")


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_card_names_file_and_digest_and_says_labels(name, tmp_path):
    path = checkpoint(tmp_path, name)
    card = trained_card(SYSTEMS[name], path)
    assert (card.name, card.sees, card.stages) == (name, "labels", ("trained",))
    assert card.settings["checkpoint"] == "file.pth"
    assert len(card.settings["sha256"]) == 64
    assert "trained with labels, weights of file.pth" in card.note
    assert ("two stages, 9 bits" in card.note) == (name == "selavpr++-l")
    assert card.encoder_opener is not None
    assert card.encoder_opener(EncoderOptions()).id.startswith(f"{name}@")


def test_a_checkpoint_that_changes_in_between_is_noticed(tmp_path):
    card = trained_card(SYSTEMS["cosplace"], checkpoint(tmp_path, "cosplace"))
    checkpoint(tmp_path, "cosplace", seed=1)
    assert card.encoder_opener is not None
    with pytest.raises(BadWeights, match="changed during the run"):
        card.encoder_opener(EncoderOptions())


def test_antialiasing_is_a_switch_of_the_systems_that_leave_it_open(tmp_path):
    path = checkpoint(tmp_path, "selavpr++-b")
    cards = [trained_card(SYSTEMS["selavpr++-b"], path, antialias=on) for on in (False, True)]
    assert [card.settings["preprocessing"]["antialias"] for card in cards] == [False, True]
    assert [card.note.endswith(", antialiased") for card in cards] == [False, True]
    encoders = [card.encoder_opener(EncoderOptions()) for card in cards if card.encoder_opener is not None]
    assert encoders[0].fingerprint != encoders[1].fingerprint
    large = random_image(0, (700, 500))
    plain, smooth = (join_halves(Tokens(one.encode([large])[0])) for one in encoders)
    assert np.abs(plain - smooth).max() > 1e-5
    other = checkpoint(tmp_path, "sample4geo")  # published without
    assert not trained_card(SYSTEMS["sample4geo"], other, antialias=True).settings["preprocessing"]["antialias"]
