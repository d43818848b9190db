"""Save measured rows, and measure them with a small town on each store."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from studies.options import read_result
from studies.scale.local_servers import AnyServer, new_server
from studies.serve import ENCODER, random_weights_file, synthetic_photo
from studies.speed.measure import library_versions, machine, thread_count
from tfa.core.files import make_folder, write_json
from tfa.core.tokens import Tokens
from tfa.encoders import load_encoder
from tfa.maps import PlaceMap
from tfa.photos.token_cache import TokenCache
from tfa.types import BuildOptions, EncoderOptions, HeadSpec

FORMAT, VERSION = "tfa-scale", 1
Row = Mapping[str, Any]


class SavedRows:
    """Rows by part and name. Without a file they last for this run only."""

    def __init__(self, file: Path | None = None, *, again: bool = False) -> None:
        """Open saved rows; `again` measures existing rows again and replaces them."""
        self._file, self._again, self._fresh = file, again, set[tuple[str, str]]()
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        if file is not None and file.exists():
            known = read_result(file, FORMAT, VERSION, "scale/run.py")
            self.rows = {(row["part"], row["name"]): row for row in known["rows"]}

    def has(self, part: str, name: str) -> bool:
        key = (part, name)
        return key in self.rows and (not self._again or key in self._fresh)

    def keep(self, part: str, name: str, facts: Row) -> dict[str, Any]:
        """Write a row immediately."""
        row = {"part": part, "name": name, **facts, "threads": thread_count()}
        self.rows[part, name] = row
        self._fresh.add((part, name))
        if self._file is not None:
            write_json(self._file, self.to_dict())
        return row

    def of(self, part: str) -> Iterator[dict[str, Any]]:
        return (row for (own, _), row in self.rows.items() if own == part)

    def to_dict(self) -> dict[str, Any]:
        about = {"format": FORMAT, "version": VERSION, "machine": machine(), "versions": library_versions()}
        return {**about, "rows": list(self.rows.values())}


IMAGES = 60
DIMS = 64


@dataclass(frozen=True)
class SmallTown:
    """Photos below a folder; `name` distinguishes the photos of maps in every path."""

    folder: Path

    @property
    def weights(self) -> Path:
        file = self.folder / "random.safetensors"
        if not file.exists():
            make_folder(self.folder)
            random_weights_file(self.folder)
        return file

    @property
    def options(self) -> EncoderOptions:
        return EncoderOptions(weights=self.weights, cache=TokenCache(self.folder / "cache"))

    def photo(self, name: str, seed: int, light: float = 1.0) -> Path:
        file = self.folder / name / f"{seed:05d}.jpg"
        if not file.exists():
            make_folder(file.parent)
            file.write_bytes(synthetic_photo(seed, light))
        return file

    def map(self, name: str, first: int = 0, images: int = IMAGES) -> PlaceMap:
        """Build a map from photos with seeds from `first` on."""
        photos = [self.photo(name, seed) for seed in range(first, first + images)]
        saved = BuildOptions(head="second-order", rerank=False)
        return PlaceMap.build(photos, encoder=ENCODER, options=self.options, spec=HeadSpec(words=16), map_spec=saved)

    def tokens(self, photo: Path) -> Tokens:
        """Return tokens in memory, so that another process can receive them."""
        encoder = load_encoder(ENCODER, weights=self.weights)
        read = TokenCache(self.folder / "cache").encode([photo], encoder).tokens
        return Tokens([np.array(read.patches[0])], None if read.cls is None else np.array(read.cls), grid=read.grid)


PAUSE = 0.05  # seconds between attempts
T = TypeVar("T")


def row_for_each(
    part: str, engines: Sequence[str], saved: SavedRows, measure: Callable[[SmallTown, AnyServer], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Measure with a new town and a new server of each store that has no row yet."""
    for engine in engines:
        if saved.has(part, engine):
            continue
        server = new_server(engine)
        try:
            with tempfile.TemporaryDirectory(prefix=f"tfa-{part}-") as folder:
                facts = measure(SmallTown(Path(folder)), server)
        finally:
            server.remove()
        yield saved.keep(part, engine, {"engine": engine, **facts})


def until_answered(ask: Callable[[], T], refusal: type[Exception], patience: float) -> T:
    """Return the first answer that is not a `refusal`; after `patience` seconds the refusal is raised."""
    last = time.monotonic() + patience
    while True:
        try:
            return ask()
        except refusal:
            if time.monotonic() > last:
                raise
            time.sleep(PAUSE)
