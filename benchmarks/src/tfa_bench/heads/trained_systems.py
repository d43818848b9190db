"""Heads of trained systems, made from their published checkpoints.

They rank by cosine, or by bits first and then the best hundred by cosine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from tfa.encoders import Encoder
from tfa.errors import BadTokens, BadWeights
from tfa.search.gallery import inner, top_k
from tfa.types import EncoderOptions
from tfa_bench.heads.contract import ONLY, Fitted, HeadCard, NeedsFile, Photos, Shared, Supplied
from tfa_bench.heads.trained.systems import CHECKPOINTS, SYSTEMS, TrainedSystem, published_file
from tfa_bench.heads.vectors import VectorHead
from tfa_bench.records import LABELS

RERANKED = 100  # images nearest in bits that are reranked by vectors
_STEP = 1e-6  # score per bit, below the last reranked image


@dataclass(frozen=True)
class TwoStageHead:
    """Select by Hamming distance of codes, ties to the smaller index; order the selection by cosine."""

    vectors: VectorHead
    codes: np.ndarray  # (m, c) of ±1
    replicas: tuple[str, ...] = (ONLY,)
    data_used: str = LABELS

    def scores(self, queries: Photos, replica: str) -> np.ndarray:
        """Return `(q, m)`: the cosine of reranked images; the others just below the last of them, by their bits.

        Thus the z-score of the best answer, its confidence, depends on the cosines.
        """
        near = inner(_codes(queries), self.codes).astype(np.float64)  # equal bits minus different ones
        chosen = top_k(near, RERANKED)[0]
        cosines = np.take_along_axis(self.vectors.scores(queries, replica).astype(np.float64), chosen, axis=1)
        differing = (self.codes.shape[1] - near) / 2
        scores = cosines.min(axis=1, keepdims=True) - _STEP * (1 + differing)
        np.put_along_axis(scores, chosen, cosines, axis=1)
        return scores


def fit_vectors(database: Photos, shared: Shared) -> Fitted:
    """Make a head of the database's descriptors; nothing is fitted."""
    from tfa_bench.heads.trained.image_encoder import ImageEncoder, join_halves

    if database.tokens.grid != ImageEncoder.grid:
        raise BadTokens("a trained system has its own encoder and does not accept other tokens")
    vectors = VectorHead.of(database, {ONLY: join_halves}, LABELS, shared.progress)
    if database.tokens.cls is None:
        return vectors
    return TwoStageHead(vectors, _codes(database))


def _codes(photos: Photos) -> np.ndarray:
    if photos.tokens.cls is None:
        raise BadTokens("these photos have no codes; encode database and queries with one checkpoint")
    return photos.tokens.cls.astype(np.float32)


def trained_card(system: TrainedSystem, checkpoint: Path, *, antialias: bool = False) -> HeadCard:
    """Make the head of a checkpoint, which is read here so that a wrong file is reported before any work.

    It is read again when the head runs, so that only one system's weights are in memory.
    """
    from tfa_bench.heads.trained.image_encoder import ImageEncoder

    checked = ImageEncoder(system, checkpoint, antialias=antialias)
    forms = [checked.about, "antialiased" if antialias and system.may_antialias else ""]
    form = "".join(f", {one}" for one in forms if one)
    return HeadCard(
        name=system.name,
        title=system.title,
        sees=LABELS,
        fit=fit_vectors,
        settings={
            "checkpoint": checkpoint.name,
            "sha256": checked.sha256,
            "preprocessing": checked.preprocessing,
            "form": checked.about,
        },
        stages=("trained",),
        note=f"trained with labels, weights of {checkpoint.name}{form}",
        needs_files=True,
        encoder_opener=partial(_open, system, checkpoint, antialias, checked.sha256),
    )


def _open(system: TrainedSystem, checkpoint: Path, antialias: bool, sha256: str, options: EncoderOptions) -> Encoder:
    """Open the encoder with the options' device and threads; the other options do not apply."""
    import torch

    from tfa_bench.heads.trained.image_encoder import ImageEncoder

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    encoder = ImageEncoder(system, checkpoint, options.device, antialias=antialias)
    if encoder.sha256 != sha256:
        raise BadWeights(f"{checkpoint} changed during the run; rerun the command", checkpoint)
    return encoder


# --- heads by name -------------------------------------------------------------------------------------------------


def _needs_checkpoint(system: TrainedSystem) -> NeedsFile:
    def make(supplied: Supplied) -> HeadCard | None:
        file = supplied.checkpoints.get(system.name) or published_file(system)
        return None if file is None else trained_card(system, file, antialias=supplied.antialias)

    return NeedsFile(
        system.title,
        LABELS,
        f"--checkpoint {system.name}=FILE",
        f"is a trained system and needs its published checkpoint ({system.published}; license: {system.licence})",
        f", or put it as {' or '.join(system.files)} into the folder that ${CHECKPOINTS} names",
        make,
    )


NEED_FILES: Mapping[str, NeedsFile] = {name: _needs_checkpoint(system) for name, system in SYSTEMS.items()}
