"""A service under the fake encoder that can be made to misbehave: `python -m tests.faults.service.faulty_server MAP`.

`--hang` makes every query hang, `--files N` allows so many open files, `--NAME VALUE` is a setting of the service.
"""

from __future__ import annotations

import json
import resource
import sys
import threading

from tests.fakes import FakeEncoder
from tfa.maps import PlaceMap
from tfa.service import server
from tfa.service.app import create_app
from tfa.service.server import address_of, bind_socket, run_server
from tfa.service.settings import ServiceSettings


class HangingEncoder(FakeEncoder):
    """Runs once, for the warm-up, and then for ever."""

    def encode(self, images):
        if self.encoded:
            threading.Event().wait()
        return super().encode(images)


def main(place_map: str, options: list[str]) -> None:
    given = {
        name.removeprefix("--"): json.loads(value) for name, value in zip(options[::2], options[1::2], strict=True)
    }
    encoder = HangingEncoder() if given.pop("hang", False) else FakeEncoder()
    if "files" in given:
        files = given.pop("files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    server.BoundedConnection.head_seconds = given.pop("head_seconds", server.REQUEST_HEAD_SECONDS)
    settings = ServiceSettings(port=0, **given)
    with bind_socket(settings) as listening:
        app = create_app([PlaceMap.load(place_map, encoder=encoder)], settings)
        print(f"serving at {address_of(listening)}", flush=True)
        run_server(app, listening, stop_seconds=settings.stop_seconds)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
