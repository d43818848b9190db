"""Run heads on datasets and list the heads: `tfa bench run` and `tfa bench heads`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tfa.cli import options
from tfa.cli.console import console, format_count, note, open_table, print_json, say
from tfa.types import EncoderOptions
from tfa_bench.cli.results import FileHeadEntry, HeadEntry, HeadPlan, HeadsResult, RunEntry, RunResult, ScoreEntry

if TYPE_CHECKING:
    from tfa.encoders import Encoder
    from tfa_bench.datasets.load import Dataset
    from tfa_bench.heads.contract import HeadCard
    from tfa_bench.run import Ran

_DEFAULT_HEADS = "anyloc,tfvpr,ria,tfa,tfa-c64"


def named_folder(text: str) -> tuple[str, Path]:
    """`NAME=PATH`."""
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise typer.BadParameter(f"{text!r} is not NAME=PATH, for example sped=data/sped")
    if not Path(path).is_dir():
        raise typer.BadParameter(f"{path} is not a folder; choose the folder with the dataset {name}")
    return name, Path(path)


def load_all(
    dataset: Sequence[str], *, cards: Sequence[HeadCard] = (), out: Path | None = None, positives: Path | None = None
) -> list[Dataset]:
    """Load the datasets of a command line. Unwritable output and budgets above the number of queries fail here, before
    the work.
    """
    from tfa_bench.datasets.load import load_dataset

    folders = [named_folder(text) for text in dataset]
    if out is not None:
        options.check_writable(out)
    loaded = [load_dataset(name, path, positives=positives) for name, path in folders]
    for data in loaded:
        for card in cards:
            card.plan.splits(len(data.queries), data.conditions)
    return loaded


def loaded_encoder(name: str, encoding: EncoderOptions) -> Encoder:
    from tfa.encoders import load_encoder

    precision = "float32" if encoding.precision == "auto" else encoding.precision
    return load_encoder(
        name, weights=encoding.weights, device=encoding.device, threads=encoding.threads, precision=precision
    )


def named_heads(heads: str) -> list[str]:
    return [name.strip() for name in heads.split(",") if name.strip()]


@options.with_encoder
def run(
    dataset: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=PATH",
            help="A dataset of [bold]tfa bench datasets[/bold], or a new name, and its folder. Repeatable.",
        ),
    ],
    heads: Annotated[
        str, typer.Option(metavar="NAME,NAME,…", help="Heads and groups of [bold]tfa bench heads[/bold], or all.")
    ] = _DEFAULT_HEADS,
    encoder: options.EncoderOption = "dinov2-s14-focus",
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the records.")] = Path("results"),
    positives: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", exists=True, dir_okay=False, help="A positives.json for a protocol that is not public."
        ),
    ] = None,
    depth: Annotated[int, typer.Option(min=1, help="Recorded length of each ranking.")] = 100,
    split_depth: Annotated[
        int | None, typer.Option(min=1, help="Recorded length for protocols with ten splits (ten rankings per query).")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Rerun existing records and check that they are reproduced.")
    ] = False,
    vocabulary: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Released words, for anyloc-released and as source of dual heads.",
        ),
    ] = None,
    sam: Annotated[
        Path | None, typer.Option(metavar="FILE", exists=True, help="SAM weights for the head segvlad.")
    ] = None,
    sam_model: Annotated[
        str, typer.Option(metavar="NAME", help="SAM model of the weights: vit-h, vit-l or vit-b.")
    ] = "vit-h",
    sam_points: Annotated[
        int, typer.Option(min=1, max=64, help="Prompt points per side for SAM or MobileSAM; fewer are faster.")
    ] = 32,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HEAD=FILE",
            help="Published checkpoint of a trained system, such as salad=dino_salad.ckpt. Repeatable.",
        ),
    ] = None,
    antialias: Annotated[
        bool,
        typer.Option(
            "--antialias", help="Resize photos for SelaVPR++ with antialiasing; its published figures likely did not."
        ),
    ] = False,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Run heads on datasets: encode once, write every head's rankings, then score them.

    Existing records are kept; an interrupted run resumes. A dataset with a new name is a folder with database/,
    queries/ and positives.json.
    """
    from tfa_bench.heads.catalogue import head_cards
    from tfa_bench.heads.contract import Supplied
    from tfa_bench.run import prepare, run_heads

    checkpoints = _checkpoints(checkpoint or [], named_heads(heads))
    if antialias and not any(name.startswith("selavpr++") for name in named_heads(heads)):
        raise typer.BadParameter("--antialias applies to selavpr++-b and selavpr++-l, but --heads names neither")
    supplied = Supplied(vocabulary, sam, sam_model, sam_points, checkpoints, antialias)
    cards = head_cards(named_heads(heads), supplied)
    if vocabulary is not None and not any("vocabulary" in card.settings for card in cards):
        raise typer.BadParameter("--vocabulary applies to anyloc-released and dual heads, but --heads names neither")
    loaded = load_all(dataset, out=out / "record", positives=positives)
    bars = not quiet
    for data in loaded:
        for text in data.notes:
            note(f"{data.card.name}: {text}")
    done: list[Ran] = []
    for model, own in _by_encoder(cards, lambda: loaded_encoder(encoder, encoding), encoding):
        if encoding.device != "cpu":
            note(_describe_devices(model))
        for data in loaded:
            done += run_heads(
                prepare(data, model, progress=bars),
                own,
                out,
                depth=depth,
                split_depth=split_depth,
                again=again,
                progress=bars,
                report=(lambda ran: None) if json else _report_run,
            )
    _report(done, out, json=json)


