"""Check that nothing goes around the fibers of a running lab: every pair of sites, in both families, side by side.

A packet that arrives at another site must have been seen in the plant, on fibers that lead there. Also tried: the
management network, and everybody in reach of an interface without a router (IPv6 link-local, IPv4 broadcast), from all
nodes and gateways, because a second path between sites need not have a route.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from testbed.core.certification import bypass, chance
from testbed.core.certification.bypass import ADDRESSED, FAMILIES, MANAGEMENT, NEARBY, AroundCheck, BypassProbe, Pair
from testbed.core.plan import build
from testbed.core.plan.addressing import PLANT, Addressing
from testbed.core.topology.model import Topology
from testbed.host import lab_nodes
from testbed.host.lab_folder import LabFolder
from testbed.host.measure.site_probing import Heard, Place, Send, SiteProbes
from testbed.lab.fiber_measurement import RESOLVING_S, SETTLE_S, longest_s

__all__ = ["check_bypass"]

LEAST_ATTEMPTS, MOST_ATTEMPTS = 3, 60
"""Rounds after which a pair counts as silent; the maximum takes some seconds."""
AT_ONCE, MANY = 5, 500
"""Packets of a silent pair per further round, unless there are many such pairs."""
CONFIRMATIONS, MOST_ROUNDS = 2, 4
"""Further rounds in which packets must bypass the fibers before a bypass is reported, and how many are tried at most:
one whose capture lost packets tells nothing."""


def check_bypass(lab: LabFolder, topology: Topology) -> AroundCheck:
    """Probe all pairs of sites. Not ok if anything goes around the fibers, or if a pair is silent, which tells nothing.

    Raises HostError if the probes cannot be sent.
    """
    began = time.monotonic()
    wanted = bypass.pairs(topology) if topology.links else ()
    why, unmeasured = "", False
    if wanted:
        with SiteProbes(_places(lab, topology), lab_nodes.netns(lab, PLANT)) as probes:
            check = _Bypass(topology, probes)
            why, unmeasured = check.why(wanted), check.unmeasured
    sites = len(topology.sites)
    return AroundCheck(
        why=why,
        pairs=sites * (sites - 1) // 2 if wanted else 0,
        families=FAMILIES if wanted else (),
        took_s=round(time.monotonic() - began, 3),
        unmeasured=unmeasured,
    )


def _places(lab: LabFolder, topology: Topology) -> list[Place]:
    # A gateway's links lead into fibers, and what is in its fabric is reached from its nodes.
    names = topology.interfaces
    ports = (names.port(site.name, node) for site in topology.sites for node in site.node_names)
    inner = frozenset((build.FABRIC_BRIDGE, *(names.of_link(link.name) for link in topology.links), *ports))
    return [
        Place(name, lab_nodes.netns(lab, name), inner if name == site.gateway else frozenset())
        for site in topology.sites
        for name in (site.gateway, *site.node_names)
    ]


class _Bypass:
    """One check: what was sent, by number, and what is known of it."""

    def __init__(self, topology: Topology, probes: SiteProbes) -> None:
        self._topology, self._probes = topology, probes
        self.unmeasured = False
        """Whether the capture lost packets in every round, so that :meth:`why` has no result."""
        self._management = Addressing(topology).management
        self._addresses = {
            (node, family): str(address)
            for node in topology.node_names
            for family, address in zip(FAMILIES, Addressing(topology).node(node), strict=True)
        }
        self._direction = {direction.ingress: direction.name for direction in build.directions(topology)}
        self._sent: dict[int, tuple[str, str, str, str]] = {}
        """By number: sort, family, sender, and interface or address."""
        slowest = sorted(
            max(longest_s(link.impairment(direction)) for direction in link.directions) for link in topology.links
        )
        self._patience_s = SETTLE_S + sum(slowest[1 - len(topology.sites) :])  # no path has more links than that

    def why(self, wanted: Sequence[Pair]) -> str:
        """Return what counts against the lab; empty: nothing."""
        others = [*self._nearby(), *self._over_management()]
        # A capture that lost packets makes strays and hides none, so a round without strays counts in any case.
        arrived, _ = self._round(others, [self._addressed(place) for place in wanted])
        if reason := self._confirmed(bypass.strays(self._topology, arrived)):
            return reason
        attempts, until = _attempts(self._topology), time.monotonic() + RESOLVING_S
        while silent := bypass.silent_pairs(wanted, arrived):
            if attempts <= 0 and time.monotonic() > until:
                break
            attempts -= 1
            repeats = AT_ONCE if len(silent) < MANY else 1  # many: their neighbours were not resolved yet
            arrived_again, _ = self._round([], [self._addressed(place) for place in silent for _ in range(repeats)])
            arrived += arrived_again
            if reason := self._confirmed(bypass.strays(self._topology, arrived_again)):
                return reason
        return bypass.why_bypassed((), silent)

    def _confirmed(self, astray: Sequence[BypassProbe]) -> str:
        """Return what counts against the lab after further packets over the same paths; empty if none strays again.

        Only rounds whose capture saw everything accuse or acquit.
        """
        complete_rounds = 0
        for _ in range(MOST_ROUNDS):
            if not astray or complete_rounds == CONFIRMATIONS:
                break
            # A few packets at a time: the first round may have overflowed the capture, which then saw no crossing.
            several = [place for place in astray for _ in range(AT_ONCE)]
            again, complete = self._round(
                [self._again(place) for place in several if place.sort != ADDRESSED],
                [self._again(place) for place in several if place.sort == ADDRESSED],
            )
            if complete:
                complete_rounds, astray = complete_rounds + 1, bypass.strays(self._topology, again)
        if astray and not complete_rounds:
            self.unmeasured = True
            return f"the capture in the plant lost packets, {MOST_ROUNDS} times of {MOST_ROUNDS}: {bypass.UNKNOWN}"
        return bypass.why_bypassed(astray, ())

    def _round(self, others: Sequence[Send], addressed: Sequence[Send]) -> tuple[list[BypassProbe], bool]:
        numbers = {target.number for target in (*others, *addressed)}
        heard = self._probes.run(addressed, others, patience_s=self._patience_s, settle_s=SETTLE_S)
        return list(self._arrived(heard, numbers)), heard.complete

    def _arrived(self, heard: Heard, numbers: set[int]) -> Iterator[BypassProbe]:
        for number in sorted(numbers & heard.receivers.keys()):
            sort, family, sender, interface = self._sent[number]
            entered = frozenset(
                self._direction[place] for place in heard.entered.get(number, ()) if place in self._direction
            )
            for receiver in sorted(heard.receivers[number]):
                yield BypassProbe(sort, family, sender, receiver, entered, interface)

    # ---- what is sent

    def _addressed(self, pair: Pair) -> Send:
        send = self._probes.to_address(pair.sender, self._addresses[pair.receiver, pair.family])
        return self._noted(send, ADDRESSED, pair.family, pair.sender)

    def _nearby(self) -> Iterator[Send]:
        for place, interfaces in self._probes.interfaces.items():
            for interface in interfaces:
                for family in FAMILIES:
                    yield self._from_interface(place, interface, family)

    def _from_interface(self, place: str, interface: str, family: str) -> Send:
        send = self._probes.to_nearby(place, interface, family)
        return self._noted(send, NEARBY, family, place, interface)

    def _over_management(self) -> Iterator[Send]:
        """To a management address of each other site: only from one node, as each costs an unresolved neighbour, whose
        number is limited for the whole host. What passes between other nodes would pass from one of them nearby."""
        first, *others = self._topology.sites
        for site in others:
            yield self._managed(first.node_names[0], site.node_names[0])

    def _managed(self, sender: str, receiver: str) -> Send:
        send = self._probes.to_address(sender, str(self._management[receiver]))
        return self._noted(send, MANAGEMENT, "IPv4", sender)

    def _again(self, stray: BypassProbe) -> Send:
        if stray.sort == NEARBY:
            return self._from_interface(stray.sender, stray.interface, stray.family)
        if stray.sort == MANAGEMENT:
            return self._managed(stray.sender, stray.receiver)
        return self._addressed(Pair(stray.sender, stray.receiver, stray.family))

    def _noted(self, send: Send, sort: str, family: str, sender: str, interface: str = "") -> Send:
        self._sent[send.number] = (sort, family, sender, interface)
        return send


def _attempts(topology: Topology) -> int:
    """Return the number of rounds after which some packet gets through any path, with a one in a million chance of
    error; at least three, because packets are dropped while neighbours are resolved along a path."""
    impairments = [link.impairment(direction) for link in topology.links for direction in link.directions]
    together = max(impairment.chain.mean_burst if impairment.chain else 1.0 for impairment in impairments)
    lost = 1.0 - math.prod(1.0 - impairment.mean_loss for impairment in impairments)
    if lost >= 1.0:
        return LEAST_ATTEMPTS
    wanted = math.log(chance.MISS) / math.log(lost) * together / AT_ONCE if lost > 0 else 0.0
    return math.ceil(min(MOST_ATTEMPTS, max(LEAST_ATTEMPTS, wanted)))
