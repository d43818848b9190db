"""One config system: frozen keyword-only dataclasses, strict JSON, help text beside each field."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Any, Self

from tfa.errors import BadSpec


def described(default: Any, help: str, *, low: float | None = None, high: float | None = None) -> Any:
    """A dataclass field whose help and range the command line, the docs and the check below share."""
    return dataclasses.field(default=default, metadata={"help": help, "low": low, "high": high})


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Base of all specs: values are checked on construction, unknown keys are refused on reading."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            wanted = type(field.default)
            if wanted is float and type(value) is int:
                object.__setattr__(self, field.name, float(value))
            elif type(value) is not wanted:
                raise BadSpec(f"{field.name}={value!r} is {type(value).__name__}, must be {wanted.__name__}")
            low, high = field.metadata.get("low"), field.metadata.get("high")
            if (low is not None and value < low) or (high is not None and value > high):
                allowed = f"at least {low}" if high is None else f"between {low} and {high}"
                raise BadSpec(f"{field.name}={value!r} is out of range: must be {allowed}")

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise BadSpec(f"{cls.__name__} has no field {key!r}{hint} (fields: {', '.join(known)})")
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class HeadSpec(Spec):
    """What a head is fitted with. The defaults are the method's, with our declared choices."""

    words: int = described(64, "visual words K of each vocabulary", low=1)
    temperature: float = described(0.01, "softmax temperature τ of the soft assignment", low=1e-6)
    max_patches: int = described(300_000, "database patches the vocabularies are fitted on", low=1)
    max_rank: int = described(4096, "principal directions kept at most", low=1)
    max_pca: int = described(10_000, "largest database whose PCA uses every image", low=2)
    pca_sample: int = described(5000, "images the PCA is fitted on above max_pca", low=2)
    max_pseudo: int = described(5000, "database images used as pseudo queries at most", low=2)

    @classmethod
    def paper(cls) -> HeadSpec:
        """The paper's setting: it samples the PCA for Pitts250k (83,952 images) alone."""
        return cls(max_pca=30_000)


@dataclass(frozen=True, kw_only=True)
class CalibrationSpec(Spec):
    """How many photos a calibration is made of."""

    budget: int = described(64, "photos to use at most; of more, so many are drawn", low=2)
    fewest: int = described(2, "photos below which a calibration is refused", low=2)
    few: int = described(8, "photos below which a calibration decides little, and says so", low=2)
    score_from: int = described(16, "photos from which scores are calibrated too, unless the caller decides", low=2)


@dataclass(frozen=True, kw_only=True)
class VerifySpec(Spec):
    """How a map is verified (ours, beyond the paper)."""

    candidates: int = described(20, "images of the head's ranking that are verified", low=1)
    dimensions: int = described(128, "numbers kept of a patch, a byte each", low=1)
    max_patches: int = described(100_000, "database patches the compaction is fitted on", low=1)
    max_pseudo: int = described(256, "pseudo queries that decide whether verification is used", low=1)
