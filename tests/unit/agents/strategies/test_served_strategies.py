"""async-diloco and decoupled over loopback: two sites of different speed, breaks of their connections, a restored job.

All jobs share one set of ranks: processes and groups take longer to make than the jobs to run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from builders import loopback_ranks, replica_jobs
from builders.trainer_over_loopback import check_logs
from testbed_agents.checksums import crc32
from testbed_agents.groups import Groups

from testbed.core.checkers.checks import check
from testbed.core.records.rank_log import EndRecord, RankLog

Ranks = list[dict[str, Any]]
STEPS = 13
EVEN, UNEVEN = ("a", "a", "b", "b"), ("a", "b", "b", "b")


@dataclass(frozen=True)
class Case:
    """``dark``: steps in which site b has no connection. ``settles``: the step of a checkpoint.

    It must not be dark in a step that waits for an answer: nothing that comes later than this step gives it one.
    """

    strategy: str
    options: Mapping[str, Any]
    sites: tuple[str, ...] = EVEN
    slow: str = "b"
    dark: tuple[int, int] = (0, 0)
    settles: int = 0
    timeout_s: float = 30.0


CASES = {
    "async, a slow home, as few versions as can be": Case(
        "async-diloco", {"every": 3, "staleness": 1, "weigh": "tokens"}, slow="a"
    ),
    "async, by time": Case("async-diloco", {"every": 4, "pace": "time", "home": "b"}),
    "async, unequal sites, dark": Case("async-diloco", {"every": 2, "weigh": "tokens"}, UNEVEN, dark=(4, 7)),
    "decoupled, a quorum of one, unequal sites": Case("decoupled", {"every": 3, "quorum": 1, "grace": 0.0}, UNEVEN),
    "decoupled, dark": Case("decoupled", {"every": 3, "fragments": 3, "bits": 4, "home": "b"}, dark=(3, 9)),
}
RESTORED = {
    "async": Case("async-diloco", {"every": 2}, settles=7),
    "decoupled": Case("decoupled", {"every": 4, "fragments": 2, "bits": 8, "grace": 0.001}, settles=6),
}


@dataclass
class Seen:
    """What one rank had: records of versions, fingerprints after each step, and outer parameters at the end."""

    records: list[dict[str, Any]]
    trace: list[replica_jobs.Step]
    outer: str
    version: int


class Job(replica_jobs.Job):
    recording = False
    """Of the strategy's sums and outer steps; the records of versions are taken here."""

    def __init__(self, groups: Groups, case: Case) -> None:
        self.case, self.site, self.settles = case, groups.site, case.settles
        self.records: list[dict[str, Any]] = []
        groups.hooks.evidence = self  # type: ignore[assignment]
        super().__init__(groups, case.strategy, case.options, STEPS, timeout_s=case.timeout_s)

    def exchange(self, **fields: Any) -> None:
        self.records.append({"step": self.context.step} | fields)

    def before(self, step: int) -> None:
        if self.site == "b" and step == self.case.dark[0]:
            self.darken()
        if self.site == "b" and self.case.dark[1] and step == self.case.dark[1] + 1:
            for channel in self.across:
                del channel._greet
        if self.site == self.case.slow:
            time.sleep(0.004)

    def seen(self) -> Seen:
        outer = crc32(self.strategy.outer_parameters())
        return Seen(self.records, self.trace, outer, self.strategy.outer_version)

    def darken(self) -> None:
        """End the connections of this rank across sites, and let none be made."""

        def refuse(*_: Any) -> None:
            raise OSError("dark")

        for channel in self.across:
            until = time.monotonic() + 20
            while channel.disconnected_s and time.monotonic() < until:
                time.sleep(0.001)
            channel._greet = refuse
            with channel._changed:
                channel._drop()
            with channel._serving:
                pass  # nothing is still being received

    @property
    def across(self) -> list[Any]:
        """The channels to other sites."""
        return [channel for channel in (self.strategy._uplink, *self.strategy._channels.values()) if channel]


def restored_job(groups: Groups, case: Case) -> tuple[Seen, Seen]:
    """Run until the checkpoint; go on with another strategy of the same kind, which has the saved tensors only."""
    before = Job(groups, case)
    saved = before.run(case.settles).saved()
    before.strategy.close()
    return before.seen(), Job(groups, case).load(saved).run().seen()


def lost_job(groups: Groups) -> str:
    """Return how a job ends whose connection never comes back."""
    job = Job(groups, Case("async-diloco", {"every": 2}, dark=(1, STEPS), timeout_s=0.5))
    try:
        job.run()
    except RuntimeError as error:
        return str(error)
    finally:
        job.strategy.close()
    return ""


def everything(rank: int) -> dict[str, Any]:
    groups: dict[tuple[str, ...], Groups] = {sites: Groups(rank, sites) for sites in (EVEN, UNEVEN)}
    seen: dict[str, Any] = {name: Job(groups[case.sites], case).run().seen() for name, case in CASES.items()}
    seen |= {f"restored {name}": restored_job(groups[case.sites], case) for name, case in RESTORED.items()}
    return seen | {"lost": lost_job(groups[EVEN])}


@pytest.fixture(scope="module")
def seen() -> Ranks:
    return loopback_ranks.run(4, everything)


def twin_of(case: Case) -> Any:
    return replica_jobs.twin_of(case.strategy, case.options, replica_jobs.layout(case.sites, STEPS))


def check_equality(case: Case, ranks: Sequence[Seen], first: int = 1) -> None:
    twin = twin_of(case)
    replica_jobs.check_steps(twin, [rank.trace for rank in ranks], first)
    for rank in ranks:
        assert len(rank.trace) == STEPS + 1 - first
        assert rank.outer == ranks[0].outer == rank.trace[-1].fingerprints["parameters"]
    assert twin.committed(STEPS) == STEPS


