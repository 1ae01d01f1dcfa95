"""The twin of the strategy defines correct behavior for the checkers. Bugs are found on one rank and on all alike."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from builders.check_records import Line, at_step, begin, checker, judged, named
from builders.tables import table

from testbed.core.checkers.checks import check
from testbed.core.checkers.finding import Checker
from testbed.core.records.check_record import read_checks
from testbed.core.records.rank_log import EndRecord, JobRecord, RankLog
from testbed.core.training import strategies_built
from testbed.core.training.layout import Layout, Tensor
from testbed.core.training.parameter_server import faults_of_versions
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Equal, Twin

Lines = list[list[Line]]
SITES = ("east", "east", "west", "west")
RANKS = tuple(range(len(SITES)))
WORLD, STEPS = len(SITES), 12
BYTES = 40_000


def layout(steps: int = STEPS, *tensors: Tensor) -> Layout:
    return Layout(SITES, tensors or (Tensor("model", BYTES // 4),), steps=steps)


DILOCO = strategies_built.make("diloco", {"every": 4}, layout())

on_one_and_on_all = table("ranks", {"one rank": (2,), "all ranks": RANKS})


def operations(twin: Twin, rank: int, step: int) -> Iterator[Line]:
    """What a rank records of the twin's operations of a step: a sum of two ranks is a message each way."""
    for operation in twin.operations(step):
        if rank not in operation.ranks:
            continue
        line = {"operation": operation.kind, "group": operation.group, "bytes": operation.byte_count}
        if operation.kind == "send":
            sender, receiver = operation.ranks
            message = ("send", receiver) if rank == sender else ("recv", sender)
            line |= {"operation": message[0], "peer": message[1], "tag": 0}
        yield line | {"began_t": step, "ended_t": step + 0.1}


def begun(rank: int, **fields: Any) -> Line:
    fingerprints = {"parameters": "p0", "outer": f"o0.{rank % 2}"}
    return begin(rank, world=WORLD, hang_s=15.0, t=0.0, fingerprints=fingerprints, outer_version=0) | fields


def run_of(twin: Twin = DILOCO, steps: int = STEPS, versions: bool = True) -> Lines:
    """rank -> its lines, of a job in which nothing is wrong. Fingerprints are taken in every step.

    Between exchanges a site's parameters are its own; after one, all are equal. Each rank has a slice of ``outer``.
    """
    ranks: Lines = []
    for rank, site in enumerate(SITES):
        groups = {it.group: it.ranks for step in range(steps + 1) for it in twin.operations(step) if rank in it.ranks}
        lines = [
            begun(rank),
            *({"kind": "group", "attempt": 1, "group": name, "ranks": list(of)} for name, of in groups.items()),
        ]
        before = lines[0]["fingerprints"]
        counts: dict[tuple[str, str], int] = {}
        for step in range(1, steps + 1):
            version = twin.outer_updates(step)
            parameters = f"p{step}" if version > twin.outer_updates(step - 1) else f"p{step}.{site}"
            after = {"parameters": parameters, "outer": f"o{version}.{rank % 2}"}
            done = list(operations(twin, rank, step))
            for line in done:
                place = (line["group"], f"{line['operation']}{line['peer']}" if "peer" in line else "")
                line["sequence"] = counts.get(place, 0)
                counts[place] = line["sequence"] + 1
            lines.append(
                {
                    "kind": "step", "attempt": 1, "t": float(step), "step": step, "optimizer_steps": twin.updates(step),
                    "operations": done, "fingerprints_before": before, "fingerprints": after,
                    "trained_on": before["parameters"], "became": parameters,
                    "trace": {name: f"t.{value}" for name, value in after.items()},
                    **({"outer_version": version} if versions else {}),
                }
            )  # fmt: skip
            before = after
        ranks.append(lines)
    return ranks


def result(run: Lines, name: str, twin: Twin = DILOCO) -> Checker:
    return checker(run, name, twin)


def put(line: Line, key: str, **values: str) -> None:
    """Change values in a dictionary that lines share."""
    line[key] = line[key] | values


# ---- parameters


