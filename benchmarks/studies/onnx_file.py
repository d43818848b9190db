"""R@1 of a map as one ONNX file, with all and fewer dimensions, in floats and in integers.

onnxruntime runs the file on the photos. Results with fewer dimensions are computed from the whole vectors and the
directions that `--dims` writes; each such file is also written and run on the first photos as a check.
"""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from studies.options import (
    at_least,
    encoder_options,
    load_datasets,
    make_parser,
    open_encoder,
    open_progress,
    run_script,
)
from tfa.cli.console import delivered, print_text
from tfa.core.progress import Progress, as_progress, track_progress
from tfa.encoders.vit import VitEncoder
from tfa.exports.hloc import query_vectors
from tfa.exports.onnx_head import place_model
from tfa.exports.vectors import CompiledMap, UnitVectors, compile_map, fit_unit_vectors
from tfa.maps import PlaceMap
from tfa.photos.images import as_rgb
from tfa.photos.token_cache import TokenCache
from tfa.search.gallery import top_k
from tfa.types import HEAD_KINDS, BuildOptions
from tfa_bench.datasets.load import Dataset
from tfa_bench.measures import recall_at

_CHECKED = 8  # photos on which scores are compared


@dataclass(frozen=True)
class Written:
    """One file, with all dimensions or fewer."""

    dims: int
    megabytes: float
    recall: float  # R@1
    # Largest difference of scores relative to their range: of the whole file to the map's scores with the torch
    # encoder,
    # of the others to those computed from whole vectors.
    differs: float


