"""Synthetic run directories of launched programs: ranks print steps, both fibers are cut, and traffic stops meanwhile.

The times follow from a list of step durations alone, so that the expected figures are known. It shares no code with
the testbed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from builders import run_factory

BEGAN_T = 1000.0
FIRST_STEP_S = 9.0
"""From the start of the processes to the end of step 0: imports, and connecting."""
WORLD = 4


def ends_of(durations: Sequence[float]) -> list[float]:
    """Return when steps 0, 1, 2, … ended, the first one after the start-up."""
    return [BEGAN_T + FIRST_STEP_S + it for it in itertools.accumulate(durations, initial=0.0)]


def make_program(
    path: Path,
    ends: Sequence[float],
    *,
    every: int = 1,
    cut: tuple[float, float] | None = None,
    tokens: int | None = 1024,
    progress: dict | None = None,
    statuses: Sequence[int | None] = (0, 0, 0, 0),
    printing: Sequence[int] = range(WORLD),
    skew_s: float = 0.002,
    output: Sequence[str] = (),
) -> Path:
    """Write a run directory: step i ended at ``ends[i]`` on rank 0, and ``skew_s`` later on each further rank.

    Every ``every``-th step is printed. ``tokens`` are those of the whole job in a step. Counters are read every second;
    bytes cross evenly except in a step that took over a second, where they cross in its last 100 ms.
    """
    run_factory.make_run(path)
    for file in (path / "ranks").iterdir():
        file.unlink()
    ended_t = ends[-1] + 1.5
    workload = {
        "command": "python train.py",
        "progress": {"preset": "nanogpt"} if progress is None else progress,
        "ranks_per_node": 1,
        "members": [
            {"rank": rank, "node": run_factory.NODES[rank], "site": run_factory.SITES[rank], "local_rank": 0}
            for rank in range(WORLD)
        ],
        "statuses": list(statuses),
        "began_t": [BEGAN_T] * WORLD,
        "ended_t": [ended_t] * WORLD,
    }
    run_factory.edit(
        path, "run.json", workload=workload, expectations=[], started_t=BEGAN_T - 1, ended_t=ended_t + 1, experiment={}
    )
    for rank in range(WORLD):
        lines: list[dict] = [
            {
                **{"kind": "job", "t": BEGAN_T, "rank": rank, "world_size": WORLD, "attempt": 1},
                **{"node": run_factory.NODES[rank], "site": run_factory.SITES[rank]},
            }
        ]
        for step in range(0, len(ends), every) if rank in printing else ():
            told = None if tokens is None or not step else tokens * every
            lines.append(record(ends[step] + rank * skew_s, step, told, 4.0 - 0.001 * step))
        run_factory.write_lines(path / "ranks" / f"rank-{rank}.jsonl", lines)
        (path / "ranks" / f"rank-{rank}.log").write_text("".join(f"{line}\n" for line in output))
    run_factory.write_lines(path / "events.jsonl", _cut(*cut) if cut else [])
    run_factory.write_lines(path / "metrics.jsonl", _metrics(ends, ended_t))
    return path


def record(t: float, step: int, tokens: float | None = None, train_loss: float | None = None, **more: float) -> dict:
    return {"kind": "progress", "t": t, "step": step, "tokens": tokens, "train_loss": train_loss, **more}


def _cut(began: float, ended: float) -> list[dict]:
    events = []
    for index, link in enumerate(run_factory.LINKS, 1):
        fault = {"fault": f"f{index}", "type": "cut", "target": link, "links": [link]}
        events.append({"t": began, "event": "fault-began", **fault, "command_t": began, "ack_t": began})
        events.append({"t": ended, "event": "fault-ended", **fault, "command_t": ended, "ack_t": ended})
    return sorted(events, key=lambda it: it["t"])


def moved(ends: Sequence[float], t: float, per_step: int = 1_000_000) -> int:
    """Return the bytes that had crossed by ``t``."""
    found = 0.0
    for before, after in itertools.pairwise(ends):
        begin = before if after - before <= 1.0 else after - 0.1
        found += per_step * max(0.0, min(1.0, (t - begin) / (after - begin)))
    return int(found)


def _metrics(ends: Sequence[float], ended_t: float) -> list[dict]:
    lines: list[dict] = []
    count = int(ended_t - BEGAN_T) + 2
    for t in (BEGAN_T - 0.3 + second for second in range(count)):
        for link in run_factory.LINKS:
            for site in ("west", "east"):
                crossed = moved(ends, t) if link == "north" else 0
                lines.append(
                    {
                        **{"t": t, "kind": "fiber", "direction": f"{link}:{site}", "bytes": crossed},
                        **{"packets": crossed // 1500, "segments": crossed // 1500, "drops": {}, "queue_bytes": 0},
                        "lateness": {"bounds_s": [1e-5], "counts": [crossed // 1500, 0]},
                    }
                )
        for node in run_factory.NODES:
            crossed = moved(ends, t)
            lines.append({"t": t, "kind": "node", "node": node, "sent_bytes": crossed, "received_bytes": crossed})
        lines.append({"t": t, "kind": "host", "cpu_busy": 0.5, "emulator_cpu_s": 0.1})
    return lines
