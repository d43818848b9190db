"""Patches on disk stay consistent with every edit, or the map is refused."""

import dataclasses
import json

import numpy as np
import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo, reopened
from tests.test_docs import page
from tfa.core.files import hash_json, read_tensor_header
from tfa.errors import BadMap
from tfa.maps import PlaceMap
from tfa.maps.folder import writer
from tfa.types import BuildOptions


def verified(place_map, query, calibration=None):
    return [
        hit.to_dict()
        for hit in place_map.query(query, 99, min_confidence=0.0, calibration=calibration, rerank=True, candidates=8)
    ]


def test_a_verified_map_survives_the_disk(place_map, saved, dusk):
    opened = reopened(saved)
    assert verified(opened, dusk) == verified(place_map, dusk)
    assert isinstance(opened.state.compact.chunks[0], np.memmap)
    assert opened.state.database.verification == place_map.state.database.verification


def test_added_photos_are_verified_and_additions_are_joined(saved, tmp_path, cache):
    editor = reopened(saved)
    count = writer.MAX_SEGMENTS + 3
    for i in range(count):
        editor.add([photo(tmp_path / f"n{i}.png", 200 + i)])
    opened = reopened(saved)
    assert len(opened.state.compact) == 14 + count
    assert len(list(saved.glob("tokens-*"))) == len(opened.state.segments)
    assert len(list(saved.glob("compaction-*"))) == 1
    for i in (0, count - 2, count - 1):
        best = opened.query(tmp_path / f"n{i}.png", k=1, rerank=True)[0]
        assert (best.id, best.inliers) == (14 + i, 16)
    opened.remove([14])
    assert 14 not in {hit["id"] for hit in verified(reopened(saved), tmp_path / "n0.png")}


def test_refit_makes_the_compact_tokens_of_a_fresh_build(saved, town, tmp_path, cache):
    editor = reopened(saved)
    editor.add([photo(town / "more.png", 100)])
    editor.refit()
    fresh = PlaceMap.build(town, head="paper", encoder=FakeEncoder(), spec=SPEC)
    opened = reopened(saved)
    np.testing.assert_array_equal(opened.state.compact.rows(range(15)), fresh.state.compact.rows(range(15)))
    assert opened.info().to_dict()["verification"] == fresh.info().to_dict()["verification"]
    plain = PlaceMap.build(town, head="paper", encoder=FakeEncoder(), spec=SPEC, map_spec=BuildOptions(rerank=False))
    plain.refit()
    assert plain.state.compact is None


def test_a_calibration_judges_on_its_own_photos(saved, camera, dusk, cache):
    editor = reopened(saved)
    before = editor.state.database.verification
    editor.add([dusk])
    editor.calibrate(camera, name="night")
    opened = reopened(saved)
    assert opened.state.database.verification == before
    decided = opened.state.chosen("night").verification
    assert decided["photos"] == 20
    assert decided["usual_evidence"] not in (None, before["usual_evidence"])
    assert opened.info().to_dict()["calibrations"][0]["verification"] == decided
    assert [hit["inliers"] for hit in verified(opened, dusk, "night") if hit["id"] == 14] == [16]
    heads = [dataclasses.replace(h, verification={**h.verification, "admitted": h.name == "night"})
             for h in opened.state.heads]  # fmt: skip
    opened.storage.replace_state(dataclasses.replace(opened.state, heads=tuple(heads)))
    assert opened.query(dusk)[0].inliers is not None  # each head as it was decided for it
    assert opened.query(dusk, calibration="none")[0].inliers is None


def test_a_map_without_verification_is_calibrated_without(town, camera, cache):
    plain = PlaceMap.build(town, head="paper", encoder=FakeEncoder(), spec=SPEC, map_spec=BuildOptions(rerank=False))
    plain.calibrate(camera)
    assert plain.state.chosen().verification is None


def rewrite(path, change):
    header = json.loads((path / "map.json").read_text())
    header.pop("digest")
    change(header)
    (path / "map.json").write_text(json.dumps({**header, "digest": hash_json(header)}))


def test_compact_tokens_that_do_not_fit_the_map_are_refused(saved, tmp_path, cache):
    reopened(saved).add([photo(tmp_path / "new.png", 77)])

    rewrite(saved, lambda header: header["verification"].update(grid=[4, 5]))
    with pytest.raises(BadMap, match="int8 of 20 patches"):
        PlaceMap.load(saved)
    rewrite(saved, lambda header: header["verification"].update(grid=[4, 4]))

    def forget(header):
        header["files"] = [e for e in header["files"] if not (e["role"] == "tokens" and "r000002" in e["name"])]

    rewrite(saved, forget)
    with pytest.raises(BadMap, match="files do not match the heads and the 2 segments"):
        PlaceMap.load(saved)
    rewrite(saved, lambda header: header.pop("verification"))
    with pytest.raises(BadMap, match="verification is missing"):
        PlaceMap.load(saved)


def test_the_format_page_names_what_verification_writes(saved):
    header = json.loads((saved / "map.json").read_text())
    names = {*header["verification"], *header["verification"]["spec"], *header["heads"][0]["verification"]}
    for kind in ("tokens", "compaction"):
        tensors, metadata, _ = read_tensor_header(next(saved.glob(f"{kind}-*")))
        assert metadata == {"format": "tfa-place-map", "role": kind}
        names |= set(tensors)
    text = page("reference/map-format.md")
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []
