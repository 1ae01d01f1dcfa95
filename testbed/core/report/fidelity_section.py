"""Fidelity: were the fibers within tolerance, certified before the job and observed under load?

fiberd times each packet itself, so its behavior under load is measured. netem keeps no times: the report gives what can
be observed there (drops, backlog, the machine's headroom) and marks the rest as not measurable.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from testbed.core.analysis import fidelity
from testbed.core.certification.certificate import Certificate
from testbed.core.records.samples import HostSample
from testbed.core.report import formats

__all__ = ["NOISY_HOST", "NOT_MEASURABLE", "Fidelity", "Machine", "certified", "direction", "machine", "under_load"]

NOT_MEASURABLE = "not measurable"
"""A separate answer: nothing failed and nothing is missing, but this emulator does not provide the measurement."""

NOISY_HOST = "noisy host"
"""A separate answer: packets were late, and stalls of the host explain that. What was measured counts, with the
uncertainty that the stalls give it, so this prevents no pass."""

_BUSY_HEADROOM = 0.05
"""Share of all cores, chosen by us. With less free, senders of packets sometimes wait for a core."""

_NO_TIMES = frozenset({"netem"})
"""Emulators that do not measure the lateness of packets."""


@dataclass(frozen=True)
class Fidelity:
    """One direction under load; ``median_s``, ``p99_s`` are None when nothing crossed or beyond the last bound.

    ``verdict`` is held, did not hold, noisy host, nothing crossed, unknown, or not measurable on netem.
    ``queue_bytes_most`` is the longest queue observed, in bytes; None if queues were not sampled.
    """

    direction: str
    packets: int
    median_s: float | None
    p99_s: float | None
    own_drops: int
    held: bool | None
    why: str
    bounds_s: tuple[float, ...]
    counts: tuple[float, ...]
    verdict: str = "unknown"
    queue_bytes_most: int | None = None


@dataclass(frozen=True)
class Machine:
    """The machine during the job: share 0..1 of all cores that was busy, and cores that the emulator used.

    ``cpu_busy`` and ``cpu_headroom`` are medians; ``cpu_headroom_least`` is the 5th percentile of the headroom: in the
    busiest twentieth of the time there was less.
    """

    cpu_busy: float | None = None
    emulator_cores: float | None = None
    cpu_headroom: float | None = None
    cpu_headroom_least: float | None = None


def direction(each: fidelity.DirectionFidelity, emulator: str) -> Fidelity:
    def finite(value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    if each.held is False:
        verdict = "did not hold"
    elif each.noisy:
        verdict = NOISY_HOST
    elif each.held:
        verdict = "held"
    elif not each.packets:
        verdict = "nothing crossed"
    elif each.own_drops:
        verdict = "unknown"
    else:
        verdict = f"{NOT_MEASURABLE} on {emulator}" if emulator in _NO_TIMES else "unknown"
    return Fidelity(
        direction=each.direction,
        packets=each.packets,
        median_s=finite(each.median_s),
        p99_s=finite(each.p99_s),
        own_drops=each.own_drops,
        held=each.held,
        why=each.why,
        bounds_s=each.bounds_s,
        counts=each.counts,
        verdict=verdict,
        queue_bytes_most=each.queue_bytes_most,
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
        abs(each.error_median_s)
        for link in certificate.links
        for each in link.directions
        if each.error_median_s is not None
    ]
    worst = f" within {formats.duration(max(errors))} at the median" if errors else ""
    noisy = ", on a noisy host" if certificate.noisy else ""
    return not uncertified, f"Certified before the job{worst}{noisy}"


def under_load(found: Sequence[Fidelity], emulator: str, host: Machine) -> tuple[bool | None, str]:
    """Return whether fidelity held while the job ran, and the second half of a sentence that says so."""
    crossed = [each for each in found if each.packets]
    headroom = _headroom(host)
    if any(each.held is False for each in found):
        broken = [each for each in found if each.held is False]
        return False, f"it did not hold under load ({_listed(broken, found)}){_remedy(host) or headroom}"
    if not crossed:
        return None, "what it did under load was not measured"
    if dropped := [each for each in crossed if each.held is None and each.own_drops]:
        return None, f"whether it held under load is unknown ({_listed(dropped, found)}){headroom}"
    if noisy := [each for each in crossed if each.verdict == NOISY_HOST]:
        why = f"the host's stalls explain the late packets of {formats.listed([each.direction for each in noisy])}"
        return None, f"{why} ({_listed(noisy, found)}){headroom}"
    if all(each.held for each in crossed):
        slowest = max((each.p99_s for each in crossed if each.p99_s is not None), default=None)
        return True, f"99 % of packets at most {formats.duration(slowest)} late under load{headroom}"
    if emulator not in _NO_TIMES:
        return None, f"what it did under load was not measured{headroom}"
    queues = [each.queue_bytes_most for each in crossed if each.queue_bytes_most is not None]
    backlog = f", at most {formats.count(max(queues) / 1e3)} kB queued" if queues else ""
    return None, (
        f"under load not measurable on {emulator}, which keeps no per-packet times: it dropped no packets itself"
        f"{backlog}; how late packets left is unknown{headroom}"
    )


def _listed(reasons: Sequence[Fidelity], every: Sequence[Fidelity]) -> str:
    """Return each reason once, after its directions: ``on north and south, both ways: …; on east:b: …``."""
    ways: dict[str, set[str]] = {}
    for each in every:
        ways.setdefault(_link(each), set()).add(each.direction)
    by_why: dict[str, list[Fidelity]] = {}
    for each in reasons:
        by_why.setdefault(each.why, []).append(each)
    said = []
    for why, those in by_why.items():
        struck = {each.direction for each in those}
        whole = [link for link in dict.fromkeys(_link(each) for each in those) if len(ways[link]) > 1]
        whole = [link for link in whole if ways[link] <= struck]
        single = [each.direction for each in those if _link(each) not in whole]
        places = [f"{formats.listed(whole)}, both ways"] if whole else []
        places += [formats.listed(single)] if single else []
        said.append(f"on {', and on '.join(places)}: {why}")
    return "; ".join(said)


def _link(each: Fidelity) -> str:
    return each.direction.partition(":")[0]


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
