"""Check whether a copy of a dataset is complete: report every problem, not only the first. A bad copy never raises."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfa.core.files import hash_file
from tfa.core.progress import Progress, SilentProgress
from tfa.errors import TfaError
from tfa_bench.datasets.card import DatasetCard
from tfa_bench.datasets.files import DatasetFiles
from tfa_bench.datasets.load import (
    Reading,
    card_for,
    check_files,
    count_problems,
    load_layout,
    plan_reading,
    without_positives,
)

ERROR, _WARNING, _NOTE = "error", "warning", "note"
_SHOWN = 3  # examples named in a message


@dataclass(frozen=True)
class Finding:
    """One result of a check. Only errors make the dataset unusable."""

    level: str  # "error" | "warning" | "note"
    kind: str  # "missing" | "layout" | "count" | "unreadable" | "duplicate" | "note"
    text: str


def check_dataset(
    name: str, root: Path, *, positives: Path | None = None, deep: bool = False, progress: Progress | None = None
) -> list[Finding]:
    """Return the problems of the copy of dataset `name` in `root`. `deep` decodes images instead of reading headers."""
    if not root.is_dir():
        return [Finding(ERROR, "missing", f"{root} is not a folder")]
    try:
        card, notes = card_for(name, root, positives)
        reading = plan_reading(card, root, positives)
    except TfaError as error:
        return [Finding(ERROR, "layout", str(error))]
    findings = [Finding(_NOTE, "note", text) for text in (*notes, *reading.notes)]
    lacking = _missing(reading, root)
    findings += [Finding(ERROR, "missing", f"{root / path} is missing") for path in lacking]
    try:
        files = reading.load(root)
    except (TfaError, OSError, ValueError, KeyError, IndexError, TypeError) as error:
        # A loader that fails because of the files reported above adds nothing.
        if not lacking:
            findings.append(Finding(ERROR, "layout", str(error)))
        return findings
    findings += [Finding(_NOTE, "note", text) for text in files.notes]
    return findings + _of_images(card, files, root, deep, progress or SilentProgress())


def _missing(reading: Reading, root: Path) -> list[str]:
    """Return folders and files that the layout needs; a layout without such a list reports its first error instead."""
    listed = getattr(load_layout(reading.layout), "missing", None)
    return list(listed(root, **reading.options)) if listed else []


def _of_images(card: DatasetCard, files: DatasetFiles, root: Path, deep: bool, progress: Progress) -> list[Finding]:
    findings = [Finding(ERROR, "count", text) for text in count_problems(card, files)]
    if not findings:
        try:
            check_files(card, files, root)
        except TfaError as error:
            findings.append(Finding(ERROR, "layout", str(error)))
    findings += [Finding(_NOTE, "note", text) for text in without_positives(files)]
    images = sorted({*files.database, *files.queries})
    bad = unreadable(images, deep=deep, progress=progress)
    if bad:
        findings.append(Finding(ERROR, "unreadable", f"{len(bad):,} images cannot be read: {_some(bad, root)}"))
    both = shared_images(files.database, files.queries)
    if both:
        text = f"{len(both):,} queries are copies of database images, which makes them easy: {_some(both, root)}"
        findings.append(Finding(_WARNING, "duplicate", text))
    return findings


def unreadable(images: Sequence[Path], *, deep: bool, progress: Progress) -> list[Path]:
    """Return images whose header (or pixels, if `deep`) cannot be read."""
    from PIL import Image

    bad = []
    with progress.task("images", len(images), "images") as task, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about odd EXIF data and large images; neither is a problem here
        for path in images:
            try:
                with Image.open(path) as image:
                    if deep:
                        image.load()
            except Exception:  # Pillow's decoders raise many exception types
                bad.append(path)
            task.advance()
    return bad


def shared_images(database: Iterable[Path], queries: Iterable[Path]) -> list[Path]:
    """Return queries whose file is byte-for-byte equal to a database image."""
    by_size: dict[int, list[Path]] = defaultdict(list)
    for path in database:
        if path.is_file():
            by_size[path.stat().st_size].append(path)
    digests: dict[Path, str] = {}

    def digest(path: Path) -> str:
        if path not in digests:
            digests[path] = hash_file(path)
        return digests[path]

    alike = []
    for path in queries:
        # only files of the same size can be equal, so most need not be read
        rivals = by_size.get(path.stat().st_size, []) if path.is_file() else []
        if rivals and any(digest(rival) == digest(path) for rival in rivals):
            alike.append(path)
    return alike


def _some(paths: Sequence[Path], root: Path) -> str:
    named = ", ".join(path.relative_to(root).as_posix() for path in paths[:_SHOWN])
    return named + (" …" if len(paths) > _SHOWN else "")
