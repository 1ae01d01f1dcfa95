"""The judge of certificates: compare what was measured of a direction with its target, with a verdict per quantity.

Pure. A quantity is ``ok``, ``bad``, or ``inconclusive``: the sample was too small, and the sentence gives the detection
limit. Nothing passes without a measurement. docs/certificate.md justifies each tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from testbed.core.certification import chance
from testbed.core.certification.expected import Expected, expected, overtakable
from testbed.core.certification.link_certificate import (
    RATE_TOLERANCE,
    Check,
    DirectionCertificate,
    RateCertificate,
    RoundTrip,
    tolerance_s,
)
from testbed.core.certification.spread import SIGMAS_OF_DEVIATION, Spread, median_deviation
from testbed.core.physics.impairment import Impairment

__all__ = ["DirectionSample", "RoundTripSample", "Stream", "judge_direction", "judge_round_trip"]

JITTER_TOLERANCE_S: Final = 50e-6
"""Tolerated jitter of a direction without jitter, beyond the baseline's: wakeups of the host, not the fiber's."""

_JITTER_SHARE: Final = 0.05
_SIGMAS: Final = 4.9
"""A two-sided 1e-6 for a normal distribution: a thousand certifications do not fail by chance."""

_HOPS_OF_BASELINE: Final = 2.0
"""Hops from node to node over those of the baseline path: two bridges and two routers more. On a busy machine a packet
waits at each, by what the baseline's median exceeds its minimum."""

FEWEST_PROBES: Final = 20
"""Delays needed for a meaningful median absolute deviation."""
FEWEST_RUNS: Final = 20
"""Runs of lost packets needed for a meaningful mean length."""

_HEADERS_SHARE: Final = 0.05
"""Upper limit on the headers' share of a full frame; a bit flipped there loses the packet instead of corrupting it."""


@dataclass(frozen=True)
class Stream:
    """Full-sized packets through one direction, numbered from 0.

    Attributes:
        sent: number of packets sent.
        arrived: their numbers, in the order of arrival, duplicates included.
        sent_s: when each was sent, in seconds of any clock; if empty, none counts as overtakable.
        frame_s: seconds that each takes at the rate.
        wrong: number of packets that arrived corrupted; 0 where that was not checked.
        missed: number that the receiver had no room for: lost by the measurement, not by the fiber.
    """

    sent: int
    arrived: Sequence[int]
    sent_s: Sequence[float] = ()
    frame_s: float = 0.0
    wrong: int = 0
    missed: int = 0

    def lost_runs(self) -> tuple[int, ...]:
        """Lengths of the runs of numbers that never arrived."""
        came = bytearray(self.sent)
        for number in self.arrived:
            if 0 <= number < self.sent:
                came[number] = 1
        return tuple(len(run) for run in bytes(came).split(b"\x01") if run)

    @property
    def distinct(self) -> int:
        return len(set(self.arrived))

    @property
    def late(self) -> int:
        """Packets that arrived after one with a higher number (RFC 4737, section 3.3), each once."""
        highest, late, seen = -1, 0, set()
        for number in self.arrived:
            if number < highest and number not in seen:
                late += 1
            seen.add(number)
            highest = max(highest, number)
        return late


@dataclass(frozen=True)
class DirectionSample:
    """The measurement of one direction; times in seconds, one way, first arrivals only.

    ``interval_s`` is the spacing of two small packets of the direction. ``rate_bps`` is None where no packet train gave
    a rate, and ``rate_why`` then says why. ``rate_slack`` is added to the rate's tolerance (a share). ``own_drops`` are
    packets that the emulator counts as its own failure (no room, not read in time). ``between`` and ``taken_off_s`` are
    those of :class:`DirectionCertificate`; from delays between nodes nothing is subtracted.
    """

    delays_s: Sequence[float]
    bare_s: Sequence[float]
    probes: int
    interval_s: float = 0.004
    stream: Stream | None = None
    rate_bps: float | None = None
    rate_why: str = ""
    rate_slack: float = 0.0
    segmentation: str = ""
    own_drops: int = 0
    between: str = "gateways"
    taken_off_s: float = 0.0


@dataclass(frozen=True)
class RoundTripSample:
    """Echoes that the far kernel answers; ``why`` says what prevented the measurement.

    ``bare_s`` are echoes over the baseline, or inside a site for ``between`` nodes.
    """

    times_s: Sequence[float] = ()
    bare_s: Sequence[float] = ()
    probes: int = 0
    interval_s: float = 0.004
    why: str = ""
    between: str = "gateways"


