"""The jobs of a lab with their figures: how far each is and how fast, read from the records of its run."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from testbed.core.fields import integer, number
from testbed.host.files import beneath
from testbed.keeper.protocol import JobRecord

__all__ = ["JobStatus", "of"]

TAIL_BYTES: Final = 32 * 1024
"""How much of a rank's records is read: the latest of them."""

FIRST_BYTES: Final = 4096

RATE_RECORDS: Final = 20
"""Over how many of its latest records a rank's rate is taken."""

_RANK: Final = re.compile(r"rank-(\d+)\.jsonl")


@dataclass(frozen=True)
class JobStatus:
    """A job of a lab.

    Attributes:
        id: ``j1``, ``j2``, … since the lab came up.
        kind: ``train``, ``launch``, ``run`` (an experiment) or ``validate``.
        what: the command, or what is trained.
        state: ``running``, ``stopping``, then ``finished``, ``failed``, ``stopped`` or ``lost`` (the process that ran
            it ended before it, so the keeper ended it).
        why: why it failed, or who stopped it.
        since_unix_s: when it began.
        elapsed_s: how long it has been running, or ran.
        run: its run directory; empty before it has one.
        step: the latest step that every rank which reports steps has completed; None if none reports any.
        steps: how many there will be; None: unknown.
        tokens_per_s: of all ranks, over their latest steps; None: unknown.
        train_loss: the latest, by the first rank that reports it.
        exit_status: of a job that has ended.
        pid: of the process that runs it; 0: unknown.
        detached: whether that is a process of the testbed's own.
    """

    id: str
    kind: str
    what: str
    state: str
    why: str
    since_unix_s: float
    elapsed_s: float
    run: str
    step: int | None = None
    steps: int | None = None
    tokens_per_s: float | None = None
    train_loss: float | None = None
    exit_status: int | None = None
    pid: int = 0
    detached: bool = False

    @property
    def ended(self) -> bool:
        return self.state not in ("running", "stopping")


def of(record: JobRecord) -> JobStatus:
    """Return a job with its figures; those that its records do not tell are None."""
    now = time.monotonic()
    ended_t = record["ended_t"]
    status = JobStatus(
        record["id"],
        record["kind"],
        record["what"],
        record["state"],
        record["why"],
        record["began_unix_s"],
        max(0.0, (now if ended_t is None else ended_t) - record["began_t"]) if record["began_t"] else 0.0,
        record["run"],
        exit_status=record["exit_status"],
        pid=record["pid"],
        detached=record["detached"],
    )
    return with_figures(status, Path(record["run"]), now if ended_t is None else None) if record["run"] else status


def with_figures(job: JobStatus, run: Path, now: float | None) -> JobStatus:
    """Add what a run's records say. ``now``: CLOCK_MONOTONIC, while it runs; None: a job that has ended has no rate."""
    steps = _steps(run)
    ranks = [_Rank.of(records) for records in _ranks(run)]
    reporting = [rank for rank in ranks if rank.step is not None]
    if not reporting:
        return replace(job, steps=steps)
    attempt = max(rank.attempt for rank in reporting)
    current = [rank for rank in reporting if rank.attempt == attempt]
    rates = [rate for rank in current if (rate := rank.rate(now)) is not None]
    whole = any(rank.counts_all for rank in current)
    return replace(
        job,
        steps=steps,
        step=min(rank.step or 0 for rank in current),
        train_loss=next((rank.train_loss for rank in current if rank.train_loss is not None), None),
        tokens_per_s=None if now is None or not rates else max(rates) if whole else sum(rates),
    )


@dataclass(frozen=True)
class _Rank:
    """``tokens``: (time, tokens since the record before) of the latest records. ``counts_all``: those of the whole job,
    as records of programs have it, and not this rank's own."""

    step: int | None
    attempt: int
    train_loss: float | None
    tokens: tuple[tuple[float, float | None], ...]
    counts_all: bool

    @classmethod
    def of(cls, records: list[Mapping[str, Any]]) -> _Rank:
        attempt = max((record.get("attempt", 1) for record in records), default=1)
        mine = [record for record in records if record.get("attempt", 1) == attempt]
        steps = [rank for rank in mine if rank.get("kind") in ("step", "progress")]
        job = next((rank for rank in reversed(mine) if rank.get("kind") == "job"), None)
        if not steps:
            return cls(None if job is None else integer(job, "resumed_from") or 0, attempt, None, (), False)
        timed = [(number(step, "t_end") or number(step, "t") or 0.0, number(step, "tokens")) for step in steps]
        losses = [loss for step in steps if (loss := number(step, "train_loss")) is not None]
        return cls(
            integer(steps[-1], "step"),
            attempt,
            losses[-1] if losses else None,
            tuple(timed[-RATE_RECORDS:]),
            steps[-1]["kind"] == "progress",
        )

    def rate(self, now: float | None) -> float | None:
        """Return tokens per second. A rank that has stood still for longer than between its records becomes slower."""
        if now is None or len(self.tokens) < 2 or any(tokens is None for _, tokens in self.tokens[1:]):
            return None
        times = [t for t, _ in self.tokens]
        longest_s = max(after - before for before, after in itertools.pairwise(times))
        took_s = max(times[-1], now - longest_s) - times[0]
        return sum(tokens or 0.0 for _, tokens in self.tokens[1:]) / took_s if took_s > 0 else None


def _steps(run: Path) -> int | None:
    """Return how many steps a run is to have: by its metadata, else by the first line of its first rank's records."""
    for path, within in ((run / "run.json", "workload"), (run / "ranks" / "rank-0.jsonl", "")):
        with contextlib.suppress(OSError, ValueError, AttributeError, KeyError):
            text = path.read_text() if within else _read(path, FIRST_BYTES)[0].partition(b"\n")[0].decode()
            record = json.loads(text)
            if (steps := integer(record[within] if within else record, "steps")) is not None:
                return steps
    return None


def _ranks(run: Path) -> Iterator[list[Mapping[str, Any]]]:
    """Yield the latest records of each rank, in order."""
    with contextlib.suppress(OSError):
        matched_paths = ((match, path) for path in (run / "ranks").iterdir() if (match := _RANK.fullmatch(path.name)))
        for _, path in sorted(matched_paths, key=lambda matched: int(matched[0][1])):
            yield _latest(path)


def _read(path: Path, most: int, *, last: bool = False) -> tuple[bytes, bool]:
    """Return the first ``most`` bytes, or the last ones, and whether others are before them.

    A program without privileges can write this file, and may have put a pipe or a link there. Raises OSError.
    """
    with os.fdopen(beneath.open_file(path.parent, path.name), "rb") as stream:
        start = max(0, os.fstat(stream.fileno()).st_size - most) if last else 0
        stream.seek(start)
        return stream.read(most), start > 0


def _latest(path: Path) -> list[Mapping[str, Any]]:
    try:
        data, torn = _read(path, TAIL_BYTES, last=True)
    except OSError:
        return []
    lines = data.split(b"\n")[1 if torn else 0 : -1]  # neither the torn first one nor the last, still being written
    records: list[Mapping[str, Any]] = []
    for line in lines:
        with contextlib.suppress(ValueError):
            if isinstance(record := json.loads(line), dict):
                records.append(record)
    return records
