"""A direction certifies by minimum and median, each less target and bare path; never by its maximum."""

from __future__ import annotations

import json

import pytest

from testbed.core.evidence.certificate import Certificate, LinkCertificate, build, build_direction

BARE = [20e-6, 24e-6, 60e-6]


def direction(error_s: float = 0.0, **changes):
    arguments = {
        "direction": "north:west",
        "target_s": 200e-6,
        "samples_s": [value + 200e-6 + error_s for value in BARE],
        "bare_s": BARE,
        "sent": 3,
        "rate_target_bps": 0.8e9,
        "rate_measured_bps": 0.79e9,
    }
    return build_direction(**{**arguments, **changes})


@pytest.mark.parametrize(("error_s", "ok"), [(0.0, True), (49e-6, True), (51e-6, False), (-51e-6, False)])
def test_tolerance_of_a_short_fiber_is_50_us(error_s, ok):
    assert direction(error_s).ok is ok


@pytest.mark.parametrize(("error_s", "ok"), [(190e-6, True), (210e-6, False)])
def test_tolerance_of_a_long_fiber_is_two_percent(error_s, ok):
    assert direction(target_s=10e-3, samples_s=[value + 10e-3 + error_s for value in BARE]).ok is ok


def test_error_is_measured_less_target_less_bare():
    judged = direction(7e-6)
    assert judged.error_min_s == pytest.approx(7e-6)
    assert judged.error_median_s == pytest.approx(7e-6)


def test_the_maximum_is_not_judged_but_the_median_is():
    good = [value + 200e-6 for value in (20e-6, 22e-6, 24e-6)]
    assert direction(samples_s=[*good, 0.5], sent=4).ok
    late = direction(samples_s=[good[0], 0.5, 0.5], sent=3)
    assert late.why[0].startswith("its median delay is")
    assert len(late.why) == 1


@pytest.mark.parametrize(
    ("measured", "ok"), [(0.8e9, True), (0.77e9, True), (0.75e9, False), (0.85e9, False), (0.0, False)]
)
def test_rate_within_five_percent(measured, ok):
    assert direction(rate_measured_bps=measured).ok is ok


def test_a_rate_that_is_unlimited_or_was_not_measured_is_not_judged():
    assert direction(rate_target_bps=0.0, rate_measured_bps=5e9).rate is None
    assert direction(rate_measured_bps=None).ok


def test_lost_probes():
    assert not direction(sent=4).ok
    samples = [220e-6] * 990
    assert direction(samples_s=samples, bare_s=[20e-6], sent=1000, loss_target=0.01).ok
    assert not direction(samples_s=samples, bare_s=[20e-6], sent=1000, loss_target=0.1).ok
    assert direction(samples_s=[], sent=10).why == ("no probe came through",)


def test_certificate_round_trip_and_verdict():
    good = LinkCertificate("north", 40.0, (direction(),))
    certificate = build("lab", "metro", "fiberd", [good], True, "", 0.1, {"kernel": "6"}, 1.0)
    assert certificate.certified
    written = json.loads(json.dumps(certificate.to_dict()))
    assert written["verdict"] == "certified"
    assert Certificate.from_dict(written) == certificate

    bad = build("lab", "metro", "fiberd", [LinkCertificate("north", 40.0, (direction(1e-3),))], True, "", 0.1, {}, 1.0)
    assert not bad.certified
    assert bad.to_dict()["verdict"] == "outside tolerance"
    assert Certificate.from_dict(json.loads(json.dumps(bad.to_dict()))) == bad


def test_a_way_around_an_empty_lab_and_an_empty_file_do_not_certify():
    good = LinkCertificate("north", 40.0, (direction(),))
    assert build("l", "t", "e", [good], False, "management forwards", 0, {}, 0).why == ("management forwards",)
    assert not build("l", "t", "e", [], True, "", 0, {}, 0).certified
    assert not build("l", "t", "e", [LinkCertificate("north", 40.0, ())], True, "", 0, {}, 0).certified
    assert not Certificate.from_dict({}).certified
