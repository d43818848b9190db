"""JSON Schemas of what commands print, made from the types of their results: `python docs/site/make_schemas.py`.

Fields, types, bounds and descriptions come from the dataclasses. A field in `OMITTED` may be absent and is never null.
"""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tfa import types as values
from tfa.core.plain import Value, hints
from tfa.evaluate.map_evaluation import EvaluationResult
from tfa.report.collect import MapReport
from tfa_bench.cli import results

FOLDER = Path(__file__).parents[1] / "schemas"
ENDING = ".schema.json"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

# What each command prints with --json.
PRINTED: dict[str, Any] = {
    "add": values.EditResult,
    "bench-check": results.CheckResult,
    "bench-datasets": results.DatasetEntry | list[results.DatasetEntry],
    "bench-heads": results.HeadsResult,
    "bench-run": results.RunResult,
    "bench-score": list[results.ScoreEntry],
    "build": values.BuildResult | values.StoreBuildResult,
    "cache": values.CacheInfo,
    "calibrate": values.CalibrationResult | values.ActiveCalibration,
    "config": values.ConfigInfo,
    "encoders": list[values.CatalogEncoder | values.PluginEncoder],
    "encoders-try": values.EncoderTrial,
    "evaluate": EvaluationResult,
    "explain": values.ExplainResult,
    "frames": values.FramesResult,
    "info": values.MapInfo,
    "loops": values.LoopsResult,
    "merge": values.MergeResult,
    "prune": values.PruneResult,
    "query": values.Answers,
    "refit": values.MapInfo,
    "relocate": values.RelocateResult,
    "remove": values.EditResult,
    "report": MapReport,
    "rollback": values.RollbackResult,
    "snapshot": values.SnapshotResult,
    "speed": values.SpeedResult,
    "tiles": values.TilesResult,
}


def make_schema(name: str, printed: Any) -> dict[str, Any]:
    """Return the schema of what `tfa NAME --json` prints."""
    made = TypeAdapter(printed).json_schema(mode="serialization")
    classes = {cls.__name__: cls for cls in collect_classes(printed)}
    definitions = made.pop("$defs", {})
    for title, schema in (*definitions.items(), *([(made["title"], made)] if "properties" in made else [])):
        restrict(schema, classes[title])
    made = {"$schema": DIALECT, **made, "title": f"tfa {name.replace('-', ' ', 1)} --json"}
    return made | ({"$defs": definitions} if definitions else {})


def collect_classes(hint: Any) -> set[type[Value]]:
    """Return the dataclasses that a type is made of."""
    if isinstance(hint, type) and issubclass(hint, Value):
        inner = [collect_classes(one) for one in hints(hint).values()]
        return {hint}.union(*inner)
    return set().union(*(collect_classes(one) for one in typing.get_args(hint)))


def restrict(schema: dict[str, Any], cls: type[Value]) -> None:
    """Say what pydantic does not know: which fields may be absent, and that there are no others."""
    schema["required"] = [name for name in hints(cls) if name not in cls.OMITTED]
    schema["additionalProperties"] = False
    for name, field in schema["properties"].items():
        for word in ("title", "default"):
            field.pop(word, None)
        if name in cls.OMITTED and "anyOf" in field:
            kinds = [one for one in field.pop("anyOf") if one != {"type": "null"}]
            field |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    if cls is values.Position:
        schema["oneOf"] = [{"required": list(pair)} for pair in values.POSITION_KINDS]


def write_schemas() -> dict[str, str]:
    """Return the texts of all schema files; commands that print the same refer to the first of them."""
    texts: dict[str, str] = {}
    first: dict[Any, str] = {}
    for name, printed in PRINTED.items():
        schema = make_schema(name, printed)
        if first.setdefault(printed, name) != name:
            schema = {"$schema": DIALECT, "title": schema["title"], "$ref": f"{first[printed]}{ENDING}"}
        texts[name] = json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
    return texts


def main() -> None:
    """Write all schemas."""
    for name, text in write_schemas().items():
        (FOLDER / f"{name}{ENDING}").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
