"""`tfa bench confidence`: what confidence and expected recall are worth, on datasets they were not fitted on.

The constants of `tfa.maps.confidence` are fitted anew with each dataset left out, then applied to it, in each of the
three ways of `confidence_samples`, verified and not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tfa.bench.run import Bench
from tfa.bench.studies.confidence_fit import fit_constants
from tfa.bench.studies.confidence_samples import WAYS, Looks, Sample, Samples, collect
from tfa.core.progress import Progress
from tfa.errors import BadSpec
from tfa.maps.confidence import UNVERIFIED_CONSTANTS, VERIFIED_CONSTANTS, Constants
from tfa.maps.expected_recall import estimate_recall
from tfa.method.described_queries import DescribedQueries

STRANGERS = 64  # photos of each of the two datasets given next, asked of a map that does not know them
IN_USE = {True: VERIFIED_CONSTANTS, False: UNVERIFIED_CONSTANTS}
KINDS = {"verified": True, "unverified": False}
COLUMNS = (
    "dataset", "way", "true R@1", "expected", "difference", "interval", "holds it", "sure", "of sure right",
    "outside sure", "outside expected",
)  # fmt: skip
LOOK_COLUMNS = ("dataset", "photos", "rows of 64", "common", "evidence", "noticed")


@dataclass(frozen=True)
class LeftOut:
    """One dataset asked in one way, by constants of the other datasets; in shares."""

    dataset: str
    way: str
    verified: bool
    recall: float
    expected: float
    low: float
    high: float
    sure: float
    sure_right: float | None  # None if nothing is sure
    outside_sure: float | None  # None without photos outside the map
    outside_expected: float | None

    @property
    def holds(self) -> bool:
        return self.low <= self.recall <= self.high


@dataclass(frozen=True)
class ConfidenceStudy:
    """Of all datasets together."""

    encoder: str
    rows: list[LeftOut]
    fitted: dict[bool, Constants]  # on all datasets, of verified answers and of others
    looks: dict[str, Mapping[str, Looks]]  # by dataset

    def summary(self, verified: bool) -> dict[str, float]:
        """How far expected and true R@1 lie apart, over datasets and ways."""
        rows = [row for row in self.rows if row.verified == verified]
        apart = np.array([row.expected - row.recall for row in rows])
        return {
            "mean_apart": float(np.abs(apart).mean()),
            "most_apart": float(np.abs(apart).max()),
            "root_mean_square": float(np.sqrt((apart**2).mean())),
            "intervals_that_hold": float(np.mean([row.holds for row in rows])),
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "encoder": self.encoder,
            "left_out": [{**asdict(row), "holds": row.holds} for row in self.rows],
            "summary": {name: self.summary(kind) for name, kind in KINDS.items()},
            "fitted": {name: asdict(self.fitted[kind]) for name, kind in KINDS.items()},
            "in_use": {name: asdict(IN_USE[kind]) for name, kind in KINDS.items()},
            "unlike": {name: {kind: asdict(one) for kind, one in looks.items()} for name, looks in self.looks.items()},
        }

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> ConfidenceStudy:
        """The inverse."""
        rows = [LeftOut(**{key: value for key, value in row.items() if key != "holds"}) for row in facts["left_out"]]
        fitted = {kind: Constants(**facts["fitted"][name]) for name, kind in KINDS.items()}
        looks: dict[str, Mapping[str, Looks]] = {
            name: {kind: Looks(**one) for kind, one in own.items()} for name, own in facts["unlike"].items()
        }
        return cls(facts["encoder"], rows, fitted, looks)


def study_confidence(benches: Sequence[Bench], device: str, progress: Progress) -> ConfidenceStudy:
    """Fit and judge on datasets left out in turn; photos outside a map are those of the two datasets given next."""
    if len(benches) < 2:
        raise BadSpec("confidence is fitted on datasets and judged on one left out; give --dataset at least twice")
    samples = {}
    for number, bench in enumerate(benches):
        following = [benches[(number + step) % len(benches)] for step in range(1, min(3, len(benches)))]
        strangers = [other.queries.tokens.select(_evenly(len(other.queries))) for other in following]
        queries = bench.queries.tokens
        assert isinstance(queries, DescribedQueries)
        samples[bench.truth.name] = collect(
            bench.database.tokens, queries, bench.truth.positives, strangers, bench.spec, device, progress
        )
    return studied(samples, benches[0].encoder.id)


def studied(samples: Mapping[str, Samples], encoder: str) -> ConfidenceStudy:
    """Every dataset by constants of the others."""
    rows = []
    for verified in (True, False):
        for name, one in samples.items():
            constants = _fitted([other for key, other in samples.items() if key != name], verified)
            for way in WAYS:
                if (way, verified) in one.own:
                    foreign = one.foreign.get((way, verified))
                    rows.append(left_out(name, way, verified, one.own[way, verified], foreign, constants))
    fitted = {verified: _fitted(list(samples.values()), verified) for verified in (True, False)}
    return ConfidenceStudy(encoder, rows, fitted, {name: one.looks for name, one in samples.items()})


def left_out(name: str, way: str, verified: bool, own: Sample, foreign: Sample | None, constants: Constants) -> LeftOut:
    """What these constants say of a dataset asked in one way; of several rounds the mean."""
    confidence = own.features.confidence(constants, constants)
    sure = own.features.sure(confidence)
    rounds = [estimate_recall(confidence[k], sure[k], verified=verified) for k in _rounds(own)]
    known = [one for one in rounds if one is not None]
    outside = None if foreign is None else foreign.features.confidence(constants, constants)
    return LeftOut(
        dataset=name,
        way=way,
        verified=verified,
        recall=float(np.mean([own.right[k].mean() for k in _rounds(own)])),
        expected=float(np.mean([one.share for one in known])),
        low=float(np.mean([one.low for one in known])),
        high=float(np.mean([one.high for one in known])),
        sure=float(sure.mean()),
        sure_right=float(own.right[sure].mean()) if sure.any() else None,
        outside_sure=None if foreign is None or outside is None else float(foreign.features.sure(outside).mean()),
        outside_expected=None if outside is None else float(outside.mean()),
    )


def _rounds(sample: Sample) -> list[np.ndarray]:
    return [sample.rounds == number for number in np.unique(sample.rounds)]


def _fitted(samples: Sequence[Samples], verified: bool) -> Constants:
    own, foreign = (
        [kind[way, verified] for kind in kinds for way in WAYS if (way, verified) in kind]
        for kinds in ([one.own for one in samples], [one.foreign for one in samples])
    )
    return fit_constants(own, foreign, IN_USE[verified].temperature)


def _evenly(count: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, STRANGERS)).round().astype(np.int64))


# --- tables --------------------------------------------------------------------------------------------------------


def table_rows(study: ConfidenceStudy, verified: bool) -> list[list[str]]:
    """A row for each dataset and way, in percent (`COLUMNS`)."""
    rows = []
    for row in study.rows:
        if row.verified == verified:
            apart = f"{100 * (row.expected - row.recall):+.1f}"
            interval = f"{100 * row.low:.0f}–{100 * row.high:.0f}"
            shares = [_percent(one) for one in (row.sure, row.sure_right, row.outside_sure, row.outside_expected)]
            true, expected = _percent(row.recall), _percent(row.expected)
            rows.append([row.dataset, row.way, true, expected, apart, interval, "yes" if row.holds else "no", *shares])
    return rows


def look_rows(study: ConfidenceStudy) -> list[list[str]]:
    """A row for each dataset and kind of photos (`LOOK_COLUMNS`): medians over rows of photos, and how many noticed."""
    rows = []
    for name, looks in study.looks.items():
        for kind, one in looks.items():
            noticed = f"{100 * np.mean(one.noticed):.0f} %"
            rows.append([name, kind, str(len(one.noticed)), _median(one.common), _median(one.evidence), noticed])
    return rows


def in_words(study: ConfidenceStudy, verified: bool) -> str:
    """How far apart expected and true R@1 are, and the constants of all datasets together."""
    facts, by = study.summary(verified), study.fitted[verified]
    return (
        f"{100 * facts['mean_apart']:.1f} points apart on average, {100 * facts['most_apart']:.1f} at most, root mean "
        f"square {100 * facts['root_mean_square']:.1f}; {100 * facts['intervals_that_hold']:.0f} % of intervals hold "
        f"the recall; fitted on all: offset {by.offset:.2f}, per place {by.per_place:.2f}, per agreement "
        f"{by.per_agreement:.2f}, per lead {by.per_lead:.2f} at T = {by.temperature}"
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{np.median(known):.2f}" if known else "–"
