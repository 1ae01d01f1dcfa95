"""The status of a lab: state, problems, links and ranks."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from testbed.core.analysis.noise.host_noise import NoiseSummary, StallLog
from testbed.core.certification.certificate import Certificate
from testbed.core.physics import full_scale
from testbed.core.plan.addressing import MANAGEMENT
from testbed.core.records.stalls import Stall
from testbed.core.topology.model import Topology
from testbed.errors import HostError, LabError, TestbedError
from testbed.host import lab_nodes, lab_owner
from testbed.host.drivers import containerlab, docker_client, docker_endpoint
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import invocation, namespace, netlink, process
from testbed.host.metrics.scrape import scrape_all
from testbed.keeper import client, protocol
from testbed.keeper.journal import FIBERS_DARK, Journal
from testbed.keeper.protocol import (
    CaptureState,
    DirectionCounters,
    DirectionInForce,
    FaultRecord,
    HelloAnswer,
    JobRecord,
    RankState,
)
from testbed.lab import job_status, teardown
from testbed.lab.job_status import JobStatus

SCRAPE_BOUND_S = 0.5
"""How long all ranks together may take to answer."""
STEP, TRAIN_LOSS = "testbed_step", "testbed_train_loss"


@dataclass(frozen=True)
class LinkStatus:
    """``carrier`` is what the gateway of each site sees; ``verdict`` is the certificate's.

    ``faults`` are the ids of active faults, ``phases`` their current effects: ``f2 loss 1.2%``. ``in_force`` has both
    directions; it is empty where the keeper does not tell. ``rate_bps`` is the rate of the healthy link in the lab,
    ``full_scale_rate_bps`` the one that it stands for; 0: unlimited. ``interface`` is the link's on both gateways,
    ``ends`` are the two in the plant: they differ from the name where that is too long for an interface.
    """

    name: str
    km: float
    carrier: dict[str, bool]
    verdict: str
    faults: tuple[str, ...]
    packets: dict[str, int]
    drops: int
    phases: tuple[str, ...] = ()
    in_force: tuple[DirectionInForce, ...] = ()
    rate_bps: float = 0.0
    full_scale_rate_bps: float = 0.0
    interface: str = ""
    ends: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankStatus:
    """``faults`` and ``phases`` as in :class:`LinkStatus`, for the rank's node. ``port`` is the node's interface in its
    site's fabric and in the management network."""

    rank: int
    node: str
    site: str
    state: str
    step: int | None
    train_loss: float | None
    faults: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    port: str = ""


@dataclass(frozen=True)
class LabStatus:
    """``state`` is building, up, kept or degraded; ``why`` lists what is wrong.

    ``prometheus`` is the address of Prometheus in the lab's management network; empty if it runs none. ``waits`` says
    what a job restart is waiting for.
    """

    name: str
    state: str
    why: tuple[str, ...]
    topology: str
    uptime_s: float
    driver: str
    emulator: str
    scheduling: str
    links: tuple[LinkStatus, ...]
    ranks: tuple[RankStatus, ...]
    prometheus: str = ""
    waits: tuple[str, ...] = ()
    scale: float = 1.0
    """The topology's: rates of the lab are divided by it, distance and latency are not."""
    captures: tuple[str, ...] = ()
    """Which fibers' packets are being captured, in words."""
    fabrics: tuple[str, ...] = ()
    """The rates of each site's fabric that has one, with the verdict of the certificate, in words."""
    jobs: tuple[JobStatus, ...] = ()
    """The job that is running, with its figures; of older labs, whose keepers know of none, empty."""
    noisy: bool = False
    """Whether the host delayed packets while the fibers were certified."""
    noise: NoiseSummary | None = None
    """The host's stalls in the last minute, or since the lab came up; None if they are not logged."""

    @property
    def young(self) -> bool:
        """Whether :attr:`noise` begins when the lab came up, less than :data:`RECENT_S` ago."""
        return self.uptime_s < RECENT_S

    @property
    def training(self) -> bool:
        """Whether any rank is training."""
        return any(rank.state == "training" for rank in self.ranks)


FOREIGN = "another user's"

RECENT_S = 60.0
"""Period in which a status summarizes the noise of the host."""
_MOST_STALLS = 20_000
"""Maximum number of stalls read for this; the keeper may have ten times as many."""

