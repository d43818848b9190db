"""Loss of an encoder in half precision: R@1 and answers that change if float16 or bfloat16 rounds it.

No GPU is needed. Weights, pixels and the result of every operation are rounded to the format, and each operation
computes in float32, as GPUs accumulate. Attention is one operation, so its inner steps are not rounded. Either only
the queries are rounded, or all photos; then heads, with their vocabularies, are fitted on rounded tokens.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from studies.options import load_datasets, make_parser, open_encoder, open_progress, print_table, run_script
from tfa.cli.console import delivered
from tfa.core.files import hash_json
from tfa.core.progress import Progress
from tfa.encoders import Encoder
from tfa.encoders.vit import VitEncoder
from tfa.errors import BadSpec
from tfa_bench.cli.run import named_heads
from tfa_bench.heads.catalogue import head_cards
from tfa_bench.heads.contract import Fitted, HeadCard, Shared
from tfa_bench.measures import recall_at
from tfa_bench.rank import answers_of_split
from tfa_bench.run import Bench, calibrated, prepare

FORMATS = {"float16": torch.float16, "bfloat16": torch.bfloat16}
COLUMNS = ("dataset", "head", "encoder", "rounded", "R@1", "best answers changed", "decisions changed")


class Rounded(TorchDispatchMode):
    """Rounds the float32 result of every operation to another format."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result if func.is_view else tree_map_only(torch.Tensor, self.round, result)

    def round(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.dtype).to(torch.float32) if tensor.dtype == torch.float32 else tensor


class RoundedEncoder:
    """A float32 encoder with the rounding errors of another format; see `tfa.encoders`."""

    def __init__(self, encoder: VitEncoder, name: str) -> None:
        self._encoder, self._mode = encoder, Rounded(FORMATS[name])
        self.id, self.model, self.notes, self.device = encoder.id, encoder.model, encoder.notes, encoder.device
        self.channels, self.global_channels, self.grid = encoder.channels, encoder.global_channels, encoder.grid
        self.prepare = encoder.prepare
        self.fingerprint = hash_json({"rounded": name, "version": 1, "of": encoder.fingerprint})

    def encode(self, images: Sequence[Image.Image]) -> tuple[np.ndarray, np.ndarray | None]:
        exact = {name: tensor.clone() for name, tensor in self._encoder.network.state_dict().items()}
        rounded = {name: self._mode.round(tensor) for name, tensor in exact.items()}
        self._encoder.network.load_state_dict(rounded)
        try:
            with self._mode:
                return self._encoder.encode(images)
        finally:
            self._encoder.network.load_state_dict(exact)


# --- study ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One head on one dataset, with queries or all photos encoded in another format."""

    dataset: str
    head: str
    encoder: str  # float32, float16 or bfloat16
    rounded: str  # "", "queries" or "all photos"
    recall: float  # R@1, mean over replicas
    changed: float  # share of queries and replicas whose best answer differs from float32
    queries: int
    decisions: tuple[str, ...]  # decisions that differ from float32, as "name: old → new"


@dataclass(frozen=True)
class _Run:
    recall: float
    best: np.ndarray  # (queries, replicas)
    decisions: dict[str, Any]


def study_rounding(benches: dict[str, Bench], cards: Sequence[HeadCard], progress: Progress) -> list[Row]:
    """Compare heads on one dataset, encoded in float32 (first) and in other formats."""
    rows = list[Row]()
    exact = next(iter(benches.values()))
    shared = {name: Shared(spec=bench.spec, progress=progress) for name, bench in benches.items()}
    for card in cards:
        fitted = {name: card.fit(bench.database, shared[name]) for name, bench in benches.items()}
        before = _run(fitted["float32"], exact, card)
        rows.append(_row(exact, card, "float32", "", before, before))
        for name, bench in benches.items():
            if bench is not exact:
                for rounded, head in (("queries", fitted["float32"]), ("all photos", fitted[name])):
                    rows.append(_row(exact, card, name, rounded, _run(head, bench, card), before))
    return rows


def _run(fitted: Fitted, bench: Bench, card: HeadCard) -> _Run:
    [split] = card.plan.splits(len(bench.queries), bench.truth.conditions)[:1]
    heads = [calibrated(fitted, bench.queries, fold.calibration) for fold in split.folds]
    best = answers_of_split(split, heads, bench.queries, len(bench.database), 1).rankings[:, :, 0]
    recalls = [recall_at(column[:, None], bench.truth.positives, (1,))[0] for column in best.T]
    decisions = getattr(heads[0], "decisions", None) or {}
    return _Run(float(np.mean(recalls)), best, {key: v for key, v in decisions.items() if isinstance(v, str | bool)})


def _row(bench: Bench, card: HeadCard, encoder: str, rounded: str, run: _Run, before: _Run) -> Row:
    pairs = [(key, before.decisions[key], value) for key, value in run.decisions.items()]
    changes = tuple(f"{key}: {old} → {new}" for key, old, new in pairs if old != new)
    changed = float((run.best != before.best).mean())
    return Row(bench.truth.title, card.name, encoder, rounded, run.recall, changed, len(bench.queries), changes)


def table_rows(rows: Sequence[Row]) -> list[list[str]]:
    return [
        [
            row.dataset,
            row.head,
            row.encoder,
            row.rounded or "–",
            f"{100 * row.recall:.2f}",
            f"{100 * row.changed:.1f} %" if row.rounded else "–",
            ("; ".join(row.decisions) or "none") if row.rounded else "–",
        ]
        for row in rows
    ]


def study(arguments: Namespace) -> None:
    """Encode every dataset in each format and print the table."""
    cards = head_cards(named_heads(arguments.heads))
    datasets, progress = load_datasets(arguments, cards), open_progress(arguments)
    encoder = open_encoder(arguments)
    if not isinstance(encoder, VitEncoder):
        raise BadSpec(f"{encoder.id} is not a DINO encoder run by torch; choose one of tfa encoders")
    encoders: dict[str, Encoder] = {"float32": encoder, **{name: RoundedEncoder(encoder, name) for name in FORMATS}}
    rows: list[Row] = []
    for dataset in datasets:
        benches = {name: prepare(dataset, one, progress=progress) for name, one in encoders.items()}
        rows += study_rounding(benches, cards, progress)
    facts = {"encoder": encoder.id, "rows": [asdict(row) for row in rows]}
    if not delivered(facts, out=arguments.out, json=arguments.json):
        print_table(COLUMNS, table_rows(rows))


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__, "With ground truth.")
    parser.add_argument(
        "--heads", default="anyloc,tfa,second-order", metavar="NAME,…", help="heads of tfa bench heads [%(default)s]"
    )
    return run_script(parser, study, argv)


if __name__ == "__main__":
    sys.exit(main())