def test_checks_of_sites_that_train_alone_hold_though_they_differ_between_exchanges() -> None:
    """Local training is no "stale parameters": sites differ, the ranks of a site do not."""
    checked = judged(run_of(), DILOCO)
    for name in ("parameters", "updates", "exchanges"):
        assert named(checked, name).holds is True, named(checked, name)
    assert named(checked, "parameters").looked_at == "fingerprints of 4 ranks compared at 12 steps"
    # Of each of the 4 ranks, 12 averages in the site and 3 times 3 between them.
    assert named(checked, "exchanges").looked_at == "bytes of 84 exchanges compared with those of diloco"
    # The same records are wrong for a strategy that averages in every step.
    assert result(run_of(), "parameters", strategies_built.make("ddp", {}, DILOCO.layout)).holds is False


def change_parameters(run: Lines, rank: int, first: int, until: int, parameters: Callable[[int], str]) -> None:
    """The parameters of a rank are others from the end of step ``first`` on, until that of ``until``."""
    for step in range(first, until + 1):
        line, value = at_step(run, rank, step), parameters(step)
        put(line, "fingerprints", parameters=value)
        put(line, "trace", parameters=f"t.{value}")
        line["became"] = value
        if step < STEPS:
            after = at_step(run, rank, step + 1)
            put(after, "fingerprints_before", parameters=value)
            after["trained_on"] = value


def test_check_names_a_rank_with_another_state_than_its_mate() -> None:
    run = run_of()
    change_parameters(run, 1, 5, 7, lambda step: f"other{step}")
    parameters = result(run, "parameters")
    first = parameters.findings[0]
    assert (parameters.holds, first.step, first.ranks) == (False, 5, (1,))
    assert first.text == "after it, parameters of rank 1 differ from those of rank 0"


@on_one_and_on_all
def test_check_finds_ranks_that_continue_with_an_earlier_state(ranks: Sequence[int]) -> None:
    """From the state of the beginning, between steps 5 and 6: what step 6 begins with is not what step 5 left."""
    run = run_of()
    for rank in ranks:
        line = at_step(run, rank, 6)
        put(line, "fingerprints_before", parameters="p0")
        line["trained_on"] = "p0"
    parameters = result(run, "parameters")
    first = parameters.findings[0]
    assert (parameters.holds, first.step, first.ranks) == (False, 6, ranks)
    if ranks == RANKS:
        assert first.text.endswith("began it with other parameters than step 5 left")


def test_check_finds_a_step_that_goes_back_by_its_trace_alone() -> None:
    """Steps without fingerprints: a few elements of every step tell, on all ranks alike."""
    run = run_of()
    for rank in RANKS:
        for step in range(2, STEPS):
            for key in ("fingerprints", "fingerprints_before", "trained_on", "became"):
                at_step(run, rank, step).pop(key)
        at_step(run, rank, 7)["trace"] = at_step(run, rank, 3)["trace"]
    (found,) = result(run, "parameters").findings
    assert (found.step, found.ranks) == (7, RANKS)
    assert found.text.endswith("went back to the parameters after step 3")


def test_check_lets_an_exchange_leave_the_traced_elements_if_others_changed() -> None:
    """Of the largest values alone, few elements change: the fingerprints of all of them tell that it went on."""
    run = run_of()
    for rank in RANKS:
        at_step(run, rank, 8)["trace"] = at_step(run, rank, 4)["trace"]
    assert result(run, "parameters").holds is True
    for rank in RANKS:
        change_parameters(run, rank, 8, 8, lambda _: "p4")
    texts = [found.text for found in result(run, "parameters").findings]
    assert any(text.endswith("went back to the parameters after step 4") for text in texts), texts


