"""Saved rows of the scale study, a small town to measure them on each store, and their Markdown tables."""

from __future__ import annotations

import math
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
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
from tfa.search.reduced import AGAIN
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
        encoder = load_encoder(ENCODER, weights=self.weights, precision="int8")
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


_DASH = "–"


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *body]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def number(value: float | None) -> str:
    """Format with three digits, or more for large integers."""
    if value is None:
        return _DASH
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def whole(value: float | None) -> str:
    return _DASH if value is None else f"{value:,.0f}"


def percent(value: float | None) -> str:
    return _DASH if value is None else f"{100 * value:.1f}"


def reduction_table(rows: Sequence[Row]) -> str:
    """Return a table per gallery, and how many images are needed if that was studied."""
    galleries = [row for row in rows if "variants" in row]
    needed = [line for row in rows for line in _needed(row)]
    parts = [_of_gallery(row) for row in galleries]
    if needed:
        head = ("R@1 of all as one", "share of the images", "mean over datasets")
        parts.append(f"**How many images are needed**\n\n{table(head, needed)}")
    return "\n\n".join(parts)


def _of_gallery(row: Row) -> str:
    """Return dimensions down, kinds of rows across, coarse → rescored; the mean over datasets in percent."""
    from studies.scale.union import KINDS  # imports this module

    found = {(one["dims"], one["rows"], one["again"]): one["mean"] for one in row["variants"] if one["share"] == 1}
    spread = {one["dims"]: one["ratio"] for one in row["spreads"]}
    body = []
    for dims in dict.fromkeys(one["dims"] for one in row["variants"]):
        cells = [f"{100 * found[dims, kind, 0]:.2f} → {100 * found[dims, kind, AGAIN]:.2f}" for kind in KINDS]
        size = f"{dims:,}" if dims <= row["width"] else f"all {row['width']:,} and the bias"
        body.append([size, *cells, f"{spread[dims]:.3f}"])
    about = f"{row['images']:,} images, {row['head']}, {row['width']:,} numbers an image: R@1 {100 * row['mean']:.2f}."
    shown = table(("dims", *KINDS, "spread of a row, reduced ÷ full"), body)
    return f"**{row['gallery']}**: {about}\n\n{shown}"


def _needed(row: Row) -> Iterator[list[str]]:
    tried = {one["dims"] for one in row.get("variants", ()) if one["share"] < 1}
    for one in row.get("variants", ()):
        if one["dims"] in tried and (one["rows"], one["again"]) == ("int8", 0):
            yield [f"reduction to {one['dims']:,}, int8", f"{one['share']:.0%}", f"{100 * one['mean']:.2f}"]
    if "fitted_on" in row:
        yield ["directions and covariance of the head", f"{row['fitted_on']:.0%}", f"{100 * row['mean']:.2f}"]


def tables(rows: Iterable[Row]) -> dict[str, str]:
    """Return the tables of every part that has rows."""
    by_part: dict[str, list[Row]] = {}
    for row in rows:
        by_part.setdefault(row["part"], []).append(row)
    return {part: make(by_part[part]) for part, make in TABLES.items() if part in by_part}


def all_tables(rows: Iterable[Row]) -> str:
    return "\n\n".join(f"### {part}\n\n{table}" for part, table in tables(rows).items()) + "\n"


def filled(text: str, tables: Mapping[str, str]) -> str:
    """Fill the tables into a Markdown page between `<!-- scale: PART -->` and `<!-- end of PART -->`."""
    for part, own in tables.items():
        between = re.compile(rf"(<!-- scale: {part} -->\n).*?(<!-- end of {part} -->)", re.DOTALL)
        text = between.sub(lambda mark: f"{mark[1]}{own}\n{mark[2]}", text)  # noqa: B023
    return text


def engines_table(rows: Sequence[Row]) -> str:
    """Return a table per size, then one of growth."""
    parts = []
    for images in sorted({row["images"] for row in rows}):
        head = ("engine", "build, s", "disk, bytes an image", "memory, bytes an image", "p50, ms", "p99, ms",
                "× numpy", "recall@10", "top 1")  # fmt: skip
        body = [_engine_cells(row) for row in rows if row["images"] == images]
        parts.append(f"**{images:,} images**\n\n{table(head, body)}")
    return "\n\n".join([*parts, *_growth(rows)])


def _engine_cells(row: Row) -> list[str]:
    if "given_up" in row:
        return [row.get("what") or row["engine"], row["given_up"], *[_DASH] * 7]
    each = row["images"]
    return [
        row["what"],
        number(row["build_seconds"]),
        whole(None if row.get("disk_bytes") is None else row["disk_bytes"] / each),
        whole(row["memory_bytes"] / each),
        number(row["p50_ms"]),
        number(row["p99_ms"]),
        number(row["ratio"]),
        f"{row['recall_at_10']:.3f}",
        f"{row['top_1']:.3f}",
    ]


