"""The impairment of each direction of a link: from its length, optics and buffer, overlaid with values of the file.

Each layer overrides those before it: the link's own delay, rate and ``loss``; ``impair`` of the default link; its
``toward`` the site; ``impair`` of the link; its ``toward`` the site. Rate, optics or loss written with the link itself
override ``impair`` of the default link; a default burst applies to any loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from testbed.core.physics.impairment import Impairment
from testbed.core.physics.parameters import Misread, judge, lay
from testbed.core.topology.topology_schema import Buffer, LinkDefaults, LinkText, Mistakes
from testbed.core.units import format_rate
from testbed.core.user_text import shown, unknown
from testbed.core.yamltext import Path

__all__ = ["LEAST_RATE_BPS", "Layer", "Own", "check", "check_default", "layers", "resolved"]

LEAST_RATE_BPS: Final = 10e3
"""Below it one packet of 1500 B takes more than a second, too slow to measure anything."""

_LOSS = ("loss", "p", "r", "h", "k")

Layer = tuple[Path, Mapping[str, Any]]
"""(path in the file, values there by key of PARAMETERS), in SI units; the rate is already scaled."""


@dataclass(frozen=True)
class Own:
    """A link without ``impair``: one-way delay in s, rate in bit/s after scale, loss, buffer, MTU."""

    delay_s: float
    rate_bps: float
    loss: float
    buffer: Buffer
    mtu: int


def layers(
    name: str, link: LinkText, default: LinkDefaults, scale: float = 1.0, toward: str | None = None
) -> list[Layer]:
    """Return the layers over a link's own values, lowest first; ``toward`` None: those of both directions.

    Rates are full-scale rates divided by ``scale``.
    """
    hidden = {
        *(("rate",) if link.rate is not None or link.optics is not None else ()),
        *(_LOSS if link.loss is not None else ()),
    }
    overrides: list[Layer] = []
    for path, values in _written(name, link, default, toward):
        kept = {key: value for key, value in values.items() if path[0] == "links" or key not in hidden}
        if "rate" in kept:
            kept["rate"] /= scale
        if kept:
            overrides.append((path, kept))
    return overrides


def _written(name: str, link: LinkText, default: LinkDefaults, toward: str | None) -> Iterator[Layer]:
    for path, part in ((("defaults", "link"), default), (("links", name), link)):
        yield (*path, "impair"), part.impair or {}
        if toward is not None:
            yield (*path, "toward", toward), (part.toward or {}).get(toward, {})


def resolved(own: Own, over: Sequence[Layer]) -> Impairment:
    """Return the complete impairment of one direction.

    Unless written, the queue is rate x delay + buffer of that direction, and at least one full packet: 0 would mean
    unlimited, and a smaller queue would pass nothing.
    """
    result = Impairment(own.delay_s, own.rate_bps, loss=own.loss)
    for _, values in over:
        result = lay(values, result)
    if any("queue" in values for _, values in over):
        return result
    queue_bytes = round(result.rate_bps * result.delay_s / 8) + own.buffer.bytes_at(result.rate_bps)
    return dataclasses.replace(result, queue_bytes=max(queue_bytes, result.least_queue_bytes(own.mtu)))


def check(name: str, link: LinkText, default: LinkDefaults, scale: float, own: Own | None, mistakes: Mistakes) -> None:
    """Check that every ``toward`` names an end and that the layers over ``own`` (None: unknown) fit together."""
    between = link.between or ()
    for site in link.toward or {}:
        if between and site not in between:
            message, fix = unknown("end", site, between)
            mistakes.note(("links", name, "toward", site), f"toward of link {shown(name)}: {message}", fix)
    if own is None:
        return
    wrong: dict[tuple[Path, str, str], list[str]] = {}
    for site in between:
        over = layers(name, link, default, scale, site)
        for misread in _judge(resolved(own, over), over, scale, own.mtu):
            places = [(*path, misread.key) for path, values in over if misread.key in values]
            # A missing value has no line: use that of its parent.
            path = places[-1] if places else over[-1][0] if over else ("links", name)
            wrong.setdefault((path, misread.key, misread.why), []).append(site)
    for (path, key, why), sites in wrong.items():
        toward = f" toward {sites[0]}" if len(sites) < len(between) else ""
        message, _, fix = why.partition("; ")
        mistakes.note(path, f"link {shown(name)}{toward}: {key}: {message}", fix or f"choose another {key}")


def _judge(impairment: Impairment, over: Sequence[Layer], scale: float, mtu: int) -> Iterator[Misread]:
    rates = [values["rate"] for _, values in over if "rate" in values]
    if rates and rates[-1] < LEAST_RATE_BPS:
        fix = f"write a rate of at least {format_rate(LEAST_RATE_BPS)} after scale"
        yield Misread("rate", f"{rates[-1]:.3g} b/s after scale {scale:g}; {fix}")
    yield from (
        misread
        for misread in judge(impairment, mtu)
        if misread.key != "rate" or not rates or rates[-1] >= LEAST_RATE_BPS
    )


def check_default(default: LinkDefaults, sites: Mapping[str, object], mistakes: Mistakes) -> None:
    """Check that every ``toward`` of the default link names a site."""
    for site in default.toward or {}:
        if site not in sites:
            path = ("defaults", "link", "toward", site)
            message, fix = unknown("site", site, sites)
            mistakes.note(path, f"toward of the default link: {message}", fix)
