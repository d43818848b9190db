"""The pipeline from photos to a fitted head, stage by stage.

    photos → tokens → second-order descriptors → spaces → decisions → scorer            the default head
    photos → tokens → words → residual descriptors → spectra → decisions → scorer       the published head

The stages are modules of `encoders` and `method`; this file calls them in order.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from tfa.core.arrays import Backend, Spill, backend_for, to_numpy
from tfa.core.progress import Progress, SilentProgress, as_progress, track_progress
from tfa.core.tokens import Tokens
from tfa.encoders import Encoder
from tfa.encoders.released_words import check_words, load_vocabulary
from tfa.errors import BadSpec, BadTokens, FewPhotos
from tfa.method import dual_vocabulary
from tfa.method.branch import DatabaseSplit, fit_branch
from tfa.method.carriers import CARRIER_KERNELS
from tfa.method.database import decide_from_database, explain_score_calibration
from tfa.method.described_queries import DescribedQueries
from tfa.method.head import FittedDatabase, Head, assemble
from tfa.method.residuals import ASSIGNMENT_KINDS, SOFT, Described, DescribedTokens, describe_residuals
from tfa.method.second_order_head import (
    FittedSpaces,
    SecondOrderHead,
    assemble_second_order,
    decide_calibration,
    decide_carrier,
    fit_spaces,
)
from tfa.method.target import decide_from_target
from tfa.method.vocabulary import (
    CONSTRUCTIONS,
    Vocabulary,
    fit_vocabularies,
    grid_patches,
    sample_patches,
    wrap_vocabularies,
)
from tfa.photos.images import HashedPhoto, find_images
from tfa.photos.token_cache import EncodedImages, TokenCache
from tfa.types import CalibrateOptions, HeadSpec


def encode(
    photos: Any,
    encoder: Encoder,
    *,
    cache: TokenCache | None = None,
    skip_bad: bool = False,
    batch_size: int = 8,
    progress: bool | Progress | None = None,
    hashed: Mapping[Path, HashedPhoto] | None = None,
) -> EncodedImages:
    """Encode photos to tokens; cached photos are not encoded again.

    Args:
        photos: A folder, a file, or a list of them.
        encoder: Encoder to use.
        cache: Token cache [default: the user's cache].
        skip_bad: Skip photos that cannot be read.
        batch_size: Photos per batch.
        progress: Whether to show progress, or a listener.
        hashed: Files that were hashed before.

    Returns:
        The paths and their tokens.
    """
    paths, cache, listener = find_images(photos), cache or TokenCache(), as_progress(progress)
    return cache.encode(paths, encoder, skip_bad=skip_bad, batch_size=batch_size, progress=listener, hashed=hashed)


def fit(
    tokens: Tokens,
    spec: HeadSpec | None = None,
    centers: Sequence[Any] | None = None,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    progress: bool | Progress | None = None,
) -> Head:
    """Fit the published TFA head on database tokens.

    Args:
        tokens: Database tokens.
        spec: Head options.
        centers: Three arrays (words, channels) to use instead of fitted vocabularies.
        device: Device to fit on.
        dtype: Dtype of descriptors and scores; spectra and evidence are always float64.
        progress: Whether to show progress, or a listener.

    Returns:
        The head, with all decisions made from the database.
    """
    backend, listener = backend_for(device), as_progress(progress)
    return decide_head(fit_database(tokens, spec or HeadSpec(), centers, backend, dtype, listener), backend, listener)


def fit_database(
    tokens: Tokens, spec: HeadSpec, centers: Sequence[Any] | None, backend: Backend, dtype: str, progress: Progress
) -> FittedDatabase:
    """Fit words, descriptors and geometry, the first half of `fit`."""
    check_tokens(tokens, dtype)
    spill = Spill()

    # Words: three vocabularies from one sample of database patches.
    if centers is None:
        patches = sample_patches(tokens, spec.max_patches, dtype, grid_patches)
        vocabularies = fit_vocabularies(patches, spec.words, backend, progress=progress)
        del patches
    else:
        vocabularies = wrap_vocabularies(centers, tokens.channels)
        spec = dataclasses.replace(spec, words=len(vocabularies[0].centers))

    # Descriptors: both assignments with all three vocabularies, in one pass over the tokens.
    words = [vocabulary.centers for vocabulary in vocabularies]
    described = describe_residuals(
        tokens, words, ASSIGNMENT_KINDS, spec.temperature, backend, dtype=dtype, spill=spill, progress=progress
    )
    return fit_spectra(described, vocabularies, spec, tokens.cls, backend, spill, progress)


def fit_spectra(
    described: Mapping[tuple[str, int], Described],
    vocabularies: Sequence[Vocabulary],
    spec: HeadSpec,
    cls: np.ndarray | None,
    backend: Backend,
    spill: Spill,
    progress: Progress | None = None,
) -> FittedDatabase:
    """Fit the Gram matrix and spectrum of each assignment and construction, one at a time."""
    split = DatabaseSplit.of(len(described[SOFT, 0].descriptors), spec)
    keys = [(assignment, construction) for assignment in ASSIGNMENT_KINDS for construction in CONSTRUCTIONS]
    branches = {
        (a, s): fit_branch(a, s, vocabularies[s].centers, described[a, s], split, spec, backend, spill)
        for a, s in track_progress(keys, len(keys), "spectra", progress or SilentProgress())
    }
    return FittedDatabase(spec, tuple(vocabularies), branches, cls)


def decide_head(database: FittedDatabase, backend: Backend, progress: Progress | None = None) -> Head:
    """Collect evidence, decide, and build the head, the second half of `fit`."""
    decisions, evidence = decide_from_database(database.branches, database.cls, backend, progress)
    return assemble(database, decisions, evidence, backend)


@overload
def calibrate(
    head: FittedDatabase,
    target: Tokens,
    *,
    score: bool | None = None,
    device: str = "cpu",
    progress: bool | Progress | None = None,
) -> Head: ...


@overload
def calibrate(
    head: SecondOrderHead | FittedSpaces,
    target: Tokens,
    *,
    score: bool | None = None,
    device: str = "cpu",
    progress: bool | Progress | None = None,
) -> SecondOrderHead: ...


def calibrate(
    head: FittedDatabase | SecondOrderHead | FittedSpaces,
    target: Tokens,
    *,
    score: bool | None = None,
    device: str = "cpu",
    progress: bool | Progress | None = None,
) -> Head | SecondOrderHead:
    """Calibrate a head with a few unlabeled photos of the target camera.

    The published head decides again from the photos. A second-order head uses the carrier `partial`, centered on the
    photos.

    Args:
        head: A fitted head, or the result of `fit_database` or `fit_spaces`.
        target: Tokens of the photos.
        score: Also calibrate scores [default: from 8 photos on for a second-order head, never for the published head].
        device: Device to fit on.
        progress: Whether to show progress, or a listener.

    Returns:
        The calibrated head, which later queries do not change.
    """
    check_target_count(len(target))
    if isinstance(head, SecondOrderHead | FittedSpaces):
        fitted = head if isinstance(head, FittedSpaces) else head.fitted
        fitted.check(target)
        queries = target if isinstance(target, DescribedTokens) else DescribedQueries(target)  # describe once
        return assemble_second_order(fitted, *decide_calibration(fitted, len(target), score), queries)
    backend, progress = backend_for(device), as_progress(progress)
    head.check(target)
    words = [vocabulary.centers for vocabulary in head.vocabularies]
    described = describe_residuals(target, words, ASSIGNMENT_KINDS, head.spec.temperature, backend, dtype=head.dtype)
    decisions, evidence = decide_from_target(head.branches, described, head.cls, target.cls, backend, progress)
    if score:
        decisions = dataclasses.replace(decisions, score_calibrated=True)
        evidence = dataclasses.replace(
            evidence, reasons={**evidence.reasons, "score": explain_score_calibration(len(target))}
        )
    return assemble(head, decisions, evidence, backend, score_target=target if score else None, data_used="target")


def fit_second_order(
    tokens: Tokens,
    carrier: str = "partial",
    *,
    constructions: int = len(CONSTRUCTIONS),
    spec: HeadSpec | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    progress: bool | Progress | None = None,
) -> SecondOrderHead:
    """Fit a second-order head on database tokens.

    Args:
        tokens: Database tokens.
        carrier: Carrier of the head.
        constructions: Number of constructions to fit, 1 to 3. Only the carrier `adaptive` depends on it.
        spec: Head options.
        device: Device to fit on.
        dtype: Dtype of descriptors and scores.
        progress: Whether to show progress, or a listener.

    Returns:
        The head.
    """
    if carrier not in CARRIER_KERNELS:
        raise BadSpec(f"carrier={carrier!r} is unknown; use one of {', '.join(CARRIER_KERNELS)}")
    if constructions not in range(1, len(CONSTRUCTIONS) + 1):
        raise BadSpec(f"constructions={constructions!r} is out of range: must be between 1 and {len(CONSTRUCTIONS)}")
    check_tokens(tokens, dtype)
    backend, listener = backend_for(device), as_progress(progress)
    fitted = fit_spaces(tokens, spec or HeadSpec(), backend, dtype, listener, constructions)
    return assemble_second_order(fitted, *decide_carrier(fitted, carrier))


def fit_dual(tokens: Tokens, source: str | Path | Any | None = None, **settings: Any) -> dual_vocabulary.DualHead:
    """Fit a head with two vocabularies.

    Args:
        tokens: Database tokens.
        source: Source vocabulary: a file, or an array (words, channels) [default: fitted on the database].
        **settings: Options of `fit_dual_head`.

    Returns:
        The head.
    """
    words = read_source(source, tokens.channels) if isinstance(tokens, Tokens) else None
    return dual_vocabulary.fit_dual_head(tokens, words, **settings)


def read_source(source: str | Path | Any | None, channels: int) -> dual_vocabulary.SourceWords | None:
    """Read a source vocabulary for tokens with `channels`: a file, an array (words, channels), or words read before."""
    if source is None or isinstance(source, dual_vocabulary.SourceWords):
        return source
    is_file = isinstance(source, (str, Path))
    origin = str(source) if is_file else "the source vocabulary"
    words = load_vocabulary(source) if is_file else check_words(to_numpy(source), origin)
    if words.shape[1] != channels:
        raise BadSpec(
            f"{origin} has words of {words.shape[1]} channels, the tokens have {channels}; "
            "use a vocabulary of the tokens' encoder"
        )
    return dual_vocabulary.SourceWords(words, Path(source).name if is_file else None)


def check_target_count(count: int) -> None:
    """Raise if there are too few target photos to calibrate, and warn if there are few."""
    if count < CalibrateOptions.FEWEST:
        raise BadTokens(
            f"{count} target photos are too few to calibrate; use at least {CalibrateOptions.FEWEST}, "
            f"better {CalibrateOptions.budget}"
        )
    if count < CalibrateOptions.FEW:
        warnings.warn(
            f"{count} target photos are very few; use {CalibrateOptions.budget} if possible", FewPhotos, stacklevel=3
        )


def check_tokens(tokens: Tokens, dtype: str) -> None:
    """Raise if no head can be fitted with these tokens and dtype."""
    if dtype not in ("float32", "float64"):
        raise BadSpec(f"dtype={dtype!r} is unknown; use float32 or float64")
    if not isinstance(tokens, Tokens):
        raise BadTokens(f"fit takes tfa.Tokens, got {type(tokens).__name__}; wrap it: tfa.Tokens(patches, cls)")
    if len(tokens) < 2:
        raise BadTokens(f"{len(tokens)} images are too few to fit a head; use at least 2")
    if tokens.cls is not None and not np.issubdtype(tokens.cls.dtype, np.floating):
        raise BadTokens(f"global tokens have dtype {tokens.cls.dtype}; use a floating-point dtype")
