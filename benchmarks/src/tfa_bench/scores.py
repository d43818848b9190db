"""Score records without a model, images or torch.

Recall is averaged over the queries of a split (with conditions: over the queries of each, then over conditions), then
over replicas, then over splits. The deviation is over splits.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tfa.encoders.catalogue import use_current_name
from tfa.errors import BadSpec
from tfa.evaluate.metrics import Interval, Paired, interval, paired_difference, precision_recall
from tfa.method.carriers import CARRIER_WORDS
from tfa.report.html import ReportTable, TableRow
from tfa_bench.measures import average_precision, first_right, mean_and_deviation, nan_mean
from tfa_bench.provenance import mixed_revisions
from tfa_bench.records import BadRecord, Record, RecordPath, Truth, decode_facts, find_records, truth_of

UNANSWERABLE = {"miss": "queries without positives count as misses", "skip": "queries without positives left out"}


@dataclass(frozen=True)
class Estimate:
    """Mean and sample deviation over the splits."""

    mean: float
    sd: float

    def to_dict(self) -> dict[str, float]:
        return {"mean": self.mean, "sd": self.sd}


@dataclass(frozen=True)
class Acceptance:
    """Precision against recall if answers are accepted by confidence, over all queries."""

    area: Estimate
    recall_at_99: Estimate
    recall_at_100: Estimate
    curve: Mapping[str, list[float]]  # precision, recall and answered of the first split and replica

    def to_dict(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name).to_dict() for name in ("area", "recall_at_99", "recall_at_100")}
        return {**numbers, "curve": dict(self.curve)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Scored:
    """Scores of one record. `per_query`, `strata` and `first_replica` are not in JSON; comparisons use them."""

    dataset: str
    dataset_title: str
    truth: str  # fingerprint
    database: int  # images
    queries: int
    encoder: str
    head: str
    title: str
    sees: str
    note: str
    plan: str
    seeds: tuple[int | None, ...]
    replicas: tuple[str, ...]
    depth: int
    ks: tuple[int, ...]
    unanswerable: str  # "miss" | "skip"
    evaluated: int  # queries that count in at least one split
    without_positives: int  # number of evaluated queries
    recalls: Mapping[int, Estimate]  # k → recall
    splits: tuple[tuple[float, ...], ...]  # recall at each k, per split
    conditions: Mapping[str, Mapping[int, Estimate]]
    interval: Interval  # R@1 over queries
    mean_average_precision: Estimate | None
    refused: str | None  # why there is no mean average precision
    acceptance: Acceptance
    decisions: tuple[tuple[Mapping[str, Any], ...], ...]  # per split and fold
    timings: Mapping[str, float]
    algorithm: Mapping[str, int]  # stage → revision; {} if none was recorded
    confidence_kinds: tuple[str, ...]  # "z-score", "probability" or both
    per_query: np.ndarray  # hit at 1 averaged over replicas and splits; nan if never evaluated
    strata: tuple[np.ndarray, ...]  # queries of each condition
    first_replica: Mapping[int, Estimate]  # k → recall of the first replica only
    other_side: Estimate | None = None  # R@1 with decisions flipped that rest on less than one photo; None without one

    def to_dict(self) -> dict[str, Any]:
        plain = (
            "dataset", "dataset_title", "truth", "database", "queries", "encoder", "head", "title", "sees", "note",
            "plan", "depth", "evaluated", "without_positives",
        )  # fmt: skip
        precision = self.mean_average_precision
        return {
            **{name: getattr(self, name) for name in plain},
            "seeds": list(self.seeds),
            "ks": list(self.ks),
            "replicas": list(self.replicas),
            "unanswerable": UNANSWERABLE[self.unanswerable],
            "recalls": _by_k(self.recalls),
            # JSON has no nan: the value of a split without counted queries
            "splits": [[None if np.isnan(recall) else recall for recall in recalls] for recalls in self.splits],
            "conditions": {name: _by_k(recalls) for name, recalls in self.conditions.items()},
            "interval": self.interval.to_dict(),
            "mean_average_precision": None if precision is None else precision.to_dict(),
            "refused": self.refused,
            "acceptance": self.acceptance.to_dict(),
            "decisions": [[dict(fold) for fold in folds] for folds in self.decisions],
            "timings": dict(self.timings),
            "algorithm": dict(self.algorithm),
            "confidence_kinds": list(self.confidence_kinds),
            "other_side": None if self.other_side is None else self.other_side.to_dict(),
        }


def _by_k(recalls: Mapping[int, Estimate]) -> dict[str, dict[str, float]]:
    return {str(k): recall.to_dict() for k, recall in recalls.items()}


__all__ = [
    "KS", "UNANSWERABLE", "Acceptance", "Estimate", "Scored", "check_revisions", "evaluate_like", "paired", "score",
    "score_folder", "select_replica",
]  # fmt: skip

KS = (1, 5, 10, 20)
_HIT, _AVERAGE_PRECISION = "hit", "average precision"  # per-query measures besides recall at each k


def score(
    record: Record,
    truth: Truth,
    *,
    ks: Sequence[int] = KS,
    unanswerable: str = "miss",
    precision_depth: int | None = None,
) -> Scored:
    """Score the rankings of a record against the positives of its dataset.

    Average precision uses the first `precision_depth` places [default: all recorded]. Records of different depth are
    comparable only at the smaller one.
    """
    ks = tuple(dict.fromkeys(int(k) for k in ks))
    _check_settings(record, ks, unanswerable)
    fingerprint = _check_truth(record, truth)
    places = min(precision_depth or record.depth, record.depth)
    values = _values(record, truth, ks, unanswerable, places)
    hits = values[_HIT]
    evaluated = ~np.isnan(hits).all(axis=(1, 2))
    if not evaluated.any():
        raise BadRecord(
            f"{_where(record)}: no evaluated query has positives; count such queries as misses instead of skipping them"
        )
    strata = tuple(truth.conditions.values())
    groups = strata or (np.arange(len(hits)),)
    # Per measure: (groups, splits, replicas).
    means = {name: np.stack([nan_mean(own[group]) for group in groups]) for name, own in values.items()}
    by_split = {name: nan_mean(nan_mean(own), axis=1) for name, own in means.items()}
    by_condition = {
        condition: {name: nan_mean(own[number], axis=1) for name, own in means.items()}
        for number, condition in enumerate(truth.conditions)
    }
    per_query = nan_mean(hits, axis=(1, 2))
    refused = _refusal(record, truth, places)
    return Scored(
        **_described(record),
        truth=fingerprint,
        ks=ks,
        unanswerable=unanswerable,
        evaluated=int(evaluated.sum()),
        without_positives=sum(not len(truth.positives[query]) for query in _ever_evaluated(record)),
        recalls=_recalls(by_split, ks),
        splits=tuple(zip(*(by_split[recall_name(k)].tolist() for k in ks), strict=True)),
        # A condition without evaluated queries has no recall.
        conditions={name: _recalls(own, ks) for name, own in by_condition.items() if not np.isnan(own[_HIT]).all()},
        interval=interval(per_query, strata),
        mean_average_precision=_estimate(by_split[_AVERAGE_PRECISION]) if refused is None else None,
        refused=refused,
        acceptance=_acceptance(hits, record.confidence),
        per_query=per_query,
        strata=strata,
        first_replica=_recalls({name: nan_mean(own)[:, 0] for name, own in means.items()}, ks),
        other_side=_other_side(record, truth, unanswerable),
    )


def select_replica(record: Record, name: str) -> Record:
    """Return a record with one replica; a record with a single replica is returned as it is."""
    if len(record.replicas) == 1:
        return record
    if name not in record.replicas:
        raise BadSpec(f"{_where(record)} has no replica {name!r}; use one of {', '.join(record.replicas)}")
    place = [record.replicas.index(name)]
    return replace(
        record,
        replicas=(name,),
        folds=_without_other_side(record),
        rankings=record.rankings[:, :, place],
        confidence=record.confidence[:, :, place],
    )


def evaluate_like(record: Record, other: Record) -> Record:
    """Return a record of one split as if evaluated on the queries of another record, split by split."""
    if len(record.folds) != 1:
        raise BadSpec(f"{_where(record)} has {len(record.folds)} splits; only a record of one split can be paired")
    shape = (*other.rankings.shape[:2], *record.rankings.shape[2:])
    fold = _without_other_side(record)[0][0]
    return replace(
        record,
        seeds=other.seeds,
        folds=tuple(({**fold, "evaluated": other.evaluated(split)},) for split in range(len(other.folds))),
        rankings=np.broadcast_to(record.rankings, shape),
        confidence=np.broadcast_to(record.confidence, shape[:3]),
    )


def _other_side(record: Record, truth: Truth, unanswerable: str) -> Estimate | None:
    """Return R@1 with the first answers of the other side in each fold that has one."""
    rankings, close = record.rankings[:, :, :, :1].copy(), False
    for split, folds in enumerate(record.folds):
        for fold in folds:
            if other := fold["decisions"].get("other_side"):
                rankings[fold["evaluated"], split, :, 0], close = other["first"], True
    if not close:
        return None
    flipped = replace(record, rankings=rankings, folds=_without_other_side(record))
    return score(flipped, truth, ks=(1,), unanswerable=unanswerable).recalls[1]


def _without_other_side(record: Record) -> tuple[tuple[Mapping[str, Any], ...], ...]:
    """Return the folds without the answers of the other side, which fit the record's replicas and queries only."""

    def bare(fold: Mapping[str, Any]) -> Mapping[str, Any]:
        decisions = {key: value for key, value in fold["decisions"].items() if key != "other_side"}
        return {**fold, "decisions": decisions}

    return tuple(tuple(map(bare, folds)) for folds in record.folds)


