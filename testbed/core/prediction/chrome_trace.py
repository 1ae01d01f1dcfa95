"""Simulated exchanges as a Chrome trace, for chrome://tracing and Perfetto. Pure.

The format is the Trace Event Format of Chromium: complete events ("X"), times in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from testbed.core.prediction.simulator import Transfer

__all__ = ["text"]


def text(transfers: Iterable[Transfer]) -> str:
    """Return the trace of ``transfers``: a row for each group of ranks, an event for each phase of an exchange."""
    rows: dict[str, int] = {}
    events = [event for transfer in transfers for event in _events(transfer, rows)]
    names = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": name}}
        for name, number in rows.items()
    ]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": [*names, *events]}) + "\n"


def _events(transfer: Transfer, rows: dict[str, int]) -> Iterator[dict[str, Any]]:
    exchange = transfer.exchange
    if exchange is None or not exchange.operations or transfer.arrived_s is None:
        return
    row = f"{exchange.first.group} ({', '.join(exchange.sites)})"
    phases = (
        ("waits for a slot", transfer.ready_s, transfer.started_s),
        ("software", transfer.started_s, transfer.software_s),
        ("slow start", transfer.software_s, transfer.flowing_s),
        ("queueing", transfer.flowing_s, transfer.queued_s),
        ("serialization", transfer.queued_s, transfer.travels_s),
        ("propagation", transfer.travels_s, transfer.arrived_s),
    )
    for name, since_s, until_s in phases:
        if until_s > since_s:
            yield {
                "ph": "X",
                "name": f"{exchange.first.kind}: {name}",
                "cat": name,
                "pid": 1,
                "tid": rows.setdefault(row, len(rows) + 1),
                "ts": 1e6 * since_s,
                "dur": 1e6 * (until_s - since_s),
                "args": {"what": exchange.first.what, "key": str(transfer.key), "bytes": exchange.byte_count},
            }