def test_read_checks_puts_a_wait_in_the_first_operation_of_a_group_down_to_that_operation() -> None:
    """The group's ranks are recorded behind it, with the step."""
    place = {"group": "slice:0", "sequence": 0, "operation": "send", "peer": 2}
    done = {**place, "bytes": 8, "began_t": 2.0, "ended_t": 9.5}
    lines: list[Line] = [
        {"kind": "waits", "attempt": 1, "t": 9.0, "since_t": 2.0, "step": 4, **place},
        {"kind": "group", "attempt": 1, "group": "slice:0", "ranks": [0, 2]},
        {"kind": "step", "attempt": 1, "t": 10.0, "step": 4, "optimizer_steps": 4, "operations": [done]},
    ]
    log, malformed = read_checks(0, lines)
    assert malformed == 0
    assert log.waits[0].tag == log.steps[0].operations[0][0]


def test_check_compares_slices_of_the_outer_state_between_sites() -> None:
    run = run_of()
    for step in (8, 12):
        put(at_step(run, 3, step), "fingerprints", outer="stale")
    parameters = result(run, "parameters")
    assert parameters.holds is False
    assert parameters.findings[0].text == "after it, outer of rank 3 differ from those of rank 1"


class Alone(Twin):
    """No two ranks hold the same, as of a pipeline with one rank per stage."""

    name = "alone"
    summary = "a test"

    def operations(self, step: int) -> tuple[Operation, ...]:
        return ()

    def equal(self, step: int) -> tuple[Equal, ...]:
        return tuple(Equal("stage", (rank,)) for rank in RANKS)


def alone_run() -> Lines:
    """Fingerprints are taken before and after the first two steps."""
    run: Lines = []
    for rank in RANKS:
        prints = [{"stage": f"s{step}.{rank}"} for step in range(4)]
        lines = [begin(rank, world=WORLD, fingerprints=prints[0])]
        for step in (1, 2, 3):
            line = {"kind": "step", "attempt": 1, "t": float(step), "step": step, "optimizer_steps": step}
            taken = {"fingerprints_before": prints[step - 1], "fingerprints": prints[step]} if step < 3 else {}
            lines.append(line | {"operations": []} | taken)
        run.append(lines)
    return run


def test_check_of_ranks_that_hold_nothing_in_common_compares_each_with_itself() -> None:
    run = alone_run()
    parameters = result(run, "parameters", Alone({}, layout()))
    assert parameters.holds is True, parameters
    assert parameters.looked_at.endswith("with those of the step before 8 times")
    at_step(run, 2, 2)["fingerprints_before"] = {"stage": "other"}
    (found,) = result(run, "parameters", Alone({}, layout())).findings
    assert (found.step, found.ranks) == (2, (2,))


def test_check_of_ranks_that_hold_nothing_in_common_is_unknown_without_two_steps_in_a_row() -> None:
    run = alone_run()
    for step in (1, 2):
        at_step(run, 3, step).pop("fingerprints_before")
    parameters = result(run, "parameters", Alone({}, layout()))
    assert parameters.holds is None
    assert parameters.why == "rank 3 did not record what a step began with and the one before left"


# ---- updates


@on_one_and_on_all
@table("applied", {"applied twice": 2, "not applied": 0})
def test_check_counts_exchanges_that_were_applied(ranks: Sequence[int], applied: int) -> None:
    run = run_of()
    for rank in ranks:
        for step in range(8, STEPS + 1):
            at_step(run, rank, step)["outer_version"] += applied - 1
    updates = result(run, "updates")
    (found,) = updates.findings
    assert (updates.holds, updates.metric, found.step, found.ranks) == (False, len(ranks), 8, ranks)
    assert f"{applied} exchanges were applied after it, expected 1" in found.text


def test_check_of_an_accumulated_step_that_updates_nothing_holds() -> None:
    twin = strategies_built.make("ddp", {"accumulate": 3}, layout(11))
    run = run_of(twin, 11, versions=False)
    for rank in RANKS:
        after = "p0"
        for step in range(1, 12):
            before, after = after, f"p{step}" if step in (3, 6, 9, 11) else after
            prints = {"fingerprints_before": {"parameters": before}, "fingerprints": {"parameters": after}}
            own = {"trained_on": before, "became": after, "trace": {"parameters": f"t.{after}"}}
            at_step(run, rank, step).update(prints | own)
    good = judged(run, twin)
    assert (named(good, "updates").holds, named(good, "parameters").holds) == (True, True), good
    for rank in RANKS:
        for step in range(6, 12):
            at_step(run, rank, step)["optimizer_steps"] -= 1
    (found,) = result(run, "updates", twin).findings
    assert (found.step, found.ranks) == (6, RANKS)


