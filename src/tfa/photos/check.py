"""Photos looked at before a model is loaded, so that broken ones cost no wait, and all of them are named at once."""

from __future__ import annotations

from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tfa.base.files import sha256_of_file
from tfa.base.progress import Progress, tracked
from tfa.base.threads import usable_cores
from tfa.errors import BadImage
from tfa.photos.images import check_whole

NAMED = 20  # broken photos that an error lists
ADVICE = "or use --skip-bad (skip_bad=True) to leave such images out"


def check_photos(paths: Sequence[Path], known: Container[str], progress: Progress) -> None:
    """Refuse photos if some cannot be decoded. Those whose digest is `known` were decoded before."""
    with ThreadPoolExecutor(usable_cores(), thread_name_prefix="tfa-check") as pool:
        reasons = pool.map(lambda path: _reason(path, known), paths)
        told = zip(paths, tracked(reasons, len(paths), "looking at photos", progress, "images"), strict=True)
        broken = [(path, reason) for path, reason in told if reason is not None]
    if len(broken) == 1:
        path, reason = broken[0]
        raise BadImage(f"{reason}; fix or remove it, {ADVICE}", path)
    if broken:
        more = [reason for _, reason in broken[:NAMED]]
        more += [f"… and {len(broken) - NAMED:,} more"] if len(broken) > NAMED else []
        raise BadImage(
            f"{len(broken):,} of {len(paths):,} photos cannot be used; fix or remove them, {ADVICE}:",
            *(path for path, _ in broken),
            more=more,
        )


def _reason(path: Path, known: Container[str]) -> str | None:
    """Why a photo cannot be decoded, in a sentence."""
    try:
        if sha256_of_file(path) not in known:
            check_whole(path)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    except BadImage as error:
        return str(error)
    return None
