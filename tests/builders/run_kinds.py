"""Run directories in which something happened: of ``run_factory``'s run, with a stall, a death, a restart and so on.

Each changes the records of the plain run as the event would have: no code of the testbed is used.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from builders import run_factory
from builders.json_files import read_lines, write_lines

KINDS = ("stall", "death", "restart", "none", "one-step", "impaired")

STALL_S = 9.0
"""Seventy times the median step: training stood while both fibers were dark."""
RESTART_S = 4.0


def make(path: Path, kind: str) -> Path:
    """Write the run directory of one of KINDS to ``path``."""
    if kind == "one-step":
        run_factory.make_run(path, status="interrupted", steps=1)
    elif kind == "death":
        _die(run_factory.make_run(path, status="failed", steps=run_factory.CUT_STEP))
    else:
        run_factory.make_run(path)
    if kind == "none":
        run_factory.edit(path, "events.jsonl", lambda events: [event for event in events if "fault" not in event])
    if kind == "stall":
        _stall(path)
    if kind == "restart":
        _restart(path)
    if kind == "impaired":
        _impair(path)
    return path


def _ranks(path: Path) -> list[Path]:
    return sorted((path / "ranks").glob("rank-?.jsonl"))


def _shift(path: Path, from_t: float, by_s: float) -> None:
    """Let everything that ended after ``from_t`` happen ``by_s`` later: training stood in between."""
    times = ("t", "t_begin", "t_ready", "t_sync", "t_end", "command_t", "ack_t", "planned_t")
    for file in (*_ranks(path), path / "events.jsonl"):
        lines = read_lines(file)
        for line in lines:
            line |= {key: line[key] + by_s for key in times if key in line and line[key] > from_t}
        write_lines(file, lines)
    run_factory.edit(path, "run.json", lambda info: info.update(ended_t=info["ended_t"] + by_s))


def _stall(path: Path) -> None:
    """Both fibers dark: a second cut beside the factory's."""
    _shift(path, run_factory.cut_t() + 0.1, STALL_S)
    cut = {"fault": "f2", "type": "cut", "target": "south", "links": ["south"]}
    began = run_factory.cut_t() + 0.01
    begun = {"t": began, "event": "fault-began", **cut, "phase": "dark"}
    ended = {"t": began + STALL_S, "event": "fault-ended", **cut}
    run_factory.edit(path, "events.jsonl", lambda events: [*events, begun, ended])


def _die(path: Path) -> None:
    """Training never comes back: the record ends 40 s after the last step, with both fibers dark."""
    died_t = run_factory.cut_t() + 40.0
    events = [event for event in read_lines(path / "events.jsonl") if event["event"] != "fault-ended"]
    for event in events:
        if event["event"] == "job-ended":
            event["t"] = died_t
    cut = {"fault": "f2", "type": "cut", "target": "south", "links": ["south"]}
    events.append({"t": run_factory.cut_t() + 0.5, "event": "fault-began", **cut, "phase": "dark"})
    write_lines(path / "events.jsonl", events)
    run_factory.edit(path, "ranks/rank-?.jsonl", where={"kind": "end"}, t=died_t)
    run_factory.edit(path, "run.json", ended_t=died_t + 1)


def _restart(path: Path) -> None:
    """A rank is killed while step 251 runs; a second attempt resumes from the checkpoint of step 200."""
    killed_t = run_factory.step_begins()[250] + 0.05
    resumed_t = killed_t + RESTART_S
    for file in _ranks(path):
        lines = read_lines(file)
        job = next(it for it in lines if it["kind"] == "job")
        steps = {it["step"]: it for it in lines if it["kind"] == "step"}
        first = [steps[number] for number in range(1, 251)]
        again = []
        for number in range(201, run_factory.STEPS + 1):
            begin = resumed_t + 0.5 + (number - 201) * run_factory.STEP_S
            later = begin - steps[number]["t_begin"]
            moved = {key: steps[number][key] + later for key in ("t_begin", "t_ready", "t_sync", "t_end")}
            if number == run_factory.CUT_STEP:
                moved["t_sync"] -= run_factory.STALL_S
                moved["t_end"] -= run_factory.STALL_S
            again.append({**steps[number], **moved, "attempt": 2})
        checkpoint = {"kind": "checkpoint", "t": steps[200]["t_end"], "step": 200, "bytes": 100, "took_s": 0.01}
        failed = {"kind": "end", "t": killed_t + 0.1, "status": "failed", "reason": "closed by peer", "step": 250}
        done = {**lines[-1], "t": again[-1]["t_end"] + 0.01, "attempt": 2}
        start = {**job, "attempt": 2, "t": resumed_t, "resumed_from": 200}
        write_lines(file, [job, *first[:200], checkpoint, *first[200:], failed, start, *again, done])
        ended_t = done["t"]
    killed = {"fault": "f2", "type": "rank-kill", "target": "3", "links": [], "nodes": ["west-1"]}
    events = [event for event in read_lines(path / "events.jsonl") if event["event"] != "job-ended"]
    events += [
        {"t": killed_t, "event": "fault-began", **killed, "phase": "killed"},
        {"t": killed_t + 0.002, "event": "fault-ended", **killed},
        {"t": ended_t + 0.05, "event": "job-ended", "job": "j1"},
    ]
    write_lines(path / "events.jsonl", sorted(events, key=lambda event: event["t"]))
    run_factory.edit(path, "run.json", ended_t=ended_t + 1)


