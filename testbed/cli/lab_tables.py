"""Tables and lines of what a host has (labs, runs) and of a lab's state: links, ranks, jobs, fibers, captures; nothing
here prints."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from testbed.cli.tables import BAD, UNSURE, Row, table, verdict
from testbed.core.units import format_delay, format_duration, format_number, format_percent, format_size

if TYPE_CHECKING:
    from testbed.keeper.protocol import DirectionInForce
    from testbed.lab.api import LabStatus, LabSummary, RunSummary
    from testbed.lab.capture import Capture
    from testbed.lab.fiber_status import FiberStatus
    from testbed.lab.job_status import JobStatus


# ---- labs and runs


def labs(summaries: Sequence[LabSummary], now_unix_s: float) -> Table:
    rows: list[Row] = [
        [
            lab.name,
            lab.topology,
            verdict(lab.state),
            str(lab.nodes or "?"),
            format_duration(max(0.0, round(now_unix_s - lab.since_unix_s)), 3),
        ]
        for lab in summaries
    ]
    return table(("lab", "topology", "state", "nodes", "uptime"), rows, right=("nodes", "uptime"))


def runs(summaries: Sequence[RunSummary]) -> Table:
    rows: list[Row] = [
        [
            run.name,
            run.topology,
            _moment(run.started_unix_s),
            run.state if run.pid is None else f"{run.state}, pid {run.pid}",
            verdict(run.verdict or "unknown"),
            str(run.path),
        ]
        for run in summaries
    ]
    return table(("run", "topology", "started", "state", "verdict", "folder"), rows)


def _moment(unix_s: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s)) if unix_s else "-"


# ---- status


def of_status(status: LabStatus) -> list[Table]:
    from testbed.core.physics import full_scale

    link_rows: list[Row] = [
        [
            link.name,
            f"{link.km:g}",
            _carriers(link.carrier),
            verdict(link.verdict),
            full_scale.in_text(", ".join(link.phases or link.faults) or "-", status.scale),
            "  ".join(f"→ {name.rpartition(':')[2]} {count}" for name, count in link.packets.items()) or "-",
            str(link.drops),
        ]
        for link in status.links
    ]
    rank_rows: list[Row] = [
        [
            str(rank.rank),
            rank.node,
            rank.site,
            verdict(rank.state),
            "-" if rank.step is None else str(rank.step),
            "-" if rank.train_loss is None else f"{rank.train_loss:.3f}",
            ", ".join(rank.phases or rank.faults) or "-",
        ]
        for rank in status.ranks
    ]
    tables = [
        table(("link", "km", "carrier", "verdict", "faults", "packets", "drops"), link_rows, right=("km", "drops"))
    ]
    if in_force_rows := [
        row for link in status.links for state in link.in_force if (row := _in_force(state, status.scale)) is not None
    ]:
        tables.append(table(("direction", "in force", "by", "masked"), in_force_rows))
    if rank_rows:
        tables.append(
            table(
                ("rank", "node", "site", "state", "step", "train_loss", "faults"),
                rank_rows,
                right=("rank", "step", "train_loss"),
            )
        )
    return tables


def _in_force(state: DirectionInForce, scale: float) -> Row | None:
    """Return a direction's values that the link does not make alone; None if there are none."""
    from testbed.core.physics import full_scale

    values = [value for value in state["values"] if value["by"] != ["link"]]
    if not values and not state["dark_by"]:
        return None
    lines = [("dark", state["dark_by"])] if state["dark_by"] else []
    lines += [(f"{value['key']} {value['text']}", value["by"]) for value in values]
    masked = [f"{value['key']} of {value['fault']}" for value in state["masked"]]
    return [
        state["direction"],
        "\n".join(full_scale.in_text(text, scale) for text, _ in lines),
        "\n".join(" + ".join(by) for _, by in lines),
        "\n".join(masked) or "-",
    ]


def status_line(lab: LabStatus) -> Text:
    line = Text(f"{lab.name}: ").append_text(verdict(lab.state))
    line.append(f" for {format_duration(round(lab.uptime_s), 3)}, topology {lab.topology}")
    line.append(f", driver {lab.driver or '?'}, emulator {lab.emulator or '?'}")
    if lab.prometheus:
        line.append(", with Prometheus")
    if lab.noisy:
        line.append(", ").append("noisy", style=UNSURE)
    if lab.links and not lab.why:
        line.append(f"\n  {_summary(lab)}")
    for why in lab.why:
        line.append(f"\n  {why}", style=BAD)
    for job in lab.jobs:
        line.append(f"\n  {job_line(job)}", style=UNSURE if job.state == "stopping" else "")
    for waits in (*lab.waits, *lab.captures):
        line.append(f"\n  {waits}", style=UNSURE)
    if lab.noise is not None and lab.noise.noisy:
        share, longest = format_percent(lab.noise.stalled_share), format_duration(lab.noise.longest_s, 2)
        stalled = f"{share} of the time, {longest} at most"
        period = "since it came up" if lab.young else "in the last minute"
        line.append(f"\n  {period} the host's cores stalled {stalled}", style=UNSURE)
    return line


