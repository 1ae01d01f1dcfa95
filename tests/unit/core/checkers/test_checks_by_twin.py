"""What is right depends on the strategy: the checkers ask its twin. Bugs are found on one rank and on all alike."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from testbed.core.checkers.checks import Checked, check
from testbed.core.checkers.finding import Checker
from testbed.core.records.check_record import read_checks
from testbed.core.records.rank_log import EndRecord, JobRecord, RankLog
from testbed.core.training import strategies_built
from testbed.core.training.layout import Layout, Tensor
from testbed.core.training.served import faults_of_versions
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Equal, Twin

Line = dict[str, Any]
SITES = ("east", "east", "west", "west")
WORLD, EVERY, STEPS = 4, 4, 12
BYTES = 40_000


def diloco() -> Twin:
    layout = Layout(SITES, (Tensor("model", BYTES // 4),), steps=STEPS)
    return strategies_built.make("diloco", {"every": EVERY}, layout)


def operations(twin: Twin, rank: int, step: int) -> list[Line]:
    """What a rank records of the twin's operations of a step: a sum of two ranks is a message each way."""
    found: list[Line] = []
    for it in twin.operations(step):
        if rank not in it.ranks:
            continue
        kind, more = it.kind, {}
        if kind == "send":
            kind = "send" if rank == it.ranks[0] else "recv"  # type: ignore[assignment]
            more = {"peer": it.ranks[1] if rank == it.ranks[0] else it.ranks[0], "tag": 0}
        times = {"began_t": step, "ended_t": step + 0.1}
        found.append({"operation": kind, "group": it.group, "bytes": it.byte_count, **times, **more})
    return found


def run_of(twin: Twin, steps: int = STEPS, versions: bool = True) -> list[list[Line]]:
    """rank -> its lines, of a job in which nothing is wrong. Fingerprints are taken in every step.

    Between exchanges a site's parameters are its own; after one, all are equal. Each rank has a slice of ``outer``.
    """
    ranks: list[list[Line]] = []
    for rank in range(WORLD):
        groups = {it.group: it.ranks for step in range(steps + 1) for it in twin.operations(step) if rank in it.ranks}
        before = {"parameters": "p0", "outer": f"o0.{rank % 2}"}
        lines: list[Line] = [
            {
                "kind": "begin", "attempt": 1, "t": 0.0, "rank": rank, "world_size": WORLD, "step": 0, "hang_s": 15.0,
                "parameters": "p0", "optimizer_steps": 0, "fingerprints": before, "outer_version": 0,
            },
            *({"kind": "group", "attempt": 1, "group": name, "ranks": list(of)} for name, of in groups.items()),
        ]  # fmt: skip
        counts: dict[tuple[str, str], int] = {}
        for step in range(1, steps + 1):
            version = twin.outer_updates(step)
            exchanged = version > twin.outer_updates(step - 1)
            after = {
                "parameters": f"p{step}" if exchanged else f"p{step}.{SITES[rank]}",
                "outer": f"o{version}.{rank % 2}",
            }
            done = operations(twin, rank, step)
            for each in done:
                place = (each["group"], f"{each['operation']}{each.get('peer', '')}" if "peer" in each else "")
                each["sequence"] = counts.get(place, 0)
                counts[place] = each["sequence"] + 1
            lines.append(
                {
                    "kind": "step", "attempt": 1, "t": float(step), "step": step, "optimizer_steps": twin.updates(step),
                    "operations": done, "fingerprints_before": before, "fingerprints": after,
                    "trained_on": before["parameters"], "became": after["parameters"],
                    "trace": {name: f"t.{value}" for name, value in after.items()},
                    **({"outer_version": version} if versions else {}),
                }
            )  # fmt: skip
            before = after
        ranks.append(lines)
    return ranks


def judged(run: Sequence[Sequence[Line]], twin: Twin, logs: Sequence[RankLog] = ()) -> Checked:
    found = []
    for rank, lines in enumerate(run):
        log, malformed = read_checks(rank, lines)
        assert malformed == 0
        found.append(log)
    return check(found, twin, logs)


def of(checked: Checked, name: str) -> Checker:
    return next(each for each in checked.checkers if each.id == name)


