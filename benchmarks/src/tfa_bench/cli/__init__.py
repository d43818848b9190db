"""The verbs of `tfa bench`, one file each, and the examples that their help shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer

from tfa.cli.console import examples
from tfa_bench.cli import (
    confidence,
    datasets,
    explore,
    figures,
    judge,
    merge,
    onnx,
    run,
    scale,
    score,
    sequences,
    serve,
    speed,
    table,
    verification,
)

VERBS: Mapping[Callable[..., Any], str] = {
    run.run: """
        tfa bench run --dataset sped=data/sped --heads anyloc,tfvpr,ria,tfa,tfa-c64 --out results/
        tfa bench run --dataset sped=data/sped --dataset mine=photos/ --heads all
        tfa bench run --dataset pitts30k=data/pitts30k --encoder dinov2-b14@322 --weights vitb14.pth
    """,
    run.heads: """
        tfa bench heads
        tfa bench heads --json
    """,
    datasets.datasets: """
        tfa bench datasets
        tfa bench datasets pitts30k
        tfa bench datasets --json
    """,
    datasets.check: """
        tfa bench check sped data/sped
        tfa bench check pitts30k data/pitts30k --deep
        tfa bench check my-town photos/ --positives town.json
    """,
    score.score: """
        tfa bench score results/
        tfa bench score results/ --dataset sped --against vlad
        tfa bench score results/ --head tfa-c64 --ks 1,5 --json
    """,
    table.table: """
        tfa bench table primary
        tfa bench table heads --records results/sped --format csv
        tfa bench table all --out tables/
    """,
    table.results: """
        tfa bench results --records results/ --out docs/results.md
    """,
    figures.figures: """
        tfa bench figures results/ --out figures/
        tfa bench figures results/ --out figures/ --dataset sped --photos sped=datasets/SPED
    """,
    explore.explore: """
        tfa bench explore --records results/sped --head tfa --head judged --photos data/sped --out failures.html
        tfa bench explore --records old/tfa.json.xz --records new/tfa.json.xz --out changed.html
    """,
    verification.verification: """
        tfa bench verification --dataset sped=data/sped --dataset pitts30k=data/pitts30k
        tfa bench verification --dataset sped=data/sped --heads soft-partial --out study.json
        tfa bench verification --dataset sped=data/sped --matcher aliked-lightglue --queries 100
    """,
    judge.judge: """
        tfa bench judge --dataset sped=data/sped --dataset nordland-540=data/nordland
        tfa bench judge --dataset sped=data/sped --out judge.json
    """,
    confidence.confidence: """
        tfa bench confidence --dataset sped=data/sped --dataset nordland=data/nordland
        tfa bench confidence --dataset sped=data/sped --dataset nordland=data/nordland --json
    """,
    sequences.sequences: """
        tfa bench sequences --dataset gardens-point=data/gardens_point --dataset nordland-540=data/nordland
        tfa bench sequences --dataset drive=data/drive --out sequences.json
    """,
    merge.merge: """
        tfa bench merge --dataset nordland-540=data/nordland --dataset gardens-point=data/gardens_point
        tfa bench merge --dataset walk=data/walk --out merged.json
    """,
    onnx.onnx: """
        tfa bench onnx --dataset sped=data/sped --dataset nordland-540=data/nordland
        tfa bench onnx --dataset sped=data/sped --dims 256,512 --queries 100 --out onnx.json
    """,
    scale.scale: """
        tfa bench scale engines --sizes 20000,100000 --out scale.json
        tfa bench scale switches killed replicas --engines postgres --out scale.json
        tfa bench scale ray --photos photos/ --encoder dinov2-s14-focus
    """,
    speed.speed: """
        tfa bench speed --size small
        tfa bench speed fit verify --json
        tfa bench speed --peers --out docs/performance/speed.json
    """,
    speed.performance: """
        tfa bench performance docs/performance/ --out docs/performance.md
    """,
    speed.fit: """
        tfa bench fit
        tfa bench fit --images 200 --patches 256 --json
        tfa bench fit --tokens photos/
    """,
    speed.calibrate: """
        tfa bench calibrate
        tfa bench calibrate --images 200 --full 200 --patches 256 --json
    """,
    speed.verify: """
        tfa bench verify
        tfa bench verify --candidates 50 --threads 4 --json
    """,
    serve.serve: """
        tfa bench serve
        tfa bench serve --seconds 10 --clients 4 --json
    """,
}


app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Recall on datasets, against every peer; speed on this machine.",
    epilog=examples(
        "tfa bench run --dataset sped=data/sped --out results/",
        "tfa bench table primary --records results/",
        "tfa bench fit",
    ),
)
for verb, shown in VERBS.items():
    app.command(epilog=examples(*(line.strip() for line in shown.strip().splitlines())))(verb)
