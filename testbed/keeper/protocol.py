"""The records that cross the socket of a lab's keeper, and how both ends write and read them.

The methods of :class:`~testbed.keeper.keeper_api.KeeperApi` are the requests: the verb is the name of a method, the
arguments are those of the method, by name, and the answer is what the method returns. The client (``client.py``) sends
each call of a method; mypy checks it as a call of that method. One JSON object per line, over the Unix socket in the
lab's folder::

    {"call": "inject", "fault": {…}}                       a request: its verb and its arguments
    {"notice": "Fibers"}                                   progress, any number of times before the answer
    {"ok": {…}}                                            the answer
    {"update": {…}}                                        what changed, any number of times after ``subscribe``
    {"error": "the lab is going down", "kind": "LabError"} or an error of ``testbed.errors``

Only the arguments of a call are sent, so optional ones may be added. A tuple arrives as a list. Times called ``*_t``
are seconds of CLOCK_MONOTONIC.

Every request may fail with LabError: there is no keeper, it does not answer in time, or it ends before it has answered.
Docstrings list further errors.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, NotRequired, TypedDict, cast

from testbed import errors
from testbed.core.plan import codec
from testbed.core.plan.step import Plan
from testbed.errors import LabError, TestbedError
from testbed.version import __version__

HEARTBEAT_S: Final = 0.25
"""How old ``t`` of a subscriber's newest :class:`Update` may become: a run judges its steady state that often."""

# ---- answers


class CaptureState(TypedDict):
    """A capture of packets in progress: its id, since when, and whether before the fiber or behind it."""

    capture: str
    directions: list[str]
    before: bool
    began_t: float


class HelloAnswer(TypedDict):
    """State of the lab and of its resident processes.

    Attributes:
        version: of the testbed that the keeper runs.
        state: ``building``, ``up``, ``kept`` (left partial on request), ``going`` or ``down``.
        since_unix_s: when the keeper started.
        emulator: ``fiberd`` or ``netem``; ``none`` without fibers, and once the emulator has died.
        scheduling: scheduling class of the emulator; empty where it has no process.
        emulator_pid: None where the emulator has no process.
        emulator_died: whether all fibers are down because the emulator died.
        segmented: directions whose super-packets the sender's kernel has to cut into segments.
        dead_containers: nodes whose containers have ended.
        waits: for each job that waits to restart, the reason.
        prometheus: ``address:port`` in the management network; empty where there is no server.
        taken_off_s: by direction, what calibration takes off its delays; lacks directions that are not calibrated.
        prometheus_ended: how the Prometheus server ended; empty while it runs, and where there never was one.
        captures: captures of packets in progress.
    """

    version: str
    pid: int
    state: str
    since_unix_s: float
    emulator: str
    scheduling: str
    emulator_pid: int | None
    emulator_died: bool
    segmented: list[str]
    dead_containers: list[str]
    waits: list[str]
    prometheus: str
    prometheus_ended: str
    taken_off_s: dict[str, float]
    captures: list[CaptureState]


class Lateness(TypedDict):
    """Histogram of (sent - due): ascending upper bounds in seconds, one count per bucket, the last one open-ended."""

    bounds_s: list[float]
    counts: list[int]


class DirectionCounters(TypedDict):
    """Counters of one direction of a fiber since the emulator started; see ``emulator.DirectionStats``.

    ``corrupted``, ``duplicated``, ``held_back`` and ``emptied`` are None where the emulator does not count them.
    """

    direction: str
    packets: int
    segments: int
    bytes: int
    drops: dict[str, int]
    corrupted: int | None
    duplicated: int | None
    held_back: int | None
    emptied: int | None
    queue_bytes: int
    lateness: Lateness
    in_flight_packets: int


class StallsAnswer(TypedDict):
    """Stalls of the host's cores: (core, start in seconds of CLOCK_MONOTONIC, length in seconds).

    ``next`` is the number of the first stall after them; ``watching`` is False if stalls are not logged: without
    fiberd's binary, or without the right to real-time priority.
    """

    watching: bool
    next: int
    stalls: list[tuple[int, float, float]]


class RecordedPackets(TypedDict):
    """Measuring packets that crossed a fiber: (direction, mark, arrival, due, sent, busy period, segments).

    Times are ns of CLOCK_MONOTONIC; ``sent`` is when the call that sent the packet had returned. ``supported`` is False
    if the emulator records no packets (netem); ``lost`` counts packets not recorded because the record was full.
    """

    supported: bool
    packets: list[tuple[str, int, int, int, int, int, int]]
    lost: int


class ValueInForce(TypedDict):
    """A value of a direction, for people, and who made it: ids of faults, ``link``, ``protection``."""

    key: str
    text: str
    by: list[str]


class Masked(TypedDict):
    """A value that a fault states and that another one keeps from applying."""

    fault: str
    key: str


