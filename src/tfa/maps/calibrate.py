"""Calibrating a map: which photos, the head they calibrate, and what a map keeps of it.

A map with a second-order space (ours, beyond the paper) holds all that calibration needs. A map of the paper's head
keeps what answering needs and its three vocabularies; descriptors of both assignments under all three, and their
spectra, are computed again from the token cache, or from the photos the map was fitted on where the cache lost them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfa import pipeline
from tfa.core.arrays import backend_for
from tfa.core.progress import Progress
from tfa.core.text import format_command
from tfa.core.tokens import Tokens
from tfa.errors import BadCalibration, BadSpec, FewPhotos, NoImages
from tfa.maps.answer import measure_trust, resolve_candidates
from tfa.maps.confidence import estimate_recall
from tfa.maps.fit_map import decide_calibration_admission
from tfa.maps.state import DATABASE, MapState, NamedHead, find_duplicate_images
from tfa.maps.storage import MemorySnapshot
from tfa.maps.stored_head import AnyHead
from tfa.maps.upkeep import drop_repeated_files, load_tokens
from tfa.method.described_queries import DescribedQueries
from tfa.photos.images import HashedPhoto, inspect_photo, photo_paths, refuse_broken
from tfa.photos.token_cache import EncodedImages, TokenCache
from tfa.types import CalibrateOptions, CalibrationReport, ExpectedRecall, HeadSpec, QueryOptions
from tfa.verification.admission import PairEvidence
from tfa.verification.patches import prepare_photo_evidence

if TYPE_CHECKING:
    from tfa.maps.map import Map

FindKnownDigests = Callable[[Sequence[str]], Collection[str]]
_NAME = re.compile(r"[A-Za-z0-9_-]+")


def check_request(state: MapState, name: str, budget: int) -> None:
    """Refuse a name or a budget before any work."""
    if not _NAME.fullmatch(name) or name == DATABASE:
        raise BadSpec(
            f"{name!r} cannot name a calibration; use letters, digits, - and _, but not {DATABASE!r}, "
            "which means no calibration"
        )
    for head in state.calibrations:
        if head.name != name and head.name.lower() == name.lower():  # their files would be one on some systems
            raise BadSpec(f"{name!r} and the calibration {head.name!r} differ by case only; choose another name")
    CalibrateOptions(budget=budget)


def draw_photos(
    paths: Sequence[Path],
    inspect: Callable[[Path], HashedPhoto | str],
    find_digests: FindKnownDigests,
    budget: int,
    broken: dict[Path, str],
) -> tuple[dict[Path, HashedPhoto], list[str]]:
    """Draw at most `budget` photos, each content once and none of the map; also return notes.

    They are looked at in a fixed random order until there are enough, so that a large folder is not read for a few.
    `inspect` hashes a photo or says why it is broken. Photos in `broken` are left out, and those found join them.
    `find_digests` returns those of some digests that belong to images of the map.
    """
    enough = len(paths) <= budget
    order = range(len(paths)) if enough else np.random.default_rng(0).permutation(len(paths)).tolist()
    content: dict[str, int] = {}
    drawn: dict[Path, HashedPhoto] = {}
    repeated = 0
    for index in order:
        if len(content) == budget:
            break
        if (path := paths[index]) in broken:
            continue
        photo = inspect(path)
        if isinstance(photo, str):
            broken[path] = photo
            continue
        repeated += photo.digest in content
        if content.setdefault(photo.digest, index) == index:
            drawn[path] = photo
    digests = find_digests(list(content))
    known = [paths[index] for digest, index in content.items() if digest in digests]
    if known:
        raise BadCalibration(
            f"{len(known)} of {len(content)} photos are in the map themselves (first: {known[0]}); calibrate with "
            "other photos, of the camera the map will be used with (a removed photo stays in it until tfa refit)",
            known[0],
        )
    notes = [f"photos that repeat another one and do not count: {repeated}"] if repeated else []
    if not enough:
        notes.append(f"{len(paths)} photos are more than the budget: {budget} were drawn, always the same (seed 0)")
    return {paths[index]: drawn[paths[index]] for index in sorted(content.values())}, notes


def _encode_drawn(
    place_map: Map,
    paths: Sequence[Path],
    find_digests: FindKnownDigests,
    budget: int,
    skip_bad: bool,
    progress: Progress,
) -> tuple[EncodedImages | None, list[tuple[str, str]], list[str]]:
    """Draw photos and encode them, also return skipped photos and notes; others replace those that are skipped.

    Each photo is hashed once and decoded once.
    """
    decoded_before = (place_map.cache or TokenCache()).encoded_before()
    inspect = cache(partial(inspect_photo, decoded_before=decoded_before))
    broken: dict[Path, str] = {}
    while True:
        drawn, notes = draw_photos(paths, inspect, find_digests, budget, broken)
        if not skip_bad:
            refuse_broken(broken, len(drawn) + len(broken))
        encoded = place_map.encode_photos(list(drawn), skip_bad, progress, drawn) if drawn else None
        newly_broken = dict(encoded.skipped) if encoded is not None else {}
        broken |= newly_broken
        if not newly_broken or len(paths) <= budget:
            return encoded, [(str(path), reason) for path, reason in broken.items()], notes


@dataclass(frozen=True)
class Calibrated:
    """A head calibrated by photos, before it is put into the map."""

    head: NamedHead
    report: CalibrationReport
    photos: Tokens
    evidence: PairEvidence | None  # of the photos with images of the map, by their rows

    def add_expected_recall(self, expected: ExpectedRecall | None) -> Calibrated:
        """Add the recall that the calibrated map expects of photos like these."""
        if expected is None or self.head.calibration is None:
            return self
        facts = {**self.head.calibration, "expected_recall": expected.to_dict()}
        return replace(
            self, head=replace(self.head, calibration=facts), report=replace(self.report, expected_recall=expected)
        )


def calibrate_map(
    place_map: Map, photos: Any, options: Mapping[str, Any], skip_bad: bool | None, progress: Progress
) -> tuple[MapState, CalibrationReport]:
    """Return the map's state with the calibration, and its report; the map itself does not change."""
    state = place_map.state
    made = calibrate_head(place_map, photos, options, skip_bad, progress, place_map.storage.find_digests)
    made = made.add_expected_recall(_recall_of(state.with_calibration(made.head), made.photos, made.evidence))
    return state.with_calibration(made.head), made.report


