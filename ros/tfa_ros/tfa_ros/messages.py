"""Convert answers of the service to message fields. Imports nothing of ROS."""

from __future__ import annotations

import math
from typing import Any

NAN = math.nan
UNKNOWN_HEIGHT = 1e6  # variance in m²: a standard deviation of a kilometer
UNKNOWN_ANGLE = math.pi**2 / 3  # variance in rad² of a uniform angle
# Fields of tfa_msgs/Match and their names in a hit's position; other fields have the same name in a hit.
POSITION_FIELDS = {"latitude": "lat", "longitude": "lon", "altitude": "alt", "x": "x", "y": "y", "heading": "heading"}

# Default and conversion of a field, by ROS type name.
UNKNOWN = {"string": ("", str), "double": (NAN, float), "boolean": (False, bool), "int64": (0, int)}


def query_name(sec: int, nanosec: int) -> str:
    """Name a photo after its time."""
    return f"{sec}.{nanosec:09d}"


def match_fields(hit: dict[str, Any], types: dict[str, str]) -> dict[str, Any]:
    """Make the fields of tfa_msgs/Match, whose types by name are `types`.

    A value that an older service does not send is NaN, or empty.
    """
    position = hit["position"] or {}
    values = {name: position.get(key, NAN) for name, key in POSITION_FIELDS.items()}
    values.update(hit, has_position=hit["position"] is not None)
    fields = {}
    for name, kind in types.items():
        unknown, convert = UNKNOWN[kind]
        value = values.get(name)
        fields[name] = unknown if value is None else convert(value)
    return fields


def verdict_fields(answer: dict[str, Any]) -> dict[str, str]:
    """Make the fields of tfa_msgs/Matches that judge the answer; an older service sends only `sure`."""
    old = "recognized" if answer["sure"] else "not recognized"
    return {"verdict": str(answer.get("verdict", old)), "reason": str(answer.get("reason", ""))}


EDGE_NUMBERS = ("confidence", "inliers", "heading", "scale")


class LoopEdges:
    """Headers of a camera's images by their numbers in the service, and edges between them."""

    def __init__(self) -> None:
        self._headers: dict[int, Any] = {}
        self._joined: set[int] = set()  # later images of earlier edges

    def add(self, header: Any, answer: dict[str, Any]) -> list[tuple[Any, Any, dict[str, float]]]:
        """Add an answered image; return new edges: headers of the later and the earlier image, and the edge's numbers.

        Numbers that do not rise mean that the service started over. An image whose answer was lost has no edge.
        """
        node, loop = answer.get("node"), answer.get("loop") or {"chain": []}
        if node is None:
            return []
        if node <= max(self._headers, default=-1):
            self._headers, self._joined = {}, set()
        self._headers[node] = header
        edges = []
        for pair in loop["chain"]:
            query, match = pair["query"], pair["match"]
            if query not in self._joined and query in self._headers and match in self._headers:
                self._joined.add(query)
                known = {"confidence": loop["confidence"], **pair}
                numbers = {name: math.nan if known.get(name) is None else float(known[name]) for name in EDGE_NUMBERS}
                edges.append((self._headers[query], self._headers[match], numbers))
        return edges


def place_of(answer: dict[str, Any]) -> dict[str, Any] | None:
    """The place of all verified images together, if the answer can be relied on."""
    return answer.get("place") if answer["sure"] else None


def place_fields(answer: dict[str, Any]) -> dict[str, Any]:
    """Make the fields of a Localize response: the position estimate, or why there is none."""
    place = answer.get("place")
    position = {} if place is None else place["position"]
    return {
        "sure": bool(answer["sure"]),
        "has_place": place is not None,
        "radius": NAN if place is None else float(place["radius"]),
        "message": str(answer.get("place_missing") or ""),
        **{name: float(position.get(POSITION_FIELDS[name], NAN)) for name in ("latitude", "longitude", "x", "y")},
    }


def is_global(place: dict[str, Any]) -> bool:
    """Return True for degrees (NavSatFix), False for meters (pose)."""
    return "lat" in place["position"]


def variance_of(place: dict[str, Any]) -> float:
    """Return the variance of each axis, half of the squared radius."""
    return float(place["radius"]) ** 2 / 2


def fix_fields(place: dict[str, Any]) -> dict[str, Any]:
    """Make the fields of sensor_msgs/NavSatFix: latitude, longitude, altitude, covariance of east, north and up."""
    position, flat = place["position"], variance_of(place)
    return {
        "latitude": float(position["lat"]),
        "longitude": float(position["lon"]),
        "altitude": float(position.get("alt", NAN)),  # NavSatFix uses NaN for no altitude
        "position_covariance": _diagonal(flat, flat, flat if "alt" in position else UNKNOWN_HEIGHT),
    }


def pose_fields(place: dict[str, Any], best: dict[str, Any] | None) -> dict[str, Any]:
    """Make the fields of geometry_msgs/PoseWithCovariance: position, orientation (x, y, z, w), covariance.

    The orientation is the heading of the best match, if known. That image may have been taken from another angle, so
    its standard deviation is 30 degrees.
    """
    position, flat = place["position"], variance_of(place)
    heading = ((best or {}).get("position") or {}).get("heading")
    # Headings are clockwise from north in degrees; ROS angles are counterclockwise from east.
    yaw = 0.0 if heading is None else math.radians(90.0 - float(heading))
    turn = UNKNOWN_ANGLE if heading is None else math.radians(30.0) ** 2
    height = flat if "alt" in position else UNKNOWN_HEIGHT
    return {
        "position": (float(position["x"]), float(position["y"]), float(position.get("alt", 0.0))),
        "orientation": (0.0, 0.0, math.sin(yaw / 2), math.cos(yaw / 2)),
        "covariance": _diagonal(flat, flat, height, UNKNOWN_ANGLE, UNKNOWN_ANGLE, turn),
    }


def _diagonal(*values: float) -> list[float]:
    """Return a diagonal matrix in row-major order."""
    size = len(values)
    return [values[row] if row == column else 0.0 for row in range(size) for column in range(size)]