def paired(one: Scored, other: Scored) -> Paired:
    """Return the difference in R@1, `one` minus `other`, over queries that both were evaluated on."""
    check_revisions([one, other])
    if one.truth != other.truth:
        raise BadRecord(
            f"{one.head} on {one.dataset} and {other.head} on {other.dataset} were scored with different positives; "
            "compare heads of one dataset"
        )
    if one.unanswerable != other.unanswerable:
        raise BadSpec(f"unanswerable={one.unanswerable!r} and {other.unanswerable!r} differ; score both the same way")
    return paired_difference(one.per_query, other.per_query, one.strata)


def check_revisions(scored: Sequence[Scored]) -> None:
    """Reject records of two revisions of the algorithm: their numbers are not comparable."""
    mixed = mixed_revisions(one.algorithm for one in scored)
    if mixed:
        stages = "; ".join(f"{stage} {' and '.join(own)}" for stage, own in mixed.items())
        raise BadRecord(
            f"the records have different revisions of the algorithm ({stages}) and cannot be compared. Rerun the old "
            "ones with tfa bench run, or choose a folder with records of one revision"
        )


def score_folder(
    results: Path,
    *,
    ks: Sequence[int] = KS,
    unanswerable: str = "miss",
    datasets: Collection[str] | None = None,
    heads: Collection[str] | None = None,
    encoder: str | None = None,
    replica: str | None = None,
) -> list[Scored]:
    """Score all or the named records below a folder, of all replicas or one, sorted by dataset, encoder and head."""
    given = {"dataset": datasets, "head": heads, "encoder": None if encoder is None else [encoder]}
    filters_by_kind = {kind: names for kind, names in given.items() if names}
    paths = find_records(results)
    if not paths:
        raise BadRecord(f"{results} holds no records; write them with: tfa bench run --out {results}")
    if filters_by_kind:
        paths = _chosen(paths, filters_by_kind)
    truths: dict[Path, Truth] = {}
    scored = []
    for path in paths:
        folder = path.dataset_folder
        record = Record.read(path)
        if replica is not None:
            record = select_replica(record, replica)
        if folder not in truths:
            truths[folder] = truth_of(path)
        scored.append(score(record, truths[folder], ks=ks, unanswerable=unanswerable))
    return sorted(scored, key=lambda one: (one.dataset, one.encoder, one.head))


