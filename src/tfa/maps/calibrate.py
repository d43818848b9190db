"""Calibrating a map: which photos, the head they calibrate, and what a map keeps of it.

A map keeps what answering needs and its three vocabularies. Calibration needs more: descriptors of both assignments
under all three, and their spectra. They are computed again from the token cache, or from the photos the map was fitted
on where the cache lost them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tfa import pipeline
from tfa.base.config import CalibrationSpec, HeadSpec
from tfa.base.files import sha256_of_file
from tfa.base.progress import Progress
from tfa.base.tokens import Tokens
from tfa.errors import BadCalibration, BadImage, BadSpec, FewPhotos, NoImages
from tfa.maps.lookup import unique_files
from tfa.maps.records import ImageRecord
from tfa.maps.state import DATABASE, MapState, NamedHead
from tfa.maps.verification import judge_calibration
from tfa.photos.images import as_rgb
from tfa.photos.token_cache import EncodedImages

NAME = re.compile(r"[A-Za-z0-9_-]+")
LOST = (
    "take them out for good with tfa remove and tfa refit "
    "(a calibration needs every photo the map was fitted on, removed ones too)"
)


@dataclass(frozen=True)
class ChosenPhotos:
    """The photos a calibration is made of."""

    given: int  # files that were named, or lie in folders that were
    budget: int
    digests: list[str]
    tokens: Tokens
    skipped: list[tuple[str, str]]
    notes: list[str]


def check_request(state: MapState, name: str, budget: int) -> None:
    """Refuse a name or a budget before any work."""
    if not NAME.fullmatch(name) or name == DATABASE:
        raise BadSpec(
            f"{name!r} cannot name a calibration; use letters, digits, - and _, but not {DATABASE!r}, "
            "which means no calibration"
        )
    for head in state.calibrations:
        if head.name != name and head.name.lower() == name.lower():  # their files would be one on some systems
            raise BadSpec(f"{name!r} and the calibration {head.name!r} differ by case only; choose another name")
    CalibrationSpec(budget=budget)


def choose_photos(
    paths: Sequence[Path],
    state: MapState,
    budget: int,
    skip_bad: bool,
    encode: Callable[[list[Path]], EncodedImages],
) -> ChosenPhotos:
    """Take at most `budget` of the photos, each content once and none of the map.

    They are looked at in a fixed random order until there are enough, so that a large folder is not read for a few.
    """
    paths = unique_files(paths)
    enough = len(paths) <= budget
    order = range(len(paths)) if enough else np.random.default_rng(0).permutation(len(paths)).tolist()
    content: dict[str, int] = {}
    skipped: list[tuple[str, str]] = []
    repeated = 0
    for index in order:
        if len(content) == budget:
            break
        digest = _content(paths[index])
        reason = _unreadable(paths[index]) if skip_bad and not enough else None  # else encoding will say it
        if reason is not None:
            skipped.append((str(paths[index]), reason))
        elif digest in content:
            repeated += 1
        else:
            content[digest] = index
    _refuse_known({digest: paths[index] for digest, index in content.items()}, state.images)
    notes = [f"photos that repeat another one and do not count: {repeated}"] if repeated else []
    if not enough:
        notes.append(f"{len(paths)} photos are more than the budget: {budget} were drawn, always the same (seed 0)")
    files = [paths[index] for index in sorted(content.values())]
    encoded = encode(files) if files else EncodedImages([], [], Tokens(np.empty((0, 1, 1))), [])
    skipped += [(str(path), reason) for path, reason in encoded.skipped]
    used = len(encoded.paths)
    if used < CalibrationSpec.fewest:
        raise NoImages(
            f"a calibration needs at least {CalibrationSpec.fewest} photos; of {len(paths)} given, {used} can be used"
        )
    if used < CalibrationSpec.few:
        notes.append(f"{used} photos are few: the calibration may do worse than none. Give {budget} if you can")
    return ChosenPhotos(len(paths), budget, encoded.digests, encoded.tokens, skipped, notes)


def _unreadable(file: Path) -> str | None:
    try:
        as_rgb(file)
        return None
    except (BadImage, OSError) as error:
        return str(error)


def _content(path: Path) -> str:
    try:
        return sha256_of_file(path)
    except OSError:
        return str(path)  # encoding will say what is wrong with it


def _refuse_known(content: dict[str, Path], images: Sequence[ImageRecord]) -> None:
    digests = {record.digest for record in images}
    known = [path for digest, path in content.items() if digest in digests]
    if known:
        raise BadCalibration(
            f"{len(known)} of {len(content)} photos are in the map themselves (first: {known[0]}); calibrate with "
            "other photos, of the camera the map will be used with (a removed photo stays in it until tfa refit)",
            known[0],
        )


def calibrated_state(
    state: MapState,
    photos: ChosenPhotos,
    name: str,
    score: bool | None,
    tokens_of: Callable[[Sequence[ImageRecord]], Tokens],
    device: str,
    progress: Progress,
) -> tuple[MapState, list[str]]:
    """The state with the calibration, and notes on how it came about."""
    fitted = [record for record in state.images if record.fitted]
    added = state.images[len(fitted) :]
    assert not any(record.fitted for record in added), "fitted images come first"
    database, more = tokens_of(fitted), tokens_of(added) if added else None  # before the long work: some may be lost
    geometry = pipeline.fit_database(
        database, HeadSpec.from_dict(state.spec), list(state.vocabularies), device=device, progress=progress
    )
    used = len(photos.digests)
    score = used >= CalibrationSpec.score_from if score is None else score
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewPhotos)  # the notes say it
        tuned = pipeline.calibrate(geometry, photos.tokens, score=score, device=device, progress=progress)
    facts = {
        "given": photos.given,
        "used": used,
        "budget": photos.budget,
        "score": score,
        "digests": list(photos.digests),
        "revision": state.revision + 1,
    }
    verification = judge_calibration(tuned, photos.tokens, state.compact, progress)
    named = NamedHead.of(name, tuned, state.database.replica, state.head.storage, facts, verification)
    if more is not None:
        named = replace(named, stored=named.stored.grown(named.stored.rows_of(more)))
    replaced = any(old.name == name for old in state.calibrations)
    notes = [f"the older calibration {name!r} is replaced"] if replaced else []
    return state.with_calibration(named), notes


def dropped_note(state: MapState, path: Path | None) -> list[str]:
    """What to say when a new head replaces the one that the calibrations were made of."""
    names = [head.name for head in state.calibrations]
    if not names:
        return []
    commands = ", ".join(f"tfa calibrate {path or 'MAP'} PHOTOS --name {name}" for name in names)
    which = f"calibration {names[0]} is" if len(names) == 1 else f"calibrations {', '.join(names)} are"
    return [f"{which} dropped with the old head; calibrate again with: {commands}"]