def test_check_of_a_restored_attempt_continues_with_the_counts_of_its_step() -> None:
    run = run_of()
    for rank, lines in enumerate(run):
        again = [line | {"attempt": 2} for line in lines if line["kind"] == "group" or line.get("step", 0) > 6]
        left = at_step(run, rank, 6)["fingerprints"]
        place = {"attempt": 2, "step": 6, "optimizer_steps": 6, "outer_version": 1}
        lines += [begun(rank, fingerprints=left, parameters=left["parameters"], **place), *copy.deepcopy(again)]
    checked = judged(run, DILOCO)
    assert [named(checked, name).holds for name in ("parameters", "updates", "exchanges")] == [True] * 3
    line = at_step(run, 2, 6, "begin", attempt=2)
    put(line, "fingerprints", outer="o0.0")
    line["outer_version"] = 0
    (found,) = result(run, "parameters").findings
    assert (found.attempt, found.step, found.ranks) == (2, 6, (2,))
    assert found.text == "attempt 2 began on rank 2 with outer other than those after this step"
    text = result(run, "updates").findings[0].text
    assert text.endswith("with 0 exchanges in the outer parameters, expected 1")


# ---- exchanges


def slices(line: Line) -> list[Line]:
    return [operation for operation in line["operations"] if operation["group"].startswith("slice")]


@on_one_and_on_all
def test_check_misses_an_exchange_that_was_never_sent(ranks: Sequence[int]) -> None:
    run = run_of()
    for rank in ranks:
        line = at_step(run, rank, 8)
        line["operations"] = [operation for operation in line["operations"] if operation not in slices(line)]
    exchanges = result(run, "exchanges")
    assert exchanges.holds is False
    assert {rank for found in exchanges.findings for rank in found.ranks} == set(ranks)
    assert {found.step for found in exchanges.findings} == {8}
    assert "nothing, expected 20000 bytes" in exchanges.findings[0].text


@table("ranks", {"one rank": (0,), "all ranks": RANKS})
def test_check_finds_an_exchange_too_many_in_another_step(ranks: Sequence[int]) -> None:
    run = run_of()
    for rank in ranks:
        again = [operation | {"sequence": 9} for operation in slices(at_step(run, rank, 8))]
        at_step(run, rank, 9)["operations"] += again
    exchanges = result(run, "exchanges")
    assert exchanges.holds is False
    assert {found.step for found in exchanges.findings} == {9}


def test_check_finds_tensors_in_two_fragments_by_a_fragment_that_is_too_large() -> None:
    layers = (Tensor(f"w{layer}", 5_000, layer) for layer in range(4))
    tensors = layout(24, Tensor("embedding.weight", 2_000), *layers)
    twin = strategies_built.make("streaming-diloco", {"every": 8, "fragments": 4, "overlap": 1}, tensors)
    assert twin.equal(1)
    run = run_of(twin, 24, versions=False)
    for lines in run:
        for line in lines:
            for key in ("fingerprints", "fingerprints_before", "trace"):
                line.pop(key, None)
    assert result(run, "exchanges", twin).holds is True
    for rank in RANKS:
        for step in (8, 16):
            for operation in slices(at_step(run, rank, step)):
                operation["bytes"] += 4 * 2_000 / 2
    exchanges = result(run, "exchanges", twin)
    assert exchanges.holds is False
    assert {found.step for found in exchanges.findings} == {8, 16}


def test_check_of_exchanges_is_unknown_where_a_group_has_no_records() -> None:
    run = run_of()
    for lines in run:
        for line in lines:
            line["operations"] = [it for it in line.get("operations", ()) if it["group"].startswith("site")]
    exchanges = result(run, "exchanges")
    assert exchanges.holds is None
    assert exchanges.why == "no operation of the process groups slice:0, slice:1 was recorded"


# ---- a server of outer parameters


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


