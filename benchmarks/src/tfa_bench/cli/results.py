"""JSON output types of the `tfa bench` commands."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from tfa.core.plain import Value, opt, req
from tfa.evaluate.metrics import AcceptanceCurve, Interval, Paired

_USED = "Most data the head was fitted on: nothing, the database, target photos, or labels."
_KINDS = "^(nothing|database|target|labels)$"


class CheckFinding(Value):
    """One problem of a dataset."""

    level: Literal["error", "warning", "note"] = req("How bad it is.")
    kind: Literal["missing", "layout", "count", "unreadable", "duplicate", "note"] = req("What is wrong.")
    text: str = req("The same in a sentence.")


class CheckResult(Value):
    """Whether a copy of a dataset is whole."""

    dataset: str = req("Name of the dataset.")
    folder: str = req("Folder that was checked.")
    whole: bool = req("True if there is no error.")
    findings: list[CheckFinding] = req("Problems.")


class DatasetCounts(Value):
    """Images that a protocol declares."""

    OMITTED: ClassVar = frozenset({"database", "queries", "conditions"})

    database: int | None = opt(None, "Database images.", ge=1)
    queries: int | None = opt(None, "Query images.", ge=1)
    conditions: dict[str, int] | None = opt(None, "Queries of each condition.")


class DatasetSpec(Value):
    """Settings of the head that a protocol sets."""

    OMITTED: ClassVar = frozenset(
        {"words", "temperature", "max_patches", "max_rank", "max_pca", "pca_sample", "max_pseudo"}
    )

    words: int | None = opt(None, "Visual words of each vocabulary.", ge=1)
    temperature: float | None = opt(None, "Softmax temperature of the soft assignment.", ge=0)
    max_patches: int | None = opt(None, "Database patches the vocabularies are fitted on.", ge=1)
    max_rank: int | None = opt(None, "Maximum number of principal directions.", ge=1)
    max_pca: int | None = opt(None, "Largest database whose PCA uses every image.", ge=2)
    pca_sample: int | None = opt(None, "Images the PCA is fitted on above max_pca.", ge=2)
    max_pseudo: int | None = opt(None, "Maximum number of database images used as pseudo queries.", ge=2)


class DatasetEntry(Value):
    """A dataset under one protocol."""

    name: str = req("Name on the command line.")
    title: str = req("Name in tables.")
    layout: str = req("Reader of its files.")
    positives: str = req("What makes a positive.")
    group: Literal["Urban / ground", "Condition shift", "Driving", "Indoor", "Aerial / cross-view", "Other"] = req(
        "Heading of the paper's tables."
    )
    citation: str = req("Citation.")
    licence: str = req("License.")
    get: str = req("Who owns it and how it is obtained.")
    options: dict[str, Any] = req("Options of the reader.")
    counts: DatasetCounts = req("Images, as far as the protocol declares them.")
    paper_row: str = req("Row of the paper's tables; empty if it has none.")
    note: str = req("Note; may be empty.")
    public: bool = req("Whether the protocol is public.")
    spec: DatasetSpec = req("Settings of the head that the protocol sets.")
    conditions_specific: bool = req("Whether each condition is calibrated on its own queries.")
    ordered: bool = req("Whether names sort database and queries in driving order.")


class HeadPlan(Value):
    """Which queries calibrate a head and which are evaluated."""

    OMITTED: ClassVar = frozenset({"n", "splits", "halves", "specific"})

    kind: Literal["none", "budget", "full", "cross-fit", "online"] = req("Kind of protocol.")
    name: str = req("Name for display.")
    n: int | None = opt(None, "Calibration queries of a budget.", ge=1)
    splits: int | None = opt(None, "Splits of a budget.", ge=1)
    halves: str | None = opt(None, "Halves of cross-fitting.")
    specific: bool | None = opt(None, "Whether each condition is calibrated on its own queries.")


class HeadEntry(Value):
    """A head that a run can take."""

    name: str = req("Name for --heads.")
    title: str = req("Name in tables.")
    sees: str = req(_USED, pattern=_KINDS)
    plan: HeadPlan = req("Its protocol.")
    settings: dict[str, Any] = req("Settings it is made with.")
    note: str = req("Note; may be empty.")


class FileHeadEntry(Value):
    """A head that needs a file."""

    name: str = req("Name for --heads.")
    title: str = req("Name in tables.")
    sees: str = req(_USED, pattern=_KINDS)
    needs: str = req("Option that names the file.")
    why: str = req("Why it needs the file.")


class HeadsResult(Value):
    """The heads that a run can take."""

    heads: list[HeadEntry] = req("Heads that run without a file.")
    need_files: list[FileHeadEntry] = req("Heads that need a file.")
    groups: dict[str, list[str]] = req("Groups and their heads.")


class ScoreEstimate(Value):
    """Mean and sample deviation over the splits."""

    mean: float = req("Mean.")
    sd: float = req("Sample standard deviation.", ge=0)


class ScoreAcceptance(Value):
    """Precision against recall if best answers are accepted by their confidence."""

    area: ScoreEstimate = req("Area under precision against recall.")
    recall_at_99: ScoreEstimate = req("Recall at 99 % precision.")
    recall_at_100: ScoreEstimate = req("Recall at 100 % precision.")
    curve: AcceptanceCurve = req("Curve of the first split and replica.")


class ScoreFold(Value):
    """What a fitted head decided."""

    condition: str | None = req("Condition; null without conditions.")
    calibration: int = req("Queries it was calibrated with.", ge=0)
    evaluated: int = req("Queries it was evaluated on.", ge=0)
    decisions: dict[str, Any] = req("What was decided.")


class ScoreDifference(Paired):
    """Difference of R@1 from another head."""

    head: str = req("The other head.")


class ScoreEntry(Value):
    """The scores of one record."""

    OMITTED: ClassVar = frozenset({"against"})

    dataset: str = req("Name of the dataset.")
    dataset_title: str = req("Title of the dataset.")
    truth: str = req("Fingerprint of the ground truth.")
    database: int = req("Database images.", ge=0)
    queries: int = req("Query images.", ge=0)
    encoder: str = req("Name of the encoder.")
    head: str = req("Name of the head.")
    title: str = req("Title of the head.")
    sees: str = req(_USED, pattern=_KINDS)
    note: str = req("Note on the head.")
    plan: str = req("Protocol of the head.")
    depth: int = req("Length of the rankings.", ge=1)
    evaluated: int = req("Queries that count in at least one split.", ge=0)
    without_positives: int = req("Evaluated queries without positives.", ge=0)
    seeds: list[int | None] = req("Seed of each split.")
    ks: list[int] = req("Values of k.")
    replicas: list[str] = req("Names of the replicas.")
    unanswerable: Literal["queries without positives count as misses", "queries without positives left out"] = req(
        "Rule for queries without positives."
    )
    recalls: dict[str, ScoreEstimate] = req("Recall by k.")
    splits: list[list[float | None]] = req("Recall at each k for each split; null if none of its queries counts.")
    conditions: dict[str, dict[str, ScoreEstimate]] = req("Recall by condition and k.")
    interval: Interval = req("95 % interval of R@1 over queries; a query of several splits counts once.")
    mean_average_precision: ScoreEstimate | None = req("Null if a query has more positives than the rankings hold.")
    refused: str | None = req("Why there is no mean average precision.")
    acceptance: ScoreAcceptance = req("Precision against recall.")
    decisions: list[list[ScoreFold]] = req("Decisions of each fitted head, for each split.")
    timings: dict[str, float] = req("Seconds, as recorded.")
    algorithm: dict[str, int] = req("Revision of each stage of the method; empty if none was recorded.")
    confidence_kinds: list[Literal["z-score", "probability"]] = req("What confidence is.")
    other_side: ScoreEstimate | None = opt(None, "R@1 with the decisions flipped that rest on less than one photo.")
    against: ScoreDifference | None = opt(None, "Difference from another head, with --against.")


class RunEntry(Value):
    """A head that ran on a dataset."""

    dataset: str = req("Name of the dataset.")
    head: str = req("Name of the head.")
    outcome: str = req("What became of it.", pattern="^(written|kept|same|skipped)$")
    record: str | None = req("Archive and name of the record; null if it was skipped.")
    reason: str | None = req("Why it was skipped.")


class RunResult(Value):
    """What a run did and how it scores."""

    runs: list[RunEntry] = req("Runs in their order.")
    scores: list[ScoreEntry] = req("Scores of the records.")
