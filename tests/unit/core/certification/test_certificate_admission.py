"""Certificates and options that admit jobs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from builders.cli_fixtures import certificate_of, noisy, unmeasured

from testbed.core.certification import admission
from testbed.core.certification.certificate import Certificate
from testbed.errors import FidelityError, NoisyHost, TestbedError, UserError
from testbed.host.files import catalog

METRO = catalog.load_topology("metro-40km")
RIGHT, WRONG = certificate_of(METRO), certificate_of(METRO, 90e-6)

EXPECTED: list[tuple[Certificate | None, int, int]] = [
    # certificate, exit status, exit status with --strict
    (RIGHT, 0, 0),
    (noisy(RIGHT), 0, 3),
    (WRONG, 1, 1),
    (noisy(WRONG), 1, 1),
    (unmeasured(RIGHT), 3, 3),
    (noisy(unmeasured(RIGHT)), 3, 3),
    (unmeasured(WRONG), 1, 1),
    (None, 1, 1),
]


def status(certificate: Certificate | None, **options: Any) -> int:
    try:
        admission.refuse(certificate, **options)
    except TestbedError as error:
        return error.exit_code
    return 0


@pytest.mark.parametrize("certificate, plain, strict", EXPECTED)
def test_exit_status_by_verdict(certificate: Certificate | None, plain: int, strict: int) -> None:
    assert (status(certificate), status(certificate, strict=True)) == (plain, strict)
    assert status(certificate, allow_uncertified=True) == 0
    assert status(certificate, strict=True, allow_uncertified=True) == 2


def test_a_refusal_has_the_certificate_its_reasons_and_the_command_that_measures_again() -> None:
    with pytest.raises(
        FidelityError, match=r"the lab is outside tolerance: north:west: .*\n.*; measure again with: C$"
    ) as bad:
        admission.refuse(WRONG, 1000.0, measure_again="C")
    assert (bad.value.certificate, bad.value.scale) == (WRONG, 1000.0)
    with pytest.raises(NoisyHost, match=r"the lab is not measurable on this host now: north:west: the rate") as unknown:
        admission.refuse(unmeasured(RIGHT), 1000.0)
    assert unknown.value.scale == 1000.0
    with pytest.raises(NoisyHost, match=r"it delayed 12% .*; other guests took 4\.2% .*\n.* without --strict$"):
        admission.refuse(replace(noisy(RIGHT), stolen=0.042), strict=True)


def test_both_options_exclude_each_other_whatever_was_measured() -> None:
    for strict, allowed in itertools.product((False, True), repeat=2):
        if strict and allowed:
            with pytest.raises(UserError, match="exclude each other"):
                admission.refuse_both(strict, allowed)
        else:
            admission.refuse_both(strict, allowed)