def at_step(run: Sequence[Sequence[Line]], rank: int, step: int) -> Line:
    return next(line for line in run[rank] if line["kind"] == "step" and line["step"] == step)


def test_sites_that_train_alone_differ_between_exchanges_and_that_is_right() -> None:
    """Local training is no "stale parameters": sites differ, the ranks of a site do not."""
    checked = judged(run_of(diloco()), diloco())
    for name in ("parameters", "updates", "exchanges"):
        assert of(checked, name).holds is True, of(checked, name)
    assert of(checked, "parameters").looked_at == "fingerprints of 4 ranks compared at 12 steps"
    # Of each of the 4 ranks, 12 averages in the site and 3 times 3 between them.
    assert of(checked, "exchanges").looked_at == "bytes of 84 exchanges compared with those of diloco"
    # The same records are wrong for a strategy that averages in every step.
    assert of(judged(run_of(diloco()), strategies_built.make("ddp", {}, diloco().layout)), "parameters").holds is False


def change_parameters(
    run: list[list[Line]], rank: int, first: int, to: Callable[[int], str], until: int = STEPS
) -> None:
    """The parameters of a rank are others from the end of step ``first`` on, until that of ``until``."""
    for step in range(first, until + 1):
        line = at_step(run, rank, step)
        line["fingerprints"] = line["fingerprints"] | {"parameters": to(step)}
        line["trace"] = line["trace"] | {"parameters": f"t.{to(step)}"}
        line["became"] = to(step)
        if step < STEPS:
            after = at_step(run, rank, step + 1)
            after["fingerprints_before"] = after["fingerprints_before"] | {"parameters": to(step)}
            after["trained_on"] = to(step)


def test_a_rank_that_took_another_state_than_its_mate_is_named() -> None:
    run = run_of(diloco())
    change_parameters(run, 1, 5, lambda step: f"other{step}", until=7)
    parameters = of(judged(run, diloco()), "parameters")
    first = parameters.findings[0]
    assert (parameters.holds, first.step, first.ranks) == (False, 5, (1,))
    assert first.text == "after it, parameters of rank 1 differ from those of rank 0"


@pytest.mark.parametrize("ranks", [(2,), range(WORLD)], ids=["one rank", "all ranks"])
def test_a_rank_that_goes_on_with_an_earlier_state_is_found_on_one_rank_and_on_all(ranks: Sequence[int]) -> None:
    """From the state of the beginning, between steps 5 and 6: what step 6 begins with is not what step 5 left."""
    run = run_of(diloco())
    for rank in ranks:
        line = at_step(run, rank, 6)
        line["fingerprints_before"] = {"parameters": "p0", "outer": line["fingerprints_before"]["outer"]}
        line["trained_on"] = "p0"
    parameters = of(judged(run, diloco()), "parameters")
    assert parameters.holds is False
    assert (parameters.findings[0].step, parameters.findings[0].ranks) == (6, tuple(ranks))
    if len(ranks) == WORLD:
        assert parameters.findings[0].text.endswith("began it with other parameters than step 5 left")


def test_a_step_that_goes_back_is_found_by_its_trace_alone() -> None:
    """Steps without fingerprints: a few elements of every step tell, on all ranks alike."""
    run = run_of(diloco())
    for rank in range(WORLD):
        for step in range(1, STEPS + 1):
            line = at_step(run, rank, step)
            if step not in (1, STEPS):
                for key in ("fingerprints", "fingerprints_before", "trained_on", "became"):
                    line.pop(key)
        at_step(run, rank, 7)["trace"] = at_step(run, rank, 3)["trace"]
    (found,) = of(judged(run, diloco()), "parameters").findings
    assert (found.step, found.ranks) == (7, (0, 1, 2, 3))
    assert found.text.endswith("went back to the parameters after step 3")


