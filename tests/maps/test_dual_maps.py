"""Maps with the dual-vocabulary head: the head of the method, saved, edited, calibrated and exported."""

import json

import numpy as np
import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo, reopened
from tfa import fit_dual, pipeline
from tfa.core.files import hash_json
from tfa.errors import BadMap, BadSpec
from tfa.explain.why import explain_score
from tfa.exports.vectors import compile_map
from tfa.maps import PlaceMap
from tfa.method.scorer import Compiled
from tfa.report.collect import collect_report
from tfa.types import BuildOptions, EncoderOptions

KINDS = {
    "int7": {},
    "float32": {"storage": "float32"},
    "ensemble": {"storage": "float16", "ensemble": True},
    "reduced": {"dims": 8},
    "no patches": {"rerank": False},
}


@pytest.fixture
def words(tmp_path):
    """File of 5 source words of arbitrary length."""
    np.save(tmp_path / "words.npy", np.random.default_rng(7).normal(size=(5, 12)).astype(np.float32))
    return tmp_path / "words.npy"


def built(town, cache, words=None, **kept):
    kept = BuildOptions(head="paper-dual", vocabulary=words, **kept)
    options = EncoderOptions(cache=cache)
    return PlaceMap.build(town, encoder=FakeEncoder(), spec=SPEC, map_spec=kept, options=options)


def tokens_of(photos):
    return pipeline.encode(photos, FakeEncoder()).tokens


@pytest.mark.parametrize("file", [True, False], ids=["file", "database"])
def test_a_map_scores_as_the_head_of_the_method(town, cache, camera, words, file):
    source = words if file else None
    made, head = built(town, cache, source, storage="float32"), fit_dual(tokens_of(town), source, spec=SPEC)
    queries = tokens_of(camera)
    np.testing.assert_allclose(made.scores(queries), head.scores(queries), atol=2e-5)
    made.calibrate(camera, "dusk")
    tuned = head.calibrate(queries)
    np.testing.assert_allclose(made.scores(queries, "dusk"), tuned.scores(queries), atol=2e-4)
    np.testing.assert_allclose(made.scores(queries, "none"), head.scores(queries), atol=2e-5)
    assert made.state.chosen("dusk").decisions == tuned.decisions.to_dict()
    assert tuned.decisions.calibration_images == 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_map_survives_edits_and_the_disk(town, cache, camera, words, tmp_path, kind):
    made, photos = built(town, cache, words, **KINDS[kind]), sorted(camera.iterdir())
    made.save(tmp_path / "dual.tfa")
    made.calibrate(photos[:16], "dusk")
    made.add([photo(tmp_path / "new.png", 40)])
    made.remove([2])
    again = reopened(tmp_path / "dual.tfa", cache)
    queries = [*photos[14:], photo(tmp_path / "again.png", 40, light=0.95)]
    for calibration in ("none", "dusk"):
        ours, theirs = (one.query_many(queries, k=5, calibration=calibration) for one in (made, again))
        assert [[hit.id for hit in answer] for answer in theirs] == [[hit.id for hit in answer] for answer in ours]
        assert theirs[-1][0].id == 14
    info = again.info()
    assert (info.head, info.answers.calibration, info.decisions["vocabulary"]) == ("paper-dual", "dusk", "words.npy")
    kept = again.state.map_spec.to_dict()
    assert {name: bool(kept[name]) if name == "rerank" else kept[name] for name in KINDS[kind]} == KINDS[kind]
    words.unlink()
    again.refit()  # with the words in the map
    fresh = reopened(tmp_path / "dual.tfa", cache)
    assert fresh.info().decisions["vocabulary_blake2b"] == info.decisions["vocabulary_blake2b"]
    assert (len(fresh), fresh.calibrations) == (14, [])
    assert fresh.query(queries[-1])[0].id == 14


def test_a_later_image_has_the_bias_of_all_calibration_photos(town, cache, camera, words, tmp_path):
    """The plain log mean exp, not the trimmed one of other heads."""
    made = built(town, cache, words, storage="float32")
    made.calibrate(camera, "dusk")
    made.save(tmp_path / "dual.tfa")
    again = reopened(tmp_path / "dual.tfa", cache)
    again.add([photo(tmp_path / "new.png", 40)])
    scorer, plain = again.state.chosen("dusk").stored.scorer, again.state.head.scorer
    expected = 0.0
    for term, feature in zip(plain.terms, plain.query_vectors(tokens_of(camera)).terms, strict=True):
        x = term.weight * feature.astype(np.float64) @ term.gallery.take([14])[0]
        expected -= np.log(np.exp(x).mean())
    assert scorer.bias[14] == pytest.approx(expected, abs=1e-5)


