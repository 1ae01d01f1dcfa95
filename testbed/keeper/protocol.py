"""The keeper's protocol: one class for each request, and the type of its answer; used by both ends of the socket.

One JSON object per line, over the Unix socket in the lab's folder::

    {"call": "inject", "fault": {…}}                       a request: its verb and its arguments
    {"notice": "Fibers"}                                   progress, any number of times before the answer
    {"ok": {…}}                                            the answer
    {"update": {…}}                                        what changed, any number of times after ``subscribe``
    {"error": "the lab is going down", "kind": "LabError"} or an error of ``testbed.errors``

Verbs and keys are stable: a lab that was brought up before an upgrade must keep answering. An optional argument is sent
only where it differs from its default, so a keeper that predates the argument understands the request; the answer of an
older keeper may lack keys that were added since. A tuple arrives as a list. Times called ``*_t`` are seconds of
CLOCK_MONOTONIC.

Every request may fail with LabError: there is no keeper, it does not answer in time, or it ends before it has answered.
Docstrings list further errors.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Literal, NotRequired, Self, TypedDict, TypeVar, cast

from testbed import errors
from testbed.core.plan import codec
from testbed.core.plan.step import Plan
from testbed.errors import LabError, TestbedError
from testbed.version import __version__

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
"""The type of a request's answer."""

C = TypeVar("C")
"""What a handler learns of the connection that a request came over."""

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
    taken_off_s: NotRequired[dict[str, float]]
    captures: NotRequired[list[CaptureState]]


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
    in_flight_packets: NotRequired[int]


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
    """A fault to inject: parameters as the user wrote them; ``for_s`` None: until it is healed, or ends by itself."""

    type: str
    target: str
    parameters: dict[str, str]
    for_s: float | None


class ScheduledFault(FaultSpec):
    """A fault that begins at ``planned_t``; ``scheduled`` is its number in the experiment, repeated in its events."""

    planned_t: float
    scheduled: int


class CompiledFault(FaultSpec):
    """A fault with the links and nodes that it acts on."""

    links: list[str]
    nodes: list[str]
    planned_t: NotRequired[float]
    scheduled: NotRequired[int]


class FaultRecord(CompiledFault):
    """A fault that has begun, as the keeper and the journal have it.

    Attributes:
        command_t: when it was commanded.
        ack_t: when it was in force; missing in the journal, which is written before.
        ended_t: when it was undone; None while it is active.
        phase: the current phase, or the last one, for people: ``dark``, ``loss 1.2%``.
        lasts_s: after how many seconds it ends by itself; None: only a heal ends it.
    """

    id: str
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
        pid: of the process that runs the job, its *holder*; 0: unknown, a command of an older version began it.
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


class Update(TypedDict):
    """What changed in a lab, pushed over the connection of a :class:`Subscribe`; the first one has everything.

    Attributes:
        t: every event, and every change of state, from before this time is in this update or an earlier one.
        events: new ones, in their order.
        ranks: those whose state changed.
        dark: all links without a carrier at either end or both, if that changed.
        dead_containers: all nodes whose containers have ended, if that changed.
        stop: to the holder of the job slot alone, over its own connection: why it must end its job.
    """

    t: float
    events: list[Event]
    ranks: NotRequired[list[RankState]]
    dark: NotRequired[list[str]]
    dead_containers: NotRequired[list[str]]
    stop: NotRequired[str]


# ---- requests


@dataclass(frozen=True)
class Request(Generic[A_co]):
    """Base of all requests; ``A_co`` is the type of the answer. Fields are the arguments, named as on the wire."""

    verb: ClassVar[str]

    @classmethod
    def handled_by(cls, handle: Callable[[Self, C], A_co]) -> tuple[type[Request[Any]], Callable[[Any, C], Any]]:
        """An entry of a dispatch table: the type checker refuses a handler of other requests or of another answer."""
        return cls, handle


@dataclass(frozen=True)
class Hello(Request[HelloAnswer]):
    """Report the state of the lab and of its resident processes."""

    verb: ClassVar = "hello"


@dataclass(frozen=True)
class Build(Request[None]):
    """Apply the lab's own plan; a notice names the kind of each group of Steps. Raises the error of a Step that failed.

    If the connection ends before :class:`Open`, the keeper takes the lab down.
    """

    verb: ClassVar = "build"
    plan: Plan = dataclasses.field(metadata={"codec": (codec.plan_to_list, codec.plan_from_list)})


