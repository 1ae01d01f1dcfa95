"""Tables and sentences of ``status --fiber`` and ``capture``: one fiber, and the packets that were captured of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from testbed.cli import tables
from testbed.cli.tables import BAD, Row
from testbed.core.physics import full_scale
from testbed.core.units import format_delay, format_size

if TYPE_CHECKING:
    from testbed.lab.capture import Capture
    from testbed.lab.fiber_status import FiberStatus

__all__ = ["LEGEND", "captured", "fiber", "fiber_line", "rates"]

LEGEND = (
    "by: who made a value: link, protection, or the id of a fault. packets, segments, bytes: delivered since the lab"
    " came up; a super-packet is one packet and several segments. dropped: segments. late: sent later than due, by the"
    " emulator's own clock."
)

_ENDED = {
    "time": "the time is over",
    "size": "the file is as large as it may be (--most)",
    "reader": "the program that read the packets has ended",
    "lab": "the lab was taken down",
}


def fiber_line(found: FiberStatus) -> Text:
    """Return where a direction begins and ends, and whether the emulator has the values in force."""
    line = Text(found.direction, style="bold")
    line.append(f": {found.sender} → {found.receiver}", style="default not bold")
    line.append(f", interface {found.interface}, plant {found.ends[0]} and {found.ends[1]}", style="default not bold")
    if found.dark_by:
        line.append(f"\n  dark, by {' + '.join(found.dark_by)}: no packet passes", style=BAD)
    if found.differences:
        for it in found.differences:
            line.append(f"\n  the emulator differs from what is in force: {it}", style=BAD)
    else:
        line.append(
            f"\n  read back from {found.emulator}: it applies exactly the values below", style="default not bold"
        )
    if found.captures:
        line.append(f"\n  captured now, by {', '.join(found.captures)}", style=tables.UNSURE)
    return line


def fiber(found: FiberStatus, scale: float, before: FiberStatus | None = None) -> list[Table]:
    """Return the values in force and the counters; ``before``: the same direction a moment ago, for rates."""
    rows: list[Row] = [
        [it.key, full_scale.in_text(it.text, scale), " + ".join(it.by), ", ".join(_masked(found, it.key)) or "-"]
        for it in found.values
    ]
    if found.delay_s is not None and found.taken_off_s:
        told = f"{format_delay(found.delay_s)} ({format_delay(found.taken_off_s)} taken off)"
        rows.insert(1, ["delay, as applied", told, "calibration", "-"])
    stated = {it.key for it in found.values}
    rows += [[key, "-", "-", fault] for fault, key in found.masked if key not in stated]
    made = [tables.table(("in force", "value", "by", "masked"), rows)]
    heads = ["counter", "since the lab came up", *(["per second"] if before else [])]
    counted: list[Row] = [
        [name, total, *([each] if before else [])] for name, total, each in _counters(found, before, scale)
    ]
    made.append(tables.table(heads, counted, right=heads[1:]))
    return made


def _masked(found: FiberStatus, key: str) -> list[str]:
    return [fault for fault, masked in found.masked if masked == key]


def _counters(found: FiberStatus, before: FiberStatus | None, scale: float) -> list[tuple[str, str, str]]:
    passed_s = found.t - before.t if before else 0.0

    def per_s(now: float, then: float) -> float:
        return max(0.0, now - then) / passed_s if passed_s > 0 else 0.0

    def line(name: str, now: int, then: int | None) -> tuple[str, str, str]:
        return name, f"{now:,}", f"{per_s(now, then or 0):,.0f}"

    old = before or found
    bps = 8 * per_s(found.bytes, old.bytes)
    lines = [
        line("packets", found.packets, old.packets),
        line("segments", found.segments, old.segments),
        ("bytes", f"{found.bytes:,}", full_scale.stands_for(bps, scale, 3) if bps else "0 b/s"),
    ]
    lines += [
        line(f"dropped, {cause}", count, old.drops.get(cause)) for cause, count in found.drops.items() if count
    ] or [("dropped", "0", "0")]
    for name, now, then in (
        ("corrupted", found.corrupted, old.corrupted),
        ("duplicated", found.duplicated, old.duplicated),
        ("reordered", found.held_back, old.held_back),
    ):
        lines.append((name, "not counted", "") if now is None else line(name, now, then))
    lines.append(("queue now", f"{found.queue_bytes:,} B" if found.queue_bytes else "empty", ""))
    if found.in_flight_packets is not None:
        lines.append(("in flight now", f"{found.in_flight_packets:,}", ""))
    if not found.lateness_bounds_s:
        lines.append(("late", "not measured", ""))
    else:
        lines.append(("late, median", _late(found.late_median_s, found), ""))
        lines.append(("late, 99 %", _late(found.late_p99_s, found), ""))
    return lines


def _late(value_s: float | None, found: FiberStatus) -> str:
    if value_s is None:
        return "no packet yet"
    if math.isinf(value_s):
        return f"more than {format_delay(found.lateness_bounds_s[-1])}"
    return format_delay(value_s, 3)


def captured(found: Capture) -> list[str]:
    """Return what was captured, in sentences; the first is about all directions together."""
    where = f" in {found.file}" if found.file is not None else ""
    lines = [f"{_plural(found.packets, 'packet')}{where}, {format_size(found.size, 3)}"]
    if why := _ENDED.get(found.ending):
        lines[0] += f"; {why}"
    if len(found.found) > 1:
        lines += [f"  {it.direction}: {_plural(it.packets, 'packet')}" for it in found.found]
    if found.dropped:
        lines.append(
            f"{_plural(found.dropped, 'packet')} dropped by the kernel, as this process was too busy to take them:"
            " they are missing in the file, not on the fiber. A smaller --snaplen helps"
        )
    else:
        lines.append("0 packets dropped by the kernel: the file has all of them")
    if found.super_packets:
        largest = max(it.largest_bytes for it in found.found)
        lines.append(
            f"{_plural(found.super_packets, 'super-packet')} among them, up to {largest:,} bytes: segments of one flow"
            " that the host hands over as one packet (GSO). A wire would carry each of their segments by itself"
        )
    return lines


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def rates(found: Sequence[FiberStatus]) -> list[float]:
    """Return the rates in force, for a sentence on what they stand for."""
    values = [it.impairment.get("rate_bps") for it in found]
    return [it for it in values if isinstance(it, float | int) and it]
