"""A Ray build driver in a separate process: it has its own environment and can be killed.

`python -m tests.maps.building.ray_driver ADDRESS` builds what each line of its input names and prints how it went.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from studies.scale.ray_builds import Cluster, paths


class RayDriver:
    """Such a process, as the tests see it."""

    def __init__(self, address: str, cluster: Cluster, said: Path) -> None:
        """`said` is a file for what it and Ray say."""
        self.said = said
        with said.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                env={**os.environ, **paths(), **cluster.keys, "RAY_ADDRESS": cluster.address}, text=True,
            )  # fmt: skip

    def begin(self, photos: Path, url: str, work: Path, encoder: str) -> None:
        """`encoder` is the name of one of `builders`."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([str(photos), url, str(work), encoder]) + "\n")
        self.process.stdin.flush()

    def finish(self) -> dict[str, Any]:
        """How it went: the report, or the name of an error and what it says."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # Ray may print lines of its own
                report: dict[str, Any] = json.loads(line)
                return report
        raise AssertionError(self.said.read_text()[-2000:])

    def build(self, photos: Path, url: str, work: Path, encoder: str) -> dict[str, Any]:
        self.begin(photos, url, work, encoder)
        return self.finish()

    def kill(self) -> None:
        """At once, as kill -9 does."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # a line that it did not read
                pipe.close()


def main() -> None:
    from tests.maps.building import builders
    from tfa.errors import TfaError
    from tfa.maps.building.executors import RayExecutor

    with RayExecutor(sys.argv[1]) as executor:
        for line in sys.stdin:
            photos, url, work, encoder = json.loads(line)
            try:
                report = builders.build(photos, url, executor=executor, work=work, encoder=getattr(builders, encoder))
                print(json.dumps({**report.to_dict(), "workers": executor.workers}), flush=True)
            except TfaError as error:
                print(json.dumps({"error": type(error).__name__, "says": str(error)}), flush=True)


if __name__ == "__main__":
    main()
