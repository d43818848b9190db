"""`tfa serve`: serve maps over HTTP."""

from __future__ import annotations

import functools
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tfa.cli import options
from tfa.cli.console import format_count, note, say
from tfa.errors import BadSpec
from tfa.search.store import MapLocation
from tfa.types import EncoderOptions

_access, _limit = (functools.partial(typer.Option, rich_help_panel=panel) for panel in ("Access", "Limits"))
_key = functools.partial(_access, show_envvar=True, metavar="KEY")
ON_COMMAND_LINE = {"--read-api-key", "--edit-api-key", "--api-key"}
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def parse_size(text: str) -> int:
    """Read a number of bytes, such as 20MB or 500000."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?)B?\s*", text.upper())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a valid size; write 20MB, 500KB or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2]])


@options.with_encoder
def serve(
    maps: Annotated[
        list[MapLocation] | None,
        typer.Argument(
            metavar="MAP|URL…", parser=MapLocation, help="Map folders or URLs; the first answers if a query names none."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; the default is local only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 chooses a free one.")] = 8000,
    read_api_key: Annotated[
        str | None,
        _key(
            "--read-api-key",
            "--api-key",
            envvar="TFA_READ_API_KEY",
            help="API key for reading. Prefer the environment: process lists show arguments.",
        ),
    ] = None,
    edit_api_key: Annotated[
        str | None,
        _key(envvar="TFA_EDIT_API_KEY", help="API key for edits, such as add and calibrate; also allows reading."),
    ] = None,
    api_keys: Annotated[
        Path | None,
        _access(
            envvar="TFA_API_KEYS",
            show_envvar=True,
            metavar="FILE",
            help="File of named API keys, one line each: NAME read|edit KEY.",
        ),
    ] = None,
    no_auth: Annotated[bool, _access("--no-auth", help="Allow unauthenticated access from other machines.")] = False,
    cors: Annotated[
        list[str] | None, _access(metavar="ORIGIN", help="Web origin that may call the service; repeat for more.")
    ] = None,
    proxy: Annotated[
        list[str] | None, _access(metavar="ADDRESS", help="Proxy whose X-Forwarded-For to trust; repeat for more.")
    ] = None,
    rate_limit: Annotated[
        float, _limit(min=0, metavar="N", help="Maximum requests per second per API key (0: unlimited).")
    ] = 100.0,
    max_upload: Annotated[int, _limit(parser=parse_size, metavar="SIZE", help="Largest accepted photo file.")] = "20MB",  # type: ignore[assignment]
    max_pixels: Annotated[int, _limit(min=1, metavar="N", help="Maximum pixels of a photo.")] = 50_000_000,
    max_batch: Annotated[int, _limit(min=1, metavar="N", help="Maximum photos per request.")] = 64,
    cameras: Annotated[
        int,
        _limit(
            min=0, max=4096, metavar="N", help="Maximum cameras per map; the least recently used is dropped (0: none)."
        ),
    ] = 64,
    patch_cache: Annotated[
        int | None,
        _limit(parser=parse_size, metavar="SIZE", help="Memory for patches of each store map. \\[default: 256MB]"),
    ] = None,
    audit_log: Annotated[
        Path | None,
        options.output_option(metavar="FILE", help="Append one JSON line per edit: time, API key and request."),
    ] = None,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Serve maps over HTTP, with a web page.

    Edits are on disk before they are answered. Ctrl-C or SIGTERM finishes running requests, then stops. Requests are
    logged on standard error, unless --quiet is set.
    """
    from tfa.service.app import create_app
    from tfa.service.decoders import shared_decoders
    from tfa.service.server import address_of, bind_socket, hide_secrets, run_server
    from tfa.service.settings import ServiceSettings, read_api_keys

    if not maps:
        raise typer.BadParameter("no map given: pass map folders or map URLs")
    if patch_cache is not None and not any(one.in_store for one in maps):
        raise BadSpec("--patch-cache is for maps in stores; patches of a map in a folder are memory-mapped")
    settings = ServiceSettings(
        host=host, port=port, read_api_key=read_api_key or None, edit_api_key=edit_api_key or None,
        api_keys=() if api_keys is None else read_api_keys(api_keys), rate_limit=rate_limit,
        audit_log=None if audit_log is None else str(audit_log), no_auth=no_auth, cors=tuple(cors or ()),
        proxies=tuple(proxy or ()), max_upload=max_upload, max_pixels=max_pixels, max_batch=max_batch, cameras=cameras,
    )  # fmt: skip
    hide_secrets("TFA_READ_API_KEY", "TFA_EDIT_API_KEY")
    with bind_socket(settings) as listening:  # report a taken port before loading the encoder
        shared_decoders().warm_up()
        opened = open_maps(maps, encoding, not quiet, patch_cache)
        app = create_app(opened, settings)
        listed = ", ".join(f"{one.name} ({format_count(len(one), 'image')})" for one in opened)
        say(f"serving {listed} at {address_of(listening)}", style="bold green")
        say(f"photo decoders: {shared_decoders().describe()}")
        if not settings.editable:
            note("edits are off: a read API key is set, but no edit API key")
        if api_keys is not None and os.name == "posix" and api_keys.stat().st_mode & 0o007:
            note(f"other users of this machine can access {api_keys}; run: chmod 600 {api_keys}")
        if ON_COMMAND_LINE & {argument.partition("=")[0] for argument in sys.argv[1:]}:
            note("every user of this machine sees an API key on the command line; use --api-keys or TFA_READ_API_KEY")
        try:
            run_server(app, listening, log_requests=not quiet, stop_seconds=settings.stop_seconds)
        except KeyboardInterrupt:  # the usual way to end it, after running requests
            say("stopped; accepted edits are on disk")


def open_maps(
    locations: list[MapLocation], encoder: EncoderOptions, progress: bool | None = None, patch_cache: int | None = None
) -> list[Any]:
    """Open maps; maps with the same encoder share it."""
    from tfa.maps import PlaceMap

    opened: list[Any] = []
    for location in locations:
        place_map = PlaceMap.load(location, patch_cache=patch_cache)
        fingerprint = place_map.state.encoder["fingerprint"]
        alike = [other for other in opened if other.encoder.model == fingerprint]
        if alike:
            place_map = PlaceMap(place_map.storage, alike[0].encoder)
        else:
            place_map.use_encoder(encoder, progress)
            place_map.encoder  # noqa: B018  # report missing weights before serving
        opened.append(place_map)
    return opened
