"""Heads of trained systems, each made from its published checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from tfa_bench.heads.contract import HeadCard, NeedsFile, Supplied
from tfa_bench.heads.trained.ranking import trained_card
from tfa_bench.heads.trained.systems import CHECKPOINTS, SYSTEMS, TrainedSystem, published_file
from tfa_bench.records import LABELS


def _needs_checkpoint(system: TrainedSystem) -> NeedsFile:
    def make(supplied: Supplied) -> HeadCard | None:
        file = supplied.checkpoints.get(system.name) or published_file(system)
        return None if file is None else trained_card(system, file, antialias=supplied.antialias)

    return NeedsFile(
        system.title,
        LABELS,
        f"--checkpoint {system.name}=FILE",
        f"is a trained system and takes its published checkpoint ({system.published}; licence: {system.licence})",
        f", or put it as {' or '.join(system.files)} into the folder that ${CHECKPOINTS} names",
        make,
    )


NEED_FILES: Mapping[str, NeedsFile] = {name: _needs_checkpoint(system) for name, system in SYSTEMS.items()}
