"""Calibrate a map: choose photos, calibrate the head, estimate recall.

A map with a second-order space or a dual head holds all data that calibration needs. A map of the paper's head stores
its three vocabularies; descriptors of both assignments and their spectra are recomputed from cached tokens or photos.
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
from tfa.maps.fit_map import describe_calibrated_reranking
from tfa.maps.state import DATABASE, MapState, NamedHead, find_duplicate_images
from tfa.maps.storage import MemorySnapshot
from tfa.maps.stored_head import AnyHead
from tfa.maps.upkeep import drop_repeated_files, load_tokens
from tfa.method.described_queries import DescribedQueries
from tfa.method.dual_vocabulary import DualDecisions, DualHead
from tfa.photos.images import HashedPhoto, inspect_photo, photo_paths, refuse_broken
from tfa.photos.token_cache import EncodedImages, TokenCache
from tfa.types import CalibrateOptions, CalibrationReport, ExpectedRecall, HeadSpec, QueryOptions
from tfa.verification.patches import prepare_photo_evidence
from tfa.verification.usual_evidence import PairEvidence

if TYPE_CHECKING:
    from tfa.maps.map import Map

FindKnownDigests = Callable[[Sequence[str]], Collection[str]]
_NAME = re.compile(r"[A-Za-z0-9_-]+")


def check_request(state: MapState, name: str, budget: int) -> None:
    """Raise BadSpec for a bad name or budget."""
    if not _NAME.fullmatch(name) or name == DATABASE:
        raise BadSpec(
            f"{name!r} cannot name a calibration; use letters, digits, - and _, but not {DATABASE!r}, "
            "which means no calibration"
        )
    for head in state.calibrations:
        if head.name != name and head.name.lower() == name.lower():  # some file systems ignore case
            raise BadSpec(f"{name!r} and calibration {head.name!r} differ only in case; choose another name")
    CalibrateOptions(budget=budget)


def draw_photos(
    paths: Sequence[Path],
    inspect: Callable[[Path], HashedPhoto | str],
    find_digests: FindKnownDigests,
    budget: int,
    broken: dict[Path, str],
) -> tuple[dict[Path, HashedPhoto], list[str]]:
    """Draw at most `budget` distinct photos that are not in the map; also return notes.

    Photos are inspected in a fixed random order until there are enough, so that a large folder is not read whole.
    `inspect` hashes a photo or returns its error; photos with errors join `broken` and are left out. `find_digests`
    returns the digests that belong to map images.
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
            f"{len(known)} of {len(content)} photos are in the map (first: {known[0]}); calibrate with other photos "
            "from the camera that will query the map (removed photos can stay in the map until tfa refit)",
            known[0],
        )
    notes = [f"duplicate photos, ignored: {repeated}"] if repeated else []
    if not enough:
        notes.append(f"{budget} of {len(paths)} photos were sampled with a fixed seed (budget)")
    return {paths[index]: drawn[paths[index]] for index in sorted(content.values())}, notes


def _encode_drawn(
    place_map: Map,
    paths: Sequence[Path],
    find_digests: FindKnownDigests,
    budget: int,
    skip_bad: bool,
    progress: Progress,
) -> tuple[EncodedImages | None, list[tuple[str, str]], list[str]]:
    """Draw and encode photos, replacing skipped ones; also return skipped photos and notes."""
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
    """A calibrated head that is not in the map yet."""

    head: NamedHead
    report: CalibrationReport
    photos: Tokens
    evidence: PairEvidence | None  # evidence between the photos and map images, by gallery row

    def add_expected_recall(self, expected: ExpectedRecall | None) -> Calibrated:
        """Add the expected recall on similar photos."""
        if expected is None or self.head.calibration is None:
            return self
        facts = {**self.head.calibration, "expected_recall": expected.to_dict()}
        return replace(
            self, head=replace(self.head, calibration=facts), report=replace(self.report, expected_recall=expected)
        )