def calibrate_head(
    place_map: Map,
    photos: Any,
    options: Mapping[str, Any],
    skip_bad: bool | None,
    progress: Progress,
    find_digests: FindKnownDigests,
) -> Calibrated:
    """Calibrate a head of the map's images; photos whose digests `find_digests` returns are refused.

    `options` are fields of `CalibrateOptions`.
    """
    state, name, budget, score = place_map.state, options["name"], options["budget"], options["score"]
    check_request(state, name, budget)
    skip_bad = place_map.options.skip_bad if skip_bad is None else skip_bad
    with photo_paths(photos) as given:
        paths = drop_repeated_files(given)
        encoded, skipped, notes = _encode_drawn(place_map, paths, find_digests, budget, skip_bad, progress)
    used = 0 if encoded is None else len(encoded.paths)
    if encoded is None or used < CalibrateOptions.FEWEST:
        raise NoImages(
            f"a calibration needs at least {CalibrateOptions.FEWEST} photos; of {len(paths)} given, {used} can be used"
        )
    if used < CalibrateOptions.FEW:
        notes.append(f"{used} photos are few: the calibration may do worse than none. Give {budget} if you can")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewPhotos)  # the notes say it
        described = DescribedQueries(encoded.tokens)  # once, for all that looks at them
        evidence = prepare_photo_evidence(state.compact, encoded.tokens)
        tuned, added = _calibrated_head(place_map, described, score, progress)
    facts = {
        "given": len(paths),
        "used": used,
        "budget": budget,
        "score": bool(tuned.decisions.to_dict()["score_calibrated"]),
        "digests": list(encoded.digests),
    }
    verification = decide_calibration_admission(tuned, described, evidence, progress)
    replica, storage, dims = state.database.replica, state.head.storage, state.head.dims
    head = NamedHead.of(name, tuned, replica, storage, facts, verification, state.spaces, dims)
    if added is not None:
        head = head.grown(added)
    if any(old.name == name for old in state.calibrations):
        notes.append(f"the older calibration {name!r} is replaced")
    decisions, reasons = dict(head.decisions), dict(head.evidence["reasons"])
    report = CalibrationReport(
        name=name, used=used, photos=len(paths), skipped=skipped, notes=notes, decisions=decisions, reasons=reasons
    )
    return Calibrated(head, report, described, evidence)


def _recall_of(calibrated: MapState, photos: Tokens, evidence: PairEvidence | None) -> ExpectedRecall | None:
    """What the calibrated map expects of photos like these, from its answers to them."""
    snapshot = MemorySnapshot(calibrated)
    if not len(snapshot):
        return None
    candidates = 0 if evidence is None else resolve_candidates(QueryOptions(), calibrated, photos)
    confidence, sure = measure_trust(snapshot, photos, candidates, evidence)
    return estimate_recall(confidence, sure, verified=bool(candidates))


def _calibrated_head(
    place_map: Map, photos: Tokens, score: bool | None, progress: Progress
) -> tuple[AnyHead, Tokens | None]:
    """The head of the fitted images, calibrated, and the tokens of those that were added since, where it needs them.

    Whether scores are calibrated the caller says, else the number of photos.
    """
    state, device = place_map.state, place_map.options.device
    fitted = [record for record in state.images if record.fitted]
    if state.spaces is not None:
        same = find_duplicate_images(fitted)
        spaces = state.spaces.fitted(len(fitted), HeadSpec.from_dict(state.spec), same)
        return pipeline.calibrate(spaces, photos, score=score, progress=progress), None
    assert state.vocabularies is not None, "the paper's head has words"
    added = state.images[len(fitted) :]
    assert not any(record.fitted for record in added), "fitted images come first"
    database = load_tokens(place_map, fitted, progress)  # all tokens before the long work: some may be lost
    more = load_tokens(place_map, added, progress) if added else None
    spec, words = HeadSpec.from_dict(state.spec), list(state.vocabularies)
    geometry = pipeline.fit_database(database, spec, words, backend_for(device), "float32", progress)
    score = len(photos) >= CalibrateOptions.SCORE_FROM if score is None else score
    return pipeline.calibrate(geometry, photos, score=score, device=device, progress=progress), more


def note_dropped(state: MapState, path: Path | None) -> list[str]:
    """What to say when a new head replaces the one that the calibrations were made of."""
    names = [head.name for head in state.calibrations]
    if not names:
        return []
    commands = ", ".join(format_command("tfa", "calibrate", path or "MAP", "PHOTOS", "--name", name) for name in names)
    which = f"calibration {names[0]} is" if len(names) == 1 else f"calibrations {', '.join(names)} are"
    return [f"{which} dropped with the old head; calibrate again with: {commands}"]
