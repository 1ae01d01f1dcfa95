"""How a lab is, at a glance."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from testbed.core.certification.certificate import Certificate
from testbed.core.plan.addressing import MANAGEMENT
from testbed.core.topology.model import Topology
from testbed.errors import HostError, LabError, TestbedError
from testbed.host import lab_nodes
from testbed.host.drivers import containerlab, docker_client
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import namespace, netlink, process
from testbed.host.metrics import scrape
from testbed.keeper import client, protocol
from testbed.keeper.journal import Journal
from testbed.keeper.protocol import DirectionCounters, FaultRecord, HelloAnswer, RankState
from testbed.lab import teardown


@dataclass(frozen=True)
class LinkStatus:
    """``carrier`` is what the gateway of each site sees; ``verdict`` is the certificate's.

    ``faults`` are the ids of those that stand, ``phases`` says of each what it does by now: ``f2 loss 1.2%``.
    """

    name: str
    km: float
    carrier: dict[str, bool]
    verdict: str
    faults: tuple[str, ...]
    packets: dict[str, int]
    drops: int
    phases: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankStatus:
    """``faults`` and ``phases`` as in :class:`LinkStatus`, of the node's."""

    rank: int
    node: str
    site: str
    state: str
    step: int | None
    train_loss: float | None
    faults: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabStatus:
    """``state`` is building, up, kept, degraded; ``why`` says what is wrong, if anything.

    ``prometheus`` is its address in the lab's management network; empty in a lab that is not observed. ``waits`` says
    of a job that is to begin again, and cannot yet, what it waits for.
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

    @property
    def training(self) -> bool:
        """Whether a rank of it trains."""
        return any(rank.state == "training" for rank in self.ranks)


FOREIGN = "another user's"


@dataclass(frozen=True)
class LabSummary:
    """``state`` is that of :class:`LabStatus`, or :data:`FOREIGN`: then nothing else is known of it."""

    name: str
    topology: str
    state: str
    since_unix_s: float
    nodes: int


@dataclass
class _Found:
    """What can be asked of a lab that may be half dead."""

    hello: HelloAnswer | None = None
    stats: list[DirectionCounters] = field(default_factory=list)
    faults: list[FaultRecord] = field(default_factory=list)
    ranks: list[RankState] = field(default_factory=list)
    protection: dict[str, str] = field(default_factory=dict)
    why: list[str] = field(default_factory=list)

    @property
    def active(self) -> list[FaultRecord]:
        return [it for it in self.faults if it["ended_t"] is None]


def summary(lab: LabFolder) -> LabSummary:
    """One line about a lab, whatever shape it is in."""
    topology, nodes, since = "?", 0, _touched_unix_s(lab)
    if lab.foreign:
        return LabSummary(lab.name, topology, FOREIGN, since, nodes)
    try:
        data = json.loads(lab.topology.read_text())
        topology, nodes = data["name"], sum(site["nodes"] for site in data["sites"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # it died before it was written
    state = "degraded"
    with contextlib.suppress(LabError):
        hello = client.ask(lab, protocol.Hello())
        since = hello["since_unix_s"]
        if not hello["emulator_died"] and not hello["dead_containers"]:
            state = hello["state"]
    return LabSummary(lab.name, topology, state, since, nodes)


def _touched_unix_s(lab: LabFolder) -> float:
    """Where no keeper says since when a lab is up: when the last file came or went in its folder."""
    with contextlib.suppress(OSError):
        return lab.path.stat().st_mtime
    return 0.0


def status(lab: LabFolder, topology: Topology, certificate: Certificate | None) -> LabStatus:
    """Ask everybody, be surprised by nobody: a dead keeper or emulator is a line of ``why``.

    Raises LabError when the lab was taken down meanwhile.
    """
    lab.refuse_gone()
    found = _ask(lab)
    carriers = _carriers(lab, topology, found)
    verdicts = {it.name: "ok" if it.ok else "bad" for it in certificate.links} if certificate else {}
    hello = found.hello
    links = []
    for link in topology.links:
        directions = {it["direction"]: it for it in found.stats if it["direction"] in link.directions}
        standing = [it for it in found.active if link.name in it["links"]]
        links.append(
            LinkStatus(
                link.name,
                link.length_m / 1000,
                {site: carriers.get((topology.site(site).gateway, link.name), False) for site in link.between},
                verdicts.get(link.name, "not measured"),
                tuple(it["id"] for it in standing),
                {name: it["packets"] for name, it in directions.items()},
                sum(sum(it["drops"].values()) for it in directions.values()),
                (*(f"{it['id']} {it['phase']}" for it in standing), *_protection(found.protection.get(link.name))),
            )
        )
    return LabStatus(
        lab.name,
        "degraded" if found.why or hello is None else hello["state"],
        tuple(dict.fromkeys(found.why)),
        topology.name,
        max(0.0, time.time() - (hello["since_unix_s"] if hello else _touched_unix_s(lab))),
        lab_nodes.driver(lab),
        hello["emulator"] if hello else "none",
        hello["scheduling"] if hello else "",
        tuple(links),
        tuple(_rank(lab, it, [f for f in found.active if it["node"] in f["nodes"]]) for it in found.ranks),
        hello["prometheus"] if hello else "",
        tuple(hello["waits"]) if hello and "waits" in hello else (),
    )


def _protection(state: str | None) -> tuple[str, ...]:
    """Nothing of a link that is where it belongs, or that has no second path."""
    return () if state in (None, "working") else ("on protection" if state == "protection" else state,)


def _ask(lab: LabFolder) -> _Found:
    found = _Found()
    try:
        hello = found.hello = client.ask(lab, protocol.Hello())
        found.stats = client.ask(lab, protocol.Stats())["directions"]
        found.faults = client.ask(lab, protocol.Faults())
        found.ranks = client.ask(lab, protocol.Ranks())
        found.protection = client.ask(lab, protocol.ProtectionStates())
    except LabError:
        if teardown.keeper_alive(lab):
            found.why.append("its keeper lives but does not answer")
        else:
            found.why += [*_without_keeper(lab), *_containers(lab)]
        return found
    if hello["emulator_died"]:
        found.why.append(f"its emulator died, so its fibers are dark; take it down with: testbed down {lab.name}")
    if hello["prometheus_ended"]:
        found.why.append(f"its prometheus {hello['prometheus_ended']}: it is not observed any more")
    found.why += [containerlab.dead(lab.name, node) for node in hello["dead_containers"]]
    found.why += _containers(lab)
    found.why += [f"rank {it['rank']}: {it['reason']}" for it in found.ranks if it["state"] == "gone"]
    return found


def _containers(lab: LabFolder) -> list[str]:
    """What is wrong with a lab's containers by the word of the docker that made them, or with that docker."""
    if lab_nodes.driver(lab) != "containerlab":
        return []
    try:
        docker = lab_nodes.docker(lab)
        docker_client.refuse_silence(docker)
        return list(containerlab.paused(lab.name, docker).values())
    except TestbedError as error:
        return [str(error)]