def test_an_exchange_may_leave_the_traced_elements_as_they_were_if_others_changed() -> None:
    """Of the largest values alone, few elements change: the fingerprints of all of them tell that it went on."""
    run = run_of(diloco())
    for rank in range(WORLD):
        at_step(run, rank, 8)["trace"] = at_step(run, rank, 4)["trace"]
    assert of(judged(run, diloco()), "parameters").holds is True
    for rank in range(WORLD):
        change_parameters(run, rank, 8, lambda _: "p4", until=8)
    texts = [each.text for each in of(judged(run, diloco()), "parameters").findings]
    assert any(text.endswith("went back to the parameters after step 4") for text in texts), texts


def test_a_wait_in_the_first_operation_of_a_group_is_of_that_operation() -> None:
    """The group's ranks are recorded behind it, with the step."""
    lines: list[Line] = [
        {"kind": "waits", "attempt": 1, "t": 9.0, "since_t": 2.0, "step": 4, "group": "slice:0", "sequence": 0,
         "operation": "send", "peer": 2},
        {"kind": "group", "attempt": 1, "group": "slice:0", "ranks": [0, 2]},
        {"kind": "step", "attempt": 1, "t": 10.0, "step": 4, "optimizer_steps": 4, "operations": [
            {"group": "slice:0", "sequence": 0, "operation": "send", "peer": 2, "bytes": 8, "began_t": 2.0,
             "ended_t": 9.5},
        ]},
    ]  # fmt: skip
    log, malformed = read_checks(0, lines)
    assert malformed == 0
    assert log.waits[0].tag == log.steps[0].operations[0][0]


def test_slices_of_the_outer_state_are_equal_between_sites() -> None:
    run = run_of(diloco())
    for step in (8, 12):
        line = at_step(run, 3, step)
        line["fingerprints"] = line["fingerprints"] | {"outer": "stale"}
    parameters = of(judged(run, diloco()), "parameters")
    assert parameters.holds is False
    assert parameters.findings[0].text == "after it, outer of rank 3 differ from those of rank 1"


@pytest.mark.parametrize("ranks", [(2,), range(WORLD)], ids=["one rank", "all ranks"])
@pytest.mark.parametrize(("applied", "text"), [(2, "2 exchanges were applied"), (0, "0 exchanges were applied")])
def test_an_exchange_that_was_applied_twice_or_not_at_all_is_counted(
    ranks: Sequence[int], applied: int, text: str
) -> None:
    run = run_of(diloco())
    for rank in ranks:
        for step in range(8, STEPS + 1):
            at_step(run, rank, step)["outer_version"] += applied - 1
    updates = of(judged(run, diloco()), "updates")
    (found,) = updates.findings
    assert (updates.holds, updates.metric, found.step, found.ranks) == (False, len(ranks), 8, tuple(ranks))
    assert f"{text} after it, expected 1" in found.text


