"""`tfa bench run`, `tfa bench heads`: query every head, keep its rankings, score them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tfa.cli import options
from tfa.cli.console import console, format_count, note, open_table, print_json, say, wants_progress
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
        raise typer.BadParameter(f"{text!r} is not allowed; give NAME=PATH, for example sped=data/sped")
    if not Path(path).is_dir():
        raise typer.BadParameter(f"{path} is not a folder; give the folder that holds the dataset {name}")
    return name, Path(path)


def load_all(
    dataset: Sequence[str], *, cards: Sequence[HeadCard] = (), out: Path | None = None, positives: Path | None = None
) -> list[Dataset]:
    """The datasets of a command line. What can be refused is refused before the work: also a file that cannot be
    written, and a budget that is larger than the queries."""
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

    return load_encoder(
        name, weights=encoding.weights, device=encoding.device, threads=encoding.threads, fast=encoding.fast
    )


def named_heads(heads: str) -> list[str]:
    return [name.strip() for name in heads.split(",") if name.strip()]


@options.with_encoder
def run(
    dataset: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=PATH",
            help="A dataset of [bold]tfa bench datasets[/bold] and the folder that holds it, or a name of your own "
            "and a folder with database/, queries/ and positives.json. May be texts several times.",
        ),
    ],
    heads: Annotated[
        str, typer.Option(metavar="NAME,NAME,…", help="Heads and groups of [bold]tfa bench heads[/bold], or all.")
    ] = _DEFAULT_HEADS,
    encoder: options.EncoderOption = "dinov2-s14-focus",
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where records are kept.")] = Path("results"),
    positives: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="A positives.json for a protocol that is not public."),
    ] = None,
    depth: Annotated[int, typer.Option(min=1, help="Places of each ranking that are kept.")] = 100,
    split_depth: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Places kept where a protocol has ten splits, so ten rankings a query.",
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Make existing records once more and check that they come out the same.")
    ] = False,
    vocabulary: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="A released vocabulary, for the head anyloc-released."),
    ] = None,
    sam: Annotated[Path | None, typer.Option(exists=True, help="Weights of SAM, for the head segvlad.")] = None,
    sam_model: Annotated[str, typer.Option(help="Which SAM the weights are of: vit-h, vit-l or vit-b.")] = "vit-h",
    sam_points: Annotated[
        int, typer.Option(min=1, max=64, help="Points a side that prompt SAM or MobileSAM; fewer are quicker.")
    ] = 32,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HEAD=FILE",
            help="The published checkpoint of a trained system, such as salad=dino_salad.ckpt. "
            "May be texts several times.",
        ),
    ] = None,
    antialias: Annotated[
        bool,
        typer.Option(
            "--antialias", help="Resize photos for SelaVPR++ with antialiasing; its figures were likely made without."
        ),
    ] = False,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Run heads on datasets: encode once, write every head's rankings, then score them.

    A record that exists is kept; a run that was interrupted goes on where it stopped.
    """
    from tfa_bench.heads.catalogue import head_cards
    from tfa_bench.heads.contract import Supplied
    from tfa_bench.run import prepare, run_heads

    checkpoints = _checkpoints(checkpoint or [], named_heads(heads))
    if antialias and not any(name.startswith("selavpr++") for name in named_heads(heads)):
        raise typer.BadParameter("--antialias is of selavpr++-b and selavpr++-l, and --heads names neither")
    supplied = Supplied(vocabulary, sam, sam_model, sam_points, checkpoints, antialias)
    cards = head_cards(named_heads(heads), supplied)
    loaded = load_all(dataset, out=out / "record", positives=positives)
    bars = wants_progress(quiet)
    for data in loaded:
        for text in data.notes:
            note(f"{data.card.name}: {text}")
    done: list[Ran] = []
    for model, own in _by_encoder(cards, lambda: loaded_encoder(encoder, encoding), encoding):
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


def _by_encoder(
    cards: Sequence[HeadCard], load: Callable[[], Encoder], encoding: EncoderOptions
) -> Iterator[tuple[Encoder, list[HeadCard]]]:
    """The run's encoder with the heads that take its tokens, then each trained system alone, one model at a time."""
    on_tokens = [card for card in cards if card.encoder_opener is None]
    if on_tokens:
        yield load(), on_tokens
    for card in cards:
        if card.encoder_opener is not None:
            yield card.encoder_opener(encoding), [card]


def _checkpoints(texts: Sequence[str], heads: Sequence[str]) -> dict[str, Path]:
    """`HEAD=FILE`, each of a trained system that is among the heads."""
    from tfa_bench.heads.trained.systems import SYSTEMS

    found: dict[str, Path] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not (name and equals and file):
            raise typer.BadParameter(f"{text!r} is not allowed; give HEAD=FILE, for example salad=dino_salad.ckpt")
        if name not in SYSTEMS:
            raise typer.BadParameter(f"{name!r} is no trained system; they are {', '.join(SYSTEMS)}")
        if name not in heads:
            raise typer.BadParameter(f"a checkpoint of {name} is texts, but --heads does not name {name}")
        if name in found:
            raise typer.BadParameter(f"two checkpoints of {name} are texts; a run takes one")
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
    """List the heads a run can take, what each sees, and the names of groups."""
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
    say("tfa-cN, dual-cN, second-order-cN and judged-cN take any N; + adds score calibration,")
    say("-ensemble adds the replicas' scores, -v reranks the first candidates if admitted, -v-always in any case.")
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