def judge_direction(direction: str, target: Impairment, sample: DirectionSample) -> DirectionCertificate:
    """Judge one direction, ``link:site``."""
    measured, bare = Spread.of(sample.delays_s), Spread.of(sample.bare_s)
    stream = sample.stream
    small_count = not target.corrupt_survives  # a flipped bit fails a small probe's checksum, which is no loss
    sent = (sample.probes if small_count else 0) + (stream.sent if stream else 0)
    lost = (sample.probes - len(sample.delays_s) if small_count else 0) + (
        stream.sent - stream.distinct if stream else 0
    )
    rate = None
    if sample.rate_bps is not None and target.rate_bps > 0:
        rate = RateCertificate(target.rate_bps, sample.rate_bps, RATE_TOLERANCE + sample.rate_slack)
    checks: list[Check] = []
    if measured is None:
        checks.append(Check("delay, median", target.delay_s, None, verdict="bad", why="no probe came through"))
    elif bare is None:
        why = "the baseline path was not measured, so the error is unknown"
        checks.append(Check("delay, median", target.delay_s, None, verdict="bad", why=why))
    else:
        like = expected((target,), sample.interval_s, len(sample.delays_s))
        less, wait_s = bare, 0.0
        if sample.between == "nodes":
            less, wait_s = Spread(0.0, 0.0, 0.0), _HOPS_OF_BASELINE * (bare.median - bare.min)
        checks += _delay(target.delay_s, tolerance_s(target.delay_s), measured, less, like, wait_s=wait_s)
        checks.append(_jitter(target, sample.delays_s, sample.bare_s, like))
        checks += _packets(target, sent, max(0, lost), stream, sample.own_drops)
    if measured is not None:
        checks += _rate(target, rate, sample.rate_why)
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
        taken_off_s=sample.taken_off_s,
        between=sample.between,
    )


def judge_round_trip(there: Impairment, back: Impairment, sample: RoundTripSample) -> RoundTrip:
    """Judge the echoes over both directions of a link."""
    target = there.delay_s + back.delay_s
    limit = tolerance_s(there.delay_s) + tolerance_s(back.delay_s)
    measured, bare = Spread.of(sample.times_s), Spread.of(sample.bare_s)
    if measured is None or bare is None:
        silent = measured is not None or _none_came(there, back, sample.probes) < chance.MISS
        verdict = "bad" if silent and not sample.why else "inconclusive"
        without = "inside a site" if sample.between == "nodes" else "over the baseline path"
        why = sample.why or ("no echo came back" if measured is None else f"no echo {without}")
        checks: tuple[Check, ...] = (Check("RTT, median", target, None, verdict=verdict, why=why),)
    else:
        like = expected((there, back), sample.interval_s, len(sample.times_s))
        checks = tuple(_delay(target, limit, measured, bare, like, "RTT"))
    unanswered = max(0, sample.probes - len(sample.times_s))
    return RoundTrip(target, measured, bare, limit, sample.probes, unanswered, checks, sample.between)


def _none_came(there: Impairment, back: Impairment, probes: int) -> float:
    """Return the probability (0..1) that no echo comes back; for losses in bursts, that not one run of them passes."""
    together = max(it.chain.mean_burst if it.chain else 1.0 for it in (there, back))
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
    if len(delays) < FEWEST_PROBES:
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
            why = f"jitter: {len(delays)} probes cannot distinguish {target.jitter_s * 1e6:.0f} us from none"
            return Check("jitter", target.jitter_s, measured, low, high, "inconclusive", why)
        return Check("jitter", target.jitter_s, measured, low, high, "ok")
    why = f"jitter {measured * 1e6:.0f} us, expected {target.jitter_s * 1e6:.0f} us"
    limit = f"at most {high * 1e6:.0f} us" if measured > high else f"at least {low * 1e6:.0f} us"
    return Check("jitter", target.jitter_s, measured, low, high, "bad", f"{why} ({limit})")


def _packets(target: Impairment, sent: int, lost: int, stream: Stream | None, own_drops: int) -> Iterator[Check]:
    yield _loss(target, sent, lost, stream.missed if stream else 0, own_drops)
    if stream is None or not stream.sent:
        for what in ("burst", "reordering", "duplication"):
            why = f"{what}: no full-sized packets could be sent"
            yield Check(what, None, None, verdict="inconclusive", why=why)
        return
    if target.mean_loss:  # otherwise any loss at all is bad already
        yield _burst(target, stream.lost_runs())
    yield _reordering(target, stream)
    arrived = stream.distinct
    yield _share("duplication", "duplicated", target.duplicate, len(stream.arrived) - arrived, arrived)
    if target.corrupt_survives:
        allowed = chance.binomial(arrived, target.corrupt)
        low = chance.binomial(arrived, target.corrupt * (1.0 - _HEADERS_SHARE)).low
        yield _share("corruption", "corrupted", target.corrupt, stream.wrong, arrived, (low, allowed.high))


