"""Photos looked at before a model is loaded, so that broken ones cost no wait, and all of them are named at once."""

from __future__ import annotations

from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tfa.base.files import hash_file
from tfa.base.progress import Progress, track_progress
from tfa.base.threads import count_cores
from tfa.errors import BadImage
from tfa.photos.images import check_whole

MAX_LISTED_PHOTOS = 20  # broken photos that an error lists
_ADVICE = "or use --skip-bad (skip_bad=True) to leave such images out"


def check_photos(paths: Sequence[Path], decoded_before: Container[str], progress: Progress) -> None:
    """Refuse photos if some cannot be decoded. Those whose digest is in `decoded_before` were decoded before."""
    with ThreadPoolExecutor(count_cores(), thread_name_prefix="tfa-check") as pool:
        reasons = pool.map(lambda path: _reason(path, decoded_before), paths)
        checked = zip(paths, track_progress(reasons, len(paths), "looking at photos", progress, "images"), strict=True)
        broken = [(path, reason) for path, reason in checked if reason is not None]
    if len(broken) == 1:
        path, reason = broken[0]
        raise BadImage(f"{reason}; fix or remove it, {_ADVICE}", path)
    if broken:
        more = [reason for _, reason in broken[:MAX_LISTED_PHOTOS]]
        more += [f"… and {len(broken) - MAX_LISTED_PHOTOS:,} more"] if len(broken) > MAX_LISTED_PHOTOS else []
        raise BadImage(
            f"{len(broken):,} of {len(paths):,} photos cannot be used; fix or remove them, {_ADVICE}:",
            *(path for path, _ in broken),
            more=more,
        )


def _reason(path: Path, decoded_before: Container[str]) -> str | None:
    """Why a photo cannot be decoded, in a sentence."""
    try:
        if hash_file(path) not in decoded_before:
            check_whole(path)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    except BadImage as error:
        return str(error)
    return None
