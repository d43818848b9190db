"""A working folder with real maps under the fake encoder, and a spy that notes how the command line calls them."""

from __future__ import annotations

import functools
import inspect
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.fakes import FakeEncoder, random_image
from tests.maps.conftest import SPEC, photo
from tfa.maps import PlaceMap
from tfa.types import BuildOptions, EncoderOptions

Run = Callable[..., Result]
PLACES = 14
NOTED = ("build", "load", "save", "use_encoder", "query_many", "add", "remove", "refit", "calibrate")


class Spy:
    """Notes each call of a map that the command line makes, then lets the real map do it (or raises `raises`)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.raises: BaseException | None = None

    def given(self, name: str) -> dict[str, Any]:
        """What the one call of that name was given."""
        [given] = [given for called, given in self.calls if called == name]
        return given

    def on(self, name: str) -> Any:
        """The method of that name, with the note taken first."""
        made_by_class = isinstance(inspect.getattr_static(PlaceMap, name), classmethod)
        real = getattr(PlaceMap, name)
        real = real.__func__ if made_by_class else real
        signature = inspect.signature(real)

        @functools.wraps(real)
        def noted(owner: Any, *args: Any, **given: Any) -> Any:
            bound = signature.bind(owner, *args, **given)
            noted_values = dict(list(bound.arguments.items())[1:])
            for one in signature.parameters.values():
                if one.kind is inspect.Parameter.VAR_KEYWORD:
                    noted_values |= noted_values.pop(one.name, {})
            self.calls.append((name, noted_values))
            if self.raises is not None:
                raise self.raises
            if isinstance(
                bound.arguments.get("options"), EncoderOptions
            ):  # what machine the tests run on must not matter
                bound.arguments["options"] = replace(bound.arguments["options"], device="cpu")
            return real(*bound.args, **bound.kwargs)

        return classmethod(noted) if made_by_class else noted


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    made = Spy()
    for name, method in {name: made.on(name) for name in NOTED}.items():
        monkeypatch.setattr(PlaceMap, name, method)
    return made


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("build", ...)`: the outcome of a command, without colours and with room for long lines."""
    from tfa.cli.app import app

    for name, value in {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200", "TERMINAL_WIDTH": "200"}.items():
        monkeypatch.setenv(name, value)
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args], prog_name="tfa")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos and maps of them, made once: `folder` is a copy that a test may change."""
    root = tmp_path_factory.mktemp("cli")
    for place in range(PLACES):
        photo(root / "photos" / f"{place:02d}.png", place)
        photo(root / "camera" / f"{place:02d}.png", place, light=0.7)
    for name, place in {"near": 5, "walk/a": 3, "walk/sub/b": 4, "far": 99}.items():
        photo(root / f"{name}.jpg", place, light=0.9)
    (root / "bad.jpg").write_bytes(b"\xff\xd8\xff nonsense")
    rows = [f"{place:02d}.png,{52.5 + place},13.25" for place in range(0, PLACES, 5)]
    (root / "where.csv").write_text("\n".join(["file,lat,lon", *rows, "absent.png,1,2", "near.jpg,50,10", ""]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFA_CACHE", str(root / "cache"))
        for name, rerank in (("town.tfa", True), ("plain.tfa", False)):
            where, kept = (
                root / "where.csv" if rerank else None,
                BuildOptions(head="paper", storage="float16", rerank=rerank),
            )
            built = PlaceMap.build(root / "photos", encoder=FakeEncoder(), spec=SPEC, positions=where, map_spec=kept)
            built.save(root / name)
        shutil.copytree(root / "town.tfa", root / "calibrated.tfa")
        calibrated = PlaceMap.load(root / "calibrated.tfa", encoder=FakeEncoder())
        calibrated.calibrate(root / "camera", name="day", score=False)
        calibrated.calibrate(root / "camera", name="night", score=True)
    return root


@pytest.fixture
def fake_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder where every encoder is the fake one, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    for module in ("tfa.encoders", "tfa.maps.map"):
        monkeypatch.setattr(f"{module}.load_encoder", lambda *_, **__: FakeEncoder())
    return tmp_path


@pytest.fixture
def folder(made: Path, fake_encoder: Path) -> Path:
    """A working folder with photos (one of them broken), maps and a positions file, two rows of which match nothing."""
    return shutil.copytree(made, fake_encoder, dirs_exist_ok=True)


def write_drive(root: Path, places: int) -> Path:
    """A dataset of the plain layout: a photo of each place, and a brighter one that asks for it."""
    for name in ("database", "queries"):
        (root / name).mkdir(parents=True)
    for place in range(places):
        random_image(place).save(root / "database" / f"d{place:02}.png")
        random_image(place).point(lambda value: min(value + 6, 255)).save(root / "queries" / f"q{place:02}.png")
    listed = {f"q{place:02}.png": [f"d{place:02}.png"] for place in range(places)}
    (root / "positives.json").write_text(json.dumps(listed))
    return root