def _describe_devices(encoder: Encoder) -> str:
    """Say where a run computes."""
    from tfa.core.arrays import backend_for
    from tfa.encoders import describe_device

    fitted = backend_for(encoder.device).device  # Metal cannot fit
    return f"{describe_device(encoder)}, fit on {fitted}, scores of TFA's heads on {encoder.device}, of others on cpu"


def _by_encoder(
    cards: Sequence[HeadCard], load: Callable[[], Encoder], encoding: EncoderOptions
) -> Iterator[tuple[Encoder, list[HeadCard]]]:
    """Group heads by encoder: heads on the run's encoder first, then each trained system separately."""
    on_tokens = [card for card in cards if card.encoder_opener is None]
    if on_tokens:
        yield load(), on_tokens
    for card in cards:
        if card.encoder_opener is not None:
            yield card.encoder_opener(encoding), [card]


def _checkpoints(texts: Sequence[str], heads: Sequence[str]) -> dict[str, Path]:
    """Parse `HEAD=FILE`, each for a trained system among the heads."""
    from tfa_bench.heads.trained.systems import SYSTEMS

    found: dict[str, Path] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not (name and equals and file):
            raise typer.BadParameter(f"{text!r} is not HEAD=FILE, for example salad=dino_salad.ckpt")
        if name not in SYSTEMS:
            raise typer.BadParameter(f"{name!r} is not a trained system; choose one of {', '.join(SYSTEMS)}")
        if name not in heads:
            raise typer.BadParameter(f"--checkpoint {text} is not used: --heads does not name {name}")
        if name in found:
            raise typer.BadParameter(f"--checkpoint names {name} twice; a run uses one checkpoint per system")
        found[name] = Path(file)
    return found


def _report_run(ran: Ran) -> None:
    if ran.outcome == "skipped":
        note(f"{ran.dataset}: {ran.head} was not run: {ran.reason}")
    else:
        say(f"{ran.dataset}: {ran.head} {ran.outcome}")


def _report(done: list[Ran], out: Path, *, json: bool) -> None:
    from tfa_bench.cli.pages import show_scores
    from tfa_bench.records import Record
    from tfa_bench.scores import KS, score_folder

    finished = [ran for ran in done if ran.outcome != "skipped"]
    scored = []
    for dataset, encoder in dict.fromkeys((ran.dataset, ran.encoder) for ran in finished):
        made = [ran for ran in finished if (ran.dataset, ran.encoder) == (dataset, encoder)]
        depth = min(Record.read(ran.path).depth for ran in made if ran.path is not None)
        ks = [k for k in KS if k <= depth] or [1]
        own = score_folder(
            out, datasets=[dataset], heads=list(dict.fromkeys(ran.head for ran in made)), encoder=encoder, ks=ks
        )
        scored += own
    if json:
        runs = [
            RunEntry(
                dataset=ran.dataset,
                head=ran.head,
                outcome=ran.outcome,
                record=None if ran.path is None else str(ran.path),
                reason=ran.reason or None,
            )
            for ran in done
        ]
        print_json(RunResult(runs=runs, scores=[ScoreEntry.from_dict(one.to_dict()) for one in scored]))
        return
    if scored:
        show_scores(scored)
    say(f"{format_count(len(finished), 'record')} in {out}")


def heads(json: options.AsJson = False) -> None:
    """List the heads, the data that each uses, and the groups."""
    from tfa_bench.heads.catalogue import GROUPS, NEED_FILES, head_card, names

    cards = [head_card(name) for name in names() if name not in NEED_FILES]
    if json:
        wanting = [
            FileHeadEntry(name=name, title=head.title, sees=head.sees, needs=head.option, why=head.why)
            for name, head in NEED_FILES.items()
        ]
        groups = {name: list(members) for name, members in GROUPS.items()}
        print_json(HeadsResult(heads=[_facts(card) for card in cards], need_files=wanting, groups=groups))
        return
    table = open_table()
    for column in ("head", "title", "sees", "protocol", "note"):
        table.add_column(column, overflow="fold")
    for card in cards:
        brought = card.settings.get("distribution")
        table.add_row(card.name, card.title, card.sees, card.plan.name, f"from {brought}" if brought else card.note)
    for name, head in NEED_FILES.items():
        table.add_row(name, head.title, head.sees, "no calibration", f"needs {head.option}")
    console().print(table)
    say()
    say("tfa-cN, dual-cN, second-order-cN and judged-cN accept any N; + adds score calibration,")
    say("-ensemble sums the replicas' scores, -v reranks the top candidates if admitted, -v-always in any case.")
    for name, members in GROUPS.items():
        say(f"{name}: {', '.join(members)}")
    say("all: every group")


def _facts(card: HeadCard) -> HeadEntry:
    return HeadEntry(
        name=card.name,
        title=card.title,
        sees=card.sees,
        plan=HeadPlan.from_dict(card.plan.to_dict()),
        settings=dict(card.settings),
        note=card.note,
    )
