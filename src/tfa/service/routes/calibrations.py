"""Routes that create calibrations as jobs, select and remove them."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from tfa.core.plain import Options, Value, req
from tfa.core.progress import Progress
from tfa.maps.calibrate import check_request
from tfa.maps.describe import list_differences
from tfa.service.auth import describe_caller, editing_router, reading_router
from tfa.service.bodies import Upload, body_schema, file_name, read_photos, reply
from tfa.service.context import Chosen, Running, Service
from tfa.service.jobs import Job
from tfa.service.live import LiveMap
from tfa.service.problems import Refused
from tfa.types import CalibrateOptions

calibrations_router, calibrations_edits = reading_router("calibration"), editing_router("calibration")


class JobStarted(Value):
    """A job that was started."""

    job: str = req("Id of the job; poll /v1/jobs/{id}.")


class ActiveCalibrationReply(Options):
    """The calibration to use for queries that name none."""

    name: str | None = req("Name of a calibration, or null for none.")


class Activated(Value):
    """The calibration that was made active."""

    active: str | None = req("Name of the calibration, or null for none.")


class Dropped(Value):
    """A calibration that was removed."""

    dropped: str = req("Name of the removed calibration.")
    revision: int = req("Revision of the map.")


@calibrations_edits.post(
    "/calibrations", status_code=202, response_model=JobStarted, openapi_extra=body_schema(CalibrateOptions, "images")
)
async def start_calibration(request: Request, service: Running, live: Chosen) -> Response:
    """Calibrate the map for a camera, with photos of this camera that are not in the map.

    Starts a job to poll. The calibration becomes active when the job is done; edits can run meanwhile.
    """
    uploads, options = await read_photos(request, CalibrateOptions, service.settings)
    await service.work(request, live, lambda: check_request(live.current_map.state, options.name, options.budget))
    uploads, names, left_out = await _keep_readable(uploads, request, service, live)
    caller, folder = describe_caller(request), Path(tempfile.mkdtemp(prefix="tfa-calibration-"))

    def work(progress: Progress) -> dict[str, Any]:
        report, before, revision = live.calibrate(files, options, progress)
        # Remove the temporary folder from the reasons.
        skipped = [(Path(image).name, reason.replace(f"{Path(image).parent}/", "")) for image, reason in report.skipped]
        differences = list_differences(before, report.decisions)
        shown = replace(report, skipped=[*left_out, *skipped], differences=differences, revision=revision)
        return shown.to_dict()

    def ended(job: Job) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        outcome = {"error": job.error} if job.result is None else {"revision": job.result["revision"]}
        result = {"job": job.id, "name": options.name, **outcome}
        service.audit.write(**caller, action=f"calibrate {job.state}", map=live.name, status=None, result=result)

    try:
        files = await service.work(request, live, lambda: _write(uploads, names, folder))
        job = service.jobs.start(work, ended, request.state.caller)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return reply(JobStarted(job=job.id), 202)


async def _keep_readable(
    uploads: list[Upload], request: Request, service: Service, live: LiveMap
) -> tuple[list[Upload], list[str], list[tuple[str, str]]]:
    """Return the photos that can be decoded, their file names, and the skipped photos with reasons.

    Decoding here limits time and memory; the job decodes the accepted photos again.
    """
    whole, names, skipped = list[Upload](), list[str](), list[tuple[str, str]]()
    for upload in uploads:
        try:
            photo = await service.decode(upload, live.encoder, request)
        except Refused as refusal:
            if refusal.status != 422 or len(uploads) == 1:
                raise
            skipped.append((upload.name, refusal.public))
        else:
            whole.append(upload)
            names.append(file_name(upload, photo.kind))
    return whole, names, skipped


def _write(uploads: list[Upload], names: list[str], folder: Path) -> list[Path]:
    files = [folder / f"{number:03d}" / name for number, name in enumerate(names)]
    for file, upload in zip(files, uploads, strict=True):
        file.parent.mkdir()
        file.write_bytes(upload.content)
    return files


@calibrations_router.get("/jobs/{id}", response_model=Job)
async def job(service: Running, id: str) -> Response:
    """Show the progress of a job, and its result when it is done."""
    return reply(service.jobs.get(id))


@calibrations_edits.post("/calibrations/active", response_model=Activated)
async def set_active(request: Request, service: Running, live: Chosen, choice: ActiveCalibrationReply) -> Response:
    """Choose the calibration for queries that name none."""
    active, _ = await service.edit(request, live, "activate", lambda current: current.activate(choice.name))
    return reply(Activated(active=active))


@calibrations_edits.delete("/calibrations/{name}", response_model=Dropped)
async def drop(request: Request, service: Running, live: Chosen, name: str) -> Response:
    """Remove a calibration from the map; if it was active, no calibration is active afterwards."""
    _, revision = await service.edit(request, live, "drop", lambda current: current.drop_calibration(name))
    return reply(Dropped(dropped=name, revision=revision))
