"""A service of a map under the fake encoder, as a program: `python -m tests.service.fake_server MAP`."""

from __future__ import annotations

import sys

from tests.fakes import FakeEncoder
from tfa.maps import PlaceMap
from tfa.service.app import create_app
from tfa.service.server import address_of, bind_socket, run_server
from tfa.service.settings import ServiceSettings

if __name__ == "__main__":
    settings = ServiceSettings(port=0)
    with bind_socket(settings) as listening:
        app = create_app([PlaceMap.load(sys.argv[1], encoder=FakeEncoder())], settings)
        print(f"serving at {address_of(listening)}", flush=True)
        run_server(app, listening)
