"""The judge of counts: packets lost, in runs, out of order, twice or corrupted, against what chance allows.

Pure, a part of :mod:`testbed.core.certification.judge`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from testbed.core.certification import chance
from testbed.core.certification.expected import overtakable
from testbed.core.certification.link_certificate import Check
from testbed.core.physics.impairment import Impairment
from testbed.core.units import format_percent

__all__ = ["FEWEST_RUNS", "MOST_AT_ONCE", "Stream", "judge_counts", "would"]

MOST_AT_ONCE: Final = 40
"""Packets of a super-packet of a stream, at most; the host drops it as a whole."""

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
        missed: super-packets that the receiver had no buffer space for: lost by the host, not by the fiber.
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


def judge_counts(target: Impairment, sent: int, lost: int, stream: Stream | None, own_drops: int) -> Iterator[Check]:
    """Judge what was lost of ``sent`` packets, and of ``stream`` runs of losses, order, duplicates and corruption.

    ``own_drops`` are the emulator's own, by its counters. ``stream`` is None where no full-sized packets were sent.
    """
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
    # The host dropped these before or after the fiber, so they do not count.
    excused = min(lost, missed + own_drops)
    all_lost, lost_by_fiber = lost, max(0, lost - MOST_AT_ONCE * (missed + own_drops))
    sent, lost = sent - excused, lost - excused
    if not sent:
        return Check("loss", share, None, verdict="inconclusive", why="loss: no packet could be sent")
    allowed = chance.lost(sent, target)
    if target.corrupt_survives:  # a bit flipped in the headers still loses the packet
        allowed = chance.Interval(
            allowed.low, min(sent, allowed.high + chance.binomial(sent, target.corrupt * _HEADERS_SHARE).high)
        )
    measured, low, high = lost / sent, allowed.low / sent, allowed.high / sent
    if lost not in allowed:
        why = f"{lost} of {sent} packets lost, expected {_counted(sent * share)}"
        # Each drop may have been a super-packet that the fiber carried whole.
        if excused and lost_by_fiber <= allowed.high and all_lost >= allowed.low:
            why = f"loss: {why}, in addition to {own_drops + missed} super-packets that the host dropped"
            return Check("loss", share, None, verdict="unmeasured", why=why)
        return Check("loss", share, measured, low, high, "bad", why)
    if share and allowed.low == 0:
        would_tell = chance.needed(target)
        why = (
            f"loss: {sent} packets cannot distinguish {_percent(share)} from none, {would(would_tell)};"
            f" the detection limit is {_percent(chance.would_show(sent, allowed.high))}"
        )
        return Check("loss", share, measured, low, high, "inconclusive", why, would_tell)
    return Check("loss", share, measured, low, high, "ok")


def _burst(target: Impairment, runs: Sequence[int]) -> Check:
    """Judge the mean length of the runs of lost packets; independent losses form runs too, of 1 / (1 - loss)."""
    goes_on = chance.continuing(target)
    mean = sum(runs) / len(runs) if runs else None
    if goes_on is None:
        why = "burst: with losses in the good state too, the length of a run has no expected value"
        return Check("burst", None, mean, verdict="inconclusive", why=why)
    should = 1.0 / (1.0 - goes_on) if goes_on < 1 else math.inf
    # A run begins with a packet that is lost after one that is not.
    would_tell = math.ceil(FEWEST_RUNS / (target.mean_loss * (1.0 - goes_on))) if goes_on < 1 else None
    if mean is None:
        why = f"burst: no packet was lost, so there was none, {would(would_tell)}"
        return Check("burst", should, None, verdict="inconclusive", why=why, would_tell=would_tell)
    allowed = chance.runs(len(runs), goes_on)
    if mean not in allowed:
        why = f"mean run of lost packets {mean:.3g}, expected {should:.3g}"
        return Check("burst", should, mean, allowed.low, allowed.high, "bad", why)
    if len(runs) < FEWEST_RUNS:
        why = f"burst: {len(runs)} runs of lost packets are too few, {would(would_tell)}"
        return Check("burst", should, mean, allowed.low, allowed.high, "inconclusive", why, would_tell)
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
    interval = chance.binomial(count, share)
    low, high = allowed or (interval.low, interval.high)
    measured = hit / count
    if not low <= hit <= high:
        why = f"{hit} of {count} packets {how}, expected {_counted(count * share)}"
        return Check(what, share, measured, low / count, high / count, "bad", why)
    if share and not low:
        would_tell = chance.needed_shares(share)
        why = f"{what}: {count} packets cannot distinguish {_percent(share)} from none, {would(would_tell)}"
        return Check(what, share, measured, low / count, high / count, "inconclusive", why, would_tell)
    return Check(what, share, measured, low / count, high / count, "ok")


def _counted(number: float) -> str:
    return f"{number:.0f}" if number >= 10 or number == round(number) else f"{number:.2g}"


def would(packets: int | None) -> str:
    return "and no number would" if packets is None else f"{packets} would"


def _percent(share: float) -> str:
    return format_percent(share) if share >= 1e-4 else f"{share:.2g}".replace("e-0", "e-")
