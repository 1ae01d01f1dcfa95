"""Damage to a field of a record changes that field alone, or rejects the record; it never makes an unknown pass."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from builders import run_factory

from testbed.core.certification.certificate import Certificate
from testbed.core.fields import LARGEST, Malformed
from testbed.core.json_record import JsonRecord
from testbed.core.records.capture_record import CaptureRecord
from testbed.core.records.check_record import Began, Held
from testbed.core.records.operation_record import Done, Encoded, OuterStep, Weighed
from testbed.core.records.process_end import ProcessEnd
from testbed.core.records.rank_log import EndRecord, JobRecord, StepRecord
from testbed.core.records.run_info import RunInfo
from testbed.core.records.samples import FiberSample, RankSample
from testbed.core.records.stalls import Stall, TcpTimeouts

MISSING = object()
DAMAGE: tuple[Any, ...] = (MISSING, None, "text", "", 0, -1, 1.5, True, False, [], {}, ["text", 2], [None],
          [[0.5, None]], {"key": "value"}, LARGEST * 1.1, 10**400, float("nan"), float("-inf"))  # fmt: skip
ONE, TWO = "0000803f", "0000803f0000803f"
STEP = {
    "step": 1, "t_begin": 1.0, "t_ready": 1.5, "t_sync": 1.75, "t_stepped": 1.9, "t_end": 2.0, "tokens": 8,
    "attempt": 2, "train_loss": 2.5, "sent_bytes": 9, "received_bytes": 7, "retransmitted": {"a": 1},
    "out_of_order": {"a": 1}, "tcp": {"sent": 5, "busy_s": 0.1}, "late_s": 0.1, "blocked_s": 0.2, "declared_s": 0.5,
    "overrun_s": 0.1, "cpu_s": 1.0,
}  # fmt: skip
LINES: tuple[tuple[type[JsonRecord], dict[str, Any]], ...] = (
    (StepRecord, STEP),
    (JobRecord, {"t": 1.0, "rank": 0, "world_size": 2, "node": "n", "site": "s", "scheme": "ddp", "attempt": 2,
                 "strategy": {"name": "diloco", "options": {"every": 5}}, "tensor_elements": [3, 4],
                 "compute": {"a": 1}}),
    (EndRecord, {"t": 1.0, "status": "stopped", "reason": "why", "step": 5, "parameters_sha256": "a"}),
    (FiberSample, {"t": 1.0, "direction": "north:west", "packets": 3, "segments": 4, "bytes": 50, "drops": {"loss": 1},
                   "queue_bytes": 5, "lateness": {"bounds_s": [0.1], "counts": [1, 2]}}),
    (RankSample, {"t": 1.0, "rank": 1, "steps": 5, "tokens": 50, "compute_s": 1.5, "memory_bytes": 10, "why": "w"}),
    (TcpTimeouts, {"t": 2.0, "node": "n", "since_t": 1.0, "count": 3}),
    (Stall, {"core": 1, "t": 2.0, "s": 0.5}),
    (ProcessEnd, {"rank": 1, "t": 2.0, "code": 1, "signal": 9, "by_testbed": True, "out_of_memory": True}),
    (CaptureRecord, {"capture": "c", "directions": ["north:west"], "before": True, "began_t": 1.0, "packets": 5}),
    (Began, {"attempt": 2, "t": 1.0, "step": 3, "world_size": 2, "hang_s": 5.0, "parameters": "p", "optimizer_steps": 3,
             "fingerprints": {"a": "1"}, "outer_version": 1}),
    (Held, {"since_t": 1.0, "t": 2.0}),
    (Done, {"operation": "sum", "step": 1, "bytes": 8, "began_t": 1.0, "ended_t": 2.0, "sent": ["a"], "received": "b",
            "sample": {"at": [4], "inputs": ONE, "outputs": ONE}}),
    (Encoded, {"attempt": 2, "step": 1, "what": "sum", "fragment": 0, "ranks": [0, 1], "number": 1, "own": 0,
               "at": [4, 5], "inputs": TWO, "decoded": [TWO], "total": TWO, "bound": "00" * 16,
               "weights": [0.5], "residual": TWO}),
    (OuterStep, {"step": 1, "name": "w", "at": [4], "before": ONE, "momentum_before": ONE, "gradient": ONE,
                 "after": ONE, "momentum_after": ONE, "rate": 0.7, "momentum": 0.9, "before_crc32": "a",
                 "after_crc32": "b", "restarted": True, "delay": 2}),
    (Weighed, {"step": 1, "taken": 1, "name": "w", "ranks": [0], "at": [4], "own": ONE, "share": 0.5, "mean": ONE}),
    (RunInfo, {"name": "r", "status": "finished", "started_t": 1.0, "uncertified": True, "workload": {"a": 1},
               "expectations": [{"text": "x > 1", "holds": True}, {"text": "y > 1"}],
               "hypothesis": [{"when": "before", "text": "z", "holds": True}], "schedule": [{"name": "cut"}]}),
)  # fmt: skip


def damaged(document: Any, path: tuple[Any, ...], value: object) -> Any:
    whole = copy.deepcopy(document)
    parent = whole
    for key in path[:-1]:
        parent = parent[key]
    if value is MISSING:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return whole


def paths(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    keys = document if isinstance(document, Mapping) else range(len(document)) if isinstance(document, list) else ()
    for key in keys:
        yield from paths(document[key], (*path, key))


@pytest.mark.parametrize(("cls", "line"), LINES, ids=[cls.__name__ for cls, _ in LINES])
def test_damage_to_a_field_changes_that_field_alone_or_rejects_the_record(cls, line):
    whole = cls.from_dict(line)
    related = {"at", "t_stepped", "strategy", "scheme"}  # fields that others depend on
    for key in line:
        for value in DAMAGE:
            try:
                read = cls.from_dict(damaged(line, (key,), value))
            except Malformed:
                continue
            changed = [it.name for it in dataclasses.fields(cls) if getattr(read, it.name) != getattr(whole, it.name)]
            assert key in related or len(changed) <= (2 if isinstance(line[key], dict) else 1), (key, value, changed)
            assert all(isinstance(_plain(getattr(read, name)), type(_plain(getattr(whole, name)))) or
                       getattr(read, name) in (None, ()) for name in changed), (key, value, changed)  # fmt: skip


def _plain(value: object) -> object:
    """Return what a value of the same type also is: a mapping or a float may come in two classes."""
    return {} if isinstance(value, Mapping) else 0.0 if type(value) in (int, float) else value


def test_a_record_is_written_as_it_is_read():
    certificate = run_factory.certificate()
    read = Certificate.from_dict(certificate)
    assert Certificate.from_dict(json.loads(json.dumps(read.to_dict()))) == read


def test_a_list_of_numbers_with_a_hole_is_malformed_where_its_elements_would_shift():
    for cls, key in (
        (JobRecord, "tensor_elements"),
        (Encoded, "weights"),
        (Encoded, "ranks"),
        (FiberSample, "lateness"),
    ):
        line = next(line for of, line in LINES if of is cls)
        for hole in (None, "1", True, float("inf")):
            value = {"counts": [1, hole]} if key == "lateness" else [1, hole]
            with pytest.raises(Malformed):
                cls.from_dict({**line, key: value})


def test_an_expectation_without_a_result_is_unknown_and_kept():
    """An expectation that was left out, or held by default, would let the run pass."""
    for value in (MISSING, None, "true", 1, {}):
        line = damaged({"text": "x > 1", "holds": True}, ("holds",), value)
        assert [it.holds for it in RunInfo.from_dict({"expectations": [line]}).expectations] == [None]
    assert len(RunInfo.from_dict({"expectations": [{}, {"text": 5}], "hypothesis": [{}]}).expectations) == 2
    assert RunInfo.from_dict({"hypothesis": [{"violations": [{"began_t": 1.0}]}]}).hypothesis[0].holds is None


def test_damage_to_a_certificate_counts_against_the_lab():
    certificate = run_factory.certificate()
    assert Certificate.from_dict(certificate).certified
    for value in (*DAMAGE, "good"):
        for path in (("around", "ok"), ("links", 0, "directions", 0, "verdict"),
                     ("links", 0, "directions", 0, "checks", 0, "verdict")):  # fmt: skip
            if value is not True:
                read = Certificate.from_dict(damaged(certificate, path, value))
                direction = read.links[0].directions[0]
                assert not read.certified or any(check.verdict == "bad" for check in direction.checks), (path, value)
    refused = {**certificate, "around": {"ok": False, "why": "a path bypasses the fiber"}}
    for path in paths(refused):
        for value in (MISSING, None, "text") if path != ("around", "ok") else ():
            read = Certificate.from_dict(damaged(refused, path, value))
            assert not read.certified, path