def _growth(rows: Sequence[Row]) -> list[str]:
    """Return exponents a of p50 ~ images^a and build ~ images^a between neighboring sizes."""
    sizes = sorted({row["images"] for row in rows if "given_up" not in row})
    if len(sizes) < 2:
        return []
    found = {(row["engine"], row["images"]): row for row in rows if "given_up" not in row}
    head = ["engine", *(f"{what}, {few:,} → {many:,}" for few, many in pairwise(sizes) for what in ("query", "build"))]
    body = []
    for engine in dict.fromkeys(row["engine"] for row in rows):
        cells = []
        for few, many in pairwise(sizes):
            one, other = found.get((engine, few)), found.get((engine, many))
            for key in ("p50_ms", "build_seconds"):
                known = one is not None and other is not None
                cells.append(f"{math.log(other[key] / one[key]) / math.log(many / few):.2f}" if known else _DASH)  # type: ignore[index]
        if set(cells) != {_DASH}:
            body.append([next(row["what"] for row in found.values() if row["engine"] == engine), *cells])
    return [f"Growth: the exponent a of seconds ~ imagesᵃ.\n\n{table(head, body)}"] if body else []


def _by_encoder(rows: Sequence[Row], make: Callable[[Sequence[Row]], str]) -> str:
    """Compare rows under one encoder."""
    encoders = dict.fromkeys(row["encoder"] for row in rows)
    return "\n\n".join(f"`{one}`:\n\n{make([row for row in rows if row['encoder'] == one])}" for one in encoders)


def union_table(rows: Sequence[Row]) -> str:
    """Return datasets down, heads across: alone → in the union."""
    from studies.scale.union import HEADS, UNION  # imports this module

    heads = sorted(dict.fromkeys(row["head"] for row in rows), key=lambda head: (*HEADS, head).index(head))
    titles = {row["head"]: row["title"] for row in rows}
    found = {(row["head"], row["gallery"]): row for row in rows}
    names = [name for row in rows if row["gallery"] == UNION for name in row["recall"]]
    body: list[list[str]] = []
    means: dict[str, tuple[list[float], list[float]]] = {head: ([], []) for head in heads}
    for name in dict.fromkeys(names):
        cells = []
        for head in heads:
            alone = found.get((head, name), {}).get("recall", {}).get(name)
            joined = found.get((head, UNION), {}).get("recall", {}).get(name)
            cells.append(f"{percent(alone)} → {percent(joined)}")
            for value, saved in zip((alone, joined), means[head], strict=True):
                if value is not None:
                    saved.append(value)
        body.append([name, *cells])
    count = len(body)
    whole = [[percent(sum(saved) / count if len(saved) == count else None) for saved in means[head]] for head in heads]
    body.append(["mean", *(" → ".join(pair) for pair in whole)])
    return table(["dataset", *(titles[head] for head in heads)], body)


def ray_table(rows: Sequence[Row]) -> str:
    head = ("build", "encoder", "images", "seconds", "images a second", "beyond one process, ms an image",
            "to the clean build of two nodes", "every image once, same map",
            "shards done before → not repeated")  # fmt: skip
    body = []
    for row in rows:
        again = _DASH
        if "done_before" in row:
            again = f"{row['done_at_the_kill']} → {row['done_before']} of {row['shards']}"
        to_clean = _DASH if row["to_clean"] is None else f"{row['to_clean']:.2f}"
        rate, once = number(row["images_per_second"]), "yes" if row["same_map"] else "no"
        more = _DASH if row["case"] == "one process" else number(row["more_ms_an_image"])
        seconds = number(row["seconds"])
        body.append([row["case"], row["encoder"], f"{row['images']:,}", seconds, rate, more, to_clean, once, again])
    return table(head, body)


def switches_table(rows: Sequence[Row]) -> str:
    head = ("engine", "switches", "a switch, s", "queries", "errors", "mixed", "old after 1 s", "longest old, s")
    body = [
        [row["engine"], str(row["switches"]), number(row["switch_seconds"]), f"{row['queries']:,}",
         str(row["errors"]), str(row["mixed"]), str(row["late"]), f"{row['old_seconds']:.2f}"]
        for row in rows
    ]  # fmt: skip
    return table(head, body)


def killed_table(rows: Sequence[Row]) -> str:
    head = ("engine", "killed", "additions acknowledged", "lost", "answers back, s", "said meanwhile")
    body = [
        [row["engine"], row["killed"], str(row["acknowledged"]), str(row["lost"]), f"{row['back_seconds']:.2f}",
         _shortened(row["says"])]
        for row in rows
    ]  # fmt: skip
    return table(head, body)


def replicas_table(rows: Sequence[Row]) -> str:
    head = ("engine", "edits", "an edit, ms", "seen in the other: p50, ms", "longest, ms", "engine away", "back, s")
    body = []
    for row in rows:
        away = _DASH if "away_status" not in row else " and ".join(str(one) for one in row["away_status"])
        back = _DASH if "back_seconds" not in row else f"{row['back_seconds']:.2f}"
        body.append([row["engine"], str(row["edits"]), number(row["edit_p50_ms"]), number(row["seen_p50_ms"]),
                     number(row["seen_max_ms"]), away, back])  # fmt: skip
    return table(head, body)


TABLES: Mapping[str, Callable[[Sequence[Row]], str]] = {
    "engines": engines_table,
    "switches": switches_table,
    "killed": killed_table,
    "replicas": replicas_table,
    "ray": ray_table,
    "union": lambda rows: _by_encoder(rows, union_table),
    "reduction": lambda rows: _by_encoder(rows, reduction_table),
}


def _shortened(text: str | None) -> str:
    return _DASH if not text else text.splitlines()[0].partition("; ")[0]