class DirectionInForce(TypedDict):
    """What is in force on a direction, the fold of all faults (``core/physics/fold.py``).

    Attributes:
        dark_by: who keeps packets from passing; empty where they pass.
        values: in an event only those that the link does not make alone.
        impairment: all fields of ``Impairment``, in SI units; missing in an event.
    """

    direction: str
    dark_by: list[str]
    values: list[ValueInForce]
    masked: list[Masked]
    impairment: NotRequired[dict[str, Any]]


class InForceAnswer(TypedDict):
    """What is in force on every direction; ``differences`` are values of the emulator that are not those, as sentences.

    Only directions that a fault or protection changes, or that the request names, are compared: reading one back stops
    packets for microseconds.
    """

    directions: list[DirectionInForce]
    differences: list[str]


class StatsAnswer(TypedDict):
    """Counters of all directions, read at ``t``, and the CPU time that the emulator's process has used, in seconds."""

    t: float
    cpu_s: float
    directions: list[DirectionCounters]


class FaultSpec(TypedDict):
    """A fault to begin, with parameters as the user wrote them.

    Attributes:
        for_s: None: until it is healed, or ends by itself.
        planned_t: when it is to begin; None: at once.
        scheduled: its number in the experiment, repeated in its events; None outside of one.
    """

    type: str
    target: str
    parameters: dict[str, str]
    for_s: float | None
    planned_t: float | None
    scheduled: int | None


class FaultRecord(FaultSpec):
    """A fault that has begun, as the keeper and the journal have it.

    Attributes:
        links, nodes: those that it acts on.
        command_t: when it was commanded.
        ack_t: when it was in force; missing in the journal, which is written before.
        ended_t: when it was undone; None while it is active.
        phase: the current phase, or the last one, for people: ``dark``, ``loss 1.2%``.
        lasts_s: after how many seconds it ends by itself; None: only a heal ends it.
    """

    id: str
    links: list[str]
    nodes: list[str]
    began_unix_s: float
    command_t: float
    ack_t: NotRequired[float]
    ended_t: NotRequired[float | None]
    phase: NotRequired[str]
    lasts_s: NotRequired[float | None]


class AgentState(TypedDict):
    """Process of a rank.

    Attributes:
        state: ``starting``, ``waiting``, ``training``, ``finished``, ``stopped``, ``saved``, ``failed`` or ``gone``.
        pid: 0 while it starts.
        reason: why it failed or is gone.
        ended_t: when its job, or its process, ended; None before.
        job: the job that it was given last.
        saved: whether it left that job with a checkpoint.
        storage: whether it failed because its disk did not take what it wrote.
        unexplained: the signal that ended it, for people, if its sender is unknown; else empty.
    """

    state: str
    pid: int
    reason: str
    ended_t: float | None
    job: NotRequired[str]
    saved: NotRequired[bool]
    storage: NotRequired[bool]
    unexplained: NotRequired[str]


class RankState(AgentState):
    """A rank: its place, its process, and the faults that bear on it.

    Attributes:
        metrics: (address, port) of its exporter in the management network.
        down: whether a fault keeps jobs from running on it.
        warned: the fault that will take its node's power, for people; empty without one.
        suspended: whether its process trains, and a signal such as SIGSTOP keeps it from running.
    """

    rank: int
    node: str
    site: str
    metrics: tuple[str, int]
    down: bool
    warned: str
    suspended: NotRequired[bool]


class JobRecord(TypedDict):
    """A job of the lab, of any kind: the one that holds the lab's job slot, or one that has ended.

    Attributes:
        id: ``j1``, ``j2``, …: by number since the lab came up.
        kind: ``train``, ``launch``, ``run`` (an experiment) or ``validate``.
        what: for people: the command, or what is trained.
        run: the run directory; empty before there is one.
        pid: of the process that runs the job, its *holder*.
        detached: whether the holder is a process of the testbed's own, which `stop` and `down` end.
        began_unix_s, began_t: when it took the slot, by both clocks.
        ended_t: when it gave the slot back; None while it holds it.
        state: ``running``, ``stopping``, then ``finished``, ``failed``, ``stopped``, or ``lost``: its holder ended
            without giving the slot back, and the keeper ended its ranks.
        why: why it failed, or who stopped it.
        exit_status: what `attach` returns; None while it runs.
    """

    id: str
    kind: str
    what: str
    run: str
    pid: int
    detached: bool
    began_unix_s: float
    began_t: float
    ended_t: float | None
    state: str
    why: str
    exit_status: int | None


class ClaimAnswer(TypedDict):
    """The id of the caller's job, or, where another one holds the slot, an empty one and that job's record."""

    job: str
    busy: JobRecord | None


Event = dict[str, Any]
"""A line of events.jsonl: ``t``, ``event`` (its kind) and the fields of that kind; see docs/design.md."""