def _summary(status: LabStatus) -> str:
    """Return the state of links and ranks in a sentence, for a reader who does not know the columns."""
    dark = [link.name for link in status.links if not all(link.carrier.values())]
    lit = len(status.links) - len(dark)
    parts = [f"{lit} of {len(status.links)} links carry light at both ends" if dark else "all links carry light"]
    faulty = {fault for link in status.links for fault in link.faults}
    faulty |= {fault for rank in status.ranks for fault in rank.faults}
    parts.append(f"{len(faulty)} fault{'s' if len(faulty) > 1 else ''} in force" if faulty else "no fault is in force")
    if training := [rank for rank in status.ranks if rank.state == "training"]:
        steps = [rank.step for rank in training if rank.step is not None]
        parts.append(
            f"{len(training)} of {len(status.ranks)} ranks train" + (f", at step {min(steps)}" if steps else "")
        )
    elif status.ranks:
        parts.append(f"{len(status.ranks)} ranks, none trains")
    return f"{'; '.join(parts)}."


STATUS_LEGEND = (
    "carrier: whether each site's gateway sees light. verdict: of the last certificate. packets: sent toward each site"
    " since the lab came up. drops: packets lost on the link, for any cause, cuts and configured loss included."
)


def status_notes(status: LabStatus) -> list[str]:
    """Return the lines below the tables of ``status``: full scale, and the meaning of the columns."""
    from testbed.core.physics import full_scale

    scale = full_scale.sentence((link.rate_bps for link in status.links if link.rate_bps), status.scale)
    return [line for line in (*status.fabrics, scale, STATUS_LEGEND if status.links else "") if line]


def _carriers(carrier: Mapping[str, bool]) -> Text:
    line = Text()
    for site, lit in carrier.items():
        line.append(f"{site} ").append_text(verdict("up" if lit else "down")).append(" ")
    line.rstrip()
    return line


# ---- jobs


def jobs(statuses: Sequence[JobStatus]) -> Table:
    rows: list[Row] = [
        [
            job.id,
            job.kind,
            job.what,
            time.strftime("%H:%M:%S", time.localtime(job.since_unix_s)) if job.since_unix_s else "-",
            _step_of(job) or "-",
            verdict(job.state),
            job.run or "-",
        ]
        for job in statuses
    ]
    return table(("job", "kind", "what", "since", "step", "state", "run directory"), rows, right=("step",))


def job_line(job: JobStatus) -> str:
    """Return a job with its figures in one line, for ``status``."""
    run = f"; {job.run}" if job.run else ""
    stopping = ", stopping" if job.state == "stopping" else ""
    figures = _figures(job)
    return f"job {job.id}{stopping}: {job.kind}, {job.what}{': ' + figures if figures else ''}{run}"


def _figures(job: JobStatus) -> str:
    """Return what is known of a job's progress: ``step 120/500, 4,512 tokens/s, train_loss 2.41, for 20 s``."""
    figures = [f"step {_step_of(job)}"] if job.step is not None else []
    if job.tokens_per_s is not None:
        figures.append(f"{job.tokens_per_s:,.0f} tokens/s")
    if job.train_loss is not None:
        figures.append(f"train_loss {format_number(job.train_loss, 4)}")
    if job.elapsed_s:
        figures.append(f"for {format_duration(round(job.elapsed_s), 3)}")
    return ", ".join(figures)


def job_state(job: JobStatus) -> str:
    """Return how a job stands, in a sentence for a person who asked for its end."""
    where = f" at step {step}" if (step := _step_of(job)) else ""
    return f"{job.id}: {job.state}{where}" + (f": {job.why}" if job.why else "")


def _step_of(job: JobStatus) -> str:
    """Return the step of a job, of how many if that is known; empty if it reports none."""
    if job.step is None:
        return ""
    return f"{job.step}/{job.steps}" if job.steps is not None else str(job.step)


# ---- one fiber, and captures of it


FIBER_LEGEND = (
    "by: who made a value: link, protection, or the id of a fault. packets, segments, bytes: delivered since the lab"
    " came up; a super-packet is one packet and several segments. dropped: segments. late: sent later than due, by the"
    " emulator's own clock."
)

_ENDINGS = {
    "time": "the time is over",
    "size": "the file is as large as it may be (--most)",
    "reader": "the program that read the packets has ended",
    "lab": "the lab was taken down",
}


def fiber_line(fiber: FiberStatus) -> Text:
    """Return where a direction begins and ends, and whether the emulator has the values in force."""
    line = Text(fiber.direction, style="bold")
    line.append(f": {fiber.sender} → {fiber.receiver}", style="default not bold")
    line.append(f", interface {fiber.interface}, plant {fiber.ends[0]} and {fiber.ends[1]}", style="default not bold")
    if fiber.dark_by:
        line.append(f"\n  dark, by {' + '.join(fiber.dark_by)}: no packet passes", style=BAD)
    if fiber.differences:
        for difference in fiber.differences:
            line.append(f"\n  the emulator differs from what is in force: {difference}", style=BAD)
    else:
        line.append(
            f"\n  read back from {fiber.emulator}: it applies exactly the values below", style="default not bold"
        )
    if fiber.captures:
        line.append(f"\n  captured now, by {', '.join(fiber.captures)}", style=UNSURE)
    return line


