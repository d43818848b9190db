"""Calibrations: made from photos of a camera as a job, chosen and dropped."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import Request

from tfa.core.progress import Progress
from tfa.maps.calibrate import check_request
from tfa.maps.summary import list_differences
from tfa.service.audit import asker_of
from tfa.service.auth import editing_router, reading_router
from tfa.service.bodies import body_schema, read_photos
from tfa.service.context import Chosen, Running, Service, wait_for
from tfa.service.jobs import Job
from tfa.service.models import Active, ActiveRequest, CalibrationFields, Dropped, JobStarted
from tfa.service.problems import Refused
from tfa.service.served import Served
from tfa.service.uploads import Upload, file_name
from tfa.types import CalibrateOptions, CalibrationReport

calibrations_router, calibrations_edits = reading_router("calibration"), editing_router("calibration")
_PHOTOS = body_schema(CalibrationFields, "images")


@calibrations_edits.post("/calibrations", status_code=202, response_model=JobStarted, openapi_extra=_PHOTOS)
async def start_calibration(request: Request, service: Running, live: Chosen) -> dict[str, Any]:
    """Calibrate the map for a camera, from photos of it that the map does not hold.

    Takes a while: poll the job. The calibration answers as soon as it is done; edits need not wait for it.
    """
    uploads, fields = await read_photos(request, CalibrationFields, service.settings)
    await service.work(lambda: check_request(live.current_map.state, fields.name, CalibrateOptions.budget))
    uploads, names, skipped = await _whole(uploads, service, live)
    folder = Path(tempfile.mkdtemp(prefix="tfa-calibration-"))
    try:
        files = await service.work(lambda: _written(uploads, names, folder))
        work = _calibration(live, files, fields, skipped)
        job = service.jobs.start(work, ended=_noted_end(request, service, live, folder, fields.name))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return {"job": job.id}


async def _whole(
    uploads: list[Upload], service: Service, live: Served
) -> tuple[list[Upload], list[str], list[dict[str, str]]]:
    """The photos that can be decoded, what their files are called, and those that are left out.

    They are decoded here, where time and memory are bounded, and once more by the job.
    """
    whole, names, skipped = list[Upload](), list[str](), list[dict[str, str]]()
    for upload in uploads:
        try:
            photo = await service.decoded(upload, live.encoder)
        except Refused as refusal:
            if refusal.status != 422 or len(uploads) == 1:
                raise
            skipped.append({"image": upload.name, "reason": refusal.public})
        else:
            whole.append(upload)
            names.append(file_name(upload, photo.kind))
    return whole, names, skipped


def _written(uploads: list[Upload], names: list[str], folder: Path) -> list[Path]:
    files = [folder / f"{number:03d}" / name for number, name in enumerate(names)]
    for file, upload in zip(files, uploads, strict=True):
        file.parent.mkdir()
        file.write_bytes(upload.content)
    return files


def _noted_end(request: Request, service: Service, live: Served, folder: Path, name: str) -> Callable[[Job], None]:
    """Of a job that ended, in whatever way: its photos go, and the audit log says what came of it."""
    asker = asker_of(request)

    def ended(job: Job) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        came = {"error": job.error} if job.result is None else {"revision": job.result["revision"]}
        result = {"job": job.id, "name": name, **came}
        service.audit.write(**asker, action=f"calibrate {job.state}", map=live.name, status=None, result=result)

    return ended


def _calibration(
    live: Served, files: list[Path], fields: CalibrationFields, skipped: list[dict[str, str]]
) -> Callable[[Progress], dict[str, Any]]:
    """The job."""

    def work(progress: Progress) -> dict[str, Any]:
        report, before, revision = live.calibrate(files, fields.name, fields.score, progress)
        return _reported(report, before, revision, skipped)

    return work


def _reported(
    report: CalibrationReport, before: dict[str, Any], revision: int, left_out: list[dict[str, str]]
) -> dict[str, Any]:
    # Reasons are given without the folder the upload was written to.
    skipped = [
        *left_out,
        *(
            {"image": Path(image).name, "reason": reason.replace(f"{Path(image).parent}/", "")}
            for image, reason in report.skipped
        ),
    ]
    return {
        **report.to_dict(),
        "skipped": skipped,
        "in_words": None if report.expected_recall is None else str(report.expected_recall),
        "differences": list_differences(before, report.decisions),
        "revision": revision,
    }


@calibrations_router.get("/jobs/{id}")
async def job(service: Running, id: str) -> Job:
    """How far a job has come, and its result when it is done."""
    return service.jobs.get(id)


@calibrations_edits.post("/calibrations/active", response_model=Active)
async def set_active(live: Chosen, choice: ActiveRequest) -> dict[str, Any]:
    """Choose the calibration that answers where a query names none."""
    active, _ = await wait_for(live.edit("activate", lambda current: current.activate(choice.name)))
    return {"active": active}


@calibrations_edits.delete("/calibrations/{name}", response_model=Dropped)
async def drop(live: Chosen, name: str) -> dict[str, Any]:
    """Take a calibration out of the map for good; if it was the active one, the map answers without."""
    _, revision = await wait_for(live.edit("drop", lambda current: current.drop_calibration(name)))
    return {"dropped": name, "revision": revision}
