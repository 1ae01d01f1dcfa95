"""The loop of a run: follow the job from first step to end, inject faults, check the steady state, show progress."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from testbed.core.analysis.noise.host_noise import StallLog
from testbed.core.analysis.noise.steady_noise import within_noise
from testbed.core.experiment.steady import Condition, Monitor, OnVerdict, SteadyCheck, Violation
from testbed.core.physics import full_scale
from testbed.core.report import fault_words
from testbed.core.units import format_number
from testbed.errors import JobFailed, LabError, TestbedError
from testbed.host.files.store import RunDirectory
from testbed.keeper.journal import FIBERS_DARK
from testbed.lab.jobs.recorder import Recorder
from testbed.lab.jobs.running_job import RunningJob
from testbed.lab.progress import LiveState, Progress
from testbed.lab.run.fault_player import FaultPlayer
from testbed.lab.run.live_metrics import LiveMetrics

__all__ = ["Follower", "teller"]

STALL_BOUND_S: Final = 120.0
"""A job that commits no step for this long, beyond the longest fault, is considered stuck."""
STALL_SLACK_S: Final = 30.0
"""Margin over the job's own stall bound, whose error says more and should come first."""
SAMPLE_S: Final = 0.25
CHECK_S: Final = 0.5
POLL_S: Final = 0.02
TOLD_S: Final = 0.2
"""Maximum delay between an event and its report."""


def teller(run: RunDirectory, progress: Progress) -> OnVerdict:
    """Return a callback that records and shows when a steady-state condition is violated and when it holds again."""

    def tell(t: float, condition: Condition, again: bool, measured: float | None) -> None:
        content = {"when": condition.when, "text": condition.check.text, "holds": again, "measured": measured}
        run.append("events.jsonl", {"t": t, "event": "check", **content})
        state = "holds again" if again else "does not hold"
        progress.event(f"{condition.when}: {condition.check.text} {state}" + _measured(measured))

    return tell


def _measured(value: float | None) -> str:
    return "" if value is None else f" ({format_number(value, 4)})"