def _loss(target: Impairment, sent: int, lost: int, missed: int, own_drops: int) -> Check:
    share = target.mean_loss
    if not sent:
        return Check("loss", share, None, verdict="inconclusive", why="loss: no packet could be sent")
    if missed:
        why = f"loss: this machine was too slow to receive {missed} of {sent} packets, so the loss is unknown"
        return Check("loss", share, None, verdict="inconclusive", why=why)
    allowed = chance.lost(sent, target)
    if target.corrupt_survives:  # a bit flipped in the headers still loses the packet
        allowed = chance.Interval(
            allowed.low, min(sent, allowed.high + chance.binomial(sent, target.corrupt * _HEADERS_SHARE).high)
        )
    measured, low, high = lost / sent, allowed.low / sent, allowed.high / sent
    if lost not in allowed:
        why = f"{lost} of {sent} packets lost, expected {_counted(sent * share)}"
        if own_drops:
            why += f"; the emulator reports {own_drops} drops of its own"
        return Check("loss", share, measured, low, high, "bad", why)
    if share and allowed.low == 0:
        why = (
            f"loss: {sent} packets cannot distinguish {_percent(share)} from none;"
            f" the detection limit is {_percent(chance.would_show(sent, allowed.high))}"
        )
        return Check("loss", share, measured, low, high, "inconclusive", why)
    return Check("loss", share, measured, low, high, "ok")


def _burst(target: Impairment, runs: Sequence[int]) -> Check:
    """Judge the mean length of the runs of lost packets; independent losses form runs too, of 1 / (1 - loss)."""
    goes_on = chance.continuing(target)
    mean = sum(runs) / len(runs) if runs else None
    if goes_on is None:
        why = "burst: with losses in the good state too, the length of a run has no expected value"
        return Check("burst", None, mean, verdict="inconclusive", why=why)
    should = 1.0 / (1.0 - goes_on) if goes_on < 1 else math.inf
    if mean is None:
        return Check("burst", should, None, verdict="inconclusive", why="burst: no packet was lost, so there was none")
    allowed = chance.runs(len(runs), goes_on)
    if mean not in allowed:
        why = f"mean run of lost packets {mean:.3g}, expected {should:.3g}"
        return Check("burst", should, mean, allowed.low, allowed.high, "bad", why)
    if len(runs) < FEWEST_RUNS:
        why = f"burst: {len(runs)} runs of lost packets are too few"
        return Check("burst", should, mean, allowed.low, allowed.high, "inconclusive", why)
    return Check("burst", should, mean, allowed.low, allowed.high, "ok")


def _reordering(target: Impairment, stream: Stream) -> Check:
    arrived = stream.distinct
    if target.jitter_reorders:
        measured = stream.late / arrived if arrived else None
        why = "reordering: jitter that reorders may cause any share of it"
        return Check("reordering", None, measured, verdict="inconclusive", why=why)
    share = target.reorder
    if share:
        share *= overtakable(stream.sent_s, stream.frame_s, target.reorder_by_s)
        if not share:
            why = "reordering: the packets were too far apart to overtake a delayed one"
            return Check("reordering", target.reorder, None, verdict="inconclusive", why=why)
    return _share("reordering", "reordered", share, stream.late, arrived)


def _share(
    what: str, how: str, share: float, hit: int, count: int, allowed: tuple[float, float] | None = None
) -> Check:
    """Judge a share of the packets that arrived; a target of none allows none."""
    if not count:
        return Check(what, share, None, verdict="inconclusive", why=f"{what}: no full-sized packet arrived")
    found = chance.binomial(count, share)
    low, high = allowed or (found.low, found.high)
    measured = hit / count
    if not low <= hit <= high:
        why = f"{hit} of {count} packets {how}, expected {_counted(count * share)}"
        return Check(what, share, measured, low / count, high / count, "bad", why)
    if share and not low:
        why = f"{what}: {count} packets cannot distinguish {_percent(share)} from none"
        return Check(what, share, measured, low / count, high / count, "inconclusive", why)
    return Check(what, share, measured, low / count, high / count, "ok")


def _rate(target: Impairment, rate: RateCertificate | None, why_not: str) -> Iterator[Check]:
    if not target.rate_bps:
        return
    if rate is None:
        verdict, why = ("inconclusive", why_not) if why_not else ("bad", "the rate was not measured")
        yield Check("rate", target.rate_bps, None, verdict=verdict, why=why)
        return
    low, high = (1 - rate.tolerance) * rate.target_bps, (1 + rate.tolerance) * rate.target_bps
    why = (
        ""
        if rate.ok
        else f"rate {rate.measured_bps / 1e6:.1f} Mb/s,"
        f" expected {rate.target_bps / 1e6:g} Mb/s within {rate.tolerance:.0%}"
    )
    yield Check("rate", rate.target_bps, rate.measured_bps, low, high, _verdict(rate.ok), why)


def _verdict(ok: bool) -> str:
    return "ok" if ok else "bad"


def _counted(number: float) -> str:
    return f"{number:.0f}" if number >= 10 or number == round(number) else f"{number:.2g}"


def _percent(share: float) -> str:
    return f"{share * 100:.2g} %" if share >= 1e-4 else f"{share:.2g}".replace("e-0", "e-")
