"""Live metrics of a job, which the steady-state hypothesis is checked against."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from testbed.core.experiment.steady import WINDOW_S
from testbed.core.topology.model import Topology
from testbed.lab.jobs.recorder import Recorder
from testbed.lab.jobs.running_job import RunningJob

__all__ = ["LiveMetrics"]

REPORTS: Final = 2
"""The window has at least as many intervals between reports of steps: some programs report every hundredth step."""
WARM_STEPS: Final = 10
"""The first steps are slow: memory is touched for the first time, connections are opened."""


class LiveMetrics:
    """Follows one job by its step records and one lab by its events."""

    def __init__(self, topology: Topology, job: RunningJob, recorder: Recorder) -> None:
        self._topology, self._job, self._recorder = topology, job, recorder
        self._commits: deque[tuple[float, int]] = deque()
        self._step = 0
        self._durations: deque[float] = deque(maxlen=10)
        self._intervals: deque[float] = deque(maxlen=10)
        self._processed = 0
        self._dark: set[tuple[str, str]] = set()
        self.active: dict[str, str] = {}
        """Faults in force: type and target by id."""
        self.began: dict[int, int] = {}
        """How often each fault of the schedule began, by its number."""
        self.ended = 0
        """How many faults of the schedule are over."""
        self._mine: set[str] = set()

    def note(self, t: float, step: int) -> None:
        """Record that ``step`` was committed at ``t``; call often.

        After a restart repeated steps count again, because these are rates of work.
        """
        before_t, done = self._commits[-1] if self._commits else (t, 0)
        moved = step - self._step
        self._step = step
        if moved <= 0 and self._commits:
            return
        if self._commits:
            self._durations.append((t - before_t) / moved)
            self._intervals.append(t - before_t)
        self._commits.append((t, done + moved))
        while len(self._commits) > 2 and self._commits[1][0] < t - 2 * self._window_s:
            self._commits.popleft()

    def hear(self, until_t: float = math.inf) -> None:
        """Process new events, up to ``until_t``."""
        events = self._recorder.events
        while self._processed < len(events) and _happened_t(events[self._processed]) <= until_t:
            self._take(events[self._processed])
            self._processed += 1

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, number = event["event"], event.get("scheduled")
        if kind == "carrier":
            (self._dark.discard if event["up"] else self._dark.add)((event["link"], event["site"]))
        elif kind == "fault-began":
            self.active[event["fault"]] = f"{event['type']} {event['target']}"
            if number is not None:
                self.began[number] = self.began.get(number, 0) + 1
                self._mine.add(event["fault"])
        elif kind == "fault-ended":
            self.active.pop(event["fault"], None)
            self.ended += event["fault"] in self._mine

    def is_warm(self, t: float) -> bool:
        """Whether there are enough steps to measure rates; without steps, whether the job has run for as long."""
        enough = not self._job.reports_steps or (bool(self._commits) and self._commits[-1][1] >= WARM_STEPS)
        return enough and bool(self._commits) and t - self._commits[0][0] >= WINDOW_S

    def values(self, t: float) -> dict[str, float | None]:
        """Return the metrics of ``steady.METRICS`` except ``links_up``; None for unknown values."""
        steps_per_s = self._steps_per_s(t)
        tokens, loss = self._job.tokens_per_step, self._job.last.get("train_loss")
        return {
            "steps_per_s": steps_per_s,
            "tokens_per_s": None if steps_per_s is None or tokens is None else steps_per_s * tokens,
            "step_seconds": self._step_seconds(t),
            "train_loss": None if loss is None else float(loss),
            "ranks_up": float(self._job.ranks_up(self._recorder.ranks)),
        }

    @property
    def links_up(self) -> float:
        """Links without a lost carrier, according to the events processed so far."""
        return float(len({link.name for link in self._topology.links} - {link for link, _ in self._dark}))

    def _steps_per_s(self, t: float) -> float | None:
        """Return the rate of committed steps in the window that ends at ``t``."""
        window_s = self._window_s
        if not self._job.reports_steps or not self._commits or t - self._commits[0][0] < window_s:
            return None
        before = [step for at, step in self._commits if at <= t - window_s]
        return (self._commits[-1][1] - (before[-1] if before else self._commits[0][1])) / window_s

    @property
    def _window_s(self) -> float:
        return max(WINDOW_S, REPORTS * statistics.median(self._intervals)) if self._intervals else WINDOW_S

    def _step_seconds(self, t: float) -> float | None:
        if len(self._durations) < 3:
            return None
        return max(statistics.median(self._durations), t - self._commits[-1][0])


def _happened_t(event: Mapping[str, Any]) -> float:
    """Return the time of an event: a fault may act from its command on; its end counts when acknowledged."""
    key = "command_t" if event["event"] == "fault-began" else "t"
    return float(event.get(key, event["t"]))
