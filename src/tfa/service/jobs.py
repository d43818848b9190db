"""Jobs that clients poll: calibrations, run one at a time, with progress."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging import getLogger
from typing import Any, Literal

from tfa.core.plain import Value, opt, req
from tfa.core.progress import Progress, Task
from tfa.errors import TfaError, from_os_error
from tfa.service.problems import INTERNAL_ERROR, Refused, refuse_busy

_REMEMBERED = 100  # ended jobs whose result can still be fetched
MAX_WAITING, MAX_OF_ONE = 16, 12  # unfinished jobs, and those of one caller
TASK_SHARE = 0.25  # part of the remaining bar for each task, since the number of tasks is unknown
_log = getLogger("tfa.service")
_CUT_OFF = "the service stopped before the job finished; start the job again"
_ABANDONED = "the service was killed before the job finished; start it again unless the map has its result"
JobState = Literal["waiting", "running", "done", "failed"]


class Job(Value):
    """State of a job; replaced as a whole, so that readers never see a partial change."""

    id: str = req("Id of the job.")
    state: JobState = opt("waiting", "State of the job.")
    progress: float = opt(0.0, "Progress from 0 to 1.")
    message: str = opt("waiting for its turn", "What it does now.")
    result: dict[str, Any] | None = opt(None, "Result; null before the job is done.")
    error: str | None = opt(None, "Why it failed.")

    @property
    def ended(self) -> bool:
        return self.state in ("done", "failed")


class Stopped(Exception):
    """The service is stopping before the job finished."""


class JobBoard:
    """Runs jobs in one thread and remembers the most recent ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._ended: dict[str, tuple[str, Callable[[Job], None]]] = {}  # caller and callback of unfinished jobs
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tfa-jobs")
        self._closing = False

    def start(self, work: Callable[[Progress], dict[str, Any]], ended: Callable[[Job], None], caller: str = "") -> Job:
        """Queue `work`, which receives a progress and returns the job's result.

        `ended` is called once with the ended job, before clients see that it ended.
        """
        job = Job(id=secrets.token_urlsafe(12))  # not guessable: only the caller may see the result
        with self._lock:
            if self._closing:
                raise refuse_busy("the service is stopping; retry when it is back")
            waiting, mine = len(self._ended), sum(other == caller for other, _ in self._ended.values())
            if waiting >= MAX_WAITING or mine >= MAX_OF_ONE:
                raise refuse_busy(f"{waiting} jobs are waiting, {mine} of them yours; retry when they are done")
            self._jobs[job.id], self._ended[job.id] = job, (caller, ended)
            for old in [key for key, other in self._jobs.items() if other.ended][:-_REMEMBERED]:
                del self._jobs[old]
        self._pool.submit(self._run, job.id, work)
        return job

    def get(self, job_id: str) -> Job:
        with self._lock:
            if job_id not in self._jobs:
                raise Refused(404, f"job {job_id!r} not found; jobs are deleted when the service restarts")
            return self._jobs[job_id]

    def count(self, state: JobState) -> int:
        with self._lock:
            return sum(job.state == state for job in self._jobs.values())

    def close(self) -> None:
        """Stop the running job at its next step, and all waiting jobs."""
        self._closing = True
        self._pool.shutdown(wait=True)

    def give_up(self) -> None:
        """Mark all unfinished jobs as failed, since the process is about to exit."""
        for job_id in list(self._ended):
            self._fail(job_id, _ABANDONED)

    def _change(self, job_id: str, **changes: Any) -> None:
        with self._lock:
            self._jobs[job_id] = replace(self._jobs[job_id], **changes)

    def _run(self, job_id: str, work: Callable[[Progress], dict[str, Any]]) -> None:
        try:
            if self._closing:
                raise Stopped
            self._change(job_id, state="running", message="reading")
            result = work(_JobProgress(self, job_id))
            self._end(job_id, state="done", progress=1.0, message="done", result=result)
        except Stopped:
            self._fail(job_id, _CUT_OFF)
        except TfaError as error:
            self._fail(job_id, error.public)
        except BaseException as error:  # a failed job must never appear to be running
            if not isinstance(error, MemoryError):
                _log.exception("a job failed")
            known = from_os_error(error) if isinstance(error, OSError | MemoryError) else None
            self._fail(job_id, INTERNAL_ERROR if known is None else known.public)

    def _fail(self, job_id: str, sentence: str) -> None:
        self._end(job_id, state="failed", message="failed", error=sentence)

    def _end(self, job_id: str, **changes: Any) -> None:
        with self._lock:
            _, ended = self._ended.pop(job_id, ("", None))
            last = replace(self._jobs[job_id], **changes)
        if ended is None:  # already ended by `give_up`
            return
        try:
            ended(last)
        except Exception:
            _log.exception("the callback of an ended job failed")
        with self._lock:
            self._jobs[job_id] = last


class _JobProgress:
    """A `Progress` that updates a job; each task moves the bar by a share of the remainder."""

    def __init__(self, board: JobBoard, job_id: str) -> None:
        self._board, self._job_id, self._done = board, job_id, 0.0

    @contextmanager
    def task(self, label: str, total: int, unit: str = "") -> Iterator[Task]:
        share = TASK_SHARE * (1 - self._done)
        task = _JobTask(self._board, self._job_id, label, self._done, share, max(total, 1))
        task.advance(0)
        yield task
        self._done += share


@dataclass
class _JobTask:
    board: JobBoard
    job_id: str
    label: str
    start: float  # progress at which the task begins
    share: float
    total: int
    steps: int = 0

    def advance(self, steps: int = 1) -> None:
        if self.board._closing:
            raise Stopped
        self.steps += steps
        reached = self.start + self.share * min(self.steps / self.total, 1)
        self.board._change(self.job_id, message=self.label, progress=round(reached, 4))
