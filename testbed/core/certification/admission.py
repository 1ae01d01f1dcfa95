"""Whether a certificate admits jobs: a certified lab is admitted, on a noisy host only without ``strict``."""

from __future__ import annotations

from testbed.core.certification.certificate import OUTSIDE, Certificate
from testbed.errors import FidelityError, NoisyHost, UserError

__all__ = ["refuse", "refuse_both"]


def refuse_both(strict: bool, allow_uncertified: bool) -> None:
    """Raise UserError for two options that exclude each other."""
    if strict and allow_uncertified:
        raise UserError(
            "--strict and --allow-uncertified exclude each other: one refuses a noisy host, the other admits any lab;"
            " omit one (strict may also be set by the experiment file)"
        )


def refuse(
    certificate: Certificate | None,
    scale: float = 1.0,
    *,
    strict: bool = False,
    allow_uncertified: bool = False,
    measure_again: str = "",
) -> None:
    """Raise unless a lab with this certificate may run jobs.

    ``strict`` refuses a noisy host, ``allow_uncertified`` admits any lab. ``measure_again`` is the command that
    measures the lab again; empty if the lab does not stay up.

    Raises:
        FidelityError: a fiber is outside tolerance, or no fiber was measured.
        NoisyHost: the fibers are not measurable on this host now, or ``strict`` and the host is noisy.
        UserError: both options are set.
    """
    refuse_both(strict, allow_uncertified)
    again = f"; measure again with: {measure_again}" if measure_again else ""
    if allow_uncertified:
        return
    if certificate is None:
        raise FidelityError(f"the fibers were not measured: continue with --allow-uncertified{again}")
    if certificate.certified and not (strict and certificate.noisy):
        return
    error = FidelityError if certificate.verdict == OUTSIDE else NoisyHost
    raise error(f"{certificate.refusal}{again}", certificate, scale)