def _without_keeper(lab: LabFolder) -> list[str]:
    """What nobody looks after any more: the fibers, and faults that a dead keeper can no longer end."""
    gone, down = "its keeper is gone", f"take it down with: testbed down {lab.name}"
    try:
        journal = Journal.read(lab.journal)
    except LabError as error:
        lab.refuse_gone()
        return [f"{gone}; {down}", str(error)]
    if journal.empty:
        return [f"{gone}; {down}", "its journal is empty: what stands of it is not known"]
    if journal.boot != process.boot_id():
        return [
            f"{gone}, so its fibers are dark; {down}",
            "the machine was restarted since: nothing of it is left but its folder"
            + (" and its containers, stopped" if lab_nodes.driver(lab) == "containerlab" else ""),
        ]
    if teardown.lit_by_the_kernel(journal):
        lit = "the kernel keeps its fibers lit, unwatched"
        why = [f"{gone}, and {lit}; darken them with: testbed heal -l {lab.name}, or {down}"]
    else:
        why = [f"{gone}, so its fibers are dark; {down}"]
    for it in teardown.active_faults(journal):
        stands = "still stands" if it["steps"] else "was going on, and leaves the fiber alone by now"
        why.append(f"fault {it['id']} ({it['type']} {it['target']}) {stands}")
    return why


def _carriers(lab: LabFolder, topology: Topology, found: _Found) -> dict[tuple[str, str], bool]:
    states: dict[tuple[str, str], bool] = {}
    for site in topology.sites:
        try:
            with netlink.Namespace(lab_nodes.netns(lab, site.gateway)) as space:
                states |= {(site.gateway, name): up for name, up in space.carriers().items()}
        except HostError as error:
            found.why.append(str(error))
    return states


def _rank(lab: LabFolder, it: RankState, standing: Sequence[FaultRecord]) -> RankStatus:
    def ask() -> dict[str, float] | None:
        return scrape.scrape(it["metrics"][0], it["metrics"][1], timeout_s=0.5)

    try:
        values = namespace.inside(lab_nodes.netns(lab, MANAGEMENT), ask) or {}
    except HostError:
        values = {}

    def value(name: str) -> float | None:
        return next((v for series, v in values.items() if series.partition("{")[0] == name and v == v), None)

    step = value("testbed_step") or None  # a rank that waits has neither step nor train_loss
    return RankStatus(
        it["rank"],
        it["node"],
        it["site"],
        it["state"],
        None if step is None else int(step),
        None if step is None else value("testbed_train_loss"),
        tuple(fault["id"] for fault in standing),
        tuple(f"{fault['id']} {fault['phase']}" for fault in standing),
    )