def test_an_accumulated_step_updates_nothing_and_that_is_right() -> None:
    twin = strategies_built.make("ddp", {"accumulate": 3}, Layout(SITES, (Tensor("model", BYTES // 4),), steps=11))
    run = run_of(twin, 11, versions=False)
    for rank in range(WORLD):
        value, change = "p0", [3, 6, 9, 11]
        for step in range(1, 12):
            line = at_step(run, rank, step)
            line["fingerprints_before"] = {"parameters": value}
            value = f"p{step}" if step in change else value
            line["fingerprints"] = {"parameters": value}
            line |= {"trained_on": line["fingerprints_before"]["parameters"], "became": value}
            line["trace"] = {"parameters": f"t.{value}"}
    good = judged(run, twin)
    assert (of(good, "updates").holds, of(good, "parameters").holds) == (True, True), good
    skipped = copy.deepcopy(run)
    for rank in range(WORLD):
        for step in range(6, 12):
            at_step(skipped, rank, step)["optimizer_steps"] -= 1
    (found,) = of(judged(skipped, twin), "updates").findings
    assert (found.step, found.ranks) == (6, (0, 1, 2, 3))


def test_a_restored_attempt_goes_on_with_the_counts_of_its_step() -> None:
    twin = diloco()
    run = run_of(twin)
    for rank, lines in enumerate(run):
        again = [
            line | {"attempt": 2} for line in copy.deepcopy(lines) if line["kind"] == "group" or line.get("step", 0) > 6
        ]
        left = at_step(run, rank, 6)["fingerprints"]
        begin = lines[0] | {"attempt": 2, "step": 6, "optimizer_steps": 6, "outer_version": 1}
        lines += [begin | {"fingerprints": left, "parameters": left["parameters"]}, *again]
    checked = judged(run, twin)
    assert [each.holds for each in checked.checkers if each.id in ("parameters", "updates", "exchanges")] == [True] * 3
    wrong = copy.deepcopy(run)
    begin = next(line for line in wrong[2] if line["kind"] == "begin" and line["attempt"] == 2)
    begin["fingerprints"] = begin["fingerprints"] | {"outer": "o0.0"}
    begin["outer_version"] = 0
    found = judged(wrong, twin)
    (one,) = of(found, "parameters").findings
    assert (one.attempt, one.step, one.ranks) == (2, 6, (2,))
    assert one.text == "attempt 2 began on rank 2 with outer other than those after this step"
    assert of(found, "updates").findings[0].text.endswith("with 0 exchanges in the outer parameters, expected 1")


# Exchanges


@pytest.mark.parametrize("ranks", [(2,), range(WORLD)], ids=["one rank", "all ranks"])
def test_an_exchange_that_was_never_sent_is_missing(ranks: Sequence[int]) -> None:
    run = run_of(diloco())
    for rank in ranks:
        line = at_step(run, rank, 8)
        line["operations"] = [it for it in line["operations"] if not it["group"].startswith("slice")]
    exchanges = of(judged(run, diloco()), "exchanges")
    assert exchanges.holds is False
    assert {rank for it in exchanges.findings for rank in it.ranks} == set(ranks)
    assert {it.step for it in exchanges.findings} == {8}
    assert "nothing, expected 20000 bytes" in exchanges.findings[0].text


@pytest.mark.parametrize("ranks", [(0,), range(WORLD)], ids=["one rank", "all ranks"])
def test_an_exchange_in_another_step_is_one_too_many(ranks: Sequence[int]) -> None:
    run = run_of(diloco())
    for rank in ranks:
        again = [it | {"sequence": 9} for it in at_step(run, rank, 8)["operations"] if it["group"].startswith("slice")]
        at_step(run, rank, 9)["operations"] += again
    exchanges = of(judged(run, diloco()), "exchanges")
    assert exchanges.holds is False
    assert {it.step for it in exchanges.findings} == {9}


def test_tensors_that_are_in_two_fragments_make_one_of_them_too_large() -> None:
    layers = tuple(Tensor(f"w{layer}", 5_000, layer) for layer in range(4))
    layout = Layout(SITES, (Tensor("embedding.weight", 2_000), *layers), steps=24)
    twin = strategies_built.make("streaming-diloco", {"every": 8, "fragments": 4, "overlap": 1}, layout)
    run = run_of(twin, 24, versions=False)
    names = [it.name for it in twin.equal(1)]
    for rank in range(WORLD):
        for line in run[rank]:
            for key in ("fingerprints", "fingerprints_before"):
                line.pop(key, None)
            line.pop("trace", None)
    assert names
    assert of(judged(run, twin), "exchanges").holds is True
    for rank in range(WORLD):
        for step in (8, 16):
            for each in at_step(run, rank, step)["operations"]:
                if each["group"].startswith("slice"):
                    each["bytes"] += 4 * 2_000 / 2
    exchanges = of(judged(run, twin), "exchanges")
    assert exchanges.holds is False
    assert {it.step for it in exchanges.findings} == {8, 16}


def test_where_a_group_has_no_records_nothing_is_told() -> None:
    run = run_of(diloco())
    for lines in run:
        for line in lines:
            line["operations"] = [it for it in line.get("operations", ()) if it["group"].startswith("site")]
    exchanges = of(judged(run, diloco()), "exchanges")
    assert exchanges.holds is None
    assert exchanges.why == "no operation of the process groups slice:0, slice:1 was recorded"


# A server of outer parameters


class Served(Twin):
    """As an asynchronous strategy: ranks differ, what they adopted of one version does not."""

    name = "served"
    summary = "a test"
    together = False

    def operations(self, step: int) -> tuple[Operation, ...]:
        return ()

    def equal(self, step: int) -> tuple[Equal, ...]:
        inside = tuple(Equal("parameters", ranks) for ranks in self.layout.members.values())
        return (*inside, Equal("outer", (0, 2), by_version=True), Equal("outer", (1, 3), by_version=True))

    def outer_updates(self, step: int) -> int:
        return 99 * step  # which version a site has after a step is not known in advance

    def wrong_exchanges(self, records: Iterable[Mapping[str, Any]]) -> Sequence[str]:
        return faults_of_versions(records, 2)


def served_run(steps: int = 6) -> tuple[Twin, list[list[Line]], list[list[Line]]]:
    """East pushes after each second step, west after each third; the server is at ranks 0 and 1, a slice each.

    Versions: east 1, west 2 (based on 0), east 3 (based on 1), west 4 (based on 2), east 5 (based on 3).
    """
    layout = Layout(SITES, (Tensor("model", BYTES // 4),), steps=steps)
    order = [("east", 1, 0), ("west", 1, 0), ("east", 2, 1), ("west", 2, 2), ("east", 3, 3)]
    lines: list[list[Line]] = [[] for _ in SITES]
    for version, (site, push, base) in enumerate(order, 1):
        for rank, of_rank in enumerate(SITES):
            common = {"kind": "exchange", "attempt": 1, "t": float(version), "site": site}
            if of_rank == site:
                lines[rank].append(common | {"what": "pushed", "push": push, "base": base, "step": version})
            if of_rank == "east":
                lines[rank].append(
                    common
                    | {"what": "served", "push": push, "base": base, "version": version, "crc": 10 * version + rank % 2}
                    | {"slice": rank % 2, "staleness": version - 1 - base}
                )
            if of_rank == site:
                lines[rank].append(
                    common | {"what": "pulled", "version": version, "slice": rank % 2, "crc": 10 * version + rank % 2}
                )
    checks: list[list[Line]] = []
    for rank, site in enumerate(SITES):
        versions = {1: 1, 2: 1, 3: 3, 4: 3, 5: 5, 6: 5} if site == "east" else {1: 2, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4}
        first = {"parameters": "p0", "outer": f"o0.{rank % 2}"}
        rows: list[Line] = [
            {
                "kind": "begin", "attempt": 1, "t": 0.0, "rank": rank, "world_size": WORLD, "step": 0, "hang_s": 15.0,
                "parameters": "p0", "optimizer_steps": 0, "fingerprints": first, "outer_version": 0,
            }
        ]  # fmt: skip
        for step in range(1, steps + 1):
            after = {"parameters": f"p{step}.{site}", "outer": f"o{versions[step]}.{rank % 2}"}
            rows.append(
                {
                    "kind": "step", "attempt": 1, "t": float(step), "step": step, "optimizer_steps": step,
                    "operations": [], "fingerprints": after, "outer_version": versions[step],
                    "became": after["parameters"],
                }
            )  # fmt: skip
        checks.append(rows)
    return Served({}, layout), checks, lines


def judged_served(run: tuple[Twin, list[list[Line]], list[list[Line]]], end: EndRecord | None = None) -> Checked:
    """Judge a job of which each rank ended with ``end``, in order unless it is given."""
    twin, checks, lines = run
    end = end or EndRecord(9.0, "ok", "", 6)
    logs = [
        RankLog(rank, (JobRecord(0.0, rank, WORLD, f"n{rank}", SITES[rank], "served", 1, BYTES, 6),), ends=(end,))
        for rank in range(WORLD)
    ]
    return judged([[*one, *other] for one, other in zip(checks, lines, strict=True)], twin, logs)


def test_sites_that_do_not_wait_for_each_other_are_compared_by_version() -> None:
    run = served_run()
    checked = judged_served(run)
    assert of(checked, "parameters").holds is True, of(checked, "parameters")
    assert of(checked, "served").holds is True, of(checked, "served")
    assert of(checked, "served").looked_at.startswith("10 pushes and 10 adopted versions of 4 ranks")
    at = next(line for line in run[1][2] if line.get("step") == 4 and line["kind"] == "step")
    at["fingerprints"] = at["fingerprints"] | {"outer": "o3.0"}
    at["outer_version"] = 3
    assert of(judged_served(run), "parameters").holds is True
    at["fingerprints"] = at["fingerprints"] | {"outer": "o9.0"}
    (found,) = of(judged_served(run), "parameters").findings
    assert (found.step, found.ranks) == (4, (2,)) or found.ranks == (0,)


def test_without_a_record_of_the_server_nothing_is_told() -> None:
    twin, checks, _ = served_run()
    served = of(judged_served((twin, checks, [[] for _ in SITES])), "served")
    assert served.holds is None and served.why == "no exchange with the server was recorded"


@pytest.mark.parametrize("end", [EndRecord(9.0, "failed", "", 6), EndRecord(9.0, "stopped", "", 6, forced=True)])
def test_a_push_that_is_left_over_is_wrong_only_after_an_orderly_end(end: EndRecord) -> None:
    run = served_run()
    for rank in (2, 3):
        run[2][rank].append({"kind": "exchange", "attempt": 1, "what": "pushed", "site": "west", "push": 3, "base": 4})
    assert of(judged_served(run, end), "served").holds is True
    (text,) = {it.text for it in of(judged_served(run), "served").findings}
    assert text == "push 3 of west was never taken up"


def _stale(lines: list[list[Line]]) -> None:
    for rank in range(WORLD):
        for line in lines[rank]:
            if line["site"] == "east" and line.get("push") == 3:
                line["base"] = 1
                line["staleness"] = 3


def _twice(lines: list[list[Line]]) -> None:
    for rank in (0, 1):
        last = next(line for line in lines[rank] if line["what"] == "served" and line["version"] == 2)
        lines[rank].append(last | {"version": 6, "base": 4, "crc": 60 + rank})


def _lost(lines: list[list[Line]]) -> None:
    for rank in (0, 1):
        lines[rank] = [line for line in lines[rank] if not (line["what"] == "served" and line["version"] == 5)]


def _skipped(lines: list[list[Line]]) -> None:
    for rank in (0, 1):
        for line in lines[rank]:
            if line["what"] == "served" and line["version"] > 2:
                line["version"] += 1


def _other(lines: list[list[Line]]) -> None:
    next(line for line in lines[3] if line["what"] == "pulled" and line["version"] == 4)["crc"] = 99


@pytest.mark.parametrize(
    ("plant", "text"),
    [
        (_stale, "version 5 of slice 0 took a push of east that was 3 versions old, 2 allowed"),
        (_twice, "push 1 of west, slice 0 is in 2 versions"),
        (_lost, "push 3 of east was never taken up"),
        (_skipped, "version 3 of slice 0 is missing"),
        (_other, "west adopted other parameters as version 4 of slice 1 than were made"),
        (_stale, "push 3 is based on version 1, adopted last was version 3"),
    ],
)
def test_what_a_server_takes_or_gives_wrongly_is_found(plant: Callable[[list[list[Line]]], None], text: str) -> None:
    run = served_run()
    plant(run[2])
    served = of(judged_served(run), "served")
    assert served.holds is False
    assert any(text in each.text for each in served.findings), served.findings


def test_a_sum_of_messages_without_recorded_elements_was_not_checked() -> None:
    done = {"operation": "sum", "group": "slice:0", "sequence": 0, "bytes": 8, "began_t": 0.5, "ended_t": 0.6}
    begin = {
        "kind": "begin", "attempt": 1, "t": 0.0, "world_size": 2, "step": 0, "hang_s": 15.0, "parameters": "p0",
        "optimizer_steps": 0,
    }  # fmt: skip
    lines: list[Line] = [
        begin,
        {"kind": "group", "attempt": 1, "group": "slice:0", "ranks": [0, 1]},
        {"kind": "step", "attempt": 1, "step": 1, "optimizer_steps": 1, "operations": [{**done, "crc32": "aa"}]},
    ]
    logs = [read_checks(rank, lines)[0] for rank in (0, 1)]
    sums = next(it for it in check(logs).checkers if it.id == "sums")
    assert (sums.holds, sums.why) == (None, "no elements to recompute were recorded")
