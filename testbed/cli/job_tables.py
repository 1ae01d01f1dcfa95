"""The jobs of a lab as a table; nothing here prints."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from testbed.cli import job_words, tables

if TYPE_CHECKING:
    from testbed.lab.job_status import JobStatus

__all__ = ["jobs"]


def jobs(found: Sequence[JobStatus]) -> Table:
    rows: list[tables.Row] = [
        [
            it.id,
            it.kind,
            it.what,
            time.strftime("%H:%M:%S", time.localtime(it.since_unix_s)) if it.since_unix_s else "-",
            job_words.reached(it) or "-",
            tables.verdict(it.state),
            it.run or "-",
        ]
        for it in found
    ]
    return tables.table(("job", "kind", "what", "since", "step", "state", "run directory"), rows, right=("step",))
