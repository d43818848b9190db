"""Long work that clients poll: calibrations, one at a time, with their progress."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging import getLogger
from typing import Any

from tfa.base.progress import Progress, Task
from tfa.errors import TfaError
from tfa.service.problems import DEFECT, Refused, busy, without_paths

REMEMBERED = 100  # jobs that can be asked for after they ended
MAX_WAITING = 16
# Share of a calibration's time by the label of its progress (ours: rounded from maps of a few hundred photos).
SHARES = {
    "encoding": 0.3, "vocabularies": 0.15, "descriptors": 0.2, "spectra": 0.1, "evidence": 0.1, "calibration": 0.1,
    "verification": 0.05,
}  # fmt: skip
log = getLogger("tfa.service")


@dataclass(frozen=True)
class Job:
    """How far a job has come; replaced as a whole, so that a reader never sees half of a change."""

    id: str
    state: str = "waiting"  # waiting, running, done, failed
    progress: float = 0.0
    message: str = "waiting for its turn"
    result: dict[str, Any] | None = None
    error: str | None = None

    @property
    def ended(self) -> bool:
        return self.state in ("done", "failed")


class Stopped(Exception):
    """The service ends before the job does."""


class JobBoard:
    """Runs jobs in a thread of its own and remembers the last of them."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._folders = folders  # of the server, which messages must not tell
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tfa-jobs")
        self._closing = False

    def start(self, work: Callable[[Progress], dict[str, Any]]) -> Job:
        """Queue `work`, which gets a progress to tell and returns the job's result."""
        job = Job(secrets.token_urlsafe(12))  # not to be guessed: a job's answer is for who started it
        with self._lock:
            if self._closing:
                raise busy("the service is stopping; ask again when it is back")
            if sum(not other.ended for other in self._jobs.values()) >= MAX_WAITING:
                raise busy(f"{MAX_WAITING} jobs wait already; try again when they are done")
            self._jobs[job.id] = job
            for old in [key for key, other in self._jobs.items() if other.ended][:-REMEMBERED]:
                del self._jobs[old]
        self._pool.submit(self._run, job.id, work)
        return job

    def get(self, job_id: str) -> Job:
        with self._lock:
            if job_id not in self._jobs:
                raise Refused(404, f"there is no job {job_id!r}; jobs are forgotten when the service restarts")
            return self._jobs[job_id]

    def counts(self) -> dict[str, int]:
        with self._lock:
            states = [job.state for job in self._jobs.values()]
        return {state: states.count(state) for state in ("waiting", "running", "done", "failed")}

    def close(self) -> None:
        """Stop the running job at its next step and those that wait."""
        self._closing = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _change(self, job_id: str, **changes: Any) -> None:
        with self._lock:
            self._jobs[job_id] = replace(self._jobs[job_id], **changes)

    def _run(self, job_id: str, work: Callable[[Progress], dict[str, Any]]) -> None:
        self._change(job_id, state="running", message="reading")
        try:
            result = work(_Told(self, job_id))
            self._change(job_id, state="done", progress=1.0, message="done", result=result)
        except Stopped:
            self._fail(job_id, "the service was stopped before the job was done; start it again")
        except Refused as error:
            self._fail(job_id, error.sentence)
        except TfaError as error:
            self._fail(job_id, without_paths(str(error), self._folders))
        except Exception:
            log.exception("a job failed")
            self._fail(job_id, DEFECT)

    def _fail(self, job_id: str, sentence: str) -> None:
        self._change(job_id, state="failed", message="failed", error=sentence)


class _Told:
    """A `Progress` that writes to the board."""

    def __init__(self, board: JobBoard, job_id: str) -> None:
        self._board, self._job_id, self._done = board, job_id, 0.0
        self._left = dict(SHARES)

    @contextmanager
    def task(self, label: str, total: int, unit: str = "") -> Iterator[Task]:
        share = self._left.pop(label, 0.0)
        self.tell(label, self._done)
        yield _Steps(self, label, share, total)
        self._done += share

    def tell(self, label: str, progress: float) -> None:
        if self._board._closing:
            raise Stopped
        self._board._change(self._job_id, message=label, progress=min(round(progress, 4), 0.99))

    def within(self, label: str, part: float) -> None:
        self.tell(label, self._done + part)


class _Steps:
    def __init__(self, told: _Told, label: str, share: float, total: int) -> None:
        self._told, self._label, self._share, self._total, self._made = told, label, share, max(total, 1), 0

    def advance(self, steps: int = 1) -> None:
        self._made += steps
        self._told.within(self._label, self._share * min(self._made / self._total, 1.0))
