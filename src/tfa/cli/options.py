"""Options that several verbs share, each defined once."""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfa.cli.console import wants_progress
from tfa.core.config import EncoderOptions
from tfa.errors import BadSpec, TfaError
from tfa.search.store import MapLocation, Region, Where

if TYPE_CHECKING:
    from tfa.maps import PlaceMap
    from tfa.photos.find_positions import PositionSources

_PICTURES = (".png", ".jpg", ".jpeg")
SHARED = ("encoder", "weights", "device", "threads", "fast", "quiet")  # options of several commands


def variable(option: str) -> str:
    """Return the environment variable of a shared option."""
    return f"TFA_{option.upper()}"


MapPath = Annotated[
    MapLocation,
    typer.Argument(
        metavar="MAP|URL",
        parser=MapLocation,
        help="A map, as written by [bold]tfa build[/bold]: a folder, or the URL of one in a store.",
    ),
]
Sessions = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Only images of this session answer; again for more. See tfa add, tfa merge."),
]
RegionOption = Annotated[
    str | None,
    typer.Option(
        metavar="W,S,E,N",
        help="Only images within this box answer: west, south, east, north, in degrees, or in metres where positions "
        "are x and y.",
    ),
]
PhotosArgument = Annotated[
    list[Path],
    typer.Argument(metavar="PHOTOS", exists=True, help="Photos, or folders searched for photos."),
]
EncoderOption = Annotated[
    str,
    typer.Option(
        envvar=variable("encoder"), help="name, name@size or name@size/layer-facet; see [bold]tfa encoders[/bold]."
    ),
]
WeightsOption = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        envvar=variable("weights"),
        help="Weights of the encoder: a safetensors or .pth file.",
    ),
]
PositionsOption = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        metavar="CSV",
        help="Where the photos were taken: columns file,lat,lon or file,x,y, and perhaps alt,heading. "
        "Without it, positions come from @utm_east@utm_north@ names, from the XMP of drones and from EXIF GPS.",
    ),
]
Gpx = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        metavar="TRACK.gpx",
        help="Place photos along this track by when they were taken (EXIF DateTimeOriginal).",
    ),
]
GpxOffset = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Added to the camera's clock to give the track's time, which is UTC: -7200 for a clock two hours ahead.",
    ),
]
GpxGap = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", help="No position between points of the track that are farther apart. 60 if not given."
    ),
]
Utm = Annotated[
    str | None,
    typer.Option(
        metavar="ZONE",
        help="x and y are metres in this UTM zone, such as 33N (N or S: the hemisphere), and are kept as degrees. "
        "Needs pip install 'tfa-vpr\\[geo]'.",
    ),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out and list photos that cannot be read, rather than stop.")
]
Device = Annotated[str, typer.Option(envvar=variable("device"), help="Where encoding and fitting run: cpu or cuda.")]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        envvar=variable("threads"),
        help="CPU threads of the encoder; as many as there are cores if not given.",
    ),
]
Fast = Annotated[
    bool,
    typer.Option(
        "--fast/--no-fast",
        envvar=variable("fast"),
        help="Encode in 8-bit integers: about twice as fast on a CPU, tokens differ slightly. "
        "Needs pip install 'tfa-vpr\\[fast]'.",
    ),
]
Calibration = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|none",
        help="Use this calibration of the map, or none; the active one if not given. See [bold]tfa calibrate[/bold].",
    ),
]
Checksum = Annotated[
    bool, typer.Option("--checksum", help="First compare every byte of the map with its checksums, not sizes only.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
JsonFile = Annotated[
    Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Also write the result there, as JSON.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", envvar=variable("quiet"), help="No progress, neither bars nor lines.")
]


# What a verb with an `encoding` parameter takes of its user, by the names of EncoderOptions.
ENCODING: dict[str, Any] = {"weights": WeightsOption, "device": Device, "threads": ThreadsOption, "fast": Fast}


def with_encoder(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with --weights, --device, --threads and --fast in place of its parameter `encoding`."""

    @functools.wraps(verb)
    def called(**arguments: Any) -> None:
        encoding = EncoderOptions(**{name: arguments.pop(name) for name in ENCODING})
        verb(**arguments, encoding=encoding)

    signature = inspect.signature(verb, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "encoding"]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=getattr(EncoderOptions, name), annotation=kind)
        for name, kind in ENCODING.items()
    ]
    called.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *shared)}
    return called


def open_map(
    path: MapLocation, encoding: EncoderOptions, *, quiet: bool, json: bool = False, checksum: bool = False
) -> tuple[PlaceMap, bool]:
    """A map that encodes photos as the options say, and whether progress is shown."""
    from tfa.maps import PlaceMap

    place_map, progress = PlaceMap.load(path, checksum=checksum), wants_progress(quiet)
    place_map.use_encoder(encoding, progress)
    return place_map, progress


def check_folder(map: MapLocation, verb: str) -> Path:
    """Return the folder of a map; refuse a map in a store for a verb that needs every row in one place."""
    if map.in_store:
        raise BadSpec(f"tfa {verb} needs a map in a folder, {map} is in a store; build one with --out NAME.tfa")
    return map.folder


def read_position_sources(
    positions: Path | None, gpx: Path | None, gpx_offset: float | None, gpx_gap: float | None, utm: str | None
) -> PositionSources:
    """Where positions come from; what cannot be read is refused before the work, not after an hour of it."""
    from tfa.photos.find_positions import GPX_GAP, PositionSources
    from tfa.photos.positions import read_gpx, read_positions_csv

    if gpx is None and (gpx_offset is not None or gpx_gap is not None):
        raise typer.BadParameter("--gpx-offset and --gpx-gap are about a track; give it with --gpx TRACK.gpx")
    gap = GPX_GAP if gpx_gap is None else gpx_gap
    sources = PositionSources(csv=positions, gpx=gpx, gpx_offset=gpx_offset or 0.0, gpx_gap=gap, utm=utm)
    if positions is not None:
        read_positions_csv(positions)
    if gpx is not None:
        read_gpx(gpx)
    return sources


def where_of(sessions: list[str] | None, region: str | None) -> Where | None:
    """Which images may answer, by --session and --region."""
    if region is None:
        return Where(tuple(sessions)) if sessions else None
    try:
        west, south, east, north = (float(edge) for edge in region.split(","))
    except ValueError:
        raise typer.BadParameter(f"{region!r} is not a region; give W,S,E,N, such as 13.3,52.4,13.5,52.6") from None
    return Where(tuple(sessions or ()), Region(west, south, east, north))


def share(value: float) -> float:
    """A number between 0 and 1 (typer's own range check lets nan through)."""
    if math.isnan(value) or not 0 <= value <= 1:
        raise typer.BadParameter(f"{value:g} is not allowed; give a number between 0 and 1")
    return value


def picture(path: Path | None) -> Path | None:
    """A file that can be written, whose ending says which picture format to write."""
    if path is not None:
        if path.suffix.lower() not in _PICTURES:
            raise typer.BadParameter(f"{path} must end in one of {' '.join(_PICTURES)}")
        check_writable(path)
    return path


def check_writable(path: Path) -> None:
    """Refuse, before any work is done, a path whose folder neither exists nor can be made."""
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise TfaError(f"cannot write {path}: {parent} is a file, not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise TfaError(f"cannot write {path}: no permission to write in {parent}")