def test_exports_explanations_and_reports_agree_with_the_scores(town, cache, camera, words):
    made = built(town, cache, words, storage="float32")  # int7 rounds queries, too
    made.calibrate(camera, "dusk")
    query = tokens_of(camera).select([3])
    compiled = compile_map(made, "dusk")
    vector = Compiled(compiled.scorer, compiled.vectors, compiled.bias).query(query)
    np.testing.assert_allclose(vector @ compiled.vectors.T + compiled.bias, made.scores(query), atol=1e-4)
    why = explain_score(made, query, 3, "dusk")
    assert why["score"] == pytest.approx(made.scores(query)[0, 3], abs=1e-4)
    assert sum(term["contribution"] for term in why["terms"]) == pytest.approx(why["score"], abs=1e-6)
    assert [term["name"].rpartition(", ")[2] for term in why["terms"][:2]] == ["vocabulary 1", "vocabulary 2"]
    report = collect_report(made)
    names = [one.name for one in made.info().decided]
    assert names[:5] == ["assignment", "carrier", "source words", "map words", "scores"]
    assert not any("hub" in advice for advice in report["advice"])


def test_info_says_what_is_our_reading_and_where_the_words_are_from(town, cache, camera, words):
    info = built(town, cache, words).info()
    assert {one.name: one.choice for one in info.decided}["source words"] == "5 from words.npy"
    made = built(town, cache)
    report = made.calibrate(camera)
    assert {one.name: one.choice for one in made.info().decided}["source words"] == "32 from map"
    assert "fitted on the map, without a file" in made.info().reasons["source"]
    for reason in (made.info().reasons["assignment"], report.reasons["score"]):
        assert "our reading" in reason
    assert made.info().calibrations[0].differences == [
        "scores are calibrated: each image's mean score on the calibration photos is subtracted"
    ]


def test_what_a_dual_map_cannot_do_is_said(town, cache, camera, words, tmp_path):
    made = built(town, cache, words)
    with pytest.raises(BadSpec, match="calibrates only scores; remove --no-score"):
        made.calibrate(camera, score=False)
    with pytest.raises(BadSpec, match="a store needs a second-order head, but this map has the paper-dual head"):
        made.publish("memory://here/town")
    with pytest.raises(BadSpec, match="--vocabulary is for --head paper-dual, not second-order"):
        PlaceMap.build(town, encoder=FakeEncoder(), map_spec=BuildOptions(vocabulary=words))
    np.save(tmp_path / "narrow.npy", np.eye(3))
    encoder = FakeEncoder(salt="fresh")
    with pytest.raises(BadSpec, match=r"narrow.npy has words of 3 channels, the tokens have 12"):
        PlaceMap.build(
            town, encoder=encoder, map_spec=BuildOptions(head="paper-dual", vocabulary=tmp_path / "narrow.npy")
        )
    assert encoder.encoded == 0  # before the long work


@pytest.mark.parametrize(
    "edit",
    [
        lambda header: header.update(head_kind="paper"),
        lambda header: header.update(head_kind="second-order"),
        lambda header: header["heads"][0]["decisions"].update(calibration="robust"),
        lambda header: header["heads"][0]["decisions"].update(sigma_map=[1.0]),
        lambda header: header["heads"][0]["evidence"].pop("branches"),
        lambda header: header["heads"][0]["layout"]["terms"][1].update(member=6),
        lambda header: header.update(files=[one for one in header["files"] if one["role"] != "vocabularies"]),
    ],
)
def test_a_header_that_does_not_fit_is_refused(town, cache, words, tmp_path, edit):
    built(town, cache, words).save(tmp_path / "dual.tfa")
    path = tmp_path / "dual.tfa" / "map.json"
    header = json.loads(path.read_text("utf-8"))
    edit(header)
    header["digest"] = hash_json({key: value for key, value in header.items() if key != "digest"})
    path.write_text(json.dumps(header), "utf-8")
    with pytest.raises(BadMap):
        PlaceMap.load(tmp_path / "dual.tfa")
