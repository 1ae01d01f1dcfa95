"""What a link does to packets in each direction: its length, optics and buffer, and what its file lays over that.

From the general to the particular, each over those before it: the link's own delay, rate and ``loss``; ``impair`` of
the default link; its ``toward`` the site; ``impair`` of the link; its ``toward`` the site. A link that says its own
rate, optics or loss means them instead of what ``impair`` of the default link says; a default burst goes with any loss.
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
from testbed.core.user_text import nearest, shown
from testbed.core.yamltext import Path

__all__ = ["LEAST_RATE_BPS", "Layer", "Own", "check", "check_default", "layers", "resolved"]

LEAST_RATE_BPS: Final = 10e3
"""One packet of 1500 B then takes more than a second: nothing can be measured any more."""

_LOSS = ("loss", "p", "r", "h", "k")

Layer = tuple[Path, Mapping[str, Any]]
"""Where in the file, and the values there, by key of PARAMETERS, in SI units; the rate already scaled."""


@dataclass(frozen=True)
class Own:
    """What a link is without ``impair``: one-way delay in s, rate in bit/s after scale, loss, what may wait, MTU."""

    delay_s: float
    rate_bps: float
    loss: float
    buffer: Buffer
    mtu: int


def layers(
    name: str, link: LinkText, default: LinkDefaults, scale: float = 1.0, toward: str | None = None
) -> list[Layer]:
    """What lies over a link's own values, lowest first; ``toward`` None: what holds in both directions.

    A rate is as fast as it is in the world, over ``scale``.
    """
    hidden = {
        *(("rate",) if link.rate is not None or link.optics is not None else ()),
        *(_LOSS if link.loss is not None else ()),
    }
    found: list[Layer] = []
    for path, values in _written(name, link, default, toward):
        kept = {key: value for key, value in values.items() if path[0] == "links" or key not in hidden}
        if "rate" in kept:
            kept["rate"] /= scale
        if kept:
            found.append((path, kept))
    return found


def _written(name: str, link: LinkText, default: LinkDefaults, toward: str | None) -> Iterator[Layer]:
    for path, part in ((("defaults", "link"), default), (("links", name), link)):
        yield (*path, "impair"), part.impair or {}
        if toward is not None:
            yield (*path, "toward", toward), (part.toward or {}).get(toward, {})


def resolved(own: Own, over: Sequence[Layer]) -> Impairment:
    """The whole of one direction. The queue is rate x delay + buffer of that direction, unless it is written, and one
    full packet at least: 0 would be no limit, and through less nothing would pass."""
    result = Impairment(own.delay_s, own.rate_bps, loss=own.loss)
    for _, values in over:
        result = lay(values, result)
    if any("queue" in values for _, values in over):
        return result
    queue_bytes = round(result.rate_bps * result.delay_s / 8) + own.buffer.bytes_at(result.rate_bps)
    return dataclasses.replace(result, queue_bytes=max(queue_bytes, result.least_queue_bytes(own.mtu)))


def check(name: str, link: LinkText, default: LinkDefaults, scale: float, own: Own | None, mistakes: Mistakes) -> None:
    """Every ``toward`` names an end, and what is laid over ``own`` (None: it is not known) fits together."""
    between = link.between or ()
    for site in link.toward or {}:
        if between and site not in between:
            message = f"link {shown(name)} does not lead to {shown(site)}"
            mistakes.note(("links", name, "toward", site), message, nearest(site, between))
    if own is None:
        return
    wrong: dict[tuple[Path, str, str], list[str]] = {}
    for site in between:
        over = layers(name, link, default, scale, site)
        for it in _judge(resolved(own, over), over, scale, own.mtu):
            places = [(*path, it.key) for path, values in over if it.key in values]
            # A value that is missing has no line: that of what should have had it.
            path = places[-1] if places else over[-1][0] if over else ("links", name)
            wrong.setdefault((path, it.key, it.why), []).append(site)
    for (path, key, why), sites in wrong.items():
        toward = f" toward {sites[0]}" if len(sites) < len(between) else ""
        message, _, fix = why.partition("; ")
        mistakes.note(path, f"link {shown(name)}{toward}: {key}: {message}", fix or f"choose another {key}")


def _judge(impairment: Impairment, over: Sequence[Layer], scale: float, mtu: int) -> Iterator[Misread]:
    rates = [values["rate"] for _, values in over if "rate" in values]
    if rates and rates[-1] < LEAST_RATE_BPS:
        fix = f"a link keeps at least {format_rate(LEAST_RATE_BPS)}"
        yield Misread("rate", f"it is {rates[-1]:.3g} b/s after scale {scale:g}; {fix}")
    yield from (it for it in judge(impairment, mtu) if it.key != "rate" or not rates or rates[-1] >= LEAST_RATE_BPS)


def check_default(default: LinkDefaults, sites: Mapping[str, object], mistakes: Mistakes) -> None:
    """Every ``toward`` of the default link names a site."""
    for site in default.toward or {}:
        if site not in sites:
            path = ("defaults", "link", "toward", site)
            mistakes.note(path, f"'toward' of the default link: no site named {shown(site)}", nearest(site, sites))
