"""Finished splits of an unfinished head, kept beside where its record will be."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

from tfa.base.files import sha256_of_json, write_json
from tfa.base.reading import read_json
from tfa_bench.array_json import BadRecord, pack, unpack
from tfa_bench.rank import Answers
from tfa_bench.records import SUFFIX, packed_fold, unpacked_fold


class FinishedSplits:
    """`.tfa-c64.splits/3.json` beside `tfa-c64.json.xz`; splits made of other inputs are not used."""

    def __init__(self, record: Path, inputs: dict[str, Any]) -> None:
        self.folder = record.parent / f".{record.name.removesuffix(SUFFIX)}.splits"
        self.inputs = sha256_of_json(inputs)

    def write(self, split: int, answers: Answers) -> None:
        content = {
            "inputs": self.inputs,
            "replicas": list(answers.replicas),
            "folds": [packed_fold(fold) for fold in answers.folds],
            "rankings": pack(answers.rankings),
            "confidence": pack(answers.confidence),
        }
        write_json(self.folder / f"{split}.json", content)

    def read(self, split: int) -> Answers | None:
        """None where the split is not finished, or its file is damaged: it is then made again."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, BadRecord):
            content = read_json(self.folder / f"{split}.json")
            if content["inputs"] == self.inputs:
                return Answers(
                    tuple(content["replicas"]),
                    tuple(unpacked_fold(fold) for fold in content["folds"]),
                    unpack(content["rankings"]),
                    unpack(content["confidence"]),
                )
        return None

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
