"""The judge of certificates: compare what was measured of a direction with its target, with a verdict per quantity.

Pure. A quantity is ``ok``, ``bad``, or ``inconclusive``: the sample was too small, and the sentence gives the detection
limit. Nothing passes without a measurement. docs/certificate.md justifies each tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from testbed.core.certification import chance, counts
from testbed.core.certification.counts import Stream
from testbed.core.certification.expected import MOST_PACKETS, Expected, expected
from testbed.core.certification.host_log import FEWEST_PACKETS
from testbed.core.certification.link_certificate import (
    RATE_TOLERANCE,
    Check,
    DirectionCertificate,
    RateCertificate,
    RoundTrip,
    Tries,
    tolerance_s,
)
from testbed.core.certification.spread import SIGMAS_OF_DEVIATION, Spread, median_deviation
from testbed.core.physics.impairment import Impairment

__all__ = ["DirectionSample", "RoundTripSample", "Stream", "judge_delays", "judge_direction", "judge_round_trip"]

JITTER_TOLERANCE_S: Final = 50e-6
"""Tolerated jitter of a direction without jitter, beyond the baseline's: wakeups of the host, not the fiber's."""

_JITTER_SHARE: Final = 0.05
_SIGMAS: Final = 4.9
"""A two-sided 1e-6 for a normal distribution: a thousand certifications do not fail by chance."""

_HOPS_OF_BASELINE: Final = 2.0
"""Hops from node to node over those of the baseline path: two bridges and two routers more. On a busy machine a packet
waits at each, by what the baseline's median exceeds its minimum."""

_MOST_WAIT_S: Final = 10e-6
"""Such waits raise the upper limit of a median by at most this; larger delays by a noisy host must be in its logs."""

_SCATTER_MARGIN: Final = 1.5
"""The scatter of a jitter's statistic is that of a few drawn samples, and itself known to a tenth only."""


@dataclass(frozen=True)
class DirectionSample:
    """The measurement of one direction; times in seconds, one way, first arrivals only.

    ``delays_s`` and ``bare_s`` are delays of packets that the host did not delay, over the direction and over the
    baseline. ``probes`` packets were sent ``interval_s`` apart, and ``arrived`` of them arrived; ``places`` are the
    positions of ``delays_s`` among those sent. ``rate_bps`` is None without a rate: ``rate_why`` is the reason that no
    packet train was sent, ``rate_unmeasured`` the reason that the trains gave no rate. ``rate_slack`` is added to the
    rate's tolerance (a share). ``own_drops`` are packets that the emulator counts as its own failure (no buffer space,
    not read in time).
    ``rate_beside`` is the other traffic that crossed while the rate was measured, in bytes over those of the packet
    trains. ``between`` and ``taken_off_s`` are those of :class:`DirectionCertificate`; from delays between nodes
    nothing is subtracted.
    """

    delays_s: Sequence[float]
    bare_s: Sequence[float]
    probes: int
    arrived: int | None = None
    places: Sequence[int] = ()
    interval_s: float = 0.004
    stream: Stream | None = None
    rate_bps: float | None = None
    rate_why: str = ""
    rate_unmeasured: str = ""
    rate_slack: float = 0.0
    segmentation: str = ""
    own_drops: int = 0
    delay_tries: int = 1
    rate_tries: int = 1
    rate_beside: float = 0.0
    between: str = "gateways"
    taken_off_s: float = 0.0

    @property
    def all_arrived(self) -> int:
        return len(self.delays_s) if self.arrived is None else self.arrived


@dataclass(frozen=True)
class RoundTripSample:
    """Echoes that the far kernel answers; ``why`` says what prevented the measurement.

    ``times_s`` and ``bare_s`` are round-trip times of echoes that the host did not delay; the latter crossed the
    baseline, or stayed inside a site for ``between`` nodes. ``places``, ``probes`` and ``arrived`` are those of
    :class:`DirectionSample`.
    """

    times_s: Sequence[float] = ()
    bare_s: Sequence[float] = ()
    probes: int = 0
    arrived: int | None = None
    places: Sequence[int] = ()
    interval_s: float = 0.004
    why: str = ""
    between: str = "gateways"

    @property
    def all_arrived(self) -> int:
        return len(self.times_s) if self.arrived is None else self.arrived


