"""What /proc reports of processes."""

from __future__ import annotations

from pathlib import Path

from oracles import oracle


def status_of(pid: int) -> dict[str, str]:
    """Return the fields of a process's status."""
    lines = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {key: value.strip() for key, _, value in lines}


def state_of(pid: int) -> str:
    return status_of(pid)["State"][0]


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def until_gone(*pids: int, bound_s: float = 20.0) -> None:
    oracle.until(lambda: all(map(is_gone, pids)), bound_s, f"processes {pids} have ended")
