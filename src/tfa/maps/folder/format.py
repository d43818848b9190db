"""Header of a map folder: its fields, their constraints, and how it is read.

docs/reference/map-format.md specifies the fields. Every field is checked: the digest detects damage, but not a header
that somebody edited and signed again.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

from tfa.core.files import OpenFolder, hash_file, hash_json, read_json
from tfa.core.plain import BadShape, Value, from_plain, opt, req
from tfa.core.text import format_command
from tfa.errors import BadMap
from tfa.maps.state import DATABASE, MapState
from tfa.method.carriers import MEAN
from tfa.method.decisions import (
    DatabaseEvidence,
    Decisions,
    SecondOrderDecisions,
    SecondOrderEvidence,
    SpectralStrengths,
    TargetDecisions,
    gather_sigmas,
)
from tfa.method.dual_vocabulary import DualDecisions, DualEvidence
from tfa.method.scorer import GLOBAL
from tfa.search.reduced import LEAST_DIMS
from tfa.types import EncoderInfo, ExpectedRecall, HeadKind, HeadSpec, RerankSpec, StorageType

# --- fields ---------------------------------------------------------------------------------------

FORMAT_VERSION = 2
OLD_HEAD_KIND: Literal["judged"] = "judged"  # older second-order maps whose head a judge chose
REDUCED_VERSION = 3  # version of maps with reduced rows, otherwise the same as version 2
CELLS_VERSION = 4  # version of maps whose patches are centered on their cell, with or without reduced rows
_COUNT: dict[str, Any] = {"ge": 0, "le": 10**9}
_GRID: dict[str, Any] = {"ge": 1, "le": 10**5}
_HEX = "[0-9a-f]{64}"
_Assignment = Literal["hard", "soft"]


class _TargetEvidence(Value, extras=True):
    target_images: int = req("Calibration photos.")
    candidates: dict[str, dict[str, float | tuple[float, ...]]] = req("Retrieval rules that were compared.")
    reasons: dict[str, str] = req("Why.")


class _Calibration(Value, extras=True):
    offered: int = req("Photos that were offered; `given` in JSON.", **_COUNT)
    used: int = req("Photos it was made of.", **_COUNT)
    budget: int = req("Most photos to use.", ge=0)
    score: bool = req("Whether scores are calibrated.")
    digests: list[str] = req("sha256 of each photo.", pattern=_HEX)
    revision: int = req("Revision of the map it came with.", ge=1)
    expected_recall: ExpectedRecall = opt(None, "Expected recall on such photos.")

    @classmethod
    def gather(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Rename the field."""
        return {"offered" if key == "given" else key: value for key, value in values.items()}


class _Admission(Value, extras=True):
    admitted: bool = req("Whether answers are reranked.")
    photos: int = req("Photos whose evidence was measured.", **_COUNT)
    reason: str = req("Why.")
    usual_evidence: float | None = opt(None, "Usual evidence of a right answer.")
    favours_candidates: float = opt(None, "Share of photos with more evidence among their candidates; older maps.")
    needed: float = opt(None, "Share that was needed; older maps.")


class _SpaceSide(Value):
    space: int = req("Second-order space.", ge=0, le=2)
    assignment: Literal["second_order"] = req("Representation.")


class _Geometry(Value):
    grand_mean: float = req("Mean similarity.")
    participation: float = req("Spectral width.", ge=0)


class _ResidualSide(Value):
    assignment: _Assignment = req("Representation.")
    temperature: float = req("Softmax temperature.", ge=1e-9)
    geometry: _Geometry | None = req("Spectrum of the descriptors; null if nothing is shaped.")


class _Term(Value):
    weight: float = req("Weight in the score.", ge=0)
    side: int = req("Side that it compares; -1 for global tokens.", ge=GLOBAL, le=5)
    gamma: float | Literal["mean"] | None = req("Spectral shaping.", ge=0, le=1)
    member: int = req("Construction, or branch of a dual head.", ge=0, le=5)
    shares_anchors: bool = req("Whether its first rows are the side's anchors.")
    same_as: int | None = req("Earlier term with the same rows.", ge=0)


class _Reduction(Value):
    dims: int = req("Search dimensions.", ge=LEAST_DIMS, le=10**6)
    mean_bias: float = req("Bias of the mean.")


class _Layout(Value):
    storage: StorageType = req("Storage of the rows.")
    sides: list[_SpaceSide | _ResidualSide] = req("Descriptors that are compared.", min_length=1, max_length=6)
    terms: list[_Term] = req("Terms of the score.", min_length=1, max_length=99)
    reduction: _Reduction = opt(None, "Reduced rows.")
    trimmed: float = opt(None, "Share of largest scores that a calibration ignores.", ge=0, le=1)


