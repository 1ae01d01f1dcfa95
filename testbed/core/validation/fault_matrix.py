"""The fault matrix: which faults strike a library in the middle of an operation, and which outcomes are accepted.

Faults are the lab's own (docs/faults.md), written here as a user would type them. The **victim** is the last site, and
the last rank in it: all fibers that end at that site are cut, so that no bypass exists, unless the fault is about
failover. A fault begins while the operation is in progress: after a stated share of the bytes that the operation
usually puts on the fibers has crossed, a criterion that does not depend on the speed of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from testbed.core.topology.model import Link, Topology
from testbed.core.validation.cases import FIRST_FAULT_CALL, Suite, preferred
from testbed.core.validation.fibers import routes
from testbed.core.validation.operation import CollectiveOperation, OperationName
from testbed.core.validation.result import Outcome

__all__ = [
    "FAULTS",
    "REPORTS_ERROR",
    "SHARE",
    "SLACK_S",
    "SURVIVES",
    "Injection",
    "MatrixFault",
    "Trial",
    "left_out",
    "trials",
    "why_no_trials",
]

SHARE: Final = 0.3
"""Share of the bytes that the healthy operation puts on all fibers together. The later a fault begins, the less of the
operation is left to disturb."""

TIMEOUT_S: Final = 6.0
"""Timeout that the library is given, on short fibers."""

SLACK_S: Final = 3.0
"""How much later than the library's timeout an error may come: ranks notice one after the other on a busy machine."""

SHORT_S: Final = 1.5
"""A cut shorter than the timeout. TCP cut off for t resumes within 2 t plus its first timer of at least 0.2 s (each
timer is twice the previous one): 3.5 s after the cut began, well before the timeout."""

PATIENCE_S: Final = 30.0
"""When an operation that should succeed is given up: 1 % of loss, or a tenth of the rate, makes it slow."""

_LASTS_S: Final = 0.35
"""Least time the fiber needs for the operation's bytes, so that it is still in progress when the fault begins."""

_LEAST_BYTES: Final = 4 << 20
_MOST_BYTES: Final = 64 << 20

SURVIVES: Final[frozenset[Outcome]] = frozenset({"right", "right after healing"})
REPORTS_ERROR: Final[frozenset[Outcome]] = frozenset({"error within its bound"})


@dataclass(frozen=True)
class Injection:
    """``testbed inject KIND TARGET K=V… --for``, as soon as the share has crossed.

    ``for_s`` None: active until the cell ends. The injection is made ``repeat`` times, with starts ``every_s`` apart.
    ``rank-kill`` and ``rank-pause`` act on the rank program; ``target`` is then the rank's number.
    """

    kind: str
    target: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    for_s: float | None = None
    repeat: int = 1
    every_s: float = 0.0


@dataclass(frozen=True)
class MatrixFault:
    """A row of the matrix. ``holds``: the accepted outcomes; all others count against the library."""

    name: str
    summary: str
    suite: Suite
    holds: frozenset[Outcome]


@dataclass(frozen=True)
class Trial:
    """One cell of the matrix before it is tried: one fault in one operation. Times are seconds since the fault began.

    Attributes:
        injections: all start together.
        operation: on the world.
        share: inject when this part of the operation's usual bytes has crossed.
        timeout_s: the library's own, passed in ``join``.
        error_by_s: deadline; a later error is late.
        outer_s: a rank that is still in the operation then is hung.
        affected: ranks that the fault itself kills or stops: nothing is expected of them.
    """

    fault: MatrixFault
    injections: tuple[Injection, ...]
    operation: CollectiveOperation
    share: float
    timeout_s: float
    error_by_s: float
    outer_s: float
    affected: frozenset[int] = frozenset()


FAULTS: Final = {
    matrix_fault.name: matrix_fault
    for matrix_fault in (
        MatrixFault("cut-short", "every fiber of a site cut, for less than the library's timeout", "quick", SURVIVES),
        MatrixFault(
            "cut-long", "every fiber of a site cut, for longer than the library's timeout", "quick", REPORTS_ERROR
        ),
        MatrixFault("failover", "the fiber in use cut, another one up", "quick", SURVIVES),
        MatrixFault("loss-1pct", "1 % of the packets lost", "quick", SURVIVES),
        MatrixFault("rank-killed", "a rank killed", "quick", REPORTS_ERROR),
        MatrixFault(
            "one-direction-silent", "one direction down, no port loses carrier", "full", REPORTS_ERROR | SURVIVES
        ),
        MatrixFault(
            "one-direction-carrier",
            "one direction down, the receiving port loses carrier",
            "full",
            REPORTS_ERROR | SURVIVES,
        ),
        MatrixFault("flap", "every fiber of a site down for 0.3 s, up for 0.7 s, five times", "full", SURVIVES),
        MatrixFault(
            "burst-loss", "every packet lost for 20 ms of each 450 ms, no port loses carrier", "full", SURVIVES
        ),
        MatrixFault("reorder", "5 % of the packets delayed by 1 ms and reordered", "full", SURVIVES),
        MatrixFault("duplicate", "1 % of the packets duplicated", "full", SURVIVES),
        MatrixFault(
            "corruption", "bits of 0.1 % of the packets flipped, undetected by Ethernet's FCS", "full", SURVIVES
        ),
        MatrixFault("mtu-black-hole", "IP packets above 1400 B dropped", "full", REPORTS_ERROR | SURVIVES),
        MatrixFault("latency-step", "one-way delay increased by 50 ms, after a gap of 50 ms", "full", SURVIVES),
        MatrixFault("rate-squeeze", "rate reduced to a tenth", "full", SURVIVES),
        MatrixFault("rank-stopped", "a rank stopped, for longer than the library's timeout", "full", REPORTS_ERROR),
        MatrixFault("rank-slow", "a rank stopped for 0.1 s of each 0.2 s, for 4 s", "full", SURVIVES),
    )
}
"""By name, in the order of the matrix."""


