"""Finished splits of an unfinished head, stored beside the archive that its record will be in."""

from __future__ import annotations

import contextlib
import shutil
from typing import Any

from tfa.core.files import hash_json, read_bounded, write_atomically
from tfa_bench.rank import Answers
from tfa_bench.record_files import CONTENT_BYTES, RecordPath, decode_npz, encode_npz
from tfa_bench.records import check_array, fold_from_dict, fold_to_dict


class FinishedSplits:
    """`.tfa-c64.splits/3.npz` beside the archive of `tfa-c64.npz`; splits made of other inputs are not used."""

    def __init__(self, record: RecordPath, inputs: dict[str, Any]) -> None:
        self.folder = record.archive.parent / f".{record.head}.splits"
        self.inputs = hash_json(inputs)

    def write(self, split: int, answers: Answers) -> None:
        folds = [fold_to_dict(fold) for fold in answers.folds]
        facts = {"inputs": self.inputs, "replicas": list(answers.replicas), "folds": folds}
        content = encode_npz(facts, {"rankings": answers.rankings, "confidence": answers.confidence})
        write_atomically(self.folder / f"{split}.npz", lambda temporary: temporary.write_bytes(content))

    def read(self, split: int) -> Answers | None:
        """Return None if the split is not finished or its file is damaged; the split is then run again."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            facts, arrays = decode_npz(read_bounded(self.folder / f"{split}.npz", CONTENT_BYTES))
            if facts["inputs"] == self.inputs:
                return Answers(
                    tuple(facts["replicas"]),
                    tuple(fold_from_dict(fold) for fold in facts["folds"]),
                    check_array(arrays["rankings"], "u", 3),
                    check_array(arrays["confidence"], "f", 2),
                )
        return None

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