@dataclass(frozen=True)
class Open(Request[None]):
    """Declare a lab that is being built complete (``up``), or ``kept``: partial, and left for inspection."""

    verb: ClassVar = "open"
    state: Literal["up", "kept"] = "up"


@dataclass(frozen=True)
class Apply(Request[None]):
    """Apply Steps beside the lab's own, for ``owner``. Raises the error of a Step that failed."""

    verb: ClassVar = "apply"
    owner: str
    plan: Plan = dataclasses.field(metadata={"codec": (codec.plan_to_list, codec.plan_from_list)})


@dataclass(frozen=True)
class Undo(Request[None]):
    """Undo all Steps of ``owner``; having none is no error. Raises HostError."""

    verb: ClassVar = "undo"
    owner: str


@dataclass(frozen=True)
class Stats(Request[StatsAnswer]):
    """Read the emulator's counters; no directions where there is no emulator."""

    verb: ClassVar = "stats"


NEWEST_STALL: Final = 1 << 62
"""Greater than the number of any stall: the answer to :class:`Stalls` has only the number of the next stall."""


@dataclass(frozen=True)
class Stalls(Request[StallsAnswer]):
    """Return the stalls of the host's cores from number ``since`` on; the keeper keeps the latest 200,000."""

    verb: ClassVar = "stalls"
    since: int = 0


@dataclass(frozen=True)
class RecordPackets(Request[RecordedPackets]):
    """Return the packets recorded so far, then record those with ``nonce`` in their mark (0: none)."""

    verb: ClassVar = "record_packets"
    nonce: int = 0


@dataclass(frozen=True)
class InForce(Request[InForceAnswer]):
    """Return what is in force on every direction and who made it; none while the lab is being built.

    ``compare``: directions that are compared with the emulator's own values whether or not a fault changes them.
    """

    verb: ClassVar = "in_force"
    compare: list[str] | None = None


@dataclass(frozen=True)
class Inject(Request[FaultRecord]):
    """Inject a fault and return when it is in force. Raises UserError, UnknownName, HostError."""

    verb: ClassVar = "inject"
    fault: FaultSpec


@dataclass(frozen=True)
class Schedule(Request[None]):
    """Schedule faults for their ``planned_t``; those of one time begin together.

    Either all are accepted or none. Those that have not begun when the connection ends are dropped. Raises UserError,
    UnknownName, HostError.
    """

    verb: ClassVar = "schedule"
    faults: list[ScheduledFault]


@dataclass(frozen=True)
class Unschedule(Request[int]):
    """Drop the faults scheduled over this connection that have not begun; return their number."""

    verb: ClassVar = "unschedule"


@dataclass(frozen=True)
class Heal(Request[list[FaultRecord]]):
    """Undo faults by their ids; return those that were still active. Raises HostError.

    ``everything``: links that run on their protection path also revert at once, before their wait-to-restore is over.
    """

    verb: ClassVar = "heal"
    ids: list[str]
    everything: bool = False


@dataclass(frozen=True)
class ProtectionStates(Request[dict[str, str]]):
    """Return the state of each protected link: ``working``, ``protection``, ``switching`` or ``dark``."""

    verb: ClassVar = "protection"


@dataclass(frozen=True)
class Faults(Request[list[FaultRecord]]):
    """Return every fault since the lab came up, in the order in which they began; of thousands that have ended, the
    latest."""

    verb: ClassVar = "faults"


@dataclass(frozen=True)
class Events(Request[EventsPage]):
    """Return the events from number ``since`` on; wait up to ``wait_s`` seconds (10 at most) for the first one."""

    verb: ClassVar = "events"
    since: int = 0
    wait_s: float = 0.0


@dataclass(frozen=True)
class Subscribe(Request[None]):
    """Push an :class:`Update` over this connection at once, as soon as anything changes, and every
    :data:`HEARTBEAT_S` if nothing does, until the connection ends. The answer may come after the first updates.

    ``since``: number of the first event; None: only events from now on. A subscriber that does not read is dropped.
    """

    verb: ClassVar = "subscribe"
    since: int | None = None


@dataclass(frozen=True)
class Ranks(Request[list[RankState]]):
    """Return the state of every rank, in order; none in a lab without training agents."""

    verb: ClassVar = "ranks"


@dataclass(frozen=True)
class Train(Request[None]):
    """Start a job on all ranks, in fresh processes where the old ones have run a job. Raises StorageError.

    ``message`` goes to the agents as it is (docs/design.md); the keeper reads ``job``, ``directory`` and
    ``data``, and refuses one that the agents could not read.
    """

    verb: ClassVar = "train"
    message: dict[str, Any]