VERSIONS = {"east": (1, 1, 3, 3, 5, 5), "west": (2, 2, 2, 4, 4, 4)}
"""The outer parameters of a site after steps 1 to 6."""


def served_run() -> tuple[Lines, Lines]:
    """East pushes after each second step, west after each third; the server is at ranks 0 and 1, a slice each.

    Versions: east 1, west 2 (based on 0), east 3 (based on 1), west 4 (based on 2), east 5 (based on 3).
    """
    order = [("east", 1, 0), ("west", 1, 0), ("east", 2, 1), ("west", 2, 2), ("east", 3, 3)]
    exchanges: Lines = [[] for _ in SITES]
    for version, (site, push, base) in enumerate(order, 1):
        common = {"kind": "exchange", "attempt": 1, "t": float(version), "site": site}
        pushed = {"push": push, "base": base}
        for rank, lines in enumerate(exchanges):
            part = {"version": version, "slice": rank % 2, "crc": 10 * version + rank % 2}
            if SITES[rank] == site:
                lines.append(common | pushed | {"what": "pushed", "step": version})
            if SITES[rank] == "east":
                lines.append(common | pushed | part | {"what": "served", "staleness": version - 1 - base})
            if SITES[rank] == site:
                lines.append(common | part | {"what": "pulled"})
    checks: Lines = [[begun(rank)] for rank in RANKS]
    for rank, site in enumerate(SITES):
        for step, version in enumerate(VERSIONS[site], 1):
            after = {"parameters": f"p{step}.{site}", "outer": f"o{version}.{rank % 2}"}
            checks[rank].append(
                {
                    "kind": "step", "attempt": 1, "t": float(step), "step": step, "optimizer_steps": step,
                    "operations": [], "fingerprints": after, "outer_version": version, "became": after["parameters"],
                }
            )  # fmt: skip
    return checks, exchanges


ORDERLY = EndRecord(9.0, "ok", "", 6)


def served(checks: Lines, exchanges: Lines, name: str = "served", end: EndRecord = ORDERLY) -> Checker:
    """Judge a job of which each rank ended with ``end``."""
    logs = [
        RankLog(rank, (JobRecord(0.0, rank, WORLD, f"n{rank}", site, "served", 1, BYTES, 6),), ends=(end,))
        for rank, site in enumerate(SITES)
    ]
    run = [[*lines, *others] for lines, others in zip(checks, exchanges, strict=True)]
    return checker(run, name, Served({}, layout(6)), logs)


def test_check_compares_sites_that_do_not_wait_for_each_other_by_version() -> None:
    checks, exchanges = served_run()
    parameters, exchanged = (served(checks, exchanges, name) for name in ("parameters", "served"))
    assert parameters.holds is True, parameters
    assert exchanged.holds is True, exchanged
    assert exchanged.looked_at.startswith("10 pushes and 10 adopted versions of 4 ranks")
    line = at_step(checks, 2, 4)
    put(line, "fingerprints", outer="o3.0")
    line["outer_version"] = 3
    assert served(checks, exchanges, "parameters").holds is True
    put(line, "fingerprints", outer="o9.0")
    (found,) = served(checks, exchanges, "parameters").findings
    assert (found.step, found.ranks) == (4, (2,)) or found.ranks == (0,)


@table("moved, texts", {"as many": (8, []), "too few": (4, ["push 1 of east: rank 0 sent 4 bytes, expected 8"])})
def test_check_compares_the_bytes_of_parcels_where_no_operation_is_watched(moved: int, texts: list[str]) -> None:
    class Sized(Served):
        def parcel_bytes(self, fragment: int | None) -> float:
            return 8e6

    push = {"kind": "exchange", "attempt": 1, "what": "pushed", "site": "east", "push": 1, "slice": 0}
    checks, _ = served_run()
    checks[0].append(push | {"bytes": moved * 10**6})
    place = {"operation": "barrier", "group": "world", "sequence": 0, "bytes": 0, "began_t": 0.5, "ended_t": 0.6}
    at_step(checks, 0, 1)["operations"] = [place]
    exchanges = result(checks, "exchanges", Sized({}, layout(6)))
    assert exchanges.holds is not bool(texts)
    assert [it.text.replace("000000", "") for it in exchanges.findings] == texts
    checks[0].pop()
    assert result(checks, "exchanges", Sized({}, layout(6))).why == "no operation was recorded"


