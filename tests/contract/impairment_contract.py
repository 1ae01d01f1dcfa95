"""Contract of every emulator for each value of an Impairment; part of emulator_contract.py.

Intervals are two-sided, with a false-alarm rate of one in a million runs. Delays are judged by their minimum and
median, and jitter and reordering are longer than the stalls of a busy CPU: no measurement is repeated.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import socket
import statistics
import threading
from collections.abc import Sequence
from typing import ClassVar

import pytest
from contract.measuring import (
    HEADERS_BYTES,
    Arrival,
    Start,
    Z,
    autocorrelation,
    counter,
    distance,
    drawn,
    probe,
    runs_of_missing,
    send,
    undelayed,
    within_chance,
)
from netns.fiberd_lab import Lab, run

from testbed.core.physics.impairment import GilbertElliott, Impairment
from testbed.errors import LabError
from testbed.host.emulators.emulator import Emulator

NOTHING = Impairment()
NOISE_S = 0.4e-3  # of a median delay, on one CPU
IMPOSSIBLE = {
    "loss": Impairment(loss=1.3),
    "jitter": Impairment(delay_s=1e-3, jitter_s=1e-3),
    "distribution": Impairment(delay_s=1e-3, jitter_s=1e-6, jitter_distribution="cauchy"),
    "correlation": Impairment(delay_s=1e-3, jitter_correlation=0.5),
    "jitter_reorders": Impairment(delay_s=1e-3, jitter_reorders=True),
    "burst": Impairment(loss=0.1, burst=0.5),
    "r": Impairment(p=0.1),
    "h": Impairment(p=0.1, r=0.5, h=-0.1),
    "corrupt": Impairment(corrupt=-1e-9),
    "corrupt_survives": Impairment(corrupt_survives=True),
    "duplicate": Impairment(duplicate=float("nan")),
    "reorder": Impairment(delay_s=1e-3, reorder=0.1),
    "overhead": Impairment(rate_bps=1e6, overhead_bytes=100_000),
    "delay": Impairment(delay_s=-1.0),
    "rate": Impairment(rate_bps=3.0),
    "queue": Impairment(queue_bytes=-1),
    "largest": Impairment(largest_bytes=20),
}


def mean_delay_s(arrived: Sequence[Arrival]) -> float:
    return statistics.fmean(arrival.delay_s for arrival in arrived)


def numbers(arrived: Sequence[Arrival]) -> list[int]:
    return [arrival.number for arrival in arrived]


def spacing_s(arrived: Sequence[Arrival], window: int = 10) -> float:
    """Return the time between arrivals as the median of the means over windows, which a stall in a few of them does not
    change. Omits the first 50 packets, in which a token bucket sends a burst."""
    ends = [arrival.at_s for arrival in arrived[50::window]]
    return statistics.median((later - earlier) / window for earlier, later in itertools.pairwise(ends))


def begin(lab: Lab, start: Start, there: Impairment, back: Impairment = NOTHING) -> Emulator:
    """Start an emulator with ``there`` toward b and ``back`` toward a, on a link with resolved neighbours. Otherwise
    the neighbour request may be lost, and a second's worth of packets with it."""
    emulator = start(lab, NOTHING, NOTHING)
    lab.rtts_s(2)
    emulator.set({"l0:b": there, "l0:a": back})
    return emulator