@dataclass(frozen=True)
class FileStudy:
    """One dataset, in floats or in integers; the first file is the whole one."""

    dataset: str
    title: str
    encoder: str
    head: str
    images: int
    queries: int
    fast: bool
    files: tuple[Written, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class QueryPhotos:
    """Photos of a dataset's queries, and their positives in the map."""

    photos: Sequence[Path]
    positives: Sequence[np.ndarray]


def chosen_queries(dataset: Dataset, most: int | None) -> QueryPhotos:
    """Return all queries, or `most` evenly spaced ones."""
    count = len(dataset.queries)
    numbers = range(count) if most is None or most >= count else np.linspace(0, count - 1, most).round().astype(int)
    return QueryPhotos([dataset.queries[i] for i in numbers], [dataset.positives[i] for i in numbers])


def study_file(
    dataset: Dataset,
    place_map: PlaceMap,
    chosen: QueryPhotos,
    dims: Sequence[int],
    *,
    fast: bool = False,
    cache: TokenCache | None = None,
    progress: bool | Progress | None = None,
) -> FileStudy:
    """Study `place_map`, a map of the database with its images in this order."""
    bars, encoder, compiled = as_progress(progress), place_map.encoder, compile_map(place_map)
    whole = fit_unit_vectors(compiled)
    runs = _Runs(place_map, compiled, fast, place_map.options.threads)
    graph, size = runs.written(whole)
    kind = "8 bits" if fast else "float32"
    vectors = np.concatenate(
        [
            runs.vector(graph, photo)
            for photo in track_progress(
                chosen.photos, len(chosen.photos), f"{dataset.card.name}, {kind}", bars, "photos"
            )
        ]
    )
    first = (cache or TokenCache()).encode(chosen.photos[:_CHECKED], encoder, progress=bars).tokens
    own = query_vectors(compiled, first) @ compiled.with_bias.T
    scores = vectors @ whole.rows(compiled).vectors.T
    files = [Written(whole.width, size, _recall(scores, chosen), _differs(scores, own))]
    for number in dims:
        form = fit_unit_vectors(compiled, number)
        rows = form.rows(compiled).vectors
        scores = _reduced(vectors, whole, form) @ rows.T
        graph, size = runs.written(form)
        checked = np.concatenate([runs.vector(graph, photo) for photo in chosen.photos[:_CHECKED]])
        files.append(Written(number, size, _recall(scores, chosen), _differs(scores, checked @ rows.T)))
    return FileStudy(
        dataset.card.name, dataset.card.title, encoder.id, place_map.state.map_spec.head, len(place_map),
        len(chosen.photos), fast, tuple(files),
    )  # fmt: skip


@dataclass(frozen=True)
class _Runs:
    """Graphs of one map, run by onnxruntime."""

    place_map: PlaceMap
    compiled: CompiledMap
    fast: bool
    threads: int | None

    def written(self, form: UnitVectors) -> tuple[Any, float]:
        """Return a session and its file size in megabytes."""
        import onnxruntime as runtime

        model = place_model(self.place_map, self.compiled, form, int8=self.fast)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = self.threads or 0  # 0: all cores
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # do not block other work
        return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"]), len(model) / 1e6

    def vector(self, graph: Any, photo: Path) -> np.ndarray:
        """Return `(1, D)` of a photo, prepared as any program would: RGB from 0 to 1 at the encoder's size."""
        encoder = self.place_map.encoder
        assert isinstance(encoder, VitEncoder)  # others were rejected when the graph was made
        pixels = np.asarray(encoder.prepare(as_rgb(photo)), np.float32) / 255
        return graph.run(["vector"], {"images": pixels.transpose(2, 0, 1)[None]})[0]


def _reduced(vectors: np.ndarray, whole: UnitVectors, form: UnitVectors) -> np.ndarray:
    """Return u(q) of `form` from that of all dimensions, without ρ, which scores do not use."""
    assert form.axes is not None
    own, rest = vectors[:, : whole.place_numbers], vectors[:, whole.place_numbers :]
    return np.concatenate([own @ form.axes.T, rest], axis=1)


def _recall(scores: np.ndarray, chosen: QueryPhotos) -> float:
    return recall_at(top_k(scores, 1)[0], chosen.positives, (1,))[0]


def _differs(scores: np.ndarray, others: np.ndarray) -> float:
    return float(np.abs(scores[: len(others)] - others).max() / np.ptp(others))


def page(studies: Sequence[Mapping[str, Any]]) -> str:
    """Return Markdown: a row per dataset and kind, R@1 in percent, from `to_dict`."""
    dims = [one["dims"] for one in studies[0]["files"][1:]]
    heads = [
        "dataset",
        "images",
        "queries",
        "file",
        "numbers",
        "size",
        "all numbers",
        *(f"`--dims {one}`" for one in dims),
    ]
    lines = [f"| {' | '.join([*heads, 'scores differ by'])} |", f"|{'---|' * (len(heads) + 1)}"]
    for study in studies:
        whole, *fewer = study["files"]
        cells = [
            study["dataset"], f"{study['images']:,}", f"{study['queries']:,}",
            "`--precision int8`" if study["fast"] else "float32",
            f"{whole['dims']:,}", f"{whole['megabytes']:.1f} MB", f"{100 * whole['recall']:.1f}",
            *(f"{100 * one['recall']:.1f} ({100 * (one['recall'] - whole['recall']):+.1f})" for one in fewer),
            f"{whole['differs']:.0e}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


_LEAST_DIMS = 4  # as in tfa export


def main(argv: Sequence[str] | None = None) -> int:
    """R@1 of maps as one ONNX file that onnxruntime runs: all dimensions and fewer, in floats and in 8 bits. Markdown.

    A map of each database is built and exported as tfa export --format onnx does, in float32 and in int8.
    """
    parser = make_parser(main.__doc__ or "", "")
    parser.add_argument("--dims", type=_numbers, default=[512, 256, 128], metavar="D,…", help="as in tfa export --dims")
    parser.add_argument("--queries", type=at_least(1), metavar="N", help="query with N photos, evenly spaced")
    parser.add_argument(
        "--head", choices=HEAD_KINDS, default=BuildOptions.head, help="head of the map [default: %(default)s]"
    )
    return run_script(parser, _study, argv)


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= _LEAST_DIMS for part in parts):
        raise ArgumentTypeError(f"{text!r} is not a list of integers from {_LEAST_DIMS}, for example 256,512")
    return [int(part) for part in parts]


def _study(arguments: Namespace) -> None:
    spec, encoding = BuildOptions(head=arguments.head, storage="float32", rerank=False), encoder_options(arguments)
    loaded = load_datasets(arguments)
    bars, model = open_progress(arguments), open_encoder(arguments)
    studies = []
    for data in loaded:
        place_map = PlaceMap.build(list(data.database), encoder=model, map_spec=spec, options=encoding, progress=bars)
        queries = chosen_queries(data, arguments.queries)
        studies += [
            study_file(data, place_map, queries, arguments.dims, fast=fast, progress=bars).to_dict()
            for fast in (False, True)
        ]
    if not delivered(studies, out=arguments.out, json=arguments.json):
        print_text(page(studies) + "\n")


if __name__ == "__main__":
    sys.exit(main())
