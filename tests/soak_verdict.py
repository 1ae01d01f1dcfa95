"""Evaluation of a soak's series (``tests/soak.py``): slopes, verdicts, summary. Pure, except for reading events."""

from __future__ import annotations

import collections
import itertools
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 1 << 20
RANKS = 4

OF_FIBERS = (
    *("cut", "flap", "latency-step", "brown-out", "impair", "jitter", "rate-squeeze", "corruption", "mtu-black-hole"),
    *("gateway-down", "management-partition"),
)
"""Faults in force once the kernel or the emulator acknowledges; others end processes first."""

GROWTH_MIB_PER_H = {"keeper": 24.0, "fiberd": 2.0, "orchestrator": 48.0, "fork server": 8.0, "rank": 24.0}
"""Allowed growth by process. It is not zero: keeper and orchestrator keep each fault and event of a lab by design
(``testbed status``, the report), some 300 faults and 5,000 events in ten minutes here; a rank's allocator settles."""
GROWTH_FDS = 2.0
"""Allowed increase of open descriptors: a sample may fall within a request."""
UNANNOUNCED = 0.01
"""Allowed share of carrier changes without an event: if the kernel's own thread waits for a core longer than a flap
lasts, it announces neither change. The counters still reveal them."""
WARM_UP = 0.2
"""Share of the time omitted from slopes, while caches fill and threads start."""


@dataclass(frozen=True)
class Verdict:
    what: str
    measured: str
    allowed: str
    good: bool


def slope_per_h(times_s: Sequence[float], values: Sequence[float]) -> float:
    """Return the median slope of all pairs (Theil-Sen), which is robust against processes that are just starting."""
    points = list(zip(times_s, values, strict=True))
    slopes = [(y - x) / (u - t) for (t, x), (u, y) in itertools.combinations(points, 2) if u > t]
    return statistics.median(slopes) * 3600 if slopes else 0.0


def of_role(samples: Sequence[dict[str, Any]], role: str, key: str) -> tuple[list[float], list[float]]:
    """Return (times, values) of a role; with several processes, values are means."""
    found = [(it["t"], [one[key] for one in it["roles"].get(role, ())]) for it in samples]
    return [t for t, values in found if values], [statistics.mean(values) for _, values in found if values]


