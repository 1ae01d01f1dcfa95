"""The JSON of a certificate as types, for the schema of report.json; ``Certificate.to_dict`` writes it.

Later versions add properties, so objects may have others.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

__all__ = ["CertificateDocument"]


class _Noise(TypedDict):
    """Delays by the host while the fibers were measured."""

    packets: NotRequired[int]
    delayed: NotRequired[int]
    """Small packets that the host delayed."""
    median_s: NotRequired[float | None]
    p99_s: NotRequired[float | None]
    stalls: NotRequired[int | None]
    longest_stall_s: NotRequired[float]
    stalled_share: NotRequired[float]
    noisy: NotRequired[bool]
    note: NotRequired[str]


class _Check(TypedDict):
    what: str
    target: float | None
    measured: float | None
    low: float | None
    """Least accepted value; null: no limit."""
    high: float | None
    verdict: Literal["ok", "bad", "inconclusive", "unmeasured"]
    why: str
    would_tell: NotRequired[int | None]
    """Number of packets that would decide an inconclusive quantity."""


class _Tries(TypedDict):
    """How often delay (with jitter) and rate were measured."""

    delay: NotRequired[int]
    rate: NotRequired[int]


class _Direction(TypedDict):
    direction: str
    target_s: float
    tolerance_s: float
    probes: int
    lost: int
    measured_s: object
    bare_s: object
    error_s: object
    rate: object
    verdict: Literal["ok", "bad", "not told", "not measured"]
    why: list[str]
    checks: NotRequired[list[_Check]]
    """One quantity each, in SI units."""
    starved: NotRequired[bool]
    """Whether the host prevented a measurement."""
    tries: NotRequired[_Tries]
    segmentation: NotRequired[str]
    """What makes MTU-sized packets before random impairments: emulator, sender or none."""


class _RoundTrip(TypedDict):
    target_s: object
    tolerance_s: object
    probes: object
    unanswered: object
    measured_s: object
    bare_s: object
    error_s: object
    checks: list[_Check]


class _Link(TypedDict):
    name: str
    km: float
    directions: list[_Direction]
    rtt: NotRequired[_RoundTrip | None]


class _Around(TypedDict):
    """The search for a path that bypasses the fibers."""

    ok: bool
    why: str
    pairs: NotRequired[int]
    """Pairs of sites that were probed."""
    families: NotRequired[list[str]]
    took_s: NotRequired[float | None]


class _Headroom(TypedDict):
    """CPU headroom during the measurement, as shares of all cores, 0..1."""

    free: float
    stolen: float
    trusted: bool
    note: str


class CertificateDocument(TypedDict):
    version: Literal[1]
    verdict: Literal["certified", "certified, noisy host", "outside tolerance", "not measurable on this host now"]
    certified: NotRequired[bool]
    """Whether all fibers are within tolerance, also on a noisy host."""
    noisy: NotRequired[bool]
    """Whether the host delayed packets meanwhile."""
    noise: NotRequired[_Noise]
    why: list[str]
    links: list[_Link]
    around: _Around
    notes: NotRequired[list[str]]
    """What could not be decided, or limits the trust in the numbers; does not count against the lab."""
    headroom: NotRequired[_Headroom]