class EventsPage(TypedDict):
    """Events in their order; ``next`` is the number of the first event that is not among them."""

    events: list[Event]
    next: int


class LabView(TypedDict, total=False):
    """The state of a lab that subscribers receive beside its events.

    Attributes:
        ranks: the states of all ranks; in an update, of those whose state changed.
        dark: all links without a carrier at either end or both.
        dead_containers: all nodes whose containers have ended.
    """

    ranks: list[RankState]
    dark: list[str]
    dead_containers: list[str]


class Update(LabView):
    """What changed in a lab, pushed over the connection of a ``subscribe``; the first one has everything.

    Attributes:
        t: every event, and every change of state, from before this time is in this update or an earlier one.
        events: new ones, in their order.
        stop: to the holder of the job slot alone, over its own connection: why it must end its job.
    """

    t: float
    events: list[Event]
    stop: NotRequired[str]


NEWEST_STALL: Final = 1 << 62
"""Greater than the number of any stall: the answer to ``stalls`` has only the number of the next stall."""

# ---- the wire


class Call(NamedTuple):
    """A request: the name of a method of the API, and arguments of the types that it declares."""

    verb: str
    arguments: Mapping[str, Any]

    def answer(self, api: object) -> Any:
        """Return what the method of ``api`` returns."""
        return getattr(api, self.verb)(**self.arguments)


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message as a line; Steps are written as the journal writes them."""
    return json.dumps(message, default=codec.to_dict).encode() + b"\n"


def decode_call(api: type, message: object) -> Call:
    """Return the request of a message to ``api``.

    Raises LabError for an unknown verb and for missing, unknown or malformed arguments.
    """
    if not isinstance(message, dict) or not isinstance(message.get("call"), str):
        raise LabError("expected a request as a JSON object with a verb at 'call'")
    arguments = dict(message)
    verb = arguments.pop("call")
    if verb.startswith("_") or verb not in vars(api):
        raise LabError(f"unknown verb '{verb}': the lab's keeper runs testbed {__version__}")
    parameters = _parameters(vars(api)[verb])
    if unknown := sorted(arguments.keys() - parameters.keys()):
        raise LabError(f"unknown argument '{unknown[0]}' of '{verb}': the lab's keeper runs testbed {__version__}")
    for name, (hint, required) in parameters.items():
        if name in arguments:
            arguments[name] = _decoded(arguments[name], hint, f"malformed argument '{name}' of '{verb}'")
        elif required:
            raise LabError(f"'{verb}' needs the argument '{name}'")
    return Call(verb, arguments)


@functools.cache
def _parameters(method: Any) -> dict[str, tuple[Any, bool]]:
    """Return the type of each parameter of a method, and whether it is required."""
    hints = _hints(method)
    _, *parameters = inspect.signature(method).parameters.values()
    return {
        parameter.name: (hints[parameter.name], parameter.default is inspect.Parameter.empty)
        for parameter in parameters
    }


def _decoded(value: object, hint: Any, malformed: str) -> Any:
    try:
        if hint == Plan:
            return codec.plan_from_list(cast(Any, value))
        if _fits(value, hint):
            return value
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LabError(f"{malformed}: {error!r}") from error
    raise LabError(f"{malformed}: {value!r:.60}")


def refused(error: TestbedError) -> dict[str, Any]:
    """Return the message of an error."""
    return {"error": str(error), "kind": type(error).__name__}


def decode_answer(message: Mapping[str, Any]) -> Any:
    """Return the answer of a message. An error of the keeper is raised here, as the class that it was there."""
    if "error" in message:
        raise _raised(message["kind"], message["error"])
    return message["ok"]


def _raised(kind: str, message: str) -> TestbedError:
    error_class = getattr(errors, kind, None)
    plain = isinstance(error_class, type) and issubclass(error_class, TestbedError)
    if not plain or kind in ("FileMistakes", "UnknownName", "MissingTool"):
        # Their constructors take more than a message; the message is what matters here.
        error = LabError(message)
        error.exit_code = error_class.exit_code if plain else 3  # type: ignore[union-attr]
        return error
    assert isinstance(error_class, type) and issubclass(error_class, TestbedError)
    return error_class(message)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _fits(value: object, hint: Any) -> bool:
    """Whether a value out of JSON is of a field's type; further keys of an object are allowed."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is types.UnionType:
        return any(_fits(value, member) for member in inner)
    if origin is list:
        return isinstance(value, list) and all(_fits(element, inner[0]) for element in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(element, inner[1]) for element in value.values())
    if typing.is_typeddict(hint):
        return isinstance(value, dict) and all(
            key in value and _fits(value[key], kind) for key, kind in _hints(hint).items()
        )
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        # JSON as Python reads it has NaN, Infinity, 1e999 and integers of any size; no time is one of them.
        return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
    return isinstance(value, hint)
