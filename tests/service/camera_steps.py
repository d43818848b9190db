"""Photo streams, and the answers of a service and a tracker."""

from __future__ import annotations

from tests.service.conftest import picture

DRIVE = [picture(place, 0.8) for place in range(14)]
STREAM = [picture(place % 14, 0.9 - 0.005 * place) for place in range(40)]  # enough for a bias of scores


def told(answer):
    """What an answer of the service says, as a tracker's would."""
    assert answer.status_code == 200, answer.text
    return of_json(answer.json())


def of_json(answer):
    hits = [(hit["id"], hit["score"], hit["confidence"], hit["inliers"]) for hit in answer["hits"]]
    return hits, answer["confidence"], answer["adaptation_photos"], answer.get("lost")


def of_tracker(answer):
    hits = [(hit.id, hit.score, hit.confidence, hit.inliers) for hit in answer.hits]
    return hits, answer.confidence, answer.adaptation_photos, answer.lost


def followed(place_map, photos, **how):
    tracker = place_map.follow(**{"sequence": False, **how})
    return [of_tracker(tracker.step(one)) for one in photos]


def listed(client):
    return {one["name"]: one["seen"] for one in client.get("/v1/cameras").json()["cameras"]}


def files(town):
    return sorted(path.name for path in town.glob("session-*"))
