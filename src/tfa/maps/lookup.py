"""Photos of a map found again: by name or id, and their tokens in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tfa.base.progress import Progress
from tfa.base.tokens import Tokens
from tfa.encoders import Encoder
from tfa.errors import BadMap, UnknownImage
from tfa.maps.records import ImageRecord
from tfa.photos.token_cache import TokenCache


def tokens_of(
    records: Sequence[ImageRecord],
    fingerprint: str,
    cache: TokenCache,
    encoder: Callable[[], Encoder],
    progress: Progress,
    otherwise: str = "remove them from the map before refit",
    grid: Sequence[int] | None = None,
) -> Tokens:
    """Tokens of the map's photos; what the cache lost is encoded again from files that have not changed.

    `encoder` is called for one only if it is needed; `otherwise` is what to do about photos that are lost.
    """
    digests, paths = [record.digest for record in records], [record.path for record in records]
    missing = cache.missing(fingerprint, digests)
    if missing:
        # Another arithmetic of the map's model has a shelf of its own: all tokens are taken from there, or none.
        fingerprint = encoder().fingerprint
        missing = cache.missing(fingerprint, digests)
    if missing:
        gone = [paths[i] for i in missing if not Path(paths[i]).is_file()]
        if gone:
            raise BadMap(
                f"{len(gone)} photos are neither in the token cache nor on disk (first: {gone[0]}); "
                f"restore them, or {otherwise}"
            )
        again = cache.encode([Path(paths[i]) for i in missing], encoder(), progress=progress)
        for path, digest, i in zip(again.paths, again.digests, missing, strict=True):
            if digest != digests[i]:
                raise BadMap(f"{path} is not the photo the map was built with; restore it, or {otherwise}")
    return cache.tokens(fingerprint, digests, paths, None if grid is None else (grid[0], grid[1]))


def find_record(records: Sequence[ImageRecord], photo: str | Path | int) -> ImageRecord:
    """An image by its id, its path, or the end of its path if that is unambiguous."""
    if isinstance(photo, int):
        found = [record for record in records if record.id == photo]
    else:
        whole, parts = str(Path(photo).resolve()), Path(photo).parts
        found = [record for record in records if record.path == whole]
        found = found or [record for record in records if Path(record.path).parts[-len(parts) :] == parts]
    if len(found) > 1:
        raise UnknownImage(f"{photo} may be any of {len(found)} photos of the map; give its whole path or its id")
    if not found:
        raise UnknownImage(f"{photo} is not in the map; tfa info --json lists the photos that are")
    return found[0]


def unique_files(paths: Sequence[Path]) -> list[Path]:
    """Each file once, under the first name it was given."""
    return list({path.resolve(): path for path in reversed(paths)}.values())[::-1]
