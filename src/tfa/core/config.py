"""One config system: frozen keyword-only dataclasses, strict JSON, help text beside each field."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from tfa.errors import BadSpec


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    kinds: tuple[type, ...] = (),
) -> Any:
    """A dataclass field whose help and range the command line, the docs and the check below share.

    `kinds` are its types, where there are more than that of the default.
    """
    metadata = {"help": help, "low": low, "high": high, "choices": choices, "kinds": kinds or (type(default),)}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Base of all specs: values are checked on construction, unknown keys are refused on reading."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            kinds, choices = field.metadata["kinds"], field.metadata["choices"]
            if kinds == (float,) and type(value) is int:
                object.__setattr__(self, field.name, float(value))
            elif type(value) not in kinds:
                wanted = " or ".join("nothing" if kind is type(None) else kind.__name__ for kind in kinds)
                raise BadSpec(f"{field.name}={value!r} is {type(value).__name__}, must be {wanted}")
            if value is None:
                continue
            if isinstance(value, str):
                if choices and value not in choices:
                    known = [*choices, *["a number"] * (int in kinds)]
                    raise BadSpec(f"{field.name}={value!r} is unknown; use {', '.join(known[:-1])} or {known[-1]}")
                continue
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

    words: int = option(64, "visual words K of each vocabulary", low=1)
    temperature: float = option(0.01, "softmax temperature τ of the soft assignment", low=1e-6)
    max_patches: int = option(300_000, "database patches the vocabularies are fitted on", low=1)
    max_rank: int = option(4096, "principal directions kept at most", low=1)
    max_pca: int = option(10_000, "largest database whose PCA uses every image", low=2)
    pca_sample: int = option(5000, "images the PCA is fitted on above max_pca", low=2)
    max_pseudo: int = option(5000, "database images used as pseudo queries at most", low=2)

    @classmethod
    def paper(cls) -> HeadSpec:
        """The paper's setting: it samples the PCA for Pitts250k (83,952 images) alone."""
        return cls(max_pca=30_000)


@dataclass(frozen=True, kw_only=True)
class CalibrationSpec(Spec):
    """How many photos a calibration is made of."""

    budget: int = option(64, "photos to use at most; of more, so many are drawn", low=2)
    fewest: int = option(2, "photos below which a calibration is refused", low=2)
    few: int = option(8, "photos below which a calibration decides little, and says so", low=2)
    score_from: int = option(16, "photos from which scores are calibrated too, unless the caller decides", low=2)


AUTO: Literal["auto"] = "auto"
Candidates = int | Literal["auto"]
ONLY_SURE: Literal["sure"] = "sure"
MinConfidence = float | Literal["sure"]  # below which no hit is given; "sure" asks for sure answers alone
_PATCHES = ("full", "small")


@dataclass(frozen=True, kw_only=True)
class RerankSpec(Spec):
    """How a map is verified (ours, beyond the paper)."""

    candidates: Candidates = option(  # noqa: RUF009  # a field, as the others are
        AUTO,
        "images of the head's ranking that are verified: a number, or auto, as many as pay: 10 to 100 for each photo",
        low=1, choices=(AUTO,), kinds=(int, str),
    )  # fmt: skip
    patches: str = option(
        "full",
        "full: a byte for each number kept of a patch, 67,712 bytes for 23 × 23 patches; small: two bits for each of "
        "at most 120 numbers, 15,870 bytes",
        choices=_PATCHES,
    )
    dimensions: int = option(128, "numbers kept of a patch at most", low=1)
    max_patches: int = option(100_000, "database patches the compaction is fitted on", low=1)
    max_pseudo: int = option(256, "pseudo queries that decide whether verification is used", low=1)


STORAGES = ("float16", "float32", "int7")
HEAD_KINDS = ("second-order", "paper")


@dataclass(frozen=True, kw_only=True)
class MapSpec(Spec):
    """Which head a map has, and what it keeps of it and of its photos."""

    head: str = option(
        "second-order",
        "second-order: the carrier decides how scores are whitened (ours); paper: the paper's",
        choices=HEAD_KINDS,
    )
    carrier: str = option(
        "tempered",
        "of a second-order head: original, partial, adaptive, blend, tempered or full",
        choices=("original", "partial", "adaptive", "blend", "tempered", "full"),
    )
    storage: str = option(
        "int7", "float16, float32, or int7: a quarter of float32 and the fastest to query (ours)", choices=STORAGES
    )
    ensemble: bool = option(False, "keep all three replicas: three times the size, steadier answers")
    rerank: bool | RerankSpec = option(  # noqa: RUF009  # a field, as the others are
        True, "keep what verifying answers needs, and decide whether it is used (ours)", kinds=(bool, RerankSpec)
    )
    dims: int | None = option(
        None,
        "numbers of an image that are searched, a byte each; the best 100 are scored again with all of them (ours). "
        "None: all numbers are searched",
        low=2, kinds=(int, type(None)),
    )  # fmt: skip

    @property
    def verification(self) -> RerankSpec | None:
        """How answers are verified; None if nothing is kept for it."""
        return self.rerank if isinstance(self.rerank, RerankSpec) else RerankSpec() if self.rerank else None


@dataclass(frozen=True, kw_only=True)
class EncoderOptions:
    """How photos are read and encoded, and where fitting computes. Answers do not depend on it, except for `fast`."""

    weights: str | Path | None = None  # a file to use instead of the encoder's own source
    device: str = "cpu"
    threads: int | None = None  # CPU threads of the encoder; as many as there are cores if None
    fast: bool = False  # encode in 8-bit integers, on the CPU only
    batch_size: int = 8  # photos encoded at a time
    skip_bad: bool = False  # leave out and list photos that cannot be read, rather than stop
    cache: Any = None  # a `photos.TokenCache` for tokens; the user's own if None
