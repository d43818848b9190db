"""Calibrating a map: which photos, the head they calibrate, and what a map keeps of it.

A map with a second-order space (ours, beyond the paper) holds all that calibration needs. A map of the paper's head
keeps what answering needs and its three vocabularies; descriptors of both assignments under all three, and their
spectra, are computed again from the token cache, or from the photos the map was fitted on where the cache lost them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tfa import pipeline
from tfa.base.backend import backend_for
from tfa.base.config import CalibrationSpec, HeadSpec
from tfa.base.files import hash_file
from tfa.base.progress import Progress
from tfa.base.shell import format_command
from tfa.base.tokens import Tokens
from tfa.errors import BadCalibration, BadImage, BadSpec, FewPhotos, NoImages
from tfa.maps.expected_recall import expected_recall
from tfa.maps.lookup import tokens_of, unique_files
from tfa.maps.query import AskableMap
from tfa.maps.records import CalibrationReport, ExpectedRecall
from tfa.maps.state import DATABASE, MapState, NamedHead
from tfa.maps.state_changes import duplicates_of
from tfa.maps.stored_head import AnyHead
from tfa.maps.verification import Question, judge_calibration, wanted_candidates
from tfa.method.described_queries import DescribedQueries
from tfa.photos.as_files import photo_paths
from tfa.photos.images import as_rgb
from tfa.verification.admission import PairEvidence
from tfa.verification.patch_store import photo_evidence

Held = Callable[[Sequence[str]], Collection[str]]
NAME = re.compile(r"[A-Za-z0-9_-]+")


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


def draw_photos(
    paths: Sequence[Path], held: Held, budget: int, skip_bad: bool
) -> tuple[list[Path], list[tuple[str, str]], list[str]]:
    """At most `budget` of the photos, each content once and none of the map; those that were skipped; notes.

    They are looked at in a fixed random order until there are enough, so that a large folder is not read for a few.
    `held` says which of some digests are of images in the map.
    """
    enough = len(paths) <= budget
    order = range(len(paths)) if enough else np.random.default_rng(0).permutation(len(paths)).tolist()
    opened = skip_bad and not enough  # else encoding will say what is wrong with a photo
    content: dict[str, int] = {}
    skipped: list[tuple[str, str]] = []
    repeated = 0
    for index in order:
        if len(content) == budget:
            break
        try:
            if opened:
                as_rgb(paths[index])
            digest = hash_file(paths[index])
        except (BadImage, OSError) as error:
            if opened:
                skipped.append((str(paths[index]), str(error)))
                continue
            digest = str(paths[index])
        repeated += digest in content
        content.setdefault(digest, index)
    digests = held(list(content))
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
    return [paths[index] for index in sorted(content.values())], skipped, notes


@dataclass(frozen=True)
class Calibrated:
    """A head calibrated by photos, before it is put into the map."""

    head: NamedHead
    report: CalibrationReport
    photos: Tokens
    evidence: PairEvidence | None  # of the photos with images of the map, by their rows

    def expecting(self, expected: ExpectedRecall | None) -> Calibrated:
        """With what the calibrated map expects of photos like these."""
        if expected is None or self.head.calibration is None:
            return self
        facts = {**self.head.calibration, "expected_recall": expected.to_dict()}
        return replace(
            self, head=replace(self.head, calibration=facts), report=replace(self.report, expected_recall=expected)
        )


def calibrate(
    place_map: AskableMap,
    photos: Any,
    name: str,
    budget: int,
    score: bool | None,
    skip_bad: bool | None,
    progress: Progress,
) -> tuple[MapState, CalibrationReport]:
    """The state of the map with the calibration, and what it saw and decided; the map stays as it is."""
    state = place_map.state
    digests = {record.digest for record in state.images}
    made = calibrated_head(place_map, photos, name, budget, score, skip_bad, progress, lambda _: digests)
    made = made.expecting(_recall_of(state.with_calibration(made.head), made.photos, made.evidence))
    return state.with_calibration(made.head), made.report


def calibrated_head(
    place_map: AskableMap,
    photos: Any,
    name: str,
    budget: int,
    score: bool | None,
    skip_bad: bool | None,
    progress: Progress,
    held: Held,
) -> Calibrated:
    """A head of the map's images, calibrated; none of the photos may be `held` by the map."""
    state = place_map.state
    check_request(state, name, budget)
    skip_bad = place_map.options.skip_bad if skip_bad is None else skip_bad
    with photo_paths(photos) as given:
        paths = unique_files(given)
        files, skipped, notes = draw_photos(paths, held, budget, skip_bad)
        encoded = place_map.encoded(files, skip_bad, progress) if files else None
    used = 0 if encoded is None else len(encoded.paths)
    if encoded is None or used < CalibrationSpec.fewest:
        raise NoImages(
            f"a calibration needs at least {CalibrationSpec.fewest} photos; of {len(paths)} given, {used} can be used"
        )
    skipped += [(str(path), reason) for path, reason in encoded.skipped]
    if used < CalibrationSpec.few:
        notes.append(f"{used} photos are few: the calibration may do worse than none. Give {budget} if you can")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewPhotos)  # the notes say it
        described = DescribedQueries(encoded.tokens)  # once, for all that looks at them
        evidence = photo_evidence(state.compact, encoded.tokens)
        tuned, added = _calibrated_head(place_map, described, evidence, score, progress)
    facts = {
        "given": len(paths),
        "used": used,
        "budget": budget,
        "score": bool(tuned.decisions.to_dict()["score_calibrated"]),
        "digests": list(encoded.digests),
    }
    verification = judge_calibration(tuned, described, evidence, progress)
    replica, storage, dims = state.database.replica, state.head.storage, state.head.dims
    head = NamedHead.of(name, tuned, replica, storage, facts, verification, state.spaces, dims)
    if added is not None:
        head = head.grown(added)
    if any(old.name == name for old in state.calibrations):
        notes.append(f"the older calibration {name!r} is replaced")
    decisions, reasons = dict(head.decisions), dict(head.evidence["reasons"])
    report = CalibrationReport(name, used, len(paths), skipped, notes, decisions, reasons)
    return Calibrated(head, report, described, evidence)


