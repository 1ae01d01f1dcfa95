"""The judge of certificates on samples made up here: what is as it was to be passes, each single wrong thing fails by
its name, and what too few packets cannot tell is said to be untold. The samples come of a small fiber of packets drawn
here, which shares no code with the judge."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from typing import Any

import pytest
from builders.impairments import impaired
from builders.inputs import by_input
from builders.tables import table

from testbed.core.certification.certificate import Certificate, ConcurrentFault, Headroom
from testbed.core.certification.judge import DirectionSample, RoundTripSample, Stream, judge_direction, judge_round_trip
from testbed.core.certification.link_certificate import LinkCertificate
from testbed.core.physics.impairment import Impairment

BARE_S = (18e-6, 20e-6, 21e-6, 22e-6, 60e-6)
HEALTHY = Impairment(delay_s=200e-6, rate_bps=0.8e9)
PROBES = 200


def normal(rng: random.Random) -> float:
    return max(-4.0, min(4.0, rng.gauss(0.0, 1.0)))


def uniform(rng: random.Random) -> float:
    return rng.uniform(-1.0, 1.0)


def pareto(rng: random.Random) -> float:
    return min(4.0, (rng.paretovariate(3.0) - 1.5) / math.sqrt(0.75))


SHAPES = {"normal": normal, "uniform": uniform, "pareto": pareto}


def doing(words: str) -> Impairment:
    """Return a fiber that is healthy except for ``words``; ``unlimited`` is one without a rate."""
    return replace(HEALTHY, rate_bps=0.0) if words == "unlimited" else impaired(words, HEALTHY)


def measured(
    words: str = "",
    *,
    packets: int = 4000,
    probes: int = PROBES,
    seed: int = 1,
    shift_s: float = 0.0,
    **changes: Any,
) -> DirectionSample:
    """What probing sees of a fiber that does ``words``, packet by packet."""
    does = doing(words)
    rng = random.Random(seed)
    shape = SHAPES[does.jitter_distribution]
    bare = [rng.choice(BARE_S) for _ in range(probes)]
    delays = [base + does.delay_s + shift_s + (does.jitter_s * shape(rng) if does.jitter_s else 0.0) for base in bare]
    bad = False
    arrivals: list[tuple[float, int]] = []
    wrong = 0
    for number in range(packets):
        if does.burst:
            r = 1 / does.burst
            p = does.loss * r / (1 - does.loss)
            lost, bad = bad, rng.random() >= r if bad else rng.random() < p
        else:
            lost = rng.random() < does.loss
        flipped = rng.random() < does.corrupt
        if lost or (flipped and not does.corrupt_survives):
            continue
        wrong += flipped
        arrival_s = number * 30e-6 + (does.reorder_by_s if rng.random() < does.reorder else 0.0)
        arrivals += [(arrival_s, number)] * (1 + (rng.random() < does.duplicate))
    order, sent_s = [number for _, number in sorted(arrivals)], [number * 30e-6 for number in range(packets)]
    stream = Stream(packets, order, sent_s, 15e-6, wrong)
    sample = DirectionSample(delays, BARE_S * 10, probes, stream=stream, rate_bps=does.rate_bps or 9e9)
    return replace(sample, **changes)


HEALTHY_SAMPLE = measured()


def verdict(asked: str, sample: DirectionSample):
    return judge_direction("north:west", doing(asked), sample)


def healthy(**changes: Any):
    """Return the verdict on a healthy sample with other values."""
    return verdict("", replace(HEALTHY_SAMPLE, **changes))


def as_asked(words: str, **options: Any):
    return verdict(words, measured(words, **options))


def bad(judged) -> list[str]:
    return [check.what for check in judged.checks if check.verdict == "bad"]


# ---- what is as asked, and each single thing that is not


@table(
    "asked",
    {
        "nothing but delay and rate": "",
        "loss": "loss=2%",
        "bursts": "loss=2% burst=8",
        "corruption": "corrupt=2%",
        "flipped bits": "corrupt=2% corrupt_survives=true",
        "duplicates": "duplicate=2%",
        "reordering": "reorder=2% reorder_by=1ms",
        "jitter": "jitter=40us",
        "uniform jitter": "jitter=150us distribution=uniform",
        "pareto jitter": "delay=1ms jitter=300us distribution=pareto",
        "no rate": "unlimited",
    },
)
def test_a_fiber_that_does_what_was_asked_certifies(asked):
    for seed in range(20):
        judged = as_asked(asked, seed=seed)
        assert judged.ok, judged.why


@by_input(
    "asked_does, named",
    {
        " | delay=300us": "delay, minimum; delay, median",
        " | delay=100us": "delay, minimum; delay, median",
        " | loss=1%": "loss",
        "loss=2% | loss=4%": "loss",
        "loss=2% | loss=0": "loss",
        "loss=2% | loss=2% burst=8": "burst",
        "loss=5% burst=8 | loss=5%": "burst",
        "loss=5% burst=4 | loss=5% burst=16": "burst",
        " | reorder=1% reorder_by=1ms": "reordering",
        "reorder=2% reorder_by=1ms | reorder=6% reorder_by=1ms": "reordering",
        "reorder=2% reorder_by=1ms | ": "reordering",
        " | duplicate=1%": "duplication",
        "duplicate=2% | ": "duplication",
        "corrupt=2% | ": "loss",
        "corrupt=2% corrupt_survives=true | ": "corruption",
        "corrupt=2% corrupt_survives=true | corrupt=6% corrupt_survives=true": "corruption",
        " | jitter=150us distribution=uniform": "jitter",
        "delay=5ms jitter=1ms | delay=5ms": "jitter",
        "delay=5ms jitter=1ms | delay=5ms jitter=300us": "jitter",
        " | rate=700M": "rate",
        " | unlimited": "rate",
    },
)
def test_each_wrong_thing_fails_by_its_name_and_nothing_else_does(asked_does, named):
    asked, does = asked_does.split(" | ")
    judged = verdict(asked, measured(does))
    assert not judged.ok
    minimum = ["delay, minimum"] if "jitter" in named and bad(judged)[0] == "delay, minimum" else []
    assert bad(judged) == minimum + named.split("; ")
    assert len(judged.why) == len(bad(judged))


def test_jitter_says_which_limit_it_has_passed():
    (less,) = verdict("delay=5ms jitter=1ms", measured("delay=5ms")).why
    assert re.fullmatch(r"jitter 0 us, expected 1000 us \(at least [3-9]\d\d us\)", less)
    too_much = verdict("", measured("jitter=150us distribution=uniform")).why[-1]
    assert too_much.endswith("expected 0 us (at most 50 us)")


def test_swapped_directions_of_an_asymmetric_link():
    assert as_asked("delay=200us").ok
    assert as_asked("delay=400us").ok
    assert "200 us too long" in verdict("", measured("delay=400us")).why[0]
    assert "200 us too short" in verdict("delay=400us", measured()).why[0]


def round_trip(words_back: str, *sample: Any, **fields: Any):
    """Return the verdict on echoes over a healthy fiber, and over ``words_back`` on their way back."""
    return judge_round_trip(HEALTHY, doing(words_back), RoundTripSample(*sample, **fields))


NO_BASELINE = ("RTT: the host delayed all packets of the reference path",)


def test_a_round_trip_is_judged_by_itself():
    there_and_back, times_s = "delay=400us", [600e-6 + base for base in BARE_S * 10]
    good = round_trip(there_and_back, times_s, BARE_S, 50)
    assert good.why == ()
    assert good.target_s == pytest.approx(600e-6)
    assert good.error_median_s == pytest.approx(0.0, abs=1e-9)
    late = round_trip(there_and_back, [time_s + 110e-6 for time_s in times_s], BARE_S, 50)
    assert late.why[0] == "minimum RTT 110 us too long (tolerance 100 us)"
    # Of a fiber that loses nothing, 30 are enough: as many as a large lab sends.
    for probes in (100, 30):
        assert round_trip(there_and_back, (), BARE_S, probes).why == ("no echo came back",)
    assert round_trip(there_and_back).why == (), "none was sent"
    lossy = doing("loss=90%")
    assert judge_round_trip(lossy, lossy, RoundTripSample((), BARE_S, 30)).why == (), "0.99 ** 30 is likely"
    assert judge_round_trip(lossy, lossy, RoundTripSample(times_s, (), 50)).unmeasured == NO_BASELINE
    untold = round_trip(there_and_back, why="RTT: no raw sockets")
    assert (untold.why, untold.inconclusive) == ((), ("RTT: no raw sockets",))


# ---- delays


@table(
    "asked, error_s, ok",
    {
        "no error": ("", 0.0, True),
        "below 50 us": ("", 49e-6, True),
        "above 50 us": ("", 51e-6, False),
        "early by more than 50 us": ("", -51e-6, False),
        "below 2 percent of a long fiber": ("delay=10ms", 190e-6, True),
        "above 2 percent of a long fiber": ("delay=10ms", 210e-6, False),
    },
)
def test_tolerance_of_a_delay(asked, error_s, ok):
    assert as_asked(asked, shift_s=error_s).ok is ok


def test_error_is_measured_less_target_less_bare():
    judged = verdict("", DirectionSample([207e-6 + base for base in BARE_S], BARE_S, 5))
    assert judged.error_min_s == pytest.approx(7e-6)
    assert judged.error_median_s == pytest.approx(7e-6)


def test_the_maximum_is_not_judged_but_the_median_is():
    delays_s = HEALTHY_SAMPLE.delays_s
    assert healthy(delays_s=[*delays_s[:180], *[0.5] * 20]).ok
    assert bad(healthy(delays_s=[*delays_s[:80], *[0.5] * 120]))[0] == "delay, median"


def test_without_a_probe_or_a_bare_path_nothing_certifies():
    assert healthy(delays_s=()).why == ("no probe arrived",)
    unlike = healthy(bare_s=())
    assert unlike.why == () and "all packets of the reference path" in unlike.unmeasured[0]


@by_input("on_time, outcome", {0: "not measured", 19: "not measured", 20: "ok"})
def test_twenty_packets_on_time_are_judged_and_fewer_are_not(on_time, outcome):
    delays_s = HEALTHY_SAMPLE.delays_s
    judged = healthy(arrived=len(delays_s), delays_s=delays_s[:on_time])
    assert (judged.verdict, judged.why) == (outcome, ())


def test_a_few_packets_of_a_lossy_fiber_are_judged_if_all_were_on_time():
    late_s = [delay_s + 60e-6 for delay_s in HEALTHY_SAMPLE.delays_s[:5]]
    assert "delay, median" in bad(healthy(delays_s=late_s, probes=5))


# ---- rate


@by_input("rate_bps, ok", {0.8e9: True, 0.77e9: True, 0.75e9: False, 0.85e9: False, 0.0: False})
def test_rate_within_five_percent(rate_bps, ok):
    assert healthy(rate_bps=rate_bps).ok is ok


def test_a_rate_that_was_not_measured_does_not_pass():
    assert healthy(rate_bps=None).why == ("the rate was not measured",)
    untold = healthy(rate_bps=None, rate_why="rate: too slow")
    assert untold.ok
    assert untold.inconclusive == ("rate: too slow",)


# ---- what too little cannot tell


def test_a_loss_too_rare_for_the_count_is_said_to_be_untold():
    judged = as_asked("loss=1e-6")
    check = judged.check("loss")
    assert judged.ok
    assert check.verdict == judged.check("burst").verdict == "inconclusive"
    assert "4200 packets cannot distinguish 1e-6 from none" in check.why


def test_a_direction_is_ok_only_if_every_quantity_could_be_told():
    """0.05 % of 2,100 packets: a fiber that loses none of them may be right, or may lose nothing at all."""
    rare = "loss=0.05%"
    judged = verdict(rare, measured(packets=2000, probes=100))
    assert (judged.ok, judged.verdict) == (True, "not told")
    check = judged.check("loss")
    # Of n packets none is lost with (1 - 0.0005)^n, which is to be half of one in a million.
    assert check.would_tell == pytest.approx(math.log(0.5e-6) / math.log1p(-0.0005), abs=1.0)
    assert f"2100 packets cannot distinguish 0.05 % from none, {check.would_tell} would;" in check.why
    for does, outcome in ((rare, "ok"), ("", "bad")):
        enough = measured(does, packets=check.would_tell, probes=100)
        assert verdict(rare, enough).check("loss").verdict == outcome
    assert healthy().verdict == "ok"
    assert verdict("", measured("loss=1%")).verdict == "bad"
    written = LinkCertificate("north", 40.0, (judged,))
    assert written.verdict == "not told"
    document = json.loads(json.dumps(certificate(written).to_dict()))
    assert document["verdict"] == "certified"
    assert document["links"][0]["directions"][0]["verdict"] == "not told"
    read = Certificate.from_dict(document)
    assert read == certificate(written)
    assert read.certified


@by_input(
    "what, asked",
    {
        "duplication": "duplicate=0.05%",
        "corruption": "corrupt=0.05% corrupt_survives=true",
        "reordering": "reorder=0.05% reorder_by=1ms",
        "burst": "loss=0.4% burst=4",
        "jitter": "delay=1ms jitter=75us",
    },
)
def test_what_was_not_told_says_how_many_packets_would_tell(asked, what):
    few, share = ({"probes": 100}, 1.0) if what == "jitter" else ({"packets": 1000}, 1.2)
    check = as_asked(asked, **few).check(what)
    assert check.verdict == "inconclusive"
    assert f"{check.would_tell} would" in check.why
    enough = dict.fromkeys(few, round(share * check.would_tell))
    assert as_asked(asked, **enough).check(what).verdict == "ok"


def test_a_jitter_below_what_is_tolerated_of_none_is_told_by_no_number_of_probes():
    check = as_asked("jitter=40us").check("jitter")
    assert (check.verdict, check.would_tell) == ("inconclusive", None)
    assert "no number would" in check.why


def test_few_bursts_are_too_few_to_tell_their_length():
    check = as_asked("loss=0.4% burst=4").check("burst")
    assert check.verdict == "inconclusive"
    assert "too few" in check.why


def test_reordering_that_no_packet_could_show_is_untold():
    check = as_asked("reorder=2% reorder_by=5us").check("reordering")
    assert (check.verdict, check.measured) == ("inconclusive", None)


def test_without_full_sized_packets_their_quantities_are_untold():
    judged = healthy(stream=None)
    assert judged.ok
    for what in ("reordering", "duplication"):
        check = judged.check(what)
        assert (check.verdict, check.measured) == ("inconclusive", None)


def test_what_the_receiver_had_no_room_for_is_not_the_fibers_loss():
    sample = measured("loss=1%")
    slow = replace(sample, stream=replace(sample.stream, missed=40))
    assert verdict("", slow).check("loss").verdict != "bad"
    own = verdict("", replace(sample, own_drops=7))
    assert own.check("loss").verdict == "unmeasured"
    assert "in addition to 7 super-packets that the host dropped" in own.unmeasured[0]


def test_a_few_drops_of_the_host_do_not_hide_a_wrong_loss():
    twice = measured("loss=2%")
    stream = replace(twice.stream, arrived=range(0, twice.stream.sent, 2))
    for sample in (HEALTHY_SAMPLE, replace(twice, stream=stream)):
        without = bad(verdict("loss=1%", sample))
        assert bad(verdict("loss=1%", replace(sample, own_drops=1))) == without != []


def test_drops_of_the_host_are_not_counted_as_lost():
    stream = HEALTHY_SAMPLE.stream
    stream = replace(stream, arrived=stream.arrived[:-5])
    assert bad(healthy(stream=stream)) == ["loss"]
    assert healthy(stream=stream, own_drops=5).verdict == "ok"


def test_jitter_that_reorders_is_not_held_against_the_order():
    assert verdict("jitter=40us jitter_reorders=true", measured("jitter=40us reorder=30% reorder_by=1ms")).ok


@pytest.mark.parametrize("kept", [0.0, 0.5])
def test_dense_probes_of_jitter_that_keeps_the_order(kept):
    """Packets that would overtake leave with those before them, and chances may hang together: no textbook spread."""
    asked = f"delay=20ms jitter=8ms distribution=uniform correlation={kept}"

    def sample(jitter_s: float, seed: int) -> DirectionSample:
        rng = random.Random(seed)
        last, out, delays = rng.random(), 0.0, []
        for number in range(400):
            last = kept * last + (1 - kept) * rng.random()
            out = max(out, number * 2e-3 + 20e-3 + jitter_s * (2 * last - 1))
            delays.append(out - number * 2e-3 + rng.choice(BARE_S))
        stream = Stream(500, range(500))
        return DirectionSample(delays, BARE_S * 10, 400, interval_s=2e-3, stream=stream, rate_bps=0.8e9)

    for seed in range(20):
        judged = verdict(asked, sample(8e-3, seed))
        assert judged.ok, judged.why
        assert judged.check("jitter").measured == pytest.approx(8e-3, rel=0.5)
    assert "jitter" in bad(verdict(asked, sample(2e-3, 1)))


# ---- the certificate as a whole


def certificate(*links: LinkCertificate, **changes: Any) -> Certificate:
    return replace(Certificate("lab", "metro", 1.0, "fiberd", links, True, "", 0.1, {"kernel": "6"}), **changes)


def read_back(written: Certificate) -> Certificate:
    return Certificate.from_dict(json.loads(json.dumps(written.to_dict(), allow_nan=False)))


def link(does: str = "") -> LinkCertificate:
    rtt = round_trip("", [2 * doing(does).delay_s + base for base in BARE_S], BARE_S, 5)
    return LinkCertificate("north", 40.0, (verdict("", measured(does)),), rtt)


@by_input(
    "does, outcome",
    {"": "certified", "delay=1ms": "outside tolerance", "loss=10% burst=5": "outside tolerance"},
)
def test_a_certificate_is_read_back_as_it_was_written(does, outcome):
    written = certificate(link(does), took_s=1.5, thorough=True, stolen=0.25)
    assert read_back(written) == written
    assert written.to_dict()["verdict"] == outcome
    assert read_back(written).certified is (outcome == "certified")


def test_a_certificate_of_before_checks_is_still_read():
    old: Any = certificate(link()).to_dict()
    for key in ("notes", "took_s", "thorough", "headroom"):
        del old[key]
    for entry in old["links"]:
        del entry["rtt"]
        for direction in entry["directions"]:
            del direction["checks"], direction["segmentation"]
    read = Certificate.from_dict(json.loads(json.dumps(old)))
    assert read.certified
    assert read.links[0].rtt is None


def test_a_late_round_trip_is_a_reason_against_the_lab():
    late = replace(link(), rtt=link("delay=400us").rtt)
    assert not late.ok
    assert certificate(late).why[0].startswith("north: minimum RTT 400 us too long")


def test_a_way_around_an_empty_lab_and_an_empty_file_do_not_certify():
    assert certificate(link(), around_ok=False, around_why="management forwards").why == ("management forwards",)
    for empty in (certificate(), certificate(LinkCertificate("north", 40.0, ())), Certificate.from_dict({})):
        assert not empty.certified


def test_a_machine_without_headroom_is_a_note_and_no_failure():
    busy = certificate(link(), cpu_busy=0.98)
    assert busy.certified
    assert busy.notes[0].startswith("the machine was 98% busy")
    headroom: Any = busy.to_dict()["headroom"]
    assert headroom["trusted"] is False
    assert certificate(link()).notes == ()
    assert "other guests took 30%" in Headroom(0.5, 0.3).note


def test_a_fault_that_stands_on_a_fiber_is_outside_tolerance_and_another_one_a_note():
    slight = certificate(link(), faults=(ConcurrentFault("f1 (jitter north)", ("north",)),))
    assert slight.why == ("north: fault f1 (jitter north) is active",)
    assert not slight.certified
    of_a_rank = certificate(link(), faults=(ConcurrentFault("f2 (straggler 3)"),))
    assert of_a_rank.certified
    assert "fault f2 (straggler 3) was active, which affects no fiber" in of_a_rank.notes
    for written in (slight, of_a_rank):
        assert read_back(written).faults == written.faults


# ---- between nodes


def between_nodes(extra_s: float = 0.0, **changes: Any) -> DirectionSample:
    """Packets from node to node over a calibrated fiber: half of an RTT inside a site comes on top of its delay."""
    rng = random.Random(3)
    delays_s = [HEALTHY.delay_s + 6e-6 + extra_s + rng.choice((0.0, 1e-6, 2e-6)) for _ in range(PROBES)]
    return replace(replace(HEALTHY_SAMPLE, delays_s=delays_s, between="nodes", taken_off_s=12e-6), **changes)


WAITS_S = [5e-6, 40e-6, 41e-6, 42e-6, 90e-6]
"""A baseline that shows 36 us of waits by the host; only 10 us count without evidence in its logs."""


def test_nothing_is_subtracted_from_what_two_nodes_see():
    judged = verdict("", between_nodes())
    assert judged.ok
    assert judged.bare.median == 21e-6
    assert judged.error_median_s == pytest.approx(7e-6)
    assert judged.error_min_s == pytest.approx(6e-6)
    assert judged.check("delay, median").measured == pytest.approx(207e-6)
    # The baseline would have excused this one.
    assert bad(verdict("", between_nodes(60e-6))) == ["delay, minimum", "delay, median"]


@by_input("later_s, ok", {52e-6: True, 60e-6: False, 100e-6: False})
def test_waits_of_the_host_raise_the_limit_of_a_median_by_10_us_at_most(later_s, ok):
    first, *others = between_nodes().delays_s
    judged = verdict("", between_nodes(bare_s=WAITS_S, delays_s=[first, *(delay_s + later_s for delay_s in others)]))
    assert ("delay, median" not in bad(judged)) is ok
    assert judged.error_median_s == pytest.approx(7e-6 + later_s)


def test_waits_of_the_host_never_excuse_a_minimum():
    assert bad(verdict("", between_nodes(52e-6, bare_s=WAITS_S))) == ["delay, minimum"]


def test_a_packet_that_is_early_from_node_to_node_is_a_note():
    early = verdict("", between_nodes(-9e-6))
    assert early.ok and early.early == "a packet was 3.0 us early from node to node"
    for others in (between_nodes(), between_nodes(-9e-6, between="gateways")):
        assert not verdict("", others).early
    lab = certificate(LinkCertificate("north", 40.0, (early,)))
    assert lab.notes[0] == "north:west: a packet was 3.0 us early from node to node"


def test_the_rtt_between_nodes_less_that_inside_a_site_is_twice_the_delay():
    times_s = [412e-6, 413e-6, 414e-6]
    judged = round_trip("", times_s, [11e-6, 12e-6, 13e-6], 3, between="nodes")
    assert judged.error_median_s == pytest.approx(1e-6) and judged.between == "nodes" and not judged.why
    assert round_trip("", times_s, [], 3, between="nodes").unmeasured == NO_BASELINE


def test_waits_of_the_host_raise_the_limit_of_an_rtt_between_nodes_by_10_us_at_most():
    def why(median_s: float, between: str = "nodes"):
        return round_trip("", [412e-6, median_s, median_s], [10e-6, 50e-6, 50e-6], 3, between=between).why

    assert why(555e-6) == ()
    assert why(555e-6, "gateways")
    assert why(565e-6) == ("median RTT 105 us too long (tolerance 100 us)",)


def test_what_was_taken_off_is_read_back_and_older_certificates_had_none():
    rtt = round_trip("", [412e-6], [11e-6], 1, between="nodes")
    link = LinkCertificate("north", 40.0, (verdict("", between_nodes()),), rtt)
    written = json.loads(json.dumps(link.to_dict()))
    (direction,) = written["directions"]
    assert direction["taken_off_s"] == 12e-6
    assert direction["between"] == written["rtt"]["between"] == "nodes"
    assert LinkCertificate.from_dict(written) == link
    del direction["taken_off_s"], direction["between"], written["rtt"]["between"]
    older = LinkCertificate.from_dict(written)
    (direction,) = older.directions
    assert (direction.taken_off_s, direction.between) == (0.0, "gateways")
    assert direction.error_median_s == pytest.approx(7e-6 - 21e-6)
    assert older.rtt.between == "gateways"


# ---- rates that others or the host touch


def test_a_rate_without_pairs_on_time_is_not_measured():
    judged = healthy(rate_bps=None, rate_tries=3, rate_unmeasured="rate: 2 pairs were on time")
    assert (judged.verdict, judged.why, judged.unmeasured) == ("not measured", (), ("rate: 2 pairs were on time",))


def test_other_traffic_leaves_a_low_rate_untold_if_it_is_enough_to_explain_it():
    """75 % of the rate is that of a fiber of the whole rate if others had the quarter: a third of the trains' bytes."""
    judged = healthy(rate_bps=0.6e9, rate_beside=0.34)
    check = judged.check("rate")
    assert (check.verdict, check.measured) == ("inconclusive", 0.6e9)
    assert "other traffic crossed the fiber meanwhile" in check.why
    assert (judged.ok, judged.verdict) == (True, "not told")
    assert bad(healthy(rate_bps=0.6e9, rate_beside=0.1)) == ["rate"], "too little to explain it"
    for right in (0.8e9, 0.77e9):
        assert healthy(rate_bps=right, rate_beside=0.34).verdict == "ok"
    assert bad(healthy(rate_bps=0.9e9, rate_beside=0.34)) == ["rate"], "others make it no faster"
