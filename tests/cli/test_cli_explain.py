"""`tfa explain`: numbers, words, the picture, and maps or photos that cannot be explained."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.fakes import FakeEncoder, random_image
from tfa.cli.query import write_montage
from tfa.errors import BadCalibration, BadSpec
from tfa.explain.why import describe_matches, describe_view, explain_match
from tfa.maps import PlaceMap
from tfa.types import Admission, BuildOptions, Displacement, ExplainResult, HeadSpec, Hit
from tfa.verification.matching import Matches, find_matches


@pytest.fixture
def town(fake_encoder: Path) -> PlaceMap:
    """A working folder with a map of eight photos, asked with the fake encoder."""
    (fake_encoder / "photos").mkdir()
    for number in range(8):
        random_image(number).save(f"photos/{number}.png")
    random_image(3).save("near.png")
    built = PlaceMap.build("photos", head="paper", encoder=FakeEncoder(), spec=HeadSpec(words=4))
    built.save("town.tfa")
    return built


def answer_of(town: PlaceMap, rank: int = 1) -> Hit:
    return town.query("near.png", k=rank)[rank - 1]


def test_the_answer_is_told_with_its_matches(run, town):
    result = run("explain", "town.tfa", "near.png")
    assert result.exit_code == 0, result.stderr
    hit, found = answer_of(town), explain_match(town, "near.png").result
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[0] == "near.png"
    assert lines[1] == f"answer 1: photos/{Path(hit.image).name}, id {hit.id}"
    assert lines[2] == f"confidence {hit.confidence:.2f}"  # a map of eight photos recognizes nothing
    assert lines[3] == f"{found.consistent} inliers of {found.mutual} mutual matches"
    assert lines[4] == found.view
    assert lines[5] == f"reranking is {found.verification.reason}"
    assert len(lines) == 6


def test_a_photo_of_the_map_is_found_in_itself(town):
    found = explain_match(town, "near.png")
    assert Path(found.result.answer.image).name == "3.png"
    assert found.result.displacement == Displacement(down=0, right=0)
    assert found.result.view == "the query looks the same way"
    assert (found.matches.ours == found.matches.theirs).mean() > 0.5


@pytest.mark.parametrize("rank", [1, 2, 8])
def test_json_tells_all_of_it(run, town, rank):
    told = json.loads(run("explain", "town.tfa", "near.png", "--rank", rank, "--json").stdout)
    found = explain_match(town, "near.png", rank=rank)
    assert told == found.result.to_dict()
    assert told["answer"] == answer_of(town, rank).to_dict()
    compact = town.state.compact
    rows = [record.id for record in town.state.images]
    query = compact.query(town_tokens("near.png"))[0]
    expected = find_matches(query, compact.rows([rows.index(told["answer"]["id"])]), (4, 4), (4, 4))[0]
    assert told["mutual"] == len(expected.ours) == len(told["matches"])
    assert told["consistent"] == expected.count == sum(row[4] for row in told["matches"])
    assert [4 * row[0] + row[1] for row in told["matches"]] == expected.ours.tolist()
    assert [4 * row[2] + row[3] for row in told["matches"]] == expected.theirs.tolist()
    assert set(told["verification"]) == {"admitted", "reason"}


def town_tokens(photo: str):
    from tfa.core.tokens import Tokens
    from tfa.photos.images import as_rgb

    return Tokens(*FakeEncoder().encode([as_rgb(photo)]))


def test_the_picture_is_drawn(run, town):
    result = run("explain", "town.tfa", "near.png", "-o", "new/why.png", "--json")
    assert json.loads(result.stdout)["rank"] == 1
    assert "wrote new/why.png" in result.stderr
    with Image.open("new/why.png") as picture:
        assert picture.width > picture.height > 100


def test_a_map_photo_that_is_gone_is_an_empty_box(run, town):
    before = run("explain", "town.tfa", "near.png")
    Path("photos/3.png").unlink()
    result = run("explain", "town.tfa", "near.png", "--out", "why.jpg")
    assert result.exit_code == 0
    assert result.stdout == before.stdout
    assert "without 3.png, whose file is missing" in result.stderr
    with Image.open("why.jpg") as picture:
        box = np.asarray(picture.convert("L"), int)[40:-120, picture.width // 2 + 40 : -40]
    assert np.median(box) == pytest.approx(206, abs=6)


def test_an_added_photo_and_a_removed_one_keep_rows_apart(town):
    random_image(50).save("later.png")
    town.remove(["photos/0.png"])
    town.add("later.png")
    found = explain_match(town, Image.open("later.png")).result
    assert Path(found.answer.image).name == "later.png"
    assert found.displacement == Displacement(down=0, right=0)


def test_a_montage_counts_the_matches_of_verified_hits(town, monkeypatch):
    drawn = []
    monkeypatch.setattr("tfa.explain.draw_montage.draw_montage", lambda rows, path: drawn.extend(rows))
    for rerank in (True, False):
        write_montage(Path("answer.png"), town.query_many(["near.png"], k=2, rerank=rerank).answers)
    hits = town.query("near.png", k=2, rerank=True)
    verified, plain = drawn
    assert [tile.caption_lines[2] for tile in verified.tiles] == [f"{hit.inliers} inliers" for hit in hits]
    assert [len(tile.caption_lines) for tile in plain.tiles] == [2, 2]


def test_a_map_without_compact_tokens_says_what_to_do(run, town):
    kept = BuildOptions(rerank=False)
    PlaceMap.build("photos", head="paper", encoder=FakeEncoder(), spec=HeadSpec(words=4), map_spec=kept).save(
        "plain.tfa"
    )
    result = run("explain", "plain.tfa", "near.png", "-o", "why.png")
    assert result.exit_code == 1
    assert "--rerank" in result.stderr
    assert result.stdout == ""
    assert not Path("why.png").exists()


def test_what_cannot_be_explained_is_an_error(run, town):
    result = run("explain", "town.tfa", "absent.png")
    assert result.exit_code == 1
    assert "absent.png cannot be opened" in result.stderr
    assert "must be between 1 and 8" in run("explain", "town.tfa", "near.png", "--rank", 9).stderr
    assert "no map at absent.tfa" in run("explain", "absent.tfa", "near.png").stderr
    assert run("explain", "town.tfa", "near.png", "--rank", 0).exit_code == 2
    assert run("explain", "town.tfa", "near.png", "-o", "why.txt").exit_code == 2
    assert run("explain", "town.tfa", "near.png", "-o", "near.png/why.png").exit_code == 1
    with pytest.raises(BadSpec, match="rank=0"):
        explain_match(town, "near.png", rank=0)
    with pytest.raises(BadCalibration, match="'night'"):
        explain_match(town, "near.png", calibration="night")


@pytest.mark.parametrize(
    ("displacement", "words"),
    [
        ((-1, -3), "the query looks 3 patches further left and 1 up"),
        ((2, 1), "the query looks 1 patch further right and 2 down"),
        ((-1, 0), "the query looks 1 patch further up"),
        ((0, 4), "the query looks 4 patches further right"),
        ((0, 0), "the query looks the same way"),
        (None, "no inliers"),
    ],
)
def test_the_displacement_in_words(displacement, words):
    moved = displacement and Displacement(down=displacement[0], right=displacement[1])
    assert describe_view(moved) == words


def test_the_displacement_is_that_of_most_matches_that_move_alike():
    patches = np.arange(6 * 10).reshape(6, 10)[2:5, 4:9].ravel()
    theirs = patches - 10 - 3  # a row higher, three columns further left: the query looks up and left
    theirs[0] += 1
    alike = np.ones(len(patches), bool)
    found = explanation(
        Matches(np.append(patches, 0), np.append(theirs, 59), np.ones(16), np.append(alike, False)), (6, 10)
    )
    assert found.displacement == Displacement(down=-1, right=-3)
    assert (found.consistent, found.mutual) == (15, 16)
    assert found.to_dict()["matches"][0] == [2, 4, 1, 2, True]
    nothing = explanation(Matches(patches[:0], theirs[:0], np.ones(0), alike[:0]), (6, 10))
    assert nothing.displacement is None
    assert nothing.to_dict()["matches"] == []


def explanation(matches: Matches, grid: tuple[int, int]) -> ExplainResult:
    hit = Hit(id=0, image="a.png", score=1.0, confidence=0.5)
    return describe_matches("q.png", 1, hit, matches, grid, Admission(admitted=True, reason="used: it helps"))


def test_a_verified_hit_counts_the_matches_that_are_explained(town):
    counts = {hit.image: hit.inliers for hit in town.query("near.png", k=8, rerank=True)}
    assert len(counts) == 8
    for rank in range(1, 9):
        found = explain_match(town, "near.png", rank=rank).result
        assert counts[found.answer.image] == found.consistent


def test_help_shows_an_example(run):
    assert " explain " in run("--help").stdout
    assert "$ tfa explain town.tfa photo.jpg" in run("explain", "--help").stdout


def test_the_picture_shows_what_patches_contributed(run, town):
    from tfa.explain.draw_matches import draw_matches

    assert run("explain", "town.tfa", "near.png", "-o", "why.png").exit_code == 0
    found = explain_match(town, "near.png")
    plain = draw_matches(Path("near.png"), Path(found.result.answer.image), found.matches, (4, 4), (4, 4))
    with Image.open("why.png") as picture:
        assert picture.height > plain.height + 100
        assert np.array_equal(np.asarray(picture)[: plain.height], np.asarray(plain))
        heated = np.asarray(picture, int)[plain.height :]
    assert ((heated[..., 0] - heated[..., 2]) > 100).any()  # orange


def test_without_the_tokens_of_the_answer_the_matches_are_drawn_alone(run, town, tmp_path, monkeypatch):
    Path("photos/3.png").unlink()
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "empty"))
    result = run("explain", "town.tfa", "near.png", "-o", "why.png")
    assert result.exit_code == 0
    assert "drawn without contributions" in result.stderr
    assert "3.png" in result.stderr
    assert Path("why.png").is_file()