def recall_name(k: int) -> str:
    """Return the name of the measure recall at k."""
    return f"recall@{k}"


def _values(record: Record, truth: Truth, ks: Sequence[int], unanswerable: str, places: int) -> dict[str, np.ndarray]:
    """Return each measure of every query `(q, splits, replicas)` by name; nan if a query does not count."""
    names = (_HIT, *map(recall_name, ks), _AVERAGE_PRECISION)
    values = {name: np.full(record.rankings.shape[:3], np.nan) for name in names}
    answerable = np.array([len(right) > 0 for right in truth.positives])
    for split in range(len(record.folds)):
        own = record.evaluated(split)
        if unanswerable == "skip":
            own = own[answerable[own]]
        ranked, right = record.rankings[own, split], [truth.positives[query] for query in own]
        first = first_right(ranked, right)
        values[_HIT][own, split] = first < 1
        for k in ks:
            values[recall_name(k)][own, split] = first < k
        values[_AVERAGE_PRECISION][own, split] = average_precision(ranked[..., :places], right, record.nothing)
    return values


def _acceptance(hits: np.ndarray, confidence: np.ndarray) -> Acceptance:
    """Compute acceptance from hits at 1 and confidences `(q, splits, replicas)`, with thresholds per replica and
    split.
    """
    _, splits, replicas = hits.shape
    numbers = np.full((splits, replicas, 3), np.nan)
    drawn: dict[str, list[float]] = {}
    for split, replica in np.ndindex(splits, replicas):
        known = ~np.isnan(hits[:, split, replica])
        if not known.any():
            continue
        curve = precision_recall(hits[known, split, replica] == 1, confidence[known, split, replica])
        numbers[split, replica] = curve.area, curve.recall_at_precision(0.99), curve.recall_at_precision(1.0)
        drawn = drawn or curve.drawn()
    area, at_99, at_100 = (_estimate(column) for column in nan_mean(numbers, axis=1).T)
    return Acceptance(area, at_99, at_100, drawn)