def _impair(path: Path) -> None:
    """Instead of the cut: loss on one direction, and then a tenth of the rate."""
    events = [
        event for event in read_lines(path / "events.jsonl") if "fault" not in event and event["event"] != "carrier"
    ]
    began = run_factory.BEGAN_T + 10.0
    faults = (
        ("f1", "impair", "north:west", "loss", "0.5%", began, began + 6.0),
        ("f2", "rate-squeeze", "south", "rate", "80 Mb/s", began + 12.0, began + 18.0),
    )
    for fault, kind, target, key, text, begin, end in faults:
        link = target.partition(":")[0]
        directions = [target] if ":" in target else [f"{link}:west", f"{link}:east"]
        told = {"fault": fault, "type": kind, "target": target, "links": [link]}
        for t, event, values in (
            (begin, "fault-began", [{"key": key, "text": text, "by": [fault]}]),
            (end, "fault-ended", []),
        ):
            in_force = {it: {"direction": it, "dark_by": [], "values": values, "masked": []} for it in directions}
            events.append({"t": t, "event": event, **told, "command_t": t, "ack_t": t, "in_force": in_force})
    write_lines(path / "events.jsonl", sorted(events, key=lambda event: event["t"]))


def stall(run: Path, *stalls: tuple[float, float]) -> Path:
    """Log stalls of the host, (seconds since the job began, length), alternately on two cores."""
    lines = [
        {"core": index % 2, "t": run_factory.BEGAN_T + began_s, "s": length_s}
        for index, (began_s, length_s) in enumerate(stalls)
    ]
    return run_factory.edit(run, "stalls.jsonl", lambda _: lines)


def launched(run: Path, **workload: object) -> Path:
    """Make it the run of a launched program, which records no steps."""
    for file in (run / "ranks").iterdir():
        file.unlink()
    return run_factory.edit(run, "run.json", workload={"command": "python x.py", **workload}, expectations=[])


def add_checkpoints(run: Path, every: int, took_s: float) -> None:
    """Let each rank save its state after every so many steps; what follows happens later."""

    def saving(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        later, changed = 0.0, []
        for line in lines:
            times = [key for key in line if key == "t" or key.startswith("t_")]
            changed.append(line if line["kind"] == "job" else line | {key: line[key] + later for key in times})
            if line["kind"] == "step" and line["step"] % every == 0 and line["step"] < run_factory.STEPS:
                later += took_s
                saved = {"kind": "checkpoint", "step": line["step"], "bytes": 1, "took_s": took_s}
                changed.append({**saved, "t": line["t_end"] + later})
        return changed

    run_factory.edit(run, "ranks/rank-*.jsonl", saving)


def restart(run: Path, resumed_from: int, lost_s: float) -> None:
    """Attempt 1 ends after the last step; attempt 2 begins ``lost_s`` later, from a checkpoint before it."""
    last_t = max(line.get("t_end", 0.0) for line in read_lines(run / "ranks" / "rank-3.jsonl"))
    ended = {"t": last_t + 1, "event": "attempt-ended", "attempt": 1, "why": "rank 2 died", "detected_t": last_t + 1}

    def restarted(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        steps, saved = ([line for line in lines if line["kind"] == kind] for kind in ("step", "checkpoint"))
        shift = last_t + lost_s - steps[resumed_from]["t_begin"]
        job = {**lines[0], "attempt": 2, "resumed_from": resumed_from, "t": last_t + lost_s - 0.1}
        second = [
            {**line, "attempt": 2} | {key: line[key] + shift for key in line if key.startswith("t_")}
            for line in steps[resumed_from:]
        ]
        end = {
            "kind": "end",
            "attempt": 2,
            "t": second[-1]["t_end"],
            "status": "ok",
            "reason": "",
            "step": run_factory.STEPS,
        }
        return [lines[0], *steps, *saved, job, *second, end]

    run_factory.edit(run, "ranks/rank-*.jsonl", restarted)
    run_factory.edit(run, "events.jsonl", lambda events: [*events, ended])


def slower(path: Path, factor: float, jitter: float = 0.0, seed: int = 1) -> None:
    """Make every step ``factor`` times as long, and each by up to ``jitter`` of itself longer or shorter."""
    chance = random.Random(seed)
    stretch = [factor * (1 + jitter * chance.uniform(-1, 1)) for _ in range(run_factory.STEPS + 1)]

    def slow(lines: list[dict[str, Any]]) -> None:
        shift = 0.0
        for line in lines:
            if line["kind"] == "step":
                begin, by = line["t_begin"], stretch[line["step"]]
                for key in ("t_ready", "t_sync", "t_end"):
                    line[key] = begin + shift + (line[key] - begin) * by
                line["t_begin"] += shift
                shift += (line["t_end"] - line["t_begin"]) * (1 - 1 / by)
            elif line["kind"] == "end":
                line["t"] += shift + 1.0

    run_factory.edit(path, "ranks/rank-*[0-9].jsonl", slow)
    # The cut of the factory falls into another step now; a run without faults is easier to reason about.
    left_out = ("fault", "carrier", "job-ended")
    run_factory.edit(
        path, "events.jsonl", lambda events: [event for event in events if not event["event"].startswith(left_out)]
    )