def _recall_of(calibrated: MapState, photos: Tokens, evidence: PairEvidence | None) -> ExpectedRecall | None:
    """What the calibrated map expects of photos like these, from its answers to them."""
    asked = AskableMap(calibrated)
    if not len(asked):
        return None
    candidates = 0 if evidence is None else wanted_candidates(Question(), calibrated, photos)
    confidence, sure = asked.searchable(None).trust(photos, candidates, evidence)
    return expected_recall(confidence, sure, verified=bool(candidates))


def _calibrated_head(
    place_map: AskableMap, photos: Tokens, evidence: PairEvidence | None, score: bool | None, progress: Progress
) -> tuple[AnyHead, Tokens | None]:
    """The head of the fitted images, calibrated, and the tokens of those that were added since, where it needs them.

    Whether scores are calibrated the caller says, else the judge, of the paper's head the number of photos.
    """
    state, device = place_map.state, place_map.options.device
    fitted = [record for record in state.images if record.fitted]
    if state.spaces is not None:
        same = duplicates_of(fitted)
        spaces = state.spaces.fitted(len(fitted), HeadSpec.from_dict(state.spec), same)
        return pipeline.calibrate_judged(spaces, photos, evidence, score=score, progress=progress), None
    assert state.vocabularies is not None, "the paper's head has words"
    added = state.images[len(fitted) :]
    assert not any(record.fitted for record in added), "fitted images come first"
    database = tokens_of(place_map, fitted, progress)  # all tokens before the long work: some may be lost
    more = tokens_of(place_map, added, progress) if added else None
    spec, words = HeadSpec.from_dict(state.spec), list(state.vocabularies)
    geometry = pipeline.fit_database(database, spec, words, backend_for(device), "float32", progress)
    score = len(photos) >= CalibrationSpec.score_from if score is None else score
    return pipeline.calibrate(geometry, photos, score=score, device=device, progress=progress), more


def dropped_note(state: MapState, path: Path | None) -> list[str]:
    """What to say when a new head replaces the one that the calibrations were made of."""
    names = [head.name for head in state.calibrations]
    if not names:
        return []
    commands = ", ".join(format_command("tfa", "calibrate", path or "MAP", "PHOTOS", "--name", name) for name in names)
    which = f"calibration {names[0]} is" if len(names) == 1 else f"calibrations {', '.join(names)} are"
    return [f"{which} dropped with the old head; calibrate again with: {commands}"]
