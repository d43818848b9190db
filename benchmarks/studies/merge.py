"""Compare two sessions of one route as separate maps with their merged map.

Session one are the even database photos, session two the even queries; the odd photos of both query all three maps. For
datasets recorded twice frame by frame: photo i of either session shows the place of image i, and the place of j if
image j is a positive of query i.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from studies.options import encoder_options, load_datasets, make_parser, open_encoder, open_progress, run_script
from tfa.cli.console import delivered, print_text
from tfa.core.progress import Progress, as_progress, track_progress
from tfa.core.tokens import Tokens
from tfa.encoders import Encoder
from tfa.errors import BadSpec
from tfa.evaluate.metrics import interval
from tfa.maps import PlaceMap
from tfa.maps.merge import merge_maps
from tfa.photos.token_cache import TokenCache
from tfa.types import EncoderOptions, MergedPart
from tfa_bench.datasets.load import Dataset

FEWEST = 8  # minimum photos per session
AT_ONCE = 16  # photos answered per batch


@dataclass(frozen=True)
class Recalled:
    """Recall of one session's photos in one map."""

    recall: float
    low: float  # 95 % bootstrap interval over photos
    high: float
    sure: int
    sure_right: int


@dataclass(frozen=True)
class Overlap:
    """Photos of the second map that merging matched to places of the first."""

    queries: int
    matched: int
    right: int  # correct matches


@dataclass(frozen=True)
class SessionsStudy:
    """One dataset."""

    dataset: str
    title: str
    encoder: str
    images: Mapping[str, int]  # per map
    queries: Mapping[str, int]  # photos per session
    recalls: Mapping[str, Mapping[str, Recalled]]  # by query session, then by map
    overlap: Overlap

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_sessions(dataset: Dataset) -> None:
    """Reject datasets that were not recorded twice frame by frame, before encoding."""
    name, count = dataset.card.name, len(dataset.queries)
    if len(dataset.database) != count or count < FEWEST:
        raise BadSpec(
            f"{name} has {len(dataset.database):,} database images and {count:,} queries; two sessions need as many, "
            f"at least {FEWEST}, frame by frame"
        )
    apart = [i for i, right in enumerate(dataset.positives) if i not in right]
    if apart:
        raise BadSpec(
            f"{name}: query {apart[0]} does not show the place of database image {apart[0]}; two sessions must match "
            "frame by frame"
        )


def study_sessions(
    dataset: Dataset,
    encoder: Encoder,
    options: EncoderOptions,
    cache: TokenCache | None = None,
    progress: bool | Progress | None = None,
) -> SessionsStudy:
    """Build both maps as `tfa build` does, merge them as `tfa merge` does, and query all three."""
    bars, cache = as_progress(progress), cache or TokenCache()
    photos = {"first": dataset.database, "second": dataset.queries}
    maps = {
        name: PlaceMap.build(list(paths[::2]), encoder=encoder, options=replace(options, cache=cache), progress=bars)
        for name, paths in photos.items()
    }
    merged, report = merge_maps([maps["first"], maps["second"]], progress=bars)
    maps["merged"] = merged
    frame = {str(path.absolute()): i for paths in photos.values() for i, path in enumerate(paths)}
    recalls: dict[str, dict[str, Recalled]] = {}
    for session, paths in photos.items():
        tokens = cache.encode(paths[1::2], encoder, progress=bars).tokens
        rights = [set(dataset.positives[i].tolist()) for i in range(1, len(paths), 2)]
        recalls[session] = {
            name: _query(one, tokens, rights, frame, f"{session} session, queries in {name}", bars)
            for name, one in maps.items()
        }
    return SessionsStudy(
        dataset.card.name,
        dataset.card.title,
        encoder.id,
        {name: len(one) for name, one in maps.items()},
        {name: len(paths[1::2]) for name, paths in photos.items()},
        recalls,
        _overlap(report.maps[1], dataset, frame),
    )


def _query(
    place_map: PlaceMap, tokens: Tokens, rights: Sequence[set[int]], frame: Mapping[str, int], what: str, bars: Progress
) -> Recalled:
    right, sure = np.zeros(len(rights), bool), np.zeros(len(rights), bool)
    for start in track_progress(range(0, len(rights), AT_ONCE), -(-len(rights) // AT_ONCE), what, bars, "blocks"):
        block = tokens.select(slice(start, start + AT_ONCE))
        for at, hits in enumerate(place_map.query_tokens(block, 1), start):
            if hits:
                right[at], sure[at] = frame[hits[0].image] in rights[at], hits[0].sure
    found = interval(right.astype(np.float64))
    return Recalled(found.mean, found.low, found.high, int(sure.sum()), int((sure & right).sum()))


def _overlap(part: MergedPart, dataset: Dataset, frame: Mapping[str, int]) -> Overlap:
    right = sum(frame[one.shows] in dataset.positives[frame[one.image]] for one in part.shared)
    return Overlap(part.compared or 0, len(part.shared), int(right))


# --- in Markdown ---


def page(studies: Sequence[Mapping[str, Any]]) -> str:
    """Return R@1 in percent of each session in each map, and the matches of merging, from `to_dict`."""
    lines = [
        "| dataset | queries | photos | first alone | second alone | merged | sure and right, merged |",
        "|---|---|--:|--:|--:|--:|--:|",
        *(_row(study, session) for study in studies for session in study["recalls"]),
        "",
    ]
    for study in studies:
        found, counts = study["overlap"], study["images"]
        lines.append(
            f"{study['dataset']}, {study['encoder']}: maps of {counts['first']}, {counts['second']} and "
            f"{counts['merged']} photos; {found['matched']} of {found['queries']} photos of the second were matched to "
            f"places of the first, {found['right']} of them correctly."
        )
    return "\n".join(lines)


def _row(study: Mapping[str, Any], session: str) -> str:
    own = study["recalls"][session]
    recalls = [f"{100 * one['recall']:.1f} [{100 * one['low']:.1f}, {100 * one['high']:.1f}]" for one in own.values()]
    sure = f"{own['merged']['sure_right']} of {own['merged']['sure']}"
    return f"| {' | '.join([study['dataset'], session, str(study['queries'][session]), *recalls, sure])} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Recall of two sessions' maps before and after tfa merge, as Markdown.

    Even photos of the database are the first session, even queries the second; the odd photos of both query either map
    and the merged one.
    """
    remark = "Query i must show the place of database image i."
    return run_script(make_parser(main.__doc__ or "", remark), _study, argv)


def _study(arguments: Namespace) -> None:
    loaded = load_datasets(arguments)
    for data in loaded:
        check_sessions(data)
    bars, model, encoding = open_progress(arguments), open_encoder(arguments), encoder_options(arguments)
    studies = [study_sessions(data, model, encoding, progress=bars).to_dict() for data in loaded]
    if not delivered(studies, out=arguments.out, json=arguments.json):
        print_text(page(studies) + "\n")


if __name__ == "__main__":
    sys.exit(main())