def growth(samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a line for each role, for the time under faults after warm-up."""
    faulty = [it for it in samples if it["phase"] == "faults"]
    settled = faulty[int(len(faulty) * WARM_UP) :]
    lines = []
    for role in GROWTH_MIB_PER_H:
        line: dict[str, Any] = {"role": role}
        for key in ("rss", "pss", "fds", "threads"):
            times, values = of_role(settled, role, key)
            if not values:
                continue
            unit = MIB if key in ("rss", "pss") else 1
            tenth = max(1, len(values) // 10)
            line[key] = {
                "first": statistics.median(values[:tenth]) / unit,
                "last": statistics.median(values[-tenth:]) / unit,
                "most": max(values) / unit,
                "per_h": slope_per_h(times, values) / unit,
            }
        line["processes_most"] = max((len(it["roles"].get(role, ())) for it in faulty), default=0)
        lines.append(line)
    return lines


def judged(seconds: float, found: dict[str, Any]) -> list[Verdict]:
    """Return the verdicts of ``found``, the results collected by main()."""
    verdicts = []
    # The slope of a few minutes would be that of the warm-up.
    for line in found["growth"] if seconds >= 600 else ():
        role, allowed = line["role"], GROWTH_MIB_PER_H[line["role"]]
        grown = line["rss"]["per_h"]  # PSS depends on what other processes share
        verdicts.append(Verdict(f"memory of {role}", f"{grown:+.1f} MiB/h", f"{allowed:+.0f} MiB/h", grown <= allowed))
    for line in found["growth"]:
        more = line["fds"]["last"] - line["fds"]["first"]
        limit = GROWTH_FDS
        verdicts.append(Verdict(f"descriptors of {line['role']}", f"{more:+.1f}", f"{limit:+.0f}", more <= limit))
    most = {line["role"]: line["processes_most"] for line in found["growth"]}
    wanted = {"keeper": 1, "fiberd": 1, "orchestrator": 1, "fork server": 1, "rank": RANKS}
    verdicts += [
        Verdict(f"processes: {role}", str(most[role]), str(wanted[role]), most[role] <= wanted[role]) for role in wanted
    ]
    others = [len(it["roles"].get("other", ())) for it in found["samples"] if it["phase"] == "faults"]
    verdicts.append(Verdict("other processes", f"{statistics.median(others)}", "0", statistics.median(others) == 0))
    zombies = [it["zombies"] for it in found["samples"]]
    lasting = max((min(zombies[at : at + 3]) for at in range(len(zombies))), default=0)
    verdicts.append(Verdict("persistent zombies", str(lasting), "0", lasting == 0))
    checkers = {it["id"]: it["holds"] for it in found["report"]["checkers"]}
    for name in ("sums", "parameters", "updates"):
        verdicts.append(Verdict(f"checker {name}", str(checkers.get(name)).lower(), "true", checkers.get(name) is True))
    faults = found["faults"]
    unannounced = UNANNOUNCED * faults["carriers"]
    verdicts += [
        Verdict("faults that failed", str(len(faults["failed"])), "0", not faults["failed"]),
        Verdict("faults without an end", str(faults["unended"]), "0", faults["unended"] == 0),
        Verdict("carrier changes counted but not announced by the kernel", str(faults["missed"]), f"{unannounced:.0f}",
                faults["missed"] <= unannounced),
        Verdict("links, addresses, routes, qdiscs, sysctls after heal", _said(found["not_as_before"]), "as before",
                not found["not_as_before"]),
        Verdict("left after down", _said(found["left"]), "nothing", not found["left"]),
        Verdict("segments without training progress", str(found["stuck"]), "0", found["stuck"] == 0),
    ]  # fmt: skip
    return verdicts


def _said(lines: Sequence[str]) -> str:
    return "; ".join(lines)[:500] or "nothing"


def faults_of(run: Path) -> dict[str, Any]:
    """Return the faults recorded in the run directory."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    began = [it for it in events if it["event"] == "fault-began"]
    ended = {it["fault"] for it in events if it["event"] == "fault-ended"}
    planned = [it for it in began if it.get("planned_t") is not None]
    late = sorted(it["command_t"] - it["planned_t"] for it in planned)
    dark = sorted(it["ack_t"] - it["planned_t"] for it in planned if it["type"] in OF_FIBERS)
    return {
        "began": len(began),
        "by_type": dict(collections.Counter(map(_kind, began)).most_common()),
        "unended": sum(it["fault"] not in ended for it in began),
        "failed": [it for it in events if it["event"] == "fault-failed"],
        "notes": sorted({it["text"] for it in events if it["event"] == "note"}),
        "events": len(events),
        "carriers": sum(it["event"] == "carrier" for it in events),
        "missed": sum(it["count"] for it in events if it["event"] == "carrier-missed"),
        "switches": sum(it["event"] == "protection-switched" for it in events),
        "late_s": {"all, commanded": _lateness(late), "of fibers, in force": _lateness(dark)},
    }


def _kind(began: dict[str, Any]) -> str:
    """Return the kind of a fault; a straggler either sleeps or is throttled by its control group: two kinds of undo."""
    return f"{began['type']} cpu" if began.get("phase", "").endswith(" CPU") else str(began["type"])


def _lateness(sorted_s: Sequence[float]) -> dict[str, float]:
    return {
        "count": len(sorted_s),
        "median": statistics.median(sorted_s),
        "p99": sorted_s[int(0.99 * (len(sorted_s) - 1))],
        "most": sorted_s[-1],
        "within_5_ms": sum(it <= 0.005 for it in sorted_s) / len(sorted_s),
    }


def summary(found: dict[str, Any], verdicts: Sequence[Verdict]) -> str:
    """Return the summary as Markdown."""
    report, faults = found["report"], found["faults"]
    loads = sorted(it["load"] for it in found["samples"])
    good = all(it.good for it in verdicts)
    lines = [
        f"**{'All checks passed' if good else 'Some checks failed'}**: {found['seconds']:.0f} s under faults, seed"
        f" {found['seed']}, {found['machine']}, {found['when']}.",
        "",
        f"{faults['began']} faults began and {faults['began'] - faults['unended']} ended:"
        f" {', '.join(f'{kind} {count}' for kind, count in faults['by_type'].items())}."
        f" {faults['carriers']} carrier events, {faults['switches']} switches of the protected link.",
        "",
        f"The job committed {report['steps_committed']} steps in {report['attempts']} attempts and lost"
        f" {report['steps_lost']}. Causes of the ends of attempts:"
        f" {', '.join(f'{cause} {count}' for cause, count in report['causes'].items())}.",
        "",
        "Delay of scheduled faults after the planned time: "
        + "; ".join(
            f"{what} {it['median'] * 1e3:.2f} ms at the median, {it['p99'] * 1e3:.1f} ms at the 99th percentile,"
            f" {it['most'] * 1e3:.1f} ms at worst, {it['within_5_ms']:.1%} of {it['count']} within 5 ms"
            for what, it in faults["late_s"].items()
        )
        + ".",
        "",
        f"Load average over the time: {loads[0]:.1f} to {loads[-1]:.1f}, median {statistics.median(loads):.1f}; the"
        " machine was shared.",
        "",
        "| | measured | allowed | |",
        "|---|---|---|---|",
        *(f"| {it.what} | {it.measured} | {it.allowed} | {'ok' if it.good else '**no**'} |" for it in verdicts),
        "",
        "| process | RSS in MiB: first, last, maximum | growth, MiB/h | PSS in MiB | descriptors | threads |",
        "|---|---|---|---|---|---|",
        *(_row(line) for line in found["growth"]),
        "",
        f"Journal: {found['samples'][-1]['journal_bytes'] or found['journal_bytes']} bytes. Run directory:"
        f" {found['run_bytes'] / MIB:.0f} MiB. Orchestrator's peak RSS while writing the report:"
        f" {found['report_rss'] / MIB:.0f} MiB.",
    ]
    return "\n".join(lines) + "\n"


def _row(line: dict[str, Any]) -> str:
    rss, pss, fds, threads = line["rss"], line["pss"], line["fds"], line["threads"]
    return (
        f"| {line['role']} | {rss['first']:.1f}, {rss['last']:.1f}, {rss['most']:.1f} | {rss['per_h']:+.2f}"
        f" | {pss['first']:.1f}, {pss['last']:.1f}, {pss['most']:.1f}"
        f" | {fds['first']:.0f}, {fds['last']:.0f}, {fds['most']:.0f}"
        f" | {threads['first']:.0f}, {threads['last']:.0f}, {threads['most']:.0f} |"
    )
