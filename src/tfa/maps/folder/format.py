"""The header of a map folder: what it holds, field by field, and how it is read and written.

What may stand in the header of a map, field by field, and what its fields say of each other.

docs/reference/map-format.md specifies it. The digest of a header finds damage; that a header makes sense is checked
here, since anybody can write a new digest.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tfa.core.files import hash_file, hash_json, read_json
from tfa.core.json_shape import (
    BadShape,
    Check,
    anything,
    boolean,
    either,
    fields,
    finite_number,
    integer,
    list_of,
    mapping_of,
    maybe,
    one_of,
    refuse,
    text,
)
from tfa.core.plain import Options
from tfa.core.text import format_command
from tfa.errors import BadMap, BadSpec
from tfa.maps.state import DATABASE, MapState
from tfa.method.carriers import CARRIER_KERNELS, MEAN, SIGMAS
from tfa.method.head import ENSEMBLE
from tfa.method.residuals import HARD, SOFT
from tfa.method.scorer import GLOBAL
from tfa.method.second_order import SECOND_ORDER
from tfa.search.reduced import LEAST_DIMS
from tfa.types import HEAD_KINDS, STORAGES, HeadSpec, RerankSpec

# --- schema ---------------------------------------------------------------------------------------

FORMAT_VERSION = 2
OLD_HEAD_KIND = "judged"  # of second-order maps whose head a judge chose; read as second-order
REDUCED_VERSION = 3  # of a map with reduced rows, which readers of version 2 do not know; all else is the same
_OF_HEADS, _OF_SEGMENTS = ("head", "gallery"), ("images", "coordinates", "tokens")
_ROLES = (*_OF_HEADS, "images", "vocabularies", "space", "coordinates", "compaction", "tokens")
_HEX = r"[0-9a-f]{64}"
_SHARE, _COUNT, _ANY = finite_number(0, 1), integer(0, 10**9), finite_number()
_STORAGE, _CARRIER, _ASSIGNMENT = one_of(*STORAGES), one_of(*CARRIER_KERNELS), one_of(HARD, SOFT)
_THREE = list_of(_ANY, 3, 3)
_EACH = list_of(_ANY, 1, 3)  # a number of each construction that was fitted
_GRID = list_of(integer(1, 10**5), 2, 2)
_REASONS = mapping_of(text())


def _check_spec(kind: type[Options]) -> Check:
    def check(value: Any, where: str) -> None:
        if type(value) is not dict:
            raise refuse(value, where, "an object")
        try:
            kind.from_dict(value)
        except (BadSpec, TypeError) as error:
            raise BadShape(f"{where}: {error}") from None

    return check


def _check_by_field(choices: dict[str, Check], otherwise: Check) -> Check:
    """The check of the first field that is there."""

    def check(value: Any, where: str) -> None:
        known = [one for name, one in choices.items() if isinstance(value, dict) and name in value]
        (known[0] if known else otherwise)(value, where)

    return check


def _gamma(value: Any, where: str) -> None:
    if value is not None and value != MEAN and not (type(value) is float and 0 <= value <= 1):
        raise refuse(value, where, f"null, {MEAN!r} or a number of 0.0 to 1.0")


_TERM = fields(
    {"weight": finite_number(0), "side": integer(GLOBAL, 5), "gamma": _gamma, "member": integer(0, 2),
     "shares_anchors": boolean, "same_as": maybe(integer())}
)  # fmt: skip


_STRENGTHS = fields(
    {"rho": _EACH, "alpha": _EACH, "participation": _EACH, "displacement": _EACH, "c": _ANY, "beta": _ANY}
)
_SIGMAS = dict.fromkeys(SIGMAS, _EACH)
_PLAIN = {"admit_cls": boolean, "sigma_local": _THREE, "sigma_cls": _THREE, "carrier": _CARRIER}
_DECISIONS = _check_by_field(
    {
        "representation": fields(
            {"representation": one_of(SECOND_ORDER, HARD, SOFT), "carrier": _CARRIER, "centring": boolean,
             "score_calibrated": boolean, "c": _SHARE, "beta": _SHARE},
            {name: list_of(_ANY, 0, 3) for name in _SIGMAS},
        ),
        "route": fields(
            {**_PLAIN, "route": one_of(HARD, SOFT, "mixture"), "soft_weight": _SHARE, "local_weight": _SHARE,
             "strengths": mapping_of(fields({"c": _SHARE, "beta": _SHARE}), f"{HARD}|{SOFT}"),
             "score_calibrated": boolean}
        ),
    },
    fields({**_PLAIN, "assignment": _ASSIGNMENT, "c": _SHARE, "beta": _SHARE}),
)  # fmt: skip
_JUDGEMENT = fields({"value": _ANY, "error": _ANY, "difference": _ANY, "difference_error": _ANY})
_EVIDENCE = _check_by_field(
    {
        "kind": fields(  # of maps that were written when a judge chose the head
            {"photos": _COUNT, "kind": text(), "incumbent": text(), "candidates": mapping_of(_JUDGEMENT),
             "strengths": mapping_of(_STRENGTHS), "reasons": _REASONS},
            None, anything,
        ),
        "strengths": fields({"strengths": mapping_of(_STRENGTHS), "reasons": _REASONS}, None, anything),
        "target_images": fields(
            {"reasons": _REASONS, "candidates": mapping_of(mapping_of(either(_ANY, _THREE)))}, None, anything
        ),
    },
    fields(
        {"pseudo_queries": _COUNT, "assignments": mapping_of(_STRENGTHS, f"{HARD}|{SOFT}"), "reasons": _REASONS,
         "candidates": mapping_of(fields({"support": _ANY, "agreement": _THREE}, None, anything))},
        None, anything,
    ),
)  # fmt: skip
_CALIBRATION = fields(
    {"given": _COUNT, "used": _COUNT, "budget": integer(), "score": boolean, "digests": list_of(text(_HEX)),
     "revision": integer(1)},
    {"expected_recall": fields({"share": _SHARE, "low": _SHARE, "high": _SHARE, "sure": _SHARE, "photos": _COUNT})},
    anything,
)  # fmt: skip
_JUDGED = fields(
    {"admitted": boolean, "favours_candidates": _ANY, "needed": _ANY, "photos": _COUNT, "reason": text()},
    {"usual_evidence": maybe(_ANY)}, anything,
)  # fmt: skip
_SIDE = _check_by_field(
    {"space": fields({"assignment": one_of(SECOND_ORDER), "space": integer(0, 2)})},
    fields(
        {"assignment": _ASSIGNMENT, "temperature": finite_number(1e-9),
         "geometry": maybe(fields({"grand_mean": _ANY, "participation": finite_number(0)}))}
    ),
)  # fmt: skip
_LAYOUT = fields(
    {"storage": _STORAGE, "sides": list_of(_SIDE, 1, 6), "terms": list_of(_TERM, 1, 99)},
    {"reduction": fields({"dims": integer(LEAST_DIMS, 10**6), "mean_bias": _ANY})},
)
_HEAD = fields(
    {"name": text(r"[A-Za-z0-9_-]+"), "saw": one_of("database", "target"), "replica": one_of(0, ENSEMBLE),
     "calibration": maybe(_CALIBRATION), "verification": maybe(_JUDGED), "decisions": _DECISIONS, "evidence": _EVIDENCE,
     "layout": _LAYOUT}
)  # fmt: skip
_FILE = fields(
    {"name": text(r"[A-Za-z0-9_-]+\.(safetensors|json)"), "role": one_of(*_ROLES), "head": maybe(text()),
     "bytes": integer(), "sha256": text(_HEX)}
)  # fmt: skip
_ENCODER = fields(
    {"id": text(), "fingerprint": text(), "channels": integer(1, 10**6), "global_channels": maybe(integer(1, 10**6)),
     "grid": _GRID, "weights": maybe(text())}
)  # fmt: skip
_SPACE = fields({"storage": _STORAGE, "count": integer(1, 3), "strengths": _STRENGTHS}, _SIGMAS)
_HEADER_FIELDS = fields(
    {"format": text(), "format_version": integer(), "tfa_version": text(), "revision": integer(1, 10**15),
     "photos": fields({"root": maybe(text()), "from_map": maybe(text())}), "encoder": _ENCODER,
     "spec": _check_spec(HeadSpec),
     "head_kind": one_of(*HEAD_KINDS, OLD_HEAD_KIND), "space": maybe(_SPACE),
     "verification": maybe(fields({"spec": _check_spec(RerankSpec), "grid": _GRID})), "heads": list_of(_HEAD, 1),
     "active": text(), "segments": list_of(integer(1, 10**9), 1), "removed": list_of(integer()),
     "next_id": integer(0, 10**15), "files": list_of(_FILE, 1), "digest": text(_HEX)}
)  # fmt: skip


def check_header(header: Any) -> None:
    """Every field by itself, then what fields say of each other. Raises BadShape."""
    _HEADER_FIELDS(header, "the header")
    names = [head["name"] for head in header["heads"]]
    if names[0] != DATABASE or len(set(names)) != len(names) or header["active"] not in names:
        raise BadShape(f"heads {names}, active {header['active']!r}")
    reduced = "reduction" in header["heads"][0]["layout"]
    if reduced != (header["format_version"] == REDUCED_VERSION):
        raise BadShape(f"format version {header['format_version']}, {'with' if reduced else 'without'} reduced rows")
    space = header["space"]
    if space is not None and any(len(space[name]) < space["count"] for name in _SIGMAS if name in space):
        raise BadShape(f"{space['count']} spaces, but not a spread of each")
    for head in header["heads"]:
        _check_head(head, header)
    _check_files(header, names)
    if header["removed"] != sorted(set(header["removed"])) or any(
        one >= header["next_id"] for one in header["removed"]
    ):
        raise BadShape(f"removed images are not ascending ids below next_id, {header['next_id']}")


def _check_head(head: dict[str, Any], header: dict[str, Any]) -> None:
    where, layout = f"head {head['name']}", head["layout"]
    if (head["calibration"] is None) != (head["name"] == DATABASE):
        raise BadShape(f"{where} must have a calibration unless it is {DATABASE!r}")
    if ("representation" in head["decisions"]) != (header["head_kind"] != "paper"):
        raise BadShape(f"{where} has decisions of another kind than {header['head_kind']!r}")
    if ("route" in head["decisions"]) != (header["head_kind"] == "paper" and head["name"] != DATABASE):
        raise BadShape(f"{where} has decisions of another kind of head")
    if header["head_kind"] != "paper" and not {"representation", "judge"} & set(head["evidence"]["reasons"]):
        raise BadShape(f"{where} has no reason for its representation")
    spaces = [side["space"] for side in layout["sides"] if "space" in side]
    count = 0 if header["space"] is None else header["space"]["count"]
    if spaces and (len(spaces) != len(layout["sides"]) or spaces != list(range(len(spaces))) or len(spaces) != count):
        raise BadShape(f"{where} has sides in spaces {spaces}, the map has {count}")
    if layout["storage"] != header["heads"][0]["layout"]["storage"] or head["replica"] != header["heads"][0]["replica"]:
        raise BadShape(f"{where} is stored in another way than the first head")
    if layout.get("reduction", {}).get("dims") != header["heads"][0]["layout"].get("reduction", {}).get("dims"):
        raise BadShape(f"{where} is reduced in another way than the first head")
    for index, term in enumerate(layout["terms"]):
        _check_term(f"{where}, term {index}", index, term, layout["sides"], layout["terms"])


def _check_term(where: str, index: int, term: dict[str, Any], sides: list[Any], terms: list[Any]) -> None:
    if term["side"] >= len(sides):
        raise BadShape(f"{where} is of side {term['side']} of {len(sides)}")
    side = None if term["side"] == GLOBAL else sides[term["side"]]
    in_space = "space" in sides[0]
    if in_space and (side is None or term["shares_anchors"]):
        raise BadShape(f"{where} is not of a space")
    if not in_space and term["gamma"] == MEAN:
        raise BadShape(f"{where} is of a mean that residuals do not have")
    needs = term["shares_anchors"] or (side is not None and term["gamma"] is not None and not in_space)
    if needs and (side is None or side["geometry"] is None):
        raise BadShape(f"{where} needs a geometry that its side does not have")
    first = term["same_as"]
    alike = [one for one in terms[:index] if (one["side"], one["gamma"]) == (term["side"], term["gamma"])]
    if (first is not None) != bool(alike) or (first is not None and (first >= index or terms[first] is not alike[0])):
        raise BadShape(f"{where} is said to be the same as {first}")


def _check_files(header: dict[str, Any], heads: list[str]) -> None:
    files, segments = header["files"], len(header["segments"])
    if len({entry["name"].lower() for entry in files}) != len(files):
        raise BadShape("two files have one name")
    wanted: dict[tuple[str, str | None], int] = {("images", None): segments}
    for head in heads:
        wanted |= {("head", head): 1, ("gallery", head): segments}
    if header["space"] is not None:
        wanted |= {("space", None): 1, ("coordinates", None): segments}
    if header["verification"] is not None:
        wanted |= {("compaction", None): 1, ("tokens", None): segments}
    there = Counter((entry["role"], entry["head"]) for entry in files)
    words = there.pop(("vocabularies", None), 0)
    if there != Counter(wanted) or words > 1 or (words == 0 and header["head_kind"] == "paper"):
        odd = sorted(map(str, set(there.items()) ^ set(wanted.items())))
        raise BadShape(f"files do not fit the heads and the {segments} segments: {', '.join(odd) or 'vocabularies'}")


# --- header ---------------------------------------------------------------------------------------

HEADER_FILE = "map.json"
MAP_FORMAT = "tfa-place-map"
AS_THEY_ARE = (
    "revision",
    "encoder",
    "spec",
    "head_kind",
    "active",
    "next_id",
)  # fields of a state that the header holds so


def choose_format_version(state: MapState) -> int:
    """The format version that a map is written in."""
    return FORMAT_VERSION if state.head.reduced is None else REDUCED_VERSION


def is_map(path: Path) -> bool:
    return (path / HEADER_FILE).is_file()


def _again(folder: Path) -> str:
    return "build it again: " + format_command("tfa", "build", "PHOTOS", "--out", folder, "--force")


def read_map_header(folder: Path) -> dict[str, Any]:
    """The header of a map, whole and of a version this release reads, with its digest."""
    if not folder.exists():
        raise BadMap(
            f"there is no map at {folder}; build one with: {format_command('tfa', 'build', 'PHOTOS', '--out', folder)}",
            folder,
        )
    if not is_map(folder):
        raise BadMap(f"{folder} is not a map: it has no {HEADER_FILE}", folder)
    _refuse_link(folder / HEADER_FILE)
    try:
        header = read_json(folder / HEADER_FILE)
        kind, version = header["format"], header["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadMap(
            f"{folder / HEADER_FILE} is not a readable header ({error}); build the map again", folder
        ) from None
    if kind != MAP_FORMAT:
        again = _again(folder)
        raise BadMap(
            f"{folder} has the format {kind!r}, which no release reads (maps are {MAP_FORMAT!r}); {again}", folder
        )
    if version not in (FORMAT_VERSION, REDUCED_VERSION):
        older = isinstance(version, int) and version < FORMAT_VERSION
        remedy = _again(folder) if older else "use a newer tfa-vpr"
        raise BadMap(
            f"{folder} has format version {version}, this release reads {FORMAT_VERSION} and "
            f"{REDUCED_VERSION}; {remedy}",
            folder,
        )
    try:
        sound = header.get("digest") == compute_digest(header)
    except (ValueError, RecursionError):  # not even JSON that we would write
        sound = False
    if not sound:
        raise BadMap(
            f"{folder / HEADER_FILE} was edited or damaged: its digest does not match; build the map again", folder
        )
    try:
        check_header(header)
    except BadShape as error:
        raise BadMap(f"{folder / HEADER_FILE} makes no sense: {error}; build the map again", folder) from None
    return header


def _refuse_link(file: Path) -> None:
    """A map is what lies in its folder: a link that leads out of it could make a map show what nobody put there."""
    if file.is_symlink() and file.resolve().parent != file.parent.resolve():
        raise BadMap(f"{file} is a link that leads out of the map; put the file itself there", file.parent)


def compute_digest(header: dict[str, Any]) -> str:
    """What a state of a map is known by; a revision's number comes again where a map is removed and built anew."""
    return hash_json({key: value for key, value in header.items() if key != "digest"})


def check_file(file: Path, entry: dict[str, Any], checksum: bool) -> None:
    """Is a file the one that the header names? `checksum` compares its sha256 too."""
    _refuse_link(file)
    if file.name != entry["name"] or not file.is_file():
        raise BadMap(f"{file.parent} is incomplete: {entry['name']} is missing; build the map again", file.parent)
    size = file.stat().st_size
    if size != entry["bytes"]:
        raise BadMap(
            f"{file} is truncated or changed: {size} bytes, must be {entry['bytes']}; build the map again", file.parent
        )
    if checksum and hash_file(file) != entry["sha256"]:
        raise BadMap(f"{file} was changed since the map was written (sha256 differs); build the map again", file.parent)