def _recalls(by_split: Mapping[str, np.ndarray], ks: Sequence[int]) -> dict[int, Estimate]:
    return {k: _estimate(by_split[recall_name(k)]) for k in ks}


def _estimate(by_split: np.ndarray) -> Estimate:
    mean, sd = mean_and_deviation(by_split)
    return Estimate(float(mean), float(sd))


# Titles and notes in records of the last release → their current spelling. Remove with the next release.
_RESPELLED = {  # words in older records → words of today
    "centred": "centered",
    "centring": "centering",
    "centres": "centers",
    "normalised": "normalized",
    "database alone": "database only",
    "plain and partly whitened scores blended": CARRIER_WORDS["blend"],
    "plain scores tempered by whitened ones": CARRIER_WORDS["tempered"],
}


def _respell(text: str) -> str:
    for old, new in _RESPELLED.items():
        text = text.replace(old, new)
    return text


def _note_missing(record: Record) -> str:
    """Return the note of dual heads in records of the last release, which lack it."""
    if record.name.partition("-")[0] != "dual":
        return ""
    from tfa_bench.heads.tfa_heads import retriever_card

    card = retriever_card(record.name)
    return "" if card is None else card.note


def _described(record: Record) -> dict[str, Any]:
    return {
        "dataset": record.dataset["name"],
        "dataset_title": record.dataset["title"],
        "database": record.dataset["database"],
        "queries": record.dataset["queries"],
        "encoder": record.encoder["id"],
        "head": record.name,
        "title": _respell(record.head["title"]),
        "sees": record.head["data_used"],
        "note": _respell(record.head.get("note") or _note_missing(record)),
        "plan": record.plan["name"],
        "seeds": record.seeds,
        "replicas": record.replicas,
        "depth": record.depth,
        "decisions": tuple(tuple(_fold_facts(fold) for fold in folds) for folds in record.folds),
        "timings": record.timings,
        "algorithm": record.algorithm,
        "confidence_kinds": record.confidence_kinds,
    }


def _fold_facts(fold: Mapping[str, Any]) -> dict[str, Any]:
    counts = {key: len(fold[key]) for key in ("calibration", "evaluated")}
    decisions = dict(fold["decisions"])
    if "other_side" in decisions:  # without its answers
        decisions["other_side"] = {key: decisions["other_side"][key] for key in ("decision", "change", "choice")}
    return {"condition": fold["condition"], **counts, "decisions": decisions}


def _ever_evaluated(record: Record) -> np.ndarray:
    return np.unique(np.concatenate([record.evaluated(split) for split in range(len(record.folds))]))


def _refusal(record: Record, truth: Truth, places: int) -> str | None:
    most = max(len(truth.positives[query]) for query in _ever_evaluated(record))
    if most <= places:
        return None
    return f"a query has {most} positives but rankings have length {places}"