@pytest.mark.parametrize("name", CASES)
def test_sites_are_equal_inside_and_all_are_equal_at_the_end(seen: Ranks, name: str) -> None:
    check_equality(CASES[name], [rank[name] for rank in seen])


@pytest.mark.parametrize("name", CASES)
def test_versions_are_what_was_made_and_each_push_is_in_one(seen: Ranks, name: str) -> None:
    case, twin = CASES[name], twin_of(CASES[name])
    records = [it for rank in seen for it in rank[name].records]
    assert twin.wrong_exchanges(records) == []
    what = {it["what"] for it in records}
    assert what == {"pushed", "received", "served", "pulled"}
    pushed = {(it["site"], it.get("fragment"), it["push"]) for it in records if it["what"] == "pushed"}
    served = {
        (site, it.get("fragment"), push)
        for it in records
        if it["what"] == "served"
        for site, numbers in it.get("taken", {it.get("site"): [it.get("push")]}).items()
        for push in numbers
    }
    assert pushed == served, "everything that was sent is in a version"
    if "pace" in case.options:
        return
    for site in ("a", "b"):
        for step in range(1, STEPS + 1):
            said = sorted(fragment or 0 for fragment, _ in twin.pushes(site, step))
            rank = case.sites.index(site)
            did = [it for it in seen[rank][name].records if it["what"] == "pushed" and it["step"] == step]
            assert sorted(it.get("fragment") or 0 for it in did) == said, (site, step)


@pytest.mark.parametrize("name", CASES)
def test_the_checker_finds_what_the_ranks_recorded(seen: Ranks, name: str) -> None:
    begin = {"kind": "begin", "t": 0.0, "world_size": 4, "step": 0, "hang_s": 1.0, "optimizer_steps": 0}
    logs = check_logs(
        [begin | {"rank": number, "parameters": "p"}, *({"kind": "exchange"} | it for it in rank[name].records)]
        for number, rank in enumerate(seen)
    )
    ends = [RankLog(rank, ends=(EndRecord(0.0, "ok", "", STEPS),)) for rank in range(4)]
    (served,) = [it for it in check(logs, twin_of(CASES[name]), ends).checkers if it.id == "served"]
    assert served.holds is True, served


@pytest.mark.parametrize("name", [it for it in CASES if it.startswith("async")])
def test_no_push_is_staler_than_its_bound_and_tokens_are_counted(seen: Ranks, name: str) -> None:
    case = CASES[name]
    for rank in seen:
        served = [it for it in rank[name].records if it["what"] == "served"]
        assert all(it["staleness"] <= twin_of(case).staleness for it in served)
        for site in ("a", "b"):
            own = [it for it in served if it["site"] == site]
            assert sum(it["tokens"] for it in own) in (0, STEPS * 6 * case.sites.count(site))
        latest: dict[str, int] = {}
        for it in sorted(served, key=lambda it: it["version"]):
            latest[it["site"]] = it["tokens"]
            mean = sum(latest.values()) / len(latest)
            weighed = it["tokens"] / mean if case.options.get("weigh") == "tokens" else 1.0
            assert it["weight"] == pytest.approx(weighed)


def test_a_site_goes_on_while_its_connection_is_dark(seen: Ranks) -> None:
    site_b = seen[1]["async, unequal sites, dark"].records
    pushed = [it["step"] for it in site_b if it["what"] == "pushed"]
    assert {4, 6} <= set(pushed)
    assert not [it for it in site_b if it["what"] == "pulled" and 4 < it["step"] <= 7], "it was not dark"
    twin, every = twin_of(CASES["async, unequal sites, dark"]), 2
    assert 7 // every - twin.window <= 0, "the first answer may be late, and without it no step is to wait"


@pytest.mark.parametrize("name", RESTORED)
def test_a_restored_job_has_all_pushes_once_and_ends_equal(seen: Ranks, name: str) -> None:
    case = RESTORED[name]
    both = [rank[f"restored {name}"] for rank in seen]
    check_equality(case, [after for _, after in both], case.settles + 1)
    twin = twin_of(case)
    for part in range(2):
        assert twin.wrong_exchanges([it for pair in both for it in pair[part].records]) == []
    if name == "async":
        served = [it for pair in both for seen_ in pair for it in seen_.records if it["what"] == "served"]
        assert twin.wrong_exchanges(served) == [], "one chain of versions over the checkpoint"
        assert {(it["site"], it["push"]) for it in served} == {(s, p) for s in "ab" for p in range(1, 8)}
        assert both[0][1].version == 14


def test_without_a_connection_for_the_timeout_the_job_says_so(seen: Ranks) -> None:
    for rank in (2, 3):
        assert "no connection to the server at a" in seen[rank]["lost"]
    for rank in (0, 1):
        assert "no connection to site b" in seen[rank]["lost"]


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["async-diloco", "decoupled"])
def test_a_slow_site_is_waited_for_by_ranks_without_a_slice_too(strategy: str) -> None:
    """They have no message to wait for, and an operation of a process group ends with its timeout."""
    timeout_s = 2.0

    def trained(rank: int) -> str:
        job = Job(Groups(rank, UNEVEN, timeout_s), Case(strategy, {"every": 2}, UNEVEN, "", timeout_s=timeout_s))
        job.run(6)
        if job.site == "a":
            time.sleep(1.5 * timeout_s)
        return job.run().seen().outer

    assert len(set(loopback_ranks.run(4, trained))) == 1