class Follower:
    """Follows one job of a run; :meth:`follow` returns when the job has succeeded."""

    def __init__(
        self,
        job: RunningJob,
        live: LiveMetrics,
        recorder: Recorder,
        player: FaultPlayer,
        monitor: Monitor,
        progress: Progress,
    ) -> None:
        self._job, self._live, self._recorder = job, live, recorder
        self._player, self._monitor, self._progress = player, monitor, progress
        self._total = job.steps
        """None: a program that does not say how many it makes."""
        longest_s = max((fault.lasts_s or 0.0 for fault in player.planned), default=0.0)
        bound_s = job.stall_s
        self._stall_s = None if bound_s is None else longest_s + max(STALL_BOUND_S, bound_s + STALL_SLACK_S)
        self._moved_t = 0.0
        """When the latest step was committed."""
        self._values: dict[str, float | None] = {}
        self._samples: deque[tuple[float, dict[str, float | None]]] = deque()

    def follow(self) -> None:
        """Follow the job to its end. Raises JobFailed if the job failed or the steady state did not hold before the
        first fault, LabError if the result is unknown."""
        try:
            self._follow()
        except TestbedError:
            self._judge(time.monotonic())
            raise
        self._judge(self._moved_t if self._job.lingers else time.monotonic())
        self._job.wait(timeout=30.0)
        self._show(self._job.step if self._total is None else self._total)

    def _follow(self) -> None:
        self._moved_t, seen = time.monotonic(), 0
        sampled_t = checked_t = 0.0
        while True:
            step, now = self._job.step, time.monotonic()
            if step != seen or self._begins_again():
                self._moved_t, seen = now, step
            self._live.note(now, step)
            if now - sampled_t >= SAMPLE_S:
                sampled_t = now
                self._sample(now)
                self._show(step)
            self._play(now, step)
            if now - checked_t >= CHECK_S:
                checked_t = now
                if self._is_over():
                    break
                if self._stall_s is not None and (stood_s := now - self._moved_t) > self._stall_s:
                    raise LabError(f"no step was committed for {stood_s:.0f} s; the job is stuck at step {step}")
            time.sleep(POLL_S)

    def _begins_again(self) -> bool:
        """Whether the job is waiting to restart; then a lack of progress is expected."""
        return bool(self._job.waiting)

    def _is_over(self) -> bool:
        if why := self._recorder.lab_failure:
            raise LabError(why)
        for event in list(self._recorder.events):
            if event["event"] == "fault-failed":
                raise LabError(f"{event['type']} {event['target']} did not happen as planned: {event['why']}")
        if self._job.over() and self._job.failure():
            raise self._job.failed()
        return self._job.done()

    def _sample(self, now: float) -> None:
        if self._live.is_warm(now):
            taken = self._live.values(now)
            self._values = {**self._values, **taken}
            self._samples.append((now, taken))
        known_t = self._recorder.complete_until - TOLD_S
        # After its last step a program may take a while to end, which is no outage: only the next step tells.
        waits = self._job.lingers and self._player.all_handed_over
        self._judge(min(known_t, self._moved_t) if waits else known_t)

    def _judge(self, known_t: float) -> None:
        """Pass the samples up to ``known_t`` to the monitor. All events up to then are known, so that a sample from
        within a fault does not count as one from before it."""
        while self._samples and self._samples[0][0] <= known_t:
            t, values = self._samples.popleft()
            self._live.hear(t)
            values["links_up"] = self._values["links_up"] = self._live.links_up
            all_over = self._player.all_handed_over and 0 < self._player.total <= self._live.ended
            self._monitor.sample(t, values, bool(self._live.active), all_over)
        if not self._samples:
            self._live.hear(known_t)

    def _play(self, now: float, step: int) -> None:
        began_t = self._job.began_t
        if began_t is None or self._player.all_handed_over:
            return
        if not self._player.begun and self._expects_before():
            if not self._player.due(now, began_t, step, self._values):
                return
            self._refuse_unsteady()
        self._player.hand_over(now, began_t, step, self._values)

    def _expects_before(self) -> bool:
        return any(condition.when == "before" for condition in self._monitor.conditions)

    def _refuse_unsteady(self) -> None:
        steady = self._monitor.steady()
        if steady:
            return
        bad = [
            verdict for verdict in self._monitor.verdicts() if verdict.when == "before" and verdict.holds is not True
        ]
        conditions = "; ".join(f"{verdict.text}{_measured(verdict.measured)}" for verdict in bad)
        if steady is None:
            raise LabError(f"no fault was injected: it is unknown whether the steady state held before: {conditions}")
        if all(verdict.holds is None or self._within_noise(verdict) for verdict in bad):
            raise LabError(
                "no fault was injected: the steady state did not hold before, perhaps due to stalls of the host:"
                f" {conditions}"
            )
        raise JobFailed(f"no fault was injected: the steady state did not hold before: {conditions}")

    def _within_noise(self, verdict: SteadyCheck) -> bool:
        now = time.monotonic()
        violations = verdict.violations or (Violation(now, now, verdict.measured),)
        return within_noise(verdict.text, verdict.bound, violations, self._noise())

    def _noise(self) -> StallLog:
        return StallLog(tuple(self._recorder.stalls), (), True)

    def _show(self, step: int) -> None:
        recorder = self._recorder
        while recorder.shown < len(recorder.events):
            event = recorder.events[recorder.shown]
            recorder.shown += 1
            if text := _text(event):
                self._progress.event(full_scale.in_text(text, recorder.scale))
        self._progress.tick(
            LiveState(
                step,
                self._total,
                self._job.last.get("train_loss"),
                recorder.tokens_per_s or self._values.get("tokens_per_s") or 0.0,
                recorder.throughput_bps,
                tuple(self._live.active.values()),
                recorder.scale,
            )
        )


def _words(event: Mapping[str, Any]) -> str:
    return fault_words.in_full(event["type"], event["target"], event.get("parameters") or {})


def _text(event: Mapping[str, Any]) -> str:
    kind = event["event"]
    if kind == "fault-began":
        return f"{_words(event)}: began ({event['fault']})"
    if kind == "fault-ended":
        return f"{_words(event)}: ended ({event['fault']})"
    if kind == "carrier":
        return f"{event['site']}: carrier {'up' if event['up'] else 'down'} on {event['link']}"
    if kind == "container-died":
        return f"the container of {event['node']} died"
    if kind == "emulator-died":
        return FIBERS_DARK
    return ""
