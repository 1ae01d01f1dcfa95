"""A synthetic run directory for tests: metro-40km, 2 sites x 2 nodes, a cut of ``north`` in the middle.

The numbers follow simple formulas, so that the expected results are known: a step takes ``STEP_S``, of which
``COMPUTE_S`` is compute (rank 3 is ``SLOW_S`` later than the others), and the step in progress at the cut takes
``STALL_S`` longer. It shares no code with the testbed.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import operator
import random
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from builders.json_files import read_lines, write_lines

STEPS = 400
STEP_S = 0.130
COMPUTE_S = 0.060
SLOW_S = 0.004
STALL_S = 0.250
BEGAN_T = 1007.5
CUT_STEP = 201
CUT_FOR_S = 10.0
GRADIENT_BYTES = 4_200_000
TOKENS = 256
"""per rank and step"""

SITES = ("east", "east", "west", "west")
NODES = ("east-0", "east-1", "west-0", "west-1")
LINKS = {"north": (40.0, 0.0002), "south": (47.0, 0.000235)}
BOUNDS_S = [1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3]
SHARES = [0.02, 0.07, 0.21, 0.33, 0.25, 0.085, 0.022, 0.008, 0.003, 0.0015, 0.0005, 0.0, 0.0]


def step_begins(steps: int = STEPS) -> list[float]:
    """Return the start times of steps 1, 2, …, followed by the end of the last step."""
    times = [BEGAN_T + 0.02]
    for step in range(1, steps + 1):
        times.append(times[-1] + STEP_S + (STALL_S if step == CUT_STEP else 0.0))
    return times


def cut_t() -> float:
    """Return the time of the cut, in the middle of step CUT_STEP."""
    return step_begins()[CUT_STEP - 1] + 0.05


def make_run(
    path: Path,
    *,
    status: str = "finished",
    steps: int = STEPS,
    uncertified: bool = False,
    emulator: str = "fiberd",
) -> Path:
    """Write a complete run directory to ``path``; with fewer than STEPS ``steps``, the job ended early.

    With netem as ``emulator``, lateness is unknown, because netem does not time packets.
    """
    (path / "ranks").mkdir(parents=True)
    times = step_begins(steps)
    ended_t = times[-1] + 0.05
    reason = {"finished": "", "interrupted": "Ctrl-C", "failed": "rank 2 died of signal 9"}[status]
    _json(
        path / "run.json",
        {
            "version": 1,
            "name": path.name,
            "lab": "metro-40km",
            "testbed": "0.1.0",
            "status": status,
            "reason": reason,
            "started_unix_s": 1_795_000_000.0,
            "started_t": 1000.0,
            "ended_t": ended_t + 1.2,
            "experiment": {"name": "first-cut", "teaches": "A cut is a pause, not an end.", "text": ""},
            "expectations": [{"text": "training goes on within 2 s of the cut", "holds": True, "measured": 0.38}],
            "workload": {"steps": STEPS, "seed": 0, "batch": 4, "context": 64},
            "driver": "netns",
            "emulator": emulator,
            "scheduling": {"emulator": "SCHED_FIFO 40", "ranks": "SCHED_OTHER"},
            "uncertified": uncertified,
            "host": {"kernel": "6.18.5", "cpus": 2, "cpu_model": "a made-up CPU", "congestion_control": "cubic"},
        },
    )
    _json(path / "topology.json", topology())
    _json(path / "certificate.json", certificate(80e-6 if uncertified else 4e-6, emulator))
    write_lines(path / "events.jsonl", _events(ended_t, cut=steps >= CUT_STEP))
    for name, text in _measured(status, steps, timed=emulator == "fiberd").items():
        (path / name).write_text(text, encoding="utf-8")
    return path


@functools.cache
def _measured(status: str, steps: int, timed: bool) -> dict[str, str]:
    """Return the text of the metrics and of each rank's records, which many tests write again."""
    times = step_begins(steps)
    ended_t = times[-1] + 0.05
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "ranks").mkdir()
        write_lines(path / "metrics.jsonl", _metrics(times, ended_t, timed))
        for rank in range(4):
            write_lines(path / "ranks" / f"rank-{rank}.jsonl", _records(rank, times, status))
        add_scrapes(path, [BEGAN_T - 2.4 + index for index in range(math.ceil(ended_t - BEGAN_T) + 6)])
        return {str(file.relative_to(path)): file.read_text() for file in path.rglob("*.jsonl")}


