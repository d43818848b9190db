"""Maps with reduced search dimensions give the same answers, for every head and after edits."""

import json

import numpy as np
import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo, reopened
from tfa.core.files import hash_json, map_tensors
from tfa.errors import BadMap, BadSpec
from tfa.exports.vectors import compile_map
from tfa.maps import PlaceMap
from tfa.report.collect import collect_report
from tfa.search.quantized import QuantizedRows
from tfa.search.reduced import ReducedSearch
from tfa.types import BuildOptions, EncoderOptions

DIMS = 8
KINDS = {
    "second-order": {"head": "second-order"},
    "original": {"head": "second-order", "carrier": "original"},
    "blend": {"head": "second-order", "carrier": "blend", "storage": "float32"},
    "ensemble": {"head": "second-order", "ensemble": True},
    "paper": {"head": "paper"},
    "paper ensemble": {"head": "paper", "storage": "float16", "ensemble": True},
}


def built(town, cache, dims=DIMS, **kept):
    options = EncoderOptions(cache=cache)
    kept = BuildOptions(dims=dims, **{"head": "second-order", **kept})
    return PlaceMap.build(town, encoder=FakeEncoder(), spec=SPEC, map_spec=kept, options=options)


@pytest.fixture
def reduced(town, cache, tmp_path):
    made = built(town, cache)
    made.save(tmp_path / "town.tfa")
    return made


def answers(place_map, photos, **asked):
    found = place_map.query_many(photos, k=5, **asked)
    return [[(hit.id, hit.score) for hit in answer.hits] for answer in found]


def confidences(place_map, photos):
    return [answer.confidence for answer in place_map.query_many(photos, k=3, rerank=False)]


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_all_numbers_and_survive_the_disk(town, cache, camera, tmp_path, kind):
    photos = sorted(camera.iterdir())
    full, small = built(town, cache, None, **KINDS[kind]), built(town, cache, **KINDS[kind])
    assert isinstance(small.searchable(None).searcher, ReducedSearch)
    integers = full.state.head.storage == "int7"
    # Reranking uses z-scores, which a reduced search takes from its own rows.
    for one, two in zip(*(answers(made, photos, rerank=False) for made in (full, small)), strict=True):
        assert [hit for hit, _ in two] == [hit for hit, _ in one]
        close = 0 if integers else 1e-6
        assert [score for _, score in two] == pytest.approx([score for _, score in one], rel=close, abs=close)
    small.save(tmp_path / "town.tfa")
    again = reopened(tmp_path / "town.tfa")
    assert again.query_many(photos, k=5) == small.query_many(photos, k=5)
    assert again.state.map_spec.dims == DIMS


def test_confidence_is_that_of_all_numbers_where_all_are_kept(town, cache, camera):
    photos = sorted(camera.iterdir())
    full, small = built(town, cache, None), built(town, cache, 400)
    assert confidences(small, photos) == pytest.approx(confidences(full, photos), abs=0.02)


def test_it_says_by_how_many_numbers_it_is_searched(reduced, tmp_path, town, cache):
    facts = reopened(tmp_path / "town.tfa").info().to_dict()
    width = reduced.state.head.reduced.reduction.width
    assert facts["reduction"] == {"dims": DIMS, "full_dims": width, "bytes_per_image": DIMS + 4, "scored_again": 100}
    assert (
        facts["format_version"] == json.loads((tmp_path / "town.tfa" / "map.json").read_text())["format_version"] == 4
    )
    assert built(town, cache, rerank=False).info().format_version == 3
    plain = built(town, cache, None, rerank=False)
    plain.save(tmp_path / "plain.tfa")
    assert plain.info().to_dict()["reduction"] is None
    header = json.loads((tmp_path / "plain.tfa" / "map.json").read_text())
    assert header["format_version"] == 2
    assert "reduction" not in header["heads"][0]["layout"]


def test_added_images_are_reduced_and_found(reduced, tmp_path, town, cache):
    reduced.cache = cache
    before = reduced.state.head.reduced
    for place in range(20, 23):
        reduced.add([photo(tmp_path / "more" / f"{place}.png", place)])
    for made in (reduced, reopened(tmp_path / "town.tfa")):
        now = made.state.head.reduced
        assert [len(chunk) for chunk in now.rows.chunks] == [14, 1, 1, 1]
        np.testing.assert_array_equal(now.reduction.matrix, before.reduction.matrix)
        for place, expected in zip(range(20, 23), range(14, 17), strict=True):
            best = made.query(photo(tmp_path / "again" / f"{place}.png", place, light=0.95))[0]
            assert best.id == expected
    assert len(reopened(tmp_path / "town.tfa").searchable(None).searcher) == 17


