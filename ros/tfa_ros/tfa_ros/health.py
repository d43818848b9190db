"""Node health: counts, latencies and the last problem, as diagnostics."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

OK, WARN, ERROR, STALE = range(4)  # levels of diagnostic_msgs/DiagnosticStatus
RECENT = 100  # answers used for latency and the fraction of sure answers
NEVER_SURE = 20  # consecutive answers without a sure one that cause a warning


@dataclass(frozen=True)
class Status:
    """Fields of diagnostic_msgs/DiagnosticStatus."""

    name: str
    level: int
    message: str
    values: dict[str, str]


class Health:
    """Counts and states of the node. Thread-safe."""

    def __init__(self, stale_after: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._stale_after = clock, stale_after
        self._lock = threading.Lock()
        self._started, self._last_image, self._last_contact = clock(), -1.0, -1.0
        self._answers: deque[tuple[float, bool, float]] = deque(maxlen=RECENT)  # seconds, sure, confidence
        self._answered = self._bad_photos = self._away = self._busy = 0
        self._service: tuple[int, str] = (WARN, "no query sent yet")
        self._bad_photo = self._verdict = ""

    def image_came(self) -> None:
        with self._lock:
            self._last_image = self._clock()

    def answered(self, seconds: float, sure: bool, confidence: float, verdict: str = "") -> None:
        with self._lock:
            self._answered += 1
            self._verdict = verdict
            self._answers.append((seconds, sure, confidence))
            self._contact(OK, "answers")
            self._bad_photo = ""

    def bad_photo(self, sentence: str) -> None:
        with self._lock:
            self._bad_photos += 1
            self._bad_photo = sentence

    def is_ready(self) -> None:
        """Note that the service is ready; a refusal stays until a query succeeds."""
        with self._lock:
            refused = self._service[0] == ERROR
            self._contact(*(self._service if refused else (OK, "ready")))

    def away(self, sentence: str) -> None:
        with self._lock:
            self._away += 1
            self._service = (WARN, sentence)

    def busy(self, sentence: str) -> None:
        with self._lock:
            self._busy += 1
            self._contact(WARN, sentence)

    def refused(self, sentence: str) -> None:
        """Note that the service refuses all queries, such as for a wrong API key or map."""
        with self._lock:
            self._contact(ERROR, sentence)

    def _contact(self, level: int, message: str) -> None:
        self._service, self._last_contact = (level, message), self._clock()

    def quiet(self, seconds: float) -> bool:
        """Return True if there was no contact with the service for this long."""
        with self._lock:
            return self._last_contact < 0 or self._clock() - self._last_contact >= seconds

    def statuses(self, came: int, replaced: int) -> list[Status]:
        """Return the states of the service, the images and the answers; the counts are of images."""
        with self._lock:
            return [self._of_service(), self._of_images(came, replaced), self._of_answers()]

    def _of_service(self) -> Status:
        level, message = self._service
        times = sorted(seconds for seconds, _, _ in self._answers)
        values = {"no answer": str(self._away), "too busy": str(self._busy)}
        if times:
            values["latency, last (s)"] = f"{self._answers[-1][0]:.3f}"
            values["latency, median (s)"] = f"{times[len(times) // 2]:.3f}"
            values["latency, longest (s)"] = f"{times[-1]:.3f}"
        return Status("service", level, message, values)

    def _of_images(self, came: int, replaced: int) -> Status:
        since = self._clock() - max(self._last_image, self._started)
        values = {"received": str(came), "dropped for newer ones": str(replaced), "not readable": str(self._bad_photos)}
        if since >= self._stale_after:
            what = "no image yet" if self._last_image < 0 else f"no image for {since:.0f} s"
            return Status("images", STALE, f"{what}; is the camera publishing on this topic?", values)
        if self._bad_photo:
            return Status("images", ERROR, self._bad_photo, values)
        return Status("images", OK, "receiving images" if came else "waiting for the first image", values)

    def _of_answers(self) -> Status:
        sure = sum(1 for _, sure, _ in self._answers if sure)
        values = {"answers": str(self._answered)}
        if not self._answers:
            return Status("answers", OK, "no answer yet", values)
        share = f"{sure} of the last {len(self._answers)} answers are sure"
        values["sure share"] = f"{sure / len(self._answers):.2f}"
        values["confidence, last"] = f"{self._answers[-1][2]:.2f}"
        values["verdict, last"] = self._verdict
        last = list(self._answers)[-NEVER_SURE:]
        if len(last) == NEVER_SURE and not any(one for _, one, _ in last):
            sentence = f"none of the last {NEVER_SURE} answers is sure; if the camera is inside the map, calibrate it"
            return Status("answers", WARN, sentence, values)
        return Status("answers", OK, share, values)