class ImpairmentContract:
    """Requires the fixtures ``lab`` and ``start(lab, there, back) -> Emulator``."""

    lacks: ClassVar[frozenset[str]] = frozenset()
    """Parameters, by the names that users write, that this emulator lacks and must refuse explicitly."""

    # ---- overhead

    @pytest.mark.parametrize("overhead", [0, 24, 200])
    @pytest.mark.timing("throughput within percents")
    def test_each_packet_costs_its_overhead_at_the_rate(self, lab: Lab, start: Start, overhead: int) -> None:
        rate, size = 1e6, 64
        begin(lab, start, Impairment(rate_bps=rate, overhead_bytes=overhead))
        arrived = probe(lab, 400, size=size, at_once=400, pause_s=0)
        assert numbers(arrived) == list(range(400))
        expected = (HEADERS_BYTES + size + overhead) * 8 / rate
        assert spacing_s(arrived) == pytest.approx(expected, rel=0.03), f"{spacing_s(arrived)} s"

    # ---- jitter

    @pytest.mark.parametrize(
        "distribution",
        ["normal", "pareto", *(pytest.param(it, marks=pytest.mark.thorough) for it in ("uniform", "paretonormal"))],
    )
    @pytest.mark.timing("a distribution of delays")
    def test_jitter_has_its_distribution(self, lab: Lab, start: Start, distribution: str) -> None:
        delay, jitter, count = 120e-3, 25e-3, 3000
        emulator = begin(lab, start, Impairment(delay_s=delay))
        bare = min(arrival.delay_s for arrival in probe(lab, 200))
        assert delay <= bare < delay + NOISE_S
        emulator.set(
            {"l0:b": Impairment(delay, jitter_s=jitter, jitter_distribution=distribution, jitter_reorders=True)}
        )
        arrived = probe(lab, count, at_once=5, pause_s=1e-3)
        assert sorted(numbers(arrived)) == list(range(count))
        assert numbers(arrived) != list(range(count))
        measured = sorted((arrival.delay_s - bare) / jitter for arrival in undelayed(arrived))
        count = len(measured)
        assert count > 500, f"the host delayed all but {count} packets"
        expected = drawn(distribution, 100_000)
        noise = NOISE_S / jitter
        # Without the outer twentieths, where other work of the machine appears. The host makes packets late, never
        # early, which moves a mean; the median of a sample scatters by up to 1.26 of the mean's deviation.
        inner, as_drawn = (values[len(values) // 20 : -len(values) // 20] for values in (measured, expected))
        middle, spread = statistics.median(as_drawn), statistics.pstdev(as_drawn)
        assert statistics.median(inner) == pytest.approx(middle, abs=1.26 * Z * spread / math.sqrt(count) + noise)
        assert statistics.pstdev(inner) == pytest.approx(spread, rel=0.15)
        assert measured[0] > expected[0] - noise
        # Smirnov's two-sample bound at 1e-6, plus the effect of noise at the greatest density, which is pareto's.
        assert distance(measured, expected) < 2.69 / math.sqrt(count) + (0.12 if "pareto" in distribution else 0.05)

    def test_jitter_keeps_the_order_at_any_rate(self, lab: Lab, start: Start) -> None:
        begin(lab, start, Impairment(delay_s=10e-3, jitter_s=2e-3))
        arrived = probe(lab, 4000, at_once=40, pause_s=1e-3)
        assert numbers(arrived) == list(range(4000))
        delays = [arrival.delay_s for arrival in arrived]
        assert min(delays) > 2e-3  # the distribution ends at 4 of the jitter
        assert max(delays) - min(delays) > 2e-3

    @pytest.mark.timing("a share of packets overtaken")
    def test_jitter_reorders_where_asked(self, lab: Lab, start: Start) -> None:
        begin(lab, start, Impairment(delay_s=10e-3, jitter_s=2e-3, jitter_reorders=True))
        arrived = probe(lab, 1000, at_once=10, pause_s=1e-3)
        assert sorted(numbers(arrived)) == list(range(1000))
        overtaken = sum(1 for one, other in itertools.pairwise(arrived) if one.number > other.number)
        assert overtaken > 100

    @pytest.mark.timing("delays of single packets")
    def test_jitter_changes_to_none_and_to_order_again(self, lab: Lab, start: Start) -> None:
        jittered = Impairment(delay_s=10e-3, jitter_s=2e-3, jitter_reorders=True)
        emulator = begin(lab, start, jittered)
        emulator.set({"l0:b": dataclasses.replace(jittered, jitter_reorders=False)})
        assert numbers(probe(lab, 1000, at_once=10, pause_s=1e-3)) == list(range(1000))
        emulator.set({"l0:b": Impairment(delay_s=10e-3)})
        arrived = probe(lab, 500)
        assert numbers(arrived) == list(range(500))
        assert min(arrival.delay_s for arrival in arrived) >= 10e-3
        assert statistics.median(arrival.delay_s for arrival in arrived) < 10e-3 + NOISE_S

    @pytest.mark.timing("a correlation of delays")
    def test_jitter_is_correlated_as_asked(self, lab: Lab, start: Start) -> None:
        correlation, jitter, count = 0.8, 12e-3, 2000
        asked = Impairment(
            20e-3, jitter_s=jitter, jitter_distribution="uniform", jitter_correlation=correlation, jitter_reorders=True
        )
        if "correlation" in self.lacks:
            emulator = begin(lab, start, Impairment(delay_s=1e-3))
            self._refuses(lab, emulator, asked, "correlation")
            return
        begin(lab, start, asked)
        arrived = sorted(probe(lab, count, at_once=5, pause_s=1e-3), key=lambda arrival: arrival.number)
        # Medians over batches of 20 ms: a stall delays a batch as a whole, which is correlation.
        batches = [[arrival.delay_s for arrival in arrived[first : first + 100]] for first in range(0, count, 100)]
        assert statistics.median(map(autocorrelation, batches)) == pytest.approx(correlation, abs=0.1)
        # x = c x + (1 - c) u has the variance of u times (1 - c) / (1 + c)
        narrower = math.sqrt((1 - correlation) / (1 + correlation))
        spread = statistics.median(map(statistics.pstdev, batches))
        assert spread == pytest.approx(jitter / math.sqrt(3) * narrower, rel=0.2)

    # ---- reordering

    @pytest.mark.timing("delays of single packets")
    def test_reorder_holds_its_share_back_and_sends_nothing_early(self, lab: Lab, start: Start) -> None:
        delay, share, by, count = 3e-3, 0.05, 200e-3, 4000
        emulator = begin(lab, start, Impairment(delay_s=delay, reorder=share, reorder_by_s=by))
        before = emulator.stats()[0].held_back
        arrived = probe(lab, count, at_once=4, pause_s=1e-3)
        assert sorted(numbers(arrived)) == list(range(count))
        assert min(arrival.delay_s for arrival in arrived) >= delay
        held = [arrival for arrival in arrived if arrival.delay_s > delay + by - 1e-6]
        others = [arrival for arrival in arrived if arrival.delay_s < delay + by / 2]
        assert within_chance(len(held), count, share), f"{len(held)} held back"
        assert within_chance(len(others), count, 1 - share), f"{len(others)} not"
        assert numbers(others) == sorted(numbers(others))
        overtakers = sum(1 for one, other in itertools.pairwise(arrived) if one.number > other.number)
        assert overtakers > 0.5 * len(held)
        if before is not None:
            assert (emulator.stats()[0].held_back or 0) - before == pytest.approx(len(held), abs=count * 0.001)

    @pytest.mark.timing("delays of single packets")
    def test_reorder_goes_together_with_jitter(self, lab: Lab, start: Start) -> None:
        delay, jitter, share, by, count = 20e-3, 10e-3, 0.2, 200e-3, 2000
        asked = Impairment(
            delay, jitter_s=jitter, jitter_distribution="uniform", jitter_reorders=True, reorder=share, reorder_by_s=by
        )
        begin(lab, start, asked)
        arrived = probe(lab, count, at_once=4, pause_s=1e-3)
        held = [arrival.delay_s for arrival in arrived if arrival.delay_s > delay + by / 2]
        others = [arrival.delay_s for arrival in arrived if arrival.delay_s <= delay + by / 2]
        assert within_chance(len(held), count, share), f"{len(held)} held back"
        for delays, mean in ((others, delay), (held, delay + by)):
            assert min(delays) >= mean - jitter
            assert statistics.median(delays) == pytest.approx(mean, abs=0.2 * jitter + NOISE_S)
            assert statistics.pstdev(sorted(delays)[: int(0.95 * len(delays))]) > 0.4 * jitter

    # ---- loss

    def test_loss_in_bursts(self, lab: Lab, start: Start) -> None:
        loss, burst, count = 0.1, 4.0, 20_000
        emulator = begin(lab, start, Impairment(loss=loss, burst=burst))
        chain = GilbertElliott.of_means(loss, burst)
        before = emulator.stats()[0]
        arrived = probe(lab, count, at_once=20, pause_s=1e-3)
        lost = count - len(arrived)
        spread = (1 + chain.correlation) / (1 - chain.correlation)
        assert within_chance(lost, count, loss, spread), f"{lost} of {count}"
        runs = runs_of_missing(arrived, count)
        deviation = math.sqrt(1 - chain.r) / chain.r / math.sqrt(len(runs))
        assert abs(statistics.fmean(runs) - burst) < Z * deviation, f"{statistics.fmean(runs):.2f} in a row"
        after = emulator.stats()[0]
        dropped, delivered = after.drops["loss"] - before.drops["loss"], after.packets - before.packets
        foreign = dropped + delivered - count  # packets of the kernel's own, such as neighbor solicitations
        assert 0 <= dropped - lost <= foreign, f"{dropped} dropped, {lost} missing, {foreign} foreign packets"

    def test_loss_by_its_chain(self, lab: Lab, start: Start) -> None:
        chain, count = GilbertElliott(p=0.02, r=0.1, h=0.5, k=0.99), 20_000
        begin(lab, start, Impairment(p=chain.p, r=chain.r, h=chain.h, k=chain.k))
        arrived = probe(lab, count, at_once=20, pause_s=1e-3)
        came = set(numbers(arrived))
        lost = [number not in came for number in range(count)]
        mean = chain.mean_loss
        # Two losses j packets apart have the covariance c x correlation^j.
        c = (chain.k - chain.h) ** 2 * chain.bad * (1 - chain.bad)
        spread = 1 + 2 * c * chain.correlation / (1 - chain.correlation) / (mean * (1 - mean))
        assert within_chance(sum(lost), count, mean, spread), f"{sum(lost)} of {count}"
        again = sum(one and other for one, other in itertools.pairwise(lost)) / sum(lost)
        expected = mean + c * chain.correlation / mean
        # Bounded by bursts as independent samples: one in 1 / (p + r) packets.
        independent = sum(lost) * (1 - chain.correlation)
        assert abs(again - expected) < Z * math.sqrt(expected * (1 - expected) / independent), f"{again:.3f}"

    def test_loss_changes_between_its_kinds_in_one_change(self, lab: Lab, start: Start) -> None:
        count = 3000
        emulator = begin(lab, start, Impairment(loss=0.3))
        for asked, spread in (
            (Impairment(loss=0.2, burst=3), 6.0),
            (Impairment(loss=0.1), 1.0),
            (Impairment(p=0.5, r=0.5, h=1.0, k=0.6), 1.0),  # neighbours' states are independent
            (NOTHING, 1.0),
        ):
            emulator.set({"l0:b": asked})
            lost = count - len(probe(lab, count, at_once=20, pause_s=1e-3))
            assert within_chance(lost, count, asked.mean_loss, spread) and (asked.mean_loss or not lost), f"{lost}"

    # ---- corruption

    def test_what_is_corrupted_is_lost_and_never_delivered_wrong(self, lab: Lab, start: Start) -> None:
        count = 6000
        asked = Impairment(loss=0.05, corrupt=0.1)
        emulator = begin(lab, start, asked)
        before = emulator.stats()[0].drops
        arrived = probe(lab, count, at_once=20, pause_s=1e-3, unchecked=True)
        lost = count - len(arrived)
        assert within_chance(lost, count, asked.mean_loss), f"{lost} of {count}"
        assert not any(arrival.wrong_bits for arrival in arrived)
        after = emulator.stats()[0].drops
        counted = sum(after[cause] - before[cause] for cause in ("loss", "corrupt"))
        assert counted == pytest.approx(lost, abs=2)

    def test_bursts_and_corruption_lose_together(self, lab: Lab, start: Start) -> None:
        count = 15_000
        asked = Impairment(loss=0.1, burst=4, corrupt=0.1)
        begin(lab, start, asked)
        arrived = probe(lab, count, at_once=20, pause_s=1e-3)
        lost = count - len(arrived)
        assert within_chance(lost, count, asked.mean_loss, 6.0), f"{lost} of {count}"
        # A lost packet is followed by another in a burst (3 of 4), or by chance: far from independence (0.19).
        came = set(numbers(arrived))
        pairs = sum(1 for number in range(count - 1) if not {number, number + 1} & came)
        assert 0.3 < pairs / lost < 0.65

    def test_a_surviving_flip_is_one_bit_anywhere(self, lab: Lab, start: Start) -> None:
        count, size, corrupt = 3000, 1400, 0.3
        emulator = begin(lab, start, Impairment(corrupt=corrupt, corrupt_survives=True))
        before = emulator.stats()[0].corrupted
        arrived = probe(lab, count, size=size, at_once=10, pause_s=1e-3, unchecked=True)
        wrong = [arrival for arrival in arrived if arrival.wrong_bits]
        # A flip in the headers loses the packet, or leaves no trace.
        assert count - len(arrived) < count * corrupt * 0.12
        assert within_chance(len(wrong), count, corrupt * size / (size + HEADERS_BYTES)), f"{len(wrong)} flipped"
        single = [arrival.wrong_bits[0] for arrival in wrong if len(arrival.wrong_bits) == 1]
        assert len(wrong) - len(single) < 10  # a flip in UDP's length cuts the datagram short
        places = sorted(bit // 8 / size for bit in single)
        assert distance(places, [(it + 0.5) / 1000 for it in range(1000)]) < 2.69 / math.sqrt(len(places)) + 0.01
        if before is not None:
            assert within_chance((emulator.stats()[0].corrupted or 0) - before, count, corrupt)

    def test_udp_sees_a_surviving_flip_and_delivers_nothing_wrong(self, lab: Lab, start: Start) -> None:
        count, corrupt = 2000, 0.3
        begin(lab, start, Impairment(corrupt=corrupt, corrupt_survives=True))
        before = counter(lab, lab.b, "Udp", "InCsumErrors")
        arrived = probe(lab, count, size=1400, at_once=10, pause_s=1e-3)
        assert not any(arrival.wrong_bits for arrival in arrived)
        seen = counter(lab, lab.b, "Udp", "InCsumErrors") - before
        # Flips in the Ethernet and IP headers, 34 bytes of 1442, never reach UDP.
        assert within_chance(seen, count, corrupt * 1408 / 1442), f"{seen} wrong checksums of {count}"

    def test_flips_are_of_segments_and_of_their_payload(self, lab: Lab, start: Start) -> None:
        count, segments, corrupt = 100, 20, 0.2
        begin(lab, start, Impairment(corrupt=corrupt, corrupt_survives=True))
        before = counter(lab, lab.b, "Udp", "InCsumErrors")
        arrived = send(lab, count, segments=segments, pause_s=0.002)
        seen = counter(lab, lab.b, "Udp", "InCsumErrors") - before
        assert within_chance(seen, count * segments, corrupt * 1408 / 1442), f"{seen} wrong checksums"
        assert len(arrived) <= count * segments - seen

    def test_tcp_mends_a_surviving_flip(self, lab: Lab, start: Start) -> None:
        asked = Impairment(delay_s=200e-6, corrupt=0.02, corrupt_survives=True)
        begin(lab, start, asked, Impairment(delay_s=200e-6))
        wrong = counter(lab, lab.b, "Tcp", "InCsumErrors")
        again = counter(lab, lab.a, "Tcp", "RetransSegs")
        sent = bytes(range(251)) * 6000  # 1.5 MB: about a thousand segments
        assert hashlib.sha256(self._stream(lab, sent)).digest() == hashlib.sha256(sent).digest()
        assert counter(lab, lab.b, "Tcp", "InCsumErrors") > wrong
        assert counter(lab, lab.a, "Tcp", "RetransSegs") > again

    # ---- duplication

    def test_duplicates_come_twice_and_never_more(self, lab: Lab, start: Start) -> None:
        count, share = 4000, 0.1
        emulator = begin(lab, start, Impairment(delay_s=1e-3, duplicate=share))
        before = emulator.stats()[0].duplicated
        times = self._times(probe(lab, count, at_once=10, pause_s=1e-3), count)
        assert set(times) == {1, 2}
        assert within_chance(times.count(2), count, share), f"{times.count(2)} twice"
        if before is not None:
            assert (emulator.stats()[0].duplicated or 0) - before == pytest.approx(times.count(2), abs=4)

    @pytest.mark.parametrize("lost_by", ["loss", "corrupt"])
    def test_what_is_lost_is_not_doubled(self, lab: Lab, start: Start, lost_by: str) -> None:
        """Otherwise a loss of 30 % would measure as 27 %: 7 standard deviations at this packet count."""
        count, loss, share = 12000, 0.3, 0.1
        begin(lab, start, Impairment(**{lost_by: loss}, duplicate=share))  # type: ignore[arg-type]
        times = self._times(probe(lab, count, at_once=10, pause_s=1e-3), count)
        assert set(times) == {0, 1, 2}
        assert within_chance(times.count(0), count, loss), f"{times.count(0)} lost"
        assert within_chance(times.count(2), count, (1 - loss) * share), f"{times.count(2)} twice"

    # ---- size

    def test_what_is_larger_vanishes_and_nobody_is_told(self, lab: Lab, start: Start) -> None:
        emulator = begin(lab, start, Impairment(delay_s=1e-3, largest_bytes=1000))
        before = emulator.stats()[0].drops["size"]

        def answered(ip_bytes: int) -> int:
            words = ("ping", "-c", "3", "-i", "0.01", "-W", "0.3", "-M", "do", "-s", str(ip_bytes - 28), "10.77.0.2")
            said = run("ip", "netns", "exec", lab.a, *words, check=False)
            assert "frag" not in said.lower(), said
            return said.count("time=")

        assert [answered(size) for size in (999, 1000, 1001, 1500)] == [3, 3, 0, 0]
        assert emulator.stats()[0].drops["size"] - before == 6
        emulator.set({"l0:b": Impairment(delay_s=1e-3, largest_bytes=1200)})
        assert [answered(size) for size in (1200, 1201)] == [3, 0]
        emulator.set({"l0:b": Impairment(delay_s=1e-3)})
        assert answered(1500) == 3

    def test_a_super_packet_is_as_large_as_its_segments(self, lab: Lab, start: Start) -> None:
        emulator = begin(lab, start, Impairment(delay_s=1e-3, largest_bytes=1000))
        before = emulator.stats()[0].drops["size"]
        assert len(send(lab, 20, segments=20, size=972)) == 400
        assert send(lab, 20, segments=20, size=973) == []
        assert emulator.stats()[0].drops["size"] - before == 400

    # ---- together

    @pytest.mark.timing("delays and counts of both directions")
    def test_directions_have_their_own_impairments(self, lab: Lab, start: Start) -> None:
        count = 2000
        back = Impairment(delay_s=10e-3, jitter_s=2e-3, jitter_distribution="uniform")
        begin(lab, start, Impairment(delay_s=1e-3, loss=0.3), back)
        there = probe(lab, count, at_once=5, pause_s=1e-3)
        assert within_chance(count - len(there), count, 0.3)
        assert statistics.median(arrival.delay_s for arrival in there) == pytest.approx(1e-3, abs=NOISE_S)
        here = probe(lab, count, at_once=1, pause_s=5e-4, backwards=True)
        assert numbers(here) == list(range(count))
        assert min(arrival.delay_s for arrival in here) >= 8e-3
        assert mean_delay_s(here) > 9.5e-3

    @pytest.mark.thorough
    def test_changing_one_value_keeps_all_others(self, lab: Lab, start: Start) -> None:
        rate, size, count = 5e6, 1000, 1200
        chain = GilbertElliott(p=0.1, r=0.4)
        asked = Impairment(
            8e-3, rate, jitter_s=1e-3, jitter_distribution="uniform", p=chain.p, r=chain.r, queue_bytes=10**8
        )
        emulator = begin(lab, start, asked)
        emulator.set({"l0:b": dataclasses.replace(asked, overhead_bytes=124)})
        arrived = probe(lab, count, size=size, at_once=count, pause_s=0)
        spread = (1 + chain.correlation) / (1 - chain.correlation)
        assert within_chance(count - len(arrived), count, chain.mean_loss, spread)
        runs = runs_of_missing(arrived, count)
        assert abs(statistics.fmean(runs) - 2.5) < Z * math.sqrt(0.6) / 0.4 / math.sqrt(len(runs))
        assert spacing_s(arrived) == pytest.approx((HEADERS_BYTES + size + 124) * 8 / rate, rel=0.03)
        delays = [arrival.delay_s for arrival in probe(lab, 500, pause_s=3e-3)]
        assert min(delays) >= 7e-3
        assert statistics.median(delays) == pytest.approx(8e-3, abs=NOISE_S)
        assert statistics.pstdev(sorted(delays)[: int(0.95 * len(delays))]) > 0.4e-3
        emulator.set({"l0:b": dataclasses.replace(asked, p=0.0, r=0.0)})
        assert len(probe(lab, 300)) == 300

    # ---- refusals

    def test_what_is_impossible_is_refused_before_anything_is_touched(self, lab: Lab, start: Start) -> None:
        for name, wrong in IMPOSSIBLE.items():
            with pytest.raises(LabError, match=rf"l0:b: {name}\b"):
                start(lab, wrong, NOTHING)
            assert all(lab.is_up(end) for end in lab.ends()), f"{name}: the ends went down"
        qdiscs = run("tc", "-n", lab.plant, "qdisc", "show")
        assert "netem" not in qdiscs and "clsact" not in qdiscs

    def test_a_refused_change_touches_nothing(self, lab: Lab, start: Start) -> None:
        emulator = begin(lab, start, Impairment(delay_s=3e-3))
        for name, wrong in IMPOSSIBLE.items():
            # The change of the other direction is valid, and must not be applied either.
            with pytest.raises(LabError, match=rf"l0:b: {name}\b"):
                emulator.set({"l0:a": Impairment(delay_s=50e-3), "l0:b": wrong})
        answered = lab.rtts_s(10)
        assert len(answered) == 10
        assert 3e-3 <= answered[0] < 6e-3

    def test_segmented_senders_are_named(self, lab: Lab, start: Start) -> None:
        emulator = start(lab, NOTHING, NOTHING)
        assert emulator.segmented() == ()
        emulator.set({"l0:a": Impairment(loss=1e-3)})
        assert set(emulator.segmented()) <= {"l0:a"}
        emulator.set({"l0:a": NOTHING})
        assert emulator.segmented() == ()

    # ---- helpers

    @staticmethod
    def _refuses(lab: Lab, emulator: Emulator, asked: Impairment, name: str) -> None:
        with pytest.raises(LabError, match=rf"l0:b: .*\b{name}\b"):
            emulator.set({"l0:b": asked})
        lab.rtts_s(2)
        answered = lab.rtts_s(10)
        assert len(answered) == 10 and 1e-3 <= answered[0] < 3e-3

    @staticmethod
    def _times(arrived: Sequence[Arrival], count: int) -> list[int]:
        """Return how often each number arrived."""
        times = [0] * count
        for arrival in arrived:
            times[arrival.number] += 1
        return times

    @staticmethod
    def _stream(lab: Lab, data: bytes) -> bytes:
        """Write ``data`` into a TCP connection at a; return what b reads."""
        listening = lab.socket(lab.b, socket.AF_INET, socket.SOCK_STREAM)
        here = lab.socket(lab.a, socket.AF_INET, socket.SOCK_STREAM)
        with listening, here:
            listening.settimeout(20)
            here.settimeout(20)
            listening.bind(("10.77.0.2", 0))
            listening.listen(1)
            here.connect(listening.getsockname())
            there, _ = listening.accept()

            def write() -> None:
                here.sendall(data)
                here.shutdown(socket.SHUT_WR)

            writing = threading.Thread(target=write)
            with there:
                there.settimeout(20)
                writing.start()
                read = bytearray()
                while chunk := there.recv(1 << 16):
                    read += chunk
            writing.join(20)
        return bytes(read)