def _where(record: Record) -> str:
    return f"record of {record.name} on {record.dataset['name']}"


def _check_settings(record: Record, ks: Sequence[int], unanswerable: str) -> None:
    if unanswerable not in UNANSWERABLE:
        raise BadSpec(f"unanswerable={unanswerable!r} is unknown; use {' or '.join(map(repr, UNANSWERABLE))}")
    if not ks or min(ks) < 1:
        raise BadSpec(f"ks={list(ks)} is out of range: at least one k is needed, each at least 1")
    if record.depth < min(max(ks), record.dataset["database"]):  # a ranking of all images may be shorter than k
        raise BadSpec(
            f"{_where(record)}: rankings have length {record.depth}, too short for recall at {max(ks)}; "
            f"use k up to {record.depth}, or rerun the head with a larger --depth"
        )


def _check_truth(record: Record, truth: Truth) -> str:
    """Return the fingerprint of the ground truth after checking that it is the record's."""
    fingerprint = truth.fingerprint
    if record.dataset["fingerprint"] != fingerprint:
        raise BadRecord(
            f"{_where(record)} was written for other images or positives (fingerprint "
            f"{record.dataset['fingerprint'][:12]}, dataset.json has {fingerprint[:12]}). Restore the "
            "dataset.json it was written with, or rerun the head"
        )
    expected = (len(truth.queries), len(record.folds), len(record.replicas))
    if record.rankings.shape[:3] != expected or record.confidence.shape != expected:
        raise BadRecord(
            f"{_where(record)} holds rankings {record.rankings.shape} and confidences "
            f"{record.confidence.shape}, expected {expected} (queries, splits, replicas); rerun the head"
        )
    return fingerprint


def _chosen(paths: Sequence[RecordPath], filters_by_kind: Mapping[str, Collection[str]]) -> list[RecordPath]:
    """Return the records of the named datasets, heads and encoders; a name without a record is an error."""
    names = {path: _names(path) for path in paths}
    for kind, given in filters_by_kind.items():
        there = sorted({of[kind] for of in names.values()})
        for name in given:
            if name not in there:
                near = difflib.get_close_matches(name, there, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise BadRecord(f"no record of {kind} {name!r}; recorded: {', '.join(there)}{hint}")
    chosen = [path for path, of in names.items() if all(of[kind] in given for kind, given in filters_by_kind.items())]
    if not chosen:
        filters = ", ".join(f"{kind} {' or '.join(given)}" for kind, given in filters_by_kind.items())
        raise BadRecord(f"no record matches all filters: {filters}")
    return chosen


def _names(path: RecordPath) -> dict[str, str]:
    """Read dataset, encoder and head of a record without its arrays."""
    try:
        values = decode_facts(path.read_bytes())
        return {
            "dataset": values["dataset"]["name"],
            "encoder": use_current_name(values["encoder"])["id"],
            "head": values["head"]["name"],
        }
    except (ValueError, KeyError, TypeError):
        raise BadRecord(f"{path} is not a complete record; remove it or rerun its head") from None


def row_of_scores(scored: Scored, numbers: Mapping[str, Estimate]) -> TableRow:
    """Return a table row of a head: numbers in percent, with their deviation if it has several splits."""
    splits = len(scored.seeds)
    protocol = scored.plan if splits == 1 else f"{scored.plan}, {splits} splits"
    percent = {name: (100 * v.mean, 100 * v.sd if splits > 1 else None) for name, v in numbers.items()}
    title = scored.title + (f" ({scored.note})" if scored.note else "")
    return TableRow(title, percent, {"protocol": protocol, "sees": scored.sees}, scored.head)


def table_of_scores(scored: Sequence[Scored], names: Sequence[str]) -> ReportTable:
    """Return recalls and acceptance of each record, under the given names."""
    rows = []
    for one, name in zip(scored, names, strict=True):
        accepted = {"PR area": one.acceptance.area, "R at 99 % P": one.acceptance.recall_at_99}
        recalls = {f"R@{k}": recall for k, recall in one.recalls.items()}
        rows.append(replace(row_of_scores(one, {**recalls, **accepted}), name=name))
    return ReportTable(rows)
