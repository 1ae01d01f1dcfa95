"""Traces of simulated exchanges: valid JSON, whose events cover each exchange."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict

import pytest
from builders.predicted_jobs import job, plain
from builders.tables import table
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.prediction import chrome_trace
from testbed.core.prediction.simulator import Simulated

STRATEGIES = {
    "buckets that wait for slots": "ddp:buckets=5",
    "sites inside each other's passes": "pipeline:stages=2",
    "fragments": "streaming-diloco:every=6,fragments=3",
    "pushes": "async-diloco:every=3",
    "learners": "decoupled:every=3",
}


def simulated(words: str, rate_bps: float, delay_s: float) -> Simulated:
    of = job(words, ranks=2, rate_bps=rate_bps, delay_s=delay_s, library=plain(2, 0.01, 2))
    return of.simulate(keep=True)


@table("words", STRATEGIES)
@settings(max_examples=10)
@given(rate_bps=st.floats(1e6, 1e10), delay_s=st.floats(0, 1))
def test_events_cover_each_exchange(words: str, rate_bps: float, delay_s: float) -> None:
    """From when all of its sites have come until its last bits have arrived, without gaps and one after the other."""
    transfers = [it for it in simulated(words, rate_bps, delay_s).transfers if it.exchange and it.exchange.operations]
    events = json.loads(chrome_trace.text(transfers))["traceEvents"]
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for it in events:
        if it["ph"] == "X":
            assert it["dur"] > 0 and it["pid"] == 1
            spans[it["args"]["key"]].append((it["ts"], it["ts"] + it["dur"]))
    assert len(transfers) > 3
    for transfer in transfers:
        own = sorted(spans[str(transfer.key)])
        assert transfer.arrived_s is not None
        assert own[0][0] == pytest.approx(1e6 * transfer.ready_s)
        assert own[-1][1] == pytest.approx(1e6 * transfer.arrived_s)
        for (_, until), (since, _) in itertools.pairwise(own):
            assert since == pytest.approx(until)


def test_each_group_has_a_row_with_its_name() -> None:
    found = json.loads(chrome_trace.text(simulated("diloco:every=2", 1e7, 0.1).transfers))
    rows = {it["tid"]: it["args"]["name"] for it in found["traceEvents"] if it["ph"] == "M"}
    assert {it["tid"] for it in found["traceEvents"] if it["ph"] == "X"} == set(rows)
    assert {"slice:0 (s0, s1)", "site:s0 (s0)"} <= set(rows.values())


def test_phases_by_hand() -> None:
    """2^20 values over 2^25 bit/s: 1 s; software 10 ms; two delays of 0.25 s."""
    of = job("diloco:every=2", rate_bps=2**25, delay_s=0.25, library=plain(2, 0.01))
    found = json.loads(chrome_trace.text(of.simulate(keep=True).transfers))["traceEvents"]
    durations = [(it["cat"], it["dur"]) for it in found if it["ph"] == "X"][:3]
    assert [it for it, _ in durations] == ["software", "serialization", "propagation"]
    assert [it for _, it in durations] == pytest.approx([1e4, 1e6, 5e5])


def test_what_is_not_kept_is_an_empty_trace() -> None:
    found = job("ddp").simulate()
    assert json.loads(chrome_trace.text(found.transfers))["traceEvents"] == []
