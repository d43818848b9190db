"""Another process edits a served map: the next query uses the new files."""

from __future__ import annotations

import shutil

import pytest

from tests.maps.conftest import photo
from tests.service.conftest import ask, ids, opened, picture
from tfa.maps.folder import reader
from tfa.maps.folder.format import HEADER_FILE


def best(client, place: int) -> int:
    answer = ask(client, picture(place), k=1)
    assert answer.status_code == 200, answer.text
    return answer.json()["hits"][0]["id"]


def test_the_next_query_finds_what_another_process_added_and_cameras_go_on(client, town, tmp_path):
    assert ask(client, picture(5), camera="cam0").json()["adaptation_photos"] == 0
    opened(town).add([photo(tmp_path / "new.png", 40)], progress=False)
    assert best(client, 40) == 14
    assert ask(client, picture(6), camera="cam0").json()["adaptation_photos"] == 1
    opened(town).remove([14, 3])
    assert ask(client, picture(40), camera="cam0", k=1).json()["hits"][0]["id"] != 14
    assert ids(client) == [0, 1, 2, *range(4, 14)]  # other requests look too
    assert client.get("/v1/map").json()["revision"] == 3
    assert client.delete("/v1/images/5").json()["revision"] == 4  # and an edit goes on from there
    assert [record.id for record in opened(town).images] == ids(client)


def test_a_map_is_read_again_only_when_its_header_is_another(client, town, monkeypatch):
    opened(town).remove([13])
    read = []
    read_map = reader.read_map
    monkeypatch.setattr(reader, "read_map", lambda *given: (read.append(given), read_map(*given))[1])
    assert best(client, 5) == 5
    assert best(client, 6) == 6
    assert len(read) == 1
    client.delete("/v1/images/12")  # our own edit is known
    assert best(client, 5) == 5
    assert len(read) == 1


@pytest.mark.parametrize("broken", ["header", "file", "encoder"])
def test_what_is_not_whole_on_disk_is_never_served(client, town, caplog, broken):
    header = (town / HEADER_FILE).read_bytes()
    opened(town).remove([5])
    whole = (town / HEADER_FILE).read_bytes()
    if broken == "header":
        (town / HEADER_FILE).write_bytes(whole[:-20])
    elif broken == "file":  # the header came before a file that it names, as it does in a plain copy
        opened(town).add([photo(town.parent / "new.png", 40)], progress=False)
        [fresh] = town.glob("gallery-r000003*")
        kept = shutil.move(fresh, town.parent / "kept")
    else:
        service = client.app.state.service
        service.maps["town"].encoder.model = "another"
        refused = ask(client, picture(5))
        assert refused.status_code == 409
        assert refused.json()["error"] == "town.tfa was rebuilt with another encoder; restart the service"
        return
    assert best(client, 5) == best(client, 5) == 5  # of the revision before
    assert caplog.text.count("cannot read town on disk, still serving revision 1") == 1
    if broken == "header":
        (town / HEADER_FILE).write_bytes(whole)
    else:
        shutil.move(kept, fresh)
        assert best(client, 40) == 14
    assert best(client, 5) != 5
    (town / HEADER_FILE).write_bytes(header)
    assert best(client, 5) == 5


def test_a_map_that_was_removed_is_an_error_that_names_it_until_it_is_back(client, town):
    gone = "town.tfa was moved or removed while it was served"
    shutil.move(town, town.parent / "elsewhere.tfa")
    for answer in (ask(client, picture(5)), client.get("/v1/map"), client.delete("/v1/images/3")):
        assert answer.status_code == 503
        assert answer.json()["error"].startswith(gone)
    assert client.get("/readyz").json()["status"].startswith(gone)
    shutil.move(town.parent / "elsewhere.tfa", town)
    assert best(client, 5) == 5
    assert client.get("/readyz").status_code == 200