def edit(
    run: Path,
    files: str,
    change: Callable[[Any], object] | Mapping[str, object] | None = None,
    /,
    where: Mapping[str, object] | None = None,
    **values: object,
) -> Path:
    """Change JSON or JSONL files of a run directory, and return ``run``.

    Args:
        run: the run directory.
        files: a pattern of names in it, as in ``"ranks/rank-?.jsonl"``. The name of a JSONL file may be new.
        change: modifies its argument in place, or returns a replacement. The argument is the document of a JSON file;
            of a JSONL file the list of its lines, or with ``where`` one line after another. A mapping sets values by
            their places in it, as in ``{"links.0.length_m": 80e3}``.
        where: selects the lines of JSONL files that have all these values.
        values: are set in the document, or in the selected lines (in all lines without ``where``).
    """

    def changed(content: Any) -> Any:
        if isinstance(change, Mapping):
            for place, value in change.items():
                *outer, last = (int(key) if key.isdecimal() else key for key in place.split("."))
                functools.reduce(operator.getitem, outer, content)[last] = value
        elif change and (result := change(content)) is not None:
            return result
        return content

    for file in sorted(run.glob(files)) or [run / files]:
        if file.suffix == ".json":
            _json(file, {**changed(json.loads(file.read_text())), **values})
            continue
        lines = read_lines(file) if file.exists() else []
        if where is None:
            lines = [{**line, **values} for line in changed(lines)] if values else changed(lines)
        else:
            for index, line in enumerate(lines):
                if where.items() <= line.items():
                    lines[index] = {**changed(line), **values}
        write_lines(file, lines)
    return run


def add_scrapes(path: Path, times: list[float], silent: dict[int, tuple[float, float]] | None = None) -> None:
    """Scrape every rank at ``times``: counters are what its records say, of the steps that have ended by then.

    ``silent``: rank -> (from, to), in which it does not answer. A rank's process uses half a core, and 300 MB.
    """
    lines = []
    for file in sorted((path / "ranks").glob("rank-*[0-9].jsonl")):
        rank = int(file.stem.removeprefix("rank-"))
        steps = [line for line in read_lines(file) if line["kind"] == "step"]
        begin, end = (silent or {}).get(rank, (0.0, 0.0))
        for t in times:
            line: dict = {"t": t, "kind": "rank", "rank": rank}
            done = [it for it in steps if it["t_end"] <= t]
            values = {
                "steps": len(done),
                "tokens": TOKENS * len(done),
                "compute_s": sum(it["t_ready"] - it["t_begin"] + it["t_end"] - it["t_sync"] for it in done),
                "peer_wait_s": 0.0,
                "network_s": sum(it["t_sync"] - it["t_ready"] for it in done),
                "cpu_s": 0.5 * (t - times[0]),
                "memory_bytes": 300_000_000,
            }
            lines.append({**line, "why": "timeout"} if begin <= t < end else {**line, **values})
    with (path / "metrics.jsonl").open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(line) + "\n" for line in lines)


def topology() -> dict:
    return {
        "name": "metro-40km",
        "scale": 1000.0,
        "sites": [{"name": name, "nodes": 2, "power": name} for name in ("east", "west")],
        "links": [
            {
                "name": name,
                "between": ["east", "west"],
                "via": [name],
                "length_m": km * 1e3,
                "fiber": "smf",
                "optics": "800ZR",
                "waves": 1,
                "delay_s": delay_s,
                "rate_bps": 0.8e9,
                "queue_bytes": 2_000_000,
                "loss": 0.0,
                "mtu": 1500,
                "protection": "none",
            }
            for name, (km, delay_s) in LINKS.items()
        ],
        "ducts": [],
        "routing": "shortest",
        "seed": 0,
    }