def trials(suite: Suite, topology: Topology, offers: Mapping[str, Any], seed: int = 0) -> tuple[Trial, ...]:
    """Return the fault matrix of a library with these ``offers``; empty if no operation fits, see ``why_no_trials``.

    Faults that the topology cannot host are left out, see ``left_out``.
    """
    place = _Place(topology)
    planned = []
    for number, fault in enumerate(_wanted(suite)):
        operation = _operation(topology, place, offers, FIRST_FAULT_CALL + number, seed)
        if operation is None:
            return ()
        injections, why_not = _INJECTIONS[fault.name](place)
        if why_not:
            continue
        timeout_s = round(TIMEOUT_S + 40 * place.delay_s, 1)
        error_by_s = timeout_s + SLACK_S
        patience_s = PATIENCE_S + 300 * place.delay_s if fault.holds == SURVIVES else timeout_s + error_by_s
        planned.append(
            Trial(
                fault=fault,
                injections=injections,
                operation=operation,
                share=SHARE,
                timeout_s=timeout_s,
                error_by_s=error_by_s,
                outer_s=patience_s,
                affected=frozenset({place.rank}) if fault.name in ("rank-killed", "rank-stopped") else frozenset(),
            )
        )
    return tuple(planned)


def left_out(suite: Suite, topology: Topology) -> dict[str, str]:
    """Return the faults of the suite that the topology cannot host, and why: no second fiber, or no second site."""
    place = _Place(topology)
    reasons = {fault.name: _INJECTIONS[fault.name](place)[1] for fault in _wanted(suite)}
    return {name: why for name, why in reasons.items() if why}


def _wanted(suite: Suite) -> list[MatrixFault]:
    return [fault for fault in FAULTS.values() if suite == "full" or fault.suite == "quick"]


def why_no_trials(offers: Mapping[str, Any]) -> str:
    """Return why there are no trials of a library with these ``offers``; empty if there are."""
    if _chosen(offers) is None:
        return f"the library offers none of {', '.join(_TRIED)} with a type of the protocol"
    return ""


_TRIED: Final[tuple[OperationName, ...]] = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "send",
)
"""Candidates for the disturbed operation, in order of preference. All put bytes on the fibers toward the last rank."""


def _chosen(offers: Mapping[str, Any]) -> tuple[OperationName, str, Any] | None:
    for do in _TRIED:
        # The widest type has the fewest elements to make and to judge; integers are exact.
        choice = preferred(do, offers, ("int64", "float64", "int32", "float32"))
        if choice is not None:
            return do, *choice
    return None


def _operation(
    topology: Topology, place: _Place, offers: Mapping[str, Any], call: int, seed: int
) -> CollectiveOperation | None:
    chosen = _chosen(offers)
    if chosen is None:
        return None
    do, kind, reduction = chosen
    ranks = len(topology.node_names)
    one = CollectiveOperation(do, call, "world", kind, 1, reduction, 0, ranks - 1, seed)
    size = min(max(_LASTS_S * place.rate, _LEAST_BYTES), _MOST_BYTES) if place.rate else _MOST_BYTES
    count = round(size / one.size_bytes(ranks)) | 1
    return CollectiveOperation(do, call, "world", kind, count, reduction, 0, ranks - 1, seed)


