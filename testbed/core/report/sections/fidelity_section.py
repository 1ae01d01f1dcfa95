"""Fidelity: were the fibers within tolerance, certified before the job and observed under load?

fiberd times each packet itself, so its behavior under load is measured. netem keeps no times: the report gives what can
be observed there (drops, backlog, the machine's headroom) and marks the rest as not measurable.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from testbed.core.analysis.wire import fidelity
from testbed.core.certification.certificate import Certificate
from testbed.core.json_form import Keywords
from testbed.core.records.samples import HostSample
from testbed.core.report import formats
from testbed.core.topology.direction import link_of

__all__ = ["NOISY_HOST", "NOT_MEASURABLE", "Fidelity", "Machine", "certified", "direction", "machine", "under_load"]

NOT_MEASURABLE = "not measurable"
"""A separate answer: nothing failed and nothing is missing, but this emulator does not provide the measurement."""

NOISY_HOST = "noisy host"
"""A separate answer: packets were late, and stalls of the host explain it. Measurements count within their
uncertainty, so this answer does not prevent a pass."""

_BUSY_HEADROOM = 0.05
"""Share of all cores, chosen by us. With less free, senders of packets sometimes wait for a core."""

_NO_TIMES = frozenset({"netem"})
"""Emulators that do not measure the lateness of packets."""


_VERDICTS = ("held", "did not hold", NOISY_HOST, "nothing crossed", "unknown", f"{NOT_MEASURABLE} on netem")


@dataclass(frozen=True)
class Fidelity:
    """One direction under load; ``median_s``, ``p99_s`` are None when nothing crossed or beyond the last bound.

    ``verdict`` is held, did not hold, noisy host, nothing crossed, unknown, or not measurable on netem.
    ``queue_bytes_most`` is the longest queue observed, in bytes; None if queues were not sampled.
    """

    direction: str
    packets: int
    median_s: float | None
    """Of lateness; null: nothing crossed, or beyond the last bound."""
    p99_s: float | None
    own_drops: int
    """Packets that the emulator itself dropped."""
    held: bool | None
    why: str
    bounds_s: tuple[float, ...]
    counts: tuple[float, ...]
    """One more than bounds: the last is later than every bound."""
    verdict: Annotated[str, Keywords(enum=[*_VERDICTS])] = "unknown"
    queue_bytes_most: int | None = None
    """Longest queue seen."""


@dataclass(frozen=True)
class Machine:
    """The machine during the job: share 0..1 of all cores that was busy, and cores that the emulator used.

    ``cpu_busy`` and ``cpu_headroom`` are medians; ``cpu_headroom_least`` is the 5th percentile of the headroom: in the
    busiest twentieth of the time there was less.
    """

    cpu_busy: float | None = None
    emulator_cores: float | None = None
    cpu_headroom: float | None = None
    """Median share of all cores that was free."""
    cpu_headroom_least: float | None = None
    """Its 5th percentile."""


def direction(measured: fidelity.DirectionFidelity, emulator: str) -> Fidelity:
    def finite(value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    if measured.held is False:
        verdict = "did not hold"
    elif measured.noisy:
        verdict = NOISY_HOST
    elif measured.held:
        verdict = "held"
    elif not measured.packets:
        verdict = "nothing crossed"
    elif measured.own_drops:
        verdict = "unknown"
    else:
        verdict = f"{NOT_MEASURABLE} on {emulator}" if emulator in _NO_TIMES else "unknown"
    return Fidelity(
        direction=measured.direction,
        packets=measured.packets,
        median_s=finite(measured.median_s),
        p99_s=finite(measured.p99_s),
        own_drops=measured.own_drops,
        held=measured.held,
        why=measured.why,
        bounds_s=measured.bounds_s,
        counts=measured.counts,
        verdict=verdict,
        queue_bytes_most=measured.queue_bytes_most,
    )


def machine(hosts: Iterable[HostSample], began_t: float | None, ended_t: float | None) -> Machine:
    """Summarize the samples in [``began_t``, ``ended_t``]; None means no limit on that side."""
    during = [
        sample
        for sample in hosts
        if (began_t is None or sample.t >= began_t) and (ended_t is None or sample.t <= ended_t)
    ]
    busy = sorted(sample.cpu_busy for sample in during if sample.cpu_busy is not None)
    used = [(sample.t, sample.emulator_cpu_s) for sample in during if sample.emulator_cpu_s is not None]
    cores = None
    if len(used) > 1 and used[-1][0] > used[0][0] and used[-1][1] >= used[0][1]:
        cores = (used[-1][1] - used[0][1]) / (used[-1][0] - used[0][0])
    if not busy:
        return Machine(None, cores)
    median, most = statistics.median(busy), busy[math.ceil(0.95 * len(busy)) - 1]
    return Machine(median, cores, _free(median), _free(most))


def _free(busy: float) -> float:
    return min(1.0, max(0.0, 1.0 - busy))


def certified(certificate: Certificate | None, uncertified: bool) -> tuple[bool | None, str]:
    """Return whether the fibers were certified before the job, and the first half of a sentence that says so."""
    if certificate is None:
        return (False if uncertified else None), "There is no certificate of the fibers"
    if certificate.why:
        return False, f"Outside tolerance before the job ({'; '.join(certificate.why)})"
    if certificate.unmeasured:
        return None, f"Not measurable on this host before the job ({'; '.join(certificate.unmeasured)})"
    errors = [
        abs(measured.error_median_s)
        for link in certificate.links
        for measured in link.directions
        if measured.error_median_s is not None
    ]
    worst = f" within {formats.duration(max(errors))} at the median" if errors else ""
    noisy = ", on a noisy host" if certificate.noisy else ""
    return not uncertified, f"Certified before the job{worst}{noisy}"


def under_load(directions: Sequence[Fidelity], emulator: str, host: Machine) -> tuple[bool | None, str]:
    """Return whether fidelity held while the job ran, and the second half of a sentence that says so."""
    crossed = [measured for measured in directions if measured.packets]
    headroom = _headroom(host)
    if any(measured.held is False for measured in directions):
        broken = [measured for measured in directions if measured.held is False]
        return False, f"it did not hold under load ({_listed(broken, directions)}){_remedy(host) or headroom}"
    if not crossed:
        return None, "what it did under load was not measured"
    if dropped := [measured for measured in crossed if measured.held is None and measured.own_drops]:
        return None, f"whether it held under load is unknown ({_listed(dropped, directions)}){headroom}"
    if noisy := [measured for measured in crossed if measured.verdict == NOISY_HOST]:
        late = formats.listed([measured.direction for measured in noisy])
        why = f"the host's stalls explain the late packets of {late}"
        return None, f"{why} ({_listed(noisy, directions)}){headroom}"
    if all(measured.held for measured in crossed):
        slowest = max((measured.p99_s for measured in crossed if measured.p99_s is not None), default=None)
        return True, f"99 % of packets at most {formats.duration(slowest)} late under load{headroom}"
    if emulator not in _NO_TIMES:
        return None, f"what it did under load was not measured{headroom}"
    queues = [measured.queue_bytes_most for measured in crossed if measured.queue_bytes_most is not None]
    backlog = f", at most {formats.count(max(queues) / 1e3)} kB queued" if queues else ""
    return None, (
        f"under load not measurable on {emulator}, which keeps no per-packet times: it dropped no packets itself"
        f"{backlog}; how late packets left is unknown{headroom}"
    )


def _listed(reasons: Sequence[Fidelity], every: Sequence[Fidelity]) -> str:
    """Return each reason once, after its directions: ``on north and south, both ways: …; on east:b: …``."""
    ways: dict[str, set[str]] = {}
    for measured in every:
        ways.setdefault(link_of(measured.direction), set()).add(measured.direction)
    by_why: dict[str, list[Fidelity]] = {}
    for measured in reasons:
        by_why.setdefault(measured.why, []).append(measured)
    parts = []
    for why, those in by_why.items():
        struck = [measured.direction for measured in those]
        links = dict.fromkeys(map(link_of, struck))
        whole = [link for link in links if len(ways[link]) > 1 and ways[link] <= {*struck}]
        single = [direction for direction in struck if link_of(direction) not in whole]
        places = [f"{formats.listed(whole)}, both ways"] if whole else []
        places += [formats.listed(single)] if single else []
        parts.append(f"on {', and on '.join(places)}: {why}")
    return "; ".join(parts)


def _remedy(host: Machine) -> str:
    """Return the cause and the fix if the machine was too busy; empty otherwise."""
    least = host.cpu_headroom_least
    if host.cpu_headroom is not None and host.cpu_headroom < _BUSY_HEADROOM:
        busy = f"{formats.share(1 - host.cpu_headroom)} busy at the median"
    elif least is not None and least < _BUSY_HEADROOM:
        busy = f"at least {formats.share(1 - least)} busy a twentieth of the time"
    else:
        return ""
    return (
        f"; the machine was {busy}, which makes packets late: run it again when it is quiet (testbed doctor says"
        " whether it is), or on more cores"
    )


def _headroom(host: Machine) -> str:
    if host.cpu_headroom is None:
        return ""
    return f"; CPU headroom {formats.share(host.cpu_headroom)} at the median"