def check(what: str, target: float, measured: float, low: float, high: float, why: str = "") -> dict:
    verdict = "bad" if why else "ok"
    values = {"target": target, "measured": measured, "low": low, "high": high}
    return {"what": what, **values, "verdict": verdict, "why": why}


def certificate(error_s: float = 4e-6, emulator: str = "fiberd") -> dict:
    links = []
    for name, (km, delay_s) in LINKS.items():
        directions = []
        for index, site in enumerate(("west", "east")):
            error = error_s + index * 1e-6
            bare = {"min": 18e-6, "median": 24e-6, "p99": 61e-6}
            bad = error > 50e-6
            why = f"median delay {error * 1e6:.0f} us too long (tolerance 50 us)" if bad else ""
            checks = [
                check("delay, median", delay_s, delay_s + error, delay_s - 50e-6, delay_s + 50e-6, why),
                check("jitter", 0.0, 1.2e-6, 0.0, 50e-6),
                check("loss", 0.0, 0.0, 0.0, 0.0),
                check("reordering", 0.0, 0.0, 0.0, 0.0),
                check("duplication", 0.0, 0.0, 0.0, 0.0),
                check("rate", 0.8e9, 0.7912e9, 0.76e9, 0.84e9),
            ]
            directions.append(
                {
                    "direction": f"{name}:{site}",
                    "target_s": delay_s,
                    "measured_s": {key: value + delay_s + error for key, value in bare.items()},
                    "bare_s": bare,
                    "error_s": {"min": error, "median": error},
                    "tolerance_s": 50e-6,
                    "probes": 200,
                    "lost": 0,
                    "rate": {"target_bps": 0.8e9, "measured_bps": 0.7912e9, "tolerance": 0.05},
                    "checks": checks,
                    "segmentation": "emulator" if emulator == "fiberd" else "none",
                    "verdict": "bad" if bad else "ok",
                    "why": [why] if bad else [],
                }
            )
        trip = {"min": 22e-6, "median": 31e-6, "p99": 80e-6}
        rtt = {
            "target_s": 2 * delay_s,
            "measured_s": {key: value + 2 * delay_s + 7e-6 for key, value in trip.items()},
            "bare_s": trip,
            "error_s": {"min": 7e-6, "median": 7e-6},
            "tolerance_s": 100e-6,
            "probes": 100,
            "unanswered": 0,
            "checks": [check("RTT, median", 2 * delay_s, 2 * delay_s + 7e-6, 2 * delay_s - 1e-4, 2 * delay_s + 1e-4)],
        }
        links.append({"name": name, "km": km, "directions": directions, "rtt": rtt})
    return {
        "version": 1,
        "lab": "metro-40km",
        "topology": "metro-40km",
        "taken_unix_s": 1_795_000_005.0,
        "took_s": 0.8,
        "thorough": False,
        "emulator": emulator,
        "verdict": "outside tolerance" if error_s > 50e-6 else "certified",
        "why": [],
        "links": links,
        "around": {"ok": True, "why": ""},
        "cpu_busy": 0.11,
        "headroom": {"free": 0.89, "stolen": 0.0, "trusted": True, "note": ""},
        "notes": [],
        "host": {"kernel": "6.18.5", "congestion_control": "cubic", "sysctls": {}, "scheduling": "SCHED_FIFO 40"},
    }


def _events(ended_t: float, cut: bool) -> list[dict]:
    events: list[dict] = [
        {"t": 1000.1, "event": "phase", "phase": "plan"},
        {"t": 1000.3, "event": "phase", "phase": "build"},
        {"t": 1003.0, "event": "phase", "phase": "certify"},
        {"t": BEGAN_T - 0.2, "event": "job-began", "job": "j1"},
    ]
    if cut:
        began, healed = cut_t(), cut_t() + CUT_FOR_S
        fault = {"fault": "f1", "type": "cut", "target": "north", "links": ["north"]}
        times = {"planned_t": began - 0.001, "command_t": began, "ack_t": began + 0.0006}
        events.append({"t": began, "event": "fault-began", **fault, **times})
        for site, after in (("east", 0.0011), ("west", 0.0013)):
            events.append({"t": began + after, "event": "carrier", "link": "north", "site": site, "up": False})
        times = {"planned_t": healed - 0.001, "command_t": healed, "ack_t": healed + 0.0007}
        events.append({"t": healed, "event": "fault-ended", **fault, **times})
        for site, after in (("east", 0.0014), ("west", 0.0012)):
            events.append({"t": healed + after, "event": "carrier", "link": "north", "site": site, "up": True})
    events.append({"t": ended_t, "event": "job-ended", "job": "j1"})
    return events