class _Place:
    """The victim: where faults strike."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.victim = topology.sites[-1].name
        self.rank = len(topology.node_names) - 1
        self.links = tuple(link for link in topology.links if self.victim in link.between)
        """All links that end at the victim."""
        taken = routes(topology)
        leaving_or_entering = {path[-1] for (_, head), path in taken.items() if head == self.victim}
        leaving_or_entering |= {path[0] for (tail, _), path in taken.items() if tail == self.victim}
        used = {direction.link for direction in leaving_or_entering}
        self.used = tuple(link for link in self.links if not taken or link.name in used)
        """Those that carry traffic with the victim."""
        both = [link.impairment(direction) for link in self.used for direction in link.directions]
        self.rate = min((impairment.rate_bps / 8 for impairment in both if impairment.rate_bps), default=0.0)
        self.delay_s = max((impairment.delay_s for impairment in both), default=0.0)

    def toward(self, link: Link) -> str:
        return f"{link.name}:{self.victim}"


Injections = tuple[tuple[Injection, ...], str]
"""What to inject, or why nothing can be injected."""


def _alone(place: _Place) -> str:
    return "" if place.links else f"no fiber ends at {place.victim}: the topology has one site"


def _cut(
    links: Sequence[Link], for_s: float | None = None, kind: str = "cut", **parameters: str
) -> tuple[Injection, ...]:
    """A cut, or a flap, of all paths of these links."""
    return tuple(
        Injection(kind, link.name, parameters | ({"path": "both"} if link.second_path else {}), for_s) for link in links
    )


def _cut_short(place: _Place) -> Injections:
    return _cut(place.links, SHORT_S), _alone(place)


def _cut_long(place: _Place) -> Injections:
    return _cut(place.links), _alone(place)


def _flap(place: _Place) -> Injections:
    return _cut(place.links, kind="flap", down="300ms", up="700ms", times="5"), _alone(place)


def _bursts(place: _Place) -> Injections:
    """Bursts timed in seconds. Bursts of a Gilbert-Elliott chain are counted in packets, and a sender that lost a whole
    window sends one packet a timeout: TCP may back off for longer than any library waits, and the outcome would depend
    on chance. The period is no multiple of TCP's shortest timeout, 0.2 s, or every retransmission would meet the next
    burst (Kuzmanovic, Knightly: Low-rate TCP-targeted denial of service attacks, SIGCOMM 2003).
    """
    return _cut(place.links, kind="flap", down="20ms", up="430ms", times="100", carrier="silent"), _alone(place)


def _failover(place: _Place) -> Injections:
    """Cut the first link in use that has a replacement; of a protected link, cut the working path."""
    for link in place.used:
        if link.second_path is not None or (link.protection != "none" and _replaced(place, link)):
            return (Injection("cut", link.name),), ""
    return (), _alone(place) or f"no path replaces {' or '.join(link.name for link in place.used)}"


def _replaced(place: _Place, link: Link) -> bool:
    """Whether the victim is reachable from every site without ``link``."""
    if place.topology.routing == "multipath":
        return len(place.links) > 1
    reached = routes(place.topology, {link.name})
    return all((site.name, place.victim) in reached for site in place.topology.sites if site.name != place.victim)


def _impair(kind: str = "impair", **parameters: str) -> Callable[[_Place], Injections]:
    def made(place: _Place) -> Injections:
        return tuple(Injection(kind, link.name, parameters) for link in place.used), _alone(place)

    return made


def _silent(place: _Place) -> Injections:
    """A protected link would move both directions to its other path; losing all packets has the same effect."""
    return (
        tuple(
            Injection("impair", place.toward(link), {"loss": "100%"})
            if link.second_path
            else Injection("cut", place.toward(link), {"carrier": "silent"})
            for link in place.used
        ),
        _alone(place),
    )


def _receiver(place: _Place) -> Injections:
    if any(link.second_path for link in place.used):
        return (), "both directions of a protected link switch together"
    return tuple(Injection("cut", place.toward(link), {"carrier": "receiver"}) for link in place.used), _alone(place)


def _rank(
    kind: str, for_s: float | None = None, repeat: int = 1, every_s: float = 0.0
) -> Callable[[_Place], Injections]:
    def made(place: _Place) -> Injections:
        return (Injection(kind, str(place.rank), {}, for_s, repeat, every_s),), ""

    return made


_INJECTIONS: Final[Mapping[str, Callable[[_Place], Injections]]] = {
    "cut-short": _cut_short,
    "cut-long": _cut_long,
    "failover": _failover,
    "loss-1pct": _impair(loss="1%"),
    "rank-killed": _rank("rank-kill"),
    "one-direction-silent": _silent,
    "one-direction-carrier": _receiver,
    "flap": _flap,
    "burst-loss": _bursts,
    "reorder": _impair(reorder="5%", reorder_by="1ms"),
    "duplicate": _impair(duplicate="1%"),
    "corruption": _impair("corruption", share="0.1%", survives="true"),
    "mtu-black-hole": _impair("mtu-black-hole", largest="1400B"),
    "latency-step": _impair("latency-step", extra="50ms", gap="50ms"),
    "rate-squeeze": _impair("rate-squeeze", to="10%"),
    "rank-stopped": _rank("rank-pause"),
    "rank-slow": _rank("rank-pause", for_s=0.1, repeat=20, every_s=0.2),
}
