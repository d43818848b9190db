"""Load a dataset from a name and a folder: its card names the layout and the expected counts."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module, resources
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from tfa.core.files import read_text
from tfa.core.plugins import load_plugin, plugin_names, plugin_source
from tfa.errors import BadPlugin
from tfa.evaluate.positives import DEFAULT_RADIUS
from tfa_bench.datasets.card import BadCard, DatasetCard, cards, nearest_card, override_card, read_card
from tfa_bench.datasets.files import BadDataset, DatasetFiles, by_name, listed_positives
from tfa_bench.datasets.layouts import SHARED
from tfa_bench.records import Truth

POSITIVES, POSITIONS = "positives.json", "positions.csv"

CARD = "card.json"  # describes a dataset without a packaged card, or overrides fields of a packaged one


class Layout(Protocol):
    """A module or object that reads the folder of a dataset.

    It may also have `missing(root, **options) -> list[str]`, which lists missing files, and `TAKES_POSITIVES = True` if
    its option `positives` names the user's positives.json.
    """

    def load(self, root: Path, **options: Any) -> DatasetFiles: ...


@dataclass(frozen=True)
class Dataset:
    """Images and positives of one dataset on this machine."""

    card: DatasetCard
    root: Path
    database: tuple[Path, ...]
    queries: tuple[Path, ...]
    positives: tuple[np.ndarray, ...]  # per query, indices into database
    conditions: Mapping[str, np.ndarray]  # name → indices of its queries; {} without conditions
    notes: tuple[str, ...]

    def truth(self) -> Truth:
        """Return the ground truth, with image names that are valid on other machines."""
        below = [[path.relative_to(self.root).as_posix() for path in paths] for paths in (self.database, self.queries)]
        return Truth(
            name=self.card.name,
            title=self.card.title,
            database=tuple(below[0]),
            queries=tuple(below[1]),
            positives=self.positives,
            conditions=self.conditions,
            rule=self.card.positives,
        )


def load_dataset(name: str, root: Path, *, positives: Path | None = None) -> Dataset:
    """Load the dataset `name` from its folder. `positives` is a JSON file that replaces the layout's rule.

    A name without a card is a user's dataset, read with the layout "folder".
    """
    card, notes = card_for(name, root, positives)
    reading = plan_reading(card, root, positives)
    files = reading.load(root)
    if reading.listed is not None and (positives is not None or not card.public or reading.layout != "folder"):
        card = replace(card, positives=f"as listed by the user in {reading.listed.name}")
    check_files(card, files, root)
    return Dataset(
        card, root, files.database, files.queries, files.positives, files.conditions,
        (*notes, *reading.notes, *files.notes, *without_positives(files)),
    )  # fmt: skip


def card_for(name: str, root: Path, positives: Path | None = None) -> tuple[DatasetCard, tuple[str, ...]]:
    """Return the card of a name, or one created for the user's folder, with notes."""
    known = cards().get(name)
    if (root / CARD).is_file():
        text, source = _card_text(root / CARD), str(root / CARD)
        card = read_card(text, source) if known is None else override_card(known, text, source)
        if card.name != name:
            raise BadDataset(f"{root / CARD} describes {card.name!r}, not {name!r}; use --dataset {card.name}={root}")
        return card, (f"{name} is {'described' if known is None else 'changed'} by its {CARD}",)
    if known is not None:
        return known, ()
    near = nearest_card(name)
    if not has_folders(root):
        meant = f"; did you mean {near}? List them with: tfa bench datasets" if near else ""
        raise BadDataset(
            f"unknown dataset {name!r}{meant}. Your own dataset needs {root}/database and {root}/queries "
            f"with {root}/{POSITIVES} or {root}/{POSITIONS}; or a {CARD} that names its layout"
        )
    options: dict[str, object] = {}
    rule = f"as listed in {positives.name if positives else POSITIVES}"
    if positives is None and not (root / POSITIVES).is_file() and (root / POSITIONS).is_file():
        options, rule = {"radius": DEFAULT_RADIUS}, f"at most {DEFAULT_RADIUS:g} m away by {POSITIONS}"
    card = DatasetCard(
        name=name, title=name, layout="folder", options=options, positives=rule, group="Other",
        citation="none", licence="unknown", get="a folder of the user's own",
    )  # fmt: skip
    hint = f"; if {near} is meant, its counts were not checked" if near else ""
    return card, (f"{name} is not a known dataset; read as your own folder{hint}",)


def _card_text(path: Path) -> str:
    try:
        return read_text(path)
    except (ValueError, OSError) as error:
        raise BadCard(f"{path} cannot be read: {error}; it must be JSON") from None


def has_folders(root: Path) -> bool:
    return all((root / name).is_dir() for name in ("database", "queries"))


@dataclass(frozen=True)
class Reading:
    """How a folder is read: a layout, its options, and the user's positives if provided."""

    layout: str
    options: Mapping[str, Any]
    listed: Path | None = None
    notes: tuple[str, ...] = ()

    def load(self, root: Path) -> DatasetFiles:
        try:
            files: DatasetFiles = load_layout(self.layout).load(root, **self.options)
        except (TypeError, AttributeError, OverflowError) as error:  # a card's options may have any type
            given = ", ".join(f"{key}={reprlib.repr(value)}" for key, value in self.options.items()) or "none"
            raise BadDataset(
                f"{root} cannot be read with the layout {self.layout} and the options {given} ({error}); "
                "Correct the card, see docs/how-to/benchmark-your-data.md"
            ) from error
        if self.listed is None or takes_positives(self.layout):
            return files
        names = by_name(files.database, root), by_name(files.queries, root)
        return replace(files, positives=listed_positives(self.listed, *names, len(files.queries)))


