"""The page as the service gives it: whole, from the package, and under a strict policy like every other answer."""

from __future__ import annotations

import importlib.resources
import re

import pytest

from tests.browser.stub_service import POLICY
from tfa.maps import PlaceMap
from tfa.report.page import PLAN_VIEW


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/static/app.js", 200),
        ("GET", "/static/style.css", 200),
        ("GET", "/static/nothing.js", 404),
        ("GET", "/healthz", 200),
        ("GET", "/v1/images", 200),
        ("GET", "/v1/images/3/file", 200),
        ("GET", "/openapi.json", 200),
        ("PUT", "/v1/query", 405),
        ("POST", "/v1/query", 415),
        ("GET", "/v1/map", 500),
    ],
)
def test_every_answer_has_the_strict_policy(serve, monkeypatch, method, path, status):
    monkeypatch.setattr(PlaceMap, "info", lambda self: 1 / 0)
    answer = serve(raises=False).request(method, path)
    assert answer.status_code == status
    assert answer.headers.get_list("content-security-policy") == [POLICY]  # what tests in the browser hold the page to
    assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
    assert answer.headers.get_list("referrer-policy") == ["no-referrer"]


def test_a_refused_host_has_the_policy_too(client):
    answer = client.get("/", headers={"Host": "elsewhere.example"})
    assert answer.status_code == 403
    assert answer.headers["content-security-policy"] == POLICY


def test_the_page_and_all_it_names_come_with_the_package(client):
    page = importlib.resources.files("tfa.service") / "page"
    index = (page / "index.html").read_text("utf-8")
    assert client.get("/").text == index
    named = set(re.findall(r'"static/([\w.-]+)"', index))
    for script in [name for name in named if name.endswith(".js")]:
        named |= modules(page, script)
    assert {"app.js", "style.css", "icon.svg", "calibrate.js", "plan.js"} <= named
    assert client.get("/static/plan_view.js").content == PLAN_VIEW.read_bytes()  # which reports use too
    named.remove("plan_view.js")
    for name in named:
        assert client.get(f"/static/{name}").content == (page / name).read_bytes()
    assert {file.name for file in page.iterdir()} == named | {"index.html"}  # and nothing else


def modules(page, name, found=None):
    """Every module that a script imports, and those import."""
    found = set() if found is None else found
    for other in re.findall(r'from "\./([\w.-]+)"', (page / name).read_text("utf-8")):
        if other not in found:
            found.add(other)
            if other == PLAN_VIEW.name:
                continue  # it imports nothing
            modules(page, other, found)
    return found
