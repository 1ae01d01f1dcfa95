"""The keeper's protocol: its wire format, its dispatch table, and what the type checker refuses."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import textwrap
import types
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.plan import build
from testbed.errors import FidelityError, LabError, UnknownName, UserError
from testbed.host.files import catalog
from testbed.keeper import protocol
from testbed.keeper.event_log import EventLog
from testbed.keeper.protocol import Request
from testbed.keeper.service import Caller
from testbed.keeper.verbs import Verbs

REPOSITORY = Path(__file__).parents[3]

WIRE = """
program ranks_per_node
ranks-per-node
hello
build plan
open state='up'
apply owner plan
undo owner
stats
stalls since=0
record_packets nonce=0
in_force compare=None
inject fault
schedule faults
unschedule
heal ids everything=False
protection
faults
events since=0 wait_s=0.0
subscribe since=None
ranks
train message
dark
unheard
dead_containers
tell event fields
capture directions before=False
captured counted
waits why
stop job save=False
claim_job kind what pid began detached=False
describe_job job run sessions
release_job job state why='' exit_status=0
jobs
end_job job why=''
show folder management=False node=''
remote_starts
down
"""
"""Each verb with its arguments and their defaults. Labs that are up depend on it: only add."""

FAULT = '{"type": "cut", "target": "north", "parameters": {"carrier": "off"}, "for_s": 0.5}'
INJECT = f'{{"call": "inject", "fault": {FAULT}}}'
SCHEDULE = f'{{"call": "schedule", "faults": [{FAULT}]}}'

STEPS = build.build(catalog.load_topology("metro-40km", None), agents=True, emulator="fiberd")

texts = st.text(max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    if hint == tuple[protocol.codec.Step, ...]:
        return st.lists(st.sampled_from(STEPS), max_size=4).map(tuple)
    if hint is Any:
        return json_values
    if get_origin(hint) is list:
        return st.lists(values(get_args(hint)[0]), max_size=3)
    if get_origin(hint) is dict:
        return st.dictionaries(texts, values(get_args(hint)[1]), max_size=3)
    if typing.is_typeddict(hint):
        return st.fixed_dictionaries({key: values(it) for key, it in typing.get_type_hints(hint).items()})
    if get_origin(hint) is types.UnionType:
        return st.one_of([values(it) for it in get_args(hint)])
    if hint is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    return st.from_type(hint)


def requests() -> st.SearchStrategy[Request[Any]]:
    def of(kind: type[Request[Any]]) -> st.SearchStrategy[Request[Any]]:
        hints = typing.get_type_hints(kind)
        return st.builds(kind, **{it.name: values(hints[it.name]) for it in dataclasses.fields(kind)})

    return st.one_of([of(kind) for kind in protocol.REQUESTS])


@given(requests())
def test_every_request_crosses_the_wire_unchanged(request: Request[Any]) -> None:
    message = json.loads(json.dumps(protocol.encode_request(request)))
    assert message["call"] == request.verb
    assert protocol.decode_request(message) == request


def test_verbs_and_arguments_are_those_that_labs_understand() -> None:
    def written(field: dataclasses.Field[Any]) -> str:
        return field.name if field.default is dataclasses.MISSING else f"{field.name}={field.default!r}"

    lines = [" ".join([kind.verb, *map(written, dataclasses.fields(kind))]) for kind in protocol.REQUESTS]
    assert sorted(lines) == sorted(WIRE.split("\n")[1:-1])
    assert set(protocol.REQUESTS) == set(Request.__subclasses__())


def test_an_argument_at_its_default_is_left_out() -> None:
    assert protocol.encode_request(protocol.StopJob("j1")) == {"call": "stop", "job": "j1"}
    assert protocol.encode_request(protocol.StopJob("j1", save=True)) == {"call": "stop", "job": "j1", "save": True}


def test_every_request_has_exactly_one_handler() -> None:
    handlers = Verbs(typing.cast(Any, None)).handlers
    assert set(handlers) == set(protocol.REQUESTS)
    assert len({handle.__name__ for handle in handlers.values()}) == len(handlers)


def test_a_handler_gets_its_request_and_its_caller() -> None:
    waits: dict[Caller, str] = {}
    verbs = Verbs(typing.cast(Any, SimpleNamespace(waits=waits)))
    first, second = Caller(print), Caller(print)
    for caller, why in ((first, "north is dark"), (second, "its power is about to go"), (first, "rank 2 is down")):
        assert verbs.answer(protocol.decode_request({"call": "waits", "why": why}), caller) is None
    assert waits == {first: "rank 2 is down", second: "its power is about to go"}


MALFORMED = {
    "[1, 2]": "expected a request as a JSON object",
    "{}": "expected a request as a JSON object",
    '{"call": 7}': "expected a request as a JSON object",
    '{"call": "_keeper"}': "unknown verb '_keeper'",
    '{"call": "undo"}': "'undo' needs the argument 'owner'",
    '{"call": "undo", "owner": 7}': "malformed argument 'owner' of 'undo'",
    '{"call": "undo", "owner": "x", "force": true}': "unknown argument 'force' of 'undo'",
    '{"call": "heal", "ids": "f1"}': "malformed argument 'ids' of 'heal'",
    '{"call": "heal", "ids": ["f1", 2]}': "malformed argument 'ids' of 'heal'",
    '{"call": "heal", "ids": [], "everything": 1}': "malformed argument 'everything' of 'heal'",
    '{"call": "events", "since": true}': "malformed argument 'since' of 'events'",
    SCHEDULE: "malformed argument 'faults' of 'schedule'",
    '{"call": "build", "plan": [{"step": "Teleport"}]}': "malformed argument 'plan' of 'build'",
    '{"call": "build", "plan": 7}': "malformed argument 'plan' of 'build'",
    '{"call": "open", "state": "down"}': "malformed argument 'state' of 'open'",
    '{"call": "open", "state": ""}': "malformed argument 'state' of 'open'",
    '{"call": "open", "state": ["up"]}': "malformed argument 'state' of 'open'",
    INJECT.replace("0.5", '"1"'): "malformed argument 'fault' of 'inject'",
}
# What Python's JSON reads as a number and no clock can wait for.
for endless in ("NaN", "Infinity", "-Infinity", "1e999", "1" + 400 * "0"):
    MALFORMED |= {
        INJECT.replace("0.5", endless): "malformed argument 'fault'",
        f'{{"call": "events", "wait_s": {endless}}}': "malformed argument 'wait_s'",
        SCHEDULE.replace("0.5", f'0.5, "scheduled": 1, "planned_t": {endless}'): "malformed argument 'faults'",
    }


@pytest.mark.parametrize(("message", "error"), MALFORMED.items())
def test_a_malformed_request_is_refused(message: str, error: str) -> None:
    with pytest.raises(LabError, match=error):
        protocol.decode_request(json.loads(message))


def keeper(state: str = "building") -> tuple[Any, list[Any], EventLog]:
    """Return a function that asks a keeper that is made up, what its agents and journal were sent, and its events."""
    sent: list[Any] = []
    events = EventLog()
    made = SimpleNamespace(
        journal=SimpleNamespace(state=state, set_state=lambda state: sent.append(("state", state))),
        agents=SimpleNamespace(ranks=dict.fromkeys(range(4)), revive=lambda: None, train=sent.append),
        events=events,
        publisher=SimpleNamespace(changed=lambda: None),
        programs=SimpleNamespace(ranks_per_node=2),
        job_slot=SimpleNamespace(admit=lambda job: None),
        lab=SimpleNamespace(name="metro"),
        do=lambda work: work(),
    )
    verbs = Verbs(typing.cast(Any, made))
    return lambda verb, **arguments: verbs.answer({"call": verb, **arguments}, Caller(print)), sent, events


@pytest.mark.parametrize("state", ["up", "kept", "going", "down"])
def test_only_a_lab_that_is_being_built_is_opened(state: str) -> None:
    """One that is going down would count as up, and take new faults and jobs."""
    ask, sent, _ = keeper(state)
    with pytest.raises(LabError, match=f"lab metro is not being built: its state is '{state}'"):
        ask("open")
    assert sent == []


JOB = json.loads("""{
    "job": "j1", "world_size": 4, "master": ["172.30.0.2", 29500], "interface": "fabric0",
    "directory": "/runs/x/ranks", "steps": 10, "data": null
}""")


def test_a_job_that_ranks_can_read_is_passed_on() -> None:
    ask, sent, _ = keeper()
    ask("train", message=JOB)
    assert sent == [JOB]
    assert ask("ranks-per-node") == 1, "that of the agents, not of an earlier program"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        *(({key: None}, f"'{key}'") for key in JOB if key != "data"),
        ({"job": 7}, "expected str at 'job', got 7"),
        ({"steps": True}, "expected int at 'steps', got True"),
        ({"world_size": 3}, "expected a world_size of 4, the lab's ranks, got 3"),
        ({"directory": "runs"}, "expected an absolute path"),
        ({"data": 7}, "a path or nothing at 'data'"),
        ({"model": {"width": [1] * 50_000}}, "longer than"),
    ],
)
def test_a_job_that_ranks_cannot_read_is_refused(change: dict[str, Any], error: str) -> None:
    """They would count as training and never answer."""
    ask, sent, _ = keeper()
    with pytest.raises(LabError, match=f"malformed argument 'message' of 'train': .*{error}"):
        ask("train", message={**JOB, **change})
    assert sent == []


@pytest.mark.parametrize("key", ["t", "event", "self"])
def test_a_job_does_not_set_the_time_or_kind_of_its_events(key: str) -> None:
    ask, _, events = keeper()
    with pytest.raises(LabError, match=f"the keeper itself sets '{key}'"):
        ask("tell", event="attempt-began", fields={key: 1})
    ask("tell", event="attempt-began", fields={"kind": "x", "attempt": 2})
    (event,) = events.since(0)["events"]
    assert {**event, "t": 0} == {"t": 0, "event": "attempt-began", "kind": "x", "attempt": 2}


def test_further_keys_of_a_fault_are_accepted() -> None:
    """A newer command may send more about a fault than this keeper supports."""
    fault = {**json.loads(FAULT), "for_s": 2, "note": "x"}
    assert protocol.decode_request({"call": "inject", "fault": fault}) == protocol.Inject(typing.cast(Any, fault))


@pytest.mark.parametrize(
    ("error", "arrives"),
    [
        (UserError("no"), UserError),
        (FidelityError("bad"), FidelityError),
        (UnknownName("link", "nroth", ["north"]), LabError),
        (type("OfAnotherVersion", (LabError,), {})("new"), LabError),
    ],
)
def test_an_error_arrives_with_its_text_and_its_exit_status(error: Any, arrives: type[Exception]) -> None:
    message = json.loads(json.dumps(protocol.refused(error)))
    with pytest.raises(arrives) as caught:
        protocol.decode_answer(protocol.Hello(), message)
    assert type(caught.value) is arrives
    assert str(caught.value) == str(error)
    assert caught.value.exit_code == error.exit_code  # type: ignore[attr-defined]


CORRECT = """
    from testbed.host.lab_folder import LabFolder
    from testbed.keeper import client, protocol
    from testbed.keeper.service import Caller

    def check(lab: LabFolder) -> tuple[str, int, list[str], float]:
        with client.Connection(lab) as connection:
            dropped = connection.ask(protocol.Unschedule())
        faults = client.ask(lab, protocol.Heal(ids=["f1"]))
        hello = client.ask(lab, protocol.Hello())
        return hello["state"], dropped, [it["id"] for it in faults], client.ask(lab, protocol.Stats())["cpu_s"]

    def undo(request: protocol.Undo, caller: Caller) -> None:
        print(request.owner)

    table = dict([protocol.Undo.handled_by(undo)])