class _Head(Value):
    name: str = req("none, or the name of a calibration.", pattern="[A-Za-z0-9_-]+")
    saw: Literal["database", "target"] = req("Data the head was fitted on.")
    replica: Literal[0, "ensemble"] = req("Vocabulary that answers.")
    calibration: _Calibration | None = req("Photos of a calibration.")
    verification: _Admission | None = req("Whether answers are reranked.")
    decisions: SecondOrderDecisions | TargetDecisions | DualDecisions | Decisions = req("What was decided.")
    evidence: SecondOrderEvidence | _TargetEvidence | DualEvidence | DatabaseEvidence = req("Numbers behind it.")
    layout: _Layout = req("Arrays of the head.")


class _File(Value):
    name: str = req("Name of the file.", pattern=r"[A-Za-z0-9_-]+\.(safetensors|json)")
    role: Literal[
        "head", "gallery", "images", "vocabularies", "space", "coordinates", "compaction", "tokens"
    ] = req("What it holds.")  # fmt: skip
    head: str | None = req("Head it belongs to.")
    bytes: int = req("Its size.", ge=0)
    sha256: str = req("Its digest.", pattern=_HEX)
    crc32: int = opt(None, "Its fast checksum; missing in older maps.", ge=0)


class _Encoder(EncoderInfo):
    channels: int = req("Channels of a patch.", ge=1, le=10**6)
    global_channels: int | None = req("Channels of the global token.", ge=1, le=10**6)
    grid: tuple[int, int] = req("Rows and columns of patches.", **_GRID)  # type: ignore[assignment]