def of_fiber(fiber: FiberStatus, scale: float, before: FiberStatus | None = None) -> list[Table]:
    """Return the values in force and the counters; ``before``: the same direction a moment ago, for rates."""
    from testbed.core.physics import full_scale

    rows: list[Row] = [
        [
            held.key,
            full_scale.in_text(held.text, scale),
            " + ".join(held.by),
            ", ".join(_masked(fiber, held.key)) or "-",
        ]
        for held in fiber.values
    ]
    if fiber.delay_s is not None and fiber.taken_off_s:
        applied = f"{format_delay(fiber.delay_s)} ({format_delay(fiber.taken_off_s)} taken off)"
        rows.insert(1, ["delay, as applied", applied, "calibration", "-"])
    stated = {held.key for held in fiber.values}
    rows += [[key, "-", "-", fault] for fault, key in fiber.masked if key not in stated]
    tables = [table(("in force", "value", "by", "masked"), rows)]
    heads = ["counter", "since the lab came up", *(["per second"] if before else [])]
    counted: list[Row] = [
        [name, total, *([per_second] if before else [])] for name, total, per_second in _counters(fiber, before, scale)
    ]
    tables.append(table(heads, counted, right=heads[1:]))
    return tables


def _masked(fiber: FiberStatus, key: str) -> list[str]:
    return [fault for fault, masked in fiber.masked if masked == key]


def _counters(fiber: FiberStatus, before: FiberStatus | None, scale: float) -> list[tuple[str, str, str]]:
    from testbed.core.physics import full_scale

    passed_s = fiber.t - before.t if before else 0.0

    def per_s(now: float, then: float) -> float:
        return max(0.0, now - then) / passed_s if passed_s > 0 else 0.0

    def line(name: str, now: int, then: int | None) -> tuple[str, str, str]:
        return name, f"{now:,}", f"{per_s(now, then or 0):,.0f}"

    old = before or fiber
    bps = 8 * per_s(fiber.bytes, old.bytes)
    lines = [
        line("packets", fiber.packets, old.packets),
        line("segments", fiber.segments, old.segments),
        ("bytes", f"{fiber.bytes:,}", full_scale.stands_for(bps, scale, 3) if bps else "0 b/s"),
    ]
    lines += [
        line(f"dropped, {cause}", count, old.drops.get(cause)) for cause, count in fiber.drops.items() if count
    ] or [("dropped", "0", "0")]
    for name, now, then in (
        ("corrupted", fiber.corrupted, old.corrupted),
        ("duplicated", fiber.duplicated, old.duplicated),
        ("reordered", fiber.held_back, old.held_back),
    ):
        lines.append((name, "not counted", "") if now is None else line(name, now, then))
    lines.append(("queue now", f"{fiber.queue_bytes:,} B" if fiber.queue_bytes else "empty", ""))
    if fiber.in_flight_packets is not None:
        lines.append(("in flight now", f"{fiber.in_flight_packets:,}", ""))
    if not fiber.lateness_bounds_s:
        lines.append(("late", "not measured", ""))
    else:
        lines.append(("late, median", _late(fiber.late_median_s, fiber), ""))
        lines.append(("late, 99 %", _late(fiber.late_p99_s, fiber), ""))
    return lines


def _late(value_s: float | None, fiber: FiberStatus) -> str:
    if value_s is None:
        return "no packet yet"
    if math.isinf(value_s):
        return f"more than {format_delay(fiber.lateness_bounds_s[-1])}"
    return format_delay(value_s, 3)


def rates(fibers: Sequence[FiberStatus]) -> list[float]:
    """Return the rates in force, for a sentence on what they stand for."""
    values = [fiber.impairment.get("rate_bps") for fiber in fibers]
    return [bps for bps in values if isinstance(bps, float | int) and bps]


def captured(capture: Capture) -> list[str]:
    """Return what was captured, in sentences; the first is about all directions together."""
    where = f" in {capture.file}" if capture.file is not None else ""
    lines = [f"{_plural(capture.packets, 'packet')}{where}, {format_size(capture.size, 3)}"]
    if why := _ENDINGS.get(capture.ending):
        lines[0] += f"; {why}"
    if len(capture.found) > 1:
        lines += [f"  {fiber.direction}: {_plural(fiber.packets, 'packet')}" for fiber in capture.found]
    if capture.dropped:
        lines.append(
            f"{_plural(capture.dropped, 'packet')} dropped by the kernel, as this process was too busy to take them:"
            " they are missing in the file, not on the fiber. A smaller --snaplen helps"
        )
    else:
        lines.append("0 packets dropped by the kernel: the file has all of them")
    if capture.super_packets:
        largest = max(fiber.largest_bytes for fiber in capture.found)
        lines.append(
            f"{_plural(capture.super_packets, 'super-packet')} among them, up to {largest:,} bytes: segments of one"
            " flow that the host hands over as one packet (GSO). A wire would carry each of their segments by itself"
        )
    return lines


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