def plan_reading(card: DatasetCard, root: Path, positives: Path | None) -> Reading:
    """Choose the layout and the positives."""
    if positives is not None and not positives.is_file():
        raise BadDataset(f"{positives} does not exist; it must be JSON that lists the database images of each query")
    own = root / POSITIVES
    generic = has_folders(root) and (own.is_file() or positives is not None)
    own_option = takes_positives(card.layout)
    used = generic or not card.public or own_option
    listed = positives or (own if own.is_file() and used else None)
    given = {"positives": str(positives.absolute())} if positives is not None else {}
    if own_option and not (generic and card.layout != "folder"):
        return Reading(card.layout, {**card.options, **given}, listed)
    if generic and listed is not None:
        note = f"database/, queries/ and {listed.name} exist: read with the layout folder instead of {card.layout}"
        return Reading("folder", given, listed, (note,))
    if not card.public and listed is None:
        note = f"protocol not public: positives follow our rule ({card.positives}) unless {own} exists"
        return Reading(card.layout, card.options, None, (note,))
    return Reading(card.layout, card.options, listed)


@cache
def _layouts() -> Mapping[str, str]:
    """Map this package's layouts to their modules, by file name or as listed in `SHARED`, without importing any."""
    files = resources.files("tfa_bench.datasets.layouts").iterdir()
    modules = {file.name[:-3] for file in files if file.name.endswith(".py")} - {"__init__", *SHARED.values()}
    return dict(sorted({**{name: name for name in modules}, **SHARED}.items()))


def load_layout(name: str) -> Layout:
    """Import a layout of this package or of another distribution's `tfa.layouts` entry points."""
    if name in _layouts():
        module = import_module(f"tfa_bench.datasets.layouts.{_layouts()[name]}")
        return cast(Layout, getattr(module, name) if name in SHARED else module)
    plugin = load_plugin("tfa.layouts", name, tuple(_layouts()))
    if plugin is None:
        raise BadDataset(f"unknown layout {name!r}; choose one of {', '.join(layout_names())}")
    if not callable(getattr(plugin, "load", None)):
        source = plugin_source("tfa.layouts", name)
        raise BadPlugin(f"the layout {name!r} of {source} has no function load(root, …) that reads a dataset's folder")
    return cast(Layout, plugin)


def layout_names() -> list[str]:
    return [*_layouts(), *plugin_names("tfa.layouts", tuple(_layouts()))]


def takes_positives(name: str) -> bool:
    """True if the layout has an option that names the user's positives.json."""
    return bool(getattr(load_layout(name), "TAKES_POSITIVES", False))


def check_files(card: DatasetCard, files: DatasetFiles, root: Path) -> None:
    """Check declared counts, ranges of positives and conditions, and that each image is in the folder and unique."""
    problems = count_problems(card, files)
    if problems:
        raise BadDataset(f"{root}: {'; '.join(problems)}")
    if len(files.positives) != len(files.queries):
        raise BadDataset(f"{root}: {len(files.positives):,} lists of positives for {len(files.queries):,} queries")
    for what, images in (("database", files.database), ("queries", files.queries)):
        if len(set(images)) != len(images):
            raise BadDataset(f"{root}: the {what} name an image twice; remove the repeated line from the list")
    lists = [("positives", row, len(files.database)) for row in files.positives]
    lists += [(f"condition {name}", own, len(files.queries)) for name, own in files.conditions.items()]
    for what, row, size in lists:
        if len(row) and not 0 <= row.min() <= row.max() < size:
            raise BadDataset(f"{root}: {what} name image {row.max()}; allowed are 0 to {size - 1}")


def count_problems(card: DatasetCard, files: DatasetFiles) -> list[str]:
    """Return the differences from the card's declared counts."""
    pairs = [
        ("database images", card.counts.database, len(files.database)),
        ("queries", card.counts.queries, len(files.queries)),
    ]
    pairs += [
        (f"queries of {name}", declared, len(files.conditions.get(name, ())))
        for name, declared in card.counts.conditions.items()
        if files.conditions
    ]
    wrong = [
        f"{card.name} declares {declared:,} {what}, found {held:,}"
        for what, declared, held in pairs
        if declared is not None and declared != held
    ]
    return [*wrong[:-1], wrong[-1] + _sibling(card, files)] if wrong else []


def _sibling(card: DatasetCard, files: DatasetFiles) -> str:
    """Return a hint to cards with the counts of this copy."""
    held = (len(files.database), len(files.queries))
    others = [other for other in cards().values() if other.name != card.name]
    same = [other.name for other in others if (other.counts.database, other.counts.queries) == held]
    return f" (these are the counts of {' and of '.join(same)})" if same else ""


def without_positives(files: DatasetFiles) -> tuple[str, ...]:
    bare = sum(1 for row in files.positives if len(row) == 0)
    said = any("without positives" in note for note in files.notes)
    return (f"queries without positives: {bare:,}; they count as misses",) if bare and not said else ()