def calibrate_map(
    place_map: Map, photos: Any, options: Mapping[str, Any], skip_bad: bool | None, progress: Progress
) -> tuple[MapState, CalibrationReport]:
    """Return the map's state with a new calibration, and the report. The map itself does not change."""
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
    """Calibrate a head. `options` are fields of `CalibrateOptions`; photos in `find_digests` raise BadCalibration."""
    state, name, budget, score = place_map.state, options["name"], options["budget"], options["score"]
    check_request(state, name, budget)
    if score is False and state.head_kind == "paper-dual":
        raise BadSpec("a paper-dual head calibrates only scores; remove --no-score (score=False)")
    skip_bad = place_map.options.skip_bad if skip_bad is None else skip_bad
    with photo_paths(photos) as given:
        paths = drop_repeated_files(given)
        encoded, skipped, notes = _encode_drawn(place_map, paths, find_digests, budget, skip_bad, progress)
    used = 0 if encoded is None else len(encoded.paths)
    if encoded is None or used < CalibrateOptions.FEWEST:
        raise NoImages(
            f"a calibration needs at least {CalibrateOptions.FEWEST} photos; {used} of {len(paths)} photos are usable"
        )
    if used < CalibrateOptions.FEW:
        notes.append(f"a calibration with only {used} photos may lower recall; use {budget} if possible")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewPhotos)  # the notes say it
        described = DescribedQueries(encoded.tokens)  # caches descriptors for all steps
        evidence = prepare_photo_evidence(state.compact, encoded.tokens)
        tuned, added = _calibrated_head(place_map, described, score, progress)
    facts = {
        "given": len(paths),
        "used": used,
        "budget": budget,
        "score": bool(getattr(tuned.decisions, "score_calibrated", False)),
        "digests": list(encoded.digests),
    }
    verification = describe_calibrated_reranking(tuned, described, evidence, progress)
    replica, storage, dims = state.database.replica, state.head.storage, state.head.dims
    if isinstance(tuned, DualHead):  # calibrated as it is stored
        stored = replace(state.head, scorer=tuned.scorer(replica)).reduce_to(dims)
        made = tuned.decisions.to_dict(), tuned.evidence.to_dict()
        head = NamedHead(name, stored, *made, tuned.data_used, replica, facts, verification)
    else:
        head = NamedHead.of(name, tuned, replica, storage, facts, verification, state.spaces, dims)
    if added is not None:
        head = head.grown(added)
    if any(old.name == name for old in state.calibrations):
        notes.append(f"replaced the previous calibration {name!r}")
    decisions, reasons = dict(head.decisions), dict(head.evidence["reasons"])
    report = CalibrationReport(
        name=name, used=used, photos=len(paths), skipped=skipped, notes=notes, decisions=decisions, reasons=reasons
    )
    return Calibrated(head, report, described, evidence)


def _recall_of(calibrated: MapState, photos: Tokens, evidence: PairEvidence | None) -> ExpectedRecall | None:
    """Estimate recall on similar photos from the calibrated map's answers to these."""
    snapshot = MemorySnapshot(calibrated)
    if not len(snapshot):
        return None
    candidates = 0 if evidence is None else resolve_candidates(QueryOptions(), calibrated, photos)
    confidence, sure = measure_trust(snapshot, photos, candidates, evidence)
    return estimate_recall(confidence, sure, verified=bool(candidates))


def _calibrated_head(
    place_map: Map, photos: Tokens, score: bool | None, progress: Progress
) -> tuple[AnyHead, Tokens | None]:
    """Calibrate the head on the fitted images; also return tokens of images added later if it needs them."""
    state, device = place_map.state, place_map.options.device
    fitted = [record for record in state.images if record.fitted]
    state.checked(DATABASE)
    if state.head_kind == "paper-dual":
        made = DualDecisions.from_dict(state.database.decisions)
        dual = DualHead.of_scorer(HeadSpec.from_dict(state.spec), made, state.head.scorer)
        return dual.calibrate(photos), None
    if state.spaces is not None:
        same = find_duplicate_images(fitted)
        spaces = state.spaces.fitted(len(fitted), HeadSpec.from_dict(state.spec), same)
        return pipeline.calibrate(spaces, photos, score=score, progress=progress), None
    assert state.vocabularies is not None, "the paper's head has vocabularies"
    added = state.images[len(fitted) :]
    assert not any(record.fitted for record in added), "fitted images come first"
    database = load_tokens(place_map, fitted, progress)  # before the long work: photos may be missing
    more = load_tokens(place_map, added, progress) if added else None
    spec, words = HeadSpec.from_dict(state.spec), list(state.vocabularies)
    geometry = pipeline.fit_database(database, spec, words, backend_for(device), "float32", progress)
    if score is None:
        score = len(photos) >= CalibrateOptions.SCORE_FROM and not state.is_published
    return pipeline.calibrate(geometry, photos, score=score, device=device, progress=progress), more


def note_dropped(state: MapState, path: Path | None) -> list[str]:
    """Return a note about calibrations that a new head drops."""
    names = [head.name for head in state.calibrations]
    if not names:
        return []
    commands = ", ".join(format_command("tfa", "calibrate", path or "MAP", "PHOTOS", "--name", name) for name in names)
    which = f"calibration {names[0]} is" if len(names) == 1 else f"calibrations {', '.join(names)} are"
    return [f"{which} dropped with the old head; recalibrate with: {commands}"]