@dataclass(frozen=True)
class DarkLinks(Request[list[str]]):
    """Return the links without a carrier at either end or both, sorted."""

    verb: ClassVar = "dark"


@dataclass(frozen=True)
class UnreachableSites(Request[list[tuple[str, str]]]):
    """Return the pairs of sites with ranks that do not reach each other, whatever their carriers say: a silent cut.

    Takes seconds where there are any.
    """

    verb: ClassVar = "unheard"


@dataclass(frozen=True)
class DeadContainers(Request[list[str]]):
    """Return the nodes (gateways and the plant included) whose containers have ended; none of them comes back."""

    verb: ClassVar = "dead_containers"


@dataclass(frozen=True)
class AddEvent(Request[None]):
    """Add an event of a job to the lab's events; ``t`` and ``event`` are the keeper's and not among ``fields``."""

    verb: ClassVar = "tell"
    event: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class ProgramBegins(Request[None]):
    """Say that a program is about to run, with so many ranks on each node: faults of ranks are for them from now on."""

    verb: ClassVar = "program"
    ranks_per_node: int


@dataclass(frozen=True)
class RanksPerNode(Request[int]):
    """Return how many ranks the latest job has on each node; 1 before the first."""

    verb: ClassVar = "ranks-per-node"


@dataclass(frozen=True)
class Capture(Request[str]):
    """Record that packets of ``directions`` are captured from now on, until :class:`CaptureEnded` or the end of the
    connection; return the capture's id."""

    verb: ClassVar = "capture"
    directions: list[str]
    before: bool = False


@dataclass(frozen=True)
class CaptureEnded(Request[None]):
    """Record the end of the connection's capture, with what it counted; see ``lab/capture.py``."""

    verb: ClassVar = "captured"
    counted: dict[str, int]


@dataclass(frozen=True)
class AwaitRestart(Request[None]):
    """Show in ``status`` what a job waits for before it restarts, until the connection ends."""

    verb: ClassVar = "waits"
    why: str


@dataclass(frozen=True)
class StopJob(Request[None]):
    """Have all ranks end a job after their current step; ``save``: with a checkpoint of it."""

    verb: ClassVar = "stop"
    job: str
    save: bool = False


@dataclass(frozen=True)
class ClaimJob(Request[ClaimAnswer]):
    """Take the lab's job slot, which one job of any kind holds at a time, until :class:`ReleaseJob`.

    If the connection or the process ``pid``, which began at clock tick ``began``, ends first, the keeper ends the job's
    ranks and frees the slot. Over the connection the holder is told to end its job (``Update.stop``).
    """

    verb: ClassVar = "claim_job"
    kind: str
    what: str
    pid: int
    began: int
    detached: bool = False


@dataclass(frozen=True)
class DescribeJob(Request[None]):
    """Tell of the job that holds the slot its run directory, and the sessions of its programs (setsid(2))."""

    verb: ClassVar = "describe_job"
    job: str
    run: str
    sessions: list[int]


@dataclass(frozen=True)
class ReleaseJob(Request[None]):
    """Give the job slot back; does nothing for a job that does not hold it any more."""

    verb: ClassVar = "release_job"
    job: str
    state: str
    why: str = ""
    exit_status: int = 0


@dataclass(frozen=True)
class Jobs(Request[list[JobRecord]]):
    """Return all jobs since the lab came up, in their order; of hundreds that have ended, the latest."""

    verb: ClassVar = "jobs"


@dataclass(frozen=True)
class EndJob(Request[JobRecord]):
    """Have the holder end its job; if it does not, end the job's ranks and, if it is detached, the holder.

    Returns the record once the slot is free, also of a job that had ended before. Raises UserError for an unknown job.
    """

    verb: ClassVar = "end_job"
    job: str
    why: str = ""


@dataclass(frozen=True)
class ShareFolder(Request[None]):
    """Mount a folder of the host inside all containers of nodes, at the same path; namespaces see it anyway.

    ``management``: also inside the container of the management network. ``node``: inside that of this node only. Raises
    HostError.
    """

    verb: ClassVar = "show"
    folder: str
    management: bool = False
    node: str = ""


@dataclass(frozen=True)
class RemoteStarts(Request[str]):
    """Let programs in nodes start programs in other nodes, from now on; return the path of the program that takes the
    place of ssh for them. Raises HostError, StorageError."""

    verb: ClassVar = "remote_starts"