def _metrics(times: list[float], ended_t: float, timed: bool = True) -> list[dict]:
    """Return a sample per second; each step moves 1.5 x the gradient each way, over south while north is cut."""
    wobble = random.Random(7)
    lines: list[dict] = []
    moved = dict.fromkeys(LINKS, 0.0)
    began = cut_t()
    before = BEGAN_T - 3.0
    samples = math.ceil(ended_t - BEGAN_T) + 6
    for index in range(samples):
        t = BEGAN_T - 2.5 + index
        for begin, end in itertools.pairwise(times):
            share = max(0.0, min(t, end) - max(before, begin)) / (end - begin)
            cut = began <= max(before, begin) < began + CUT_FOR_S
            moved["south" if cut else "north"] += 1.5 * GRADIENT_BYTES * share
        before = t
        for name in LINKS:
            for site in ("west", "east"):
                wire = moved[name] * 1514 / 1448
                packets = int(wire / 24_000)
                lines.append(
                    {
                        "t": t,
                        "kind": "fiber",
                        "direction": f"{name}:{site}",
                        "packets": packets,
                        "segments": int(wire / 1514),
                        "bytes": int(wire),
                        "drops": {"loss": 0, "queue": 0, "memory": 0, "transmit": 0, "receive": 0, "down": 0},
                        "queue_bytes": 0,
                        "lateness": {
                            "bounds_s": BOUNDS_S if timed else [],
                            "counts": [int(packets * share) for share in SHARES] if timed else [],
                        },
                    }
                )
        busy = 0.93 + 0.05 * wobble.random() if BEGAN_T <= t <= ended_t else 0.1
        lines.append({"t": t, "kind": "host", "cpu_busy": busy, "emulator_cpu_s": 0.21 * index})
    return lines


def _records(rank: int, times: list[float], status: str) -> list[dict]:
    noise = random.Random(rank)
    lines: list[dict] = [
        {
            "kind": "job",
            "t": BEGAN_T,
            "rank": rank,
            "world_size": 4,
            "node": NODES[rank],
            "site": SITES[rank],
            "scheme": "ddp",
            "parameters": GRADIENT_BYTES // 4,
            "gradient_bytes": GRADIENT_BYTES,
            "tokens_per_step": TOKENS,
            "steps": STEPS,
            "corpus": "the standard library",
            "corpus_bytes": 12_000_000,
            "seed": 0,
            "torch": "2.13.0+cpu",
        }
    ]
    for step, (begin, end) in enumerate(itertools.pairwise(times), 1):
        lines.append(
            {
                "kind": "step",
                "step": step,
                "t_begin": begin,
                "t_ready": begin + COMPUTE_S + (SLOW_S if rank == 3 else 0.0),
                "t_sync": end - 0.005,
                "t_end": end,
                "compute_s": 0.0,
                "exposed_s": 0.0,
                "train_loss": 1.9 + 3.6 * math.exp(-step / 90) + 0.05 * noise.gauss(0, 1),
                "tokens": TOKENS,
                "sent_bytes": int(1.5 * GRADIENT_BYTES * step),
                "received_bytes": int(1.5 * GRADIENT_BYTES * step),
            }
        )
    if not (status == "failed" and rank == 2):
        word = {"finished": "ok", "interrupted": "stopped", "failed": "failed"}[status]
        reason = "connection closed by peer" if status == "failed" else ""
        lines.append({"kind": "end", "t": times[-1] + 0.01, "status": word, "reason": reason, "step": len(times) - 1})
    return lines


def _json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
