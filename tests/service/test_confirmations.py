"""Images that sure answers of a service confirm are recorded."""

from __future__ import annotations

import pytest

from tests.service.conftest import ask, opened, picture
from tfa.core.files import BadFile
from tfa.maps import upkeep
from tfa.maps.upkeep import CONFIRMED_FILE, Confirmed, format_time
from tfa.service import cameras
from tfa.service.cameras import Confirmations
from tfa.types import Answer, Hit


def hit(image: int, *, sure: bool = True, inliers: int | None = 9) -> Hit:
    return Hit(id=image, image="", score=1.0, confidence=1.0, inliers=inliers, sure=sure)


def listed(client) -> dict[int, str | None]:
    return {one["id"]: one.get("last_confirmed") for one in client.get("/v1/images").json()["images"]}


def test_a_sure_answer_confirms_its_image_across_a_restart(serve, town):
    client, before = serve(), opened(town).state.revision
    for place, how in {3: {"rerank": "true"}, 5: {"rerank": "true", "camera": "cam0"}, 7: {"rerank": "false"}}.items():
        answer = ask(client, picture(place), **how).json()
        assert (answer["hits"][0]["id"], answer["sure"]) == (place, place != 7)
    assert {one for one, last in listed(client).items() if last is not None} == {3, 5}
    client.app.state.service.maps["town"].close()  # as at the end of a service
    kept, images = Confirmed.read(town), opened(town).images
    assert {one.id: format_time(kept.last_of(one)) for one in images} == listed(client)
    assert all(kept.since_of(one) is not None for one in images)
    assert opened(town).state.revision == before  # no edit
    assert listed(serve(opened(town))) == listed(client)


@pytest.mark.parametrize("given", [[], [hit(1, sure=False)], [hit(1, inliers=None)], [hit(99)]])
def test_other_answers_confirm_nothing(town, given):
    kept = Confirmations(opened(town))
    kept.confirm(Answer(hits=given))
    kept.close()
    assert not (town / CONFIRMED_FILE).exists()


def test_a_map_that_cannot_be_written_is_told_once_and_answers(town, monkeypatch, caplog):
    monkeypatch.setattr(cameras, "WRITTEN_EVERY", 0.0)
    full, write = [True], upkeep.write_tensors

    def writes(*given):
        if full:
            raise OSError(30, "Read-only file system")
        return write(*given)

    monkeypatch.setattr(upkeep, "write_tensors", writes)
    place_map = opened(town)
    kept = Confirmations(place_map)
    for image in (1, 2):
        kept.confirm(Answer(hits=[hit(image)]))
        kept._keeper.submit(lambda: None).result()
    assert caplog.text.count("will retry") == 1
    assert kept.last_of(place_map.images[1]) is not None
    full.clear()
    kept.close()
    assert "can be saved again" in caplog.text
    assert Confirmed.read(town).last_of(place_map.images[2]) is not None


def test_a_damaged_file_is_counted_anew(town, caplog):
    (town / CONFIRMED_FILE).write_bytes(b"no tensors")
    kept = Confirmations(opened(town))
    assert "starting over" in caplog.text
    kept.confirm(Answer(hits=[hit(3)]))
    kept.close()
    assert len(Confirmed.read(town).last) == 1


@pytest.mark.parametrize("time", [10**12, 2**62, -2])
def test_a_time_out_of_range_is_one_sentence(tmp_path, time):
    Confirmed({bytes(16): time}).write(tmp_path)
    with pytest.raises(BadFile, match=r"confirmed\.safetensors is damaged \(a time is out of range\)"):
        Confirmed.read(tmp_path)
