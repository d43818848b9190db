"""Bytes an image takes in a served map, for each carrier and storage, beside a residual descriptor in float32."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfa.bench.speed.result_line import Bar, Line, format_bytes
from tfa.bench.speed.synthetic_maps import second_order_head, synthetic_head, synthetic_spaces
from tfa.bench.speed.synthetic_states import synthetic_state
from tfa.core.progress import Progress, as_progress
from tfa.maps.folder import writer
from tfa.maps.state import MapState
from tfa.maps.stored_head import INTEGERS
from tfa.method.carriers import PAPER_CARRIERS
from tfa.types import STORAGES

BAR = Bar(4.0, at_least=True)
SECOND_ORDER = "second-order, tempered"
ALLOWED_BYTES = {607: 9500, 20_000: 5000}  # an image of a judged map, by the number of images


@dataclass(frozen=True)
class MapSize:
    """Bytes on disk of one map, without compact tokens, which are optional."""

    carrier: str
    storage: str
    images: int
    disk_bytes: int
    descriptor_bytes: int  # of an image as AnyLoc keeps it: 4 · words · channels

    @property
    def bytes_per_image(self) -> float:
        return self.disk_bytes / self.images

    @property
    def ratio(self) -> float:
        return self.descriptor_bytes / self.bytes_per_image

    @property
    def bar(self) -> Bar | None:
        """How many times smaller than descriptors it must be, in integers."""
        if self.storage != INTEGERS:
            return None
        if self.carrier != SECOND_ORDER:
            return BAR
        allowed = ALLOWED_BYTES.get(self.images)
        return None if allowed is None else Bar(round(self.descriptor_bytes / allowed, 2), at_least=True)


@dataclass(frozen=True)
class MapSizeBenchmark:
    words: int
    channels: int
    sizes: tuple[MapSize, ...]

    def lines(self) -> list[Line]:
        return [
            Line(
                f"{size.carrier}, {size.storage}, {size.images:,} images",
                ratio=size.ratio,
                bar=size.bar,
                disk_bytes=size.disk_bytes,
                note=f"{size.bytes_per_image:,.0f} bytes an image; float32 descriptors {size.descriptor_bytes:,}",
            )
            for size in self.sizes
        ]

    def to_dict(self) -> dict[str, Any]:
        more = [{"bytes_per_image": size.bytes_per_image, "ratio": size.ratio} for size in self.sizes]
        values = asdict(self)
        return {**values, "sizes": [{**size, **extra} for size, extra in zip(values["sizes"], more, strict=True)]}

    def __str__(self) -> str:
        lines = [f"{self.words} words × {self.channels} channels", ""]
        lines.append(f"{'carrier':<24}{'storage':<10}{'images':>8}{'map':>12}{'an image':>12}{'times smaller':>16}")
        for size in self.sizes:
            lines.append(
                f"{size.carrier:<24}{size.storage:<10}{size.images:>8,}{format_bytes(size.disk_bytes):>12}"
                f"{size.bytes_per_image:>12,.0f}{size.ratio:>16.2f}"
            )
        return "\n".join(lines)


def run_map_size_benchmark(
    *,
    sizes: Sequence[int] = (607,),
    carriers: Sequence[str] = PAPER_CARRIERS,
    storages: Sequence[str] = STORAGES,
    second_order_sizes: Sequence[int] = (607,),
    words: int = 64,
    channels: int = 384,
    progress: bool | Progress | None = None,
) -> MapSizeBenchmark:
    """Write made-up maps and weigh their files; maps of a second-order head have sizes of their own."""
    paper = [(images, carrier) for images in sizes for carrier in carriers]
    wanted = [*paper, *((images, SECOND_ORDER) for images in second_order_sizes)]
    weighed = []
    with as_progress(progress).task("writing", len(wanted) * len(storages)) as task:
        for images, carrier in wanted:
            for storage in storages:
                if carrier == SECOND_ORDER:
                    spaces = synthetic_spaces(images, channels, storage)
                    state = synthetic_state(second_order_head(spaces), spaces=spaces)
                else:
                    head = synthetic_head(images, carrier, words=words, channels=channels, storage=storage)
                    state = synthetic_state(head)
                weighed.append(MapSize(carrier, storage, images, weight(state), 4 * words * channels))
                task.advance()
    return MapSizeBenchmark(words, channels, tuple(weighed))


def weight(state: MapState) -> int:
    """Bytes of the map's files."""
    with tempfile.TemporaryDirectory(prefix="tfa-size-") as folder:
        writer.write_new(Path(folder) / "made.tfa", state, overwrite=False)
        return sum(file.stat().st_size for file in (Path(folder) / "made.tfa").iterdir())