GLANCE_S = 2.0
"""How long :func:`summary` waits for a keeper, and for docker: a list of labs must not hang at one of them."""


@dataclass(frozen=True)
class LabSummary:
    """``state`` and ``why`` are those of :class:`LabStatus`; if the state is :data:`FOREIGN`, the rest is unknown."""

    name: str
    topology: str
    state: str
    since_unix_s: float
    nodes: int
    why: tuple[str, ...] = ()


def recent_noise(connection: client.Connection, uptime_s: float) -> NoiseSummary | None:
    """Summarize the stalls of the last :data:`RECENT_S`; None without a stall log. Raises LabError.

    Nothing was logged before the lab came up, so a shorter uptime is the divisor of the stalled share.
    """
    newest = connection.keeper.stalls(since=protocol.NEWEST_STALL)
    if not newest["watching"]:
        return None
    answer = connection.keeper.stalls(since=max(0, newest["next"] - _MOST_STALLS))
    now = time.monotonic()
    stalls = tuple(Stall(*stall) for stall in answer["stalls"])
    return StallLog(stalls, (), True).summary(now - min(RECENT_S, uptime_s), now)


@dataclass
class _KeeperAnswers:
    """The keeper's answers, as far as a possibly degraded lab gives them."""

    hello: HelloAnswer | None = None
    stats: list[DirectionCounters] = field(default_factory=list)
    faults: list[FaultRecord] = field(default_factory=list)
    ranks: list[RankState] = field(default_factory=list)
    protection: dict[str, str] = field(default_factory=dict)
    in_force: list[DirectionInForce] = field(default_factory=list)
    jobs: list[JobRecord] = field(default_factory=list)
    noise: NoiseSummary | None = None
    why: list[str] = field(default_factory=list)

    @property
    def active(self) -> list[FaultRecord]:
        return [fault for fault in self.faults if fault["ended_t"] is None]

    @property
    def state(self) -> str:
        return "degraded" if self.why or self.hello is None else self.hello["state"]

    @property
    def reasons(self) -> tuple[str, ...]:
        """``why`` without repetitions."""
        return tuple(dict.fromkeys(self.why))