@dataclass(frozen=True)
class Down(Request[None]):
    """Undo everything and end. Raises HostError where something remains; the journal keeps it."""

    verb: ClassVar = "down"


REQUESTS: Final[tuple[type[Request[Any]], ...]] = tuple(Request.__subclasses__())
"""Every request above."""

BY_VERB: Final = {it.verb: it for it in REQUESTS}

# ---- the wire


def encode_request(request: Request[Any]) -> dict[str, Any]:
    """The message of a request; optional arguments at their default are left out."""
    arguments = {}
    for field in dataclasses.fields(request):
        value = getattr(request, field.name)
        if value != field.default:
            to_wire, _ = field.metadata.get("codec", (None, None))
            arguments[field.name] = to_wire(value) if to_wire else value
    return {"call": request.verb, **arguments}


def decode_request(message: object) -> Request[Any]:
    """The request of a message. Raises LabError for an unknown verb and for missing, unknown or malformed arguments."""
    if not isinstance(message, dict) or not isinstance(message.get("call"), str):
        raise LabError("expected a request as a JSON object with a verb at 'call'")
    verb = message["call"]
    kind = BY_VERB.get(verb)
    if kind is None:
        raise LabError(f"unknown verb '{verb}': the lab's keeper runs testbed {__version__}")
    fields = {it.name: it for it in dataclasses.fields(kind)}
    hints = _hints(cast(Any, kind))
    given = {key: value for key, value in message.items() if key != "call"}
    if unknown := sorted(given.keys() - fields.keys()):
        raise LabError(f"unknown argument '{unknown[0]}' of '{verb}': the lab's keeper runs testbed {__version__}")
    for name, field in fields.items():
        if name not in given:
            if field.default is dataclasses.MISSING:
                raise LabError(f"'{verb}' needs the argument '{name}'")
            continue
        _, from_wire = field.metadata.get("codec", (None, None))
        try:
            if from_wire:
                given[name] = from_wire(given[name])
            elif not _fits(given[name], hints[name]):
                raise ValueError(name)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LabError(f"malformed argument '{name}' of '{verb}': {error!r}") from error
    return kind(**given)


def answered(answer: object) -> dict[str, Any]:
    """The message of an answer."""
    return {"ok": answer}


def refused(error: TestbedError) -> dict[str, Any]:
    """The message of an error."""
    return {"error": str(error), "kind": type(error).__name__}


def noticed(text: str) -> dict[str, Any]:
    """The message of a notice."""
    return {"notice": text}


def decode_notice(message: Mapping[str, Any]) -> str | None:
    """The text of a notice; None for an answer or an error."""
    text: str | None = message.get("notice")
    return text


def updated(update: Update) -> dict[str, Any]:
    """The message of an update."""
    return {"update": update}


def decode_update(message: Mapping[str, Any]) -> Update | None:
    """The update of a message; None for an answer or an error."""
    # Not verified, as in :func:`decode_answer`.
    return cast(Update, message["update"]) if "update" in message else None


def decode_answer(request: Request[A], message: Mapping[str, Any]) -> A:
    """The answer to ``request``. An error of the keeper is raised here, as the class that it was there."""
    if "error" in message:
        raise _raised(message["kind"], message["error"])
    # Not verified: the keeper may be of another version, and every reader names the keys that it needs.
    return cast(A, message["ok"])


def _raised(kind: str, message: str) -> TestbedError:
    found = getattr(errors, kind, None)
    plain = isinstance(found, type) and issubclass(found, TestbedError)
    if not plain or kind in ("FileMistakes", "UnknownName", "MissingTool"):
        # Their constructors take more than a message; the message is what matters here.
        error = LabError(message)
        error.exit_code = found.exit_code if plain else 3  # type: ignore[union-attr]
        return error
    assert isinstance(found, type) and issubclass(found, TestbedError)
    return found(message)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _fits(value: object, hint: Any) -> bool:
    """Whether a value out of JSON is of a field's type; further keys of an object are allowed."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is types.UnionType:
        return any(_fits(value, each) for each in inner)
    if origin is list:
        return isinstance(value, list) and all(_fits(each, inner[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(each, inner[1]) for each in value.values())
    if typing.is_typeddict(hint):
        return isinstance(value, dict) and all(
            key in value and _fits(value[key], it) for key, it in _hints(hint).items()
        )
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        # JSON as Python reads it has NaN, Infinity, 1e999 and integers of any size; no time is one of them.
        return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
    return isinstance(value, hint)
