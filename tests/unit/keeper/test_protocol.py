"""The keeper's API: its wire format, its requests, and what the type checker refuses."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import textwrap
import types
import typing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.plan import build
from testbed.core.plan.step import Plan
from testbed.errors import FidelityError, LabError, UnknownName, UserError
from testbed.host.files import catalog
from testbed.host.lab_folder import LabFolder
from testbed.keeper import client, protocol
from testbed.keeper.event_log import EventLog
from testbed.keeper.keeper_api import KeeperApi
from testbed.keeper.protocol import Call, decode_call
from testbed.keeper.service import Caller, Service

REPOSITORY = Path(__file__).parents[3]

WIRE = """
add_event event fields
allow_remote_starts
announce_program ranks_per_node
apply owner plan
await_restart why
begin_capture directions before=False
build plan
claim_job kind what pid began detached=False
dark_links
describe_job job run sessions
down
end_capture counted
end_job job why=''
events since=0 wait_s=0.0
faults
heal ids everything=False
hello
in_force compare=None
inject kind target parameters for_s=None
jobs
open state='up'
protection_states
ranks
ranks_per_node
record_packets nonce=0
release_job job state why='' exit_status=0
schedule faults
share_folder folder management=False node=''
stalls since=0
stats
stop_ranks job save=False
subscribe since=None
train message
undo owner
unreachable_sites
unschedule
"""
"""Each verb with its arguments and their defaults."""

FAULT = '{"type": "cut", "target": "north", "parameters": {"carrier": "off"}, "for_s": 0.5}'
INJECT = '{"call": "inject", "kind": "cut", "target": "north", "parameters": {"carrier": "off"}, "for_s": 0.5}'
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
    if hint == Plan:
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


METHODS = {name: method for name, method in vars(KeeperApi).items() if not name.startswith("_")}


def requests() -> st.SearchStrategy[Call]:
    """Requests, also such that leave optional arguments out."""

    def of(verb: str) -> st.SearchStrategy[Call]:
        hints = typing.get_type_hints(METHODS[verb])
        required, optional = dict[str, Any](), dict[str, Any]()
        for name, parameter in list(inspect.signature(METHODS[verb]).parameters.items())[1:]:
            (required if parameter.default is parameter.empty else optional)[name] = values(hints[name])
        return st.builds(Call, st.just(verb), st.fixed_dictionaries(required, optional=optional))

    return st.sampled_from(sorted(METHODS)).flatmap(of)


@given(requests())
def test_every_request_crosses_the_wire_unchanged(request: Call) -> None:
    line = protocol.encode({"call": request.verb, **request.arguments})
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert decode_call(KeeperApi, json.loads(line)) == request


def test_verbs_and_arguments_are_those_listed() -> None:
    def line(verb: str) -> str:
        parameters = list(inspect.signature(METHODS[verb]).parameters.values())[1:]
        assert {parameter.kind for parameter in parameters} <= {inspect.Parameter.KEYWORD_ONLY}, "the client names all"
        written = (p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters)
        return " ".join([verb, *written])

    assert sorted(map(line, METHODS)) == WIRE.split("\n")[1:-1]


def test_a_call_of_the_client_is_a_request_with_the_arguments_that_were_given(tmp_path: Path) -> None:
    lab, calls = LabFolder(tmp_path), list[Call]()
    service = Service(lab.socket, lambda call, caller: calls.append(call), print, partial(decode_call, KeeperApi))
    client.keeper(lab).stop_ranks(job="j1")
    with client.Connection(lab) as connection:
        connection.keeper.stop_ranks(job="j1", save=True)
        connection.keeper.apply(owner="x", plan=STEPS[:2])
    service.close()
    assert calls == [
        Call("stop_ranks", {"job": "j1"}),
        Call("stop_ranks", {"job": "j1", "save": True}),
        Call("apply", {"owner": "x", "plan": STEPS[:2]}),
    ]


def test_a_request_belongs_to_its_connection() -> None:
    waits: dict[Caller, str] = {}
    first, second = Caller(print), Caller(print)
    for caller, why in ((first, "north is dark"), (second, "its power is about to go"), (first, "rank 2 is down")):
        api = KeeperApi(typing.cast(Any, SimpleNamespace(waits=waits)), caller)
        assert decode_call(KeeperApi, {"call": "await_restart", "why": why}).answer(api) is None
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
    INJECT.replace("0.5", '"1"'): "malformed argument 'for_s' of 'inject'",
    '{"call": "__init__", "keeper": 1}': "unknown verb '__init__'",
}
# What Python's JSON reads as a number and no clock can wait for.
for endless in ("NaN", "Infinity", "-Infinity", "1e999", "1" + 400 * "0"):
    MALFORMED |= {
        INJECT.replace("0.5", endless): "malformed argument 'for_s'",
        f'{{"call": "events", "wait_s": {endless}}}': "malformed argument 'wait_s'",
        SCHEDULE.replace("0.5", f'0.5, "scheduled": 1, "planned_t": {endless}'): "malformed argument 'faults'",
    }


@pytest.mark.parametrize(("message", "error"), MALFORMED.items())
def test_a_malformed_request_is_refused(message: str, error: str) -> None:
    with pytest.raises(LabError, match=error):
        decode_call(KeeperApi, json.loads(message))


def keeper(state: str = "building") -> tuple[KeeperApi, list[Any], EventLog]:
    """Return the API of a keeper that is made up, what its agents and journal were sent, and its events."""
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
    return KeeperApi(typing.cast(Any, made), Caller(print)), sent, events


@pytest.mark.parametrize("state", ["up", "kept", "going", "down"])
def test_only_a_lab_that_is_being_built_is_opened(state: str) -> None:
    """One that is going down would count as up, and take new faults and jobs."""
    api, sent, _ = keeper(state)
    with pytest.raises(LabError, match=f"lab metro is not being built: its state is '{state}'"):
        api.open()
    assert sent == []


JOB = json.loads("""{
    "job": "j1", "world_size": 4, "master": ["172.30.0.2", 29500], "interface": "fabric0",
    "directory": "/runs/x/ranks", "steps": 10, "data": null
}""")


def test_a_job_that_ranks_can_read_is_passed_on() -> None:
    api, sent, _ = keeper()
    api.train(message=JOB)
    assert sent == [JOB]
    assert api.ranks_per_node() == 1, "that of the agents, not of an earlier program"


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
    api, sent, _ = keeper()
    with pytest.raises(LabError, match=f"malformed argument 'message' of 'train': .*{error}"):
        api.train(message={**JOB, **change})
    assert sent == []


@pytest.mark.parametrize("key", ["t", "event", "self"])
def test_a_job_does_not_set_the_time_or_kind_of_its_events(key: str) -> None:
    api, _, events = keeper()
    with pytest.raises(LabError, match=f"the keeper itself sets '{key}'"):
        api.add_event(event="attempt-began", fields={key: 1})
    api.add_event(event="attempt-began", fields={"kind": "x", "attempt": 2})
    (event,) = events.since(0)["events"]
    assert {**event, "t": 0} == {"t": 0, "event": "attempt-began", "kind": "x", "attempt": 2}


def test_further_keys_of_a_fault_are_accepted() -> None:
    """A newer command may send more about a fault than this keeper supports."""
    fault = {**json.loads(FAULT), "planned_t": 2, "scheduled": 1, "note": "x"}
    assert decode_call(KeeperApi, {"call": "schedule", "faults": [fault]}).arguments == {"faults": [fault]}


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
        protocol.decode_answer(message)
    assert type(caught.value) is arrives
    assert str(caught.value) == str(error)
    assert caught.value.exit_code == error.exit_code  # type: ignore[attr-defined]


CORRECT = """
    from testbed.host.lab_folder import LabFolder
    from testbed.keeper import client

    def check(lab: LabFolder) -> tuple[str, list[str], float]:
        with client.Connection(lab) as connection:
            connection.keeper.unschedule()
        faults = client.keeper(lab).heal(ids=["f1"])
        hello = client.keeper(lab).hello()
        return hello["state"], [it["id"] for it in faults], client.keeper(lab).stats()["cpu_s"]
"""

WRONG: list[tuple[str, str, str]] = [
    ("heal(ids=", "heal(faults=", 'Unexpected keyword argument "faults" for "heal" of "KeeperApi"'),
    ('ids=["f1"]', 'ids="f1"', 'Argument "ids" to "heal" of "KeeperApi" has incompatible type "str"'),
    ('heal(ids=["f1"])', "heal()", 'Missing named argument "ids" for "heal" of "KeeperApi"'),
    ('heal(ids=["f1"])', 'heal(["f1"])', 'Too many positional arguments for "heal" of "KeeperApi"'),
    ("keeper.unschedule()", "keeper.cancel()", '"KeeperApi" has no attribute "cancel"'),
    ('hello["state"]', 'hello["status"]', 'TypedDict "HelloAnswer" has no key "status"'),
    ('it["id"]', 'it["name"]', 'TypedDict "FaultRecord" has no key "name"'),
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