def test_check_finds_a_site_whose_last_push_misses_the_last_steps() -> None:
    checks, exchanges = served_run()
    for lines in exchanges:
        for line in select(lines, what="pushed"):
            line["first"] = line["step"]
    texts = {it.text for it in served(checks, exchanges).findings}
    assert "the last push of east ends with step 5, the job with step 6" in texts


def test_check_without_a_record_of_the_server_is_unknown() -> None:
    exchanged = served(served_run()[0], [[] for _ in SITES])
    assert exchanged.holds is None and exchanged.why == "no exchange with the server was recorded"


@table("end", {status: EndRecord(9.0, status, "", 6, forced=status == "stopped") for status in ("failed", "stopped")})
def test_check_finds_a_push_that_is_left_over_only_after_an_orderly_end(end: EndRecord) -> None:
    checks, exchanges = served_run()
    for rank in (2, 3):
        exchanges[rank].append(
            {"kind": "exchange", "attempt": 1, "what": "pushed", "site": "west", "push": 3, "base": 4}
        )
    assert served(checks, exchanges, end=end).holds is True
    assert {found.text for found in served(checks, exchanges).findings} == {"push 3 of west was never taken up"}


def select(lines: list[Line], **fields: Any) -> list[Line]:
    return [line for line in lines if fields.items() <= line.items()]


def stale(lines: list[Line], rank: int) -> None:
    for line in select(lines, site="east", push=3):
        line |= {"base": 1, "staleness": 3}


def twice(lines: list[Line], rank: int) -> None:
    for line in select(lines, what="served", version=2):
        lines.append(line | {"version": 6, "base": 4, "crc": 60 + rank})


def lost(lines: list[Line], rank: int) -> None:
    for line in select(lines, what="served", version=5):
        lines.remove(line)


def skipped(lines: list[Line], rank: int) -> None:
    for line in select(lines, what="served"):
        line["version"] += line["version"] > 2


def other(lines: list[Line], rank: int) -> None:
    for line in select(lines, what="pulled", version=4):
        line["crc"] += 56 * (rank == 3)


@table(
    "plant, text",
    {
        "an old push": (stale, "version 5 of slice 0 took a push of east that was 3 versions old, 2 allowed"),
        "a push in two versions": (twice, "push 1 of west, slice 0 is in 2 versions"),
        "a lost push": (lost, "push 3 of east was never taken up"),
        "a missing version": (skipped, "version 3 of slice 0 is missing"),
        "other parameters": (other, "west adopted other parameters as version 4 of slice 1 than were made"),
        "an old base": (stale, "push 3 is based on version 1, adopted last was version 3"),
    },
)
def test_check_finds_errors_of_a_server(plant: Callable[[list[Line], int], None], text: str) -> None:
    checks, exchanges = served_run()
    for rank, lines in enumerate(exchanges):
        plant(lines, rank)
    exchanged = served(checks, exchanges)
    assert exchanged.holds is False
    assert any(text in found.text for found in exchanged.findings), exchanged.findings


def test_check_of_sums_of_messages_without_recorded_elements_is_unknown() -> None:
    place = {"operation": "sum", "group": "slice:0", "sequence": 0, "bytes": 8, "crc32": "aa"}
    lines: list[Line] = [
        begin(0, world=2),
        {"kind": "group", "attempt": 1, "group": "slice:0", "ranks": [0, 1]},
        {"kind": "step", "attempt": 1, "step": 1, "optimizer_steps": 1,
         "operations": [{**place, "began_t": 0.5, "ended_t": 0.6}]},
    ]  # fmt: skip
    sums = named(check([read_checks(rank, lines)[0] for rank in (0, 1)]), "sums")
    assert (sums.holds, sums.why) == (None, "no elements to recompute were recorded")
