"""Parameters of the node; `config/tfa.yaml` repeats them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Value = str | bool | int | float


class BadParameter(Exception):
    """A parameter has an invalid value; the text says what is allowed."""


@dataclass(frozen=True)
class Parameter:
    """A name, a default, a description and, for numbers, bounds."""

    name: str
    default: Value
    meaning: str
    low: float = 0.0
    high: float = float("inf")


PARAMETERS = (
    Parameter("url", "http://localhost:8000", "address of tfa serve"),
    Parameter("map", "", "map to query; empty: the first map of the service"),
    Parameter("api_key_variable", "TFA_API_KEY", "environment variable with the API key; unset or empty: send no key"),
    Parameter("image_topic", "camera/image/compressed", "image topic to subscribe to"),
    Parameter("compressed", True, "true for sensor_msgs/CompressedImage, false for sensor_msgs/Image"),
    Parameter("k", 5, "matches per image", 1, 1000),
    Parameter("camera", "", "camera name, so that the service adapts to it; empty: no adaptation"),
    Parameter("sequence", False, "track the camera from frame to frame; needs camera"),
    Parameter("loops", False, "publish loop closures of the camera; needs camera"),
    Parameter("calibration", "", "calibration to use; empty: the active one, none: no calibration"),
    Parameter("rerank", "auto", "auto (if the map stores patches), always, or never (then no answer is sure)"),
    Parameter("min_confidence", 0.0, "publish no matches below this confidence", 0, 1),
    Parameter("frame_id", "map", "frame of the pose: the plane of the map's x and y"),
    Parameter("rate", 0.0, "maximum queries per second; 0: no limit", 0, 1000),
    Parameter("timeout", 10.0, "seconds to wait for an answer", 0.1, 3600),
    Parameter("diagnostics_period", 1.0, "seconds between diagnostics", 0.05, 3600),
    Parameter("stale_after", 5.0, "seconds without an image until diagnostics report STALE", 0.1, 3600),
)
RERANK: dict[str, dict[str, str]] = {"auto": {}, "always": {"rerank": "true"}, "never": {"rerank": "false"}}
CAMERA_NAME = re.compile("[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")  # same as in the service


def checked(values_by_name: Mapping[str, Any]) -> dict[str, Any]:
    """Check the values of all parameters; integers are converted for float parameters."""
    values: dict[str, Any] = {}
    for one in PARAMETERS:
        value = values_by_name[one.name]
        if isinstance(one.default, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not type(one.default):
            kinds = {str: "text, in quotes", bool: "true or false", int: "a whole number", float: "a number"}
            raise BadParameter(f"parameter {one.name} is {value!r}, must be {kinds[type(one.default)]}: {one.meaning}")
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not one.low <= value <= one.high:
            raise BadParameter(f"parameter {one.name} is {value}, must be {one.low:g} to {one.high:g}: {one.meaning}")
        values[one.name] = value
    if values["camera"] and not CAMERA_NAME.fullmatch(values["camera"]):
        raise BadParameter(f"parameter camera is {values['camera'][:80]!r}; use up to 64 letters, digits, -, _ and .")
    for name in ("sequence", "loops"):
        if values[name] and not values["camera"]:
            raise BadParameter(f"parameter {name} needs a camera; set camera, such as camera: cam0")
    if values["rerank"] not in RERANK:
        raise BadParameter(f"parameter rerank is {values['rerank']!r}, must be one of {', '.join(RERANK)}")
    if not values["image_topic"]:
        raise BadParameter("parameter image_topic is empty; set a topic, such as camera/image/compressed")
    return values


def query_fields(values: Mapping[str, Any], *, of_the_camera: bool) -> dict[str, str]:
    """Return the form fields of a query; only images of the camera's topic include the camera's name."""
    fields = {"k": str(values["k"]), "min_confidence": str(values["min_confidence"]), **RERANK[values["rerank"]]}
    if values["calibration"]:
        fields["calibration"] = values["calibration"]
    if of_the_camera and values["camera"]:
        fields["camera"] = values["camera"]
        fields["sequence"] = "true" if values["sequence"] else "false"
        if values["loops"]:  # an older service does not know the field
            fields["loops"] = "true"
    return fields