def judge_direction(direction: str, target: Impairment, sample: DirectionSample) -> DirectionCertificate:
    """Judge one direction, ``link:site``."""
    measured, bare = Spread.of(sample.delays_s), Spread.of(sample.bare_s)
    stream = sample.stream
    small_count = not target.corrupt_survives  # a flipped bit fails a small probe's checksum, which is no loss
    sent = (sample.probes if small_count else 0) + (stream.sent if stream else 0)
    lost = (sample.probes - sample.all_arrived if small_count else 0) + (stream.sent - stream.distinct if stream else 0)
    rate = None
    if sample.rate_bps is not None and target.rate_bps > 0:
        rate = RateCertificate(target.rate_bps, sample.rate_bps, RATE_TOLERANCE + sample.rate_slack)
    checks: list[Check] = []
    checks += judge_delays(target, sample)
    if sample.all_arrived:
        checks += counts.judge_counts(target, sent, max(0, lost), stream, sample.own_drops)
        checks += _rate(target, rate, sample)
    return DirectionCertificate(
        direction=direction,
        target_s=target.delay_s,
        measured=measured,
        bare=bare,
        tolerance_s=tolerance_s(target.delay_s),
        probes=sent,
        lost=max(0, lost),
        rate=rate,
        checks=tuple(checks),
        segmentation=sample.segmentation,
        why=tuple(check.why for check in checks if check.verdict == "bad"),
        tries=Tries(sample.delay_tries, sample.rate_tries),
        taken_off_s=sample.taken_off_s,
        between=sample.between,
    )


def judge_delays(target: Impairment, sample: DirectionSample) -> Iterator[Check]:
    """Judge delay and jitter; both are not measurable with fewer than :data:`FEWEST_PACKETS` packets on time."""
    measured, bare = Spread.of(sample.delays_s), Spread.of(sample.bare_s)
    if not sample.all_arrived:
        yield Check("delay, median", target.delay_s, None, verdict="bad", why="no probe arrived")
    elif why := _too_few("delay", sample.delays_s, sample.all_arrived, sample.bare_s):
        yield Check("delay, median", target.delay_s, None, verdict="unmeasured", why=why)
    elif measured is not None and bare is not None:
        places = tuple(sample.places or range(len(sample.delays_s)))
        like = expected((target,), sample.interval_s, places)
        less, wait_s = bare, 0.0
        if sample.between == "nodes":
            less, wait_s = Spread(0.0, 0.0, 0.0), _wait_s(bare)
        yield from _delay(target.delay_s, tolerance_s(target.delay_s), measured, less, like, wait_s=wait_s)
        yield _jitter(target, sample.delays_s, sample.bare_s, like)


def _too_few(what: str, times_s: Sequence[float], arrived: int, bare_s: Sequence[float]) -> str:
    """Return why the host left too few packets to judge a time; empty if they suffice."""
    if len(times_s) < min(FEWEST_PACKETS, arrived):
        return f"{what}: the host delayed {arrived - len(times_s)} of {arrived} packets"
    if not bare_s:
        return f"{what}: the host delayed all packets of the reference path"
    return ""


def _wait_s(bare: Spread) -> float:
    """Return by how much the upper limit of a median between nodes is raised."""
    return min(_MOST_WAIT_S, _HOPS_OF_BASELINE * (bare.median - bare.min))


def judge_round_trip(there: Impairment, back: Impairment, sample: RoundTripSample) -> RoundTrip:
    """Judge the echoes over both directions of a link."""
    target = there.delay_s + back.delay_s
    limit = tolerance_s(there.delay_s) + tolerance_s(back.delay_s)
    measured, bare = Spread.of(sample.times_s), Spread.of(sample.bare_s)
    checks: tuple[Check, ...]
    if sample.why or not sample.all_arrived:
        silent = _none_came(there, back, sample.probes) < chance.MISS
        verdict = "bad" if silent and not sample.why else "inconclusive"
        why = sample.why or "no echo came back"
        checks = (Check("RTT, median", target, None, verdict=verdict, why=why),)
    elif why := _too_few("RTT", sample.times_s, sample.all_arrived, sample.bare_s):
        checks = (Check("RTT, median", target, None, verdict="unmeasured", why=why),)
    else:
        assert measured is not None and bare is not None
        like = expected((there, back), sample.interval_s, tuple(sample.places or range(len(sample.times_s))))
        # Across are more hops than inside a site, and at each a packet waits on a busy machine.
        wait_s = _wait_s(bare) if sample.between == "nodes" else 0.0
        checks = tuple(_delay(target, limit, measured, bare, like, "RTT", wait_s))
    unanswered = max(0, sample.probes - sample.all_arrived)
    return RoundTrip(target, measured, bare, limit, sample.probes, unanswered, checks, sample.between)


def _none_came(there: Impairment, back: Impairment, probes: int) -> float:
    """Return the probability (0..1) that no echo comes back; for losses in bursts, that not one run of them passes."""
    together = max(impairment.chain.mean_burst if impairment.chain else 1.0 for impairment in (there, back))
    arrives = (1.0 - there.mean_loss) * (1.0 - back.mean_loss)
    return float((1.0 - arrives) ** (probes / together)) if probes else 1.0