def test_many_additions_are_joined(reduced, tmp_path, cache):
    reduced.cache = cache
    for place in range(20, 38):
        reduced.add([photo(tmp_path / "more" / f"{place}.png", place)])
    again = reopened(tmp_path / "town.tfa")
    assert len(again.state.head.reduced) == 32
    assert len(again.state.head.reduced.rows.chunks) < 18
    query = [photo(tmp_path / "again.png", 30, light=0.9)]
    assert again.query_many(query) == reduced.query_many(query)


def test_removed_images_are_not_found_and_do_not_count(reduced, tmp_path, town, cache, camera):
    photos = sorted(camera.iterdir())
    reduced.remove([2, 3, 9])
    again = reopened(tmp_path / "town.tfa")
    assert not {2, 3, 9} & {hit for found in answers(again, photos) for hit, _ in found}
    tokens = again.state.head.scorer.query_vectors
    [vectors] = [tokens(batch) for _, batch in again.encode_batches(photos[:4])]
    searcher = again.searchable(None).searcher
    result = searcher.search(vectors, 1)
    rows = searcher.reduced.rows.take(again.rows).astype(np.float64)
    scores = searcher.reduced.reduction.of_queries(np.asarray(vectors)).astype(np.float64) @ rows.T
    np.testing.assert_allclose(result.spread, scores.std(axis=1), rtol=1e-7)


def test_a_calibration_is_reduced_too_and_stays_when_another_answers(reduced, tmp_path, camera, town, cache):
    photos = sorted(camera.iterdir())
    reduced.cache = cache
    full = built(town, cache, None)
    for made in (reduced, full):
        made.calibrate(photos[:16], "dusk")
    assert answers(reduced, photos, rerank=False) == answers(full, photos, rerank=False)
    again = reopened(tmp_path / "town.tfa")
    [night] = again.state.calibrations
    assert night.stored.dims == DIMS
    assert isinstance(again.searchable("dusk").searcher, ReducedSearch)
    again.activate(None)
    assert answers(again, photos) == answers(reduced, photos, calibration="none")
    again.activate("dusk")
    again.add([photo(tmp_path / "new.png", 40)])
    assert [len(head.stored.reduced) for head in again.state.heads] == [15, 15]


def test_a_paper_map_is_calibrated_with_what_was_added(town, cache, camera, tmp_path):
    made = built(town, cache, head="paper")
    made.cache = cache
    made.save(tmp_path / "paper.tfa")
    made.add([photo(tmp_path / "new.png", 40)])
    made.calibrate(sorted(camera.iterdir()), "dusk")
    again = reopened(tmp_path / "paper.tfa")
    assert len(again.state.chosen("dusk").stored.reduced) == 15
    assert again.query(photo(tmp_path / "again.png", 40, light=0.95))[0].id == 14


def test_an_adopted_calibration_covers_what_was_added_since(reduced, tmp_path, camera, cache):
    copy = reopened(tmp_path / "town.tfa", cache)
    copy.storage.path = None
    copy.calibrate(sorted(camera.iterdir()), "dusk")
    reduced.cache = cache
    reduced.add([photo(tmp_path / "new.png", 40)])
    reduced.adopt_calibration(copy, "dusk")
    assert len(reopened(tmp_path / "town.tfa").state.chosen("dusk").stored.reduced) == 15


def test_a_refit_keeps_to_the_number(reduced, tmp_path, cache):
    reduced.cache = cache
    reduced.add([photo(tmp_path / "new.png", 40)])
    reduced.refit()
    again = reopened(tmp_path / "town.tfa")
    assert again.state.head.dims == DIMS
    assert len(again.state.head.reduced) == 15


