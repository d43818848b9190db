"""The two packages as files: Python 3.10, nothing but the standard library and ROS, one version, one table."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from ruamel.yaml import YAML

from tests.ros import stub_rclpy
from tests.ros.conftest import compressed
from tests.ros.ros_types import fields_of, message_class
from tests.service.conftest import picture
from tfa.core.plain import hints
from tfa.exports.answers import recording
from tfa.types import Answer, Hit, Place, Position, QueryOptions
from tfa.version import __version__
from tfa_ros import messages
from tfa_ros.parameters import PARAMETERS, checked, query_fields

ROOT = Path(__file__).parents[2]
ROS = ROOT / "ros"
CODE = sorted((ROS / "tfa_ros" / "tfa_ros").glob("*.py"))
PAGE = (ROOT / "docs" / "how-to" / "ros2.md").read_text("utf-8")
KNOWS_MESSAGES = {"assemble", "node"}


def block(language: str, containing: str) -> str:
    """The block of the page in that language with these words."""
    [found] = [one for one in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if containing in one]
    return found


def depended_on(package: str) -> set[str]:
    root = ElementTree.parse(ROS / package / "package.xml").getroot()
    return {one.text or "" for one in root if one.tag.endswith("depend")}


def imported(file: Path) -> set[str]:
    tree = ast.parse(file.read_text("utf-8"), feature_version=(3, 10))
    names = [one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names} - {"__future__", "tfa_ros"}


def test_the_code_needs_python_3_10_and_what_its_package_names():
    assert len(CODE) > 7
    for file in CODE:
        others = imported(file) - sys.stdlib_module_names
        assert others <= depended_on("tfa_ros"), file.name
        assert not others or file.stem in KNOWS_MESSAGES
        assert ("rclpy" in others) == (file.stem == "node")


def test_no_newer_library_is_used():
    pytest.importorskip("vermin", reason="needs vermin")
    command = [sys.executable, "-c", "import vermin; vermin.main()", "--no-tips", "-t=3.10-", str(ROS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "Minimum required versions: 3.10" in done.stdout


def test_one_version_everywhere():
    setup = (ROS / "tfa_ros" / "setup.py").read_text("utf-8")
    versions = re.findall(r'version="(.*?)"', setup)
    versions += [ElementTree.parse(file).findtext("version") for file in sorted(ROS.glob("*/package.xml"))]
    assert versions == [__version__] * 3


def test_cmake_names_every_definition_and_what_they_need():
    told = (ROS / "tfa_msgs" / "CMakeLists.txt").read_text("utf-8")
    files = sorted(ROS.glob("tfa_msgs/*/*"))
    assert re.findall(r'"(\w+/\w+\.\w+)"', told) == [f"{file.parent.name}/{file.name}" for file in files]
    needed = {name for file in files for name in re.findall(r"^(\w+)/\w+", file.read_text("utf-8"), re.MULTILINE)}
    packages = needed - {"tfa_msgs"}
    assert f"DEPENDENCIES {' '.join(sorted(packages))}" in told
    assert packages <= depended_on("tfa_msgs")


def test_a_match_has_every_field_of_a_hit_but_these():
    kinds = {name: kind[0] for name, (_, kind) in fields_of("tfa_msgs/msg/Match")}
    from_hit = {name: kinds[name] for name in kinds if name not in {"has_position", *messages.POSITION_FIELDS}}
    assert from_hit == recording.HIT_FIELDS
    assert set(hints(Hit)) - set(from_hit) == recording.NOT_IN_MATCH == {"id", "inliers", "image_url", "position"}
    assert set(messages.POSITION_FIELDS.values()) == set(hints(Position))
    assert set(message_class("tfa_msgs/msg/Match").get_fields_and_field_types().values()) <= set(messages.UNKNOWN)
    assert messages.POSITION_FIELDS == recording.POSITION_FIELDS


def test_messages_name_fields_of_answers_and_places():
    assert set(dict(fields_of("tfa_msgs/msg/Matches"))) - set(hints(Answer)) == {"header", "map_name", "matches"}
    localized = set(dict(fields_of("tfa_msgs/srv/Localize_Response"))) - set(messages.POSITION_FIELDS)
    assert localized - {*hints(Answer), *hints(Place)} == {"success", "message", "matches", "has_place"}
    values = {**{one.name: one.default for one in PARAMETERS}, "camera": "a", "calibration": "b", "loops": True}
    sent = query_fields(values, of_the_camera=True)
    assert set(sent) <= set(hints(QueryOptions))


def test_the_sample_has_every_parameter(start, service):
    defaults = {one.name: one.default for one in PARAMETERS}
    text = (ROS / "tfa_ros" / "config" / "tfa.yaml").read_text("utf-8")
    assert YAML(typ="safe").load(text) == {"/**": {"ros__parameters": defaults}}
    comments = dict(re.findall(r"^    (\w+): .*?  # (.*)$", text, re.MULTILINE))
    assert comments == {one.name: one.meaning for one in PARAMETERS}
    run = start(service)
    assert {name: default for name, (default, _) in run.node.declared.items()} == defaults
    assert all(how.read_only and how.description for _, how in run.node.declared.values())


def test_the_page_names_every_topic_and_service(start, service):
    run = start(service)
    run.see(compressed(picture(3)))
    run.heard("/tfa/fix")
    run.diagnose()
    names = {*run.transport.published, *run.node.services, "/tfa/pose", "/tfa/loops"}
    assert names == set(re.findall(r"^\| `(/[\w/]+)` \|", PAGE, re.MULTILINE))


def test_the_launch_file_launches_the_program_of_the_package(monkeypatch):
    recorded: list[dict[str, Any]] = []
    for name in ("launch", "launch.actions", "launch.substitutions", "launch_ros.actions", "launch_ros.substitutions"):
        module = ModuleType(name)
        for made in ("LaunchDescription", "PathJoinSubstitution"):
            setattr(module, made, list)
        for made in ("DeclareLaunchArgument", "LaunchConfiguration", "FindPackageShare"):
            setattr(module, made, lambda named, **given: (named, given))
        module.Node = lambda **given: recorded.append(given)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    found = runpy.run_path(str(ROS / "tfa_ros" / "launch" / "tfa.launch.py"))["generate_launch_description"]()
    assert [one[0] for one in found[:2]] == ["params", "namespace"]
    assert found[0][1]["default_value"] == [("tfa_ros", {}), "config", "tfa.yaml"]
    [node] = recorded
    assert node["parameters"] == [("params", {})]
    setup = (ROS / "tfa_ros" / "setup.py").read_text("utf-8")
    assert f'"{node["executable"]} = {node["package"]}.node:main"' in setup


def test_the_page_is_followed(service, monkeypatch, tmp_path, capsys):
    parameters = YAML(typ="safe").load(block("yaml", "ros__parameters"))["/**"]["ros__parameters"]
    assert checked({**{one.name: one.default for one in PARAMETERS}, **parameters})["camera"] == "front"

    (tmp_path / "photo.jpg").write_bytes(picture(5, 0.9))
    monkeypatch.chdir(tmp_path)
    exec(compile(block("python", "ServiceClient").replace("http://localhost:8000", service), "page", "exec"), {})
    assert capsys.readouterr().out.startswith("05.png 0.9")

    transport = stub_rclpy.LocalTransport()
    monkeypatch.setattr(stub_rclpy.Node, "transport", transport, raising=False)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(block("python", "Listener"), "page", "exec"), names)
    stub_rclpy.LOG.lines.clear()
    names["Listener"]()
    kinds = {name: message_class(f"tfa_msgs/msg/{name}") for name in ("Match", "Matches")}
    for verdict in ("probable", "recognized"):
        match = kinds["Match"](image="05.png", sure=verdict == "recognized")
        said = {"verdict": verdict, "reason": "one place leads", "matches": [match]}
        transport.deliver("/tfa/matches", kinds["Matches"](query="7.5", **said))
    assert stub_rclpy.LOG.lines == [("info", "7.5: probable, one place leads"), ("info", "7.5: 05.png")]
