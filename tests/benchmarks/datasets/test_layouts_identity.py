"""Layouts whose positives follow from folders: University-1652, DenseUAV, SUES-200."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tfa_bench.datasets.files import BadDataset
from tfa_bench.datasets.layouts.labels import identity, read_ids, sues


def picture(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (2, 2)).save(path)
    return path


def university(root: Path) -> None:
    for name in ("0002/image-01.jpeg", "0001/image-02.jpeg", "0001/image-01.jpeg"):
        picture(root / "test/query_drone" / name)
    for name in ("0003/0003.jpg", "0001/0001.jpg", "0002/0002.jpg"):
        picture(root / "test/gallery_satellite" / name)


def test_images_of_the_same_class_are_positives(tmp_path: Path) -> None:
    university(tmp_path)
    found = identity.load(tmp_path)
    assert [query.parent.name + "/" + query.name for query in found.queries] == [
        "0001/image-01.jpeg",
        "0001/image-02.jpeg",
        "0002/image-01.jpeg",
    ]
    assert [image.name for image in found.database] == ["0001.jpg", "0002.jpg", "0003.jpg"]
    assert [own.tolist() for own in found.positives] == [[0], [0], [1]]
    assert found.notes == ()


def test_the_reverse_direction_has_several_positives(tmp_path: Path) -> None:
    university(tmp_path)
    found = identity.load(tmp_path, query="test/gallery_satellite", gallery="test/query_drone")
    assert [own.tolist() for own in found.positives] == [[0, 1], [2], []]


def test_without_distractors_only_classes_with_queries_stay_and_a_note_says_whose_rule_that_is(tmp_path: Path) -> None:
    university(tmp_path)
    found = identity.load(tmp_path, distractors=False)
    assert [image.name for image in found.database] == ["0001.jpg", "0002.jpg"]
    assert [own.tolist() for own in found.positives] == [[0], [0], [1]]
    assert "1 gallery images of 1 classes" in found.notes[0]
    assert "Sample4Geo" in found.notes[0]


def test_dense_uav_has_three_heights_in_a_class(tmp_path: Path) -> None:
    for name in ("000001/H80.JPG", "000001/H90.JPG", "000002/H80.JPG"):
        picture(tmp_path / "test/query_drone" / name)
    for name in ("000001/H80.tif", "000001/H80_old.tif", "000002/H80.tif"):
        picture(tmp_path / "test/gallery_satellite" / name)
    found = identity.load(tmp_path)
    assert [own.tolist() for own in found.positives] == [[0, 1], [0, 1], [2]]


def test_an_image_in_no_class_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    university(tmp_path)
    picture(tmp_path / "test/query_drone/stray.jpg")
    with pytest.raises(BadDataset, match=r"stray\.jpg is not in a class folder"):
        identity.load(tmp_path)


def test_a_missing_gallery_is_named(tmp_path: Path) -> None:
    university(tmp_path)
    with pytest.raises(BadDataset, match="gallery_street is missing"):
        identity.load(tmp_path, gallery="test/gallery_street")


def test_no_class_in_common_is_an_error_without_distractors(tmp_path: Path) -> None:
    picture(tmp_path / "test/query_drone/1/a.jpg")
    picture(tmp_path / "test/gallery_satellite/2/a.jpg")
    with pytest.raises(BadDataset, match="no class in common"):
        identity.load(tmp_path, distractors=False)


def test_an_unknown_option_is_a_type_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        identity.load(tmp_path, distractor=False)  # type: ignore[call-arg]


def sues_200(root: Path, training: str = "index : ['0001', '0003']\n") -> None:
    for place in ("0001", "0002", "0003", "0004"):
        picture(root / "satellite-view" / place / "0.png")
        for height in (150, 200):
            picture(root / "drone_view_512x512" / place / str(height) / "0.jpg")
            picture(root / "drone_view_512x512" / place / str(height) / "1.jpg")
    (root / "indexs.yaml").write_text(training)


def test_sues_queries_are_untrained_ids_in_a_gallery_of_all(tmp_path: Path) -> None:
    sues_200(tmp_path)
    found = sues.load(tmp_path, heights=(150, 200))
    assert [image.parent.name for image in found.database] == ["0001", "0002", "0003", "0004"]
    assert [query.relative_to(tmp_path / "drone_view_512x512").as_posix() for query in found.queries[:4]] == [
        "0002/150/0.jpg",
        "0002/150/1.jpg",
        "0002/200/0.jpg",
        "0002/200/1.jpg",
    ]
    assert [own.tolist() for own in found.positives] == [[1]] * 4 + [[3]] * 4
    assert {name: own.tolist() for name, own in found.conditions.items()} == {"150": [0, 1, 4, 5], "200": [2, 3, 6, 7]}


def test_sues_needs_the_folder_of_every_height(tmp_path: Path) -> None:
    sues_200(tmp_path)
    with pytest.raises(BadDataset, match=r"0002/250 is missing"):
        sues.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ids.yaml", "# the authors' list\nindex:\n- '0001'\n- 0003\n"),
        ("ids.yaml", "index : ['0001',\n '0003']\n"),
        ("ids.txt", "0001\n0003\n"),
        ("ids.json", '["0001", 3]'),
    ],
)
def test_training_ids_are_read_from_yaml_text_and_json(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_ids(tmp_path / name) == {1, 3}


def test_a_word_among_the_ids_is_named_with_its_line(tmp_path: Path) -> None:
    sues_200(tmp_path, "0001\nthree\n")
    with pytest.raises(BadDataset, match=r"indexs\.yaml, line 2: 'three' is not an id"):
        sues.load(tmp_path, heights=(150,))


def test_a_training_id_the_dataset_lacks_is_an_error(tmp_path: Path) -> None:
    sues_200(tmp_path, "0001\n0009\n")
    with pytest.raises(BadDataset, match="lists id 0009"):
        sues.load(tmp_path, heights=(150,))


def test_broken_json_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "ids.json").write_text('["0001",\n oops]')
    with pytest.raises(BadDataset, match=r"ids\.json is not JSON: .*line 2"):
        read_ids(tmp_path / "ids.json")


def test_a_list_of_all_ids_leaves_no_query(tmp_path: Path) -> None:
    sues_200(tmp_path, "1\n2\n3\n4\n")
    with pytest.raises(BadDataset, match="no queries are left"):
        sues.load(tmp_path, heights=(150,))


def test_conditions_are_index_arrays(tmp_path: Path) -> None:
    sues_200(tmp_path)
    own = sues.load(tmp_path, heights=(200,)).conditions["200"]
    assert isinstance(own, np.ndarray)
    assert own.tolist() == [0, 1, 2, 3]