def summary(lab: LabFolder) -> LabSummary:
    """Return one line about a lab, whatever its condition."""
    topology, nodes, since = "?", 0, _touched_unix_s(lab)
    if lab.foreign:
        return LabSummary(lab.name, topology, FOREIGN, since, nodes)
    try:
        data = json.loads(lab.topology.read_text())
        topology, nodes = data["name"], sum(site["nodes"] for site in data["sites"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # bring-up died before it wrote the file
    try:
        answers = _ask(lab, GLANCE_S)
    except LabError as error:  # it was taken down meanwhile
        return LabSummary(lab.name, topology, "degraded", since, nodes, (str(error),))
    since = answers.hello["since_unix_s"] if answers.hello else since
    return LabSummary(lab.name, topology, answers.state, since, nodes, answers.reasons)


def whole(lab: LabFolder) -> bool:
    """Return whether the keeper answers, and its emulator and containers are alive."""
    try:
        hello = client.keeper(lab).hello()
    except LabError:
        return False
    return hello["state"] in ("up", "kept") and not hello["emulator_died"] and not hello["dead_containers"]


def _touched_unix_s(lab: LabFolder) -> float:
    """Return when the lab's folder last changed, as a substitute for the start time if no keeper answers."""
    with contextlib.suppress(OSError):
        return lab.path.stat().st_mtime
    return 0.0


def _fabrics(topology: Topology, certificate: Certificate | None) -> Iterator[str]:
    measured = {fabric.site: fabric.verdict for fabric in certificate.fabrics} if certificate else {}
    for site in topology.sites:
        if site.fabric_bps:
            port, core = (
                full_scale.stands_for(rate_bps, topology.scale) for rate_bps in (site.fabric_bps, site.core_bps)
            )
            yield f"Fabric of {site.name}: {port} a node, {core} together; {measured.get(site.name, 'not measured')}."


def status(lab: LabFolder, topology: Topology, certificate: Certificate | None) -> LabStatus:
    """Query keeper, emulator and gateways; one that is dead becomes a line of ``why``.

    Raises LabError when the lab has been taken down in the meantime.
    """
    lab.refuse_gone()
    answers = _ask(lab)
    carriers = _carriers(lab, topology, answers)
    verdicts = {link.name: link.verdict for link in certificate.links} if certificate else {}
    hello = answers.hello
    links = []
    for link in topology.links:
        directions = {
            counters["direction"]: counters for counters in answers.stats if counters["direction"] in link.directions
        }
        active = [fault for fault in answers.active if link.name in fault["links"]]
        interface = topology.interfaces.of_link(link.name)
        links.append(
            LinkStatus(
                link.name,
                link.length_m / 1000,
                {site: carriers.get((topology.site(site).gateway, interface), False) for site in link.between},
                verdicts.get(link.name, "not measured"),
                tuple(fault["id"] for fault in active),
                {name: counters["packets"] for name, counters in directions.items()},
                sum(sum(direction["drops"].values()) for direction in directions.values()),
                (
                    *(f"{fault['id']} {fault['phase']}" for fault in active),
                    *_protection(answers.protection.get(link.name)),
                ),
                tuple(direction for direction in answers.in_force if direction["direction"] in link.directions),
                link.rate_bps,
                full_scale.full_rate_bps(link.rate_bps, topology.scale),
                interface,
                topology.interfaces.ends(link.name),
            )
        )
    return LabStatus(
        lab.name,
        answers.state,
        answers.reasons,
        topology.name,
        max(0.0, time.time() - (hello["since_unix_s"] if hello else _touched_unix_s(lab))),
        lab_nodes.driver(lab).name,
        hello["emulator"] if hello else "none",
        hello["scheduling"] if hello else "",
        tuple(links),
        _ranks(lab, topology, answers),
        hello["prometheus"] if hello else "",
        tuple(hello["waits"]) if hello and "waits" in hello else (),
        topology.scale,
        tuple(_captured(capture_record) for capture_record in hello.get("captures", ())) if hello else (),
        tuple(_fabrics(topology, certificate)),
        tuple(job_status.of(job) for job in answers.jobs if job["ended_t"] is None),
        certificate is not None and certificate.noisy,
        answers.noise,
    )


def _captured(capture_record: CaptureState) -> str:
    where = "before" if capture_record["before"] else "behind"
    directions = ", ".join(capture_record["directions"])
    return f"{capture_record['capture']}: packets of {directions} are captured, {where} the fiber; this costs CPU"


def _protection(state: str | None) -> tuple[str, ...]:
    """Describe the state of a link's protection; empty on the working path, or if the link is unprotected."""
    return () if state in (None, "working") else ("on protection" if state == "protection" else state,)


def _ask(lab: LabFolder, bound_s: float | None = None) -> _KeeperAnswers:
    """Ask the keeper, and docker about containers. ``bound_s``: how long each may take, instead of its usual time."""
    answers = _KeeperAnswers()
    patience = () if bound_s is None else (bound_s,)
    try:
        with client.Connection(lab, *patience) as connection:
            hello = answers.hello = connection.keeper.hello()
            answers.stats = connection.keeper.stats()["directions"]
            answers.faults = connection.keeper.faults()
            answers.ranks = connection.keeper.ranks()
            answers.protection = connection.keeper.protection_states()
    except LabError:
        if teardown.keeper_alive(lab, *patience):
            answers.why.append("the keeper is alive but does not answer")
        else:
            answers.why += [*without_keeper(lab), *troubles_of_containers(lab, bound_s)]
        return answers
    if hello["emulator_died"]:
        answers.why.append(f"{FIBERS_DARK}; {lab_owner.or_down(lab)}")
    if hello["prometheus_ended"]:
        answers.why.append(f"Prometheus {hello['prometheus_ended']}: nothing scrapes the lab any more")
    with contextlib.suppress(LabError):  # an emulator that has just died
        with client.Connection(lab, *patience) as connection:
            in_force = connection.keeper.in_force()
        answers.in_force = in_force["directions"]
        answers.why += [
            f"the emulator differs from what is in force: {difference}" for difference in in_force["differences"]
        ]
    with contextlib.suppress(LabError), client.Connection(lab, *patience) as connection:  # as above
        answers.jobs = connection.keeper.jobs()
        answers.noise = recent_noise(connection, time.time() - hello["since_unix_s"])
    answers.why += [containerlab.dead(lab.name, node) for node in hello["dead_containers"]]
    answers.why += troubles_of_containers(lab, bound_s)
    answers.why += [f"rank {rank['rank']}: {rank['reason']}" for rank in answers.ranks if rank["state"] == "gone"]
    return answers


def troubles_of_containers(lab: LabFolder, bound_s: float | None = None) -> list[str]:
    """Return what is wrong with a lab's containers according to their docker daemon, or with that daemon."""
    bound_s = bound_s or docker_endpoint.ASK_BOUND_S
    if not lab_nodes.driver(lab).contained:
        return []
    try:
        docker = lab_nodes.docker(lab)
        docker_client.refuse_silence(docker, bound_s)
        return list(containerlab.paused(lab.name, docker, bound_s).values())
    except TestbedError as error:
        return [str(error)]


def without_keeper(lab: LabFolder) -> list[str]:
    """Describe a lab whose keeper is dead: its fibers, and the faults that the keeper can no longer end."""
    gone, down = "the keeper is gone", lab_owner.or_down(lab)
    try:
        journal = Journal.read(lab.journal)
    except LabError as error:
        lab.refuse_gone()
        return [f"{gone}; {down}", str(error)]
    if journal.empty:
        return [f"{gone}; {down}", "the journal is empty: what is left of the lab is unknown"]
    if journal.boot != process.boot_id():
        return [
            f"{gone}, so all fibers are dark; {down}",
            "the machine was restarted: only the lab's folder is left"
            + (", and its stopped containers" if lab_nodes.driver(lab).contained else ""),
        ]
    if teardown.lit_by_the_kernel(journal):
        lit = "the kernel keeps its fibers lit, unsupervised"
        why = [f"{gone}, and {lit}; darken them with: {invocation.command('heal', '-l', lab.name)}; or {down}"]
    else:
        why = [f"{gone}, so all fibers are dark; {down}"]
    for fault in teardown.active_faults(journal):
        in_effect = journal.owned(fault["id"])
        state = "is still active" if in_effect else "is unfinished and currently has no effect on the fiber"
        why.append(f"fault {fault['id']} ({fault['type']} {fault['target']}) {state}")
    return why


def _carriers(lab: LabFolder, topology: Topology, answers: _KeeperAnswers) -> dict[tuple[str, str], bool]:
    states: dict[tuple[str, str], bool] = {}
    for site in topology.sites:
        try:
            with netlink.Namespace(lab_nodes.netns(lab, site.gateway)) as space:
                states |= {(site.gateway, name): up for name, up in space.carriers().items()}
        except HostError as error:
            answers.why.append(str(error))
    return states


def _ranks(lab: LabFolder, topology: Topology, answers: _KeeperAnswers) -> tuple[RankStatus, ...]:
    """Ask all ranks at once; one that does not answer in time has neither step nor train_loss."""
    targets = {rank["rank"]: (rank["metrics"][0], rank["metrics"][1]) for rank in answers.ranks}
    try:
        scraped = namespace.inside(
            lab_nodes.netns(lab, MANAGEMENT), lambda: scrape_all(targets, SCRAPE_BOUND_S, (STEP, TRAIN_LOSS))
        )
    except HostError:
        scraped = {}
    return tuple(
        _rank(
            rank,
            scraped[rank["rank"]].values if rank["rank"] in scraped else {},
            [fault for fault in answers.active if rank["node"] in fault["nodes"]],
            topology.interfaces.port(rank["site"], rank["node"]),
        )
        for rank in answers.ranks
    )


def _rank(rank: RankState, values: Mapping[str, float], active: Sequence[FaultRecord], port: str) -> RankStatus:
    def value(name: str) -> float | None:
        return next((v for series, v in values.items() if series.partition("{")[0] == name and v == v), None)

    step = value(STEP) or None  # a waiting rank has neither step nor train_loss
    return RankStatus(
        rank["rank"],
        rank["node"],
        rank["site"],
        rank["state"],
        None if step is None else int(step),
        None if step is None else value(TRAIN_LOSS),
        tuple(fault["id"] for fault in active),
        tuple(f"{fault['id']} {fault['phase']}" for fault in active),
        port,
    )