class _Space(Value):
    storage: StorageType = req("Storage of the coordinates.")
    count: int = req("Spaces.", ge=1, le=3)
    strengths: SpectralStrengths = req("Spectral statistics.")
    sigmas: dict[str, tuple[float, ...]] = opt({}, "Row spreads, by the names of `carriers.SIGMAS`.")

    @classmethod
    def gather(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Collect the spreads."""
        return gather_sigmas(values)


class _Photos(Value):
    root: str | None = req("Folder of the photos.")
    from_map: str | None = req("The same, as seen from the map.")


class _Patches(Value):
    spec: RerankSpec = req("How answers are reranked.")
    grid: tuple[int, int] = req("Rows and columns of patches.", **_GRID)
    cells: bool = opt(False, "Whether patches are centered on their cell.")


class _Header(Value):
    format: str = req("Format of the map.")
    format_version: int = req("Version of the format.")
    tfa_version: str = req("Release that wrote it.")
    revision: int = req("Number of edits so far.", ge=1, le=10**15)
    photos: _Photos = req("Where the photos are.")
    encoder: _Encoder = req("Encoder of the map.")
    spec: HeadSpec = req("Settings the head was fitted with.")
    head_kind: HeadKind | Literal["judged"] = req("Kind of head.")
    space: _Space | None = req("Second-order spaces.")
    verification: _Patches | None = req("Stored patches.")
    heads: list[_Head] = req("The head without calibration, then the calibrations.", min_length=1)
    active: str = req("Head that answers if a query names none.")
    segments: list[int] = req("Rows of each segment.", min_length=1, ge=1, le=10**9)
    removed: list[int] = req("Ids of removed images.", ge=0)
    next_id: int = req("Id of the next image.", ge=0, le=10**15)
    files: list[_File] = req("Files of the map.", min_length=1)
    digest: str = req("sha256 of the header.", pattern=_HEX)


# --- constraints ----------------------------------------------------------------------------------


def check_header(values: Any) -> None:
    """Check every field and the constraints between fields. Raises BadShape."""
    header: _Header = from_plain(_Header, values, "the header")
    names = [head.name for head in header.heads]
    if names[0] != DATABASE or len(set(names)) != len(names) or header.active not in names:
        raise BadShape(f"heads {names}, active {header.active!r}")
    reduced = header.heads[0].layout.reduction is not None
    cells = header.verification is not None and header.verification.cells
    if header.format_version != _choose_version(cells, reduced):
        said = f"{'with' if cells else 'without'} cell means and {'with' if reduced else 'without'} reduced rows"
        raise BadShape(f"format version {header.format_version}, {said}")
    space = header.space
    if space is not None and not all(space.count <= len(one) <= 3 for one in space.sigmas.values()):
        raise BadShape(f"{space.count} spaces, but not a spread for each")
    for head in header.heads:
        _check_head(head, header)
    _check_files(header, names)
    if header.removed != sorted(set(header.removed)) or any(one >= header.next_id for one in header.removed):
        raise BadShape(f"removed images are not ascending ids below next_id, {header.next_id}")


def _check_head(head: _Head, header: _Header) -> None:
    where, layout, first, paper = f"head {head.name}", head.layout, header.heads[0], header.head_kind == "paper"
    if (head.calibration is None) != (head.name == DATABASE):
        raise BadShape(f"{where} must have a calibration unless it is {DATABASE!r}")
    dual = header.head_kind == "paper-dual"
    second = not (paper or dual)
    kinds = {SecondOrderDecisions: second, SecondOrderEvidence: second, DualDecisions: dual, DualEvidence: dual}
    if any(isinstance(head.decisions, kind) + isinstance(head.evidence, kind) != fits for kind, fits in kinds.items()):
        raise BadShape(f"{where} has decisions or evidence that do not fit the head kind {header.head_kind!r}")
    if isinstance(head.decisions, TargetDecisions) != (paper and head.name != DATABASE):
        raise BadShape(f"{where} has decisions of another kind of head")
    if isinstance(head.decisions, DualDecisions) and head.decisions.score_calibrated != (head.name != DATABASE):
        raise BadShape(f"{where} has score calibration {head.decisions.calibration!r}")
    if isinstance(head.decisions, TargetDecisions):
        for name, one in head.decisions.strengths.items():
            if name not in ("hard", "soft") or one.keys() != {"c", "beta"}:
                raise BadShape(f"{where} has strengths {name!r}: {sorted(one)}, must be c and beta of hard or soft")
    if second and not {"representation", "judge"} & set(head.evidence.reasons):
        raise BadShape(f"{where} has no reason for its representation")
    spaces = [side.space for side in layout.sides if isinstance(side, _SpaceSide)]
    count = 0 if header.space is None else header.space.count
    if spaces and (len(spaces) != len(layout.sides) or spaces != list(range(len(spaces))) or len(spaces) != count):
        raise BadShape(f"{where} has sides in spaces {spaces}, the map has {count}")
    if layout.storage != first.layout.storage or head.replica != first.replica:
        raise BadShape(f"{where} has another storage type or construction than the first head")
    dims = [None if one.reduction is None else one.reduction.dims for one in (layout, first.layout)]
    if dims[0] != dims[1]:
        raise BadShape(f"{where} has other search dimensions than the first head")
    for index, term in enumerate(layout.terms):
        _check_term(f"{where}, term {index}", index, term, layout)


def _check_term(where: str, index: int, term: _Term, layout: _Layout) -> None:
    sides, terms = layout.sides, layout.terms
    if term.side >= len(sides):
        raise BadShape(f"{where} refers to side {term.side} of {len(sides)}")
    side = None if term.side == GLOBAL else sides[term.side]
    in_space = isinstance(sides[0], _SpaceSide)
    if in_space and (side is None or term.shares_anchors):
        raise BadShape(f"{where} does not refer to a space")
    if not in_space and term.gamma == MEAN:
        raise BadShape(f"{where} uses a mean, which residuals do not have")
    needs = term.shares_anchors or (side is not None and term.gamma is not None and not in_space)
    if needs and (not isinstance(side, _ResidualSide) or side.geometry is None):
        raise BadShape(f"{where} needs a geometry that its side does not have")
    first = term.same_as
    alike = [one for one in terms[:index] if (one.side, one.gamma) == (term.side, term.gamma)]
    if (first is not None) != bool(alike) or (first is not None and (first >= index or terms[first] is not alike[0])):
        raise BadShape(f"{where} has a wrong same_as, {first}")


def _check_files(header: _Header, heads: list[str]) -> None:
    files, segments = header.files, len(header.segments)
    if len({entry.name.lower() for entry in files}) != len(files):
        raise BadShape("two files have the same name")
    wanted: dict[tuple[str, str | None], int] = {("images", None): segments}
    for head in heads:
        wanted |= {("head", head): 1, ("gallery", head): segments}
    if header.space is not None:
        wanted |= {("space", None): 1, ("coordinates", None): segments}
    if header.verification is not None:
        wanted |= {("compaction", None): 1, ("tokens", None): segments}
    there: Counter[tuple[str, str | None]] = Counter((entry.role, entry.head) for entry in files)
    words, first = there.pop(("vocabularies", None), 0), header.heads[0].decisions
    needed = header.head_kind == "paper" or (isinstance(first, DualDecisions) and first.source == "given")
    if there != Counter(wanted) or words > 1 or (words == 0 and needed):
        odd = sorted(map(str, set(there.items()) ^ set(wanted.items())))
        raise BadShape(f"files do not match the heads and the {segments} segments: {', '.join(odd) or 'vocabularies'}")


# --- header ---------------------------------------------------------------------------------------

HEADER_FILE = "map.json"
MAP_FORMAT = "tfa-place-map"
# Fields of a state that the header stores unchanged.
AS_THEY_ARE = ("revision", "encoder", "spec", "head_kind", "active", "next_id")


def choose_format_version(state: MapState) -> int:
    """Return the format version for a map."""
    cells = state.compact is not None and state.compact.compaction.cells is not None
    return _choose_version(cells, state.head.reduced is not None)


def _choose_version(cells: bool, reduced: bool) -> int:
    return CELLS_VERSION if cells else REDUCED_VERSION if reduced else FORMAT_VERSION


def is_map(path: Path) -> bool:
    return (path / HEADER_FILE).is_file()


def _again(folder: Path) -> str:
    return "rebuild it with: " + format_command("tfa", "build", "PHOTOS", "--out", folder, "--force")


def open_map_folder(folder: Path) -> OpenFolder:
    """Open the folder of a map. Raises BadMap if there is none."""
    try:
        return OpenFolder(folder)
    except (FileNotFoundError, NotADirectoryError):
        command = format_command("tfa", "build", "PHOTOS", "--out", folder)
        raise BadMap(f"there is no map at {folder}; build one with: {command}", folder) from None


def read_map_header(folder: Path) -> dict[str, Any]:
    """Read and check the header of a map. Raises BadMap."""
    if not folder.exists():
        open_map_folder(folder).close()
    if not is_map(folder):
        raise BadMap(f"{folder} is not a map: it has no {HEADER_FILE}; pass a folder that tfa build wrote", folder)
    _refuse_link(folder / HEADER_FILE)
    try:
        header = read_json(folder / HEADER_FILE)
        kind, version = header["format"], header["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadMap(f"{folder / HEADER_FILE} is not a readable header ({error}); rebuild the map", folder) from None
    if kind != MAP_FORMAT:
        raise BadMap(f"{folder} has the format {kind!r}, must be {MAP_FORMAT!r}; {_again(folder)}", folder)
    if version not in (FORMAT_VERSION, REDUCED_VERSION, CELLS_VERSION):
        older = isinstance(version, int) and version < FORMAT_VERSION
        remedy = _again(folder) if older else "use a newer tfa-vpr"
        raise BadMap(
            f"{folder} has format version {version}, this release reads {FORMAT_VERSION} to {CELLS_VERSION}; {remedy}",
            folder,
        )
    try:
        sound = header.get("digest") == compute_digest(header)
    except (ValueError, RecursionError):  # not valid JSON for a digest
        sound = False
    if not sound:
        raise BadMap(
            f"{folder / HEADER_FILE} was edited or damaged: its digest does not match; rebuild the map", folder
        )
    try:
        check_header(header)
    except BadShape as error:
        raise BadMap(f"{folder / HEADER_FILE} is not valid: {error}; rebuild the map", folder) from None
    return header


def _refuse_link(file: Path) -> None:
    """Refuse links out of the map's folder, which could expose other files."""
    if file.is_symlink() and file.resolve().parent != file.parent.resolve():
        raise BadMap(f"{file} is a link to a file outside the map; replace it by the file", file.parent)


def compute_digest(header: dict[str, Any]) -> str:
    """Return the digest that identifies a state; revision numbers repeat if a map is deleted and rebuilt."""
    return hash_json({key: value for key, value in header.items() if key != "digest"})


def check_file(file: Path, entry: dict[str, Any], checksum: bool) -> None:
    """Raise BadMap unless a file has the size, and with `checksum` the sha256, of its header entry."""
    _refuse_link(file)
    if file.name != entry["name"] or not file.is_file():
        raise BadMap(f"{file.parent} is incomplete: {entry['name']} is missing; rebuild the map", file.parent)
    size = file.stat().st_size
    if size != entry["bytes"]:
        raise BadMap(
            f"{file} is truncated or changed: {size} bytes, must be {entry['bytes']}; rebuild the map", file.parent
        )
    if checksum and hash_file(file) != entry["sha256"]:
        raise BadMap(f"{file} was changed since the map was written (sha256 differs); rebuild the map", file.parent)