def test_a_prepared_map_answers_the_same_and_leaves_its_full_rows_alone(reduced, camera, monkeypatch):
    photos, plain = sorted(camera.iterdir()), reduced.query_many(sorted(camera.iterdir()), k=5)
    packed = []
    monkeypatch.setattr(QuantizedRows, "prepare", lambda self: packed.append(self))
    reduced.prepare()
    assert any(rows is reduced.state.head.reduced.rows.chunks[0] for rows in packed)
    full = [chunk for term in reduced.state.head.scorer.terms for chunk in term.gallery.chunks]
    bases = [getattr(chunk, "base", chunk) for chunk in full]
    assert not any(rows is base for rows in packed for base in bases)
    assert reduced.query_many(photos, k=5) == plain


def test_a_query_reads_no_more_full_rows_than_it_scores_again(town, cache, camera, tmp_path, monkeypatch):
    monkeypatch.setattr("tfa.search.reduced.AGAIN", 3)
    made = built(town, cache, carrier="partial", rerank=False)  # one term
    made.save(tmp_path / "town.tfa")
    again, read, plain = reopened(tmp_path / "town.tfa"), [], QuantizedRows.inner
    width = again.state.spaces.spaces[0].halves.width
    monkeypatch.setattr(QuantizedRows, "inner", lambda self, f: read.append((self, len(f))) or plain(self, f))
    again.searchable(None).searcher.search(
        again.state.head.scorer.query_vectors(next(iter(again.encode_batches([sorted(camera.iterdir())[0]])))[1]), 1
    )
    axes = again.state.spaces.spaces[0].side.axes
    rows = [len(own) for own, _ in read if own.width == width and own.stored is not axes.stored]
    assert sum(rows) == 3


def test_the_report_works_and_exports_are_of_all_numbers(reduced, town, cache):
    plain = built(town, cache, None)
    facts, others = collect_report(reduced), collect_report(plain)
    assert facts["map"]["reduction"]["dims"] == DIMS
    assert (facts["hubs"], facts["duplicates"]) == (others["hubs"], others["duplicates"])
    np.testing.assert_array_equal(compile_map(reduced).vectors, compile_map(plain).vectors)


def test_what_the_files_hold_without_a_reduction_is_all_they_hold_with_one(reduced, town, cache, tmp_path):
    plain = built(town, cache, None)
    plain.save(tmp_path / "plain.tfa")
    for file in sorted((tmp_path / "plain.tfa").glob("*.safetensors")):
        small = map_tensors(tmp_path / "town.tfa" / file.name)[0]
        for name, tensor in map_tensors(file)[0].items():
            np.testing.assert_array_equal(small.pop(name), tensor)
        assert all(name.startswith("redu") for name in small)


def test_moments_of_many_rows_are_written_and_read(town, cache, tmp_path, camera, monkeypatch):
    monkeypatch.setattr("tfa.maps.stored_head.MOMENTS_FROM", 1)
    made = built(town, cache)
    made.save(tmp_path / "town.tfa")
    again = reopened(tmp_path / "town.tfa")
    tensors = map_tensors(next((tmp_path / "town.tfa").glob("gallery-*")))[0]
    assert tensors["reduced.second"].shape == (DIMS, DIMS)
    assert again.state.head.reduced.moments()[0].second is not None
    np.testing.assert_array_equal(again.state.head.reduced.moments()[0].second, tensors["reduced.second"])
    photos = sorted(camera.iterdir())
    assert again.query_many(photos) == made.query_many(photos)


@pytest.mark.parametrize("dims", [1, 0, "many", 2.5])
def test_a_number_that_makes_no_sense_is_refused(dims):
    with pytest.raises(BadSpec, match="dims="):
        BuildOptions(dims=dims)


def changed_header(folder, change):
    header = json.loads((folder / "map.json").read_text())
    change(header)
    header["digest"] = hash_json({key: value for key, value in header.items() if key != "digest"})
    (folder / "map.json").write_text(json.dumps(header))


def set_dims(header, dims):
    header["heads"][0]["layout"]["reduction"]["dims"] = dims


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header: header.update(format_version=2), "format version 2, with cell means and with reduced rows"),
        (lambda header: header["verification"].pop("cells"), "format version 4, without cell means"),
        (lambda header: set_dims(header, 9), "must have 9 dimensions"),
        (lambda header: set_dims(header, 1), "is not valid"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(reduced, tmp_path, change, message):
    changed_header(tmp_path / "town.tfa", change)
    with pytest.raises(BadMap, match=message):
        reopened(tmp_path / "town.tfa")