def _delay(
    target: float,
    limit: float,
    measured: Spread,
    bare: Spread,
    like: Expected,
    what: str = "delay",
    wait_s: float = 0.0,
) -> Iterator[Check]:
    """Judge by the minimum, which the path can reach, and the median, which it usually has; not by the maximum, which
    is due to the host's scheduler. The median may be longer by ``wait_s``, the machine's own waits at that time."""
    for word, value, low, high in (
        ("minimum", measured.min - bare.min, like.least_s, max(0.0, like.median_s + _SIGMAS * like.median_sigma_s)),
        (
            "median",
            measured.median - bare.median,
            like.median_s - _SIGMAS * like.median_sigma_s,
            like.median_s + _SIGMAS * like.median_sigma_s + wait_s,
        ),
    ):
        lowest, highest = target + low - limit, target + high + limit
        why = ""
        if not lowest <= value <= highest:
            off = value - (target + (high if value > target else low))
            side = "long" if value > highest else "short"
            why = f"{word} {what} {abs(off) * 1e6:.0f} us too {side} (tolerance {limit * 1e6:.0f} us)"
        yield Check(f"{what}, {word}", target, value, lowest, highest, _verdict(not why), why)


def _jitter(target: Impairment, delays: Sequence[float], bare: Sequence[float], like: Expected) -> Check:
    """Judge by the median absolute deviation less the baseline's, scaled to the jitter of the distribution where there
    is a target, and to the standard deviation of a normal one where the target is none."""
    if len(delays) < FEWEST_PACKETS:
        why = f"jitter: {len(delays)} probes are too few"
        return Check("jitter", target.jitter_s, None, verdict="inconclusive", why=why)
    deviation = math.sqrt(max(0.0, median_deviation(delays) ** 2 - median_deviation(bare) ** 2))
    if target.jitter_s and like.deviation_s > 0:
        scale = target.jitter_s / like.deviation_s
        slack = (_SIGMAS * like.deviation_sigma_s + _JITTER_SHARE * like.deviation_s) * scale + JITTER_TOLERANCE_S
        low, high = max(0.0, target.jitter_s - slack), target.jitter_s + slack
    else:
        scale, low = SIGMAS_OF_DEVIATION, 0.0
        high = JITTER_TOLERANCE_S + scale * (like.deviation_s + _SIGMAS * like.deviation_sigma_s)
    measured = deviation * scale
    if low <= measured <= high:
        if target.jitter_s and low == 0.0:
            would_tell = _probes_needed(target.jitter_s, len(delays), like)
            why = (
                f"jitter: {len(delays)} probes cannot distinguish {target.jitter_s * 1e6:.0f} us from none,"
                f" {counts.would(would_tell)}"
            )
            return Check("jitter", target.jitter_s, measured, low, high, "inconclusive", why, would_tell)
        return Check("jitter", target.jitter_s, measured, low, high, "ok")
    why = f"jitter {measured * 1e6:.0f} us, expected {target.jitter_s * 1e6:.0f} us"
    limit = f"at most {high * 1e6:.0f} us" if measured > high else f"at least {low * 1e6:.0f} us"
    return Check("jitter", target.jitter_s, measured, low, high, "bad", f"{why} ({limit})")


def _probes_needed(jitter_s: float, probes: int, like: Expected) -> int | None:
    """Return the probes that distinguish a jitter from none, as the deviation of a sample's statistic falls with the
    root of its size; None where even a perfect measurement of it is within the tolerance of no jitter."""
    room = (1.0 - _JITTER_SHARE) * jitter_s - JITTER_TOLERANCE_S
    if room <= 0:
        return None
    scatter = _SIGMAS * like.deviation_sigma_s * jitter_s / like.deviation_s
    wanted = math.ceil(_SCATTER_MARGIN * probes * (scatter / room) ** 2)
    return wanted if wanted <= MOST_PACKETS else None


def _rate(target: Impairment, rate: RateCertificate | None, sample: DirectionSample) -> Iterator[Check]:
    if not target.rate_bps:
        return
    if rate is None:
        verdict, why = "bad", "the rate was not measured"
        if sample.rate_why or sample.rate_unmeasured:
            verdict = "inconclusive" if sample.rate_why else "unmeasured"
            why = sample.rate_why or sample.rate_unmeasured
        yield Check("rate", target.rate_bps, None, verdict=verdict, why=why)
        return
    low, high = (1 - rate.tolerance) * rate.target_bps, (1 + rate.tolerance) * rate.target_bps
    if rate.measured_bps < low <= rate.measured_bps * (1 + sample.rate_beside):
        # Had all of it passed between the trains' packets, the fiber would have passed that much more in the same time.
        why = (
            f"rate: other traffic crossed the fiber meanwhile, {sample.rate_beside:.0%} of the packet trains' bytes;"
            " certify while nothing else uses the fiber"
        )
        yield Check("rate", target.rate_bps, rate.measured_bps, low, high, "inconclusive", why)
        return
    why = (
        ""
        if rate.ok
        else f"rate {rate.measured_bps / 1e6:.1f} Mb/s,"
        f" expected {rate.target_bps / 1e6:g} Mb/s within {rate.tolerance:.0%}"
    )
    yield Check("rate", rate.target_bps, rate.measured_bps, low, high, _verdict(rate.ok), why)


def _verdict(ok: bool) -> str:
    return "ok" if ok else "bad"
