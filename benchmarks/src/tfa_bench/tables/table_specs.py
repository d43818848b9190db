"""Table layouts: the paper's tables and analyses and four of ours, built from cells."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tfa_bench.records import LABELS
from tfa_bench.tables.analyses import tabulate_comparisons, tabulate_decisions, tabulate_pairs
from tfa_bench.tables.build import ByDataset, ByHead, by_dataset, by_head, without_one_encoder
from tfa_bench.tables.paper_figures import BACKBONES, PAPER_TABLES, paper_table
from tfa_bench.tables.table import Cell, Lookup, NoTable, Table, average_cells, paper_title

LAYOUTS = {
    "product": "`tfa build` and `tfa calibrate` with default options, compared with AnyLoc, RIA and the published TFA",
    "overview": "every way to query a default map, compared with AnyLoc, RIA and the published TFA",
    "primary": "ground datasets, R@1",
    "aerial": "aerial datasets, R@1/5/10",
    "native": "systems under their own encoders, with calibration budgets",
    "spectral": "spectral controls and complete heads",
    "ground-backbones": "ground datasets under two encoders, R@1",
    "full-query": "ground datasets, calibrated on 64 queries and on all, R@1",
    "aerial-access": "aerial datasets, calibrated on 64 queries and on all, R@1/5/10",
    "budgets": "recall against the number of calibration queries",
    "paired": "N calibration queries and all, evaluated on the same queries; retention and recovery",
    "comparisons": "wins, ties, losses and mean gain of heads over all datasets",
    "decisions": "assignment, carrier, global token and strengths over splits",
    "ablation": "TFA and the judge with one rule changed",
    "heads": "every head recorded",
}
_AERIAL = "Aerial / cross-view"  # a heading of the dataset catalogue
FREE = "Training-free heads"
_COMPLETE = "Complete heads"
_CONTROLS = ("original", "partial", "full", "adaptive")
_ALL_CONTROLS = ("original", "centred", "partial", "full", "adaptive")
_BUDGETS = (8, 16, 32, 64, 128, 256)
_ABLATIONS = (
    "support-only", "agreement-only", "ties-partial", "support-contraction", "always-cls", "no-cls", "forced-hard",
    "forced-soft", "forced-original", "forced-partial", "forced-adaptive", "single",
)  # fmt: skip
_BACKBONES = ("DINOv2-B", "DINOv3-B")
_FOUR_MAPS = ("4Seasons City Loop", "4Seasons Office Loop", "4Seasons Old Town", "4Seasons Parking Garage")
_SCENES, _SCENE = 24, re.compile(r"anyvisloc-.+")  # scenes of AnyVisLoc, each a dataset with its own map
_MATCHED_ANYLOC = "hard-original"
_MATCHED_TITLE, _MATCHED_NOTE = (
    "AnyLoc, matched",
    "our reading: head hard-original, with unit centers; the paper's AnyLoc equals its hard original cosine on the two "
    "maps where TFA-FullQ is hard",
)
_JUDGE_ABLATIONS = ("no-judge", "support", "no-centring", "no-score")
DEEP = (1, 5, 10, 20)
DEFAULT = "Default head of tfa build (ours, beyond the paper)"
SECOND_ORDER, JUDGED = "Second order (ours, beyond the paper)", "Judged (ours, beyond the paper)"
_SUPERVISED = "Supervised references"
KINDS = (
    _SUPERVISED, "Peers", "Spectral controls", "TFA", "TFA, dual vocabulary", "Ours, beyond the paper", DEFAULT,
    SECOND_ORDER, JUDGED, "Ablations",
)  # fmt: skip
_PRODUCT = {
    "Map images only": ("anyloc", "ria", "tfa", "second-order", "second-order-v"),
    "Map images and 64 unlabeled query photos": ("second-order-c64", "second-order-c64-v"),
}
_PRODUCT_TITLES = {
    "ria": "RIA (our reconstruction)",
    "tfa": "TFA as published",
    "second-order": "`tfa build` without reranking",
    "second-order-v": "`tfa build` (default)",
    "second-order-c64": "`tfa build` + `tfa calibrate` without reranking",
    "second-order-c64-v": "`tfa build` + `tfa calibrate`",
}
_PRODUCT_NOTES = (
    "The default of `tfa build` is a second-order head of our own with reranking. It is not the published TFA, which "
    "has its own row.",
    "Reranking: `tfa build` (default) and `tfa build` + `tfa calibrate` rerank their top candidates. All other rows "
    "do not rerank.",
    "Calibrated rows set aside 64 queries, calibrate on them without labels and measure R@1 on the remaining queries: "
    "mean ± standard deviation over ten random choices of the 64. All other rows use all queries.",
    "Data used: the images a method was fitted on before the first query. `nothing`: none; `database`: the map "
    "images; `target`: the map images and the 64 query photos. No row uses labels.",
)
_OVERVIEW = {
    "Photos queried independently": (
        *("anyloc", "ria", "tfa", "second-order", "second-order-v"),
        *("second-order-no-pooling", "second-order-no-pooling-v"),  # two depths only, like those below
    ),
    "Adapted to earlier photos": (
        *("second-order-online", "second-order-online-v"),
        *("second-order-no-pooling-online", "second-order-no-pooling-online-v"),
    ),
    "Frames of a drive": ("second-order-follow", "second-order-follow-lag5"),
    "Calibrated on 64 unlabeled photos": (
        *("second-order-c64", "second-order-c64-v"),
        *("second-order-no-pooling-c64", "second-order-no-pooling-c64-v"),
    ),
    "Reranked by one window of 5 × 5 cells": ("second-order-one-window-v", "second-order-one-window-online-v"),
    "Reranked as before, also without cell means": (
        "second-order-1-v",
        "second-order-1-online-v",
        "second-order-1-c64-v",
        "second-order-1-follow",
    ),
}
_OURS = re.compile(r"(tfa|dual)\b.*(\+|-ensemble|-v|-v-always|-online|-online-shuffled|-follow)")


def layout(name: str, cells: Sequence[Cell], *, paper: bool = True, both: bool = False) -> Table:
    """Build a table from cells. `paper`: add the paper's figures; `both`: spectral controls under both assignments."""
    if name not in LAYOUTS:
        near = difflib.get_close_matches(name, LAYOUTS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise NoTable(f"unknown table {name!r}; {hint}use one of {', '.join(LAYOUTS)}")
    make = {
        "product": product, "overview": overview, "primary": primary, "aerial": aerial, "native": native,
        "ground-backbones": ground_backbones, "full-query": full_query, "aerial-access": aerial_access,
        "budgets": budgets, "comparisons": comparisons, "decisions": decisions, "ablation": ablation,
        "heads": all_heads,
    }  # fmt: skip
    own = [cell for cell in cells if not cell.on]
    if name == "paired":
        table = tabulate_pairs(cells, paper)
    else:
        table = spectral(own, paper, both) if name == "spectral" else make[name](own, paper)
    if not any(True for _ in table.rows):
        raise NoTable(f"the records have no data for table {name!r} ({LAYOUTS[name]}); write them with tfa bench run")
    return without_one_encoder(table)


def product(cells: Sequence[Cell], paper: bool = True) -> Table:
    sheet = ByHead(
        name="product",
        title="Results with default options, R@1 (%)",
        blocks=_PRODUCT,
        paper=_MATCHED,
        mean=True,
        unranked=tuple(_PRODUCT)[1:],
        titles=_PRODUCT_TITLES,
        digits=1,
        query_row=True,
        notes=_PRODUCT_NOTES,
    )
    return by_head(sheet, Lookup(_of_heads(cells, _PRODUCT.values())), paper=paper)


def overview(cells: Sequence[Cell], paper: bool = True) -> Table:
    sheet = ByHead(
        name="overview",
        title="Every way to query a default map, R@1 (%)",
        blocks=_OVERVIEW,
        paper=_MATCHED,
        mean=True,
        notes=("Compare numbers within a block: its heads used the same data.",),
    )
    return by_head(sheet, Lookup(_of_heads(cells, _OVERVIEW.values())), paper=paper)


def primary(cells: Sequence[Cell], paper: bool = True) -> Table:
    shown = _with_matched_anyloc(cell for cell in cells if not _is_aerial(cell))
    sheet = ByDataset(
        name="primary",
        title="Ground retrieval, R@1 (%)",
        heads=_columns(shown, "anyloc", _MATCHED_ANYLOC, "tfvpr", "ria", "tfa", "tfa-c64"),
        paper=("primary", "ground-backbones"),
        references=("salad", "selavpr++-b"),
    )
    return by_dataset(sheet, Lookup(shown), paper=paper)


def aerial(cells: Sequence[Cell], paper: bool = True) -> Table:
    scenes = average_cells(
        cells,
        lambda cell: cell.dataset if _SCENE.fullmatch(cell.dataset) else None,
        _SCENES,
        dataset="anyvisloc",
        dataset_title=f"AnyVisLoc, mean of {_SCENES} scenes",
    )
    shown, notes = _with_first_seed(_with_matched_anyloc([*filter(_is_aerial, cells), *scenes]))
    sheet = ByDataset(
        name="aerial",
        title="Aerial and cross-view retrieval, R@1/5/10 (%)",
        heads=_columns(shown, "anyloc", _MATCHED_ANYLOC, "tfvpr", "ria", "tfa"),
        ks=(1, 5, 10),
        paper=("aerial",),
        backbones=_BACKBONES,
        references=("sample4geo",),
        grouped=False,
        notes=tuple(notes),
    )
    return by_dataset(sheet, Lookup(shown), paper=paper)


def ground_backbones(cells: Sequence[Cell], paper: bool = True) -> Table:
    rows = _rows_of("ground-backbones")
    shown = _with_matched_anyloc(cell for cell in cells if cell.paper_row in rows)
    sheet = ByDataset(
        name="ground-backbones",
        title="Ground retrieval by encoder, R@1 (%)",
        heads=_columns(shown, "anyloc", _MATCHED_ANYLOC, "tfvpr", "ria", "tfa", "tfa-c64", "tfa-fullq"),
        paper=("ground-backbones",),
        backbones=_BACKBONES,
    )
    return by_dataset(sheet, Lookup(shown), paper=paper)


def full_query(cells: Sequence[Cell], paper: bool = True) -> Table:
    sheet = ByDataset(
        name="full-query",
        title="Ground retrieval, calibrated on queries, R@1 (%)",
        heads=dict.fromkeys(("tfa-c64", "tfa-fullq"), FREE),
        paper=("full-query",),
    )
    rows = _rows_of("full-query")
    return by_dataset(sheet, Lookup(cell for cell in cells if cell.paper_row in rows), paper=paper)


def aerial_access(cells: Sequence[Cell], paper: bool = True) -> Table:
    sheet = ByDataset(
        name="aerial-access",
        title="Aerial and cross-view retrieval, calibrated on queries, R@1/5/10 (%)",
        heads=dict.fromkeys(("tfa-c64", "tfa-fullq"), FREE),
        ks=(1, 5, 10),
        paper=("aerial-access",),
        backbones=_BACKBONES,
        grouped=False,
    )
    return by_dataset(sheet, Lookup(filter(_is_aerial, cells)), paper=paper)


def comparisons(cells: Sequence[Cell], paper: bool = True) -> Table:
    return tabulate_comparisons(cells, frozenset(cell.dataset for cell in cells if _is_aerial(cell)), paper)


def decisions(cells: Sequence[Cell], paper: bool = True) -> Table:
    return tabulate_decisions(cells)


def _columns(cells: Sequence[Cell], *heads: str) -> dict[str, str]:
    """Return training-free columns; the matched AnyLoc has one only if recorded."""
    recorded = any(cell.head == _MATCHED_ANYLOC for cell in cells)
    return {head: FREE for head in heads if recorded or head != _MATCHED_ANYLOC}


def _with_matched_anyloc(cells: Iterable[Cell]) -> list[Cell]:
    """Return cells with the head that is likely the paper's matched AnyLoc under that title."""
    return [
        replace(cell, title=_MATCHED_TITLE, note=_MATCHED_NOTE) if cell.head == _MATCHED_ANYLOC else cell
        for cell in cells
    ]


def _with_first_seed(cells: Iterable[Cell]) -> tuple[list[Cell], list[str]]:
    """Return cells with recalls of seed 0 where the paper has AnyLoc of seed 0, and a note on them."""
    made: list[Cell] = []
    changed: dict[str, None] = {}  # datasets and encoders in recorded order
    for cell in cells:
        backbone = BACKBONES.get(cell.encoder)
        seed_0 = (cell.paper_row == "Park" and backbone in _BACKBONES) or (
            cell.paper_row == "Urbanscape" and backbone == "DINOv2-B"
        )
        if seed_0 and cell.head in ("anyloc", _MATCHED_ANYLOC) and cell.first_replica:
            changed[f"{cell.dataset_title} under {cell.encoder}"] = None
            cell = replace(cell, recalls=cell.first_replica, sds={})
        made.append(cell)
    return made, [f"AnyLoc of seed 0, as in the paper: {', '.join(changed)}."] if changed else []


def native(cells: Sequence[Cell], paper: bool = True) -> Table:
    printed = tuple(column.name for column in paper_table("native").columns if column.supervised)
    supervised = tuple(dict.fromkeys([*printed, *Lookup(cells).trained]))
    systems = (
        "tfvpr-transductive",
        "anyloc-released",
        "segvlad",
        "segvlad-mobilesam",
        "segvlad-superpixels",
        "ria",
        "dual-c64",
    )
    smaller = (*(f"dual-c{n}" for n in _BUDGETS if n != 64), "dual-crossfit")
    budget_title = "Calibration budget of the dual-vocabulary system"
    own = {cell.dataset for cell in cells if cell.head.startswith(("dual", "segvlad"))}
    rows = _rows_of("native")
    sheet = ByHead(
        name="native",
        title="Native systems, R@1 (%)",
        blocks={_SUPERVISED: supervised, "Training-free systems": systems, budget_title: smaller},
        paper=("native",),
        paper_rows=True,
        unranked=(_SUPERVISED, budget_title),
        across_encoders=True,
        notes=(
            "Supervised references and further budgets are not ranked.",
            "Interfaces of the paper: TF-VPR at 336x336, with centers from database and queries as published; AnyLoc "
            "with 32 released words; AnyLoc, RIA and TFA at 640x480, center-cropped to 630x476 (`@640x480c`).",
        ),
    )
    kept = [c for c in cells if c.head in (*systems, *smaller) and (c.dataset in own or c.paper_row in rows)]
    return by_head(sheet, Lookup([*kept, *(c for c in cells if c.sees == LABELS)]), paper=paper)


def spectral(cells: Sequence[Cell], paper: bool = True, both: bool = False) -> Table:
    complete = dict.fromkeys(("tfa", "tfa-c64", "tfa-fullq"), _COMPLETE)
    notes: list[str] = []
    with_controls = {cell.dataset for cell in cells if cell.head.partition("-")[2] in _ALL_CONTROLS}
    shown = [cell for cell in cells if cell.dataset in with_controls]
    if both:
        controls = {f"{a}-{c}": f"{a.capitalize()} assignment" for a in ("hard", "soft") for c in _ALL_CONTROLS}
    else:
        controls = dict.fromkeys(_CONTROLS, "Spectral controls (TFA-FullQ assignment)")
        shown, notes = _under_chosen_assignment(shown)
        title = "Four-map mean"
        maps = average_cells(
            shown,
            lambda cell: cell.paper_row if cell.paper_row in _FOUR_MAPS else None,
            len(_FOUR_MAPS),
            dataset=title,
            dataset_title=title,
            paper_row=title,
        )
        if maps:
            names = ", ".join(name.removeprefix("4Seasons ") for name in _FOUR_MAPS)
            notes.append(f"{title}: {names}, averaged within each split; the deviation is over splits.")
        shown = [*shown, *maps]
    sheet = ByDataset(
        name="spectral",
        title="Spectral controls and complete heads, R@1 (%)",
        heads=controls | complete,
        paper=("spectral", "primary", "full-query"),
        notes=tuple(notes),
    )
    return by_dataset(sheet, Lookup(shown), paper=paper)


def _under_chosen_assignment(cells: Sequence[Cell]) -> tuple[list[Cell], list[str]]:
    """Return the controls under the assignment of TFA-FullQ, named as the paper's columns.

    Without `fullq-…` records, controls of that assignment replace them. The adaptive one has no such replacement: its
    strengths would be those of the database.
    """
    routes = {(cell.dataset, cell.encoder): cell.route for cell in cells if cell.head == "tfa-fullq" and cell.route}
    names = {cell.dataset: cell.dataset_title or cell.dataset for cell in cells}
    chosen: dict[tuple[str, str, str], Cell] = {}
    others: list[Cell] = []
    unknown: dict[str, None] = {}  # titles in recorded order
    for cell in cells:
        assignment, _, control = cell.head.partition("-")
        key = (cell.dataset, cell.encoder, control)
        if assignment not in ("hard", "soft", "fullq") or control not in _CONTROLS:
            others.append(cell)
        elif assignment == "fullq":
            chosen[key] = cell
        elif key[:2] not in routes:
            unknown[names[cell.dataset]] = None
        elif routes[key[:2]] == assignment and control != "adaptive":
            chosen.setdefault(key, cell)
    lacking = [names[d] for d, e in routes if (d, e, "adaptive") not in chosen]
    shown = [replace(cell, head=key[2], title=paper_title(key[2])) for key, cell in chosen.items()]
    assignments = ", ".join(f"{names[d]} {e} {route}" for (d, e), route in sorted(routes.items()))
    notes = [f"Assignment of TFA-FullQ: {assignments}."] if assignments else []
    if lacking:
        notes.append(f"{', '.join(dict.fromkeys(lacking))}: run the heads fullq-… for the empty controls.")
    missing = [name for name in unknown if all(names[d] != name for d, _, _ in chosen)]
    if missing:
        notes.append(f"{', '.join(missing)}: no record of tfa-fullq for the assignment; --both shows both.")
    return [*others, *shown], notes


def budgets(cells: Sequence[Cell], paper: bool = True) -> Table:
    ours = sorted({cell.head for cell in cells if _OURS.fullmatch(cell.head)})
    blocks = {
        "Single vocabulary": ("tfa", *(f"tfa-c{n}" for n in _BUDGETS), "tfa-fullq"),
        "Dual vocabulary": ("dual", *(f"dual-c{n}" for n in _BUDGETS), "dual-crossfit", "dual-fullq"),
        "Ours, beyond the paper": tuple(ours),
        DEFAULT: ("second-order", *(f"second-order-c{n}" for n in _BUDGETS), "second-order-online"),
        JUDGED: ("judged", *(f"judged-c{n}" for n in _BUDGETS), "judged-online", "judged-online-shuffled"),
    }
    sheet = ByHead(
        name="budgets",
        title="Calibration budgets, R@1 (%)",
        blocks=blocks,
        paper=("native", "primary", "full-query", "ground-backbones", "aerial", "aerial-access"),
        paper_rows=True,
        unranked=tuple(blocks),
        notes=("Budgets are not ranked.",),
    )
    return by_head(sheet, Lookup(_of_heads(cells, blocks.values())), paper=paper)


def ablation(cells: Sequence[Cell], paper: bool = True) -> Table:
    blocks = {
        title: (head, *(f"{head}-{name}" for name in _ABLATIONS))
        for title, head in {"Database only": "tfa", "All queries calibrate": "tfa-fullq"}.items()
    } | {
        title: (head, *(f"{head}-{name}" for name in _JUDGE_ABLATIONS))
        for title, head in {"Judged, database only": "judged", "Judged, 64 target photos": "judged-c64"}.items()
    }
    changed = {cell.dataset for cell in _of_heads(cells, [block[1:] for block in blocks.values()])}
    sheet = ByHead(name="ablation", title="Ablations, R@1 (%)", blocks=blocks, paper=_MATCHED)
    kept = [cell for cell in _of_heads(cells, blocks.values()) if cell.dataset in changed]
    return by_head(sheet, Lookup(kept), paper=paper)


def all_heads(cells: Sequence[Cell], paper: bool = True) -> Table:
    """Build the table of every head: R@1 to R@20 of one dataset, or R@1 of several."""
    present = sorted({cell.head for cell in cells}, key=_natural)
    trained = Lookup(cells).trained
    kinds = {head: _SUPERVISED if head in trained else _kind(head) for head in present}
    blocks = {kind: tuple(head for head in present if kinds[head] == kind) for kind in KINDS}
    one = len({cell.dataset for cell in cells}) == 1
    title = "Heads, R@1/5/10/20 (%)" if one else "Heads, R@1 (%)"
    ks = DEEP if one else (1,)
    sheet = ByHead(name="heads", title=title, blocks=blocks, ks=ks, paper=_MATCHED, unranked=(_SUPERVISED,))
    return by_head(sheet, Lookup(cells), paper=paper)


def _kind(head: str) -> str:
    """Return a head's block in the table of all heads."""
    name, _, rest = head.partition("-")
    if _OURS.fullmatch(head):
        return "Ours, beyond the paper"
    if name in ("hard", "soft", "fullq"):
        return "Spectral controls"
    if name == "second":
        return DEFAULT if head.startswith("second-order") else SECOND_ORDER
    if name == "judged":
        return "Ablations" if rest.removeprefix("c64-") in _JUDGE_ABLATIONS else JUDGED
    if name == "tfa":
        return "Ablations" if re.sub(r"^(fullq|c\d+)-", "", rest) in _ABLATIONS else "TFA"
    return "TFA, dual vocabulary" if name == "dual" else "Peers"


_MATCHED = tuple(name for name in PAPER_TABLES if name != "spectral")


def _is_aerial(cell: Cell) -> bool:
    return cell.group == _AERIAL or cell.paper_row in _rows_of("aerial") or bool(_SCENE.fullmatch(cell.dataset))


def _rows_of(table: str) -> set[str]:
    return {row.row for row in paper_table(table).rows}


def _of_heads(cells: Sequence[Cell], blocks: Iterable[Sequence[str]]) -> list[Cell]:
    wanted = {head for block in blocks for head in block}
    return [cell for cell in cells if cell.head in wanted]


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts `tfa-c8` before `tfa-c16`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