"""

WRONG: list[tuple[str, str, str]] = [
    ("protocol.Heal(ids=", "protocol.Heal(faults=", 'Unexpected keyword argument "faults" for "Heal"'),
    ('ids=["f1"]', 'ids="f1"', 'Argument "ids" to "Heal" has incompatible type "str"'),
    ('protocol.Heal(ids=["f1"])', "protocol.Heal()", 'Missing positional argument "ids" in call to "Heal"'),
    ("protocol.Unschedule()", "protocol.Cancel()", 'Module has no attribute "Cancel"'),
    ('hello["state"]', 'hello["status"]', 'TypedDict "HelloAnswer" has no key "status"'),
    ('it["id"]', 'it["name"]', 'TypedDict "FaultRecord" has no key "name"'),
    ("request.owner", "request.who", '"Undo" has no attribute "who"'),
    ("protocol.Undo.handled_by", "protocol.Open.handled_by", 'Argument 1 to "handled_by" of "Request"'),
    ("-> None:", "-> str:", 'Argument 1 to "handled_by" of "Request"'),
]


@pytest.mark.thorough
def test_the_type_checker_refuses_what_the_keeper_would(tmp_path: Path) -> None:
    """All snippets in one run, by the repository's own settings."""
    snippets = {"correct.py": CORRECT}
    for number, (correct, wrong, _) in enumerate(WRONG):
        assert correct in CORRECT
        snippets[f"wrong_{number}.py"] = CORRECT.replace(correct, wrong)
    for name, snippet in snippets.items():
        (tmp_path / name).write_text(textwrap.dedent(snippet))
    argv = [sys.executable, "-m", "mypy", *(str(tmp_path / name) for name in snippets)]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "correct.py" not in done.stdout
    for number, (_, wrong, error) in enumerate(WRONG):
        errors = [line for line in done.stdout.splitlines() if f"wrong_{number}.py" in line]
        assert error in "\n".join(errors), wrong
