"""Count the modules that `tfa query` enters for one photo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.test_layout import ROOT
from tests.maps.conftest import photo
from tests.waiting import child_environment

pytestmark = pytest.mark.slow
MOST_MODULES = 35
PLACES = 24

# `tfa` with the quick encoder. If the first argument names a file, the modules of the package that are entered are
# written there: those of which a function is called, other than by the code that imports modules.
TFA = """
import json, sys, threading
from pathlib import Path
import tfa.encoders
from tests.fakes import FakeEncoder
tfa.encoders.load_encoder = lambda *_, **__: FakeEncoder()
from tfa.cli.app import main

package, entered = str(Path(tfa.__file__).parent), set()

def is_importing(frame):
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename != "<string>":
            return True
        frame = frame.f_back
    return False

def note(frame, event, _):
    file = frame.f_code.co_filename
    if event == "call" and file not in entered and file.startswith(package) and not is_importing(frame):
        entered.add(file)

out = sys.argv.pop(1)
if out:
    threading.setprofile(note)
    sys.setprofile(note)
try:
    main()
finally:
    sys.setprofile(None)
    if out:
        Path(out).write_text(json.dumps(sorted(str(Path(one).relative_to(package)) for one in entered)))
"""


def run_tfa(*words: object, note: object = "") -> str:
    command = [sys.executable, "-c", TFA, str(note), *map(str, words)]
    done = subprocess.run(command, env=child_environment(ROOT), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def town(tmp_path_factory) -> Path:
    """A saved map, and a query photo beside it."""
    folder = tmp_path_factory.mktemp("town")
    for place in range(PLACES):
        photo(folder / "photos" / f"{place:02d}.png", place)
    photo(folder / "query.png", 5, light=0.8)
    run_tfa("build", folder / "photos", "--out", folder / "town.tfa")
    return folder


def test_a_query_enters_no_more_modules_than_the_limit(town, tmp_path):
    answer = run_tfa("query", town / "town.tfa", town / "query.png", note=tmp_path / "entered.json")
    assert "05.png" in answer
    entered = json.loads((tmp_path / "entered.json").read_text("utf-8"))
    assert {"cli", "maps", "method", "search", "verification"} <= {one.split("/")[0] for one in entered}
    assert len(entered) <= MOST_MODULES, "\n".join(entered)
