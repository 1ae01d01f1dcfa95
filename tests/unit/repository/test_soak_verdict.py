"""The soak's judgement can fail: each thing that may go wrong in an hour is found in series that are made up here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from soak_verdict import MIB, growth, judged, slope_per_h, summary

HOUR_S = 3600.0
ROLES = {"keeper": 1, "fiberd": 1, "orchestrator": 1, "fork server": 1, "rank": 4}


def series(**per_h: float) -> list[dict[str, Any]]:
    """Return an hour of samples; the named roles grow by so many MiB."""

    def process(role: str, t: float) -> dict[str, Any]:
        rss = int((50 + per_h.get(role, 0.0) * t / HOUR_S) * MIB)
        return {"pid": 1, "fds": 10, "threads": 1, "rss": rss, "pss": rss}

    def roles(t: float) -> dict[str, Any]:
        return {role: [process(role, t)] * count for role, count in ROLES.items()}

    fixed = {"phase": "faults", "zombies": 0, "journal_bytes": 0, "load": 1.0}
    return [{"t": t, "roles": roles(t), **fixed} for t in map(float, range(0, int(HOUR_S), 30))]


FINDINGS = """{
    "seconds": 3600.0, "seed": 1, "machine": "made up", "when": "never", "not_as_before": [], "left": [], "stuck": 0,
    "journal_bytes": 1, "run_bytes": 1, "report_rss": 1,
    "faults": {
        "began": 1, "by_type": {"cut": 1}, "unended": 0, "failed": [], "missed": 0, "carriers": 2, "switches": 0,
        "late_s": {"all": {"count": 1, "median": 0.0, "p99": 0.0, "most": 0.0, "within_5_ms": 1.0}}
    },
    "report": {
        "steps_committed": 1, "steps_lost": 0, "attempts": 1, "causes": {},
        "checkers": [
            {"id": "sums", "holds": true}, {"id": "parameters", "holds": true}, {"id": "updates", "holds": true}
        ]
    }
}"""


def bad(seconds: float = HOUR_S, samples: list[dict[str, Any]] | None = None, **other: Any) -> list[str]:
    """Return what is bad in an hour of these findings."""
    samples = samples or series()
    findings = {**json.loads(FINDINGS), "samples": samples, "growth": growth(samples), **other}
    verdicts = judged(seconds, findings)
    assert summary(findings, verdicts)
    return [verdict.what for verdict in verdicts if not verdict.good]


def test_an_hour_in_which_nothing_happens_is_good() -> None:
    assert bad() == []


@pytest.mark.parametrize("role", ROLES)
def test_memory_that_grows_is_a_leak(role: str) -> None:
    assert bad(samples=series(**{role: 60.0})) == [f"memory of {role}"]


def test_a_leak_is_not_told_from_a_minute() -> None:
    assert bad(60.0, samples=series(keeper=60.0)) == []


def test_descriptors_that_stay_open_are_a_leak() -> None:
    samples = series()
    for number, sample in enumerate(samples):
        sample["roles"]["keeper"][0]["fds"] += number // 10
    assert bad(samples=samples) == ["descriptors of keeper"]


def test_processes_too_many() -> None:
    samples = series()
    samples[50]["roles"]["rank"] = samples[50]["roles"]["rank"] * 2
    for sample in samples[60:63]:
        sample["zombies"] = 1
    assert bad(samples=samples) == ["processes: rank", "persistent zombies"]


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"left": ["process 1"]}, "left after down"),
        ({"not_as_before": ["east-gw: ip"]}, "links, addresses, routes, qdiscs, sysctls after heal"),
        ({"stuck": 1}, "segments without training progress"),
    ],
)
def test_what_is_left_or_stands_still(other: dict[str, Any], what: str) -> None:
    assert bad(**other) == [what]


@pytest.mark.parametrize("holds", [False, None])
def test_a_wrong_sum_or_an_unknown_one(holds: bool | None) -> None:
    report = json.loads(FINDINGS)["report"]
    report["checkers"][0]["holds"] = holds
    assert bad(report=report) == ["checker sums"]


def test_the_slope_is_that_of_most_of_the_time() -> None:
    values = [100.0 + 10 * t / HOUR_S for t in range(0, 3600, 60)]
    values[10:13] = [0.0] * 3  # a process that was just being made
    assert slope_per_h([float(t) for t in range(0, 3600, 60)], values) == pytest.approx(10.0, rel=0.05)
